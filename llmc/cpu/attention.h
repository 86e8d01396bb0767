// Causal self-attention as flash attention (Dao et al. 2022, arXiv:2205.14135; Dao 2023,
// arXiv:2307.08691). For each head, with query, key and value rows q_i, k_j, v_j of HS channels and
// scale = 1/sqrt(HS):
//
//     s_ij  = scale q_i.k_j
//     p_ij  = e^(s_ij) / sum_{j' <= i} e^(s_ij')
//     out_i = sum_{j <= i} p_ij v_j
//
// The T x T matrix p is never stored. Blocks of 64 queries meet blocks of 64 keys:
//
//               keys   0..63  64..127  128..191
//     queries   0..63    \                            \  on the diagonal: a query sees the keys up to itself
//             64..127    #       \                    #  every query sees every key
//            128..191    #       #        \              the rest is not computed
//
// For each query row two numbers are kept: m, the maximum of its scores so far, and l, the sum of
// e^(s - m). When a block raises m, the sums so far are scaled by e^(m_old - m_new). At the end out
// is divided by l. The backward pass needs only lse = m + log l to recompute p:
//
//     p_ij = e^(s_ij - lse_i)
//
// Backward, with dO_i = Dout_i and D_i = sum_j p_ij dp_ij = dO_i.out_i:
//
//     dv_j  = sum_i p_ij dO_i
//     dp_ij = dO_i.v_j
//     ds_ij = p_ij (dp_ij - D_i) scale
//     dq_i  = sum_j ds_ij k_j
//     dk_j  = sum_i ds_ij q_i
//
// Where a sequence holds several documents that must not see each other (documents.h), j begins at
// start(i), the first position of query i's document. A document then is what a sequence is above:
// its blocks are counted from its first position, and the code beneath never reads another's rows.
// With a window of W positions (window.h) j begins at i-W+1 at the earliest, and blocks of keys
// that no query of a block sees are left out.
//
// Forward takes two products of 2 T^2/2 HS FLOPs per head, backward five. Memory: q, k, v and out
// are read or written once; scratch per thread is O(T HS). Queries, keys and values are read from
// the packed qkv (B,T,3C) that the linear layer wrote. attention_bf16.h has the same in bf16.
#pragma once
#include <cmath>
#include <limits>
#include "llmc/cpu/attention_mask.h"
#include "llmc/cpu/gemm.h"

// The register tile, as in gemm.h.
constexpr int ATT_NV = VEC_REGISTERS == 32 ? 4 : 2, ATT_NR = ATT_NV * VEC_FLOATS, ATT_MR = VEC_REGISTERS == 32 ? 6 : 4;
static_assert(ATT_BLOCK % ATT_NR == 0, "a block of keys is whole panels");

// Scratch elements per thread for sequences of T and heads of HS, enough for both passes.
inline size_t attention_scratch_elems(int64_t T, int64_t HS) {
    const int64_t Tp = round_up(T, ATT_BLOCK), HSp = round_up(HS, ATT_NR);
    return 2 * HS * Tp + 5 * Tp * HSp + 2 * ATT_BLOCK * ATT_BLOCK + ATT_BLOCK * (HSp + VEC_FLOATS + 1);
}

// Which part of the left operand of a product is not zero. On the diagonal a query sees the keys up
// to itself, so the rows of p and ds end on the diagonal (LOWER), and those of their transposes
// begin there (UPPER). The products leave out the zeros.
enum Triangle { WHOLE, LOWER, UPPER };

// Computes MR rows of block_product(), from row m on.
template <int MR>
inline void block_rows(float* C, int64_t ldc, const float* a, int64_t row_stride, int64_t col_stride, const float* B,
                       int64_t panel_rows, int64_t m, int64_t panels, int64_t K, bool add) {
    const float* rows[MR];
    for (int i = 0; i < MR; i++) rows[i] = a + (m + i) * row_stride;
    for (int64_t p = 0; p < panels; p++) {
        vfloat acc[MR][ATT_NV] = {};
        multiply_tile<MR, ATT_NV>(acc, rows, col_stride, B + p * panel_rows * ATT_NR, ATT_NR, K);
        for (int i = 0; i < MR; i++)
            for (int j = 0; j < ATT_NV; j++) {
                float* c = C + (m + i) * ldc + p * ATT_NR + j * VEC_FLOATS;
                store(c, add ? load(c) + acc[i][j] : acc[i][j]);
            }
    }
}

// The product of two blocks: C (M, panels * ATT_NR), rows ldc apart, = A B, or += if add. A (M, K)
// is whole or a triangle; its element (i, k) is a[i * row_stride + k * col_stride]. B is K rows,
// from `first` on, of panels that have `panel_rows` rows.
inline void block_product(float* C, int64_t ldc, const float* a, int64_t row_stride, int64_t col_stride, const float* B,
                          int64_t panel_rows, int64_t first, int64_t M, int64_t panels, int64_t K, bool add,
                          Triangle part = WHOLE) {
    for (int64_t m = 0; m < M;) {
        const int64_t rows = M - m >= ATT_MR ? ATT_MR
                             : M - m >= 4    ? 4
                                             : 1,
                      skipped = part == UPPER ? std::min(m, K) : 0, end = part == LOWER ? std::min(K, m + rows) : K;
        const auto product = rows == ATT_MR ? block_rows<ATT_MR> : rows == 4 ? block_rows<4> : block_rows<1>;
        product(C, ldc, a + skipped * col_stride, row_stride, col_stride, B + (first + skipped) * ATT_NR, panel_rows, m,
                panels, end - skipped, add);
        m += rows;
    }
}

// m of a query that has met no key yet: as e^(-infinity - m) is 0, so is p of keys that it does not
// see.
constexpr float NO_SCORE = std::numeric_limits<float>::lowest();

// The softmax of one block: p = e^(scale score - m), or 0 where a query does not see the key. It
// updates m (queries), the largest scaled score of each row so far; l (queries, VEC_FLOATS),
// partial sums of p; and o (queries, o_cols), the sums of values so far, which are scaled to the
// new m. The maxima of all rows are computed first and the exponentials then, so that no row waits
// for its own maximum. p may be scores.
template <Mask MASK, class floatP>
inline void softmax_block(floatP* p, const float* scores, float* m, float* l, float* o, int64_t o_cols, int64_t queries,
                          float scale, BlockPlace at) {
    constexpr int PARTS = ATT_BLOCK / VEC_FLOATS;
    const vfloat never = broadcast(-std::numeric_limits<float>::infinity());
    auto scaled = [&](int64_t i, int part) {
        const vfloat v = load(scores + i * ATT_BLOCK + part * VEC_FLOATS) * scale;
        return MASK == NONE ? v : seen<MASK>(i, part * VEC_FLOATS, at) ? v : never;
    };
    float top[ATT_BLOCK];
    for (int64_t i = 0; i < queries; i++) {
        vfloat highest = broadcast(m[i]);
#pragma GCC unroll 16
        for (int part = 0; part < PARTS; part++) {
            const vfloat v = scaled(i, part);
            highest = v > highest ? v : highest;
        }
        top[i] = max(highest);
    }
    for (int64_t i = 0; i < queries; i++) {
        vfloat total{};
#pragma GCC unroll 16
        for (int part = 0; part < PARTS; part++) {
            const vfloat e = exp(scaled(i, part) - top[i]);
            store(p + i * ATT_BLOCK + part * VEC_FLOATS, e);
            total += e;
        }
        const float shrink = top[i] == m[i] ? 1.0f : std::exp(m[i] - top[i]);
        store(l + i * VEC_FLOATS, load(l + i * VEC_FLOATS) * shrink + total);
        if (shrink != 1 && m[i] > NO_SCORE)
            for (int64_t c = 0; c < o_cols; c += VEC_FLOATS)
                store(o + i * o_cols + c, load(o + i * o_cols + c) * shrink);
        m[i] = top[i];
    }
}

template <class floatP>
inline auto softmax_of(Mask mask) {
    return mask == NONE       ? softmax_block<NONE, floatP>
           : mask == DIAGONAL ? softmax_block<DIAGONAL, floatP>
                              : softmax_block<BAND, floatP>;
}

// The forward pass of one head of a document of T positions: from its rows of qkv to those of out
// and to its part of lse. A query sees `window` keys at most.
inline void attention_forward_head(float* out, float* lse, const float* qkv, const DocumentHead& d, const Heads& heads,
                                   int64_t window) {
    const int64_t T = d.length, HS = heads.HS, row = heads.qkv_row(), out_row = heads.out_row();
    const int64_t Tp = round_up(T, ATT_BLOCK), HSp = round_up(HS, ATT_NR);
    const float scale = 1.0f / std::sqrt((float)HS);
    const MatrixView<float> q{qkv + d.q, row, 1}, k{qkv + d.k, row, 1}, v{qkv + d.v, row, 1};
    float* k_columns = thread_scratch(attention_scratch_elems(T, HS));  // panels of HS rows, a column for each key
    float* v_rows = k_columns + HS * Tp;                                // panels of T rows, a column for each channel
    float* s = v_rows + T * HSp;
    float* o = s + ATT_BLOCK * ATT_BLOCK;
    float* m = o + ATT_BLOCK * HSp;
    float* l = m + ATT_BLOCK;
    pack_panels<ATT_NR>(k_columns, k.transposed(), 0, HS, 0, T);
    pack_panels<ATT_NR>(v_rows, v, 0, T, 0, HS);
    for (int64_t q0 = 0; q0 < T; q0 += ATT_BLOCK) {
        const int64_t queries = std::min(ATT_BLOCK, T - q0);
        memset(o, 0, queries * HSp * sizeof(float));
        memset(l, 0, queries * VEC_FLOATS * sizeof(float));
        for (int64_t i = 0; i < queries; i++) m[i] = NO_SCORE;
        for (int64_t k0 = first_key_block(q0, window); k0 < q0 + queries; k0 += ATT_BLOCK) {
            const int64_t keys = std::min(ATT_BLOCK, T - k0);
            const BlockPlace at{q0, k0, queries, window};
            block_product(s, ATT_BLOCK, q.at(q0, 0), q.row_stride, 1, k_columns + k0 / ATT_NR * HS * ATT_NR, HS, 0,
                          queries, ceil_div(keys, ATT_NR), HS, false);
            softmax_of<float>(at.mask())(s, s, m, l, o, HSp, queries, scale, at);
            block_product(o, HSp, s, ATT_BLOCK, 1, v_rows, T, k0, queries, HSp / ATT_NR, keys, true,
                          k0 == q0 ? LOWER : WHOLE);
        }
        for (int64_t i = 0; i < queries; i++) {
            const float total = sum(load(l + i * VEC_FLOATS)), inverse = 1.0f / total;
            lse[d.lse + q0 + i] = m[i] + std::log(total);
            for_each_vector(HS, [&](size_t c, size_t count) {
                store_some(out + d.out + (q0 + i) * out_row + c, load_some(o + i * HSp + c, count) * inverse, count);
            });
        }
    }
}

// out (B,T,C) and lse (B,NH,T) are written from qkv (B,T,3C). A row of qkv holds queries, then
// keys, then values, each NH heads of C/NH channels; with NKV, keys and values are so many heads,
// and qkv is (B,T,C + 2 NKV C/NH). starts: see for_each_document_head. A query sees the last
// `window` positions alone, its own the last; 0: all before it.
template <class floatX>
void attention_forward(floatX* out, float* lse, const floatX* qkv, int64_t B, int64_t T, int64_t C, int64_t NH,
                       const int* starts = nullptr, int64_t window = 0, int64_t NKV = 0) {
    const Heads heads = heads_of(C, NH, NKV);
    const Range range(work::attention(B * T, twice_seen(T, window), C, sizeof(floatX)));
    for_each_document_head(starts, B, T, heads, false, [&](const DocumentHead& d) {
        attention_forward_head(out, lse, qkv, d, heads, window > 0 ? window : T);
    });
}

// The softmax of one block, backward: the scores q.k in p become probabilities, and dp in ds
// becomes the gradient of q.k. lse and delta belong to the queries.
template <Mask MASK>
inline void softmax_block_backward(float* p, float* ds, const float* lse, const float* delta, int64_t queries,
                                   float scale, BlockPlace at) {
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < ATT_BLOCK; j += VEC_FLOATS) {
            float *p_ij = p + i * ATT_BLOCK + j, *ds_ij = ds + i * ATT_BLOCK + j;
            vfloat prob = exp(load(p_ij) * scale - lse[i]), grad = prob * (load(ds_ij) - delta[i]) * scale;
            if (MASK != NONE) {
                const vint sees = seen<MASK>(i, j, at);
                prob = sees ? prob : vfloat{}, grad = sees ? grad : vfloat{};
            }
            store(p_ij, prob);
            store(ds_ij, grad);
        }
}

inline auto softmax_backward_of(Mask mask) {
    return mask == NONE       ? softmax_block_backward<NONE>
           : mask == DIAGONAL ? softmax_block_backward<DIAGONAL>
                              : softmax_block_backward<BAND>;
}

// The backward pass of one head of a document of T positions: from its rows of dout, out and qkv,
// and its part of lse, to its rows of dqkv. The heads of a group add to the same dk and dv, which
// stay in scratch memory from one to the next.
inline void attention_backward_head(float* dqkv, const float* dout, const float* out, const float* lse,
                                    const float* qkv, const DocumentHead& d, const Heads& heads, int64_t window) {
    const int64_t T = d.length, HS = heads.HS, row = heads.qkv_row(), out_row = heads.out_row();
    const int64_t Tp = round_up(T, ATT_BLOCK), HSp = round_up(HS, ATT_NR);
    const float scale = 1.0f / std::sqrt((float)HS);
    const MatrixView<float> q{qkv + d.q, row, 1}, k{qkv + d.k, row, 1}, v{qkv + d.v, row, 1};
    const MatrixView<float> o{out + d.out, out_row, 1}, d_o{dout + d.out, out_row, 1};
    // panels of HS rows, a column for each key, as v_columns
    float* k_columns = thread_scratch(attention_scratch_elems(T, HS));
    float* v_columns = k_columns + HS * Tp;
    float* k_rows = v_columns + HS * Tp;  // panels of T rows, a column for each channel, as q_rows and do_rows
    float* q_rows = k_rows + T * HSp;
    float* do_rows = q_rows + T * HSp;
    float* dk = do_rows + T * HSp;  // sums over all queries, as dv
    float* dv = dk + T * HSp;
    float* p = dv + T * HSp;  // of one block, as ds, dq and delta
    float* ds = p + ATT_BLOCK * ATT_BLOCK;
    float* dq = ds + ATT_BLOCK * ATT_BLOCK;
    float* delta = dq + ATT_BLOCK * HSp;
    pack_panels<ATT_NR>(k_columns, k.transposed(), 0, HS, 0, T);
    pack_panels<ATT_NR>(v_columns, v.transposed(), 0, HS, 0, T);
    pack_panels<ATT_NR>(k_rows, k, 0, T, 0, HS);
    pack_panels<ATT_NR>(q_rows, q, 0, T, 0, HS);
    pack_panels<ATT_NR>(do_rows, d_o, 0, T, 0, HS);
    if (d.begins) memset(dk, 0, 2 * T * HSp * sizeof(float));
    auto store_rows = [&](float* to, int64_t rows, const float* from) {
        for (int64_t i = 0; i < rows; i++)
            for_each_vector(HS, [&](size_t c, size_t count) {
                store_some(to + i * row + c, load_some(from + i * HSp + c, count), count);
            });
    };
    for (int64_t q0 = 0; q0 < T; q0 += ATT_BLOCK) {
        const int64_t queries = std::min(ATT_BLOCK, T - q0);
        for (int64_t i = 0; i < queries; i++) {
            vfloat total{};
            for_each_vector(HS, [&](size_t c, size_t count) {
                total += load_some(o.at(q0 + i, c), count) * load_some(d_o.at(q0 + i, c), count);
            });
            delta[i] = sum(total);
        }
        memset(dq, 0, queries * HSp * sizeof(float));
        for (int64_t k0 = first_key_block(q0, window); k0 < q0 + queries; k0 += ATT_BLOCK) {
            const int64_t keys = std::min(ATT_BLOCK, T - k0), key_panels = ceil_div(keys, ATT_NR);
            const BlockPlace at{q0, k0, queries, window};
            block_product(p, ATT_BLOCK, q.at(q0, 0), q.row_stride, 1, k_columns + k0 / ATT_NR * HS * ATT_NR, HS, 0,
                          queries, key_panels, HS, false);
            block_product(ds, ATT_BLOCK, d_o.at(q0, 0), d_o.row_stride, 1, v_columns + k0 / ATT_NR * HS * ATT_NR, HS, 0,
                          queries, key_panels, HS, false);
            softmax_backward_of(at.mask())(p, ds, lse + d.lse + q0, delta, queries, scale, at);
            block_product(dv + k0 * HSp, HSp, p, 1, ATT_BLOCK, do_rows, T, q0, keys, HSp / ATT_NR, queries, true,
                          k0 == q0 ? UPPER : WHOLE);
            block_product(dk + k0 * HSp, HSp, ds, 1, ATT_BLOCK, q_rows, T, q0, keys, HSp / ATT_NR, queries, true,
                          k0 == q0 ? UPPER : WHOLE);
            block_product(dq, HSp, ds, ATT_BLOCK, 1, k_rows, T, k0, queries, HSp / ATT_NR, keys, true,
                          k0 == q0 ? LOWER : WHOLE);
        }
        store_rows(dqkv + d.q + q0 * row, queries, dq);
    }
    if (d.ends) store_rows(dqkv + d.k, T, dk), store_rows(dqkv + d.v, T, dv);
}

// dqkv, as qkv, is written from dout (B,T,C), and from out, lse and qkv of the forward pass.
template <class floatX>
void attention_backward(floatX* dqkv, const floatX* dout, const floatX* out, const float* lse, const floatX* qkv,
                        int64_t B, int64_t T, int64_t C, int64_t NH, const int* starts = nullptr, int64_t window = 0,
                        int64_t NKV = 0) {
    const Heads heads = heads_of(C, NH, NKV);
    const Range range(work::attention_backward(B * T, twice_seen(T, window), C, sizeof(floatX)));
    for_each_document_head(starts, B, T, heads, true, [&](const DocumentHead& d) {
        attention_backward_head(dqkv, dout, out, lse, qkv, d, heads, window > 0 ? window : T);
    });
}
