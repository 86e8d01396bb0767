// Codes of weights on a CPU: made of numbers, and turned into numbers again; formulas:
// llmc/adapt/weight_codes.h. Products with them: code_products.h.
#pragma once
#include <vector>
#include "llmc/adapt/weight_codes.h"
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

// v rounded to whole numbers, ties to even; for |v| below 2^22.
VEC_INLINE vfloat round_whole(vfloat v) {
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    return (v + shift) - shift;
}

// The largest |value| of n; NaN if one is NaN.
template <class floatX>
VEC_INLINE float largest_magnitude(const floatX* values, int64_t n) {
    vfloat most{};
    for_each_vector(n, [&](size_t i, size_t count) {
        const vfloat v = load_some(values + i, count), magnitude = v < 0 ? -v : v;
        most = most > magnitude ? most : magnitude;
    });
    return max(most);
}
inline float inverse_or_zero(float x) { return x == 0 ? 0.0f : 1 / x; }

// codes (n) of values (n), whole vectors both, as bytes.
template <class Code>
VEC_INLINE void write_codes(uint8_t* codes, const float* values, int64_t n, float inverse, Code code) {
    for (int64_t i = 0; i < n; i += VEC_FLOATS) store((int8_t*)codes + i, code(rounded(load(values + i) * inverse)));
}
VEC_INLINE vint whole_numbers(vfloat v) { return __builtin_convertvector(v, vint); }
// The number of nf4's level that is nearest to each value: how many of the middles between levels
// are below it.
VEC_INLINE vint nearest_nf4(vfloat v) {
    vint code{};
    for (int i = 0; i < 15; i++) code -= v > (NF4_LEVELS[i] + NF4_LEVELS[i + 1]) / 2;
    return code;
}

// Writes a row of m, from n values, m.padded_C() of them, zeros beyond the row's end. codes has
// room for as many.
inline void encode_row(const CodeMatrix& m, int64_t row, const float* values, uint8_t* codes) {
    const int64_t n = m.padded_C();
    if (m.format == WEIGHTS_INT8) {
        const float scale = largest_magnitude(values, n) / 127;
        *m.scales(row) = scale;
        return write_codes(m.codes(row), values, n, inverse_or_zero(scale),
                           [](vfloat v) { return whole_numbers(round_whole(v)); });
    }
    for (int64_t i = 0; i < n && m.format == WEIGHTS_INT4; i += INT4_BLOCK) {
        float extreme = 0;
        for (int64_t j = i; j < i + INT4_BLOCK; j++)
            if (std::abs(values[j]) > std::abs(extreme)) extreme = values[j];
        const float scale = extreme / -8;
        m.half_scales(row)[i / INT4_BLOCK] = fp16(scale);
        write_codes(codes + i, values + i, INT4_BLOCK, inverse_or_zero(scale), [](vfloat v) {
            const vint code = whole_numbers(v + 8.5f);
            return code > 15 ? vint{} + 15 : code;
        });
    }
    for (int64_t i = 0; i < n && m.format == WEIGHTS_NF4; i += NF4_BLOCK) {
        const float scale = largest_magnitude(values + i, NF4_BLOCK);
        m.scales(row)[i / NF4_BLOCK] = scale;
        write_codes(codes + i, values + i, NF4_BLOCK, inverse_or_zero(scale), nearest_nf4);
    }
    uint8_t* const packed = m.codes(row);
    for (int64_t i = 0; i < n; i += CODE_GROUP)
        for (int64_t j = 0; j < CODE_GROUP / 2; j++)
            packed[i / 2 + j] = codes[i + j] | codes[i + CODE_GROUP / 2 + j] << 4;
}

// Writes codes and scales of weights (m.rows, m.C).
inline void encode_weights(const CodeMatrix& m, const float* weights) {
    const int64_t n = m.padded_C();
    parallel_ranges(m.rows, 32, [&](int64_t begin, int64_t end) {
        std::vector<float> values(n);
        std::vector<uint8_t> codes(n);
        for (int64_t row = begin; row < end; row++) {
            std::copy(weights + row * m.C, weights + (row + 1) * m.C, values.begin());
            encode_row(m, row, values.data(), codes.data());
        }
    });
}

// The scale of half a group of 4-bit codes, 32 of a row.
inline float scale_of_half(const CodeMatrix& m, int64_t row, int64_t half) {
    return m.format == WEIGHTS_INT4 ? (float)m.half_scales(row)[half] : m.scales(row)[half / 2];
}

// table[code] of each lane.
VEC_INLINE vfloat look_up(const float (&table)[16], vint code) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_permutexvar_ps((__m512i)code, _mm512_loadu_ps(table));
#elif defined(__AVX2__)
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)code),
                 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), (__m256i)code);
    return (vfloat)_mm256_blendv_ps(low, high, (__m256)(code << 28));
#else
    vfloat v;
    for (int i = 0; i < VEC_FLOATS; i++) v[i] = table[code[i]];
    return v;
#endif
}

// values (m.C) of a row, rounded to floatX.
template <class floatX>
void decode_row(floatX* values, const CodeMatrix& m, int64_t row) {
    const uint8_t* const codes = m.codes(row);
    if (m.format == WEIGHTS_INT8) {
        const float scale = *m.scales(row);
        const int64_t whole = m.C / VEC_FLOATS * VEC_FLOATS;
        for (int64_t i = 0; i < m.padded_C() && i < m.C; i += VEC_FLOATS) {
            const vfloat v = __builtin_convertvector(load((const int8_t*)codes + i), vfloat) * scale;
            store_some(values + i, v, i < whole ? VEC_FLOATS : m.C - whole);
        }
        return;
    }
    constexpr float INT4_LEVELS[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    const auto& levels = m.format == WEIGHTS_INT4 ? INT4_LEVELS : NF4_LEVELS;
    for (int64_t half = 0; half * 32 < m.C; half++) {
        const float scale = scale_of_half(m, row, half);
        const int8_t* const bytes = (const int8_t*)codes + half / 2 * 32;
        for (int64_t i = 0; i < 32 && half * 32 + i < m.C; i += VEC_FLOATS) {
            const vint code = load(bytes + i) >> (half % 2 ? 4 : 0) & 15;
            const int64_t left = m.C - half * 32 - i;
            store_some(values + half * 32 + i, look_up(levels, code) * scale, std::min<int64_t>(VEC_FLOATS, left));
        }
    }
}
