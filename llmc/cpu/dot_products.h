// The product of a few rows with a matrix, as dot products. Memory limits it: each weight is used
// as many times as there are rows, so what counts is to read the weights once, front to back, and
// as fast as memory delivers them. In generation there is one row.
//
// A core has only so many reads under way, and its prefetcher follows only so many streams. So a
// thread reads DOT_STREAMS rows of the matrix side by side, far apart. It asks for each line twice:
// DOT_FAR bytes before it needs it, from memory to the second-level cache, which has more reads
// under way than the first, and DOT_NEAR before, to the first. But it does not read more than
// DOT_MOST_BYTES at a time: rows that are too far apart take longer to find their pages.
#pragma once
#include <algorithm>
#include "llmc/base/integer_math.h"
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

constexpr int64_t DOT_STREAMS = 4, DOT_FAR = 2048, DOT_NEAR = 1024, CACHE_LINE = 64;
constexpr int64_t DOT_LEAST_BYTES = 1 << 16, DOT_MOST_BYTES = 3 << 19;  // that a thread reads at a time

// Calls f(begin, end) on ranges of a matrix's rows, of row_bytes each, which the threads read at a
// time.
template <class F>
inline void parallel_streams(int64_t rows, int64_t row_bytes, F f) {
    const int64_t least = ceil_div(DOT_LEAST_BYTES, row_bytes * DOT_STREAMS) * DOT_STREAMS;
    parallel_shrinking_ranges(rows, least, DOT_MOST_BYTES / row_bytes, f);
}
// Prefetches what is DOT_FAR and DOT_NEAR bytes ahead of p, but nothing that is more than `left`
// bytes ahead.
VEC_INLINE void fetch_stream(const void* p, int64_t left) {
    fetch_to_second_level((const char*)p + std::min(DOT_FAR, left));
    __builtin_prefetch((const char*)p + std::min(DOT_NEAR, left));
}

// As many values as a register holds, widened: of bf16 those at even places, then those at odd
// ones. In a sum of products both factors have them in this order.
template <class floatX>
constexpr int64_t REGISTER_VALUES = VEC_BYTES / sizeof(floatX);
VEC_INLINE void load_register(vfloat (&values)[1], const float* p) { values[0] = load(p); }
VEC_INLINE void load_register(vfloat (&values)[2], const bf16* p) {
    const vuint pairs = load_pairs(p);
    values[0] = widen_first(pairs), values[1] = widen_second(pairs);
}

// sums[s][r] = the dot product of row r of inp (rows, C), of the last row for r beyond it, with the
// row of C weights at weight + s * stride. `left` bytes beyond each weight are the stream's.
template <int STREAMS, int ROWS, class floatX>
VEC_INLINE void dot_products(float (&sums)[STREAMS][ROWS], const floatX* inp, int64_t rows, const floatX* weight,
                             int64_t stride, int64_t C, int64_t left) {
    constexpr int64_t LINE = CACHE_LINE / sizeof(floatX), VECTORS = REGISTER_VALUES<floatX> / VEC_FLOATS;
    vfloat total[STREAMS][ROWS] = {};
    const floatX* row[ROWS];
    for (int64_t r = 0; r < ROWS; r++) row[r] = inp + std::min(r, rows - 1) * C;
    int64_t c = 0;
    for (; c + LINE <= C; c += LINE) {
        for (int s = 0; s < STREAMS; s++) fetch_stream(weight + s * stride + c, left);
#pragma GCC unroll 8
        for (int64_t i = c; i < c + LINE; i += REGISTER_VALUES<floatX>) {
            vfloat x[ROWS][VECTORS], w[VECTORS];
            for (int r = 0; r < ROWS; r++) load_register(x[r], row[r] + i);
            for (int s = 0; s < STREAMS; s++) {
                load_register(w, weight + s * stride + i);
                for (int r = 0; r < ROWS; r++)
                    for (int v = 0; v < VECTORS; v++) total[s][r] += x[r][v] * w[v];
            }
        }
    }
    for_each_vector(C - c, [&](size_t i, size_t count) {
        for (int s = 0; s < STREAMS; s++) {
            const vfloat w = load_some(weight + s * stride + c + i, count);
            for (int r = 0; r < ROWS; r++) total[s][r] += load_some(row[r] + c + i, count) * w;
        }
    });
    for (int s = 0; s < STREAMS; s++)
        for (int r = 0; r < ROWS; r++) sums[s][r] = sum(total[s][r]);
}

// Computes columns `begin` to `end` - 1 of out (rows, OC) in STREAMS streams of equally many rows
// of the weight. Returns the first column that is left.
template <int STREAMS, int ROWS, class floatOut, class floatX>
inline int64_t dot_product_streams(floatOut* out, const floatX* inp, const floatX* weight, const floatX* bias,
                                   int64_t rows, int64_t C, int64_t OC, int64_t begin, int64_t end) {
    const int64_t columns = (end - begin) / STREAMS;  // of one stream
    for (int64_t o = begin; o < begin + columns; o++) {
        const int64_t left = (begin + columns - 1 - o) * C * (int64_t)sizeof(floatX);
        float sums[STREAMS][ROWS];
        dot_products(sums, inp, rows, weight + o * C, columns * C, C, left);
        for (int s = 0; s < STREAMS; s++)
            for (int64_t r = 0; r < rows; r++) {
                const int64_t column = o + s * columns;
                out[r * OC + column] = sums[s][r] + (bias ? (float)bias[column] : 0.0f);
            }
    }
    return begin + columns * STREAMS;
}

// Writes columns `begin` to `end` - 1 of out (rows, OC) = inp (rows, C) weight (OC, C)^T + bias
// (OC), with at most ROWS rows; bias may be null.
template <int ROWS, class floatOut, class floatX>
inline void dot_product_columns(floatOut* out, const floatX* inp, const floatX* weight, const floatX* bias,
                                int64_t rows, int64_t C, int64_t OC, int64_t begin, int64_t end) {
    constexpr int STREAMS = ROWS * DOT_STREAMS < VEC_REGISTERS ? DOT_STREAMS : DOT_STREAMS / 2;
    begin = dot_product_streams<STREAMS, ROWS>(out, inp, weight, bias, rows, C, OC, begin, end);
    dot_product_streams<1, ROWS>(out, inp, weight, bias, rows, C, OC, begin, end);
}
