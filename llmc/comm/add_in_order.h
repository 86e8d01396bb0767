// Sums over processes, added in the order of ranks: the same bits however they have travelled.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

// out (n) = the sum of the n numbers at each of `sources`, added in their order. out may be one of
// them.
inline void add_in_order(float* out, const std::vector<const float*>& sources, int64_t n) {
    constexpr int64_t BLOCK = 1024;
    float sums[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t count = std::min(BLOCK, n - i);
        memcpy(sums, sources[0] + i, count * sizeof(float));
        for (size_t s = 1; s < sources.size(); s++)
            for (int64_t j = 0; j < count; j++) sums[j] += sources[s][i + j];
        memcpy(out + i, sums, count * sizeof(float));
    }
}
