// The embedding; formulas: llmc/cpu/encoder.h. C must be a multiple of Pack<floatX>::size.
//
// The backward pass adds the gradients of many positions to the one row of dwte that their token
// has. Atomics would add them in a different order every time. Instead the host, which knows the
// tokens, sorts the positions by token (llmc/token_order.h), and one block sums all positions of
// one token for 32 Packs of channels. Sums are fp32, in an order that depends on the tokens alone.
//
// Memory-bound. Forward reads two values and writes one per element of out; backward reads dout
// twice (for dwte and for dwpe), and reads and writes the rows of dwte that occur.
#pragma once
#include "llmc/cuda/common.cuh"
#include "llmc/token_order.h"

// One thread per Pack of out. Position t of inp is position first + t of the text.
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

constexpr int ENCODER_WARPS = 4;  // per block

// Adds to dwte. One block per distinct token and 32 Packs of channels: grid (segments, C / 32
// Packs), 32 x 4 threads. A lane has one Pack of channels. The positions of the token are split
// among the 4 warps, whose sums are added in order through shared memory.
template <class floatX>
__global__ void encoder_backward_wte_kernel(float* dwte, const floatX* dout, const int* inp, const int* order,
                                            const int* begin, int64_t C) {
    constexpr int N = Pack<floatX>::size;
    __shared__ float sums[ENCODER_WARPS][32 * N];
    const int first = begin[blockIdx.x], last = begin[blockIdx.x + 1];
    const int64_t c = ((int64_t)blockIdx.y * 32 + threadIdx.x) * N;
    float sum[N] = {};
    for (int i = first + threadIdx.y; i < last && c < C; i += ENCODER_WARPS) {
        const Pack<floatX> d = load_pack(dout + order[i] * C + c);
        for (int k = 0; k < N; k++) sum[k] += (float)d[k];
    }
    for (int k = 0; k < N; k++) sums[threadIdx.y][k * 32 + threadIdx.x] = sum[k];
    __syncthreads();
    if (threadIdx.y > 0 || c >= C) return;
    float* row = dwte + (int64_t)inp[order[first]] * C + c;
    for (int k = 0; k < N; k++) {
        float total = row[k];
        for (int w = 0; w < ENCODER_WARPS; w++) total += sums[w][k * 32 + threadIdx.x];
        row[k] = total;
    }
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

// dwte (V,C), fp32, is added to. dwpe (maxT,C) is written, with zeros from row T on, or added to if
// add. inp, order and begin are on the device; tokens, order and begin come from sort_by_token.
template <class floatX>
void encoder_backward(float* dwte, floatX* dwpe, const floatX* dout, const int* inp, const int* order, const int* begin,
                      TokenOrder tokens, int64_t B, int64_t T, int64_t C, int64_t maxT, bool add, cudaStream_t stream) {
    const StreamRange in_stream(work::embedding_backward(B * T, C, maxT, sizeof(floatX), sizeof(float)), stream);
    const dim3 grid((unsigned)tokens.segments, (unsigned)ceil_div(C, 32 * Pack<floatX>::size));
    launch("encoder_backward_wte", encoder_backward_wte_kernel<floatX>, grid, dim3(32, ENCODER_WARPS), 0, stream, dwte,
           dout, inp, order, begin, C);
    launch("encoder_backward_wpe", encoder_backward_wpe_kernel<floatX>, pack_blocks<floatX>(maxT * C), PACK_THREADS, 0,
           stream, dwpe, dout, B, T, C, maxT, add);
}
