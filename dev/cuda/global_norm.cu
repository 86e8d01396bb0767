// The sum of squares of the gradient: a reduction. No rung uses atomics: each block writes its
// partial sum, and one block adds the partial sums in order. Memory-bound: n values are read once.
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/global_norm.cuh"

constexpr int THREADS = 256, MOST_PARTS = 4096;

// One thread, all elements.
__global__ void norm_single_kernel(float* parts, const bf16* grads, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)(float)grads[i] * (double)(float)grads[i];
    parts[0] = (float)sum;
}
// One thread per element, then a tree in shared memory. In step s, the active threads are 2^(s+1)
// apart: warps diverge, and their accesses collide in the banks.
__global__ void norm_interleaved_kernel(float* parts, const bf16* grads, size_t n) {
    __shared__ float sums[THREADS];
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    sums[threadIdx.x] = i < n ? (float)grads[i] * (float)grads[i] : 0.0f;
    __syncthreads();
    for (int stride = 1; stride < THREADS; stride *= 2) {
        if (threadIdx.x % (2 * stride) == 0) sums[threadIdx.x] += sums[threadIdx.x + stride];
        __syncthreads();
    }
    if (threadIdx.x == 0) parts[blockIdx.x] = sums[0];
}
// The same tree; the active threads are neighbours.
__global__ void norm_sequential_kernel(float* parts, const bf16* grads, size_t n) {
    __shared__ float sums[THREADS];
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    sums[threadIdx.x] = i < n ? (float)grads[i] * (float)grads[i] : 0.0f;
    __syncthreads();
    for (int stride = THREADS / 2; stride > 0; stride /= 2) {
        if ((int)threadIdx.x < stride) sums[threadIdx.x] += sums[threadIdx.x + stride];
        __syncthreads();
    }
    if (threadIdx.x == 0) parts[blockIdx.x] = sums[0];
}
// The sum of a block by shuffles within warps, then over the warps: two barriers.
__global__ void norm_shuffle_kernel(float* parts, const bf16* grads, size_t n) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const float sum = block_sum(i < n ? (float)grads[i] * (float)grads[i] : 0.0f);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
// At most 1024 blocks. Each thread first adds many elements in a register, so that the reduction of
// a block is paid once per block, not once per 256 elements.
__global__ void norm_grid_kernel(float* parts, const bf16* grads, size_t n) {
    float sum = 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS)
        sum += (float)grads[i] * (float)grads[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
__global__ void norm_parts_kernel(float* out, const float* parts, int64_t n) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) sum += parts[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *out = (float)sum;
}
__global__ void norm_of_results_kernel(float* out, const DeviceResults* results) {
    *out = (float)rank_sums((DeviceResults*)results)[0].squares;
}

BENCH("global_norm", dims("n"), shapes({{64 << 20}, {16 * 77}, {16 * 5000}}, counted({1 << 18}))) {
    const int64_t n = shape[0], all = ceil_div(n, THREADS), few = std::min<int64_t>(all, 1024);
    float *grads = random_floats(n), *out = buffer<float>(1);
    bf16* d_grads = on_device<bf16>(grads, n);
    float *d_out = device_buffer<float>(1), *d_parts = device_buffer<float>(std::max<int64_t>(all, MOST_PARTS));
    DeviceResults* d_results = (DeviceResults*)device_buffer<char>(256);
    double* d_partials = device_buffer<double>(NORM_MOST_BLOCKS);
    setup([=] { check_cuda(cudaMemsetAsync(d_results, 0, 256, stream), "clearing"); });
    bytes(2.0 * n);
    output("sum", out, 1, 0), device_output("sum", d_out, 1, sum_tolerance(n));
    expected([=] { *out = (float)reference::global_norm_squared(grads, n); });
    // What every rung but the last does: a kernel leaves a sum per block, and one block adds these
    // up.
    auto in_two_kernels = [=](const char* name, auto kernel, int64_t blocks, int threads) {
        return [=] {
            launch(name, kernel, (unsigned)blocks, threads, 0, stream, d_parts, d_grads, (size_t)n);
            launch("norm_parts", norm_parts_kernel, 1, THREADS, 0, stream, d_out, d_parts, blocks);
        };
    };
    if (n < 1 << 20)
        variant_bf16("single", "one thread adds everything: the definition, and how slow one thread of a GPU is",
                     in_two_kernels("norm_single", norm_single_kernel, 1, 1));
    variant_bf16("interleaved", "one thread per element, then a tree in shared memory whose active threads are strided",
                 in_two_kernels("norm_interleaved", norm_interleaved_kernel, all, THREADS));
    variant_bf16(
        "sequential",
        "the active threads are neighbours: whole warps finish early instead of diverging, without bank conflicts",
        in_two_kernels("norm_sequential", norm_sequential_kernel, all, THREADS));
    variant_bf16("shuffle",
                 "within a warp, values pass from register to register: two barriers per block instead of nine",
                 in_two_kernels("norm_shuffle", norm_shuffle_kernel, all, THREADS));
    variant_bf16(
        "grid-stride",
        "at most 1024 blocks; each thread first adds many elements in a register, so nearly all of the work is loads",
        in_two_kernels("norm_grid", norm_grid_kernel, few, THREADS));
    auto shipped = [=] {
        const SliceMap whole{n, 0, n, 1, 0};
        sum_squares(d_results, d_partials, d_grads, whole, 0, stream);
        launch("norm_of_results", norm_of_results_kernel, 1, 1, 0, stream, d_out, d_results);
    };
    variant_bf16("shipped", "128 bits per load, fp64 across loads", shipped);
}
