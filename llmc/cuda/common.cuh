// What the kernels share: 128-bit Packs, sums over warps and blocks, sizes of grids.
//
// nvcc compiles these headers for a GPU. The simulator (dev/cusim) compiles the same sources as C++
// and runs them on a CPU. The two differ in launch(), in mma.cuh, and where CUSIM is defined below.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include "llmc/cuda/launch.cuh"
#include "llmc/base/bf16.h"
#include "llmc/base/fp16.h"
#include "llmc/base/integer_math.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "GPUs older than sm_80 (A100, RTX 30xx) have no bf16 tensor cores: GPU_ARCH=80 or more is accepted"
#endif

#ifdef CUSIM  // as a default argument: the line of the call, for the message about a misaligned access
#define CALLED_FROM , cusim::Location location = CUSIM_HERE
#define CHECK_ALIGNMENT(p) cusim::check_alignment(p, 16, location)
#define LOADED_WHOLE(bits) cusim::loaded_whole(bits)
#else
#define CALLED_FROM
#define CHECK_ALIGNMENT(p)
#define LOADED_WHOLE(bits)
#endif

// -------------------------------------------------------------------------------------------------
// types

// The 16-bit type of this build, which its tensor cores multiply.
#ifdef PRECISION_FP16
typedef fp16 halfX;
#else
typedef bf16 halfX;
#endif

// A Pack is 128 bits, 4 fp32 or 8 16-bit elements: the widest access of one thread that all chips
// from sm_80 on have. 32 threads with neighbouring Packs access four whole cache lines of 128
// bytes.
template <class T>
struct alignas(16) Pack {
    static constexpr int size = 16 / sizeof(T);
    T value[size];
    __device__ T& operator[](int i) { return value[i]; }
    __device__ T operator[](int i) const { return value[i]; }
};

// The values of a Pack in fp32, in which kernels compute.
template <class T>
struct PackFloats {
    static constexpr int size = Pack<T>::size;
    float value[size];
    __device__ float& operator[](int i) { return value[i]; }
    __device__ float operator[](int i) const { return value[i]; }
};

// Two fp32 values, each rounded to the nearest bf16 or fp16, in one register, by one instruction.
// (Of CUDA's function for it, nvcc makes three for some chips.)
template <class T>
__device__ inline uint32_t pack_pair(float low, float high) {
#ifdef CUSIM
    return T(low).bits | (uint32_t)T(high).bits << 16;
#else
    uint32_t packed;
    if constexpr (is_fp16<T>()) asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#endif
}
// The fp32 values of a register that pack_pair() has made.
template <class T>
__device__ inline void unpack_pair(uint32_t packed, float& low, float& high) {
    if constexpr (is_fp16<T>()) {
        T pair[2];
        memcpy(pair, &packed, 4);
        low = (float)pair[0], high = (float)pair[1];
    } else  // a bf16 is the upper half of an fp32
        low = __uint_as_float(packed << 16), high = __uint_as_float(packed & 0xFFFF0000);
}
template <class T>
__device__ inline PackFloats<T> to_floats(const int4& bits) {
    const uint32_t words[4] = {(uint32_t)bits.x, (uint32_t)bits.y, (uint32_t)bits.z, (uint32_t)bits.w};
    PackFloats<T> x;
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(T) == 4) x[i] = __uint_as_float(words[i]);
        else unpack_pair<T>(words[i], x[2 * i], x[2 * i + 1]);
    }
    return x;
}
// The bits of a Pack, each value rounded to the nearest.
template <class T>
__device__ inline int4 to_bits(const PackFloats<T>& x) {
    uint32_t words[4];
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(T) == 4) words[i] = __float_as_uint(x[i]);
        else words[i] = pack_pair<T>(x[2 * i], x[2 * i + 1]);
    }
    return make_int4((int)words[0], (int)words[1], (int)words[2], (int)words[3]);
}

// Loads and stores of one Pack at p. p must be 16-byte aligned; for store_floats and the streaming
// versions it must point to global memory. (Their stores are intrinsics: an assignment may become
// four stores of 32 bits.) A kernel that loads several Packs before it uses the first keeps their
// bits, which take half the registers of the values in fp32. The streaming versions are for data
// that is not used again soon: it is the first to be evicted from the caches.
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
__device__ inline int4 load_bits(const T* p CALLED_FROM) {
    CHECK_ALIGNMENT(p);
    int4 bits = *reinterpret_cast<const int4*>(p);
    LOADED_WHOLE(bits);
    return bits;
}
template <class T>
__device__ inline int4 load_bits_streaming(const T* p CALLED_FROM) {
    CHECK_ALIGNMENT(p);
    return __ldcs(reinterpret_cast<const int4*>(p));
}
template <class T>
__device__ inline PackFloats<T> load_floats(const T* p CALLED_FROM) {
    CHECK_ALIGNMENT(p);
    int4 bits = *reinterpret_cast<const int4*>(p);
    LOADED_WHOLE(bits);
    return to_floats<T>(bits);
}
template <class T>
__device__ inline void store_floats(T* p, const PackFloats<T>& x CALLED_FROM) {
    CHECK_ALIGNMENT(p);
    __stwb(reinterpret_cast<int4*>(p), to_bits(x));
}
// Stores values, and returns them as they are stored.
template <class T>
__device__ inline PackFloats<T> store_rounded(T* p, const PackFloats<T>& x CALLED_FROM) {
    CHECK_ALIGNMENT(p);
    const int4 bits = to_bits(x);
    __stwb(reinterpret_cast<int4*>(p), bits);
    return to_floats<T>(bits);
}
template <class T>
__device__ inline PackFloats<T> load_floats_streaming(const T* p CALLED_FROM) {
    CHECK_ALIGNMENT(p);
    return to_floats<T>(__ldcs(reinterpret_cast<const int4*>(p)));
}
template <class T>
__device__ inline void store_floats_streaming(T* p, const PackFloats<T>& x CALLED_FROM) {
    CHECK_ALIGNMENT(p);
    __stcs(reinterpret_cast<int4*>(p), to_bits(x));
}
// The Pack from element i on of inp1 or, if inp2 is not null, of inp1 + inp2, which is stored there
// in sum, as it is stored.
template <class T>
__device__ inline PackFloats<T> load_sum(T* sum, const T* inp1, const T* inp2, int64_t i) {
    PackFloats<T> a = load_floats(inp1 + i);
    if (!inp2) return a;
    const PackFloats<T> b = load_floats_streaming(inp2 + i);
    for (int k = 0; k < Pack<T>::size; k++) a[k] += b[k];
    return store_rounded(sum + i, a);
}

// Calls f(i, count) in an elementwise kernel, one Pack per thread, for the Pack that begins at
// element i of n. count is Pack<T>::size, or less in the last, partial Pack.
template <class T, class F>
__device__ inline void for_each_pack(size_t n, F f) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * Pack<T>::size;
    if (i < n) f(i, n - i < (size_t)Pack<T>::size ? (int)(n - i) : Pack<T>::size);
}
// Load and store a Pack of `count` elements; a partial one element by element, with 0 for the
// others.
template <class T>
__device__ inline PackFloats<T> load_some(const T* p, int count) {
    if (count == Pack<T>::size) return load_floats(p);
    PackFloats<T> x;
    for (int k = 0; k < Pack<T>::size; k++) x[k] = k < count ? (float)p[k] : 0.0f;
    return x;
}
template <class T>
__device__ inline void store_some(T* p, const PackFloats<T>& x, int count) {
    if (count == Pack<T>::size) return store_floats_streaming(p, x);
    for (int k = 0; k < count; k++) p[k] = (T)x[k];
}

// -------------------------------------------------------------------------------------------------
// sums over threads, always in the same order: no atomics, so the same bits in every run

// The sum, or the maximum, over the 32 lanes of a warp, in 5 steps: every lane adds the value of
// the lane whose number differs in one bit. All lanes get the result.
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
