// ----- task
// The mean and the variance of each row of a matrix, one block per row:
//
//     mean[r] = (sum over c of x[r,c]) / C,    variance[r] = (sum over c of (x[r,c] - mean[r])^2) / C
//
// x (rows, C), mean (rows), variance (rows). blockDim.x is a multiple of 32, up to 1024, and
// gridDim.x is rows. Both sums are over all threads of the block: each warp adds up by shuffles
// (exercise warp-sum), writes its sum to shared memory, and after a __syncthreads() all threads add
// the sums of the warps. Write a function that does it, and call it twice: does the second call
// overwrite what slow threads of the first still read?
__global__ void row_statistics(float* mean, float* variance, const float* x, int C) {
    // your code
}

// ----- solution
__device__ float sum_over_block(float value) {
    __shared__ float warps[32];
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0;
    for (int w = 0; w < (int)blockDim.x / 32; w++) total += warps[w];
    return total;
}
__global__ void row_statistics(float* mean, float* variance, const float* x, int C) {
    const float* row = x + blockIdx.x * C;
    float sum = 0, squares = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) sum += row[c];
    const float m = sum_over_block(sum) / C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) squares += (row[c] - m) * (row[c] - m);
    const float v = sum_over_block(squares) / C;
    if (threadIdx.x == 0) mean[blockIdx.x] = m, variance[blockIdx.x] = v;
}

// ----- shipped
__global__ void row_statistics(float* mean, float* variance, const float* x, int C) {
    const float* row = x + blockIdx.x * C;
    float sum = 0, squares = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) sum += row[c];
    const float m = block_sum(sum) / C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) squares += (row[c] - m) * (row[c] - m);
    const float v = block_sum(squares) / C;
    if (threadIdx.x == 0) mean[blockIdx.x] = m, variance[blockIdx.x] = v;
}

// ----- mistakes
//     race: __syncthreads();\n    if (threadIdx.x % 32 ==> if (threadIdx.x % 32
//     uninitialised: = value;\n    __syncthreads(); ==> = value;
//     warp: total += warps[w] ==> total = warps[0]
//     uninitialised: w < (int)blockDim.x / 32 ==> w < 32
//     biased: sum_over_block(squares) / C ==> sum_over_block(squares) / (C - 1)
//     divergent: const float m = sum_over_block(sum) / C; ==> if (threadIdx.x % 2) __syncthreads(); const float m =
//         sum_over_block(sum) / C;
//     square: (row[c] - m) * (row[c] - m) ==> row[c] * row[c]
//     one-pass: squares += (row[c] - m) * (row[c] - m) ==> squares += row[c] * row[c] ;; sum_over_block(squares) / C;
//         ==>
//         sum_over_block(squares) / C - m * m;
//     shuffles: for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value,
//         distance); ==> __shared__ float all[1024]; __syncthreads(); all[threadIdx.x] = value; __syncthreads();
//         value = 0;
//         for (int i = 0; i < 32; i++) value += all[threadIdx.x / 32 * 32 + i];
//     alone: int c = threadIdx.x; c < C; c += blockDim.x) sum ==> int c = 0; c < C && threadIdx.x == 0; c++) sum ;;
//         int c = threadIdx.x; c < C; c += blockDim.x) squares ==> int c = 0; c < C && threadIdx.x == 0; c++) squares
//     bounds: __shared__ float warps[32]; ==> __shared__ float warps[8];
//     atomics: if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value; ==> if (threadIdx.x % 32 == 0)
//         warps[threadIdx.x / 32] = 0; __syncwarp(); if (threadIdx.x % 32 == 0) atomicAdd(&warps[threadIdx.x / 32],
//         value);

// ----- limits
//     counted atomics <= 0, atomics: no atomics: the order of their additions is another one in every run.
//     counted shuffles >= 240, shuffles: the lanes of a warp add up by shuffles: 5 for each sum of each of the 24
//         warps.
//     counted longest <= 2, alone: one thread does the work of many, while the others wait: each thread adds up every
//         blockDim.x-th element.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::row_statistics)* row_statistics) {
    j.cuda = true;
    j.hints = {{"warp", "this is the sum of warp 0 alone: the sums of all warps of the block must be added."},
               {"biased", "the variance is divided by C - 1; C is asked for."},
               {"square", "the variance is of x - mean: the mean of the squares of x is something else."},
               {"one-pass",
                "the mean of the squares minus the square of the mean: both are large where the mean is, and their "
                "difference is lost to rounding. Sum up (x - mean)^2 once the mean is known."}};
    struct Case {
        int rows, C, threads;
        float add;
    };
    for (const Case& c : {Case{1, 64, 64, 0.5f},
                          {3, 5, 32, 0.5f},
                          {2, 100, 128, 0.5f},
                          {3, 1000, 256, 0.5f},
                          {1, 3000, 1024, 0.5f},
                          {2, 200, 64, 300}}) {
        j.sizes("rows %d, C %d, %d threads, x %g +- 1", c.rows, c.C, c.threads, c.add);
        std::vector<float> x = j.random(c.rows * c.C);
        for (float& v : x) v += c.add;
        OnDevice<float> mean(begins(c.rows)), variance(begins(c.rows)), from(x);
        run(c.threads == 256 ? "counted" : "row_statistics", row_statistics, c.rows, c.threads, mean, variance, from,
            c.C);
        j.check({{"mean", {c.rows}, mean.fetch()}, {"variance", {c.rows}, variance.fetch()}},
                [&](const Key& wrong) -> Arrays {
                    std::vector<double> M(c.rows), V(c.rows);
                    const auto counts = [&](int i) { return wrong != "warp" || i % c.threads < 32; };
                    for (int r = 0; r < c.rows; r++) {
                        for (int i = 0; i < c.C; i++) M[r] += counts(i) ? (double)x[r * c.C + i] / c.C : 0;
                        for (int i = 0; i < c.C; i++)
                            V[r] += counts(i) ? std::pow(x[r * c.C + i] - (wrong == "square" ? 0 : M[r]), 2) : 0;
                        V[r] /= wrong == "biased" ? c.C - 1 : c.C;
                    }
                    if (wrong == "one-pass" && c.add > 1) std::fill(V.begin(), V.end(), ANY);
                    return {M, V};
                });
    }
}
