// What the kernels share: 128-bit Packs, sums over warps and blocks, sizes of grids.
//
// nvcc compiles these headers for a GPU. The simulator (dev/cusim) compiles the same sources as C++
// and runs them on a CPU. The two differ in launch(), in mma.cuh, and where CUSIM is defined below.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include "llmc/cuda/launch.cuh"
#include "llmc/integer_math.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "GPUs older than sm_80 (A100, RTX 30xx) have no bf16 tensor cores: GPU_ARCH=80 or more is accepted"
#endif

#ifdef CUSIM  // as a default argument: the line of the call, for the message about a misaligned access
#define CALLED_FROM , cusim::Location location = CUSIM_HERE
#define CHECK_ALIGNMENT(p) cusim::check_alignment(p, 16, location)
#else
#define CALLED_FROM
#define CHECK_ALIGNMENT(p)
#endif

// -------------------------------------------------------------------------------------------------
// types

// 128 bits: 4 fp32 or 8 bf16 elements. It is the widest access of one thread that all chips from
// sm_80 on have. 32 threads with neighbouring Packs access four whole cache lines of 128 bytes.
template <class T>
struct alignas(16) Pack {
    static constexpr int size = 16 / sizeof(T);
    T value[size];
    __device__ T& operator[](int i) { return value[i]; }
    __device__ T operator[](int i) const { return value[i]; }
};

// p must be 16-byte aligned. The streaming versions are for data that is not used again soon: it is
// the first to be evicted from the caches.
template <class T>
__device__ inline Pack<T> load_pack(const T* p CALLED_FROM) {
    CHECK_ALIGNMENT(p);
    return *reinterpret_cast<const Pack<T>*>(p);
}
template <class T>
__device__ inline void store_pack(T* p, const Pack<T>& pack CALLED_FROM) {
    CHECK_ALIGNMENT(p);
    *reinterpret_cast<Pack<T>*>(p) = pack;
}
template <class T>
__device__ inline Pack<T> load_pack_streaming(const T* p CALLED_FROM) {
    CHECK_ALIGNMENT(p);
    const int4 bits = __ldcs(reinterpret_cast<const int4*>(p));
    Pack<T> pack;
    memcpy(&pack, &bits, 16);
    return pack;
}
template <class T>
__device__ inline void store_pack_streaming(T* p, const Pack<T>& pack CALLED_FROM) {
    CHECK_ALIGNMENT(p);
    int4 bits;
    memcpy(&bits, &pack, 16);
    __stcs(reinterpret_cast<int4*>(p), bits);
}

// Elementwise kernels: one Pack per thread. Calls f(i, count) for the Pack that begins at element i
// of n. count is Pack<T>::size, or less in the last, partial Pack.
template <class T, class F>
__device__ inline void for_each_pack(size_t n, F f) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * Pack<T>::size;
    if (i < n) f(i, n - i < (size_t)Pack<T>::size ? (int)(n - i) : Pack<T>::size);
}
// Load and store a Pack of `count` elements; a partial one element by element, with 0 for the
// others.
template <class T>
__device__ inline Pack<T> load_some(const T* p, int count) {
    if (count == Pack<T>::size) return load_pack(p);
    Pack<T> pack;
    for (int k = 0; k < Pack<T>::size; k++) pack[k] = k < count ? p[k] : (T)0.0f;
    return pack;
}
template <class T>
__device__ inline void store_some(T* p, const Pack<T>& pack, int count) {
    if (count == Pack<T>::size) return store_pack_streaming(p, pack);
    for (int k = 0; k < count; k++) p[k] = pack[k];
}

// -------------------------------------------------------------------------------------------------
// sums over threads, always in the same order: no atomics, so the same bits in every run

// Over the 32 lanes of a warp, in 5 steps: every lane adds the value of the lane whose number
// differs in one bit. All lanes get the result.
__device__ inline float warp_sum(float x) {
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
    return x;
}
__device__ inline double warp_sum(double x) {
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
    return x;
}
__device__ inline float warp_max(float x) {
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, distance));
    return x;
}
// The sum over the threads of a block of whole warps in one dimension; every thread gets it. Each
// warp adds up by shuffles, then every thread adds the sums of the warps.
template <class T>
__device__ inline T block_sum(T x) {
    __shared__ T warps[32];
    x = warp_sum(x);
    __syncthreads();  // threads may still be reading the warps' sums of the call before
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    T total = 0;
    for (int w = 0; w < (int)blockDim.x / 32; w++) total += warps[w];
    return total;
}

// -------------------------------------------------------------------------------------------------
// the host's side

// The grid of an elementwise kernel: blocks of 256 threads, one Pack per thread, for n elements.
constexpr int PACK_THREADS = 256;
template <class T>
inline dim3 pack_blocks(size_t n) {
    return dim3((unsigned)ceil_div(n, (int64_t)PACK_THREADS * Pack<T>::size));
}

// Scratch memory for cuBLASLt (32 MiB is what NVIDIA recommends for Hopper), and guard bytes
// between tensors, which only the simulator has: it checks that no kernel writes there.
constexpr int64_t CARD_BLAS_WORKSPACE_BYTES = 32 << 20;
#ifdef CUSIM
constexpr int64_t BLAS_WORKSPACE_BYTES = 1 << 16, GUARD_BYTES = 256;
inline void guard_memory(const char* name, void* p) { cusim::guard(name, p, GUARD_BYTES); }
#else
constexpr int64_t BLAS_WORKSPACE_BYTES = CARD_BLAS_WORKSPACE_BYTES, GUARD_BYTES = 0;
inline void guard_memory(const char*, void*) {}
#endif
