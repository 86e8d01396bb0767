// Layer norm, and the residual sum before it; formulas and shapes: llmc/cpu/layernorm.h. C must be
// a multiple of Pack<floatX>::size. The backward pass is in layernorm_backward.cuh.
//
// One warp per row, 4 rows per block. The second and third pass over the row find it in the
// first-level cache, unless other warps have displaced it. Memory-bound: 2 values per element are
// moved, 4 with the residual sum.
#pragma once
#include "llmc/gpt2/constants.h"
#include "llmc/cuda/layernorm_backward.cuh"

constexpr int LAYERNORM_WARPS = 4;  // rows per block

// With inp2: residual = inp1 + inp2, then out, mean, rstd from residual, which may be inp1 or inp2.
// Without (null): out, mean, rstd from inp1. One warp per row, one Pack per lane at a time; three
// passes over the row: its mean, its variance, the result.
template <class floatX>
__global__ void layernorm_forward_kernel(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* inp1,
                                         const floatX* inp2, const floatX* weight, const floatX* bias, int64_t rows,
                                         int64_t C) {
    constexpr int N = Pack<floatX>::size;
    const int64_t row = (int64_t)blockIdx.x * LAYERNORM_WARPS + threadIdx.y;
    if (row >= rows) return;
    float sum = 0;
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        const PackFloats<floatX> a = load_sum(residual, inp1, inp2, row * C + c);
        for (int k = 0; k < N; k++) sum += a[k];
    }
    const floatX* x = (inp2 ? residual : inp1) + row * C;  // each lane reads back only what it wrote
    const float m = warp_sum(sum) / C;
    float squares = 0;
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        const PackFloats<floatX> a = load_floats(x + c);
        for (int k = 0; k < N; k++) squares += (a[k] - m) * (a[k] - m);
    }
    const float s = rsqrtf(warp_sum(squares) / C + LAYERNORM_EPS);
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        const PackFloats<floatX> a = load_floats(x + c), w = load_floats(weight + c), b = load_floats(bias + c);
        PackFloats<floatX> y;
        for (int k = 0; k < N; k++) y[k] = (a[k] - m) * s * w[k] + b[k];
        store_floats(out + row * C + c, y);
    }
    if (threadIdx.x == 0) mean[row] = m, rstd[row] = s;
}

// out (rows, C), mean and rstd (rows), written, from inp (rows, C).
template <class floatX>
void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight,
                       const floatX* bias, int64_t rows, int64_t C, cudaStream_t stream) {
    const StreamRange in_stream(work::layernorm(rows, C, sizeof(floatX)), stream);
    const dim3 blocks((unsigned)ceil_div(rows, LAYERNORM_WARPS)), threads(32, LAYERNORM_WARPS);
    floatX* const no_residual = nullptr;
    const floatX* const no_inp2 = nullptr;
    launch("layernorm_forward", layernorm_forward_kernel<floatX>, blocks, threads, 0, stream, no_residual, out, mean,
           rstd, inp, no_inp2, weight, bias, rows, C);
}
// residual (rows, C) = inp1 + inp2, written; then as above, from residual as stored.
template <class floatX>
void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* inp1,
                                const floatX* inp2, const floatX* weight, const floatX* bias, int64_t rows, int64_t C,
                                cudaStream_t stream) {
    const StreamRange in_stream(work::residual_layernorm(rows, C, sizeof(floatX)), stream);
    const dim3 blocks((unsigned)ceil_div(rows, LAYERNORM_WARPS)), threads(32, LAYERNORM_WARPS);
    launch("residual_layernorm_forward", layernorm_forward_kernel<floatX>, blocks, threads, 0, stream, residual, out,
           mean, rstd, inp1, inp2, weight, bias, rows, C);
}

// The sum alone: out (n_elems) = inp1 + inp2. out may be inp1 or inp2. One thread per Pack.
template <class floatX>
__global__ void residual_forward_kernel(floatX* out, const floatX* inp1, const floatX* inp2, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        PackFloats<floatX> a = load_some(inp1 + i, count);
        const PackFloats<floatX> b = load_some(inp2 + i, count);
        for (int k = 0; k < Pack<floatX>::size; k++) a[k] += b[k];
        store_some(out + i, a, count);
    });
}
template <class floatX>
void residual_forward(floatX* out, const floatX* inp1, const floatX* inp2, size_t n_elems, cudaStream_t stream) {
    launch("residual_forward", residual_forward_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream,
           out, inp1, inp2, n_elems);
}
