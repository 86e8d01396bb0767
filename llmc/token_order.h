// The backward pass of the embedding adds up the gradients of all positions that hold the same
// token. Sorted by token, each of these sums is one piece of work with a fixed order, in fp32
// throughout, and is rounded once.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

// Where the positions of each distinct token are: order (n) lists positions by token, begin
// (segments + 1) where each token's start.
struct TokenOrder {
    int64_t segments;
};
// Fills order (n) and begin (n + 1) on the host from tokens (n > 0), by counting.
inline TokenOrder sort_by_token(int* order, int* begin, const int* tokens, int64_t n) {
    const int64_t V = *std::max_element(tokens, tokens + n) + 1;
    std::vector<int> count(V + 1);
    for (int64_t i = 0; i < n; i++) count[tokens[i] + 1]++;
    int64_t segments = 0;
    for (int64_t v = 0; v < V; v++) {
        if (count[v + 1] > 0) begin[segments++] = count[v];
        count[v + 1] += count[v];
    }
    begin[segments] = (int)n;
    for (int64_t i = 0; i < n; i++) order[count[tokens[i]]++] = (int)i;
    return {segments};
}
