// Sums over processes, added in the order of ranks: the same bits however they have travelled.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>
#include "llmc/base/hot_loop.h"

HOT_LOOP inline void add_to(float* sums, const float* more, int64_t n) {
    for (int64_t i = 0; i < n; i++) sums[i] += more[i];
}
// out (n) = the sum of the n numbers at each of `sources`, added in their order. out may be one of
// them.
inline void add_in_order(float* out, const std::vector<const float*>& sources, int64_t n) {
    constexpr int64_t BLOCK = 1024;
    float sums[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t count = std::min(BLOCK, n - i);
        memcpy(sums, sources[0] + i, count * sizeof(float));
        for (size_t s = 1; s < sources.size(); s++) add_to(sums, sources[s] + i, count);
        memcpy(out + i, sums, count * sizeof(float));
    }
}
