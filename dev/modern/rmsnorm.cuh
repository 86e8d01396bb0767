// RMSNorm and QK norm on a GPU; formulas: rmsnorm.h. C must be a multiple of Pack<floatX>::size.
//
// Forward, one warp per row, 4 rows per block, as in llmc/cuda/layernorm.cuh. Backward, one block
// per row, one Pack per thread, so that a thread has the same columns of each row and its sums over
// rows stay in its registers; at the end the block writes them to its row of `partials`, whose rows
// are added in order (llmc/cuda/column_sums.cuh). QK norm: one warp per head of a row, a lane has
// every 32nd channel. No atomics. Memory-bound, in values per element: forward 2, with the residual
// sum 4, backward 4; QK norm 3 and 3.
#pragma once
#include "llmc/cuda/column_sums.cuh"
#include "llmc/gpt2/heads.h"

constexpr int RMSNORM_WARPS = 4;  // rows of a block, forward; heads of a block, QK norm
// Blocks of the backward passes at most, for which partials has room, and rows of each at least, so
// that partials are small beside the rows.
constexpr int RMSNORM_PARTS = 1024, RMSNORM_PART_ROWS = 8;
constexpr int QK_NORM_MOST_CHANNELS = 256;  // of a head
inline int64_t rmsnorm_parts(int64_t rows) {
    return std::min<int64_t>(ceil_div(rows, RMSNORM_PART_ROWS), RMSNORM_PARTS);
}

// With inp2: residual = inp1 + inp2, then out and rstd from residual, which may be inp1 or inp2.
// Without (null): out and rstd from inp1.
template <class floatX>
__global__ void rmsnorm_forward_kernel(floatX* residual, floatX* out, float* rstd, const floatX* inp1,
                                       const floatX* inp2, const floatX* weight, int64_t rows, int64_t C, float eps) {
    constexpr int N = Pack<floatX>::size;
    const int64_t row = (int64_t)blockIdx.x * RMSNORM_WARPS + threadIdx.y;
    if (row >= rows) return;
    float squares = 0;
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        const PackFloats<floatX> a = load_sum(residual, inp1, inp2, row * C + c);
        for (int k = 0; k < N; k++) squares += a[k] * a[k];
    }
    const floatX* x = (inp2 ? residual : inp1) + row * C;  // each lane reads back only what it wrote
    const float s = rsqrtf(warp_sum(squares) / C + eps);
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        PackFloats<floatX> a = load_floats(x + c);
        const PackFloats<floatX> w = load_floats(weight + c);
        for (int k = 0; k < N; k++) a[k] *= s * w[k];
        store_floats(out + row * C + c, a);
    }
    if (threadIdx.x == 0) rstd[row] = s;
}
// out (rows,C) and rstd (rows) are written, from inp (rows,C), weight (C).
template <class floatX>
void rmsnorm_forward(floatX* out, float* rstd, const floatX* inp, const floatX* weight, int64_t rows, int64_t C,
                     float eps, cudaStream_t stream) {
    const dim3 blocks((unsigned)ceil_div(rows, RMSNORM_WARPS)), threads(32, RMSNORM_WARPS);
    floatX* const no_residual = nullptr;
    const floatX* const no_inp2 = nullptr;
    launch("rmsnorm_forward", rmsnorm_forward_kernel<floatX>, blocks, threads, 0, stream, no_residual, out, rstd, inp,
           no_inp2, weight, rows, C, eps);
}
// residual (rows,C) = inp1 + inp2, written; then as above, from residual as stored.
template <class floatX>
void residual_rmsnorm_forward(floatX* residual, floatX* out, float* rstd, const floatX* inp1, const floatX* inp2,
                              const floatX* weight, int64_t rows, int64_t C, float eps, cudaStream_t stream) {
    const dim3 blocks((unsigned)ceil_div(rows, RMSNORM_WARPS)), threads(32, RMSNORM_WARPS);
    launch("residual_rmsnorm_forward", rmsnorm_forward_kernel<floatX>, blocks, threads, 0, stream, residual, out, rstd,
           inp1, inp2, weight, rows, C, eps);
}

template <class floatX>
__global__ void __launch_bounds__(1024)
    rmsnorm_backward_kernel(floatX* dinp, float* partials, const floatX* dout, const floatX* inp, const floatX* weight,
                            const float* rstd, int64_t rows, int64_t C) {
    constexpr int N = Pack<floatX>::size;
    const int64_t c = threadIdx.x * N;
    const bool here = c < C;  // the last warp may have lanes without a Pack, which add nothing
    const PackFloats<floatX> w = here ? load_floats(weight + c) : PackFloats<floatX>{};
    float sum[N] = {};
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const PackFloats<floatX> d = here ? load_floats(dout + row * C + c) : PackFloats<floatX>{};
        const PackFloats<floatX> x = here ? load_floats(inp + row * C + c) : PackFloats<floatX>{};
        PackFloats<floatX> dx = here ? load_floats(dinp + row * C + c) : PackFloats<floatX>{};
        const float s = rstd[row];
        float gx = 0;
        for (int k = 0; k < N; k++) sum[k] += d[k] * (x[k] * s), gx += d[k] * w[k] * (x[k] * s);
        const float gx_mean = block_sum(gx) / C;
        if (!here) continue;
        for (int k = 0; k < N; k++) dx[k] += s * (d[k] * w[k] - x[k] * s * gx_mean);
        store_floats(dinp + row * C + c, dx);
    }
    for (int k = 0; k < N && here; k++) partials[blockIdx.x * C + c + k] = sum[k];
}
// dinp (rows,C) is added to; dweight (C), fp32 or floatX, is written, or added to if add. partials
// has room for RMSNORM_PARTS * C. C is at most 1024 Packs.
template <class floatX, class floatG>
void rmsnorm_backward(floatX* dinp, floatG* dweight, float* partials, const floatX* dout, const floatX* inp,
                      const floatX* weight, const float* rstd, int64_t rows, int64_t C, bool add, cudaStream_t stream) {
    const int64_t parts = rmsnorm_parts(rows), threads = round_up(C / Pack<floatX>::size, (int64_t)32);
    launch("rmsnorm_backward", rmsnorm_backward_kernel<floatX>, dim3((unsigned)parts), dim3((unsigned)threads), 0,
           stream, dinp, partials, dout, inp, weight, rstd, rows, C);
    floatG* const no_second = nullptr;
    sum_parts(dweight, no_second, {partials, parts, C}, C, add, stream);
}

template <class floatX>
__global__ void qk_norm_forward_kernel(floatX* qkv, floatX* raw, float* rstd, const floatX* qw, const floatX* kw,
                                       int64_t rows, int NH, int NKV, int HS, float eps) {
    const int n = NH + NKV;
    const int64_t i = (int64_t)blockIdx.x * RMSNORM_WARPS + threadIdx.y;  // of all heads
    if (i >= rows * n) return;
    floatX *x = qkv + i / n * ((NH + 2 * NKV) * HS) + i % n * HS, *kept = raw + i * HS;
    const floatX* w = i % n < NH ? qw : kw;
    float squares = 0;
    for (int c = threadIdx.x; c < HS; c += 32) {
        const float v = (float)x[c];
        kept[c] = x[c], squares += v * v;
    }
    const float s = rsqrtf(warp_sum(squares) / HS + eps);
    for (int c = threadIdx.x; c < HS; c += 32) x[c] = (floatX)((float)x[c] * s * (float)w[c]);
    if (threadIdx.x == 0) rstd[i] = s;
}
// The heads of queries and keys in qkv (rows,row) are normalised in place, with qw (HS) and kw
// (HS). What they were is written to raw (rows,NH+NKV,HS), and rstd (rows,NH+NKV).
template <class floatX>
void qk_norm_forward(floatX* qkv, floatX* raw, float* rstd, const floatX* qw, const floatX* kw, int64_t rows,
                     const Heads& heads, float eps, cudaStream_t stream) {
    const int64_t all = rows * (heads.NH + heads.NKV);
    launch("qk_norm_forward", qk_norm_forward_kernel<floatX>, dim3((unsigned)ceil_div(all, RMSNORM_WARPS)),
           dim3(32, RMSNORM_WARPS), 0, stream, qkv, raw, rstd, qw, kw, rows, (int)heads.NH, (int)heads.NKV,
           (int)heads.HS, eps);
}

// A warp has one head of a row at a time: first those of queries, then those of keys. Row
// blockIdx.x of partials: the block's sums of dqw, then of dkw.
template <class floatX>
__global__ void __launch_bounds__(32 * RMSNORM_WARPS)
    qk_norm_backward_kernel(floatX* dqkv, float* partials, const floatX* raw, const float* rstd, const floatX* qw,
                            const floatX* kw, int64_t rows, int NH, int NKV, int HS) {
    constexpr int MOST = QK_NORM_MOST_CHANNELS / 32;  // channels of a lane
    __shared__ float of_warps[RMSNORM_WARPS][QK_NORM_MOST_CHANNELS];
    const int n = NH + NKV, lane = threadIdx.x;
    for (int kind = 0; kind < 2; kind++) {
        const int heads = kind == 0 ? NH : NKV, first = kind == 0 ? 0 : NH;
        const floatX* w = kind == 0 ? qw : kw;
        float sum[MOST] = {};
        for (int64_t i = (int64_t)blockIdx.x * RMSNORM_WARPS + threadIdx.y; i < rows * heads;
             i += (int64_t)gridDim.x * RMSNORM_WARPS) {
            const int64_t row = i / heads, at = row * n + first + i % heads;
            floatX* d = dqkv + row * ((NH + 2 * NKV) * HS) + (first + i % heads) * HS;
            const float s = rstd[at];
            float g[MOST] = {}, xhat[MOST] = {}, gx = 0;
#pragma unroll
            for (int j = 0; j < MOST; j++) {
                const int c = lane + 32 * j;
                if (c >= HS) continue;
                xhat[j] = (float)raw[at * HS + c] * s, g[j] = (float)d[c] * (float)w[c];
                sum[j] += (float)d[c] * xhat[j], gx += g[j] * xhat[j];
            }
            const float gx_mean = warp_sum(gx) / HS;
#pragma unroll
            for (int j = 0; j < MOST; j++)
                if (lane + 32 * j < HS) d[lane + 32 * j] = (floatX)(s * (g[j] - xhat[j] * gx_mean));
        }
        __syncthreads();  // the sums of the other kind have been read
#pragma unroll
        for (int j = 0; j < MOST; j++) of_warps[threadIdx.y][lane + 32 * j] = sum[j];
        __syncthreads();
        for (int c = threadIdx.y * 32 + lane; c < HS; c += 32 * RMSNORM_WARPS) {
            float total = 0;
            for (int warp = 0; warp < RMSNORM_WARPS; warp++) total += of_warps[warp][c];
            partials[((int64_t)blockIdx.x * 2 + kind) * HS + c] = total;
        }
    }
}
// dqkv (rows,row): gradients of normalised queries and keys become those of raw ones. dqw (HS) and
// dkw (HS) are written, or added to if add. partials has room for
// RMSNORM_PARTS * 2 HS. HS is at most QK_NORM_MOST_CHANNELS.
template <class floatX, class floatG>
void qk_norm_backward(floatX* dqkv, floatG* dqw, floatG* dkw, float* partials, const floatX* raw, const float* rstd,
                      const floatX* qw, const floatX* kw, int64_t rows, const Heads& heads, bool add,
                      cudaStream_t stream) {
    const int64_t parts = rmsnorm_parts(rows), HS = heads.HS;
    launch("qk_norm_backward", qk_norm_backward_kernel<floatX>, dim3((unsigned)parts), dim3(32, RMSNORM_WARPS), 0,
           stream, dqkv, partials, raw, rstd, qw, kw, rows, (int)heads.NH, (int)heads.NKV, (int)HS);
    sum_parts(dqw, dkw, {partials, parts, 2 * HS}, HS, add, stream);
}
