// The end of a step, without the host: the norm of the gradient, whether to update, how much to clip; llmc/update_rule.h has the rules. As many
// blocks as the number of elements says sum squares, each in fp32 by Pack and fp64 by thread, then one block adds up in order: the result depends
// on nothing but the gradient. Memory-bound: reads each value once.
#pragma once
#include "llmc/cuda/common.cuh"
#include "llmc/update_rule.h"

constexpr int NORM_MOST_BLOCKS = 1024, NORM_THREADS = 512;

// What the step leaves on the device, and what the host copies when it ends.
struct DeviceResults {
    double loss_sum, loss, norm;
    float grad_scale;
    int wanted;
};

template <class floatG>
__global__ void __launch_bounds__(NORM_THREADS) global_norm_kernel(double* partials, const floatG* grads, int64_t n_elems) {
    constexpr int N = Pack<floatG>::size;
    double sum = 0;
    for (int64_t i = ((int64_t)blockIdx.x * NORM_THREADS + threadIdx.x) * N; i < n_elems; i += (int64_t)gridDim.x * NORM_THREADS * N) {
        const Pack<floatG> g = load_pack(grads + i);
        float squares = 0;
        for (int k = 0; k < N; k++) squares += (float)g[k] * (float)g[k];
        sum += squares;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}
template <class Results>
__global__ void finish_norm_kernel(Results* results, const double* partials, int n, UpdateRule rule) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += partials[i];
    sum = block_sum(sum);
    if (threadIdx.x > 0) return;
    const double loss = results->loss_sum / rule.tokens, norm = sqrt(sum);
    results->loss = loss, results->norm = norm;
    results->wanted = update_wanted(loss, norm, rule);
    results->grad_scale = clipping_scale(norm, rule);
}

// From grads (n_elems, a multiple of the Pack) and results->loss_sum, the rest of results. partials (NORM_MOST_BLOCKS doubles) is scratch.
template <class floatG>
void global_norm(DeviceResults* results, double* partials, const floatG* grads, int64_t n_elems, const UpdateRule& rule, cudaStream_t stream) {
    const int64_t all = ceil_div(n_elems, (int64_t)NORM_THREADS * 2 * Pack<floatG>::size), blocks = all < NORM_MOST_BLOCKS ? all : NORM_MOST_BLOCKS;
    launch("global_norm", global_norm_kernel<floatG>, dim3((unsigned)blocks), NORM_THREADS, 0, stream, partials, grads, n_elems);
    launch("finish_norm", finish_norm_kernel<DeviceResults>, 1, 256, 0, stream, results, partials, (int)blocks, rule);
}
