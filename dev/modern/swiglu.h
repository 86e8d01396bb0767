// What stands in GELU's place between the two products of the MLP.
//
// SwiGLU (Shazeer 2020, arXiv:2002.05202): the first product has two outputs for each hidden
// channel, a gate and what passes through it, each a half of its row:
//
//     out   = silu(gate) up,   silu(x) = x s(x),   s(x) = 1 / (1 + e^-x)
//     Dgate = Dout up s(gate) (1 + gate (1 - s(gate)))
//     Dup   = Dout silu(gate)
//
// ReLU squared (So et al. 2021, arXiv:2109.08668), of one output:
//
//     out = max(x, 0)^2,   Dx = Dout 2 max(x, 0)
//
// Elementwise, so memory-bound.
#pragma once
#include <cmath>
#include "dev/modern/reference.h"
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

template <class floatX>
void swiglu_forward(floatX* out, const floatX* inp, int64_t rows, int64_t F) {
    const Range range(KernelWork{{"swiglu"}, 0, 3.0 * rows * F * sizeof(floatX)});
    parallel_ranges(rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++)
            for_each_vector(F, [&](size_t i, size_t count) {
                const vfloat gate = load_some(inp + r * 2 * F + i, count),
                             up = load_some(inp + (2 * r + 1) * F + i, count);
                store_some(out + r * F + i, gate * up / (1.0f + exp(-gate)), count);
            });
    });
}
template <class floatX>
void swiglu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int64_t rows, int64_t F) {
    const Range range(KernelWork{{"swiglu backward"}, 0, 5.0 * rows * F * sizeof(floatX)});
    parallel_ranges(rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++)
            for_each_vector(F, [&](size_t i, size_t count) {
                const int64_t at = r * 2 * F + i;
                const vfloat gate = load_some(inp + at, count), up = load_some(inp + at + F, count);
                const vfloat d = load_some(dout + r * F + i, count), s = 1.0f / (1.0f + exp(-gate));
                store_some(dinp + at, d * up * s * (1.0f + gate * (1.0f - s)), count);
                store_some(dinp + at + F, d * gate * s, count);
            });
    });
}
template <class floatX>
void relu2_forward(floatX* out, const floatX* inp, size_t n_elems) {
    const Range range(KernelWork{{"relu squared"}, 0, 2.0 * n_elems * sizeof(floatX)});
    parallel_ranges(n_elems, 1 << 14, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            const vfloat x = load_some(inp + begin + i, count), zero{};
            store_some(out + begin + i, x < zero ? zero : x * x, count);  // NaN stays
        });
    });
}
template <class floatX>
void relu2_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t n_elems) {
    const Range range(KernelWork{{"relu squared backward"}, 0, 3.0 * n_elems * sizeof(floatX)});
    parallel_ranges(n_elems, 1 << 14, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            const vfloat x = load_some(inp + begin + i, count), zero{};
            store_some(dinp + begin + i, x < zero ? zero : load_some(dout + begin + i, count) * 2.0f * x, count);
        });
    });
}
