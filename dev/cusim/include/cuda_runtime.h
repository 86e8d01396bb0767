// What this project uses of the CUDA runtime, for an ordinary C++ compiler. Implemented in
// dev/cusim/cusim_*.cpp.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include "dev/cusim/cusim.h"

#define CUSIM 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

// ---- types
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

// ---- in kernels
inline void __syncthreads(cusim::Location location = CUSIM_HERE) { cusim::block_barrier(location); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, cusim::Location location = CUSIM_HERE) {
    cusim::warp_collective(mask, "__syncwarp", location, nullptr, nullptr);
}

namespace cusim {
template <class T>
struct Shuffle {
    T value, result;
    int from;
};
template <class T>
T shuffle(unsigned mask, T value, int from, const char* what, Location location) {
    Shuffle<T> mine{value, value, from};
    warp_collective(mask, what, location, &mine, [](void** lanes) {
        for (int i = 0; i < 32; i++) {
            Shuffle<T>* s = (Shuffle<T>*)lanes[i];
            if (s && lanes[s->from & 31]) s->result = ((Shuffle<T>*)lanes[s->from & 31])->value;
        }
    });
    return mine.result;
}
inline int lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32; }
}  // namespace cusim
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, cusim::Location location = CUSIM_HERE) {
    return cusim::shuffle(mask, value, lane, "__shfl_sync", location);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance, cusim::Location location = CUSIM_HERE) {
    return cusim::shuffle(mask, value, cusim::lane() ^ distance, "__shfl_xor_sync", location);
}
// The lane that is so many numbers higher, or lower; the caller's own value where there is none.
template <class T>
T __shfl_down_sync(unsigned mask, T value, int distance, cusim::Location location = CUSIM_HERE) {
    const int lane = cusim::lane(), from = lane + distance;
    return cusim::shuffle(mask, value, from < 32 ? from : lane, "__shfl_down_sync", location);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int distance, cusim::Location location = CUSIM_HERE) {
    const int lane = cusim::lane(), from = lane - distance;
    return cusim::shuffle(mask, value, from >= 0 ? from : lane, "__shfl_up_sync", location);
}
// One bit for each lane: whether its condition holds.
inline unsigned __ballot_sync(unsigned mask, int condition, cusim::Location location = CUSIM_HERE) {
    struct Vote {
        int condition;
        unsigned all;
    } mine{condition, 0};
    cusim::warp_collective(mask, "__ballot_sync", location, &mine, [](void** lanes) {
        unsigned all = 0;
        for (int i = 0; i < 32; i++)
            if (lanes[i] && ((Vote*)lanes[i])->condition) all |= 1u << i;
        for (int i = 0; i < 32; i++)
            if (lanes[i]) ((Vote*)lanes[i])->all = all;
    });
    return mine.all;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

// *p += value, as one step that no other thread comes into; returns what was there. For numbers of
// 4 bytes.
template <class T>
__forceinline__ T atomicAdd(T* p, std::common_type_t<T> value) {
    static_assert(sizeof(T) == 4);
    T before;
    uint32_t there, operand;
    memcpy(&operand, &value, 4);
    there = cusim::atomic_update((uint32_t*)p, operand, [](uint32_t a, uint32_t b) {
        T x, y;
        memcpy(&x, &a, 4), memcpy(&y, &b, 4);
        x += y;
        return memcpy(&a, &x, 4), a;
    });
    return memcpy(&before, &there, 4), before;
}

// Loads and stores with cache hints, which mean nothing here; they must be aligned and in global
// memory.
template <class T>
T __ldcs(const T* p, cusim::Location location = CUSIM_HERE) {
    cusim::check_hinted(p, sizeof(T), location);
    T value = *p;
    cusim::loaded_whole(value);
    return value;
}
template <class T>
void __stwb(T* p, T value, cusim::Location location = CUSIM_HERE) {
    cusim::check_hinted(p, sizeof(T), location), *p = value;
}
template <class T>
void __stcs(T* p, T value, cusim::Location location = CUSIM_HERE) {
    cusim::check_hinted(p, sizeof(T), location), *p = value;
}

inline int min(int a, int b) { return a < b ? a : b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline int __float2int_rn(float x) { return x == x ? (int)std::nearbyint(x) : 0; }
inline unsigned __float_as_uint(float x) {
    unsigned u;
    return memcpy(&u, &x, 4), u;
}
inline float __uint_as_float(unsigned u) {
    float x;
    return memcpy(&x, &u, 4), x;
}

// ---- on the host
enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorECCUncorrectable = 214,
    cudaErrorNvlinkUncorrectable = 220,
    cudaErrorUnsupportedPtxVersion = 222,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchTimeout = 702,
    cudaErrorMisalignedAddress = 716,
    cudaErrorInvalidAddressSpace = 717,
    cudaErrorLaunchFailure = 719,
    cudaErrorSystemNotReady = 802,
    cudaErrorSystemDriverMismatch = 803,
    cudaErrorCompatNotSupportedOnDevice = 804,
    cudaErrorGraphExecUpdateFailure = 910
};
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81
};
struct cudaFuncAttributes {
    int maxThreadsPerBlock;
};
struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount;
    size_t sharedMemPerBlockOptin, totalGlobalMem;
    cudaUUID_t uuid;
};
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMalloc(void** p, size_t bytes);
cudaError_t cudaFree(void* p);
cudaError_t cudaMallocHost(void** p, size_t bytes);
cudaError_t cudaFreeHost(void* p);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
struct cudaGraphExecUpdateResultInfo {};
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* result);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
template <class T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
    return cudaMalloc((void**)p, bytes);
}
template <class T>
cudaError_t cudaMallocHost(T** p, size_t bytes) {
    return cudaMallocHost((void**)p, bytes);
}
enum { cudaEnableDefault = 0 };
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, uint64_t flags);
cudaError_t cusim_blocks_per_multiprocessor(int* blocks, int threads, size_t shared_bytes);
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int threads, size_t shared_bytes) {
    return cusim_blocks_per_multiprocessor(blocks, threads, shared_bytes);
}
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel*) {
    return attributes->maxThreadsPerBlock = 1024, cudaSuccess;
}
cudaError_t cusim_set_dynamic_shared(const void* kernel, int bytes);
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
    return cusim_set_dynamic_shared((const void*)kernel, bytes);
}
