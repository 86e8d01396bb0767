// Positions sorted by token. The backward pass of the embedding sums the gradients of all positions
// that hold the same token. With the positions sorted, each of these sums is computed by one thread
// (or block) in a fixed order, in fp32, and is rounded once.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

struct TokenOrder {
    int64_t segments;  // one per distinct token
};
// Sorts the positions of tokens (n > 0) by counting. order (n) becomes the positions, those of one
// token next to each other and ascending; segment s, of the s-th smallest token, is
// order[begin[s]] to order[begin[s + 1] - 1]. begin has room for n + 1.
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
