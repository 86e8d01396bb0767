// The embedding. What enters the residual stream at position t is the row of its token plus the row
// of its position:
//
//     out[b,t] = wte[inp[b,t]] + wpe[first + t]
//     Dwte[v]  = sum of Dout[b,t] over all b, t where inp[b,t] = v
//     Dwpe[t]  = sum of Dout[b,t] over all b
//
// Source: Radford et al. 2019. Memory-bound: forward moves 3 values per element; backward reads
// dout twice, and reads and writes a row of dwte for each distinct token. In the backward pass one
// thread computes the whole sum of a token (or of a position), in the order of the rows and in
// fp32. So the bits are the same in every run, and each sum is rounded once.
#pragma once
#include <limits>
#include <vector>
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"
#include "llmc/gpt2/token_order.h"

// out (B,T,C) is written, from inp (B,T) token ids, wte (Vp,C), wpe (maxT,C). Column t of inp is
// position first + t of its sequence.
template <class floatX>
void encoder_forward(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int64_t B, int64_t T, int64_t C,
                     int64_t first = 0) {
    const Range range(work::embedding(B * T, C, sizeof(floatX)));
    parallel_ranges(B * T, 16, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const floatX *token = wte + inp[row] * C, *position = wpe + (first + row % T) * C;
            for_each_vector(C, [&](size_t i, size_t count) {
                store_some(out + row * C + i, load_some(token + i, count) + load_some(position + i, count), count);
            });
        }
    });
}

// out (C) = a + b. All three may be the same.
template <class Out, class A, class B>
VEC_INLINE void add_row(Out* out, const A* a, const B* b, int64_t C) {
    for_each_vector(C, [&](size_t c, size_t count) {
        store_some(out + c, load_some(a + c, count) + load_some(b + c, count), count);
    });
}

// The positions of tokens (n), sorted by token: those of token[i], the i-th that occurs, are
// order[begin[i]] to order[begin[i + 1] - 1].
struct SortedTokens {
    std::vector<int> order, begin, token;
    SortedTokens(const int* tokens, int64_t n) : order(n), begin(n + 1) {
        token.resize(sort_by_token(order.data(), begin.data(), tokens, n).segments);
        for (size_t i = 0; i < token.size(); i++) token[i] = tokens[order[begin[i]]];
    }
};
// To the rows of dwte (Vp,C) the gradients of their tokens' positions are added, in the rows of
// tokens first to end - 1, and in `count` columns. `part` is the first of these elements; dout
// (B,T,C) begins at the same column.
template <class floatX, class floatG>
void add_to_tokens(floatG* part, const SortedTokens& sorted, int64_t first, int64_t end, const floatX* dout, int64_t C,
                   int64_t count) {
    const std::vector<int>&order = sorted.order, &begin = sorted.begin, &tokens = sorted.token;
    const int64_t at = std::lower_bound(tokens.begin(), tokens.end(), first) - tokens.begin(),
                  n = std::lower_bound(tokens.begin(), tokens.end(), end) - tokens.begin() - at;
    parallel_ranges(n, 8, [&](int64_t from, int64_t to) {
        for (int64_t i = at + from; i < at + to; i++) {
            floatG* token = part + (tokens[i] - first) * C;
            if (begin[i + 1] - begin[i] == 1) {
                add_row(token, token, dout + order[begin[i]] * C, count);
                continue;
            }
            float* total = thread_scratch(count);
            add_row(total, token, dout + order[begin[i]] * C, count);
            for (int64_t k = begin[i] + 1; k + 1 < begin[i + 1]; k++) add_row(total, total, dout + order[k] * C, count);
            add_row(token, total, dout + order[begin[i + 1] - 1] * C, count);
        }
    });
}

// dwte (Vp,C) is added to. dwpe (maxT,C) is written, with zeros from T on, or added to if add. Each
// may be null if it is not wanted. dout (B,T,C), inp (B,T).
template <class floatX, class floatG>
void encoder_backward(floatG* dwte, floatG* dwpe, const floatX* dout, const int* inp, int64_t B, int64_t T, int64_t C,
                      int64_t maxT, bool add) {
    const Range range(work::embedding_backward(B * T, C, maxT, sizeof(floatX), sizeof(floatG)));
    if (dwte) add_to_tokens(dwte, SortedTokens(inp, B * T), 0, std::numeric_limits<int>::max(), dout, C, C);
    parallel_ranges(dwpe ? maxT : 0, 16, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++)
            for_each_vector(C, [&](size_t i, size_t count) {
                vfloat total{};
                for (int64_t b = 0; b < B && t < T; b++) total += load_some(dout + (b * T + t) * C + i, count);
                store_some(dwpe + t * C + i, add ? load_some(dwpe + t * C + i, count) + total : total, count);
            });
    });
}
