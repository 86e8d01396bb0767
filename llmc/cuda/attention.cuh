// Causal self-attention as flash attention. Formulas and shapes: llmc/cpu/attention.h. The same
// algorithm twice: for bf16 on tensor cores (after FlashAttention-2, Dao 2023, arXiv:2307.08691,
// section 3), for fp32 on CUDA cores (attention_fp32.cuh). Both read q, k and v from the packed qkv
// (B,T,3C) as the linear layer wrote it.
//
// Forward. The T x T matrix of scores never exists in memory. Keys and values come in tiles, and a
// query row keeps m, the largest score so far, and l, the sum of e^(scale (s - m)) so far. Each
// tile:
//
//     s = q k^T                              m' = max(m, s_1, s_2, ...)
//     p_j = e^(scale (s_j - m'))             shrink = e^(scale (m - m'))
//     l = shrink l + sum_j p_j               o = shrink o + p v               m = m'
//
// and at the end out = o / l, lse = scale m + log l. The maximum is subtracted before the scale is
// applied, so that the exponent is as accurate at scores of 1e30 as at 1. One multiply-add in place
// of the two operations, scale s - (scale m), would add the rounding of scale m to it.
//
// One block of 4 warps per 64 queries of a head: grid (B NH, T/64). Each warp has 16 of the
// queries. s, p and o stay in registers: as the result of q k^T, p has the layout that p v needs
// (mma.cuh). Only max and sum cross lanes, among the four that share a row. Tiles after the last
// query are skipped. Blocks with the most tiles start first, so that short ones fill the gaps at
// the end.
//
// Keys and values have two buffers each. While one tile is multiplied, cp.async copies the next:
//
//     shared memory    q | keys 0 | keys 1 | values 0 | values 1       tile i is in buffers i % 2
//
//     cp.async         q, tile 0 | tile 1        | tile 2        | tile 3
//     tensor cores               | tile 0        | tile 1        | tile 2
//                              wait, barrier   wait, barrier
//
// A thread waits until all its groups of copies but the newest have arrived: the newest is the next
// tile. The barrier after the wait makes the copies of all threads visible. A second barrier, after
// the products, keeps the next copies from overwriting a tile that another warp still reads.
//
// Backward. dk and dv are sums over queries, dq is a sum over keys. One kernel each, so that every
// sum belongs to one warp, which adds in one order: no atomics, the same bits every time. The
// price: both kernels compute s and dp, 7 products of tiles in place of 5. The kernel for dk and dv
// computes the scores transposed (k q^T), so that again the result of one product is an operand of
// the next.
//
// FLOPs: 2 B T^2 C forward, 5 B T^2 C backward (7 with what is computed twice). Bytes at least, in
// bf16: 8 B T C forward (qkv read, out written), 16 B T C backward (qkv, dout, out read, dqkv
// written).
//
// With a document mask (documents.h) a document is what a sequence is above: the rows of a block's
// tiles are those of one document, counted from its first position, so that no block reads another
// document. A block finds its document in a list that the host makes, the only difference between
// the two cases (AttentionBlock). A tile of a document's last few rows costs as much as a whole
// one.
//
// Head sizes: multiples of 8 from 16 to 256. In shared memory they are padded with zeros to 32, 64,
// 96, 128 or 256.
#pragma once
#include "llmc/cuda/attention_decode.cuh"
#include "llmc/cuda/attention_fp32.cuh"
#include "llmc/cuda/attention_tiles.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

inline bool attention_supports(int64_t HS) { return HS >= 16 && HS <= 256 && HS % 8 == 0; }

// -------------------------------------------------------------------------------------------------
// tensor cores

// Maximum and sum over the four lanes that hold one row of a C fragment.
__device__ inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
__device__ inline float row_sum(float x) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

template <int HS, int KEYS>
constexpr size_t attention_forward_shared_bytes() {
    return (ATTENTION_ROWS + 4 * KEYS) * HS * sizeof(bf16);
}

// Causality: scores of keys after their query become -infinity. Rows from `query` on, columns from
// `key` on.
template <int KEYS>
__device__ inline void mask_future(float (&s)[KEYS / 8][4], int query, int key) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        for (int i = 0; i < 4; i++)
            if (key + n * 8 + lane % 4 * 2 + i % 2 > query + lane / 4 + i / 2 * 8) s[n][i] = -INFINITY;
}

// One tile's step of the formulas above, except for o += p v. Scores s become probabilities p. A
// lane holds parts of two rows (half 0, 1), with m and l of each.
template <int HS, int KEYS>
__device__ inline void softmax_step(float (&s)[KEYS / 8][4], float (&o)[HS / 8][4], float (&m)[2], float (&l)[2],
                                    float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = m[half], sum = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        top = row_max(top);
        const float shrink = exp2_flushed((m[half] - top) * (scale * LOG2_E));
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[n][i] = exp2_flushed((s[n][i] - top) * (scale * LOG2_E));
                sum += s[n][i];
            }
        m[half] = top;
        l[half] = l[half] * shrink + row_sum(sum);
#pragma unroll
        for (int n = 0; n < HS / 8; n++) o[n][2 * half] *= shrink, o[n][2 * half + 1] *= shrink;
    }
}

template <int HS, int KEYS>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1)
    attention_forward_kernel(bf16* out, float* lse, const bf16* qkv, int T, int64_t NH, int head_size, float scale,
                             const DocumentTile* documents) {
    extern __shared__ __align__(128) bf16 shared[];
    const AttentionBlock<ATTENTION_ROWS, LAST_TILE_FIRST> block(documents, T, NH, head_size);
    const Tile<HS> q{shared};
    bf16 *key_buffers = shared + ATTENTION_ROWS * HS, *value_buffers = key_buffers + 2 * KEYS * HS;
    auto keys = [&](int tile) { return Tile<HS>{key_buffers + tile % 2 * KEYS * HS}; };
    auto values = [&](int tile) { return Tile<HS>{value_buffers + tile % 2 * KEYS * HS}; };
    const bf16* head = qkv + block.qkv_offset;
    auto load_keys = [&](int tile) {
        load_tile<HS, KEYS>(keys(tile), head + block.C, block.stride, tile * KEYS, block.length, head_size);
        load_tile<HS, KEYS>(values(tile), head + 2 * block.C, block.stride, tile * KEYS, block.length, head_size);
    };
    const int warp_row = threadIdx.x / 32 * 16, first_query = block.first + warp_row;  // of the warp's 16
    const int end = min(block.length, block.first + ATTENTION_ROWS), tiles = ceil_div(end, KEYS);
    load_tile<HS, ATTENTION_ROWS>(q, head, block.stride, block.first, block.length, head_size);
    load_keys(0);
    copy_async_commit();

    float o[HS / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) load_keys(tile + 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();  // this tile has arrived, for all threads
        const int first_key = tile * KEYS;
        if (first_key <= first_query + 15) {
            float s[KEYS / 8][4];
            multiply_transposed<KEYS>(s, q, warp_row, keys(tile));
            if (first_key + KEYS - 1 > first_query) mask_future<KEYS>(s, first_query, first_key);
            softmax_step<HS, KEYS>(s, o, m, l, scale);
            multiply<KEYS>(o, s, values(tile));
        }
        __syncthreads();  // no thread reads this tile any more
    }
    const int lane = threadIdx.x % 32, row = first_query + lane / 4;
    for (int half = 0; half < 2; half++)
        if (lane % 4 == 0 && row + 8 * half < block.length)
            lse[block.row_offset + row + 8 * half] = m[half] * scale + logf(l[half]);
    store_rows(out + block.out_offset, block.C, first_query, block.length, head_size, o, 1.0f / l[0], 1.0f / l[1], q,
               warp_row);
}

template <int HS, int COLS>
constexpr size_t attention_backward_shared_bytes() {
    return (2 * ATTENTION_ROWS + 4 * COLS) * HS * sizeof(bf16) + 4 * COLS * sizeof(float);
}

// dk and dv of 64 keys, 16 per warp; queries come in tiles of COLS. With s' = k q^T and dp' = v
// dout^T, transposed, row: key, column: query,
//
//     p' = e^(scale s' - lse)       ds' = p' (dp' - D)       dv = p' dout       dk = scale ds' q
template <int HS, int COLS>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1)
    attention_backward_kv_kernel(bf16* dqkv, const bf16* dout, const float* lse, const float* D, const bf16* qkv, int T,
                                 int64_t NH, int head_size, float scale, const DocumentTile* documents) {
    extern __shared__ __align__(128) bf16 shared[];
    const AttentionBlock<ATTENTION_ROWS, FIRST_TILE_FIRST> block(documents, T, NH, head_size);
    const bf16 *head = qkv + block.qkv_offset, *dout_head = dout + block.out_offset;
    const Tile<HS> k{shared}, v{shared + ATTENTION_ROWS * HS};
    bf16 *q_buffers = shared + 2 * ATTENTION_ROWS * HS, *dout_buffers = q_buffers + 2 * COLS * HS;
    auto q = [&](int tile) { return Tile<HS>{q_buffers + tile % 2 * COLS * HS}; };
    auto d_o = [&](int tile) { return Tile<HS>{dout_buffers + tile % 2 * COLS * HS}; };
    float *lse_buffers = (float*)(dout_buffers + 2 * COLS * HS), *D_buffers = lse_buffers + 2 * COLS;
    auto load_queries = [&](int tile, int first_query) {
        load_tile<HS, COLS>(q(tile), head, block.stride, first_query, block.length, head_size);
        load_tile<HS, COLS>(d_o(tile), dout_head, block.C, first_query, block.length, head_size);
        for (int i = threadIdx.x; i < COLS; i += ATTENTION_THREADS) {
            const bool valid = first_query + i < block.length;  // past the end, lse is infinite and the probability 0
            const int64_t query = block.row_offset + first_query + i;
            lse_buffers[tile % 2 * COLS + i] = valid ? lse[query] * LOG2_E : INFINITY;
            D_buffers[tile % 2 * COLS + i] = valid ? D[query] : 0.0f;
        }
    };
    load_tile<HS, ATTENTION_ROWS>(k, head + block.C, block.stride, block.first, block.length, head_size);
    load_tile<HS, ATTENTION_ROWS>(v, head + 2 * block.C, block.stride, block.first, block.length, head_size);
    load_queries(0, block.first);
    copy_async_commit();

    const int warp_row = threadIdx.x / 32 * 16, first_key = block.first + warp_row;  // of the warp's 16
    const int lane = threadIdx.x % 32, key = first_key + lane / 4;                   // this lane: key, key + 8
    float dk[HS / 8][4] = {}, dv[HS / 8][4] = {};
    const int tiles = ceil_div(block.length - block.first, COLS);  // queries before the first key see none of the keys
    for (int tile = 0; tile < tiles; tile++) {
        const int first_query = block.first + tile * COLS;
        if (tile + 1 < tiles) load_queries(tile + 1, first_query + COLS);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();  // this tile has arrived, for all threads
        if (first_query + COLS - 1 >= first_key) {
            const float *lse_tile = lse_buffers + tile % 2 * COLS, *D_tile = D_buffers + tile % 2 * COLS;
            float p[COLS / 8][4], ds[COLS / 8][4];
            multiply_transposed<COLS>(p, k, warp_row, q(tile));
            multiply_transposed<COLS>(ds, v, warp_row, d_o(tile));
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                for (int i = 0; i < 4; i++) {
                    const int column = n * 8 + lane % 4 * 2 + i % 2;
                    const bool seen = key + i / 2 * 8 <= first_query + column;
                    p[n][i] = seen ? exp2f(p[n][i] * (scale * LOG2_E) - lse_tile[column]) : 0.0f;
                    ds[n][i] = p[n][i] * (ds[n][i] - D_tile[column]);
                }
            multiply<COLS>(dv, p, d_o(tile));
            multiply<COLS>(dk, ds, q(tile));
        }
        __syncthreads();  // no thread reads this tile any more
    }
    bf16 *dk_head = dqkv + block.qkv_offset + block.C, *dv_head = dk_head + block.C;
    store_rows(dk_head, block.stride, first_key, block.length, head_size, dk, scale, scale, k, warp_row);
    store_rows(dv_head, block.stride, first_key, block.length, head_size, dv, 1.0f, 1.0f, v, warp_row);
}

// dq of 64 queries, 16 per warp; keys come in tiles of COLS. With s = q k^T and dp = dout v^T,
//
//     p = e^(scale s - lse)         ds = p (dp - D)          dq = scale ds k
template <int HS, int COLS>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1)
    attention_backward_q_kernel(bf16* dqkv, const bf16* dout, const float* lse, const float* D, const bf16* qkv, int T,
                                int64_t NH, int head_size, float scale, const DocumentTile* documents) {
    extern __shared__ __align__(128) bf16 shared[];
    const AttentionBlock<ATTENTION_ROWS, LAST_TILE_FIRST> block(documents, T, NH, head_size);
    const bf16 *head = qkv + block.qkv_offset, *dout_head = dout + block.out_offset;
    const Tile<HS> q{shared}, d_o{shared + ATTENTION_ROWS * HS};
    bf16 *key_buffers = shared + 2 * ATTENTION_ROWS * HS, *value_buffers = key_buffers + 2 * COLS * HS;
    auto keys = [&](int tile) { return Tile<HS>{key_buffers + tile % 2 * COLS * HS}; };
    auto values = [&](int tile) { return Tile<HS>{value_buffers + tile % 2 * COLS * HS}; };
    auto load_keys = [&](int tile) {
        load_tile<HS, COLS>(keys(tile), head + block.C, block.stride, tile * COLS, block.length, head_size);
        load_tile<HS, COLS>(values(tile), head + 2 * block.C, block.stride, tile * COLS, block.length, head_size);
    };
    const int warp_row = threadIdx.x / 32 * 16, first_query = block.first + warp_row;  // of the warp's 16
    const int lane = threadIdx.x % 32, row = first_query + lane / 4;                   // this lane: row, row + 8
    const int end = min(block.length, block.first + ATTENTION_ROWS), tiles = ceil_div(end, COLS);
    float log_sum[2], d[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool valid = row + 8 * half < block.length;
        const int64_t query = block.row_offset + row + 8 * half;
        log_sum[half] = valid ? lse[query] * LOG2_E : INFINITY;
        d[half] = valid ? D[query] : 0.0f;
    }
    load_tile<HS, ATTENTION_ROWS>(q, head, block.stride, block.first, block.length, head_size);
    load_tile<HS, ATTENTION_ROWS>(d_o, dout_head, block.C, block.first, block.length, head_size);
    load_keys(0);
    copy_async_commit();

    float dq[HS / 8][4] = {};
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) load_keys(tile + 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();  // this tile has arrived, for all threads
        const int first_key = tile * COLS;
        if (first_key <= first_query + 15) {
            float p[COLS / 8][4], ds[COLS / 8][4];
            multiply_transposed<COLS>(p, q, warp_row, keys(tile));
            multiply_transposed<COLS>(ds, d_o, warp_row, values(tile));
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                for (int i = 0; i < 4; i++) {
                    const bool seen = first_key + n * 8 + lane % 4 * 2 + i % 2 <= row + i / 2 * 8;
                    const float prob = seen ? exp2f(p[n][i] * (scale * LOG2_E) - log_sum[i / 2]) : 0.0f;
                    ds[n][i] = prob * (ds[n][i] - d[i / 2]);
                }
            multiply<COLS>(dq, ds, keys(tile));
        }
        __syncthreads();  // no thread reads this tile any more
    }
    bf16* dq_head = dqkv + block.qkv_offset;
    store_rows(dq_head, block.stride, first_query, block.length, head_size, dq, scale, scale, q, warp_row);
}

// Calls f.run<HS, KEYS, COLS>() with the padded head size, the keys per tile of the forward kernel
// and the columns per tile of the backward kernels. They are what registers and shared memory (99
// KB per block on the smallest chips) allow.
template <class F>
inline void for_head_size(int64_t head_size, F f) {
    if (head_size <= 32) f.template run<32, 64, 64>();
    else if (head_size <= 64) f.template run<64, 64, 64>();
    else if (head_size <= 96) f.template run<96, 64, 32>();
    else if (head_size <= 128) f.template run<128, 64, 32>();
    else f.template run<256, 32, 16>();
}

// Positions in a tile of DocumentTiles.
template <class floatX>
int64_t attention_tile_rows(int64_t head_size) {
    return sizeof(floatX) == 2 ? ATTENTION_ROWS : attention_fp32_rows(head_size);
}

struct AttentionForward {
    bf16* out;
    float* lse;
    const bf16* qkv;
    int64_t B, T, C, NH;
    cudaStream_t stream;
    DocumentTiles documents;
    template <int HS, int KEYS, int COLS>
    void run() {
        const size_t shared_bytes = attention_forward_shared_bytes<HS, KEYS>();
        const int head_size = (int)(C / NH);
        const float scale = 1.0f / sqrtf((float)head_size);
        const dim3 grid = attention_grid(B, T, NH, ATTENTION_ROWS, documents);
        auto kernel = attention_forward_kernel<HS, KEYS>;
        allow_shared(kernel, shared_bytes, "attention_forward");
        launch("attention_forward", kernel, grid, ATTENTION_THREADS, shared_bytes, stream, out, lse, qkv, (int)T, NH,
               head_size, scale, documents.tiles);
    }
};
struct AttentionBackward {
    bf16* dqkv;
    float* D;
    const bf16 *dout, *out;
    const float* lse;
    const bf16* qkv;
    int64_t B, T, C, NH;
    cudaStream_t stream;
    DocumentTiles documents;
    template <int HS, int KEYS, int COLS>
    void run() {
        const size_t shared_bytes = attention_backward_shared_bytes<HS, COLS>();
        const int head_size = (int)(C / NH);
        const float scale = 1.0f / sqrtf((float)head_size);
        const dim3 grid = attention_grid(B, T, NH, ATTENTION_ROWS, documents);
        attention_dot(D, dout, out, B, T, NH, head_size, stream);
        auto run_kernel = [&](const char* name, auto kernel) {
            allow_shared(kernel, shared_bytes, name);
            launch(name, kernel, grid, ATTENTION_THREADS, shared_bytes, stream, dqkv, dout, lse, D, qkv, (int)T, NH,
                   head_size, scale, documents.tiles);
        };
        run_kernel("attention_backward_kv", attention_backward_kv_kernel<HS, COLS>);
        run_kernel("attention_backward_q", attention_backward_q_kernel<HS, COLS>);
    }
};
inline void attention_forward(bf16* out, float* lse, const bf16* qkv, int64_t B, int64_t T, int64_t C, int64_t NH,
                              cudaStream_t stream, DocumentTiles documents = {}) {
    const StreamRange in_stream(work::attention(B * T, T, C, sizeof(bf16)), stream);
    for_head_size(C / NH, AttentionForward{out, lse, qkv, B, T, C, NH, stream, documents});
}
// D (B,NH,T) is scratch.
inline void attention_backward(bf16* dqkv, float* D, const bf16* dout, const bf16* out, const float* lse,
                               const bf16* qkv, int64_t B, int64_t T, int64_t C, int64_t NH, cudaStream_t stream,
                               DocumentTiles documents = {}) {
    const StreamRange in_stream(work::attention_backward(B * T, T, C, sizeof(bf16)), stream);
    for_head_size(C / NH, AttentionBackward{dqkv, D, dout, out, lse, qkv, B, T, C, NH, stream, documents});
}
