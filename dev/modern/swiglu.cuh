// SwiGLU and ReLU squared on a GPU; formulas: swiglu.h. One thread per Pack. Memory-bound: SwiGLU
// moves 3 values per element of out forward and 5 backward, ReLU squared 2 and 3.
#pragma once
#include "llmc/cuda/common.cuh"

// The Pack of this thread in a matrix (rows,F), as row and column; false where there is none.
template <class floatX>
__device__ inline bool own_pack(int64_t rows, int64_t F, int64_t& row, int64_t& column) {
    const int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * Pack<floatX>::size;
    row = at / F, column = at % F;
    return row < rows;
}
template <class floatX>
__global__ void swiglu_forward_kernel(floatX* out, const floatX* inp, int64_t rows, int64_t F) {
    int64_t row, column;
    if (!own_pack<floatX>(rows, F, row, column)) return;
    const PackFloats<floatX> gate = load_floats_streaming(inp + row * 2 * F + column);
    PackFloats<floatX> up = load_floats_streaming(inp + row * 2 * F + F + column);
    for (int k = 0; k < Pack<floatX>::size; k++) up[k] *= gate[k] / (1.0f + expf(-gate[k]));
    store_floats(out + row * F + column, up);
}
template <class floatX>
__global__ void swiglu_backward_kernel(floatX* dinp, const floatX* dout, const floatX* inp, int64_t rows, int64_t F) {
    int64_t row, column;
    if (!own_pack<floatX>(rows, F, row, column)) return;
    const int64_t at = row * 2 * F + column;
    const PackFloats<floatX> gate = load_floats_streaming(inp + at), up = load_floats_streaming(inp + at + F),
                             d = load_floats(dout + row * F + column);
    PackFloats<floatX> dgate, dup;
    for (int k = 0; k < Pack<floatX>::size; k++) {
        const float s = 1.0f / (1.0f + expf(-gate[k]));
        dgate[k] = d[k] * up[k] * s * (1.0f + gate[k] * (1.0f - s));
        dup[k] = d[k] * gate[k] * s;
    }
    store_floats(dinp + at, dgate), store_floats(dinp + at + F, dup);
}
template <class floatX>
__global__ void relu2_forward_kernel(floatX* out, const floatX* inp, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        PackFloats<floatX> x = load_some(inp + i, count);
        for (int k = 0; k < Pack<floatX>::size; k++) x[k] = x[k] < 0.0f ? 0.0f : x[k] * x[k];  // NaN stays
        store_some(out + i, x, count);
    });
}
template <class floatX>
__global__ void relu2_backward_kernel(floatX* dinp, const floatX* dout, const floatX* inp, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        const PackFloats<floatX> x = load_some(inp + i, count);
        PackFloats<floatX> d = load_some(dout + i, count);
        for (int k = 0; k < Pack<floatX>::size; k++) d[k] = x[k] < 0.0f ? 0.0f : d[k] * 2.0f * x[k];
        store_some(dinp + i, d, count);
    });
}

// out (rows,F) is written from inp (rows,2F), gates first. F must be a multiple of
// Pack<floatX>::size.
template <class floatX>
void swiglu_forward(floatX* out, const floatX* inp, int64_t rows, int64_t F, cudaStream_t stream) {
    launch("swiglu_forward", swiglu_forward_kernel<floatX>, pack_blocks<floatX>(rows * F), PACK_THREADS, 0, stream, out,
           inp, rows, F);
}
// dinp (rows,2F) is written from dout (rows,F) and inp of the forward pass, which it may be.
template <class floatX>
void swiglu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int64_t rows, int64_t F,
                     cudaStream_t stream) {
    launch("swiglu_backward", swiglu_backward_kernel<floatX>, pack_blocks<floatX>(rows * F), PACK_THREADS, 0, stream,
           dinp, dout, inp, rows, F);
}
// out (n_elems) is written from inp (n_elems); dinp from dout and inp, which it may be.
template <class floatX>
void relu2_forward(floatX* out, const floatX* inp, size_t n_elems, cudaStream_t stream) {
    launch("relu2_forward", relu2_forward_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream, out,
           inp, n_elems);
}
template <class floatX>
void relu2_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t n_elems, cudaStream_t stream) {
    launch("relu2_backward", relu2_backward_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream, dinp,
           dout, inp, n_elems);
}
