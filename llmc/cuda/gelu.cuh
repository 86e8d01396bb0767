// GELU; formulas and shapes: llmc/cpu/gelu.h. Elementwise: one thread per Pack of 128 bits, 256
// threads per block. Memory-bound: forward moves 2 values per element, backward 3.
#pragma once
#include "llmc/constants.h"
#include "llmc/cuda/common.cuh"

__device__ inline float gelu_logistic(float x) {
    return 1.0f / (1.0f + __expf(-2.0f * GELU_SCALE * x * (1.0f + GELU_CUBIC * x * x)));
}
__device__ inline float gelu(float x) { return x * gelu_logistic(x); }
__device__ inline float gelu_derivative(float x) {
    // where du overflows, s (1 - s) is 0 and the product would be NaN; its limit is 0
    const float s = gelu_logistic(x), du = GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * x * x), slope = s * (1.0f - s);
    return s + (slope == 0.0f ? 0.0f : 2.0f * x * slope * du);
}

template <class floatX>
__global__ void gelu_forward_kernel(floatX* out, const floatX* inp, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        const Pack<floatX> x = load_some(inp + i, count);
        Pack<floatX> y;
        for (int k = 0; k < Pack<floatX>::size; k++) y[k] = (floatX)gelu((float)x[k]);
        store_some(out + i, y, count);
    });
}
template <class floatX>
__global__ void gelu_backward_kernel(floatX* dinp, const floatX* dout, const floatX* inp, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        const Pack<floatX> x = load_some(inp + i, count), d = load_some(dout + i, count);
        Pack<floatX> y;
        for (int k = 0; k < Pack<floatX>::size; k++) y[k] = (floatX)((float)d[k] * gelu_derivative((float)x[k]));
        store_some(dinp + i, y, count);
    });
}

template <class floatX>
void gelu_forward(floatX* out, const floatX* inp, size_t n_elems, cudaStream_t stream) {
    const StreamRange in_stream(work::gelu(n_elems, sizeof(floatX)), stream);
    launch("gelu_forward", gelu_forward_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream, out, inp,
           n_elems);
}
template <class floatX>
void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t n_elems, cudaStream_t stream) {
    launch("gelu_backward", gelu_backward_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream, dinp,
           dout, inp, n_elems);
}
