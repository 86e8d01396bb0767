// The end of a step, without the host: the norm of the gradient, whether to update, how much to
// clip; llmc/update_rule.h has the rules. As many blocks as the number of elements says sum
// squares, each in fp32 by Pack and fp64 by thread, then one block adds up in order: the result
// depends on nothing but the gradient. Memory-bound: reads each value once.
#pragma once
#include "llmc/cuda/common.cuh"
#include "llmc/tensors.h"
#include "llmc/update_rule.h"

constexpr int NORM_MOST_BLOCKS = 1024, NORM_THREADS = 512;

// What the step leaves on the device, and what the host copies when it ends. In memory each rank's
// RankSums follow.
struct DeviceResults {
    double loss_sum, loss, norm;
    float grad_scale;
    int wanted;
};
struct RankSums {
    double losses, squares;
};
__host__ __device__ inline RankSums* rank_sums(DeviceResults* results) { return (RankSums*)((char*)results + 64); }

// The elements that one process sums, or updates, numbered from 0 without gaps: its slice of every
// bucket (llmc/tensors.h). Slices are whole Packs.
struct SliceMap {
    int64_t layer_elems, layers_end, last_elems;  // of a layer's bucket; where the last bucket begins; its elements
    int64_t parts, part;
    __host__ __device__ int64_t elems() const { return (layers_end + last_elems) / parts; }
    // Where element i is among all parameters.
    __device__ int64_t position(int64_t i) const {
        if (parts == 1) return i;
        const int64_t slice = layer_elems / parts, in_layers = layers_end / parts;
        return i < in_layers ? i / slice * layer_elems + part * slice + i % slice
                             : layers_end + last_elems / parts * part + i - in_layers;
    }
};
inline SliceMap slice_map(const ParameterLayout& layout, const BucketSlice& slice) {
    const int64_t L = layout.config.L;
    return {layout.bucket_begin[1], layout.bucket_begin[L], layout.bucket_elems(L), slice.parts, slice.part};
}

template <class floatG>
__global__ void __launch_bounds__(NORM_THREADS)
    global_norm_kernel(double* partials, const floatG* grads, SliceMap mine) {
    constexpr int N = Pack<floatG>::size;
    const int64_t n_elems = mine.elems();
    double sum = 0;
    for (int64_t i = ((int64_t)blockIdx.x * NORM_THREADS + threadIdx.x) * N; i < n_elems;
         i += (int64_t)gridDim.x * NORM_THREADS * N) {
        const Pack<floatG> g = load_pack(grads + mine.position(i));
        float squares = 0;
        for (int k = 0; k < N; k++) squares += (float)g[k] * (float)g[k];
        sum += squares;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}
template <class Results>
__global__ void sum_rank_kernel(Results* results, const double* partials, int n, int rank) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += partials[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) rank_sums(results)[rank] = {results->loss_sum, sum};
}
template <class Results>
__global__ void finish_norm_kernel(Results* results, int processes, UpdateRule rule) {
    double losses = 0, squares = 0;
    for (int r = 0; r < processes; r++)
        losses += rank_sums(results)[r].losses, squares += rank_sums(results)[r].squares;
    const double loss = losses / rule.tokens, norm = sqrt(squares);
    results->loss = loss, results->norm = norm;
    results->wanted = update_wanted(loss, norm, rule);
    results->grad_scale = clipping_scale(norm, rule);
}

// This rank's RankSums, from results->loss_sum and its slices of grads. partials (NORM_MOST_BLOCKS
// doubles) is scratch.
template <class floatG>
void sum_squares(DeviceResults* results, double* partials, const floatG* grads, const SliceMap& mine, int64_t rank,
                 cudaStream_t stream) {
    const int64_t all = ceil_div(mine.elems(), (int64_t)NORM_THREADS * 2 * Pack<floatG>::size),
                  blocks = all < NORM_MOST_BLOCKS ? all : NORM_MOST_BLOCKS;
    launch("global_norm", global_norm_kernel<floatG>, dim3((unsigned)blocks), NORM_THREADS, 0, stream, partials, grads,
           mine);
    launch("sum_rank", sum_rank_kernel<DeviceResults>, 1, 256, 0, stream, results, partials, (int)blocks, (int)rank);
}
// The rest of results, from the RankSums of all ranks.
inline void finish_norm(DeviceResults* results, int64_t processes, const UpdateRule& rule, cudaStream_t stream) {
    launch("finish_norm", finish_norm_kernel<DeviceResults>, 1, 1, 0, stream, results, (int)processes, rule);
}
