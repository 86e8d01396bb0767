// cusim: CUDA sources on a CPU. What a kernel compiled by an ordinary C++ compiler sees of the
// simulated GPU.
//
// Each CUDA thread is a fiber: a stack of its own and a switch that saves six registers. The fibers
// of a block run on one OS thread, one at a time, each until it must wait (for a barrier, for the
// other lanes of its warp); blocks are spread over the OS threads. Work in streams is kept until
// the host waits for it, and device memory can be touched only while it runs. cusim.cpp has the
// machinery, README.md how to use it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// The running thread; the scheduler sets them with every switch. Plain variables, so that a
// debugger can put conditions on them.
inline thread_local uint3 threadIdx, blockIdx;
inline thread_local dim3 blockDim, gridDim;

typedef struct CusimStream* cudaStream_t;
typedef struct CusimEvent* cudaEvent_t;

namespace cusim {

// A line of source; as a default argument, the line of the call.
struct Place {
    const char* file;
    int line;
    Place(const char* file = __builtin_FILE(), int line = __builtin_LINE()) : file(file), line(line) {}
};
#define CUSIM_HERE cusim::Place()

// Ends the program with one sentence that names kernel, block, thread and place.
[[noreturn]] void fail(Place place, const char* fmt, ...) __attribute__((format(printf, 2, 3)));

void block_barrier(Place place);

// All lanes of `mask` come here with their arguments; the last to arrive calls compute(arguments by
// lane, null where a lane is not in the mask).
void warp_collective(unsigned mask, const char* what, Place place, void* arguments, void (*compute)(void** lanes));

// Memory of the block. `key` tells one __shared__ variable from another; all threads of a block get
// the same address.
void* shared_memory(const void* key, const char* name, size_t bytes, size_t alignment);
void* dynamic_shared_memory();
template <class T, int counter>
T& shared_variable(const char* name) {
    static char key;
    return *(T*)shared_memory(&key, name, sizeof(T), alignof(T) < 16 ? 16 : alignof(T));
}

// A vector access at p must be aligned to its size.
void misaligned(const void* p, size_t bytes, Place place);
inline void check_alignment(const void* p, size_t bytes, Place place) {
    if ((uintptr_t)p % bytes != 0) misaligned(p, bytes, place);
}

// cp.async: nothing arrives before the wait.
void async_copy(void* to, const void* from, size_t bytes, size_t bytes_read, Place place);
void async_commit();
void async_wait(int groups_left);

void enqueue_kernel(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                    cudaStream_t stream, std::function<void()> thread_body);
void enqueue_host(const char* name, cudaStream_t stream, std::function<void()> work);

// kernel<<<grid, block, shared_bytes, stream>>>(args...): arguments are captured by value now, and
// every thread gets its own copy.
template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Args&&... args) {
    std::tuple<std::decay_t<Params>...> captured(static_cast<std::decay_t<Params>>(args)...);
    enqueue_kernel(name, (const void*)kernel, grid, block, shared_bytes, stream,
                   [kernel, captured] { std::apply(kernel, captured); });
}

// Bytes from p on that no kernel may touch: checked after every kernel, trapped at once under
// SANITIZE=address.
void guard(const char* name, void* p, size_t bytes);

// Of all cudaMalloc that have not been freed.
size_t requested_bytes();

}  // namespace cusim
