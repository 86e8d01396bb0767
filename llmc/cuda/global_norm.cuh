// The end of a step, without waiting for the host: the norm of the gradient, whether to update, how
// much to clip (llmc/optim/update_settings.h).
//
//     norm = sqrt(sum over all gradients of g^2)
//
// Up to 1024 blocks of 512 threads sum the squares: fp32 within a Pack, fp64 across the Packs of a
// thread. One block then adds the partial sums in a fixed order. The number of blocks depends on
// the number of elements alone, so the same gradient gives the same bits. Memory-bound: every
// gradient is read once.
#pragma once
#include "llmc/cuda/common.cuh"
#include "llmc/gpt2/tensors.h"
#include "llmc/optim/update_settings.h"

constexpr int NORM_MOST_BLOCKS = 1024, NORM_THREADS = 512;

// The results of a step, on the device. Behind the update they are copied to the host. The RankSums
// of all ranks follow in memory, from byte 64 on.
struct DeviceResults {
    double loss_sum, loss, norm;
    float grad_scale;
    int wanted;            // 1: update the weights; 0: skip this update
    double small_squares;  // of the gradients of the first micro-step (llmc/optim/noise_scale.h)
};
struct RankSums {
    double losses, squares;
};
__host__ __device__ inline RankSums* rank_sums(DeviceResults* results) { return (RankSums*)((char*)results + 64); }

// Numbers the elements of one process, its slice of every bucket (llmc/gpt2/tensors.h), from 0
// without gaps. Slices are whole Packs. With 2 layers and 2 parts, slices 0 and 1 of each bucket:
//
//     params        | layer 0: 0 | 1 | layer 1: 0 | 1 | last bucket: 0 | 1 |
//     elems of 0    | ###########    | ###########    | ##############     |
struct SliceMap {
    int64_t layer_elems;  // of the bucket of one layer
    int64_t layers_end;   // index of the first element of the last bucket
    int64_t last_elems;   // of the last bucket
    int64_t parts, part;  // slices per bucket, and the one of this process
    // Whether a process keeps these alone (gpt2/bucket_places.h), as it does of the optimizer's
    // state.
    bool weights_sliced = false, gradients_sliced = false;
    // Of these elements only `count` from `first` on, which are numbered from 0 again (-1: all);
    // with --offload a part of the state at a time is on the GPU.
    int64_t first = 0, count = -1;
    __host__ __device__ int64_t elems() const { return count >= 0 ? count : (layers_end + last_elems) / parts; }
    // The index of element i among all parameters.
    __host__ __device__ int64_t index(int64_t i) const {
        i += first;
        if (parts == 1) return i;
        const int64_t slice = layer_elems / parts, in_layers = layers_end / parts;
        if (i < in_layers) return i / slice * layer_elems + part * slice + i % slice;
        return layers_end + last_elems / parts * part + i - in_layers;
    }
    // Where its weight and its gradient lie.
    __host__ __device__ int64_t weight(int64_t i) const { return weights_sliced ? first + i : index(i); }
    __host__ __device__ int64_t gradient(int64_t i) const { return gradients_sliced ? first + i : index(i); }
};
inline SliceMap slice_map(const ParameterLayout& layout, const BucketSlice& slice) {
    const int64_t L = layout.config.L;
    return {layout.bucket_begin[1], layout.bucket_begin[L], layout.bucket_elems(L), slice.parts, slice.part};
}

// partials[block] = the sum of squares of every gridDim.x-th stretch of 512 Packs of `mine`.
template <class floatG>
__global__ void __launch_bounds__(NORM_THREADS)
    global_norm_kernel(double* partials, const floatG* grads, SliceMap mine) {
    constexpr int N = Pack<floatG>::size;
    const int64_t n_elems = mine.elems();
    double sum = 0;
    for (int64_t i = ((int64_t)blockIdx.x * NORM_THREADS + threadIdx.x) * N; i < n_elems;
         i += (int64_t)gridDim.x * NORM_THREADS * N) {
        const PackFloats<floatG> g = load_floats(grads + mine.gradient(i));
        float squares = 0;
        for (int k = 0; k < N; k++) squares += g[k] * g[k];
        sum += squares;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}
// One block: this rank's RankSums, with the n partials added in a fixed order. (Like the next two
// kernels a template, so that several source files may include this header.)
template <class Results>
__global__ void sum_rank_kernel(Results* results, const double* partials, int n, int rank) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += partials[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) rank_sums(results)[rank] = {results->loss_sum, sum};
}
// One block: adds the sum of the n partials to results->small_squares, or overwrites it with the
// sum.
template <class Results>
__global__ void sum_small_kernel(Results* results, const double* partials, int n, bool add) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += partials[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) results->small_squares = add ? results->small_squares + sum : sum;
}
// One thread: adds the ranks' sums in order, and decides. The squares of the first `shards` ranks
// are those of all slices; the others have the same (--shard-within).
template <class Results>
__global__ void finish_norm_kernel(Results* results, int processes, int shards, UpdateSettings settings) {
    double losses = 0, squares = 0;
    for (int r = 0; r < processes; r++) losses += rank_sums(results)[r].losses;
    for (int r = 0; r < shards; r++) squares += rank_sums(results)[r].squares;
    const double loss = mean_loss(losses, settings), norm = gradient_norm(squares, settings);
    results->loss = loss, results->norm = norm;
    results->wanted = update_wanted(loss, norm, settings);
    results->grad_scale = gradient_factor(norm, settings);
}

// partials (NORM_MOST_BLOCKS) = sums of squares of parts of the elements `mine` of grads. Returns
// how many.
template <class floatG>
int sum_partials(double* partials, const floatG* grads, const SliceMap& mine, cudaStream_t stream) {
    const int64_t two_packs_each = ceil_div(mine.elems(), (int64_t)NORM_THREADS * 2 * Pack<floatG>::size);
    const int64_t blocks = two_packs_each < NORM_MOST_BLOCKS ? two_packs_each : NORM_MOST_BLOCKS;
    launch("global_norm", global_norm_kernel<floatG>, dim3((unsigned)blocks), NORM_THREADS, 0, stream, partials, grads,
           mine);
    return (int)blocks;
}
// Computes this rank's RankSums from results->loss_sum and the elements `mine` of grads. partials
// (NORM_MOST_BLOCKS) is scratch.
template <class floatG>
void sum_squares(DeviceResults* results, double* partials, const floatG* grads, const SliceMap& mine, int64_t rank,
                 cudaStream_t stream) {
    const StreamRange in_stream(work::gradient_norm(mine.elems(), sizeof(floatG)), stream);
    const int blocks = sum_partials(partials, grads, mine, stream);
    launch("sum_rank", sum_rank_kernel<DeviceResults>, 1, 256, 0, stream, results, partials, blocks, (int)rank);
}
// Adds the squares of grads (n_elems) to results->small_squares, or begins its sum (!add).
template <class floatG>
void sum_small_squares(DeviceResults* results, double* partials, const floatG* grads, int64_t n_elems, bool add,
                       cudaStream_t stream) {
    const int blocks = sum_partials(partials, grads, SliceMap{0, n_elems, 0, 1, 0}, stream);
    launch("sum_small", sum_small_kernel<DeviceResults>, 1, 256, 0, stream, results, partials, blocks, add);
}
// Computes the rest of results from the RankSums of all ranks.
inline void finish_norm(DeviceResults* results, int64_t processes, int64_t shards, const UpdateSettings& settings,
                        cudaStream_t stream) {
    launch("finish_norm", finish_norm_kernel<DeviceResults>, 1, 1, 0, stream, results, (int)processes, (int)shards,
           settings);
}
