// The embedding; formulas: llmc/cpu/encoder.h. C must be a multiple of Pack<floatX>::size.
//
// The backward pass adds the gradients of many positions to the one row of dwte that their token
// has. Atomics would add them in a different order every time. Instead the host, which knows the
// tokens, sorts the positions by token (llmc/gpt2/token_order.h), and one block sums the positions
// of one token, or a part of them, for 32 Packs of channels. Sums are fp32, in an order that
// depends on the tokens alone.
//
// Memory-bound. Forward reads two values and writes one per element of out; backward reads dout
// twice (for dwte and for dwpe), and reads and writes the rows of dwte that occur.
#pragma once
#include "llmc/cuda/common.cuh"
#include "llmc/gpt2/token_order.h"

constexpr int ENCODER_WARPS = 4;  // per block
constexpr int ENCODER_SUM_THREADS = 128;
constexpr int ENCODER_PARTS = 1024;  // sums of segments in partials, at most

// The forward kernel: one thread per Pack of out. Position t of inp is position first + t of the
// text.
template <class floatX>
__global__ void encoder_forward_kernel(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int64_t rows,
                                       int64_t T, int64_t C, int64_t first) {
    for_each_pack<floatX>(rows * C, [&](size_t i, int) {
        const int64_t row = i / C, c = i % C;
        const PackFloats<floatX> token = load_floats(wte + inp[row] * C + c);
        const PackFloats<floatX> position = load_floats(wpe + (first + row % T) * C + c);
        PackFloats<floatX> sum;
        for (int k = 0; k < Pack<floatX>::size; k++) sum[k] = token[k] + position[k];
        store_floats(out + i, sum);
    });
}

// The most positions of one segment. In text the most frequent token has several percent of all
// positions: if one block summed them, the other multiprocessors would wait for it. So that token
// has several segments, at most 1024 of all such tokens together.
inline int64_t encoder_segment_positions(int64_t rows) {
    const int64_t most = ceil_div(rows, ENCODER_PARTS / 2);
    return most > 64 ? most : 64;
}

// The sums of the segments: one block per segment and 32 Packs of channels, grid (segments, C / 32
// Packs), 32 x 4 threads. A lane has one Pack of channels. The positions are split among the 4
// warps, whose sums are added in order through shared memory. The sum of a token's only segment is
// added to dwte. Those of the first `split` segments, of tokens that have several, go to partials.
template <class floatX>
__global__ void __launch_bounds__(32 * ENCODER_WARPS)
    encoder_backward_wte_kernel(float* dwte, float* partials, const floatX* dout, const int* inp, const int* order,
                                const int* begin, int split, int64_t C) {
    constexpr int N = Pack<floatX>::size, ROWS = 4;  // loaded before the first is added
    __shared__ float sums[ENCODER_WARPS][32 * N];
    const int first = begin[blockIdx.x], last = begin[blockIdx.x + 1];
    const int64_t c = ((int64_t)blockIdx.y * 32 + threadIdx.x) * N;
    float sum[N] = {};
    for (int i = first + threadIdx.y; i < last && c < C; i += ROWS * ENCODER_WARPS) {
        int position[ROWS];
        int4 bits[ROWS] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++) position[r] = i + r * ENCODER_WARPS < last ? order[i + r * ENCODER_WARPS] : -1;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (position[r] >= 0) bits[r] = load_bits(dout + position[r] * C + c);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const PackFloats<floatX> d = to_floats<floatX>(bits[r]);
            for (int k = 0; k < N; k++) sum[k] += d[k];
        }
    }
    for (int k = 0; k < N; k++) sums[threadIdx.y][k * 32 + threadIdx.x] = sum[k];
    __syncthreads();
    if (threadIdx.y > 0 || c >= C) return;
    const bool partial = (int)blockIdx.x < split;
    float* row = (partial ? partials + blockIdx.x * C : dwte + inp[order[first]] * C) + c;
    for (int k = 0; k < N; k++) {
        float total = partial ? 0.0f : row[k];
        for (int w = 0; w < ENCODER_WARPS; w++) total += sums[w][k * 32 + threadIdx.x];
        row[k] = total;
    }
}
// Adds to dwte the sums of the tokens that have several segments, in order. Grid (split, C / 128),
// 128 threads: one per channel. The block of a token's first segment adds them all.
__device__ inline int token_of_segment(const int* inp, const int* order, const int* begin, int s) {
    return inp[order[begin[s]]];
}
template <class T>
__global__ void __launch_bounds__(ENCODER_SUM_THREADS)
    encoder_backward_split_kernel(T* dwte, const T* partials, const int* inp, const int* order, const int* begin,
                                  int split, int64_t C) {
    const int s = blockIdx.x, token = token_of_segment(inp, order, begin, s);
    const int64_t c = (int64_t)blockIdx.y * ENCODER_SUM_THREADS + threadIdx.x;
    if (c >= C || (s > 0 && token_of_segment(inp, order, begin, s - 1) == token)) return;
    T total = dwte[token * C + c];
    for (int i = s; i < split && token_of_segment(inp, order, begin, i) == token; i++) total += partials[i * C + c];
    dwte[token * C + c] = total;
}

// One thread per Pack of dwpe (maxT,C): sums it over the batch, in order.
template <class floatX>
__global__ void encoder_backward_wpe_kernel(floatX* dwpe, const floatX* dout, int64_t B, int64_t T, int64_t C,
                                            int64_t maxT, bool add) {
    for_each_pack<floatX>(maxT * C, [&](size_t i, int) {
        constexpr int N = Pack<floatX>::size;
        const int64_t t = i / C;
        PackFloats<floatX> sum = {};
        for (int64_t b = 0; b < B && t < T; b++) {
            const PackFloats<floatX> d = load_floats(dout + b * T * C + i);
            for (int k = 0; k < N; k++) sum[k] += d[k];
        }
        if (add) {
            const PackFloats<floatX> before = load_floats(dwpe + i);
            for (int k = 0; k < N; k++) sum[k] = before[k] + sum[k];
        }
        store_floats(dwpe + i, sum);
    });
}

template <class floatX>
void encoder_forward(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int64_t B, int64_t T, int64_t C,
                     int64_t first, cudaStream_t stream) {
    const StreamRange in_stream(work::embedding(B * T, C, sizeof(floatX)), stream);
    launch("encoder_forward", encoder_forward_kernel<floatX>, pack_blocks<floatX>(B * T * C), PACK_THREADS, 0, stream,
           out, inp, wte, wpe, B * T, T, C, first);
}

// The backward pass: dwte (V,C), fp32, is added to; dwpe (maxT,C) is written, with zeros from row T
// on, or added to if add. Each may be null if it is not wanted. inp, order and begin are on the
// device; tokens, order and begin come from sort_by_token, with encoder_segment_positions(B * T).
// partials (ENCODER_PARTS, C) is scratch.
template <class floatX>
void encoder_backward(float* dwte, floatX* dwpe, float* partials, const floatX* dout, const int* inp, const int* order,
                      const int* begin, TokenOrder tokens, int64_t B, int64_t T, int64_t C, int64_t maxT, bool add,
                      cudaStream_t stream) {
    const StreamRange in_stream(work::embedding_backward(B * T, C, maxT, sizeof(floatX), sizeof(float)), stream);
    const int split = dwte ? (int)tokens.split : 0;
    const dim3 grid((unsigned)tokens.segments, (unsigned)ceil_div(C, 32 * Pack<floatX>::size));
    if (dwte)
        launch("encoder_backward_wte", encoder_backward_wte_kernel<floatX>, grid, dim3(32, ENCODER_WARPS), 0, stream,
               dwte, partials, dout, inp, order, begin, split, C);
    const dim3 split_grid((unsigned)split, (unsigned)ceil_div(C, ENCODER_SUM_THREADS));
    if (split > 0)
        launch("encoder_backward_split", encoder_backward_split_kernel<float>, split_grid, ENCODER_SUM_THREADS, 0,
               stream, dwte, partials, inp, order, begin, split, C);
    if (dwpe)
        launch("encoder_backward_wpe", encoder_backward_wpe_kernel<floatX>, pack_blocks<floatX>(maxT * C), PACK_THREADS,
               0, stream, dwpe, dout, B, T, C, maxT, add);
}
