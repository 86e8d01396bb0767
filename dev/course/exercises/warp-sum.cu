// ----- task
// The sum of each row of a matrix, one warp per row: sums[r] = sum over c of x[r,c], x (rows, C). A
// block has 4 warps; warp w of block b has row 4 b + w. Lane i adds up elements i, i + 32, i + 64,
// ... in a register. Then the 32 lanes add their sums in 5 steps, without shared memory:
//
//     __shfl_xor_sync(0xFFFFFFFFu, value, distance)
//
// returns the value of the lane whose number differs from the caller's in the bits of `distance`.
// All lanes of the warp must call it.
__global__ void row_sums(float* sums, const float* x, int rows, int C) {
    // your code
}

// ----- solution
__global__ void row_sums(float* sums, const float* x, int rows, int C) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0;
    for (int c = lane; c < C; c += 32) sum += x[row * C + c];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
    if (lane == 0) sums[row] = sum;
}

// ----- shipped
__global__ void row_sums(float* sums, const float* x, int rows, int C) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0;
    for (int c = lane; c < C; c += 32) sum += x[row * C + c];
    sum = warp_sum(sum);
    if (lane == 0) sums[row] = sum;
}

// ----- mistakes
//     four-steps: distance > 0 ==> distance > 1
//     first-step: int distance = 16 ==> int distance = 8
//     alone: sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance) ==>
//         if (lane < distance) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance)
//     lane: for (int distance = 16; distance > 0; distance /= 2) ==> for (int distance = 16; distance > 16;
//         distance /= 2)
//     bounds: if (row >= rows) return; ==> ;
//     mask: for (int distance = 16; ==> if (lane < C) for (int distance = 16;
//     pieces: int c = lane; c < C; c += 32 ==> int c = lane * ((C + 31) / 32); c < C && c < (lane + 1) * ((C + 31)
//         / 32); c++
//     double: float sum = 0 ==> float sum = lane < C ? x[row * C + lane] : 0
//     alone: int c = lane; c < C; c += 32 ==> int c = 0; c < C && lane == 0; c++
//     steps: sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance) ==> ;; int distance = 16; distance > 0; distance /= 2
//         ==>
//         int other = 0; other < 1; other++ ;; if (lane == 0) sums[row] = sum ==> float all = 0;
//         for (int i = 0; i < 32; i++) all += __shfl_sync(0xFFFFFFFFu, sum, i); if (lane == 0) sums[row] = all
//     shuffles: for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum,
//         distance) ==> ;; float sum = 0; ==> float sum = 0; if (lane == 0) sums[row] = 0; __syncwarp(); ;;
//         if (lane == 0) sums[row] = sum ==> for (int i = 0; i < 32; i++) { if (lane == i) sums[row] += sum;
//         __syncwarp(); }

// ----- limits
//     counted shared-requests <= 0, shared: the sum over a warp needs no shared memory: registers and shuffles do.
//     counted shuffles >= 40, shuffles: the lanes hand their sums to each other by shuffles, not through memory: 5 for
//         each of the 8 warps.
//     counted shuffles <= 40, steps: 5 shuffles are enough for 32 lanes: each doubles the number of lanes in a sum.
//     counted barriers <= 0, barrier: the lanes of a warp need no __syncthreads() for shuffles.
//     counted load-sectors <= 4.01, pieces: the lanes of a warp read from far apart: lane i must read elements i,
//         i + 32,
//         ...
//     counted reads <= 1.01, twice: elements are read more than once.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::row_sums)* row_sums) {
    j.cuda = true;
    j.hints = {{"four-steps", "the last step is missing: distances are 16, 8, 4, 2 and 1."},
               {"first-step", "lanes 16 to 31 are not part of the sum: the first distance is 16."},
               {"alone",
                "only some lanes come to the shuffle, behind an if; what the others hold is then undefined. All 32 "
                "must call it."},
               {"lane", "this is the sum of lane 0 alone: every 32nd element. The lanes' sums must be added up."},
               {"mask",
                "lanes without elements do not come to the shuffles: on a GPU the others may wait for ever, or get "
                "anything. All 32 lanes must take part, with 0."},
               {"double", "the first element of each lane is added twice."}};
    for (auto [rows, C] : {std::pair<int, int>{4, 32}, {1, 5}, {7, 33}, {3, 1000}, {8, 256}}) {
        j.sizes("rows %d, C %d", rows, C);
        const std::vector<float> x = j.random(rows * C);
        OnDevice<float> sums(begins(rows)), from(x);
        run(rows == 8 ? "counted" : "row_sums", row_sums, (rows + 3) / 4, 128, sums, from, rows, C);
        j.check({{"sums", {rows}, sums.fetch()}}, [&, rows = rows, C = C](const Key& wrong) -> Arrays {
            std::vector<double> expected(rows);
            for (int r = 0; r < rows; r++)
                if (wrong == "mask" && C < 32) {  // a lane that shuffles with one that is gone gets its own value
                    std::vector<double> lanes(&x[r * C], &x[r * C] + C);
                    for (int distance = 16; distance > 0; distance /= 2) {
                        const std::vector<double> before = lanes;
                        for (int i = 0; i < C; i++) lanes[i] += before[(i ^ distance) < C ? i ^ distance : i];
                    }
                    expected[r] = lanes[0];
                } else
                    for (int c = 0; c < C; c++) {
                        if (wrong == "four-steps" && c % 2 == 1) continue;
                        if (wrong == "first-step" && c % 32 >= 16) continue;
                        if ((wrong == "lane" || wrong == "alone") && c % 32 != 0) continue;
                        const double times = wrong == "double" && c < 32 ? 2 : wrong == "alone" ? 32 : 1;
                        expected[r] += times * x[r * C + c];  // alone: a lane without partner adds its own sum
                    }
            return {expected};
        });
    }
}
