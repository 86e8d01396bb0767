// cusim: CUDA sources on a CPU. What a kernel, compiled by an ordinary C++ compiler, sees of the
// simulated GPU. README.md says how to use it, cusim_inside.h how it is built.
//
// Each CUDA thread is a fiber: a stack of its own, and a switch that saves six registers. The
// fibers of a block run on one OS thread, one at a time. Each runs until it must wait, for a
// barrier or for the other lanes of its warp. Blocks are spread over the OS threads. Work in
// streams is executed when the host waits for it, and device memory is accessible only then.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
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

// The indices of the running thread, which the scheduler sets at every switch. They are plain
// variables, so that a debugger can use them in conditions.
inline thread_local uint3 threadIdx, blockIdx;
inline thread_local dim3 blockDim, gridDim;

typedef struct CusimStream* cudaStream_t;
typedef struct CusimEvent* cudaEvent_t;
typedef struct CusimGraph* cudaGraph_t;
typedef struct CusimGraphExec* cudaGraphExec_t;

namespace cusim {

// A line of source; as a default argument, the line of the call.
struct Location {
    const char* file;
    int line;
    Location(const char* file = __builtin_FILE(), int line = __builtin_LINE()) : file(file), line(line) {}
};
#define CUSIM_HERE cusim::Location()

// Ends the program with one sentence on stderr that names kernel, block, thread and location; exit
// status 1.
[[noreturn]] void fail(Location location, const char* fmt, ...) __attribute__((format(printf, 2, 3)));

void block_barrier(Location location);  // __syncthreads

// What the lanes of a warp do together. The lanes of `mask` wait here for each other. The last to
// arrive calls compute(lanes): the arguments of each lane, null where a lane is not in the mask.
void warp_collective(unsigned mask, const char* what, Location location, void* arguments,
                     void (*compute)(void** lanes));

// Shared memory of the block. `key` distinguishes one __shared__ variable from another. All threads
// of a block get the same address.
void* shared_memory(const void* key, const char* name, size_t bytes, size_t alignment);
void* dynamic_shared_memory();
template <class T, int counter>
T& shared_variable(const char* name) {
    static char key;
    return *(T*)shared_memory(&key, name, sizeof(T), alignof(T) < 16 ? 16 : alignof(T));
}

// Check that a vector access at p is aligned to its size.
void misaligned(const void* p, size_t bytes, Location location);
inline void check_alignment(const void* p, size_t bytes, Location location) {
    if ((uintptr_t)p % bytes != 0) misaligned(p, bytes, location);
}
// Check an access with a cache hint, which is an instruction for global memory alone.
void check_hinted(const void* p, size_t bytes, Location location);
// Makes a load of several words one access, as on a GPU, even if they are used one by one.
template <class T>
inline void loaded_whole(T& value) {
#ifdef CUSIM_COUNTS
    asm volatile("" : "+m"(value));
#endif
    (void)value;
}

// cp.async. A copy may arrive at any time up to the wait, in the fixed order (no CUSIM_SEED) not
// before.
void async_copy(void* to, const void* from, size_t bytes, size_t bytes_read, Location location);
void async_commit();
void async_wait(int groups_left);

// *p = compute(*p, operand) by one thread at a time. Returns what was there.
uint32_t atomic_update(uint32_t* p, uint32_t operand, uint32_t (*compute)(uint32_t there, uint32_t operand));

// Builds with COUNT=1 count accesses to memory, and the rows that lanes pass to ldmatrix.
#ifdef CUSIM_COUNTS
void forget_counts();  // of the kernels that have run
void count_ldmatrix(const void* row);
#else
inline void count_ldmatrix(const void*) {}
#endif

void enqueue_kernel(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                    cudaStream_t stream, std::function<void()> thread_body);
void enqueue_host(const char* name, cudaStream_t stream, std::function<void()> work);

// kernel<<<grid, block, shared_bytes, stream>>>(args...). The arguments are copied at the launch,
// and again for every thread.
template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Args&&... args) {
    std::tuple<std::decay_t<Params>...> captured(static_cast<std::decay_t<Params>>(args)...);
    enqueue_kernel(name, (const void*)kernel, grid, block, shared_bytes, stream,
                   [kernel, captured] { std::apply(kernel, captured); });
}

// A redzone: `bytes` bytes from p on that no kernel may write, which is checked after every kernel.
// With SANITIZE=address, an access is reported at once, a read too.
void guard(const char* name, void* p, size_t bytes);

// CUSIM_DRY=file: kernels, products and memsets are not executed, but written to the file, a line
// each, in the order in which they are enqueued. Null without it.
FILE* dry_run();

// Bytes of all cudaMalloc that have not been freed.
size_t requested_bytes();
size_t pinned_bytes();  // of the host

}  // namespace cusim
