// The GPU as the harness (dev/bench.h) sees it: memory on the device, time measured by events, and
// the peaks, which are measured: copying memory, a large product on tensor cores, and products on
// CUDA cores out of registers. In the simulator (make -C dev/cuda sim) variants are compared with
// the reference, and not timed.
#pragma once
#include "dev/bench.h"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/matmul.cuh"
#include "llmc/cuda/mma.cuh"

using namespace bench;

inline cudaStream_t stream = nullptr;  // of all variants

// Variants and sweeps (dev/bench.h) that compute in bf16, as nearly all here do.
template <class F>
inline void variant_bf16(const char* id, const char* why, F run) {
    variant(id, why, run, IN_BF16);
}
template <class F>
inline void sweep_bf16(const char* id, std::vector<int> sizes, const char* why, F run) {
    sweep(id, sizes, why, run, IN_BF16);
}

// Grids that cover n elements, or columns x rows, with so many of them per block; z layers of
// blocks.
inline dim3 blocks_for(int64_t n, int64_t per_block) { return dim3((unsigned)ceil_div(n, per_block)); }
inline dim3 grid_for(int64_t columns, int64_t columns_per_block, int64_t rows, int64_t rows_per_block, int64_t z = 1) {
    const int64_t x = ceil_div(columns, columns_per_block), y = ceil_div(rows, rows_per_block);
    return dim3((unsigned)x, (unsigned)y, (unsigned)z);
}

// Memory on the device that lives as long as the case.
template <class T>
inline T* device_buffer(int64_t elems) {
    void* p = nullptr;
    if (current->only_listed) return nullptr;
    check_cuda(cudaMalloc(&p, std::max<int64_t>(1, elems) * sizeof(T)), "allocating");
    current->memory.push_back(std::shared_ptr<void>(p, [](void* q) { check_cuda(cudaFree(q), "freeing"); }));
    return (T*)p;
}
// The same with n values from the host, converted to T.
template <class T, class From>
inline T* on_device(const From* values, int64_t n) {
    T* p = device_buffer<T>(n);
    if (current->only_listed) return p;
    const std::vector<T> converted(values, values + n);
    copy_to_device(p, converted.data(), n * sizeof(T), stream);
    return p;
}
// Restores what on_device() copied: for setup(), where an operation updates in place.
template <class T>
inline void put_back(T* to, const float* values, int64_t n) {
    const std::vector<T> converted(values, values + n);
    copy_to_device(to, converted.data(), n * sizeof(T), stream);
}

// cuBLASLt, set up as the trainer does.
inline void open_blas() {
    if (blas.handle || (current && current->only_listed)) return;
    void* workspace;
    check_cuda(cudaMalloc(&workspace, BLAS_WORKSPACE_BYTES), "allocating");
    start_blas(choose_gpu(0).name, workspace);
}

#ifndef CUSIM
// The peaks. Threads of the grid copy 16 bytes at a time; fma: 16 independent chains per thread
// hide the latency of each other; tensor cores: a large product by cuBLASLt, because from sm_90 on
// they reach their peak only by instructions that the kernels here do not have.
__global__ void copy_peak_kernel(int4* to, const int4* from, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        __stcs(to + i, __ldcs(from + i));
}
constexpr int PEAK_ROUNDS = 4096;
__global__ void fma_peak_kernel(float* out, float factor) {
    float chain[16];
    for (int i = 0; i < 16; i++) chain[i] = (float)(threadIdx.x + i);
    for (int r = 0; r < PEAK_ROUNDS; r++)
        for (int i = 0; i < 16; i++) chain[i] = chain[i] * factor + 1.0f;
    float total = 0;
    for (int i = 0; i < 16; i++) total += chain[i];
    out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = total;
}
// Random numbers from -1 to 1: on zeros a GPU takes less power, and has a higher clock.
__global__ void random_kernel(__nv_bfloat16* out, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 0x9E3779B9u;
        h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
        h = (h ^ (h >> 13)) * 0xC2B2AE35u;
        out[i] = (float)(int32_t)(h ^ (h >> 16)) * 0x1p-31f;
    }
}
inline void time_by_events(Machine& m) {
    static cudaEvent_t begin, end;
    check_cuda(cudaEventCreate(&begin), "making an event");
    check_cuda(cudaEventCreate(&end), "making an event");
    m.seconds = [](const std::function<void()>& run) {
        check_cuda(cudaEventRecord(begin, stream), "timing");
        run();
        check_cuda(cudaEventRecord(end, stream), "timing");
        wait_for_stream(stream, "timing");
        float ms = 0;
        check_cuda(cudaEventElapsedTime(&ms, begin, end), "timing");
        return ms / 1e3;
    };
}
inline void measure_peaks(Machine& m, int multiprocessors) {
    const size_t bytes = 512 << 20;
    static char* other = nullptr;
    char* another = nullptr;
    check_cuda(cudaMalloc(&other, bytes), "allocating");
    check_cuda(cudaMalloc(&another, bytes), "allocating");
    m.empty_caches = [] { check_cuda(cudaMemsetAsync(other, 0, 512 << 20, stream), "emptying the caches"); };
    const int blocks = multiprocessors * 8;
    auto best = [&](double work, const std::function<void()>& run) {
        double least = m.seconds(run);
        for (int i = 0; i < 10; i++) least = std::min(least, m.seconds(run));
        return work / least;
    };
    const int4* from = (const int4*)another;
    const double fma_flops = 2.0 * 16 * PEAK_ROUNDS * blocks * 256;  // 256 threads per block, 16 chains each
    m.memory_bytes_s = best(2.0 * bytes, [&] {
        launch("copy_peak", copy_peak_kernel, dim3(blocks * 4), 256, 0, stream, (int4*)other, from, bytes / 16);
    });
    m.flops_s[IN_FP32] = best(
        fma_flops, [&] { launch("fma_peak", fma_peak_kernel, dim3(blocks), 256, 0, stream, (float*)other, 0.999f); });
    constexpr int64_t N = 8192;  // two factors fill half of the buffer
    __nv_bfloat16 *left = (__nv_bfloat16*)another, *right = left + N * N, *product = (__nv_bfloat16*)other;
    launch("random", random_kernel, dim3(blocks * 4), 256, 0, stream, left, (size_t)(2 * N * N));
    open_blas();
    m.flops_s[IN_BF16] = best(2.0 * N * N * N, [&] {
        blas_product("product_peak", product, left, true, right, false, N, N, N, false, stream);
    });
    check_cuda(cudaFree(another), "freeing");
}
#endif

inline Machine bench::open_machine(int) {
    Machine m;
    const cudaDeviceProp gpu = choose_gpu(0);
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    copy_from_device = [](void* to, const void* from, size_t bytes) { copy_to_host(to, from, bytes, stream); };
    fill_device = [](void* to, int byte, size_t bytes) {
        check_cuda(cudaMemsetAsync(to, byte, bytes, stream), "filling memory");
        wait_for_stream(stream, "filling memory");
    };
#ifdef CUSIM
    m.name = "the simulator";
    (void)gpu;
#ifdef CUSIM_COUNTS
    begin_counting = [] {
        wait_for_stream(stream, "waiting for what was set up");
        cusim::forget_counts();
    };
#endif
#else
    int runtime = 0;
    check_cuda(cudaRuntimeGetVersion(&runtime), "asking for the runtime");
    m.name = format("%s, CUDA %d.%d", gpu.name, runtime / 1000, runtime % 1000 / 10);
    time_by_events(m);
    measure_peaks(m, gpu.multiProcessorCount);
#endif
    return m;
}
