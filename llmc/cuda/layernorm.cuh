// Layer norm, and the residual sum before it; formulas and shapes: llmc/cpu/layernorm.h. C must be
// a multiple of Pack<floatX>::size.
//
// Forward: one warp per row, 4 rows per block. The second and third pass over the row find it in
// the first-level cache, unless other warps have displaced it. Backward: at most 256 blocks, each
// of which walks over rows. A thread handles the same columns of each row, so the sums over rows,
// dweight and dbias, stay in its registers; each block writes its sums to `partials`, and a second
// kernel adds them in order. No atomics.
//
// Memory-bound. Forward moves 2 values per element (4 with the residual sum), backward 4: dout, inp
// and dinp are read, dinp is written.
#pragma once
#include "llmc/constants.h"
#include "llmc/cuda/common.cuh"

constexpr int LAYERNORM_WARPS = 4;    // rows per block, forward
constexpr int LAYERNORM_PARTS = 256;  // blocks at most, backward; partials takes LAYERNORM_PARTS * 2C floats

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
    const floatX* x = inp1 + row * C;
    float sum = 0;
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        Pack<floatX> a = load_pack(x + c);
        if (inp2) {
            const Pack<floatX> b = load_pack_streaming(inp2 + row * C + c);
            for (int k = 0; k < N; k++) a[k] = (floatX)((float)a[k] + (float)b[k]);
            store_pack(residual + row * C + c, a);
        }
        for (int k = 0; k < N; k++) sum += (float)a[k];
    }
    if (inp2) x = residual + row * C;  // each lane reads back only what it wrote
    const float m = warp_sum(sum) / C;
    float squares = 0;
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        const Pack<floatX> a = load_pack(x + c);
        for (int k = 0; k < N; k++) squares += ((float)a[k] - m) * ((float)a[k] - m);
    }
    const float s = rsqrtf(warp_sum(squares) / C + LAYERNORM_EPS);
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        const Pack<floatX> a = load_pack(x + c), w = load_pack(weight + c), b = load_pack(bias + c);
        Pack<floatX> y;
        for (int k = 0; k < N; k++) y[k] = (floatX)(((float)a[k] - m) * s * (float)w[k] + (float)b[k]);
        store_pack(out + row * C + c, y);
    }
    if (threadIdx.x == 0) mean[row] = m, rstd[row] = s;
}

// Threads per block at most, by the Packs of a row that each thread handles: more Packs take more
// registers, so fewer threads fit.
constexpr int layernorm_threads(int packs) { return packs < 4 ? 512 : 384; }

// One block handles the rows blockIdx.x, + gridDim.x, ... Thread i has the Packs i, i + blockDim.x,
// ... (PACKS of them) of each row, so the sums over rows, dw and db, stay in its registers. For
// each row:
//
//     1. load: g = dout weight, xhat; add to dw and db
//     2. sum(g), sum(g xhat): per warp by shuffles, then across warps through shared memory
//     3. dinp += rstd (g - sum(g) / C - xhat sum(g xhat) / C)
template <class floatX, int PACKS>
__global__ void __launch_bounds__(layernorm_threads(PACKS))
    layernorm_backward_kernel(floatX* dinp, float* partials, const floatX* dout, const floatX* inp,
                              const floatX* weight, const float* mean, const float* rstd, int64_t rows, int64_t C) {
    constexpr int N = Pack<floatX>::size;
    __shared__ float2 warps[2][16];  // sums of each warp; rows take turns in two sets, so one barrier per row suffices
    const int n_warps = blockDim.x / 32;
    float dw[PACKS][N] = {}, db[PACKS][N] = {};
    int set = 0;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x, set ^= 1) {
        const float m = mean[row], s = rstd[row];
        float g[PACKS][N] = {}, xhat[PACKS][N] = {}, g_sum = 0, gx_sum = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int64_t c = (int64_t)(p * blockDim.x + threadIdx.x) * N;
            if (c >= C) continue;
            const Pack<floatX> d = load_pack_streaming(dout + row * C + c), x = load_pack(inp + row * C + c),
                               w = load_pack(weight + c);
#pragma unroll
            for (int k = 0; k < N; k++) {
                xhat[p][k] = ((float)x[k] - m) * s;
                g[p][k] = (float)d[k] * (float)w[k];
                dw[p][k] += (float)d[k] * xhat[p][k];
                db[p][k] += (float)d[k];
                g_sum += g[p][k];
                gx_sum += g[p][k] * xhat[p][k];
            }
        }
        g_sum = warp_sum(g_sum), gx_sum = warp_sum(gx_sum);
        if (threadIdx.x % 32 == 0) warps[set][threadIdx.x / 32] = make_float2(g_sum, gx_sum);
        __syncthreads();
        float g_mean = 0, gx_mean = 0;
        for (int w = 0; w < n_warps; w++) g_mean += warps[set][w].x, gx_mean += warps[set][w].y;
        g_mean /= C, gx_mean /= C;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int64_t c = (int64_t)(p * blockDim.x + threadIdx.x) * N;
            if (c >= C) continue;
            Pack<floatX> d = load_pack(dinp + row * C + c);
#pragma unroll
            for (int k = 0; k < N; k++) d[k] = (floatX)((float)d[k] + (g[p][k] - g_mean - xhat[p][k] * gx_mean) * s);
            store_pack(dinp + row * C + c, d);
        }
    }
    float* part = partials + (int64_t)blockIdx.x * 2 * C;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int64_t c = (int64_t)(p * blockDim.x + threadIdx.x) * N;
        if (c >= C) continue;
#pragma unroll
        for (int k = 0; k < N; k++) part[c + k] = dw[p][k], part[C + c + k] = db[p][k];
    }
}

// out1 (n) and out2 (n), which may be null, = or (add) += the sums over the rows of partials
// (parts, stride): out1 of columns 0 .. n - 1, out2 of columns n .. 2n - 1. One block per 32
// columns, 32 x 8 threads: 8 warps split the rows, and the first warp adds their sums in order.
constexpr int SUM_PARTS_WARPS = 8;
template <class floatX>
__global__ void sum_parts_kernel(floatX* out1, floatX* out2, const float* partials, int64_t parts, int64_t n,
                                 int64_t stride, bool add) {
    __shared__ float sums[SUM_PARTS_WARPS][32];
    const int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x, columns = out2 ? 2 * n : n;
    float sum = 0;
    for (int64_t p = threadIdx.y; p < parts && column < columns; p += SUM_PARTS_WARPS)
        sum += partials[p * stride + column];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= columns) return;
    float total = 0;
    for (int w = 0; w < SUM_PARTS_WARPS; w++) total += sums[w][threadIdx.x];
    floatX* out = column < n ? out1 + column : out2 + (column - n);
    *out = (floatX)(add ? (float)*out + total : total);
}
template <class floatX>
void sum_parts(floatX* out1, floatX* out2, const float* partials, int64_t parts, int64_t n, int64_t stride, bool add,
               cudaStream_t stream) {
    const dim3 blocks((unsigned)ceil_div(out2 ? 2 * n : n, 32)), threads(32, SUM_PARTS_WARPS);
    launch("sum_parts", sum_parts_kernel<floatX>, blocks, threads, 0, stream, out1, out2, partials, parts, n, stride,
           add);
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
        Pack<floatX> a = load_some(inp1 + i, count);
        const Pack<floatX> b = load_some(inp2 + i, count);
        for (int k = 0; k < Pack<floatX>::size; k++) a[k] = (floatX)((float)a[k] + (float)b[k]);
        store_some(out + i, a, count);
    });
}
template <class floatX>
void residual_forward(floatX* out, const floatX* inp1, const floatX* inp2, size_t n_elems, cudaStream_t stream) {
    launch("residual_forward", residual_forward_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream,
           out, inp1, inp2, n_elems);
}

// The largest C that layernorm_backward accepts.
template <class floatX>
constexpr int64_t layernorm_most_channels() {
    return layernorm_threads(4) * 4 * Pack<floatX>::size;
}

// Arguments: llmc/cpu/layernorm.h. partials (LAYERNORM_PARTS * 2C) is scratch.
template <class floatX>
void layernorm_backward(floatX* dinp, floatX* dweight, floatX* dbias, float* partials, const floatX* dout,
                        const floatX* inp, const floatX* weight, const float* mean, const float* rstd, int64_t rows,
                        int64_t C, bool add, cudaStream_t stream) {
    const StreamRange in_stream(work::layernorm_backward(rows, C, sizeof(floatX)), stream);
    const int64_t packs = C / Pack<floatX>::size, parts = rows < LAYERNORM_PARTS ? rows : LAYERNORM_PARTS;
    auto run = [&](auto kernel, int packs_per_thread) {
        const dim3 blocks((unsigned)parts), threads((unsigned)round_up(ceil_div(packs, packs_per_thread), 32));
        launch("layernorm_backward", kernel, blocks, threads, 0, stream, dinp, partials, dout, inp, weight, mean, rstd,
               rows, C);
    };
    if (packs <= 512) run(layernorm_backward_kernel<floatX, 1>, 1);
    else if (packs <= 1024) run(layernorm_backward_kernel<floatX, 2>, 2);
    else run(layernorm_backward_kernel<floatX, 4>, 4);
    sum_parts(dweight, dbias, partials, parts, C, 2 * C, add, stream);
}
