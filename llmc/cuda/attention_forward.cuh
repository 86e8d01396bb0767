// Attention forward on tensor cores. Formulas and shapes: llmc/cpu/attention.h.
//
// The T x T matrix of scores never exists in memory. Keys and values come in tiles, and a query row
// keeps m, the largest score so far, and l, the sum of e^(scale (s - m)) so far. Each tile:
//
//     s = q k^T                              m' = max(m, s_1, s_2, ...)
//     p_j = e^(scale (s_j - m'))             shrink = e^(scale (m - m'))
//     l = shrink l + sum_j p_j               o = shrink o + p v               m = m'
//
// and at the end out = o / l, lse = scale m + log l. The maximum is subtracted before the scale is
// applied, so that the exponent is as accurate at scores of 1e30 as at 1. One multiply-add in place
// of the two operations, scale s - (scale m), would add the rounding of scale m to it.
//
// One block of 4 warps per 64 M queries of a head: grid (B NH, T / (64 M)); attention_block.cuh has
// their order. Each warp has 16 M of the queries, in registers. s, p and o are there too: as the
// result of q k^T, p has the layout that p v needs (mma.cuh). Four lanes share a row. In each tile
// only the maximum crosses lanes; a lane sums its own part of l, and the parts are added at the
// end. Tiles after the warp's last query are skipped. Only in a tile that the diagonal crosses are
// keys compared with queries, one by one.
//
// Keys and values have two buffers each. While one tile is multiplied, cp.async copies the next:
//
//     shared memory    q | keys 0 | values 0 | keys 1 | values 1       tile i is in buffers i % 2
//
//     cp.async         q, tile 0 | tile 1        | tile 2        | tile 3
//     tensor cores               | tile 0        | tile 1        | tile 2
//                              wait, barrier   wait, barrier
//
// A thread waits until all its groups of copies but the newest have arrived: the newest is the next
// tile. The barrier after the wait makes the copies of all threads visible. A second barrier, after
// the products, keeps the next copies from overwriting a tile that another warp still reads.
#pragma once
#include <cfloat>
#include "llmc/cuda/attention_block.cuh"
#include "llmc/cuda/attention_products.cuh"

// m of a query that has met no key yet: e^(-infinity - m) is 0, that of a key that it does not see.
constexpr float NO_SCORE = -FLT_MAX;

// Maximum and sum over the four lanes that hold one row of a C fragment.
__device__ inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
__device__ inline float row_sum(float x) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

// One tile's step of the formulas above, except for o += p v, on one fragment of rows. Scores s
// become probabilities p. A lane holds parts of two rows (half 0, 1), with m of each, and its part
// of l.
template <int HS, int KEYS>
__device__ inline void softmax_step(float (&s)[KEYS / 8][4], float (&o)[HS / 8][4], float (&m)[2], float (&l)[2],
                                    float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = m[half];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        top = row_max(top);
        const float shrink = exp2_flushed((m[half] - top) * (scale * LOG2_E));
        m[half] = top;
        l[half] *= shrink;
#pragma unroll
        for (int n = 0; n < HS / 8; n++) o[n][2 * half] *= shrink, o[n][2 * half + 1] *= shrink;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[n][i] = exp2_flushed((s[n][i] - top) * (scale * LOG2_E));
                l[half] += s[n][i];
            }
    }
}

template <int HS, int KEYS, int M>
constexpr size_t attention_forward_shared_bytes() {
    return (16 * M * ATTENTION_WARPS + 4 * KEYS) * HS * sizeof(halfX);
}

template <int HS, int KEYS, int M, bool GROUPED>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1)
    attention_forward_kernel(halfX* out, float* lse, const halfX* qkv, int T, int NH, int head_size, float scale,
                             AttentionOrder order) {
    constexpr int WARP_ROWS = 16 * M, ROWS = ATTENTION_WARPS * WARP_ROWS;
    extern __shared__ __align__(128) halfX shared[];
    const AttentionBlock<ROWS, LAST_TILE_FIRST, QUERY_ROWS, GROUPED> block(order, T, NH, head_size);
    const Tile<HS> q{shared};
    auto keys = [&](int tile) { return Tile<HS>{shared + (ROWS + tile % 2 * 2 * KEYS) * HS}; };
    auto values = [&](int tile) { return keys(tile).from_row(KEYS); };
    const halfX* head = qkv + block.qkv_offset;
    auto load_keys = [&](int tile) {
        load_tile<HS, KEYS>(keys(tile), head + block.to_keys, block.stride, tile * KEYS, block.length, head_size);
        load_tile<HS, KEYS>(values(tile), head + block.to_values, block.stride, tile * KEYS, block.length, head_size);
    };
    load_tile<HS, ROWS>(q, head, block.stride, block.first, block.length, head_size);
    copy_async_commit();
    const int first_tile = first_key_of(block.first, order.window) / KEYS;
    load_keys(first_tile);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();  // the queries have arrived, for all threads

    const int warp_row = threadIdx.x / 32 * WARP_ROWS, first_query = block.first + warp_row;
    const bool any_query = first_query < block.length;
    const int end = min(block.length, block.first + ROWS), tiles = ceil_div(end, KEYS);
    const KeptRows<HS, M> queries(RowsInShared<HS, M>{q, warp_row});
    float o[M][HS / 8][4] = {}, m[M][2], l[M][2] = {};
    for (int i = 0; i < 2 * M; i++) m[i / 2][i % 2] = NO_SCORE;
#pragma unroll 1
    for (int tile = first_tile; tile < tiles; tile++) {
        if (tile + 1 < tiles) load_keys(tile + 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();  // this tile has arrived, for all threads
        const int first_key = tile * KEYS;
        if (any_query && first_key < first_query + WARP_ROWS && first_key + KEYS + order.window > first_query + 1) {
            float s[M][KEYS / 8][4];
            multiply_transposed<KEYS>(s, queries, keys(tile));
            mask_keys(s, first_query, first_key, order.window);
#pragma unroll
            for (int i = 0; i < M; i++) softmax_step<HS, KEYS>(s[i], o[i], m[i], l[i], scale);
            multiply<KEYS>(o, s, values(tile));
        }
        __syncthreads();  // no thread reads this tile any more
    }
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < M; i++) {
        const int row = first_query + i * 16 + lane / 4;
        for (int half = 0; half < 2; half++) {
            l[i][half] = row_sum(l[i][half]);
            if (lane % 4 == 0 && row + 8 * half < block.length)
                lse[block.row_offset + row + 8 * half] = m[i][half] * scale + logf(l[i][half]);
        }
        store_rows(out + block.out_offset, block.C, first_query + i * 16, block.length, head_size, o[i], 1.0f / l[i][0],
                   1.0f / l[i][1], q, warp_row + i * 16);
    }
}
