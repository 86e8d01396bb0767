// Compressed gradients on a GPU: codes and their values; formulas: llmc/compress/gradient_codes.h.
// One warp per block of 256 elements, 8 per lane; the scale by shuffles.
//
// Memory-bound. Encoding reads 8 bytes per element and writes 4 and the code; decoding P slices
// reads P codes (for signs also v) and writes 4.
#pragma once
#include "llmc/compress/gradient_codes.h"
#include "llmc/cuda/small_state.cuh"

constexpr int CODE_THREADS = 256, CODE_BLOCKS = CODE_THREADS / 32;  // a thread block has 8 blocks of codes

// The block that stands for the x of all lanes, of which `elems` are elements; and the values that
// it stands for. A value that is not finite makes its whole block so. All lanes call it.
__device__ inline void encode_gradients(SignBlock& block, float (&x)[UPDATE_ELEMS], int elems, const float*, int lane) {
    float sum = 0;
    uint32_t negative = 0;
    for (int j = 0; j < UPDATE_ELEMS; j++) sum += fabsf(x[j]), negative |= (uint32_t)(x[j] < 0) << j;
    const float scale = warp_sum(sum) / (float)elems;
    if (lane == 0) block.scale = scale;
    block.negative[lane] = (uint8_t)negative;
    for (int j = 0; j < UPDATE_ELEMS; j++) x[j] = negative >> j & 1 ? -scale : scale;
}
__device__ inline void encode_gradients(StateBlock& block, float (&x)[UPDATE_ELEMS], int, const float* table,
                                        int lane) {
    float zero = 0;
    for (int j = 0; j < UPDATE_ELEMS; j++) zero += x[j] * 0.0f;
    const bool finite = warp_sum(zero) == 0;
    store_codes<true>(block, x, lane);
    __syncwarp();  // the scale is there
    if (lane == 0 && !finite) block.scale = NAN;
    __syncwarp();
    load_codes(x, block, table, lane);
}
__device__ inline void decode_gradients(float (&x)[UPDATE_ELEMS], const StateBlock& block, const float* table,
                                        int lane) {
    load_codes(x, block, table, lane);
}
__device__ inline void decode_gradients(float (&x)[UPDATE_ELEMS], const SignBlock& block, const float*, int lane) {
    for (int j = 0; j < UPDATE_ELEMS; j++) x[j] = sign_value(block, lane * UPDATE_ELEMS + j);
}

// Which elements a lane has: 8 from `first` on, or none; of the block's `elems`.
struct CodeLane {
    int64_t block, first;
    int lane, elems;
    bool inside;
};
__device__ inline CodeLane code_lane(int64_t n) {
    const int64_t block = (int64_t)blockIdx.x * CODE_BLOCKS + threadIdx.x / 32, begin = block * STATE_BLOCK_ELEMS;
    const int lane = threadIdx.x % 32, first = lane * UPDATE_ELEMS;
    const int elems = n - begin < STATE_BLOCK_ELEMS ? (int)(n - begin) : STATE_BLOCK_ELEMS;
    return {block, begin + first, lane, elems, first < elems};
}

// See encode_slice() in llmc/cpu/gradient_codes.h.
template <class Block>
__global__ void __launch_bounds__(CODE_THREADS)
    encode_slice_kernel(Block* codes, float* residual, const float* values, int64_t n) {
    __shared__ float table[256];
    table[threadIdx.x] = DynamicCode<true>::value(threadIdx.x);
    __syncthreads();
    const CodeLane mine = code_lane(n);
    if (mine.elems <= 0) return;
    float p[UPDATE_ELEMS] = {}, e[UPDATE_ELEMS] = {}, sent[UPDATE_ELEMS];
    if (mine.inside) load_packs(p, values + mine.first), load_packs(e, residual + mine.first);
    for (int j = 0; j < UPDATE_ELEMS; j++) sent[j] = p[j] = p[j] + e[j];
    encode_gradients(codes[mine.block], sent, mine.elems, table, mine.lane);
    for (int j = 0; j < UPDATE_ELEMS; j++) e[j] = p[j] - sent[j];
    if (mine.inside) store_packs(residual + mine.first, e);
}
// See decode_slices() in llmc/cpu/gradient_codes.h.
template <class Block>
__global__ void __launch_bounds__(CODE_THREADS)
    decode_slices_kernel(float* out, const char* codes, int64_t bytes, int slices, const float* v, float limit,
                         int64_t n) {
    __shared__ float table[256];
    table[threadIdx.x] = DynamicCode<true>::value(threadIdx.x);
    __syncthreads();
    const CodeLane mine = code_lane(n);
    if (!mine.inside) return;
    float sum[UPDATE_ELEMS], x[UPDATE_ELEMS], seen[UPDATE_ELEMS];
    for (int s = 0; s < slices; s++) {
        decode_gradients(x, ((const Block*)(codes + s * bytes))[mine.block], table, mine.lane);
        for (int j = 0; j < UPDATE_ELEMS; j++) sum[j] = s == 0 ? x[j] : sum[j] + x[j];
    }
    if (v) load_packs(seen, v + mine.first);
    for (int j = 0; j < UPDATE_ELEMS && v; j++) sum[j] = held_within(sum[j], seen[j], limit);
    store_packs(out + mine.first, sum);
}

inline dim3 code_grid(int64_t n) { return dim3((unsigned)ceil_div(blocks_of(n), (int64_t)CODE_BLOCKS)); }
inline void encode_slice(char* codes, float* residual, const float* values, int64_t n, Compression kind,
                         cudaStream_t stream) {
    const auto run = [&](auto* blocks) {
        launch("compress", encode_slice_kernel<std::remove_pointer_t<decltype(blocks)>>, code_grid(n), CODE_THREADS, 0,
               stream, blocks, residual, values, n);
    };
    kind == IN_1_BIT ? run((SignBlock*)codes) : run((StateBlock*)codes);
}
inline void decode_slices(float* out, const char* codes, int64_t bytes, int64_t slices, const float* v, float limit,
                          int64_t n, Compression kind, cudaStream_t stream) {
    const auto run = [&](auto type) {
        launch("add compressed", decode_slices_kernel<decltype(type)>, code_grid(n), CODE_THREADS, 0, stream, out,
               codes, bytes, (int)slices, v, limit, n);
    };
    kind == IN_1_BIT ? run(SignBlock()) : run(StateBlock());
}
