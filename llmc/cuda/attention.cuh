// Causal self-attention as flash attention; formulas: llmc/cpu/attention.h. Two versions of one
// algorithm: on tensor cores for bf16 (after FlashAttention-2, Dao 2023, arXiv:2307.08691), and on
// CUDA cores for fp32 (attention_fp32.cuh). Both read q, k and v from the packed qkv (B,T,3C) as
// the linear layer wrote it.
//
// Forward, tensor cores. A block of 4 warps handles 64 queries of one head, a warp 16 of them. Keys
// and values come in tiles through shared memory, the next tile on its way (cp.async) while this
// one is multiplied. Scores stay in registers: as the result of q k^T they have the layout that p v
// wants (mma.cuh). The online softmax needs, across lanes, only the four that share a row. Tiles
// wholly after the queries are skipped; long rows of tiles start first, so that the short ones fill
// the gaps.
//
// Backward. The sums for dk, dv run over queries, the sum for dq over keys. One kernel each, so
// that every sum belongs to one warp and is taken in one order: no atomics, the same bits every
// time, for 7 products of tiles instead of 5. For dk, dv the scores are computed transposed (k
// q^T), so that again what comes out of one product is what goes into the next.
//
// FLOPs forward: 4 HS T^2/2 a head. Bytes, at least: qkv and out once.
//
// Head sizes: multiples of 8 from 16 to 256. They are padded with zeros, in shared memory only, to
// 32, 64, 96, 128 or 256.
#pragma once
#include "llmc/cuda/attention_fp32.cuh"
#include "llmc/cuda/attention_tiles.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

inline bool attention_supports(int64_t HS) { return HS >= 16 && HS <= 256 && HS % 8 == 0; }

// -------------------------------------------------------------------------------------------------
// tensor cores

// The largest of x, and the sum, over the four lanes that hold one row.
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

template <int HS, int KEYS>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1)
    attention_forward_kernel(bf16* out, float* lse, const bf16* qkv, int T, int64_t NH, int head_size, float scale) {
    extern __shared__ __align__(128) bf16 shared[];
    const AttentionBlock block(NH, head_size, gridDim.y - 1 - blockIdx.y);
    const bf16* head = qkv + block.b * T * block.stride + block.h * head_size;
    const Tile<HS> q{shared};
    // two buffers in turn
    auto keys = [&](int tile) { return Tile<HS>{shared + (ATTENTION_ROWS + tile % 2 * KEYS) * HS}; };
    auto values = [&](int tile) { return Tile<HS>{shared + (ATTENTION_ROWS + (2 + tile % 2) * KEYS) * HS}; };
    // this lane: rows row, row + 8
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp * 16,
              row = block.first + warp_row + lane / 4;
    const int end = min(T, block.first + ATTENTION_ROWS), tiles = ceil_div(end, KEYS);
    load_tile<HS, ATTENTION_ROWS>(q, head, block.stride, block.first, T, head_size);
    load_tile<HS, KEYS>(keys(0), head + block.C, block.stride, 0, T, head_size);
    load_tile<HS, KEYS>(values(0), head + 2 * block.C, block.stride, 0, T, head_size);
    copy_async_commit();

    float o[HS / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) {
            load_tile<HS, KEYS>(keys(tile + 1), head + block.C, block.stride, (tile + 1) * KEYS, T, head_size);
            load_tile<HS, KEYS>(values(tile + 1), head + 2 * block.C, block.stride, (tile + 1) * KEYS, T, head_size);
        }
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();  // this tile is there, for all
        const int first_key = tile * KEYS;
        if (first_key <= block.first + warp_row + 15) {
            float s[KEYS / 8][4];
            multiply_transposed<KEYS>(s, q, warp_row, keys(tile));
            if (first_key + KEYS - 1 > block.first + warp_row) {  // some keys come after some queries
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
                    for (int i = 0; i < 4; i++)
                        if (first_key + n * 8 + lane % 4 * 2 + i % 2 > row + i / 2 * 8) s[n][i] = -INFINITY;
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float top = m[half], sum = 0;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
                top = row_max(top);
                const float shift = top * (scale * LOG2_E), shrink = exp2f(m[half] * (scale * LOG2_E) - shift);
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
                    for (int i = 2 * half; i < 2 * half + 2; i++) {
                        s[n][i] = exp2f(s[n][i] * (scale * LOG2_E) - shift);
                        sum += s[n][i];
                    }
                m[half] = top;
                l[half] = l[half] * shrink + row_sum(sum);
#pragma unroll
                for (int n = 0; n < HS / 8; n++) o[n][2 * half] *= shrink, o[n][2 * half + 1] *= shrink;
            }
            multiply<KEYS>(o, s, values(tile));
        }
        __syncthreads();  // nobody reads this tile any more
    }
    for (int half = 0; half < 2; half++)
        if (lane % 4 == 0 && row + 8 * half < T)
            lse[blockIdx.x * (int64_t)T + row + 8 * half] = m[half] * scale + logf(l[half]);
    store_rows(out + block.b * T * block.C + block.h * head_size, block.C, block.first + warp_row, T, head_size, o,
               1.0f / l[0], 1.0f / l[1], q, warp_row);
}

template <int HS, int COLS>
constexpr size_t attention_backward_shared_bytes() {
    return (2 * ATTENTION_ROWS + 4 * COLS) * HS * sizeof(bf16) + 4 * COLS * sizeof(float);
}

// dk and dv of 64 keys, 16 a warp; queries in tiles of COLS.
template <int HS, int COLS>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1)
    attention_backward_kv_kernel(bf16* dqkv, const bf16* dout, const float* lse, const float* D, const bf16* qkv, int T,
                                 int64_t NH, int head_size, float scale) {
    extern __shared__ __align__(128) bf16 shared[];
    const AttentionBlock block(NH, head_size, blockIdx.y);
    const bf16 *head = qkv + block.b * T * block.stride + block.h * head_size,
               *dout_head = dout + block.b * T * block.C + block.h * head_size;
    const Tile<HS> k{shared}, v{shared + ATTENTION_ROWS * HS};
    bf16* buffers = shared + 2 * ATTENTION_ROWS * HS;
    auto q = [&](int tile) { return Tile<HS>{buffers + tile % 2 * COLS * HS}; };  // two buffers in turn
    auto d_o = [&](int tile) { return Tile<HS>{buffers + (2 + tile % 2) * COLS * HS}; };
    float *lse_tile = (float*)(buffers + 4 * COLS * HS), *D_tile = lse_tile + 2 * COLS;
    // this lane: keys key, key + 8
    const int warp_row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32, key = block.first + warp_row + lane / 4;
    auto load_queries = [&](int tile, int first_query) {
        load_tile<HS, COLS>(q(tile), head, block.stride, first_query, T, head_size);
        load_tile<HS, COLS>(d_o(tile), dout_head, block.C, first_query, T, head_size);
        for (int i = threadIdx.x; i < COLS; i += ATTENTION_THREADS) {
            const bool valid = first_query + i < T;  // beyond the end: probability e^-inf
            lse_tile[tile % 2 * COLS + i] = valid ? lse[blockIdx.x * (int64_t)T + first_query + i] * LOG2_E : INFINITY;
            D_tile[tile % 2 * COLS + i] = valid ? D[blockIdx.x * (int64_t)T + first_query + i] : 0.0f;
        }
    };
    load_tile<HS, ATTENTION_ROWS>(k, head + block.C, block.stride, block.first, T, head_size);
    load_tile<HS, ATTENTION_ROWS>(v, head + 2 * block.C, block.stride, block.first, T, head_size);
    load_queries(0, block.first);
    copy_async_commit();

    float dk[HS / 8][4] = {}, dv[HS / 8][4] = {};
    const int tiles = ceil_div(T - block.first, COLS);  // no query before the first key sees any of them
    for (int tile = 0; tile < tiles; tile++) {
        const int first_query = block.first + tile * COLS;
        if (tile + 1 < tiles) load_queries(tile + 1, first_query + COLS);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        if (first_query + COLS - 1 >= block.first + warp_row) {
            float p[COLS / 8][4], ds[COLS / 8][4];
            multiply_transposed<COLS>(p, k, warp_row, q(tile));
            multiply_transposed<COLS>(ds, v, warp_row, d_o(tile));
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                for (int i = 0; i < 4; i++) {
                    const int column = n * 8 + lane % 4 * 2 + i % 2;
                    const bool seen = key + i / 2 * 8 <= first_query + column;
                    p[n][i] = seen ? exp2f(p[n][i] * (scale * LOG2_E) - lse_tile[tile % 2 * COLS + column]) : 0.0f;
                    ds[n][i] = p[n][i] * (ds[n][i] - D_tile[tile % 2 * COLS + column]);
                }
            multiply<COLS>(dv, p, d_o(tile));
            multiply<COLS>(dk, ds, q(tile));
        }
        __syncthreads();
    }
    bf16* dhead = dqkv + block.b * T * block.stride + block.h * head_size;
    store_rows(dhead + block.C, block.stride, block.first + warp_row, T, head_size, dk, scale, scale, k, warp_row);
    store_rows(dhead + 2 * block.C, block.stride, block.first + warp_row, T, head_size, dv, 1.0f, 1.0f, v, warp_row);
}

// dq of 64 queries, 16 a warp; keys in tiles of COLS.
template <int HS, int COLS>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1)
    attention_backward_q_kernel(bf16* dqkv, const bf16* dout, const float* lse, const float* D, const bf16* qkv, int T,
                                int64_t NH, int head_size, float scale) {
    extern __shared__ __align__(128) bf16 shared[];
    const AttentionBlock block(NH, head_size, gridDim.y - 1 - blockIdx.y);
    const bf16* head = qkv + block.b * T * block.stride + block.h * head_size;
    const Tile<HS> q{shared}, d_o{shared + ATTENTION_ROWS * HS};
    bf16* buffers = shared + 2 * ATTENTION_ROWS * HS;
    auto keys = [&](int tile) { return Tile<HS>{buffers + tile % 2 * COLS * HS}; };  // two buffers in turn
    auto values = [&](int tile) { return Tile<HS>{buffers + (2 + tile % 2) * COLS * HS}; };
    const int warp_row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32, row = block.first + warp_row + lane / 4;
    const int end = min(T, block.first + ATTENTION_ROWS), tiles = ceil_div(end, COLS);
    float log_sum[2], d[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool valid = row + 8 * half < T;
        log_sum[half] = valid ? lse[blockIdx.x * (int64_t)T + row + 8 * half] * LOG2_E : INFINITY;
        d[half] = valid ? D[blockIdx.x * (int64_t)T + row + 8 * half] : 0.0f;
    }
    auto load_keys = [&](int tile) {
        load_tile<HS, COLS>(keys(tile), head + block.C, block.stride, tile * COLS, T, head_size);
        load_tile<HS, COLS>(values(tile), head + 2 * block.C, block.stride, tile * COLS, T, head_size);
    };
    load_tile<HS, ATTENTION_ROWS>(q, head, block.stride, block.first, T, head_size);
    load_tile<HS, ATTENTION_ROWS>(d_o, dout + block.b * T * block.C + block.h * head_size, block.C, block.first, T,
                                  head_size);
    load_keys(0);
    copy_async_commit();

    float dq[HS / 8][4] = {};
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) load_keys(tile + 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        const int first_key = tile * COLS;
        if (first_key <= block.first + warp_row + 15) {
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
        __syncthreads();
    }
    store_rows(dqkv + block.b * T * block.stride + block.h * head_size, block.stride, block.first + warp_row, T,
               head_size, dq, scale, scale, q, warp_row);
}

// f.run<HS, KEYS, COLS>() for the padded head size: tiles of KEYS keys forward, of COLS columns
// backward.
template <class F>
inline void for_head_size(int64_t head_size, F f) {
    if (head_size <= 32) f.template run<32, 64, 64>();
    else if (head_size <= 64) f.template run<64, 64, 64>();
    else if (head_size <= 96) f.template run<96, 64, 32>();
    else if (head_size <= 128) f.template run<128, 64, 32>();
    else f.template run<256, 32, 16>();
}

struct AttentionForward {
    bf16* out;
    float* lse;
    const bf16* qkv;
    int64_t B, T, C, NH;
    cudaStream_t stream;
    template <int HS, int KEYS, int COLS>
    void run() {
        const size_t bytes = attention_forward_shared_bytes<HS, KEYS>();
        auto kernel = attention_forward_kernel<HS, KEYS>;
        allow_shared(kernel, bytes, "attention_forward");
        launch("attention_forward", kernel, dim3((unsigned)(B * NH), (unsigned)ceil_div(T, ATTENTION_ROWS)),
               ATTENTION_THREADS, bytes, stream, out, lse, qkv, (int)T, NH, (int)(C / NH),
               1.0f / sqrtf((float)(C / NH)));
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
    template <int HS, int KEYS, int COLS>
    void run() {
        const size_t bytes = attention_backward_shared_bytes<HS, COLS>();
        const dim3 grid((unsigned)(B * NH), (unsigned)ceil_div(T, ATTENTION_ROWS));
        auto kv = attention_backward_kv_kernel<HS, COLS>;
        auto q = attention_backward_q_kernel<HS, COLS>;
        allow_shared(kv, bytes, "attention_backward_kv");
        allow_shared(q, bytes, "attention_backward_q");
        launch("attention_dot", attention_dot_kernel<bf16>, dim3((unsigned)ceil_div(B * T * NH, 256)), 256, 0, stream,
               D, dout, out, B * T * NH, T, NH, (int)(C / NH));
        const float scale = 1.0f / sqrtf((float)(C / NH));
        launch("attention_backward_kv", kv, grid, ATTENTION_THREADS, bytes, stream, dqkv, dout, lse, D, qkv, (int)T, NH,
               (int)(C / NH), scale);
        launch("attention_backward_q", q, grid, ATTENTION_THREADS, bytes, stream, dqkv, dout, lse, D, qkv, (int)T, NH,
               (int)(C / NH), scale);
    }
};
inline void attention_forward(bf16* out, float* lse, const bf16* qkv, int64_t B, int64_t T, int64_t C, int64_t NH,
                              cudaStream_t stream) {
    for_head_size(C / NH, AttentionForward{out, lse, qkv, B, T, C, NH, stream});
}
// D (B,NH,T) is scratch.
inline void attention_backward(bf16* dqkv, float* D, const bf16* dout, const bf16* out, const float* lse,
                               const bf16* qkv, int64_t B, int64_t T, int64_t C, int64_t NH, cudaStream_t stream) {
    for_head_size(C / NH, AttentionBackward{dqkv, D, dout, out, lse, qkv, B, T, C, NH, stream});
}

// -------------------------------------------------------------------------------------------------
// Generation; llmc/cpu/attention.h. One block a head: scores of all positions, softmax, mix of the
// values.
constexpr int DECODE_THREADS = 128;
template <class floatX>
__global__ void __launch_bounds__(DECODE_THREADS)
    attention_decode_kernel(floatX* out, floatX* keys, floatX* values, const floatX* qkv, float* scores, int64_t last,
                            int64_t maxT, int64_t C, int head_size) {
    __shared__ float tops[DECODE_THREADS / 32];
    const int64_t first = (int64_t)blockIdx.x * head_size;
    for (int c = threadIdx.x; c < head_size; c += DECODE_THREADS)
        keys[last * C + first + c] = qkv[C + first + c], values[last * C + first + c] = qkv[2 * C + first + c];
    __syncthreads();
    float *p = scores + blockIdx.x * maxT, top = -INFINITY, sum = 0;
    for (int64_t t = threadIdx.x; t <= last; t += DECODE_THREADS) {
        float dot = 0;
        for (int c = 0; c < head_size; c++) dot += (float)qkv[first + c] * (float)keys[t * C + first + c];
        p[t] = dot / sqrtf((float)head_size);
        top = fmaxf(top, p[t]);
    }
    top = warp_max(top);
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < DECODE_THREADS / 32; w++) top = fmaxf(top, tops[w]);
    for (int64_t t = threadIdx.x; t <= last; t += DECODE_THREADS) sum += p[t] = expf(p[t] - top);
    sum = block_sum(sum);  // its barriers also make p whole
    for (int c = threadIdx.x; c < head_size; c += DECODE_THREADS) {
        float mix = 0;
        for (int64_t t = 0; t <= last; t++) mix += p[t] * (float)values[t * C + first + c];
        out[first + c] = (floatX)(mix / sum);
    }
}
template <class floatX>
void attention_decode(floatX* out, floatX* keys, floatX* values, const floatX* qkv, float* scores, int64_t last,
                      int64_t maxT, int64_t C, int64_t NH, cudaStream_t stream) {
    launch("attention_decode", attention_decode_kernel<floatX>, dim3((unsigned)NH), DECODE_THREADS, 0, stream, out,
           keys, values, qkv, scores, last, maxT, C, (int)(C / NH));
}
