// ----- task
// A matrix product: out (rows, OC) = inp (rows, C) weight (OC, C)^T, that is
//
//     out[r,o] = sum over c of inp[r,c] weight[o,c]
//
// A block of 32 x 32 threads computes a tile of 32 x 32 outputs, one per thread: threadIdx.x and
// blockIdx.x run along OC, threadIdx.y and blockIdx.y along rows. It goes along C in steps of 32:
// the threads load a 32 x 32 tile of inp and one of weight into shared memory, then each thread
// adds 32 products. Each value that is loaded serves 32 threads. Sizes need not be multiples of 32:
// what lies outside counts as 0. The loop needs two barriers; which, and where?
constexpr int TILE = 32;
__global__ void matmul(float* out, const float* inp, const float* weight, int rows, int C, int OC) {
    // your code
}

// ----- solution
constexpr int TILE = 32;
__global__ void matmul(float* out, const float* inp, const float* weight, int rows, int C, int OC) {
    __shared__ float a[TILE][TILE];
    __shared__ float b[TILE][TILE + 1];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;
    const int b_row = blockIdx.x * TILE + y;  // of weight, that this thread loads
    float sum = 0;
    for (int first = 0; first < C; first += TILE) {
        a[y][x] = row < rows && first + x < C ? inp[row * C + first + x] : 0.0f;
        b[y][x] = b_row < OC && first + x < C ? weight[b_row * C + first + x] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += a[y][k] * b[x][k];
        __syncthreads();
    }
    if (row < rows && col < OC) out[row * OC + col] = sum;
}

// ----- mistakes
//     uninitialised: 0.0f;\n        __syncthreads(); ==> 0.0f;
//     race: b[x][k];\n        __syncthreads(); ==> b[x][k];
//     conflicts: [TILE + 1] ==> [TILE]
//     strided: int b_row = blockIdx.x * TILE + y; ==> int b_row = blockIdx.x * TILE + x; ;; b[y][x] = ==> b[x][y]
//         = ;;
//         first + x < C ? weight[b_row * C + first + x] ==> first + y < C ? weight[b_row * C + first + y]
//     transposed: weight[b_row * C + first + x] ==> weight[(first + x) * OC + b_row]
//     bounds: if (row < rows && col < OC) out ==> if (row < rows) out
//     last: first < C; ==> first + TILE <= C;
//     uninitialised: float sum = 0; ==> float sum = 0; if (row >= rows || col >= OC) return;
//     alone: a[y][x] = row < rows && first + x < C ? inp[row * C + first + x] : 0.0f;\n        b[y][x] = b_row < OC &&
//         first + x < C ? weight[b_row * C + first + x] : 0.0f; ==> if (y == 0) for (int i = 0; i < TILE; i++) {
//         a[i][x] = row + i < rows && first + x < C ? inp[(row + i) * C + first + x] : 0.0f;
//         b[i][x] = b_row + i < OC && first + x < C ? weight[(b_row + i) * C + first + x] : 0.0f; }
//     reuse: sum += a[y][k] * b[x][k] ==> sum += row < rows && col < OC && first + k < C ? inp[row * C + first + k] *
//         weight[col * C + first + k] : 0.0f
//     divergent: b[x][k];\n        __syncthreads(); ==> b[x][k];\n        if (row < rows) __syncthreads();

// ----- limits
//     counted longest <= 2, alone: one row of threads loads the whole tile while the others wait: each thread loads one
//         element of each tile.
//     counted reads <= 4.01, reuse: each value must be loaded once per tile of 32 outputs, not once per output.
//     counted load-sectors <= 4, strided: the lanes of a warp load from different rows of weight: threadIdx.x must
//         run along
//         C, as it does for inp.
//     counted conflicts <= 0, conflicts: threads with different x read different rows of one column of a tile: in
//         the same
//         bank, unless a row has one element more.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::matmul)* matmul) {
    j.cuda = true;
    j.hints = {{"transposed", "weight is read as if it were (C, OC): element (o, c) is weight[o * C + c]."},
               {"last", "the last, partial step along C is left out."}};
    struct Case {
        int rows, C, OC;
    };
    for (const Case& c : {Case{32, 32, 32}, {32, 96, 64}, {3, 5, 7}, {33, 40, 65}, {128, 64, 128}}) {
        j.sizes("rows %d, C %d, OC %d", c.rows, c.C, c.OC);
        const std::vector<float> a = j.random(c.rows * c.C), b = j.random(c.OC * c.C);
        OnDevice<float> out(begins(c.rows * c.OC)), inp(a), weight(b);
        run(c.rows == 128 ? "counted" : "matmul", matmul, dim3((c.OC + 31) / 32, (c.rows + 31) / 32), dim3(32, 32), out,
            inp, weight, c.rows, c.C, c.OC);
        j.check({{"out", {c.rows, c.OC}, out.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected(c.rows * c.OC);
            for (int r = 0; r < c.rows; r++)
                for (int o = 0; o < c.OC; o++)
                    for (int k = 0; k < (wrong == "last" ? c.C / 32 * 32 : c.C); k++)
                        expected[r * c.OC + o] +=
                            (double)a[r * c.C + k] * b[wrong == "transposed" ? k * c.OC + o : o * c.C + k];
            return {expected};
        });
    }
}
