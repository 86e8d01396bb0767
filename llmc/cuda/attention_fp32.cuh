// Attention in fp32, on CUDA cores: the walk over tiles of attention_forward.cuh, with plain
// multiplications. Each block handles TILE rows of one head with (TILE/2)^2 threads: grid
// (B NH, T/TILE).
//
// Thread (ty, tx) computes rows 2 ty, 2 ty + 1. Of the scores of two tiles it has the columns tx
// and tx + TILE/2, of the result every (TILE/2)-th channel from tx on, at most CHANNELS of them. A
// row's TILE/2 threads are neighbours within one warp, and exchange its maximum and sum by
// shuffles:
//
//     scores, TILE 32            columns tx            tx + 16
//     row 2 ty                   one thread: s[0][0]   s[0][1]
//     row 2 ty + 1                           s[1][0]   s[1][1]
//
// FLOPs and bytes: as attention.cuh, with 4 bytes per value.
#pragma once
#include <cfloat>
#include "llmc/cuda/attention_block.cuh"
#include "llmc/cuda/column_sums.cuh"

// TILE rows of head_size floats in shared memory, head_size + 1 apart: where head_size is a
// multiple of 32, a column of unpadded rows would lie in one bank.
template <int TILE>
struct SharedRows {
    float* data;
    int head_size;
    __device__ float* operator[](int row) const { return data + row * (head_size + 1); }
    __device__ void load(const float* head, int stride, int first, int T) const {
        for (int i = threadIdx.x; i < TILE * head_size; i += (TILE / 2) * (TILE / 2)) {
            const int row = i / head_size, c = i % head_size;
            (*this)[row][c] = first + row < T ? head[(int64_t)(first + row) * stride + c] : 0.0f;
        }
    }
};
__host__ __device__ constexpr size_t shared_rows_elems(int tile, int head_size) {
    return (size_t)tile * (head_size + 1);
}

// s[i][j] = row 2 ty + i of a times row tx + j TILE/2 of b: a 2 x 2 piece of a b^T.
template <int TILE>
__device__ inline void small_products(float (&s)[2][2], SharedRows<TILE> a, SharedRows<TILE> b, int ty, int tx) {
    for (int i = 0; i < 4; i++) s[i / 2][i % 2] = 0;
    for (int c = 0; c < a.head_size; c++)
        for (int i = 0; i < 4; i++) s[i / 2][i % 2] += a[2 * ty + i / 2][c] * b[tx + i % 2 * (TILE / 2)][c];
}
// o[i][c] += sum over j of p[2 ty + i][j] b[j][tx + c TILE/2]. Rows of p are TILE + 1 apart.
template <int TILE, int CHANNELS>
__device__ inline void add_products(float (&o)[2][CHANNELS], const float* p, SharedRows<TILE> b, int ty, int tx) {
    for (int j = 0; j < TILE; j++)
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            if (tx + c * (TILE / 2) < b.head_size) {
                const float x = b[j][tx + c * (TILE / 2)];
                o[0][c] += p[2 * ty * (TILE + 1) + j] * x;
                o[1][c] += p[(2 * ty + 1) * (TILE + 1) + j] * x;
            }
}
// Stores rows row and row + 1 of a head, times scale0 and scale1.
template <int TILE, int CHANNELS>
__device__ inline void store_channels(float* head, int stride, int row, int T, int head_size,
                                      const float (&o)[2][CHANNELS], float scale0, float scale1, int tx) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            if (row + i < T && tx + c * (TILE / 2) < head_size)
                head[(int64_t)(row + i) * stride + tx + c * (TILE / 2)] = o[i][c] * (i ? scale1 : scale0);
}

// The forward kernel. Keys and values of a tile take turns in one buffer, kv.
template <int TILE, int CHANNELS, bool GROUPED>
__global__ void __launch_bounds__(TILE* TILE / 4, 1)
    attention_forward_fp32_kernel(float* out, float* lse, const float* qkv, int T, int NH, int head_size, float scale,
                                  AttentionOrder order) {
    extern __shared__ float shared_floats[];
    const SharedRows<TILE> q{shared_floats, head_size},
        kv{shared_floats + shared_rows_elems(TILE, head_size), head_size};
    float* p = kv.data + shared_rows_elems(TILE, head_size);
    const AttentionBlock<TILE, LAST_TILE_FIRST, QUERY_ROWS, GROUPED> block(order, T, NH, head_size);
    const int first = block.first, ty = threadIdx.x / (TILE / 2), tx = threadIdx.x % (TILE / 2);
    const float* head = qkv + block.qkv_offset;
    float o[2][CHANNELS] = {}, m[2] = {-FLT_MAX, -FLT_MAX}, l[2] = {0, 0};
    q.load(head, block.stride, first, block.length);
    const int first_tile = first_key_of(first, order.window) / TILE;
    for (int first_key = first_tile * TILE; first_key < first + TILE && first_key < block.length; first_key += TILE) {
        __syncthreads();
        kv.load(head + block.to_keys, block.stride, first_key, block.length);
        __syncthreads();
        float s[2][2];
        small_products(s, q, kv, ty, tx);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = 2 * ty + i;
            float top = m[i], sum = 0;
            for (int j = 0; j < 2; j++) {
                const int key = first_key + tx + j * (TILE / 2), query = first + row;
                if (key > query || key + order.window <= query) s[i][j] = -INFINITY;
                top = fmaxf(top, s[i][j]);
            }
            for (int distance = TILE / 4; distance > 0; distance /= 2)
                top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, distance));
            for (int j = 0; j < 2; j++) {
                s[i][j] = expf((s[i][j] - top) * scale);
                p[row * (TILE + 1) + tx + j * (TILE / 2)] = s[i][j];
                sum += s[i][j];
            }
            for (int distance = TILE / 4; distance > 0; distance /= 2)
                sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
            const float shrink = expf((m[i] - top) * scale);
            m[i] = top, l[i] = l[i] * shrink + sum;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) o[i][c] *= shrink;
        }
        __syncthreads();
        kv.load(head + block.to_values, block.stride, first_key, block.length);
        __syncthreads();
        add_products(o, p, kv, ty, tx);
    }
    for (int i = 0; i < 2; i++)
        if (tx == 0 && first + 2 * ty + i < block.length)
            lse[block.row_offset + first + 2 * ty + i] = m[i] * scale + logf(l[i]);
    store_channels<TILE>(out + block.out_offset, block.C, first + 2 * ty, block.length, head_size, o, 1.0f / l[0],
                         1.0f / l[1], tx);
}

// delta of up to `rows` rows of dout, which are in a tile, and of out; one thread per row.
template <int TILE>
__device__ inline void write_delta(float* delta, SharedRows<TILE> dout, const float* out, int C, int rows) {
    const int row = threadIdx.x;
    if (row >= TILE || row >= rows) return;
    float sum = 0;
    for (int c = 0; c < dout.head_size; c++) sum += dout[row][c] * out[(int64_t)row * C + c];
    delta[row] = sum;
}

// The backward kernel, started twice. If the block's TILE rows are keys, it walks over tiles of
// queries, of all heads that share the keys, and sum1 and sum2 become dk and dv. Otherwise its rows
// are queries, it walks over tiles of keys, and sum1 becomes dq; this one is the first, and writes
// delta.
template <int TILE, int CHANNELS, BlockRows MINE, bool GROUPED>
__global__ void __launch_bounds__(TILE* TILE / 4, 1)
    attention_backward_fp32_kernel(float* dqkv, float* delta, const float* dout, const float* out, const float* lse,
                                   const float* qkv, int T, int NH, int head_size, float scale, AttentionOrder order) {
    extern __shared__ float shared_floats[];
    const size_t elems = shared_rows_elems(TILE, head_size);
    const SharedRows<TILE> q{shared_floats, head_size}, k{shared_floats + elems, head_size},
        v{shared_floats + 2 * elems, head_size}, d_o{shared_floats + 3 * elems, head_size};
    float *p = d_o.data + elems, *ds = p + TILE * (TILE + 1);
    constexpr bool KEYS_MINE = MINE != QUERY_ROWS;
    const AttentionBlock<TILE, KEYS_MINE ? FIRST_TILE_FIRST : LAST_TILE_FIRST, MINE, GROUPED> block(order, T, NH,
                                                                                                    head_size);
    const int mine = block.first, length = block.length, ty = threadIdx.x / (TILE / 2), tx = threadIdx.x % (TILE / 2);
    const int C = block.C, stride = block.stride;
    const float *head = qkv + block.qkv_offset, *dout_head = dout + block.out_offset;
    auto load_queries = [&](int h, int first) {
        q.load(head + h * head_size, stride, first, length), d_o.load(dout_head + h * head_size, C, first, length);
    };
    auto load_keys = [&](int first) {
        k.load(head + block.to_keys, stride, first, length), v.load(head + block.to_values, stride, first, length);
    };
    KEYS_MINE ? load_keys(mine) : load_queries(0, mine);
    __syncthreads();
    if (!KEYS_MINE)
        write_delta(delta + block.row_offset + mine, d_o, out + block.out_offset + (int64_t)mine * C, C, length - mine);
    float sum1[2][CHANNELS] = {}, sum2[2][CHANNELS] = {};
    const int begin = KEYS_MINE ? mine : first_key_of(mine, order.window) / TILE * TILE;
    const int end = KEYS_MINE ? min(length, mine + TILE - 1 + order.window) : mine + 1;
    for (int h = 0; h < (KEYS_MINE && GROUPED ? order.sharing : 1); h++) {  // of the queries that share the keys
        const int64_t row_offset = block.row_offset + (int64_t)h * T;
        for (int other = begin; other < end; other += TILE) {
            __syncthreads();
            if (KEYS_MINE) load_queries(h, other);
            else load_keys(other);
            __syncthreads();
            float s[2][2], dp[2][2];
            small_products(s, KEYS_MINE ? k : q, KEYS_MINE ? q : k, ty, tx);
            small_products(dp, KEYS_MINE ? v : d_o, KEYS_MINE ? d_o : v, ty, tx);
            for (int i = 0; i < 4; i++) {
                const int row = 2 * ty + i / 2, column = tx + i % 2 * (TILE / 2),
                          key = KEYS_MINE ? mine + row : other + column,
                          query = KEYS_MINE ? other + column : mine + row;
                float prob = 0, grad = 0;
                if (key <= query && key + order.window > query && query < length) {
                    prob = expf(s[i / 2][i % 2] * scale - lse[row_offset + query]);
                    grad = prob * (dp[i / 2][i % 2] - delta[row_offset + query]) * scale;
                }
                p[row * (TILE + 1) + column] = prob;
                ds[row * (TILE + 1) + column] = grad;
            }
            __syncthreads();
            add_products(sum1, ds, KEYS_MINE ? q : k, ty, tx);
            if (KEYS_MINE) add_products(sum2, p, d_o, ty, tx);
        }
    }
    float *dhead = dqkv + block.qkv_offset, *out1 = KEYS_MINE ? dhead + block.to_keys : dhead;
    store_channels<TILE>(out1, stride, mine + 2 * ty, length, head_size, sum1, 1.0f, 1.0f, tx);
    if (KEYS_MINE)
        store_channels<TILE>(dhead + block.to_values, stride, mine + 2 * ty, length, head_size, sum2, 1.0f, 1.0f, tx);
}

template <int TILE, int CHANNELS, bool GROUPED>
void attention_forward_tiles(float* out, float* lse, const float* qkv, int64_t B, int64_t T, int64_t C, int64_t NH,
                             cudaStream_t stream, DocumentTiles documents, int64_t window, int64_t NKV) {
    const int HS = (int)(C / NH);
    const size_t bytes = (2 * shared_rows_elems(TILE, HS) + TILE * (TILE + 1)) * sizeof(float);
    const dim3 grid = attention_grid(B, T, NH, TILE, documents);
    const float scale = 1.0f / sqrtf((float)HS);
    const AttentionOrder order = attention_order(B, T, C, NH, NKV, NH, sizeof(float), documents, window);
    auto kernel = attention_forward_fp32_kernel<TILE, CHANNELS, GROUPED>;
    allow_shared(kernel, bytes, "attention_forward");
    launch("attention_forward", kernel, grid, TILE * TILE / 4, bytes, stream, out, lse, qkv, (int)T, (int)NH, HS, scale,
           order);
}
// The rows of a tile, TILE, by head size.
inline int64_t attention_fp32_rows(int64_t head_size) { return head_size <= 128 ? 32 : 16; }
// NKV less than NH: with GROUPED; so in the backward pass.
template <bool GROUPED = false>
void attention_forward(float* out, float* lse, const float* qkv, int64_t B, int64_t T, int64_t C, int64_t NH,
                       cudaStream_t stream, DocumentTiles documents = {}, int64_t window = 0, int64_t NKV = 0) {
    const StreamRange in_stream(work::attention(B * T, twice_seen(T, window), C, sizeof(float)), stream);
    const auto run = attention_fp32_rows(C / NH) == 32 ? attention_forward_tiles<32, 8, GROUPED>
                                                       : attention_forward_tiles<16, 32, GROUPED>;
    run(out, lse, qkv, B, T, C, NH, stream, documents, window, NKV > 0 ? NKV : NH);
}
template <int TILE, int CHANNELS, bool GROUPED>
void attention_backward_tiles(float* dqkv, float* delta, const float* dout, const float* out, const float* lse,
                              const float* qkv, int64_t B, int64_t T, int64_t C, int64_t NH, cudaStream_t stream,
                              DocumentTiles documents, int64_t window, int64_t NKV) {
    const int HS = (int)(C / NH);
    const size_t bytes = (4 * shared_rows_elems(TILE, HS) + 2 * TILE * (TILE + 1)) * sizeof(float);
    const float scale = 1.0f / sqrtf((float)HS);
    auto run_kernel = [&](const char* name, auto kernel, int64_t heads) {
        const AttentionOrder order = attention_order(B, T, C, NH, NKV, heads, sizeof(float), documents, window);
        allow_shared(kernel, bytes, name);
        launch(name, kernel, attention_grid(B, T, heads, TILE, documents), TILE * TILE / 4, bytes, stream, dqkv, delta,
               dout, out, lse, qkv, (int)T, (int)NH, HS, scale, order);
    };
    run_kernel("attention_backward_q", attention_backward_fp32_kernel<TILE, CHANNELS, QUERY_ROWS, GROUPED>, NH);
    run_kernel("attention_backward_kv", attention_backward_fp32_kernel<TILE, CHANNELS, KEY_ROWS, GROUPED>, NKV);
}
// Attention backward in fp32. It leaves no sums over rows.
template <bool GROUPED = false>
ColumnSums attention_backward(float* dqkv, float* delta, const float* dout, const float* out, const float* lse,
                              const float* qkv, int64_t B, int64_t T, int64_t C, int64_t NH, cudaStream_t stream,
                              DocumentTiles documents = {}, float* partials = nullptr, int64_t window = 0,
                              int64_t NKV = 0) {
    const StreamRange in_stream(work::attention_backward(B * T, twice_seen(T, window), C, sizeof(float)), stream);
    const auto run = attention_fp32_rows(C / NH) == 32 ? attention_backward_tiles<32, 8, GROUPED>
                                                       : attention_backward_tiles<16, 32, GROUPED>;
    run(dqkv, delta, dout, out, lse, qkv, B, T, C, NH, stream, documents, window, NKV > 0 ? NKV : NH);
    return {partials};
}
