// GELU, the nonlinearity of the MLP, in the tanh form that GPT-2 was trained with:
//
//     gelu(x)  = x/2 * (1 + tanh(u)),   u = sqrt(2/pi) * (x + 0.044715 x^3)
//     gelu'(x) = (1 + tanh(u))/2 + x/2 * (1 - tanh(u)^2) * du/dx
//
// The code computes the same curve with the logistic function s = 1 / (1 + e^(-2u)), since
// (1 + tanh(u))/2 = s and (1 - tanh(u)^2)/2 = 2 s (1 - s):
//
//     gelu(x)  = x s
//     gelu'(x) = s + x * 2 s (1 - s) * du/dx
//
// The logistic function takes one exponential. It keeps its digits where tanh(u) is near -1, where
// 1 + tanh(u) would lose them.
//
// Source: Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2.
// Elementwise, so memory-bound: forward moves 2 values per element, backward 3.
#pragma once
#include "llmc/gpt2/constants.h"
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

// s of x. The products of constants are the compiler's: in the epilogue of a matrix product every
// operation costs time.
VEC_INLINE vfloat gelu_logistic(vfloat x) {
    return 1.0f / (1.0f + exp(x * (x * x * (-2.0f * GELU_SCALE * GELU_CUBIC) + -2.0f * GELU_SCALE)));
}
VEC_INLINE vfloat gelu(vfloat x) { return x * gelu_logistic(x); }
VEC_INLINE vfloat gelu_derivative(vfloat x) {
    const vfloat s = gelu_logistic(x), twice_du = x * x * (6.0f * GELU_SCALE * GELU_CUBIC) + 2.0f * GELU_SCALE;
    return s + x * twice_du * (s - s * s);
}

// out (n_elems) = gelu(inp (n_elems)), written. out may be inp.
template <class floatX>
void gelu_forward(floatX* out, const floatX* inp, size_t n_elems) {
    const Range range(work::gelu(n_elems, sizeof(floatX)));
    parallel_ranges(n_elems, 1 << 14, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            store_some(out + begin + i, gelu(load_some(inp + begin + i, count)), count);
        });
    });
}

// dinp (n_elems) = dout (n_elems) * gelu'(inp (n_elems)), written, where inp is what gelu_forward
// read. dinp may be dout.
template <class floatX>
void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t n_elems) {
    parallel_ranges(n_elems, 1 << 14, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            store_some(dinp + begin + i,
                       load_some(dout + begin + i, count) * gelu_derivative(load_some(inp + begin + i, count)), count);
        });
    });
}
