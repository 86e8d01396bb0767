// The product of a few rows with a matrix, as dot products. Memory limits it: each weight is used
// as many times as there are rows, so what counts is to read the weights once, front to back, and
// as fast as memory delivers them. In generation there is one row.
//
// A core has only so many reads under way, and its prefetcher follows only so many streams. So a
// thread reads DOT_STREAMS rows of the matrix side by side, far apart, and asks for each DOT_AHEAD
// bytes before it needs them. But it does not read more than DOT_MOST_BYTES at a time: rows that
// are too far apart take longer to find their pages.
#pragma once
#include <algorithm>
#include "llmc/cpu/vec.h"

constexpr int64_t DOT_STREAMS = 4, DOT_AHEAD = 2048, CACHE_LINE = 64;
constexpr int64_t DOT_LEAST_BYTES = 1 << 16, DOT_MOST_BYTES = 3 << 19;  // that a thread reads at a time

// sums[s][r] = the dot product of row r of inp (rows, C), of the last row for r beyond it, with the
// row of C weights at weight + s * stride. Weights are prefetched `ahead` elements before they are
// read.
template <int STREAMS, int ROWS, class floatX>
VEC_INLINE void dot_products(float (&sums)[STREAMS][ROWS], const floatX* inp, int64_t rows, const floatX* weight,
                             int64_t stride, int64_t C, int64_t ahead) {
    constexpr int64_t LINE = CACHE_LINE / sizeof(floatX);
    vfloat total[STREAMS][ROWS] = {};
    const floatX* row[ROWS];
    for (int64_t r = 0; r < ROWS; r++) row[r] = inp + std::min(r, rows - 1) * C;
    const auto add = [&](int64_t i, size_t count) {
        vfloat x[ROWS];
        for (int r = 0; r < ROWS; r++) x[r] = load_some(row[r] + i, count);
        for (int s = 0; s < STREAMS; s++) {
            const vfloat w = load_some(weight + s * stride + i, count);
            for (int r = 0; r < ROWS; r++) total[s][r] += x[r] * w;
        }
    };
    int64_t c = 0;
    for (; c + LINE <= C; c += LINE) {
        for (int s = 0; s < STREAMS; s++) __builtin_prefetch(weight + s * stride + c + ahead);
#pragma GCC unroll 8
        for (int64_t i = 0; i < LINE; i += VEC_FLOATS) add(c + i, VEC_FLOATS);
    }
    for_each_vector(C - c, [&](size_t i, size_t count) { add(c + i, count); });
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
        const int64_t ahead = std::min<int64_t>(DOT_AHEAD / sizeof(floatX), (begin + columns - 1 - o) * C);
        float sums[STREAMS][ROWS];
        dot_products(sums, inp, rows, weight + o * C, columns * C, C, ahead);
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
