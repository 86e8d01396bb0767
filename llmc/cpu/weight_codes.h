// Codes of weights on a CPU: made of numbers, and turned into numbers again; formulas:
// llmc/adapt/weight_codes.h. Products with them: code_products.h, coded_layers.h.
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
// room for as many. The scales of nf4 go to nf4_scales.
inline void encode_row(const CodeMatrix& m, int64_t row, const float* values, uint8_t* codes, float* nf4_scales) {
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
        nf4_scales[row * m.row_groups() + i / NF4_BLOCK] = scale;
        write_codes(codes + i, values + i, NF4_BLOCK, inverse_or_zero(scale), nearest_nf4);
    }
    uint8_t* const packed = m.codes(row);
    for (int64_t i = 0; i < n; i += CODE_GROUP)
        for (int64_t j = 0; j < CODE_GROUP / 2; j++)
            packed[i / 2 + j] = codes[i + j] | codes[i + CODE_GROUP / 2 + j] << 4;
}

// Writes the codes of nf4's scales, those of all rows, and what they are multiplied by and added
// to.
inline void encode_scales(const CodeMatrix& m, const std::vector<float>& scales) {
    double sum = 0;
    for (float scale : scales) sum += scale;
    const int64_t n = (int64_t)scales.size();
    const float mean = *m.mean() = (float)(sum / (double)n);
    for (int64_t first = 0; first < n; first += NF4_GROUP) {
        const int64_t end = std::min(n, first + NF4_GROUP);
        float& group = m.mean()[1 + first / NF4_GROUP] = 0;
        for (int64_t i = first; i < end; i++) group = std::max(group, std::fabs(scales[i] - mean));
        for (int64_t i = first; i < end; i++)
            m.scale_codes(0)[i] = ScaleCode::nearest((scales[i] - mean) * inverse_or_zero(group));
    }
}

// Writes codes and scales of weights (m.rows, m.C).
inline void encode_weights(const CodeMatrix& m, const float* weights) {
    const int64_t n = m.padded_C();
    std::vector<float> nf4_scales(m.format == WEIGHTS_NF4 ? m.rows * m.row_groups() : 0);
    parallel_ranges(m.rows, 32, [&](int64_t begin, int64_t end) {
        std::vector<float> values(n);
        std::vector<uint8_t> codes(n);
        for (int64_t row = begin; row < end; row++) {
            std::copy(weights + row * m.C, weights + (row + 1) * m.C, values.begin());
            encode_row(m, row, values.data(), codes.data(), nf4_scales.data());
        }
    });
    if (m.format == WEIGHTS_NF4) encode_scales(m, nf4_scales);
}

// The scale of half a group of 4-bit codes, 32 of a row.
inline float scale_of_half(const CodeMatrix& m, int64_t row, int64_t half) {
    return m.format == WEIGHTS_INT4 ? (float)m.half_scales(row)[half] : m.nf4_scale(row, half / 2);
}

// table[code] of each lane, N 8 or 16.
template <int N>
VEC_INLINE vfloat look_up(const float (&table)[N], vint code) {
#if defined(__AVX512F__)
    const __m512i values = N == 16 ? _mm512_loadu_si512(table)
                                   : _mm512_maskz_broadcast_i64x4(0xff, _mm256_loadu_si256((const __m256i*)table));
    return (vfloat)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)code, (__m512)values);
#elif defined(__AVX2__)
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)code);
    if (N == 8) return (vfloat)low;
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + N - 8), (__m256i)code);
    return (vfloat)_mm256_blendv_ps(low, high, (__m256)(code << 28));
#else
    vfloat v;
    for (int i = 0; i < VEC_FLOATS; i++) v[i] = table[code[i]];
    return v;
#endif
}

// SCALE_VALUES[code] of each lane. Where a register can be a table it is computed, to the bit: a
// load for each lane would take as long as all else. With the size s of the number that a code
// stands for and its power of two n, it is (18 s + 9 - 16 n) / divisor, as in DynamicCode: what
// depends on n goes by the exponent of s, that is log2 n + 127, of which 3 bits count.
VEC_INLINE vfloat scale_values(vint code) {
#if defined(__AVX2__)
    static constexpr struct Tables {
        float offset[8] = {}, divisor[8] = {};
        constexpr Tables() {
            for (int log = 0, n = 1; log <= ScaleCode::DECADES; log++, n *= 2) {
                const int at = (log + 127) % 8;
                offset[at] = 9 - 16 * n, divisor[at] = (2 * n + 9) / ScaleCode::value_of_size(n);
            }
        }
    } TABLES;
    const vint number = code - ScaleCode::ZERO;
    const vfloat s = __builtin_convertvector(number < 0 ? -number : number, vfloat);
    const vint exponent = (vint)s >> 23 & 7;
    const vfloat value = (s * 18.0f + look_up(TABLES.offset, exponent)) / look_up(TABLES.divisor, exponent);
    return (vfloat)(((vint)value & (number != 0)) | (number & INT32_MIN));
#else
    vfloat v;
    for (int i = 0; i < VEC_FLOATS; i++) v[i] = SCALE_VALUES[code[i]];
    return v;
#endif
}

// values (n) of a row from column `first` on, a multiple of 64, rounded to floatX.
template <class floatX>
void decode_row(floatX* values, const CodeMatrix& m, int64_t row, int64_t first, int64_t n) {
    if (m.format == WEIGHTS_INT8) {
        const int8_t* const codes = (const int8_t*)m.codes(row) + first;
        const float scale = *m.scales(row);
        for (int64_t i = 0; i < n; i += VEC_FLOATS) {
            const vfloat v = __builtin_convertvector(load(codes + i), vfloat) * scale;
            store_some(values + i, v, std::min<int64_t>(VEC_FLOATS, n - i));
        }
        return;
    }
    constexpr float INT4_LEVELS[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    const auto& levels = m.format == WEIGHTS_INT4 ? INT4_LEVELS : NF4_LEVELS;
    for (int64_t begin = 0; begin < n; begin += 32) {  // half a group
        const int64_t half = (first + begin) / 32;
        const float scale = scale_of_half(m, row, half);
        const int8_t* const bytes = (const int8_t*)m.codes(row) + half / 2 * 32;
        for (int64_t i = 0; i < 32 && begin + i < n; i += VEC_FLOATS) {
            const vint code = load(bytes + i) >> (half % 2 ? 4 : 0) & 15;
            store_some(values + begin + i, look_up(levels, code) * scale, std::min<int64_t>(VEC_FLOATS, n - begin - i));
        }
    }
}

// A matrix in codes, and room for a strip of it in floatX: WeightCodes::strip_elems() elements.
template <class floatX>
struct InStrips {
    CodeMatrix codes;
    floatX* strip;
};
// Calls product(weights, first, n) for strips of rows of a matrix (OC, C): rows first to first +
// n - 1 are at weights, as numbers. A matrix that has no codes is one strip.
template <class floatX, class Product>
void for_row_strips(const InStrips<floatX>& matrix, int64_t OC, Product product) {
    const CodeMatrix& m = matrix.codes;
    for (int64_t first = 0; first < OC; first += WeightCodes::strip_rows(m)) {
        const int64_t n = std::min(WeightCodes::strip_rows(m), OC - first);
        parallel_ranges(n, 16, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) decode_row(matrix.strip + i * m.C, m, first + i, 0, m.C);
        });
        product((const floatX*)matrix.strip, first, n);
    }
}
template <class floatX, class Product>
void for_row_strips(const floatX* weights, int64_t OC, Product product) {
    product(weights, int64_t(0), OC);
}
// Calls product(weights, first, n) for strips of columns: rows of n elements, from column `first`
// on.
template <class floatX, class Product>
void for_column_strips(const InStrips<floatX>& matrix, int64_t C, Product product) {
    const CodeMatrix& m = matrix.codes;
    for (int64_t first = 0; first < C; first += WeightCodes::strip_columns(m)) {
        const int64_t n = std::min(WeightCodes::strip_columns(m), C - first);
        parallel_ranges(m.rows, 256, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; row++) decode_row(matrix.strip + row * n, m, row, first, n);
        });
        product((const floatX*)matrix.strip, first, n);
    }
}
template <class floatX, class Product>
void for_column_strips(const floatX* weights, int64_t C, Product product) {
    product(weights, int64_t(0), C);
}
