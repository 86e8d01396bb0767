// Causal self-attention as flash attention. Formulas and shapes: llmc/cpu/attention.h. The same
// algorithm twice: for bf16 and fp16 on tensor cores (after FlashAttention-2, Dao 2023,
// arXiv:2307.08691, section 3), for fp32 on CUDA cores. Both read q, k and v from the packed qkv
// (B,T,3C) as the linear layer wrote it; with NKV heads of keys and of values, which heads of
// queries share, it is (B,T,C + 2 NKV C/NH).
//
//     attention_forward.cuh       forward: scores, softmax and mixing of values, tile by tile
//     attention_backward.cuh      backward: one kernel for dq, one for dk and dv
//     attention_products.cuh      products of tiles on tensor cores
//     attention_tiles.cuh         tiles of rows in shared memory
//     attention_block.cuh         which rows of which head a block works on, in which order; documents
//     attention_fp32.cuh          both passes in fp32
//     attention_decode.cuh        one position at a time, for generation
//
// This file picks the kernel for a head size and starts it.
//
// FLOPs: 2 B T^2 C forward, 5 B T^2 C backward (7 with what is computed twice). Bytes at least, in
// 16 bits: 8 B T C forward (qkv read, out written), 16 B T C backward (qkv, dout, out read, dqkv
// written).
#pragma once
#include "llmc/cuda/attention_backward.cuh"
#include "llmc/cuda/attention_decode.cuh"
#include "llmc/cuda/attention_forward.cuh"
#include "llmc/cuda/attention_fp32.cuh"
#include "llmc/cuda/column_sums.cuh"

// Head sizes: multiples of 8 from 16 to 256. In shared memory they are padded with zeros to 32, 64,
// 96, 128 or 256.
inline bool attention_supports(int64_t HS) { return HS >= 16 && HS <= 256 && HS % 8 == 0; }

// Calls f.run<HS, KEYS, COLS, M>() with the padded head size, the keys per tile of the forward
// kernel, the columns per tile of the backward kernels, and M, where a warp has 16 M rows. They are
// what registers and shared memory (99 KB per block on the smallest chips) allow.
template <class F>
inline void for_head_size(int64_t head_size, F& f) {
    if (head_size <= 32) f.template run<32, 64, 32, 2>();
    else if (head_size <= 64) f.template run<64, 64, 32, 2>();
    else if (head_size <= 96) f.template run<96, 64, 32, 1>();
    else if (head_size <= 128) f.template run<128, 64, 32, 1>();
    else f.template run<256, 32, 16, 1>();
}

struct AttentionRows {
    int64_t rows;
    template <int HS, int KEYS, int COLS, int M>
    void run() {
        rows = 16 * M * ATTENTION_WARPS;
    }
};
// The positions in a tile of DocumentTiles, by head size.
template <class floatX>
int64_t attention_tile_rows(int64_t head_size) {
    if (sizeof(floatX) == 4) return attention_fp32_rows(head_size);
    AttentionRows found{};
    for_head_size(head_size, found);
    return found.rows;
}

template <bool GROUPED>
struct AttentionForward {
    halfX* out;
    float* lse;
    const halfX* qkv;
    int64_t B, T, C, NH;
    cudaStream_t stream;
    DocumentTiles documents;
    int64_t window, NKV;
    template <int HS, int KEYS, int COLS, int M>
    void run() {
        const size_t shared_bytes = attention_forward_shared_bytes<HS, KEYS, M>();
        const int head_size = (int)(C / NH);
        const float scale = 1.0f / sqrtf((float)head_size);
        const dim3 grid = attention_grid(B, T, NH, 16 * M * ATTENTION_WARPS, documents);
        const AttentionOrder order = attention_order(B, T, C, NH, NKV, NH, sizeof(halfX), documents, window);
        auto kernel = attention_forward_kernel<HS, KEYS, M, GROUPED>;
        allow_shared(kernel, shared_bytes, "attention_forward");
        launch("attention_forward", kernel, grid, ATTENTION_THREADS, shared_bytes, stream, out, lse, qkv, (int)T,
               (int)NH, head_size, scale, order);
    }
};
constexpr int ATTENTION_PARTS = 512;  // of the sums over rows of dqkv: 64 sequences of 1024 positions
template <bool GROUPED>
struct AttentionBackward {
    halfX* dqkv;
    float* delta;
    const halfX *dout, *out;
    const float* lse;
    const halfX* qkv;
    int64_t B, T, C, NH;
    cudaStream_t stream;
    DocumentTiles documents;
    int64_t window, NKV;
    float* partials = nullptr;
    int64_t parts = 0;  // that the kernels have left there
    template <int HS, int KEYS, int COLS, int M>
    void run() {
        constexpr int64_t ROWS = 16 * M * ATTENTION_WARPS;
        const int head_size = (int)(C / NH);
        const float scale = 1.0f / sqrtf((float)head_size);
        const int64_t tiles = ceil_div(T, ROWS);
        const bool leaves_sums = partials && !documents.tiles && NKV == NH && B * tiles <= ATTENTION_PARTS;
        parts = leaves_sums ? B * tiles : 0;
        // heads: of the rows of its blocks
        auto run_kernel = [&](const char* name, auto kernel, int64_t heads, size_t shared_bytes, auto... tensors) {
            const AttentionOrder order = attention_order(B, T, C, NH, NKV, heads, sizeof(halfX), documents, window);
            allow_shared(kernel, shared_bytes, name);
            launch(name, kernel, attention_grid(B, T, heads, ROWS, documents), ATTENTION_THREADS, shared_bytes, stream,
                   tensors..., qkv, (int)T, (int)NH, head_size, scale, order, leaves_sums ? partials : nullptr);
        };
        run_kernel("attention_backward_q", attention_backward_q_kernel<HS, COLS, M, GROUPED>, NH,
                   attention_backward_q_shared_bytes<HS, COLS, M>(), dqkv, delta, dout, out, lse);
        run_kernel("attention_backward_kv", attention_backward_kv_kernel<HS, COLS, M, GROUPED>, NKV,
                   attention_backward_kv_shared_bytes<HS, COLS, M>(), dqkv, dout, lse, delta);
    }
};
// NKV less than NH: with GROUPED.
template <bool GROUPED = false>
void attention_forward(halfX* out, float* lse, const halfX* qkv, int64_t B, int64_t T, int64_t C, int64_t NH,
                       cudaStream_t stream, DocumentTiles documents = {}, int64_t window = 0, int64_t NKV = 0) {
    const StreamRange in_stream(work::attention(B * T, twice_seen(T, window), C, sizeof(halfX)), stream);
    AttentionForward<GROUPED> forward{out, lse, qkv, B, T, C, NH, stream, documents, window, NKV > 0 ? NKV : NH};
    for_head_size(C / NH, forward);
}
// Attention backward in 16 bits. delta (B,NH,T) is scratch. partials, if it is not null, has room
// for ATTENTION_PARTS * 3 C: then the parts of the sums over the rows of dqkv are left there and
// returned, unless there are more of them, or documents, or heads that share keys: NKV less than
// NH, with GROUPED.
template <bool GROUPED = false>
ColumnSums attention_backward(halfX* dqkv, float* delta, const halfX* dout, const halfX* out, const float* lse,
                              const halfX* qkv, int64_t B, int64_t T, int64_t C, int64_t NH, cudaStream_t stream,
                              DocumentTiles documents = {}, float* partials = nullptr, int64_t window = 0,
                              int64_t NKV = 0) {
    const StreamRange in_stream(work::attention_backward(B * T, twice_seen(T, window), C, sizeof(halfX)), stream);
    AttentionBackward<GROUPED> backward{
        dqkv, delta, dout, out, lse, qkv, B, T, C, NH, stream, documents, window, NKV > 0 ? NKV : NH, partials};
    for_head_size(C / NH, backward);
    return {partials, backward.parts, 3 * C};
}
