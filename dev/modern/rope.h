// Rotary positions (Su et al. 2021, arXiv:2104.09864): nothing is added to the residual stream;
// in each layer the queries and keys of position t are turned, channel i of a head's first half
// together with channel i of its second half, by an angle that grows with t:
//
//     angle = t theta^(-2i/HS)                      i < HS/2
//     out[i]        = x[i] cos(angle) - x[i + HS/2] sin(angle)
//     out[i + HS/2] = x[i + HS/2] cos(angle) + x[i] sin(angle)
//
// The product of a query turned by t and a key turned by s depends on t - s alone. Backward, the
// gradient is turned by -angle: a rotation's transpose is its inverse. Memory-bound, in place.
//
// Angles are computed in fp32, as PyTorch's models do, whose weights have learned with them.
#pragma once
#include <cmath>
#include "dev/modern/reference.h"
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

template <class floatX>
void rope(floatX* qkv, const float* table, int64_t rows, int64_t T, const Heads& heads, bool back) {
    const int64_t half = heads.HS / 2, turned = heads.NH + heads.NKV;
    const float sign = back ? -1.0f : 1.0f;
    const Range range(KernelWork{{"rope"}, 0, 2.0 * rows * turned * heads.HS * sizeof(floatX)});
    parallel_ranges(rows, 8, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++)
            for (int64_t h = 0; h < turned; h++) {
                floatX* x = qkv + r * heads.qkv_row() + h * heads.HS;
                const float* angles = table + r % T * heads.HS;
                for_each_vector(half, [&](size_t i, size_t count) {
                    const vfloat a = load_some(x + i, count), b = load_some(x + half + i, count);
                    const vfloat cosine = load_some(angles + i, count);
                    const vfloat sine = load_some(angles + half + i, count) * sign;
                    store_some(x + i, a * cosine - b * sine, count);
                    store_some(x + half + i, b * cosine + a * sine, count);
                });
            }
    });
}
