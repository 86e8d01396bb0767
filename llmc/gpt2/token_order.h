// Positions sorted by token. The backward pass of the embedding sums the gradients of all positions
// that hold the same token. With the positions sorted, each of these sums is computed by one thread
// (or block) in a fixed order, in fp32, and is rounded once.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

// The segments that sorted positions are cut into, each of one token.
struct TokenOrder {
    int64_t segments;   // one per distinct token, or several
    int64_t split = 0;  // the first so many are of tokens that have several
};
// Sorts the positions of tokens (n > 0) by counting. order (n) becomes the positions, those of one
// token next to each other and ascending; segment s is order[begin[s]] to order[begin[s + 1] - 1].
// begin has room for n + 1. A token with more than `most` positions has several segments. Such
// tokens come first, then the others, both ascending.
inline TokenOrder sort_by_token(int* order, int* begin, const int* tokens, int64_t n, int64_t most) {
    const int64_t V = *std::max_element(tokens, tokens + n) + 1;
    std::vector<int> count(V), next(V);
    for (int64_t i = 0; i < n; i++) count[tokens[i]]++;
    TokenOrder result{0};
    int64_t at = 0;
    const auto place = [&](bool split) {
        for (int64_t v = 0; v < V; v++) {
            if (count[v] == 0 || (count[v] > most) != split) continue;
            next[v] = (int)at;
            for (int64_t i = 0; i < count[v]; i += most) begin[result.segments++] = (int)(at + i);
            at += count[v];
        }
    };
    place(true);
    result.split = result.segments;
    place(false);
    begin[result.segments] = (int)n;
    for (int64_t i = 0; i < n; i++) order[next[tokens[i]]++] = (int)i;
    return result;
}
// Sorts likewise, with one segment per distinct token.
inline TokenOrder sort_by_token(int* order, int* begin, const int* tokens, int64_t n) {
    return sort_by_token(order, begin, tokens, n, n);
}
