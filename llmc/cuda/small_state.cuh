// The pass over all parameters for optimizers whose m and v are in 8 bits
// (llmc/optim/small_state.h, where the code and its source are). One warp per block: 8 elements per
// lane, the largest by shuffles.
//
// Memory-bound. Bytes per parameter of AdamW, with bf16 weights and a master: 8 read (10 where
// gradients are fp32), 8 written. In fp32: 10 read, 6 written. Each thread block computes the table
// of the code, one value per thread, in shared memory.
#pragma once
#include "llmc/optim/small_state.h"
#include "llmc/cuda/adamw.cuh"

constexpr int BLOCK_UPDATE_THREADS = 256;
static_assert(STATE_BLOCK_ELEMS == 32 * UPDATE_ELEMS, "a warp has a block");

// Load or store this lane's elements of a block: codes there, fp32 here.
__device__ inline void load_codes(float (&x)[UPDATE_ELEMS], const StateBlock& block, const float* table, int lane) {
    for (int j = 0; j < UPDATE_ELEMS; j += 4) {
        const uint32_t codes = *(const uint32_t*)&block.codes[lane * UPDATE_ELEMS + j];
        for (int k = 0; k < 4; k++) x[j + k] = table[codes >> 8 * k & 255] * block.scale;
    }
}
template <bool SIGNED>
__device__ inline void store_codes(StateBlock& block, const float (&x)[UPDATE_ELEMS], int lane) {
    typedef DynamicCode<SIGNED> Code;
    float largest = 0, smallest = 0;
    for (int j = 0; j < UPDATE_ELEMS; j++) largest = fmaxf(largest, x[j]), smallest = fminf(smallest, x[j]);
    largest = warp_max(largest);
    if (SIGNED) smallest = -warp_max(-smallest);
    const float scale = Code::scale(largest, smallest), inverse = Code::inverse(scale);
    if (lane == 0) block.scale = scale;
    for (int j = 0; j < UPDATE_ELEMS; j += 4) {
        uint32_t codes = 0;
        for (int k = 0; k < 4; k++) codes |= (uint32_t)Code::nearest(x[j + k] * inverse) << 8 * k;
        *(uint32_t*)&block.codes[lane * UPDATE_ELEMS + j] = codes;
    }
}

// Updates the elements `mine`, as update_by() in adamw.cuh, with m and v (map.blocks() each) in
// blocks.
template <Optimizer optimizer, class floatX, class floatG>
__global__ void __launch_bounds__(BLOCK_UPDATE_THREADS)
    blocks_kernel(floatX* params, float* master, StateBlock* m, StateBlock* v, const floatG* grads, SliceMap mine,
                  BlockMap map, UpdateConstants constants, DecayRanges ranges, const DeviceResults* results,
                  uint64_t seed) {
    constexpr int N = UPDATE_ELEMS;
    __shared__ float m_table[256];
    __shared__ float v_table[256];
    m_table[threadIdx.x] = DynamicCode<true>::value(threadIdx.x);
    v_table[threadIdx.x] = DynamicCode<false>::value(threadIdx.x);
    __syncthreads();
    const int lane = threadIdx.x % 32;
    const int64_t block = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (block >= map.blocks() || !results->wanted) return;
    int elems;
    const int64_t i = map.begin(block, elems) - mine.first + lane * N;
    const bool inside = lane * N < elems;  // lanes behind the end of a short block have zeros
    float g[N], mi[N] = {}, vi[N] = {}, p[N];
    if (inside) {
        const int64_t at = mine.index(i);
        const float grad_scale = results->grad_scale;
        const RuleConstants k = rule_constants(constants, is_decayed(ranges, at));
        load_packs(g, grads + mine.gradient(i));
        load_codes(mi, m[block], m_table, lane);
        load_codes(vi, v[block], v_table, lane);
        load_weights(p, params, master, mine.weight(i), i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            g[j] *= grad_scale;
            RuleOf<optimizer>::update(p[j], mi[j], vi[j], g[j], k);
        }
        store_weights(params, master, p, constants.round_to_nearest, seed, at, mine.weight(i), i);
    }
    __syncwarp();  // all lanes have read the scales
    store_codes<true>(m[block], mi, lane);
    store_codes<false>(v[block], vi, lane);
}

// Updates the elements `mine`, as optimizer_update() in adamw.cuh.
template <class floatX, class floatG>
void blocks_update(Optimizer optimizer, floatX* params, float* master, StateBlock* m, StateBlock* v,
                   const floatG* grads, const SliceMap& mine, const BlockMap& map, const UpdateConstants& k,
                   const DecayRanges& ranges, const DeviceResults* results, uint64_t seed, cudaStream_t stream) {
    const OptimizerInfo& info = OPTIMIZERS[optimizer];
    const StreamRange in_stream(work::update(info, mine.elems(), master, sizeof(floatX), sizeof(floatG)), stream);
    const dim3 grid((unsigned)ceil_div(map.blocks(), (int64_t)BLOCK_UPDATE_THREADS / 32));
    with_optimizer(optimizer, [&](auto constant) {
        if constexpr (OPTIMIZERS[constant.value].keeps.m == KEEP_8BIT)
            launch(info.name, blocks_kernel<constant.value, floatX, floatG>, grid, BLOCK_UPDATE_THREADS, 0, stream,
                   params, master, m, v, grads, mine, map, k, ranges, results, seed);
    });
}
