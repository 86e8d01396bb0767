// Causal self-attention as flash attention; formulas: llmc/cpu/attention.h. Two versions of one algorithm: on tensor cores for bf16 (after
// FlashAttention-2, Dao 2023, arXiv:2307.08691), and on CUDA cores for fp32 (the end of this file). Both read q, k and v from the packed
// qkv (B,T,3C) as the linear layer wrote it.
//
// Forward, tensor cores. A block of 4 warps handles 64 queries of one head, a warp 16 of them. Keys and values come in tiles through shared memory,
// the next tile on its way (cp.async) while this one is multiplied. Scores stay in registers: as the result of q k^T they have the layout
// that p v wants (mma.cuh). The online softmax needs, across lanes, only the four that share a row. Tiles wholly after the queries
// are skipped; long rows of tiles start first, so that the short ones fill the gaps.
//
// Backward. The sums for dk, dv run over queries, the sum for dq over keys. One kernel each, so that every sum belongs to one warp and is taken in
// one order: no atomics, the same bits every time, for 7 products of tiles instead of 5. For dk, dv the scores are computed transposed
// (k q^T), so that again what comes out of one product is what goes into the next.
//
// Shared memory is swizzled: the 16-byte chunk c of row r lies at place c ^ (r % 8) of its row, so that the 8 rows which ldmatrix reads at
// once lie in different banks. FLOPs forward: 4 HS T^2/2 a head. Bytes, at least: qkv and out once.
//
// Head sizes: multiples of 8 from 16 to 256. They are padded with zeros, in shared memory only, to 32, 64, 96, 128 or 256.
#pragma once
#include "llmc/cuda/mma.cuh"

constexpr int ATTENTION_THREADS = 128, ATTENTION_ROWS = 64;  // a block's threads, and its queries (or keys); 16 a warp
constexpr float LOG2_E = 1.4426950408889634f;

inline bool attention_supports(int64_t HS) { return HS >= 16 && HS <= 256 && HS % 8 == 0; }

// ---------------------------------------------------------------------------------------------------------------------------------
// tiles in shared memory, and their products

// Rows of HS bf16 in shared memory, swizzled.
template <int HS>
struct Tile {
    static constexpr int chunks = HS / 8;
    bf16* data;
    __device__ bf16* at(int row, int chunk) const { return data + (row * chunks + (chunks % 8 == 0 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3))) * 8; }
};

// Starts copying rows first.. of one head into the tile; zeros for rows from T on and for channels from head_size on.
template <int HS, int ROWS>
__device__ inline void load_tile(Tile<HS> tile, const bf16* head, int64_t stride, int first, int T, int head_size) {
    for (int i = threadIdx.x; i < ROWS * (HS / 8); i += ATTENTION_THREADS) {
        const int row = i / (HS / 8), chunk = i % (HS / 8);
        const bool valid = first + row < T && chunk * 8 < head_size;
        copy_async(tile.at(row, chunk), head + (valid ? (first + row) * stride + chunk * 8 : 0), valid);
    }
}

// The A of mma: rows row..row+15, channels 16k..16k+15 of a tile.
template <int HS>
__device__ inline void load_a(uint32_t (&a)[4], Tile<HS> tile, int row, int k) {
    const int lane = threadIdx.x % 32;
    ldmatrix(a, tile.at(row + lane % 16, 2 * k + lane / 16));
}

// c (16 x N) = rows a_row..a_row+15 of a, times rows 0..N-1 of b, transposed.
template <int N, int HS>
__device__ inline void multiply_transposed(float (&c)[N / 8][4], Tile<HS> a, int a_row, Tile<HS> b) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 4; i++) c[n][i] = 0;
#pragma unroll 4
    for (int k = 0; k < HS / 16; k++) {
        uint32_t fa[4], fb[4];
        load_a(fa, a, a_row, k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            ldmatrix(fb, b.at(n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            mma(c[2 * n], fa, fb[0], fb[1]);
            mma(c[2 * n + 1], fa, fb[2], fb[3]);
        }
    }
}

// c (16 x HS) += p (16 x N), rounded to bf16, times rows 0..N-1 of b.
template <int N, int HS>
__device__ inline void multiply(float (&c)[HS / 8][4], const float (&p)[N / 8][4], Tile<HS> b) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
        const uint32_t fa[4] = {pack_bf16(p[2 * j][0], p[2 * j][1]), pack_bf16(p[2 * j][2], p[2 * j][3]), pack_bf16(p[2 * j + 1][0], p[2 * j + 1][1]), pack_bf16(p[2 * j + 1][2], p[2 * j + 1][3])};
#pragma unroll
        for (int n = 0; n < HS / 16; n++) {
            uint32_t fb[4];
            ldmatrix_transposed(fb, b.at(j * 16 + lane % 16, 2 * n + lane / 16));
            mma(c[2 * n], fa, fb[0], fb[1]);
            mma(c[2 * n + 1], fa, fb[2], fb[3]);
        }
    }
}

// A warp's 16 rows of c, the upper 8 times upper, the lower times lower, to rows first.. of a head in global memory, by way of rows
// tile_row.. of a tile that only this warp still uses: 16 bytes a store.
template <int HS>
__device__ inline void store_rows(bf16* head, int64_t stride, int first, int T, int head_size, const float (&c)[HS / 8][4], float upper, float lower, Tile<HS> tile, int tile_row) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < HS / 8; n++) {
        *(uint32_t*)(tile.at(tile_row + g, n) + 2 * t) = pack_bf16(c[n][0] * upper, c[n][1] * upper);
        *(uint32_t*)(tile.at(tile_row + g + 8, n) + 2 * t) = pack_bf16(c[n][2] * lower, c[n][3] * lower);
    }
    __syncwarp();
    for (int i = lane; i < 16 * (HS / 8); i += 32) {
        const int row = i / (HS / 8), chunk = i % (HS / 8);
        if (first + row < T && chunk * 8 < head_size) store_pack(head + (first + row) * stride + chunk * 8, load_pack(tile.at(tile_row + row, chunk)));
    }
}

// What a block works on: one head of one sequence, and 64 rows of it.
struct AttentionBlock {
    int64_t b, h, C, stride;
    int first;              // row
    __device__ AttentionBlock(int64_t NH, int head_size, int64_t tile) : b(blockIdx.x / NH), h(blockIdx.x % NH), C(NH * head_size), stride(3 * C), first((int)tile * ATTENTION_ROWS) {}
};

// ---------------------------------------------------------------------------------------------------------------------------------
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
constexpr size_t attention_forward_shared_bytes() { return (ATTENTION_ROWS + 4 * KEYS) * HS * sizeof(bf16); }

template <int HS, int KEYS>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1) attention_forward_kernel(bf16* out, float* lse, const bf16* qkv, int T, int64_t NH, int head_size, float scale) {
    extern __shared__ __align__(128) bf16 shared[];
    const AttentionBlock block(NH, head_size, gridDim.y - 1 - blockIdx.y);
    const bf16* head = qkv + block.b * T * block.stride + block.h * head_size;
    const Tile<HS> q{shared};
    auto keys = [&](int tile) { return Tile<HS>{shared + (ATTENTION_ROWS + tile % 2 * KEYS) * HS}; };  // two buffers in turn
    auto values = [&](int tile) { return Tile<HS>{shared + (ATTENTION_ROWS + (2 + tile % 2) * KEYS) * HS}; };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp * 16, row = block.first + warp_row + lane / 4;  // this lane: rows row, row + 8
    const int end = min(T, block.first + ATTENTION_ROWS), tiles = (end + KEYS - 1) / KEYS;
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
        if (lane % 4 == 0 && row + 8 * half < T) lse[blockIdx.x * (int64_t)T + row + 8 * half] = m[half] * scale + logf(l[half]);
    store_rows(out + block.b * T * block.C + block.h * head_size, block.C, block.first + warp_row, T, head_size, o, 1.0f / l[0], 1.0f / l[1], q, warp_row);
}

// D (B,NH,T) = dout . out of every head at every position. A thread: one of them.
template <class floatX>
__global__ void attention_dot_kernel(float* D, const floatX* dout, const floatX* out, int64_t n, int64_t T, int64_t NH, int head_size) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;  // (b, t, h)
    if (i >= n) return;
    float sum = 0;
    for (int c = 0; c < head_size; c += Pack<floatX>::size) {
        const Pack<floatX> a = load_pack(dout + i * head_size + c), b = load_pack(out + i * head_size + c);
        for (int k = 0; k < Pack<floatX>::size; k++) sum += (float)a[k] * (float)b[k];
    }
    const int64_t h = i % NH, t = i / NH % T, b = i / NH / T;
    D[(b * NH + h) * T + t] = sum;
}

template <int HS, int COLS>
constexpr size_t attention_backward_shared_bytes() { return (2 * ATTENTION_ROWS + 4 * COLS) * HS * sizeof(bf16) + 4 * COLS * sizeof(float); }

// dk and dv of 64 keys, 16 a warp; queries in tiles of COLS.
template <int HS, int COLS>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1) attention_backward_kv_kernel(bf16* dqkv, const bf16* dout, const float* lse, const float* D, const bf16* qkv, int T, int64_t NH, int head_size,
                                                                                float scale) {
    extern __shared__ __align__(128) bf16 shared[];
    const AttentionBlock block(NH, head_size, blockIdx.y);
    const bf16 *head = qkv + block.b * T * block.stride + block.h * head_size, *dout_head = dout + block.b * T * block.C + block.h * head_size;
    const Tile<HS> k{shared}, v{shared + ATTENTION_ROWS * HS};
    bf16* buffers = shared + 2 * ATTENTION_ROWS * HS;
    auto q = [&](int tile) { return Tile<HS>{buffers + tile % 2 * COLS * HS}; };  // two buffers in turn
    auto d_o = [&](int tile) { return Tile<HS>{buffers + (2 + tile % 2) * COLS * HS}; };
    float *lse_tile = (float*)(buffers + 4 * COLS * HS), *D_tile = lse_tile + 2 * COLS;
    const int warp_row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32, key = block.first + warp_row + lane / 4;  // this lane: keys key, key + 8
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
    const int tiles = (T - block.first + COLS - 1) / COLS;  // no query before the first key sees any of them
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
__global__ void __launch_bounds__(ATTENTION_THREADS, 1) attention_backward_q_kernel(bf16* dqkv, const bf16* dout, const float* lse, const float* D, const bf16* qkv, int T, int64_t NH, int head_size,
                                                                               float scale) {
    extern __shared__ __align__(128) bf16 shared[];
    const AttentionBlock block(NH, head_size, gridDim.y - 1 - blockIdx.y);
    const bf16* head = qkv + block.b * T * block.stride + block.h * head_size;
    const Tile<HS> q{shared}, d_o{shared + ATTENTION_ROWS * HS};
    bf16* buffers = shared + 2 * ATTENTION_ROWS * HS;
    auto keys = [&](int tile) { return Tile<HS>{buffers + tile % 2 * COLS * HS}; };  // two buffers in turn
    auto values = [&](int tile) { return Tile<HS>{buffers + (2 + tile % 2) * COLS * HS}; };
    const int warp_row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32, row = block.first + warp_row + lane / 4;
    const int end = min(T, block.first + ATTENTION_ROWS), tiles = (end + COLS - 1) / COLS;
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
    load_tile<HS, ATTENTION_ROWS>(d_o, dout + block.b * T * block.C + block.h * head_size, block.C, block.first, T, head_size);
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
    store_rows(dqkv + block.b * T * block.stride + block.h * head_size, block.stride, block.first + warp_row, T, head_size, dq, scale, scale, q, warp_row);
}

// f.run<HS, KEYS, COLS>() for the padded head size: tiles of KEYS keys forward, of COLS columns backward.
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
        launch("attention_forward", kernel, dim3((unsigned)(B * NH), (unsigned)ceil_div(T, ATTENTION_ROWS)), ATTENTION_THREADS, bytes, stream, out, lse, qkv, (int)T, NH, (int)(C / NH),
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
        launch("attention_dot", attention_dot_kernel<bf16>, dim3((unsigned)ceil_div(B * T * NH, 256)), 256, 0, stream, D, dout, out, B * T * NH, T, NH, (int)(C / NH));
        const float scale = 1.0f / sqrtf((float)(C / NH));
        launch("attention_backward_kv", kv, grid, ATTENTION_THREADS, bytes, stream, dqkv, dout, lse, D, qkv, (int)T, NH, (int)(C / NH), scale);
        launch("attention_backward_q", q, grid, ATTENTION_THREADS, bytes, stream, dqkv, dout, lse, D, qkv, (int)T, NH, (int)(C / NH), scale);
    }
};
inline void attention_forward(bf16* out, float* lse, const bf16* qkv, int64_t B, int64_t T, int64_t C, int64_t NH, cudaStream_t stream) {
    for_head_size(C / NH, AttentionForward{out, lse, qkv, B, T, C, NH, stream});
}
// D (B,NH,T) is scratch.
inline void attention_backward(bf16* dqkv, float* D, const bf16* dout, const bf16* out, const float* lse, const bf16* qkv, int64_t B, int64_t T, int64_t C, int64_t NH, cudaStream_t stream) {
    for_head_size(C / NH, AttentionBackward{dqkv, D, dout, out, lse, qkv, B, T, C, NH, stream});
}

// ---------------------------------------------------------------------------------------------------------------------------------
// CUDA cores, fp32: the same walk over tiles. A block handles TILE rows with (TILE/2)^2 threads; thread (ty, tx) computes a 2 x 2 piece of the
// scores of two tiles, and, of its two rows, every (TILE/2)-th channel of the result, CHANNELS at most.

template <int TILE>
struct SharedRows {  // TILE rows of head_size floats, one float further apart: no bank conflicts between rows
    float* data;
    int head_size;
    __device__ float* operator[](int row) const { return data + row * (head_size + 1); }
    __device__ void load(const float* head, int64_t stride, int first, int T) const {
        for (int i = threadIdx.x; i < TILE * head_size; i += (TILE / 2) * (TILE / 2)) {
            const int row = i / head_size, c = i % head_size;
            (*this)[row][c] = first + row < T ? head[(first + row) * stride + c] : 0.0f;
        }
    }
};
__host__ __device__ constexpr size_t shared_rows_elems(int tile, int head_size) { return (size_t)tile * (head_size + 1); }

// s[i][j] = row 2 ty + i of a times row tx + j TILE/2 of b.
template <int TILE>
__device__ inline void small_products(float (&s)[2][2], SharedRows<TILE> a, SharedRows<TILE> b, int ty, int tx) {
    for (int i = 0; i < 4; i++) s[i / 2][i % 2] = 0;
    for (int c = 0; c < a.head_size; c++)
        for (int i = 0; i < 4; i++) s[i / 2][i % 2] += a[2 * ty + i / 2][c] * b[tx + i % 2 * (TILE / 2)][c];
}
// o[i][c] += sum over j of p[2 ty + i][j] * b[j][tx + c TILE/2], p (TILE, TILE + 1).
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
template <int TILE, int CHANNELS>
__device__ inline void store_channels(float* head, int64_t stride, int row, int T, int head_size, const float (&o)[2][CHANNELS], float scale0, float scale1, int tx) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            if (row + i < T && tx + c * (TILE / 2) < head_size) head[(row + i) * stride + tx + c * (TILE / 2)] = o[i][c] * (i ? scale1 : scale0);
}

template <int TILE, int CHANNELS>
__global__ void __launch_bounds__(TILE* TILE / 4, 1) attention_forward_fp32_kernel(float* out, float* lse, const float* qkv, int T, int64_t NH, int head_size, float scale) {
    extern __shared__ float shared_floats[];
    const SharedRows<TILE> q{shared_floats, head_size}, kv{shared_floats + shared_rows_elems(TILE, head_size), head_size};
    float* p = kv.data + shared_rows_elems(TILE, head_size);
    const int64_t b = blockIdx.x / NH, h = blockIdx.x % NH, C = NH * head_size;
    const int first = (gridDim.y - 1 - blockIdx.y) * TILE, ty = threadIdx.x / (TILE / 2), tx = threadIdx.x % (TILE / 2);
    const float* head = qkv + b * T * 3 * C + h * head_size;
    float o[2][CHANNELS] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    q.load(head, 3 * C, first, T);
    for (int first_key = 0; first_key < first + TILE && first_key < T; first_key += TILE) {
        __syncthreads();
        kv.load(head + C, 3 * C, first_key, T);
        __syncthreads();
        float s[2][2];
        small_products(s, q, kv, ty, tx);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = 2 * ty + i;
            float top = m[i], sum = 0;
            for (int j = 0; j < 2; j++) {
                if (first_key + tx + j * (TILE / 2) > first + row) s[i][j] = -INFINITY;
                top = fmaxf(top, s[i][j]);
            }
            for (int distance = TILE / 4; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, distance));
            for (int j = 0; j < 2; j++) {
                s[i][j] = expf((s[i][j] - top) * scale);
                p[row * (TILE + 1) + tx + j * (TILE / 2)] = s[i][j];
                sum += s[i][j];
            }
            for (int distance = TILE / 4; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
            const float shrink = expf((m[i] - top) * scale);
            m[i] = top, l[i] = l[i] * shrink + sum;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) o[i][c] *= shrink;
        }
        __syncthreads();
        kv.load(head + 2 * C, 3 * C, first_key, T);
        __syncthreads();
        add_products(o, p, kv, ty, tx);
    }
    for (int i = 0; i < 2; i++)
        if (tx == 0 && first + 2 * ty + i < T) lse[blockIdx.x * (int64_t)T + first + 2 * ty + i] = m[i] * scale + logf(l[i]);
    store_channels<TILE>(out + b * T * C + h * head_size, C, first + 2 * ty, T, head_size, o, 1.0f / l[0], 1.0f / l[1], tx);
}

// Backward for TILE rows: KEYS_MINE: they are keys, and dk, dv are the sums over queries; else they are queries, and dq is the sum over keys.
template <int TILE, int CHANNELS, bool KEYS_MINE>
__global__ void __launch_bounds__(TILE* TILE / 4, 1) attention_backward_fp32_kernel(float* dqkv, const float* dout, const float* lse, const float* D, const float* qkv, int T, int64_t NH, int head_size,
                                                                               float scale) {
    extern __shared__ float shared_floats[];
    const size_t elems = shared_rows_elems(TILE, head_size);
    const SharedRows<TILE> q{shared_floats, head_size}, k{shared_floats + elems, head_size}, v{shared_floats + 2 * elems, head_size}, d_o{shared_floats + 3 * elems, head_size};
    float *p = d_o.data + elems, *ds = p + TILE * (TILE + 1);
    const int64_t b = blockIdx.x / NH, h = blockIdx.x % NH, C = NH * head_size;
    const int mine = (KEYS_MINE ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * TILE, ty = threadIdx.x / (TILE / 2), tx = threadIdx.x % (TILE / 2);
    const float *head = qkv + b * T * 3 * C + h * head_size, *dout_head = dout + b * T * C + h * head_size;
    auto load_queries = [&](int first) { q.load(head, 3 * C, first, T), d_o.load(dout_head, C, first, T); };
    auto load_keys = [&](int first) { k.load(head + C, 3 * C, first, T), v.load(head + 2 * C, 3 * C, first, T); };
    if (KEYS_MINE) load_keys(mine);
    else load_queries(mine);
    float sum1[2][CHANNELS] = {}, sum2[2][CHANNELS] = {};  // dk and dv, or dq
    for (int other = KEYS_MINE ? mine : 0; KEYS_MINE ? other < T : other <= mine; other += TILE) {
        __syncthreads();
        if (KEYS_MINE) load_queries(other);
        else load_keys(other);
        __syncthreads();
        float s[2][2], dp[2][2];
        small_products(s, KEYS_MINE ? k : q, KEYS_MINE ? q : k, ty, tx);
        small_products(dp, KEYS_MINE ? v : d_o, KEYS_MINE ? d_o : v, ty, tx);
        for (int i = 0; i < 4; i++) {
            const int row = 2 * ty + i / 2, column = tx + i % 2 * (TILE / 2), key = KEYS_MINE ? mine + row : other + column, query = KEYS_MINE ? other + column : mine + row;
            float prob = 0, grad = 0;
            if (key <= query && query < T) {
                prob = expf(s[i / 2][i % 2] * scale - lse[blockIdx.x * (int64_t)T + query]);
                grad = prob * (dp[i / 2][i % 2] - D[blockIdx.x * (int64_t)T + query]) * scale;
            }
            p[row * (TILE + 1) + column] = prob;
            ds[row * (TILE + 1) + column] = grad;
        }
        __syncthreads();
        add_products(sum1, ds, KEYS_MINE ? q : k, ty, tx);
        if (KEYS_MINE) add_products(sum2, p, d_o, ty, tx);
    }
    float* dhead = dqkv + b * T * 3 * C + h * head_size;
    store_channels<TILE>(dhead + (KEYS_MINE ? C : 0), 3 * C, mine + 2 * ty, T, head_size, sum1, 1.0f, 1.0f, tx);
    if (KEYS_MINE) store_channels<TILE>(dhead + 2 * C, 3 * C, mine + 2 * ty, T, head_size, sum2, 1.0f, 1.0f, tx);
}

template <int TILE, int CHANNELS>
void attention_forward_tiles(float* out, float* lse, const float* qkv, int64_t B, int64_t T, int64_t C, int64_t NH, cudaStream_t stream) {
    const int HS = (int)(C / NH);
    const size_t bytes = (2 * shared_rows_elems(TILE, HS) + TILE * (TILE + 1)) * sizeof(float);
    auto kernel = attention_forward_fp32_kernel<TILE, CHANNELS>;
    allow_shared(kernel, bytes, "attention_forward");
    launch("attention_forward", kernel, dim3((unsigned)(B * NH), (unsigned)ceil_div(T, TILE)), TILE * TILE / 4, bytes, stream, out, lse, qkv, (int)T, NH, HS, 1.0f / sqrtf((float)HS));
}
inline void attention_forward(float* out, float* lse, const float* qkv, int64_t B, int64_t T, int64_t C, int64_t NH, cudaStream_t stream) {
    if (C / NH <= 128) attention_forward_tiles<32, 8>(out, lse, qkv, B, T, C, NH, stream);
    else attention_forward_tiles<16, 32>(out, lse, qkv, B, T, C, NH, stream);
}
template <int TILE, int CHANNELS>
void attention_backward_tiles(float* dqkv, float* D, const float* dout, const float* out, const float* lse, const float* qkv, int64_t B, int64_t T, int64_t C, int64_t NH, cudaStream_t stream) {
    const int HS = (int)(C / NH);
    const size_t bytes = (4 * shared_rows_elems(TILE, HS) + 2 * TILE * (TILE + 1)) * sizeof(float);
    const dim3 grid((unsigned)(B * NH), (unsigned)ceil_div(T, TILE));
    auto kv = attention_backward_fp32_kernel<TILE, CHANNELS, true>;
    auto q = attention_backward_fp32_kernel<TILE, CHANNELS, false>;
    allow_shared(kv, bytes, "attention_backward_kv");
    allow_shared(q, bytes, "attention_backward_q");
    launch("attention_dot", attention_dot_kernel<float>, dim3((unsigned)ceil_div(B * T * NH, 256)), 256, 0, stream, D, dout, out, B * T * NH, T, NH, HS);
    launch("attention_backward_kv", kv, grid, TILE * TILE / 4, bytes, stream, dqkv, dout, lse, (const float*)D, qkv, (int)T, NH, HS, 1.0f / sqrtf((float)HS));
    launch("attention_backward_q", q, grid, TILE * TILE / 4, bytes, stream, dqkv, dout, lse, (const float*)D, qkv, (int)T, NH, HS, 1.0f / sqrtf((float)HS));
}
inline void attention_backward(float* dqkv, float* D, const float* dout, const float* out, const float* lse, const float* qkv, int64_t B, int64_t T, int64_t C, int64_t NH, cudaStream_t stream) {
    if (C / NH <= 128) attention_backward_tiles<32, 8>(dqkv, D, dout, out, lse, qkv, B, T, C, NH, stream);
    else attention_backward_tiles<16, 32>(dqkv, D, dout, out, lse, qkv, B, T, C, NH, stream);
}

// ---------------------------------------------------------------------------------------------------------------------------------
// Generation; llmc/cpu/attention.h. One block a head: scores of all positions, softmax, mix of the values.
constexpr int DECODE_THREADS = 128;
template <class floatX>
__global__ void __launch_bounds__(DECODE_THREADS) attention_decode_kernel(floatX* out, floatX* keys, floatX* values, const floatX* qkv, float* scores, int64_t last, int64_t maxT, int64_t C, int head_size) {
    __shared__ float tops[DECODE_THREADS / 32];
    const int64_t first = (int64_t)blockIdx.x * head_size;
    for (int c = threadIdx.x; c < head_size; c += DECODE_THREADS) keys[last * C + first + c] = qkv[C + first + c], values[last * C + first + c] = qkv[2 * C + first + c];
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
void attention_decode(floatX* out, floatX* keys, floatX* values, const floatX* qkv, float* scores, int64_t last, int64_t maxT, int64_t C, int64_t NH, cudaStream_t stream) {
    launch("attention_decode", attention_decode_kernel<floatX>, dim3((unsigned)NH), DECODE_THREADS, 0, stream, out, keys, values, qkv, scores, last, maxT, C, (int)(C / NH));
}
