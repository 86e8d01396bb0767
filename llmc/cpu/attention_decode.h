// Attention in generation, one position at a time; formulas: attention.h. Keys and values of the
// positions before it are kept in a cache, for each layer keys (NH, maxT, HS) and values (NH, maxT,
// HS). Each head reads its keys and values once per position, and does two FLOPs per value read: so
// memory limits it. A head's keys are contiguous, and so are its values. The scores are the product
// of its query with the matrix of its keys (dot_products.h).
#pragma once
#include <cmath>
#include "llmc/cpu/device.h"
#include "llmc/cpu/dot_products.h"

// fill_cache() for one head: its keys (maxT, HS) and values (maxT, HS), from its channels of qkv.
template <class floatX>
inline void fill_cache_head(floatX* keys, floatX* values, const floatX* qkv, int64_t first, int64_t n, int64_t C,
                            int64_t HS) {
    for (int64_t t = 0; t < n; t++) {
        memcpy((void*)(keys + (first + t) * HS), qkv + t * 3 * C + C, HS * sizeof(floatX));
        memcpy((void*)(values + (first + t) * HS), qkv + t * 3 * C + 2 * C, HS * sizeof(floatX));
    }
}
// Writes keys and values of the first T positions to the cache of a layer, from qkv (T, 3C).
template <class floatX>
void fill_cache(floatX* keys, floatX* values, const floatX* qkv, int64_t T, int64_t maxT, int64_t C, int64_t NH) {
    const int64_t HS = C / NH;
    parallel_for(NH, [&](int64_t h) {
        fill_cache_head(keys + h * maxT * HS, values + h * maxT * HS, qkv + h * HS, 0, T, C, HS);
    });
}

// Replaces each p[t] (n) by e^(scale (p[t] - the largest of p)), and returns their sum.
inline float exponentials(float* p, int64_t n, float scale) {
    vfloat highest = broadcast(p[0]), total{};
    for_each_vector(n, [&](size_t t, size_t count) {
        const vfloat v = count == VEC_FLOATS ? load(p + t) : broadcast(*std::max_element(p + t, p + n));
        highest = v > highest ? v : highest;
    });
    const float top = max(highest);
    for_each_vector(n, [&](size_t t, size_t count) {
        store_some(p + t, exp((load_some(p + t, count) - top) * scale), count);
        total += load_some(p + t, count);
    });
    return sum(total);
}

// out (HS) = factor * the sum over t of p[t] (n) values[t] (n, HS).
template <class floatX>
inline void weighted_sum(floatX* out, const float* p, const floatX* values, int64_t n, int64_t HS, float factor) {
    constexpr int64_t VECTORS = 4, WIDTH = VECTORS * VEC_FLOATS, LINE = CACHE_LINE / sizeof(floatX);
    // The values are one stream, with more reads under way than a first-level cache takes: they are
    // asked for to be in the second-level cache.
    constexpr int64_t AHEAD = 4096 / sizeof(floatX);
    constexpr int SECOND_LEVEL = 2;  // for __builtin_prefetch
    int64_t c = 0;
    for (; c + WIDTH <= HS; c += WIDTH) {
        vfloat mix[VECTORS] = {};
        for (int64_t t = 0; t < n; t++) {
            const floatX* row = values + t * HS + c;
            const int64_t ahead = std::min<int64_t>(AHEAD, (n - 1 - t) * HS);
            for (int64_t i = 0; i < WIDTH; i += LINE)
                __builtin_prefetch(row + ahead + i, /*for a write*/ 0, SECOND_LEVEL);
            for (int64_t i = 0; i < VECTORS; i++) mix[i] += load(row + i * VEC_FLOATS) * p[t];
        }
        for (int64_t i = 0; i < VECTORS; i++) store(out + c + i * VEC_FLOATS, mix[i] * factor);
    }
    for_each_vector(HS - c, [&](size_t i, size_t count) {
        vfloat mix{};
        for (int64_t t = 0; t < n; t++) mix += load_some(values + t * HS + c + i, count) * p[t];
        store_some(out + c + i, mix * factor, count);
    });
}

// Attention of one new position, `last`: its key and value are added to the cache, then its query
// meets all keys up to its own, or the last `window` of them. out (C) is written from qkv (3C).
// scores (NH, maxT) is scratch.
template <class floatX>
void attention_decode(floatX* out, floatX* keys, floatX* values, const floatX* qkv, float* scores, int64_t last,
                      int64_t maxT, int64_t C, int64_t NH, int64_t window = 0) {
    const int64_t HS = C / NH, n = window > 0 ? std::min(window, last + 1) : last + 1, first = last + 1 - n;
    const float scale = 1.0f / std::sqrt((float)HS);
    const floatX* const no_bias = nullptr;
    parallel_for(NH, [&](int64_t h) {
        floatX *k = keys + h * maxT * HS, *v = values + h * maxT * HS;
        const floatX* q = qkv + h * HS;
        float* p = scores + h * maxT;
        fill_cache_head(k, v, q, last, 1, C, HS);
        dot_product_columns<1>(p, q, k + first * HS, no_bias, 1, HS, n, 0, n);
        const float factor = 1.0f / exponentials(p, n, scale);
        weighted_sum(out + h * HS, p, v + first * HS, n, HS, factor);
    });
}
