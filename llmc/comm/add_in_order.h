// Sums over processes, added in the order of ranks: the same bits however they have travelled.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>
#include "llmc/base/hot_loop.h"

// out (n) = a + b; out may be one of them.
HOT_LOOP inline void add_two(float* out, const float* a, const float* b, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}
// out (n) = the sum of the n numbers at each of `sources`, two or more, added in their order. out
// may be one of them.
inline void add_in_order(float* out, const std::vector<const float*>& sources, int64_t n) {
    constexpr int64_t BLOCK = 1024;
    float partial_sums[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t count = std::min(BLOCK, n - i);
        const float* sum = sources[0] + i;
        for (size_t s = 1; s < sources.size(); s++) {
            float* const to = s + 1 == sources.size() ? out + i : partial_sums;
            add_two(to, sum, sources[s] + i, count);
            sum = to;
        }
    }
}
