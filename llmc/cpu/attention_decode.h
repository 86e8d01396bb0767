// Attention in generation, one position at a time; formulas: attention.h. Keys and values of the
// positions before it are kept in a cache, for each layer keys (NKV, maxT, HS) and values (NKV,
// maxT, HS); NKV is NH, or fewer where heads of queries share them (gpt2/heads.h), and the cache is
// so many times smaller. Each is read once per position, with two FLOPs per value and head of
// queries: so memory limits it. A head's keys are contiguous, and so are its values. The scores are
// the product of its query with the matrix of its keys (dot_products.h).
#pragma once
#include <cmath>
#include "llmc/cpu/attention_mask.h"
#include "llmc/cpu/dot_products.h"

// fill_cache() for head h of keys and values: n of its keys (maxT, HS) and values (maxT, HS), from
// position `first` on, are written from n rows of qkv.
template <class floatX>
inline void fill_cache_head(floatX* keys, floatX* values, const floatX* qkv, int64_t h, int64_t first, int64_t n,
                            const Heads& heads) {
    const int64_t HS = heads.HS;
    for (int64_t t = 0; t < n; t++) {
        const floatX* const k = qkv + t * heads.qkv_row() + (heads.NH + h) * HS;
        memcpy((void*)(keys + (first + t) * HS), k, HS * sizeof(floatX));
        memcpy((void*)(values + (first + t) * HS), k + heads.NKV * HS, HS * sizeof(floatX));
    }
}
// Writes keys and values of the first T positions to the cache of a layer, from qkv (T, C + 2 NKV
// HS). Without NKV it is NH.
template <class floatX>
void fill_cache(floatX* keys, floatX* values, const floatX* qkv, int64_t T, int64_t maxT, int64_t C, int64_t NH,
                int64_t NKV = 0) {
    const Heads heads = heads_of(C, NH, NKV);
    parallel_for(heads.NKV, [&](int64_t h) {
        fill_cache_head(keys + h * maxT * heads.HS, values + h * maxT * heads.HS, qkv, h, 0, T, heads);
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
    int64_t c = 0;
    for (; c + WIDTH <= HS; c += WIDTH) {
        vfloat mix[VECTORS] = {};
        for (int64_t t = 0; t < n; t++) {
            const floatX* row = values + t * HS + c;
            const int64_t ahead = std::min<int64_t>(AHEAD, (n - 1 - t) * HS);
            for (int64_t i = 0; i < WIDTH; i += LINE) fetch_to_second_level(row + ahead + i);
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
// meets all keys up to its own, or the last `window` of them. out (C) is written from qkv (C + 2
// NKV HS). scores (NH, maxT) is scratch. The heads of queries that share keys are one thread's.
template <class floatX>
void attention_decode(floatX* out, floatX* keys, floatX* values, const floatX* qkv, float* scores, int64_t last,
                      int64_t maxT, int64_t C, int64_t NH, int64_t window = 0, int64_t NKV = 0) {
    const Heads heads = heads_of(C, NH, NKV);
    const int64_t HS = heads.HS, n = window > 0 ? std::min(window, last + 1) : last + 1, first = last + 1 - n;
    const float scale = 1.0f / std::sqrt((float)HS);
    const floatX* const no_bias = nullptr;
    parallel_for(heads.NKV, [&](int64_t kv) {
        floatX *k = keys + kv * maxT * HS, *v = values + kv * maxT * HS;
        fill_cache_head(k, v, qkv, kv, last, 1, heads);
        for (int64_t h = kv * heads.group(); h < (kv + 1) * heads.group(); h++) {
            float* p = scores + h * maxT;
            dot_product_columns<1>(p, qkv + h * HS, k + first * HS, no_bias, 1, HS, n, 0, n);
            const float factor = 1.0f / exponentials(p, n, scale);
            weighted_sum(out + h * HS, p, v + first * HS, n, HS, factor);
        }
    });
}
