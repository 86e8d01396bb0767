// The backward pass of the embedding adds up the gradients of all positions that hold the same token. Sorted by token, each of these sums is one
// piece of work with a fixed order, in fp32 throughout, and is rounded once.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>

// Where the positions of each distinct token are: order (n) lists positions by token, begin (segments + 1) where each token's start.
struct TokenOrder { int64_t segments; };
// Fills order (n) and begin (n + 1) on the host from tokens (n).
inline TokenOrder sort_by_token(int* order, int* begin, const int* tokens, int64_t n) {
    std::iota(order, order + n, 0);
    std::sort(order, order + n, [&](int a, int b) { return tokens[a] != tokens[b] ? tokens[a] < tokens[b] : a < b; });
    int64_t segments = 0;
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || tokens[order[i]] != tokens[order[i - 1]]) begin[segments++] = (int)i;
    begin[segments] = (int)n;
    return {segments};
}
