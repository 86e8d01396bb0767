// Flash attention, as in attention.h, with its products on the CPU's matrix unit. The operands are
// bf16; sums and the softmax are fp32.
//
// A unit wants its left operand contiguous along k and its right operand in tiles (pack.h). So the
// backward pass works on the transposes:
//
//     S^T = K Q^T,   dP^T = V dO^T,   dV += P^T dO,   dK += dS^T Q,   dQ^T += K^T dS^T
//
// P^T and dS^T have a row for each key. As the softmax writes them, row by row, they are left
// operands. dS^T is also the right operand of the last product: two of its rows interleaved are one
// row of a tile. Scratch per thread is O(T HS).
//
// On the diagonal, the parts of a block that the causal mask makes zero are left out, in parts of
// 32 x 32:
//
//     LOWER: P      # .         UPPER: P^T, dS^T      # #
//                   # #                               . #
#pragma once
#include "llmc/cpu/attention.h"
#include "llmc/cpu/gemm_bf16.h"

constexpr int64_t ATT_TILES = ATT_BLOCK / TILE_K;  // of a block, along k

// Hands out parts of a thread's scratch memory in order, each aligned to 64 bytes.
struct Carver {
    char* at;
    template <class T>
    T* take(int64_t elems) {
        T* p = (T*)at;
        at += round_up(elems * (int64_t)sizeof(T), 64);
        return p;
    }
};

// The sizes of a head's operands, rounded up to whole blocks or tiles.
struct HeadSizes {
    // Tp is T in whole blocks; HSk and HSn are HS in whole tiles, where the channels are k and
    // where they are columns.
    int64_t T, HS, Tp, HSk, HSn;
    HeadSizes(int64_t T, int64_t HS)
        : T(T), HS(HS), Tp(round_up(T, ATT_BLOCK)), HSk(round_up(HS, TILE_K)), HSn(round_up(HS, TILE_COLS)) {}
    int64_t channel_tiles() const { return HSk / TILE_K; }          // along k, where k is the channels
    int64_t position_tiles() const { return ceil_div(T, TILE_K); }  // along k, where k is the positions
};

inline size_t attention_bf16_scratch_elems(int64_t T, int64_t HS) {
    const HeadSizes s(T, HS);
    const int64_t half = 2 * s.Tp * s.HSk + 2 * s.Tp * s.HSn + s.HSn * transposed_stride(s.Tp) +
                         3 * ATT_BLOCK * ATT_BLOCK + 2 * ATT_BLOCK * s.HSk;
    const int64_t full =
        2 * s.Tp * s.HSn + 2 * ATT_BLOCK * ATT_BLOCK + 2 * ATT_BLOCK * s.HSn + ATT_BLOCK * (VEC_FLOATS + 2);
    return half / 2 + full + 20 * 16;  // of 4 bytes; up to 20 parts, each aligned to 16 elements
}

// Rows of a left operand: where they lie, or, if they do not fill strips and tiles, a copy that is
// filled with zeros.
struct LeftRows {
    const bf16* data;
    int64_t stride;
};
inline LeftRows left_rows(const bf16* rows, int64_t stride, int64_t n_rows, const HeadSizes& s, bf16* copy) {
    if (n_rows % TILE_ROWS == 0 && s.HS % TILE_K == 0) return {rows, stride};
    copy_padded(copy, s.HSk, round_up(n_rows, TILE_ROWS), s.HSk, rows, stride, n_rows, s.HS);
    return {copy, s.HSk};
}
// Computes a block of scores or of dp: C (strips of 16 rows, columns of 16) = A B, where k is the
// channels. Of a triangle, only the parts that are not left out (see above) are written.
inline void scores_product(float* C, LeftRows A, const bf16* B, int64_t strips, int64_t columns, int64_t k_tiles,
                           Triangle part) {
    if (part == WHOLE)
        return multiply_tiles(
            {C, ATT_BLOCK, A.data, A.stride, strips, B, k_tiles * TILE_ELEMS, columns, k_tiles, false});
    for (int64_t i = 0; i < strips; i += 2) {
        const int64_t first = part == UPPER ? i : 0, end = part == LOWER ? std::min(columns, i + 2) : columns;
        multiply_tiles({C + i * TILE_ROWS * ATT_BLOCK + first * TILE_COLS, ATT_BLOCK, A.data + i * TILE_ROWS * A.stride,
                        A.stride, std::min<int64_t>(2, strips - i), B + first * k_tiles * TILE_ELEMS,
                        k_tiles * TILE_ELEMS, end - first, k_tiles, false});
    }
}
// Adds a product over the positions of a block: C (strips of 16 rows, HSn) += A B, where k is the
// positions, A is (strips of 16 rows, 64), whole or a triangle, and B has `tiles` tiles along k.
inline void positions_product(float* C, const bf16* A, const bf16* B, int64_t strips, int64_t tiles, const HeadSizes& s,
                              Triangle part) {
    const int64_t b_stride = s.position_tiles() * TILE_ELEMS, columns = s.HSn / TILE_COLS;
    if (part == WHOLE) return multiply_tiles({C, s.HSn, A, ATT_BLOCK, strips, B, b_stride, columns, tiles, true});
    for (int64_t i = 0; i < strips; i += 2) {
        const int64_t first = part == UPPER ? i / 2 : 0, end = part == LOWER ? std::min(tiles, i / 2 + 1) : tiles;
        multiply_tiles({C + i * TILE_ROWS * s.HSn, s.HSn, A + i * TILE_ROWS * ATT_BLOCK + first * TILE_K, ATT_BLOCK,
                        std::min<int64_t>(2, strips - i), B + first * TILE_ELEMS, b_stride, columns, end - first,
                        true});
    }
}

// The forward pass of one head; arguments: attention.h.
inline void attention_forward_head(bf16* out, float* lse, const bf16* qkv, const DocumentHead& d, const Heads& heads,
                                   int64_t window) {
    const MatrixRegisters registers;
    const int64_t T = d.length, row = heads.qkv_row(), out_row = heads.out_row();
    const HeadSizes s(T, heads.HS);
    const float scale = 1.0f / std::sqrt((float)s.HS);
    const bf16 *q = qkv + d.q, *k = qkv + d.k, *v = qkv + d.v;
    Carver memory{(char*)thread_scratch(attention_bf16_scratch_elems(T, s.HS))};
    bf16* k_tiles = memory.take<bf16>(s.Tp * s.HSk);  // K^T: k is the channels, a column for each key
    bf16* v_tiles = memory.take<bf16>(s.Tp * s.HSn);  // V: k is the positions, a column for each channel
    bf16* p = memory.take<bf16>(ATT_BLOCK * ATT_BLOCK);
    bf16* q_copy = memory.take<bf16>(ATT_BLOCK * s.HSk);
    float* scores = memory.take<float>(ATT_BLOCK * ATT_BLOCK);
    float* o = memory.take<float>(ATT_BLOCK * s.HSn);
    float* m = memory.take<float>(ATT_BLOCK);
    float* l = memory.take<float>(ATT_BLOCK * VEC_FLOATS);
    pack_tiles(k_tiles, {k, 1, row}, 0, s.HS, 0, T);
    pack_tiles(v_tiles, {v, row, 1}, 0, T, 0, s.HS);
    for (int64_t q0 = 0; q0 < T; q0 += ATT_BLOCK) {
        const int64_t queries = std::min(ATT_BLOCK, T - q0), strips = ceil_div(queries, TILE_ROWS);
        const LeftRows q_rows = left_rows(q + q0 * row, row, queries, s, q_copy);
        memset(o, 0, strips * TILE_ROWS * s.HSn * sizeof(float));
        for (int64_t i = 0; i < queries; i++) m[i] = NO_SCORE;
        memset(l, 0, queries * VEC_FLOATS * sizeof(float));
        for (int64_t k0 = first_key_block(q0, window); k0 <= q0; k0 += ATT_BLOCK) {
            const int64_t keys = std::min(ATT_BLOCK, T - k0);
            const Triangle part = k0 == q0 ? LOWER : WHOLE;
            const BlockPlace at{q0, k0, queries, window};
            scores_product(scores, q_rows, k_tiles + k0 * s.HSk, strips, ceil_div(keys, TILE_COLS), s.channel_tiles(),
                           part);
            softmax_of<bf16>(at.mask())(p, scores, m, l, o, s.HSn, queries, scale, at);
            memset((void*)(p + queries * ATT_BLOCK), 0, (strips * TILE_ROWS - queries) * ATT_BLOCK * sizeof(bf16));
            positions_product(o, p, v_tiles + k0 / TILE_K * TILE_ELEMS, strips, ceil_div(keys, TILE_K), s, part);
        }
        for (int64_t i = 0; i < queries; i++) {
            const float total = sum(load(l + i * VEC_FLOATS)), inverse = 1.0f / total;
            lse[d.lse + q0 + i] = m[i] + std::log(total);
            for_each_vector(s.HS, [&](size_t c, size_t count) {
                store_some(out + d.out + (q0 + i) * out_row + c, load_some(o + i * s.HSn + c, count) * inverse, count);
            });
        }
    }
}

// Computes p and ds, which are P^T and dS^T of one block, from its scores S^T and dP^T. All are 64
// x 64, with a row for each key and a column for each query. If there is a mask, only the first
// `keys` rows and `queries` columns are there, and key i is seen by the queries from first + i on,
// in a BAND by `window` of them. lse and delta belong to the queries. ds_tiles is dS^T as tiles.
template <Mask MASK>
inline void scores_backward(bf16* p, bf16* ds, bf16* ds_tiles, const float* scores, const float* dp, const float* lse,
                            const float* delta, int64_t keys, int64_t queries, int64_t first, int64_t window,
                            float scale) {
    const int64_t rows = MASK != NONE ? round_up(keys, TILE_K) : ATT_BLOCK,
                  columns = MASK != NONE ? round_up(queries, TILE_K) : ATT_BLOCK;
    for (int64_t j = 0; j < columns; j += VEC_FLOATS) {
        const vfloat log_sums = load(lse + j), d = load(delta + j);
        const vint query = lane_numbers() + (int32_t)j, there = query < (int32_t)queries;
        for (int64_t i = 0; i < rows; i += 2) {
            vhalf grads[2];
#pragma GCC unroll 2
            for (int k = 0; k < 2; k++) {
                const int64_t at = (i + k) * ATT_BLOCK + j;
                vfloat prob = exp(load(scores + at) * scale - log_sums), grad = prob * (load(dp + at) - d) * scale;
                if (MASK != NONE) {
                    vint keep = there & (query >= (int32_t)(first + i + k));
                    if (MASK == BAND) keep &= query < (int32_t)(first + i + k + window);
                    prob = keep ? prob : vfloat{}, grad = keep ? grad : vfloat{};
                }
                store(p + at, prob);
                store(ds + at, grad);
                grads[k] = narrow(grad);
            }
            store((float*)(ds_tiles + (j / TILE_COLS * ATT_TILES + i / TILE_K) * TILE_ELEMS + i % TILE_K * TILE_COLS +
                           j % TILE_COLS * 2),
                  pairs(grads[0], grads[1]));
        }
    }
}

// The backward pass of one head; arguments: attention.h.
inline void attention_backward_head(bf16* dqkv, const bf16* dout, const bf16* out, const float* lse, const bf16* qkv,
                                    const DocumentHead& d, const Heads& heads, int64_t window) {
    const MatrixRegisters registers;
    const int64_t T = d.length, row = heads.qkv_row(), out_row = heads.out_row();
    const HeadSizes s(T, heads.HS);
    const float scale = 1.0f / std::sqrt((float)s.HS);
    const int64_t kt_stride = transposed_stride(s.Tp);
    const bf16 *q = qkv + d.q, *k = qkv + d.k, *v = qkv + d.v, *d_o = dout + d.out, *o = out + d.out;
    Carver memory{(char*)thread_scratch(attention_bf16_scratch_elems(T, s.HS))};
    bf16* q_columns = memory.take<bf16>(s.Tp * s.HSk);          // Q^T: k is the channels, a column for each query
    bf16* do_columns = memory.take<bf16>(s.Tp * s.HSk);         // dO^T, likewise
    bf16* q_tiles = memory.take<bf16>(s.Tp * s.HSn);            // Q: k is the positions, a column for each channel
    bf16* do_tiles = memory.take<bf16>(s.Tp * s.HSn);           // dO, likewise
    bf16* k_transposed = memory.take<bf16>(s.HSn * kt_stride);  // K^T as a left operand: a row for each channel
    bf16* p = memory.take<bf16>(ATT_BLOCK * ATT_BLOCK);         // P^T of one block
    bf16* ds = memory.take<bf16>(ATT_BLOCK * ATT_BLOCK);        // dS^T of one block
    bf16* ds_tiles = memory.take<bf16>(ATT_BLOCK * ATT_BLOCK);  // the same as a right operand
    bf16* k_copy = memory.take<bf16>(ATT_BLOCK * s.HSk);
    bf16* v_copy = memory.take<bf16>(ATT_BLOCK * s.HSk);
    float* dk = memory.take<float>(s.Tp * s.HSn);  // sums over all queries, as dv
    float* dv = memory.take<float>(s.Tp * s.HSn);
    float* scores = memory.take<float>(ATT_BLOCK * ATT_BLOCK);
    float* dp = memory.take<float>(ATT_BLOCK * ATT_BLOCK);
    float* dq_transposed = memory.take<float>(ATT_BLOCK * s.HSn);  // of one block of queries, as dq, delta, log_sums
    float* dq = memory.take<float>(ATT_BLOCK * s.HSn);
    float* delta = memory.take<float>(ATT_BLOCK);
    float* log_sums = memory.take<float>(ATT_BLOCK);
    pack_tiles(q_columns, {q, 1, row}, 0, s.HS, 0, T);
    pack_tiles(do_columns, {d_o, 1, out_row}, 0, s.HS, 0, T);
    pack_tiles(q_tiles, {q, row, 1}, 0, T, 0, s.HS);
    pack_tiles(do_tiles, {d_o, out_row, 1}, 0, T, 0, s.HS);
    pack_rows<false>(k_transposed, kt_stride, k, row, 0, s.HS, s.HSn, T);
    if (d.begins) memset(dk, 0, round_up(T, TILE_ROWS) * s.HSn * sizeof(float));
    if (d.begins) memset(dv, 0, round_up(T, TILE_ROWS) * s.HSn * sizeof(float));
    auto store_rows = [&](bf16* to, int64_t rows, const float* from) {
        for (int64_t i = 0; i < rows; i++)
            for_each_vector(s.HS, [&](size_t c, size_t count) {
                store_some(to + i * row + c, load_some(from + i * s.HSn + c, count), count);
            });
    };
    for (int64_t q0 = 0; q0 < T; q0 += ATT_BLOCK) {
        const int64_t queries = std::min(ATT_BLOCK, T - q0), columns = ceil_div(queries, TILE_COLS),
                      query_tiles = ceil_div(queries, TILE_K);
        for (int64_t i = 0; i < ATT_BLOCK; i++) {
            vfloat total{};
            if (i < queries)
                for_each_vector(s.HS, [&](size_t c, size_t count) {
                    total +=
                        load_some(o + (q0 + i) * out_row + c, count) * load_some(d_o + (q0 + i) * out_row + c, count);
                });
            delta[i] = sum(total);
            log_sums[i] = i < queries ? lse[d.lse + q0 + i] : 0;
        }
        const int64_t first = first_key_block(q0, window);
        for (int64_t k0 = first; k0 <= q0; k0 += ATT_BLOCK) {
            const int64_t keys = std::min(ATT_BLOCK, T - k0), strips = ceil_div(keys, TILE_ROWS);
            const Triangle part = k0 == q0 ? UPPER : WHOLE;
            scores_product(scores, left_rows(k + k0 * row, row, keys, s, k_copy), q_columns + q0 * s.HSk, strips,
                           columns, s.channel_tiles(), part);
            scores_product(dp, left_rows(v + k0 * row, row, keys, s, v_copy), do_columns + q0 * s.HSk, strips, columns,
                           s.channel_tiles(), part);
            const Mask mask = BlockPlace{q0, k0, queries, window}.mask();
            const auto softmax = mask == BAND                            ? scores_backward<BAND>
                                 : part == WHOLE && queries == ATT_BLOCK ? scores_backward<NONE>
                                                                         : scores_backward<DIAGONAL>;
            softmax(p, ds, ds_tiles, scores, dp, log_sums, delta, keys, queries, k0 - q0, window, scale);
            positions_product(dv + k0 * s.HSn, p, do_tiles + q0 / TILE_K * TILE_ELEMS, strips, query_tiles, s, part);
            positions_product(dk + k0 * s.HSn, ds, q_tiles + q0 / TILE_K * TILE_ELEMS, strips, query_tiles, s, part);
            multiply_tiles({dq_transposed, ATT_BLOCK, k_transposed + k0, kt_stride, s.HSn / TILE_ROWS, ds_tiles,
                            ATT_TILES * TILE_ELEMS, columns, ceil_div(keys, TILE_K), k0 > first});
        }
        for (int64_t c = 0; c < s.HSn; c += TILE_ROWS)
            for (int64_t i = 0; i < columns * TILE_COLS; i += TILE_COLS)
                transpose_16(dq + i * s.HSn + c, s.HSn, dq_transposed + c * ATT_BLOCK + i, ATT_BLOCK);
        store_rows(dqkv + d.q + q0 * row, queries, dq);
    }
    if (d.ends) store_rows(dqkv + d.k, T, dk), store_rows(dqkv + d.v, T, dv);
}
