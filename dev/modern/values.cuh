// Value residuals on a GPU; formulas and shapes: values.h. A warp has one row at a time, a lane
// every 32nd of its values. The gradient of the share is a sum over all of them: each block writes
// its own to `partials`, which are added in order. Memory-bound, in values of the heads of values:
// forward 4, backward 4 and 2 of fp32.
#pragma once
#include "llmc/cuda/column_sums.cuh"
#include "llmc/gpt2/heads.h"

constexpr int VALUES_WARPS = 4;
constexpr int VALUES_PARTS = 1024;  // blocks at most, for which partials has room

// Calls f(in_qkv, in_raw) for the values of this thread: where they lie in qkv (rows,row_elems),
// which ends with n values of each row, and among these alone (rows,n).
template <class F>
__device__ inline void for_own_values(int64_t rows, int n, int row_elems, F f) {
    for (int64_t row = (int64_t)blockIdx.x * VALUES_WARPS + threadIdx.x / 32; row < rows;
         row += (int64_t)gridDim.x * VALUES_WARPS)
        for (int c = threadIdx.x % 32; c < n; c += 32) f((row + 1) * row_elems - n + c, row * n + c);
}
template <class floatX>
__global__ void mix_values_forward_kernel(floatX* qkv, floatX* raw, const floatX* first, const floatX* share,
                                          int64_t rows, int n, int row_elems) {
    const float s = (float)*share;
    for_own_values(rows, n, row_elems, [&](int64_t at, int64_t i) {
        const float v = (float)qkv[at];
        raw[i] = qkv[at];
        qkv[at] = (floatX)(v + s * ((float)first[at] - v));
    });
}
template <class floatX>
__global__ void mix_values_backward_kernel(floatX* dqkv, float* dfirst, float* partials, const floatX* raw,
                                           const floatX* first, const floatX* share, int64_t rows, int n,
                                           int row_elems) {
    const float s = (float)*share;
    float sum = 0;
    for_own_values(rows, n, row_elems, [&](int64_t at, int64_t i) {
        const float d = (float)dqkv[at];
        sum += d * ((float)first[at] - (float)raw[i]);
        dfirst[i] += s * d;
        dqkv[at] = (floatX)((1.0f - s) * d);
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}
template <class floatX>
__global__ void add_to_values_kernel(floatX* dqkv, const float* dfirst, int64_t rows, int n, int row_elems) {
    for_own_values(rows, n, row_elems,
                   [&](int64_t at, int64_t i) { dqkv[at] = (floatX)((float)dqkv[at] + dfirst[i]); });
}

// The grid of these kernels.
inline dim3 values_blocks(int64_t rows) {
    return dim3((unsigned)std::min<int64_t>(ceil_div(rows, VALUES_WARPS), VALUES_PARTS));
}
// The heads of values in qkv (rows,row) are mixed in place with those of first, which lie likewise.
// What they were is written to raw (rows,NKV,HS).
template <class floatX>
void mix_values_forward(floatX* qkv, floatX* raw, const floatX* first, const floatX* share, int64_t rows,
                        const Heads& heads, cudaStream_t stream) {
    launch("mix_values_forward", mix_values_forward_kernel<floatX>, values_blocks(rows), 32 * VALUES_WARPS, 0, stream,
           qkv, raw, first, share, rows, (int)(heads.NKV * heads.HS), (int)heads.qkv_row());
}
// The gradients of mixed values in dqkv (rows,row) become those of the layer's own. dfirst
// (rows,NKV,HS) is added to; dshare (1) is written, or added to if add.
template <class floatX, class floatG>
void mix_values_backward(floatX* dqkv, float* dfirst, floatG* dshare, float* partials, const floatX* raw,
                         const floatX* first, const floatX* share, int64_t rows, const Heads& heads, bool add,
                         cudaStream_t stream) {
    const dim3 blocks = values_blocks(rows);
    launch("mix_values_backward", mix_values_backward_kernel<floatX>, blocks, 32 * VALUES_WARPS, 0, stream, dqkv,
           dfirst, partials, raw, first, share, rows, (int)(heads.NKV * heads.HS), (int)heads.qkv_row());
    floatG* const no_second = nullptr;
    sum_parts(dshare, no_second, {partials, (int64_t)blocks.x, 1}, 1, add, stream);
}
// In the first layer dqkv gets what the others have collected in dfirst.
template <class floatX>
void add_to_values(floatX* dqkv, const float* dfirst, int64_t rows, const Heads& heads, cudaStream_t stream) {
    launch("add_to_values", add_to_values_kernel<floatX>, values_blocks(rows), 32 * VALUES_WARPS, 0, stream, dqkv,
           dfirst, rows, (int)(heads.NKV * heads.HS), (int)heads.qkv_row());
}
