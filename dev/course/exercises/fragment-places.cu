// ----- task
// Puzzle: the result of an mma, 16 x 8 floats, is spread over the 32 lanes, 4 in each: c[0], c[1],
// c[2], c[3] (llmc/cuda/mma.cuh draws it). With g = lane / 4 and t = lane % 4, c[0] and c[1] lie in
// row g, in the columns 2t and 2t + 1, and c[2] and c[3] 8 rows below. Write where each lies:
// places[4 lane + i] = 8 row + column of c[i]. One warp.
__global__ void fragment_places(int* places) {
    // your code
}

// ----- solution
__global__ void fragment_places(int* places) {
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) places[4 * lane + i] = 8 * (g + i / 2 * 8) + 2 * t + i % 2;
}

// ----- mistakes
//     rows: g + i / 2 * 8 ==> 2 * g + i / 2
//     columns: 2 * t + i % 2 ==> t + i % 2 * 4
//     swapped: g = lane / 4, t = lane % 4 ==> g = lane % 8, t = lane / 8
//     order: (g + i / 2 * 8) + 2 * t + i % 2 ==> (g + i % 2 * 8) + 2 * t + i / 2
//     bounds: i < 4; ==> i < 5;
//     alone: const int lane = threadIdx.x, g = lane / 4, t = lane % 4; ==> if (threadIdx.x == 0)
//         for (int lane = 0; lane < 32; lane++) { const int g = lane / 4, t = lane % 4; ;; + i % 2; ==> + i % 2; }

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::fragment_places)* fragment_places) {
    j.cuda = true;
    j.hints = {{"rows", "c[2] is 8 rows below c[0], not one: a lane's rows are g and g + 8."},
               {"columns", "c[1] is right beside c[0]: a lane's columns are 2t and 2t + 1."},
               {"swapped", "g is lane / 4 and t is lane % 4, here they are lane % 8 and lane / 8."},
               {"order", "c[1] is to the right of c[0], c[2] below it."}};
    j.sizes("one warp");
    OnDevice<int> places(std::vector<int>(128, -1));
    run("counted", fragment_places, 1, 32, places);
    j.check({{"places", {32, 4}, places.fetch(), std::vector<float>(128, -1)}}, [&](const Key& wrong) -> Arrays {
        std::vector<double> expected;
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                const int g = wrong == "swapped" ? lane % 8 : lane / 4, t = wrong == "swapped" ? lane / 8 : lane % 4;
                const int below = wrong == "order" ? i % 2 : i / 2, right = wrong == "order" ? i / 2 : i % 2;
                const int row = wrong == "rows" ? 2 * g + below : g + 8 * below;
                expected.push_back(8 * row + (wrong == "columns" ? t + 4 * right : 2 * t + right));
            }
        return {expected};
    });
}
