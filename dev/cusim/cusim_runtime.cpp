// The CUDA runtime's functions: errors, devices, memory. Those of streams and events are in
// cusim_streams.cpp.
#include "dev/cusim/cusim_inside.h"
#include <unistd.h>
#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

namespace cusim {

static cudaError_t last_error = cudaSuccess;
cudaError_t error(cudaError_t e) {
    if (e != cudaSuccess) last_error = e;
    return e;
}
static int current_device = 0;
static int devices() { return (int)environment_number("CUSIM_DEVICES", 1); }
static int driver() { return (int)environment_number("CUSIM_DRIVER", 13000); }
bool has_device() { return devices() > 0; }

static int capability() { return (int)environment_number("CUSIM_CAPABILITY", 80); }
// What a multiprocessor holds, by compute capability (CUDA C++ Programming Guide, technical
// specifications). Those that are left out are as 8.0 here.
static bool is_small() { return capability() == 86 || capability() == 89 || capability() == 120; }
static int multiprocessors() { return (int)environment_number("CUSIM_MULTIPROCESSORS", 132); }
static int threads_of_multiprocessor() { return is_small() ? 1536 : 2048; }
static int blocks_of_multiprocessor() { return capability() == 86 ? 16 : is_small() ? 24 : 32; }
static size_t shared_of_multiprocessor() {
    return (size_t)(is_small() ? 100 : capability() == 90 || capability() == 100 ? 228 : 164) << 10;
}

}  // namespace cusim

using namespace cusim;

// -------------------------------------------------------------------------------------------------
// errors, devices

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t e) {
    switch (e) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
        case cudaErrorECCUncorrectable: return "uncorrectable ECC error encountered";
        case cudaErrorNotReady: return "device not ready";
        default: return "invalid argument";
    }
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = driver(), cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
    *count = devices();
    if (driver() < 12000) return error(cudaErrorInsufficientDriver);
    return *count ? cudaSuccess : error(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
    if (device >= devices()) return error(cudaErrorInvalidDevice);
    return current_device = device, cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { return *device = current_device, cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
    if (device >= devices()) return error(cudaErrorInvalidDevice);
    return snprintf(id, bytes, "0000:%02X:00.0", device + 1), cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    if (!has_device()) return error(cudaErrorNoDevice);
    if (device >= devices()) return error(cudaErrorInvalidDevice);
    *p = {};
    std::stringstream names(getenv("CUSIM_NAMES") ? getenv("CUSIM_NAMES") : "cusim");
    std::string name;
    for (int i = 0; i <= device && std::getline(names, name, ','); i++) {}  // the last name, where there are too few
    snprintf(p->name, sizeof(p->name), "%s", name.c_str());
    p->major = capability() / 10, p->minor = capability() % 10, p->multiProcessorCount = multiprocessors();
    p->sharedMemPerBlockOptin = SHARED_MOST_BYTES, p->totalGlobalMem = device_bytes();
    // Unless CUSIM_DEVICES says what the machine has, each process has a GPU of its own.
    snprintf(p->uuid.bytes, sizeof(p->uuid.bytes), "%d %d", device, getenv("CUSIM_DEVICES") ? 0 : (int)getpid());
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (device >= devices()) return error(cudaErrorInvalidDevice);
    const std::map<cudaDeviceAttr, int> values = {
        {cudaDevAttrMultiProcessorCount, multiprocessors()},
        {cudaDevAttrMaxThreadsPerMultiProcessor, threads_of_multiprocessor()},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor,
         (int)environment_number("CUSIM_SHARED_KIB", shared_of_multiprocessor() >> 10) << 10},
        {cudaDevAttrL2CacheSize, (int)environment_number("CUSIM_CACHE_KIB", 64) << 10},
    };
    return *value = values.at(attribute), cudaSuccess;
}
// A block takes 1 KB more of shared memory than it asks for. Registers are not known here.
cudaError_t cusim_blocks_per_multiprocessor(int* blocks, int threads, size_t shared_bytes) {
    const int by_shared = (int)(shared_of_multiprocessor() / (shared_bytes + 1024));
    *blocks = std::min({threads_of_multiprocessor() / threads, by_shared, blocks_of_multiprocessor()});
    return cudaSuccess;
}
cudaError_t cusim_set_dynamic_shared(const void* kernel, int bytes) {
    if ((size_t)bytes > (runs_on_hopper(kernel) ? SHARED_HOPPER_BYTES : SHARED_MOST_BYTES))
        return error(cudaErrorInvalidValue);
    dynamic_shared_limits()[kernel] = bytes;
    return cudaSuccess;
}

// -------------------------------------------------------------------------------------------------
// memory

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    *total = device_bytes(), *free_bytes = *total - std::min(*total, requested_bytes());
    return cudaSuccess;
}
cudaError_t cudaMalloc(void** p, size_t bytes) {
    catch_faults();
    if (!has_device()) return error(cudaErrorNoDevice);
    refuse_in_capture("cudaMalloc");
    void* memory = allocate_device(bytes);
    if (!memory) return error(cudaErrorMemoryAllocation);
    *p = memory;
    return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
    if (p) free_device(p);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
    *p = malloc(bytes ? bytes : 1);
    if (!*p) return error(cudaErrorMemoryAllocation);
    memset(*p, POISON, bytes);
    pinned()[(char*)*p] = bytes;
    return cudaSuccess;
}
size_t cusim::pinned_bytes() {
    size_t bytes = 0;
    for (const auto& [begin, size] : pinned()) bytes += size;
    return bytes;
}
cudaError_t cudaFreeHost(void* p) {
    synchronize_all();
    pinned().erase((char*)p);
    free(p);
    return cudaSuccess;
}
static bool is_pinned(const void* p, size_t bytes) {
    for (auto& [begin, size] : pinned())
        if (p >= begin && (char*)p + bytes <= begin + size) return true;
    return false;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (kind == cudaMemcpyHostToDevice && note_dry(stream, "copy %zu", bytes)) return cudaSuccess;
    // Ordinary memory is read before the call returns, or if the stream is captured, at each
    // launch.
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from, bytes) && !is_captured(stream)) {
        std::vector<char> staged((const char*)from, (const char*)from + bytes);
        auto copy = [to, staged = std::move(staged)] { memcpy(to, staged.data(), staged.size()); };
        enqueue_host("cudaMemcpyAsync", stream, std::move(copy));
        return cudaSuccess;
    }
    const char* name = kind == cudaMemcpyDeviceToHost ? "cudaMemcpyAsync to the host" : "cudaMemcpyAsync";
    enqueue_copy(name, stream, [=] { memcpy(to, from, bytes); });
    return cudaSuccess;
}
// From pageable memory to the device it returns when the data has been read; it arrives later. Only
// the default stream, and streams that wait for it, can rely on it.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    const cudaError_t problem = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    if (kind != cudaMemcpyHostToDevice || is_pinned(from, bytes)) synchronize(nullptr);
    return problem;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
    if (note_dry(stream, "memset %zu", bytes)) return cudaSuccess;
    enqueue_host("cudaMemsetAsync", stream, [=] { memset(p, value, bytes); });
    return cudaSuccess;
}
