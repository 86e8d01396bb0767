// ----- task
// Puzzle: sums[r] = x[r,0] + ... + x[r,31] for a matrix of 32 x 32, by one warp: lane r adds up row
// r. Read from memory like this, each lane would touch a sector of its own. So the warp loads row
// after row into shared memory, lane c column c, and then lane r reads row r from there. In float
// tile[32][32] all lanes would read from one bank; how long must a row be so that they do not?
__global__ void row_banks(float* sums, const float* x) {
    // your code
}

// ----- solution
__global__ void row_banks(float* sums, const float* x) {
    __shared__ float tile[32][33];
    const int lane = threadIdx.x;
    for (int r = 0; r < 32; r++) tile[r][lane] = x[r * 32 + lane];
    __syncthreads();
    float sum = 0;
    for (int c = 0; c < 32; c++) sum += tile[lane][c];
    sums[lane] = sum;
}

// ----- mistakes
//     conflicts: tile[32][33] ==> tile[32][32]
//     strided: sum += tile[lane][c] ==> sum += x[lane * 32 + c]
//     columns: sum += tile[lane][c] ==> sum += tile[c][lane]
//     uninitialised: __syncthreads(); ==> ;
//     last: c < 32; c++ ==> c < 31; c++
//     alone: sums[lane] = sum ==> ;; float sum = 0; ==> if (lane == 0) for (int r = 0; r < 32; r++) { float sum = 0; ;;
//         tile[lane][c]; ==> tile[r][c]; sums[r] = sum; }

// ----- limits
//     counted load-sectors <= 4.01, strided: the lanes of a warp read from different rows of x: 32 sectors for each
//         load.
//     counted conflicts <= 0, conflicts: the lanes read different rows of one column of the tile, which lie in one
//         bank:
//         with rows of 33 they lie in 32.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::row_banks)* row_banks) {
    j.cuda = true;
    j.hints = {{"columns", "these are the sums of the columns: lane r reads tile[r][0] to tile[r][31]."},
               {"last", "the last column is not part of the sums."}};
    for (int round = 0; round < 2; round++) {
        j.sizes("matrix %d", round + 1);
        const std::vector<float> x = j.random(1024);
        OnDevice<float> sums(begins(32)), from(x);
        run(round ? "counted" : "row_banks", row_banks, 1, 32, sums, from);
        j.check({{"sums", {32}, sums.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected(32);
            for (int r = 0; r < 32; r++)
                for (int c = 0; c < (wrong == "last" ? 31 : 32); c++)
                    expected[r] += x[wrong == "columns" ? c * 32 + r : r * 32 + c];
            return {expected};
        });
    }
}
