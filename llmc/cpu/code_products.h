// Products with weights that are codes (adapt/weight_codes.h).
//
// For one row of inputs, as in generation, memory limits them, and what is to be had is that there
// are fewer bytes: so a core must compute with codes as fast as they arrive, tens of billions in a
// second. It multiplies whole numbers of 16 bits, twice as many at a time as fp32 numbers, and adds
// pairs of products in the same instruction (AVX2, AVX-512 BW: pmaddwd; VNNI: vpdpwssd; NEON:
// smlal). Inputs are rounded to 14 bits and a sign once for a row,
//
//     out = x_scale sum over blocks scale (sum over the block of level[code] x),   x = round(inp / x_scale),
//
// which is finer than bf16 for all but the smallest of them. int8's levels are the codes. Levels of
// 4-bit codes come from a table of 16 in a register, those of nf4 rounded to 14 bits as well, so
// that no sum of 8 products leaves 32 bits.
//
// Of more rows, and of what trains: coded_layers.h.
#pragma once
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/weight_codes.h"

constexpr int VEC_SHORTS = VEC_BYTES / 2, WHOLE_LIMIT = 16383;  // of inputs and of levels
typedef int16_t vshort __attribute__((vector_size(VEC_BYTES)));
typedef int16_t vshort_anywhere __attribute__((vector_size(VEC_BYTES), aligned(2), may_alias));
VEC_INLINE vshort load_shorts(const int16_t* p) { return *(const vshort_anywhere*)p; }
// VEC_SHORTS codes of 8 bits.
VEC_INLINE vshort load_shorts(const int8_t* p) {
#if defined(__AVX512BW__)
    return (vshort)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (vshort)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
#else
    typedef int8_t bytes __attribute__((vector_size(VEC_SHORTS), aligned(1), may_alias));
    return __builtin_convertvector(*(const bytes*)p, vshort);
#endif
}
// sums + a b: a lane of the sums gets two products.
VEC_INLINE vint add_products(vint sums, vshort a, vshort b) {
#if defined(__AVX512VNNI__)
    return (vint)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return sums + (vint)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (vint)_mm256_dpwssd_avx_epi32((__m256i)sums, (__m256i)a, (__m256i)b);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return sums + (vint)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
    return (vint)vmlal_high_s16(vmlal_s16((int32x4_t)sums, vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b)),
                                (int16x8_t)a, (int16x8_t)b);
#else
    const vint x = (vint)a, y = (vint)b;
    return sums + (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

// The levels of 4-bit codes as whole numbers: level = unit * whole. Also their lower and upper
// bytes, each 16 twice, for instructions that look bytes up.
struct WholeLevels {
    alignas(64) int16_t whole[32];
    alignas(32) uint8_t low[32], high[32];
    float unit;

    explicit WholeLevels(WeightFormat format) {
        unit = format == WEIGHTS_INT4 ? 1.0f : 1.0f / WHOLE_LIMIT;
        for (int i = 0; i < 32; i++) {
            const float level = NF4_LEVELS[i % 16] * WHOLE_LIMIT;
            whole[i] = format == WEIGHTS_INT4 ? i % 16 - 8 : (int16_t)(level < 0 ? level - 0.5f : level + 0.5f);
            low[i] = (uint8_t)whole[i], high[i] = (uint8_t)((uint16_t)whole[i] >> 8);
        }
    }
};

// The levels of a step of 4-bit codes, a group or two: first those of the lower halves of its
// bytes, then of the upper. In the order that inputs are brought into (order_inputs()).
#if defined(__AVX512BW__)
constexpr int STEP_GROUPS = 2;
#else
constexpr int STEP_GROUPS = 1;
#endif
constexpr int STEP = STEP_GROUPS * CODE_GROUP, HALF_VECTORS = STEP / 2 / VEC_SHORTS;
VEC_INLINE void load_levels(vshort (&levels)[2][HALF_VECTORS], const uint8_t* codes, const WholeLevels& table) {
#if defined(__AVX512BW__)
    const __m512i four = _mm512_loadu_si512(codes), whole = _mm512_load_si512(table.whole);  // in each 16 bits
    levels[0][0] = (vshort)_mm512_permutexvar_epi16(four, whole);  // it looks at the lower 5 bits
    levels[0][1] = (vshort)_mm512_permutexvar_epi16(_mm512_srli_epi16(four, 8), whole);
    levels[1][0] = (vshort)_mm512_permutexvar_epi16(_mm512_srli_epi16(four, 4), whole);
    levels[1][1] = (vshort)_mm512_permutexvar_epi16(_mm512_srli_epi16(four, 12), whole);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i bytes = _mm256_loadu_si256((const __m256i*)codes), lower = _mm256_set1_epi8(15),
                  low = _mm256_load_si256((const __m256i*)table.low),
                  high = _mm256_load_si256((const __m256i*)table.high);
    const __m256i halves[2] = {_mm256_and_si256(bytes, lower), _mm256_and_si256(_mm256_srli_epi16(bytes, 4), lower)};
    for (int h = 0; h < 2; h++) {
        const __m256i l = _mm256_shuffle_epi8(low, halves[h]), u = _mm256_shuffle_epi8(high, halves[h]);
        levels[h][0] = (vshort)_mm256_unpacklo_epi8(l, u), levels[h][1] = (vshort)_mm256_unpackhi_epi8(l, u);
    }
#elif defined(__aarch64__)
    const uint8x16_t low = vld1q_u8(table.low), high = vld1q_u8(table.high);
    for (int i = 0; i < 2; i++) {
        const uint8x16_t bytes = vld1q_u8(codes + 16 * i);
        const uint8x16_t halves[2] = {vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8(bytes, 4)};
        for (int h = 0; h < 2; h++) {
            const uint8x16_t l = vqtbl1q_u8(low, halves[h]), u = vqtbl1q_u8(high, halves[h]);
            levels[h][2 * i] = (vshort)vzip1q_u8(l, u), levels[h][2 * i + 1] = (vshort)vzip2q_u8(l, u);
        }
    }
#else
    for (int i = 0; i < 32; i++) {
        levels[0][i / VEC_SHORTS][i % VEC_SHORTS] = table.whole[codes[i] & 15];
        levels[1][i / VEC_SHORTS][i % VEC_SHORTS] = table.whole[codes[i] >> 4];
    }
#endif
}
// Brings inputs (n, whole steps) into that order, once. AVX-512 looks at every fourth code at a
// time: of both groups the even ones of the first 32, then the odd ones, then those of the other
// 32. AVX2 unpacks bytes in each half of a register for itself: of 32 levels, 8 to 15 and 16 to 23
// change places.
inline void order_inputs(int16_t* x, int64_t n) {
#if defined(__AVX512BW__)
    const __m512i even = (__m512i)(lane_numbers() * 0x40004 + 0x20000), odd = (__m512i)((vint)even + 0x10001);
    for (int64_t i = 0; i < n; i += STEP) {
        const __m512i first[2] = {_mm512_loadu_si512(x + i), _mm512_loadu_si512(x + i + 32)},
                      second[2] = {_mm512_loadu_si512(x + i + 64), _mm512_loadu_si512(x + i + 96)};
        for (int h = 0; h < 2; h++) {
            _mm512_storeu_si512(x + i + 64 * h, _mm512_permutex2var_epi16(first[h], even, second[h]));
            _mm512_storeu_si512(x + i + 64 * h + 32, _mm512_permutex2var_epi16(first[h], odd, second[h]));
        }
    }
#elif defined(__AVX2__) && !defined(__AVX512F__)
    for (int64_t i = 0; i < n; i += 32) std::swap_ranges(x + i + 8, x + i + 16, x + i + 16);
#else
    (void)x, (void)n;
#endif
}

// x (whole steps) = inp (C) as whole numbers, and zeros behind them. Returns their scale.
template <class floatX>
float round_inputs(int16_t* x, const floatX* inp, int64_t C, WeightFormat format) {
    typedef int16_t shorts __attribute__((vector_size(VEC_FLOATS * 2)));
    const float scale = largest_magnitude(inp, C) / WHOLE_LIMIT, inverse = inverse_or_zero(scale);
    for_each_vector(C, [&](size_t i, size_t count) {
        const vint whole = whole_numbers(round_whole(load_some(inp + i, count) * inverse));
        const shorts v = __builtin_convertvector(whole, shorts);
        memcpy(x + i, &v, count * 2);
    });
    std::fill(x + C, x + round_up(C, STEP), 0);
    if (format != WEIGHTS_INT8) order_inputs(x, round_up(C, STEP));
    return scale;
}

constexpr int64_t CODES_AT_ONCE = 1024;  // of a row: their sums of int8 codes stay within 32 bits

// The scales of `halves` halves of groups of int4, from `first` on; there may be fewer than a
// vector.
VEC_INLINE void load_scales(float* scales, const fp16* first, int64_t halves) {
    int64_t h = 0;
#if defined(__AVX2__) && defined(__F16C__)
    for (; h + 8 <= halves; h += 8)
        _mm256_storeu_ps(scales + h, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(first + h))));
#elif defined(__aarch64__)
    for (; h + 4 <= halves; h += 4) vst1q_f32(scales + h, vcvt_f32_f16(vld1_f16((const float16_t*)(first + h))));
#endif
    for (; h < halves; h++) scales[h] = first[h];
}

// The scales of n groups of a row of nf4, from `first` on; writes up to a vector beyond them.
VEC_INLINE void load_scales(float* scales, const CodeMatrix& m, int64_t row, int64_t first, int64_t n) {
    const uint8_t* const codes = m.scale_codes(row) + first;
    for (int64_t h = 0; h < n;) {
        const int64_t at = row * m.row_groups() + first + h, count = std::min(n - h, NF4_GROUP - at % NF4_GROUP);
        const float group = *m.group(row, first + h), mean = *m.mean();
        for (int64_t i = h; i < h + count; i += VEC_FLOATS)
            store(scales + i, scale_values(load((const int8_t*)codes + i) & 255) * group + mean);
        h += count;
    }
}

// sums + x times a step of 4-bit codes of FORMAT, whose scales are at `scales`.
template <WeightFormat FORMAT>
VEC_INLINE vfloat add_step(vfloat sums, const int16_t* x, const uint8_t* codes, const WholeLevels& table,
                           const float* scales) {
    constexpr bool ONE_SCALE = FORMAT == WEIGHTS_NF4, ONE_SUM = ONE_SCALE && VEC_FLOATS >= 8;  // of 8 products at most
    vshort levels[2][HALF_VECTORS];
    load_levels(levels, codes, table);
    vint part[2] = {};
#pragma GCC unroll 8
    for (int j = 0; j < 2 * HALF_VECTORS; j++) {
        const int h = j / HALF_VECTORS, i = ONE_SUM ? 0 : h;
        part[i] = add_products(part[i], levels[h][j % HALF_VECTORS], load_shorts(x + j * VEC_SHORTS));
    }
    for (int h = 0; h < (ONE_SUM ? 1 : 2); h++) {
        const float* const scale = scales + (ONE_SCALE ? 0 : h);
        vfloat v = broadcast(scale[0]);
        if (STEP_GROUPS == 2) v = lane_numbers() < VEC_FLOATS / 2 ? v : broadcast(scale[ONE_SCALE ? 1 : 2]);
        sums += __builtin_convertvector(part[h], vfloat) * v;
    }
    return sums;
}

// sums[s] = the product of x with row `row` + s * stride of m, but for x's scale. Codes are
// prefetched as far as `left` bytes ahead.
template <int STREAMS, WeightFormat FORMAT>
VEC_INLINE void code_products(float (&sums)[STREAMS], const int16_t* x, const CodeMatrix& m, const WholeLevels& table,
                              int64_t row, int64_t stride, int64_t left) {
    const int64_t n = m.padded_C();
    const uint8_t* codes[STREAMS];
    vfloat total[STREAMS] = {};
    for (int s = 0; s < STREAMS; s++) codes[s] = m.codes(row + s * stride);
    for (int64_t c = 0; c < n; c += CODES_AT_ONCE) {
        const int64_t end = std::min(n, c + CODES_AT_ONCE);
        if constexpr (FORMAT == WEIGHTS_INT8) {
            vint part[STREAMS] = {};
            for (int64_t i = c; i < end; i += CODE_GROUP)
                for (int s = 0; s < STREAMS; s++) {
                    fetch_stream(codes[s] + i, left);
#pragma GCC unroll 8
                    for (int64_t j = 0; j < CODE_GROUP; j += VEC_SHORTS)
                        part[s] =
                            add_products(part[s], load_shorts((const int8_t*)codes[s] + i + j), load_shorts(x + i + j));
                }
            for (int s = 0; s < STREAMS; s++) total[s] += __builtin_convertvector(part[s], vfloat);
            continue;
        }
        constexpr int64_t BLOCK = FORMAT == WEIGHTS_INT4 ? INT4_BLOCK : NF4_BLOCK;
        const int64_t blocks = (end - c) / BLOCK;
        float scales[STREAMS][CODES_AT_ONCE / BLOCK + VEC_FLOATS];
        for (int s = 0; s < STREAMS; s++) {
            if (FORMAT == WEIGHTS_NF4) load_scales(scales[s], m, row + s * stride, c / BLOCK, blocks);
            else load_scales(scales[s], m.half_scales(row + s * stride) + c / BLOCK, blocks);
            scales[s][blocks] = scales[s][blocks + 1] = 0;  // half a step is of the next row
        }
        for (int64_t i = c; i < end; i += STEP)
#pragma GCC unroll 4
            for (int s = 0; s < STREAMS; s++) {
                fetch_stream(codes[s] + i / 2, left);
                total[s] = add_step<FORMAT>(total[s], x + i, codes[s] + i / 2, table, scales[s] + (i - c) / BLOCK);
            }
    }
    for (int s = 0; s < STREAMS; s++)
        sums[s] = sum(total[s]) * (FORMAT == WEIGHTS_INT8 ? *m.scales(row + s * stride) : table.unit);
}

// Columns `begin` to `end` - 1 of out (m.rows), one row of outputs, in STREAMS streams as in
// dot_products.h. Returns the first column that is left.
template <int STREAMS, WeightFormat FORMAT, class floatX>
int64_t code_product_streams(floatX* out, const int16_t* x, float x_scale, const CodeMatrix& m,
                             const WholeLevels& table, const floatX* bias, int64_t begin, int64_t end) {
    const int64_t columns = (end - begin) / STREAMS;
    for (int64_t o = begin; o < begin + columns; o++) {
        const int64_t left = (begin + columns - 1 - o) * m.row_code_bytes();
        float sums[STREAMS];
        code_products<STREAMS, FORMAT>(sums, x, m, table, o, columns, left);
        for (int s = 0; s < STREAMS; s++) {
            const int64_t column = o + s * columns;
            out[column] = sums[s] * x_scale + (bias ? (float)bias[column] : 0.0f);
        }
    }
    return begin + columns * STREAMS;
}

// One row of coded_matmul() (coded_layers.h).
template <WeightFormat FORMAT, class floatX>
void coded_matmul_row(floatX* out, const floatX* inp, const CodeMatrix& m, const floatX* bias, floatX* gelu_out,
                      int16_t* x) {
    const WholeLevels table(m.format);
    const float x_scale = round_inputs(x, inp, m.C, m.format);
    parallel_streams(m.rows, m.row_bytes(), [&](int64_t begin, int64_t end) {
        const int64_t left = code_product_streams<DOT_STREAMS, FORMAT>(out, x, x_scale, m, table, bias, begin, end);
        code_product_streams<1, FORMAT>(out, x, x_scale, m, table, bias, left, end);
        if (!gelu_out) return;
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            store_some(gelu_out + begin + i, gelu(load_some(out + begin + i, count)), count);
        });
    });
}
