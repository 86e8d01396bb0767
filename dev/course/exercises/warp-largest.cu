// ----- task
// Puzzle: largest[r] = the largest of x[r,0] ... x[r,C-1], one warp per row; a block is one warp.
// Each lane finds the largest of elements lane, lane + 32, ... Then in 5 steps
//
//     __shfl_down_sync(0xFFFFFFFFu, value, distance)     the value of the lane so many numbers higher
//
// halves the number of lanes that matter, until lane 0 has it. C is at least 32.
__global__ void row_largest(float* largest, const float* x, int C) {
    // your code
}

// ----- solution
__global__ void row_largest(float* largest, const float* x, int C) {
    const int row = blockIdx.x, lane = threadIdx.x;
    float most = -INFINITY;
    for (int c = lane; c < C; c += 32) most = fmaxf(most, x[row * C + c]);
    for (int distance = 16; distance > 0; distance /= 2)
        most = fmaxf(most, __shfl_down_sync(0xFFFFFFFFu, most, distance));
    if (lane == 0) largest[row] = most;
}

// ----- mistakes
//     zero: float most = -INFINITY ==> float most = 0
//     lane: for (int distance = 16; distance > 0; ==> for (int distance = 0; distance > 0;
//     last-lane: if (lane == 0) largest ==> if (lane == 31) largest
//     first-step: int distance = 16 ==> int distance = 8
//     first-pass: c < C; c += 32 ==> c < 32; c += 32
//     alone: int c = lane; c < C; c += 32 ==> int c = 0; c < C && lane == 0; c++

// ----- limits
//     counted shuffles >= 15, shuffles: 5 shuffles for each row find the largest of the lanes.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::row_largest)* row_largest) {
    j.cuda = true;
    j.hints = {
        {"zero", "it begins with 0, which is above all elements of a row of negative ones: -INFINITY is below all."},
        {"lane", "this is the largest of lane 0 alone: every 32nd element."},
        {"last-lane", "lane 31 has nobody above it and knows its own elements alone: lane 0 has the result."},
        {"first-step", "lanes 16 to 31 are not part of it: the first distance is 16."},
        {"first-pass", "only the first 32 elements of a row are looked at."}};
    for (auto [rows, C] : {std::pair<int, int>{2, 32}, {4, 100}, {3, 512}}) {
        j.sizes("rows %d, C %d", rows, C);
        std::vector<float> x = j.random(rows * C);
        for (float& v : x) v -= 2;
        OnDevice<float> largest(begins(rows)), from(x);
        run(rows == 3 ? "counted" : "row_largest", row_largest, rows, 32, largest, from, C);
        j.check({{"largest", {rows}, largest.fetch()}}, [&, rows = rows, C = C](const Key& wrong) -> Arrays {
            std::vector<double> expected(rows, wrong == "zero" ? 0 : -INFINITY);
            for (int r = 0; r < rows; r++)
                for (int c = 0; c < (wrong == "first-pass" ? 32 : C); c++) {
                    const int lane = c % 32;
                    if (wrong == "lane" && lane != 0 || wrong == "last-lane" && lane != 31) continue;
                    if (wrong == "first-step" && lane >= 16) continue;
                    expected[r] = std::max(expected[r], (double)x[r * C + c]);
                }
            return {expected};
        });
    }
}
