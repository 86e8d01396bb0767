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
#include "llmc/cpu/attention_mask.h"

// table (T,2,HS/2) is written: cosines, then sines.
inline void rope_table(float* table, int64_t T, int64_t HS, float theta) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < HS / 2; i++) {
            const float frequency = 1.0f / (float)std::pow((double)theta, (double)(2 * i) / (double)HS);
            const float angle = (float)t * frequency;
            table[t * HS + i] = std::cos(angle), table[t * HS + HS / 2 + i] = std::sin(angle);
        }
}

namespace reference {
// The heads of queries and keys in qkv (rows,row), row r of which is position r % T, are turned in
// place, by the angles of the table or, if `back`, by their opposites.
template <class floatX>
void rope(floatX* qkv, const float* table, int64_t rows, int64_t T, const Heads& heads, bool back) {
    const int64_t half = heads.HS / 2;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads.NH + heads.NKV; h++)
            for (int64_t i = 0; i < half; i++) {
                floatX* x = qkv + r * heads.qkv_row() + h * heads.HS + i;
                const float a = x[0], b = x[half], cosine = table[r % T * heads.HS + i];
                const float sine = back ? -table[r % T * heads.HS + half + i] : table[r % T * heads.HS + half + i];
                x[0] = a * cosine - b * sine, x[half] = b * cosine + a * sine;
            }
}
}  // namespace reference

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
