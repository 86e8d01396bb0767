// Attention backward on tensor cores. With p from lse:
//
//     p = e^(scale s - lse)      dp = dout v^T      delta = sum_j p_j dp_j      ds = p (dp - delta)
//     dv = p^T dout              dk = scale ds^T q                          dq = scale ds k
//
// As out is the sum of p v, delta is dout . out, and needs no score.
//
// dk and dv are sums over queries, dq is a sum over keys. One kernel each, so that every sum
// belongs to one warp, which adds in one order: no atomics, the same bits every time. The price:
// both kernels compute s and dp, 7 products of tiles in place of 5. The kernel for dk and dv
// computes the scores transposed (k q^T), so that again the result of one product is an operand of
// the next. The kernel for dq is the first: it has the rows of dout at hand, computes their delta
// on the way, and leaves it for the other.
//
// dqkv is the gradient of a linear layer's output, whose bias needs its sums over rows. Both
// kernels leave those of each block in `partials`, if it is not null (column_sums.cuh).
//
// Blocks, warps, tiles and buffers are as in attention_forward.cuh. As no row needs its maximum
// first, a tile's columns are limited only by registers: s and dp of a tile take M COLS / 2 each.
#pragma once
#include "llmc/cuda/attention_block.cuh"
#include "llmc/cuda/attention_products.cuh"

template <int HS, int COLS, int M>
constexpr size_t attention_backward_q_shared_bytes() {
    return (2 * 16 * M * ATTENTION_WARPS + 4 * COLS) * HS * sizeof(halfX);
}
template <int HS, int COLS, int M>
constexpr size_t attention_backward_kv_shared_bytes() {
    return attention_backward_q_shared_bytes<HS, COLS, M>() + 4 * COLS * sizeof(float);
}

// delta of a row of dout, which is in a tile, and of out in memory: the sum of their products over
// the channels. A lane has the row for itself: the order of the additions is that of the channels.
// All loads of out are on their way before copies of dout are waited for.
template <int HS>
struct DotOfRow {
    int4 out_bits[HS / 8] = {};
    __device__ DotOfRow(const halfX* out, int head_size, bool valid) {
#pragma unroll
        for (int chunk = 0; chunk < HS / 8; chunk++)
            if (valid && chunk * 8 < head_size) out_bits[chunk] = load_bits(out + chunk * 8);
    }
    __device__ float with(Tile<HS> dout, int row) const {
        float sum = 0;
#pragma unroll
        for (int chunk = 0; chunk < HS / 8; chunk++) {
            const PackFloats<halfX> a = load_floats(dout.at(row, chunk)), b = to_floats<halfX>(out_bits[chunk]);
            for (int i = 0; i < 8; i++) sum += a[i] * b[i];
        }
        return sum;
    }
};

// The kernel for dq, of 64 M queries, 16 M per warp; keys come in tiles of COLS. Writes delta
// (B,NH,T).
template <int HS, int COLS, int M, bool GROUPED>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1)
    attention_backward_q_kernel(halfX* dqkv, float* delta, const halfX* dout, const halfX* out, const float* lse,
                                const halfX* qkv, int T, int NH, int head_size, float scale, AttentionOrder order,
                                float* partials) {
    constexpr int WARP_ROWS = 16 * M, ROWS = ATTENTION_WARPS * WARP_ROWS;
    extern __shared__ __align__(128) halfX shared[];
    const AttentionBlock<ROWS, LAST_TILE_FIRST, QUERY_ROWS, GROUPED> block(order, T, NH, head_size);
    const halfX *head = qkv + block.qkv_offset, *dout_head = dout + block.out_offset;
    const Tile<HS> q{shared}, d_o = q.from_row(ROWS);
    auto keys = [&](int tile) { return Tile<HS>{shared + (2 * ROWS + tile % 2 * 2 * COLS) * HS}; };
    auto values = [&](int tile) { return keys(tile).from_row(COLS); };
    auto load_keys = [&](int tile) {
        load_tile<HS, COLS>(keys(tile), head + block.to_keys, block.stride, tile * COLS, block.length, head_size);
        load_tile<HS, COLS>(values(tile), head + block.to_values, block.stride, tile * COLS, block.length, head_size);
    };
    load_tile<HS, ROWS>(q, head, block.stride, block.first, block.length, head_size);
    load_tile<HS, ROWS>(d_o, dout_head, block.C, block.first, block.length, head_size);
    copy_async_commit();
    const int first_tile = first_key_of(block.first, order.window) / COLS;
    load_keys(first_tile);
    copy_async_commit();

    const int warp_row = threadIdx.x / 32 * WARP_ROWS, first_query = block.first + warp_row, lane = threadIdx.x % 32;
    const bool any_query = first_query < block.length;
    const int own_row = lane % WARP_ROWS, own_query = first_query + own_row;  // whose delta this lane computes
    const bool own = lane < WARP_ROWS && own_query < block.length;
    const DotOfRow<HS> dot(out + block.out_offset + (int64_t)own_query * block.C, head_size, own);
    float log_sum[M][2], d[M][2];
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        const int query = first_query + i * 8 + lane / 4;
        log_sum[i / 2][i % 2] = query < block.length ? lse[block.row_offset + query] * LOG2_E : 0.0f;
    }
    copy_async_wait<1>();
    __syncthreads();  // the queries have arrived, for all threads
    const float own_d = dot.with(d_o, warp_row + own_row);
    if (own) delta[block.row_offset + own_query] = own_d;
#pragma unroll
    for (int i = 0; i < 2 * M; i++) d[i / 2][i % 2] = __shfl_sync(0xFFFFFFFFu, own_d, i * 8 + lane / 4);
    const KeptRows<HS, M> queries(RowsInShared<HS, M>{q, warp_row}), douts(RowsInShared<HS, M>{d_o, warp_row});
    const int end = min(block.length, block.first + ROWS), tiles = ceil_div(end, COLS);
    float dq[M][HS / 8][4] = {};
#pragma unroll 1
    for (int tile = first_tile; tile < tiles; tile++) {
        if (tile + 1 < tiles) load_keys(tile + 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();  // this tile has arrived, for all threads
        const int first_key = tile * COLS;
        if (any_query && first_key < first_query + WARP_ROWS && first_key + COLS + order.window > first_query + 1) {
            float p[M][COLS / 8][4], ds[M][COLS / 8][4];
            multiply_transposed<COLS>(p, queries, keys(tile));
            mask_keys(p, first_query, first_key, order.window);
            multiply_transposed<COLS>(ds, douts, values(tile));
#pragma unroll
            for (int m = 0; m < M; m++)
                for (int n = 0; n < COLS / 8; n++)
                    for (int i = 0; i < 4; i++) {
                        const float prob = exp2_flushed(p[m][n][i] * (scale * LOG2_E) - log_sum[m][i / 2]);
                        ds[m][n][i] = prob * (ds[m][n][i] - d[m][i / 2]);
                    }
            multiply<COLS>(dq, ds, keys(tile));
        }
        __syncthreads();  // no thread reads this tile any more
    }
    halfX* dq_head = dqkv + block.qkv_offset;
    float dq_sums[HS / 8][2] = {};
#pragma unroll
    for (int m = 0; m < M; m++)
        store_rows(dq_head, block.stride, first_query + m * 16, block.length, head_size, dq[m], scale, scale, q,
                   warp_row + m * 16, dq_sums);
    if (!partials) return;
    float* sums = (float*)keys(0).data;
    add_lanes<HS>(sums + threadIdx.x / 32 * HS, dq_sums);
    add_warps<HS, 1>(partials + block.sums_offset(NH, head_size), block.C, head_size, sums);
}

// The kernel for dk and dv, of 64 M keys, 16 M per warp; queries come in tiles of COLS, and with
// them their lse and delta. s and dp are transposed, row: key, column: query. Queries after the
// last one are zeros, as are their dout, lse and delta: so p is 1, ds is 0, and they add nothing.
// The keys are read from shared memory for each tile: dk and dv fill the registers.
// GROUPED: heads of queries share the keys, and take steps one after the other; else no register
// counts heads.
template <int HS, int COLS, int M, bool GROUPED>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1)
    attention_backward_kv_kernel(halfX* dqkv, const halfX* dout, const float* lse, const float* delta, const halfX* qkv,
                                 int T, int NH, int head_size, float scale, AttentionOrder order, float* partials) {
    constexpr int WARP_ROWS = 16 * M, ROWS = ATTENTION_WARPS * WARP_ROWS;
    extern __shared__ __align__(128) halfX shared[];
    const AttentionBlock<ROWS, FIRST_TILE_FIRST, KEY_ROWS, GROUPED> block(order, T, NH, head_size);
    const halfX *head = qkv + block.qkv_offset, *dout_head = dout + block.out_offset;
    const Tile<HS> k{shared}, v = k.from_row(ROWS);
    // The buffers of step 0, 1, ...: a tile of queries of one head.
    auto buffer = [&](int step) { return shared + 2 * ROWS * HS + step % 2 * (2 * COLS * HS + 4 * COLS); };
    auto q = [&](int step) { return Tile<HS>{buffer(step)}; };
    auto d_o = [&](int step) { return q(step).from_row(COLS); };
    auto lse_and_delta = [&](int step) { return (float*)(buffer(step) + 2 * COLS * HS); };
    // Queries before the first key see none of the keys, nor do those a window after the last.
    const int end = min(block.length - block.first, ROWS - 1 + order.window), tiles = ceil_div(end, COLS);
    const int steps = GROUPED ? tiles * order.sharing : tiles;
    // Of lse and delta a thread copies one value: the first COLS threads lse, the next COLS threads
    // delta.
    const int copied = threadIdx.x % COLS;
    const float* copied_from = (threadIdx.x < COLS ? lse : delta) + block.row_offset + block.first + copied;
    auto load_queries = [&](int step) {
        const int h = GROUPED ? step / tiles : 0, tile = step - h * tiles;
        const int first_query = block.first + tile * COLS, channel = h * head_size;
        load_tile<HS, COLS>(q(step), head + channel, block.stride, first_query, block.length, head_size);
        load_tile<HS, COLS>(d_o(step), dout_head + channel, block.C, first_query, block.length, head_size);
        if (threadIdx.x < 2 * COLS)
            copy_async_4(lse_and_delta(step) + threadIdx.x, copied_from + (int64_t)h * T + tile * COLS,
                         first_query + copied < block.length);
    };
    load_tile<HS, ROWS>(k, head + block.to_keys, block.stride, block.first, block.length, head_size);
    load_tile<HS, ROWS>(v, head + block.to_values, block.stride, block.first, block.length, head_size);
    load_queries(0);
    copy_async_commit();

    const int warp_row = threadIdx.x / 32 * WARP_ROWS, first_key = block.first + warp_row, lane = threadIdx.x % 32;
    const bool any_key = first_key < block.length;
    const RowsInShared<HS, M> keys{k, warp_row}, values{v, warp_row};
    float dk[M][HS / 8][4] = {}, dv[M][HS / 8][4] = {};
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const int first_query = block.first + (GROUPED ? step % tiles : step) * COLS;
        if (step + 1 < steps) load_queries(step + 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();  // this tile has arrived, for all threads
        if (any_key && first_query + COLS > first_key && first_query < first_key + WARP_ROWS - 1 + order.window) {
            const float *lse_tile = lse_and_delta(step), *delta_tile = lse_tile + COLS;
            float p[M][COLS / 8][4], ds[M][COLS / 8][4];
            multiply_transposed<COLS>(p, keys, q(step));
            if (first_key + WARP_ROWS - 1 > first_query)
                mask(p, first_key, first_query, [](int key, int query) { return key > query; });
            if (first_key + order.window < first_query + COLS)
                mask(p, first_key, first_query, [&](int key, int query) { return key + order.window <= query; });
            multiply_transposed<COLS>(ds, values, d_o(step));
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                for (int i = 0; i < 4; i++) {
                    const int column = n * 8 + lane % 4 * 2 + i % 2;
                    const float log_sum = lse_tile[column] * LOG2_E, d = delta_tile[column];
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        p[m][n][i] = exp2_flushed(p[m][n][i] * (scale * LOG2_E) - log_sum);
                        ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - d);
                    }
                }
            multiply<COLS>(dk, ds, q(step));
            multiply<COLS>(dv, p, d_o(step));
        }
        __syncthreads();  // no thread reads this tile any more
    }
    halfX *dhead = dqkv + block.qkv_offset, *dk_head = dhead + block.to_keys, *dv_head = dhead + block.to_values;
    float dk_sums[HS / 8][2] = {}, dv_sums[HS / 8][2] = {};
#pragma unroll
    for (int m = 0; m < M; m++) {
        const int first = first_key + m * 16, row = warp_row + m * 16;
        store_rows(dk_head, block.stride, first, block.length, head_size, dk[m], scale, scale, k, row, dk_sums);
        store_rows(dv_head, block.stride, first, block.length, head_size, dv[m], 1.0f, 1.0f, v, row, dv_sums);
    }
    if (!partials) return;
    float *sums = (float*)buffer(0), *own_sums = sums + threadIdx.x / 32 * 2 * HS;
    add_lanes<HS>(own_sums, dk_sums), add_lanes<HS>(own_sums + HS, dv_sums);
    add_warps<HS, 2>(partials + block.sums_offset(NH, head_size) + block.C, block.C, head_size, sums);
}
