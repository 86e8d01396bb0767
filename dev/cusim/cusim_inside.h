// What the files of the simulator share, and what each of them does for the others. cusim.h is what
// kernels see of the simulator.
//
//     cusim_fibers.cpp    stacks, and switching from one to another
//     cusim_blocks.cpp    a block at work: scheduler, barriers, warps
//     cusim_shared.cpp    its shared memory, and cp.async
//     cusim_hopper.cpp    mbarriers, TMA, wgmma
//     cusim_memory.cpp    device memory: allocations, redzones, faults
//     cusim_streams.cpp   streams, events, kernel launches
//     cusim_runtime.cpp   the CUDA runtime's functions
//     cusim_blas.cpp      cuBLASLt
//     cusim_nccl.cpp      NCCL
//     cusim_count.cpp     counts, in builds with COUNT=1; cusim_count_calls.cpp: what the compiler calls
#pragma once
#include <atomic>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>
#include "dev/cusim/include/cuda_runtime.h"

namespace cusim {

constexpr size_t PAGE = 4096, REDZONE_BYTES = 256;
// Shared memory per block, on the smallest chips from sm_80 to sm_120.
constexpr size_t SHARED_DEFAULT_BYTES = 48 << 10, SHARED_MOST_BYTES = 99 << 10;
constexpr size_t SHARED_HOPPER_BYTES = 227 << 10;
constexpr size_t SHARED_REGION_BYTES = 256 << 10;  // with redzones; what a wgmma's descriptor can address
constexpr int MOST_THREADS = 1024;                 // per block
// POISON fills memory that nobody has written: 0xFFFF.. is NaN in fp32, bf16 and fp64. CANARY fills
// redzones.
constexpr unsigned char POISON = 0xFF, CANARY = 0xFD;

// -------------------------------------------------------------------------------------------------
// settings from the environment, random numbers

inline uint64_t environment_number(const char* name, uint64_t fallback) {
    const char* text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 10) : fallback;
}
// CUSIM_SEED: everything that a GPU leaves open happens in an order drawn from it; 0: in one fixed
// order.
inline uint64_t seed() {
    static const uint64_t value = environment_number("CUSIM_SEED", 0);
    return value;
}
inline uint64_t random_bits(uint64_t& state) {  // splitmix64
    uint64_t h = state += 0x9E3779B97F4A7C15u;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
    return h ^ (h >> 31);
}

// -------------------------------------------------------------------------------------------------
// what the sanitizers are told (these functions do nothing in other builds)

// AddressSanitizer: bytes that nobody may access. (cusim_memory.cpp)
void poison(const void* p, size_t bytes);
void unpoison(const void* p, size_t bytes);

// ThreadSanitizer: what a thread did before tsan_release(p) comes before what another thread does
// after tsan_acquire(p).
#ifdef CUSIM_SANITIZE_thread
extern "C" {
void __tsan_acquire(void* p);
void __tsan_release(void* p);
void __tsan_read_range(void* p, unsigned long bytes);
void __tsan_write_range(void* p, unsigned long bytes);
}
inline void tsan_acquire(void* p) { __tsan_acquire(p); }
inline void tsan_release(void* p) { __tsan_release(p); }
inline void tsan_read(const void* p, size_t bytes) { __tsan_read_range((void*)p, bytes); }
inline void tsan_write(void* p, size_t bytes) { __tsan_write_range(p, bytes); }
#else
inline void tsan_acquire(void*) {}
inline void tsan_release(void*) {}
inline void tsan_read(const void*, size_t) {}
inline void tsan_write(void*, size_t) {}
#endif

// -------------------------------------------------------------------------------------------------
// cusim_fibers.cpp

struct Copy {  // one cp.async on its way
    void* to;
    const void* from;
    size_t bytes, bytes_read;
};
struct Context;  // a saved state of execution: registers and stack
struct Fiber {
    Context* context;
    std::vector<Copy> copies;    // of its thread, on their way
    std::vector<size_t> groups;  // number of copies up to each commit
};

// A fiber that runs body() when it is first switched to; body must not return. `number` spreads the
// stacks over the sets of the cache.
Fiber* new_fiber(void (*body)(), size_t number);
// The context of the OS thread that calls it.
Context* this_context();
void switch_context(Context* from, Context* to);
// To be called first in body().
void fiber_begins();
bool in_guard_of_stack(const Fiber* fiber, const void* p);
bool in_stack(const Fiber* fiber, const void* p);
extern const size_t STACK_BYTES;

// -------------------------------------------------------------------------------------------------
// cusim_blocks.cpp

// What a thread is doing. gdb.py knows these values by number.
enum State { NOT_STARTED, RUNNABLE, AT_BARRIER, IN_COLLECTIVE, FINISHED, AT_MBARRIER, IN_WARPGROUP };

struct Thread {
    uint3 index;
    int id;
    State state;
    Fiber* fiber;
    Location location;  // where it waits
    unsigned mask;      // of the collective it waits in, or the parity of the phase that must end
    const char* what;   // the name of the collective
    void* arguments;    // or the mbarrier
    void (*compute)(void** lanes);
};
struct Warp {
    unsigned live, waiting;  // lanes that have not returned; lanes in a collective
};
struct SharedVariable {
    const void* key;
    const char* name;
    char* begin;
    size_t bytes;
};
struct Kernel {
    std::string name;
    const void* function;
    dim3 grid, block;
    size_t shared_bytes;
    bool hopper;  // runs there alone
    std::function<void()> body;
    std::atomic<uint64_t> next_block{0};
    // The i-th block to start is number (block_first + i block_step) % blocks.
    uint64_t blocks, block_step = 1, block_first = 0;
    char begin_token, end_token;  // for TSan: the order of host, kernel, host
};

// The threads of a block that can go on, each at most once, in the order in which they became so.
struct RunQueue {
    int ring[MOST_THREADS];
    unsigned first = 0, size = 0;
    int& at(unsigned i) { return ring[(first + i) % MOST_THREADS]; }
    void push(int id) { at(size++) = id; }
    int pop() { return size--, ring[first++ % MOST_THREADS]; }
    int pop_newest() { return at(--size); }
};

// What a block for Hopper has on its way (cusim_hopper.h). Of fixed size: the sanitizers would take
// an allocation by one thread, freed by another, for an access of the kernel.
struct Box {  // between a tensor and shared memory
    uint64_t map[16];
    char* shared;
    int at[4];
    uint64_t* barrier;  // of a load
    int thread;         // of a store
    Location here;
};
struct Boxes {
    static constexpr int MOST = 128;
    Box box[MOST];
    int count;
};
struct Products {  // one wgmma
    static constexpr size_t MOST_BYTES = 48;
    unsigned char arguments[128][MOST_BYTES];
    void (*compute)(void** threads);  // null when it has been computed
};
struct WarpGroup {
    static constexpr uint64_t MOST = 32;  // on their way at once
    Products products[MOST];              // number i is at i % MOST
    uint64_t begin, end;                  // of those that have not been waited for
    uint64_t groups, group_end[MOST];     // groups that were committed; the end of number i, at i % MOST
    uint64_t same;                        // what all threads have passed
    int waiting;
    bool fenced;  // registers have not changed since the last wgmma_fence
    char token;   // for TSan
};
struct AsyncProxy {
    bool used;                                // by this block
    unsigned char view[SHARED_REGION_BYTES];  // shared memory as it sees it
    Boxes loads, stores;
    char token;  // for TSan: what came before loads were started
    WarpGroup warpgroups[MOST_THREADS / 128];
};

// An OS thread that runs blocks, one after the other, and the block it is running.
struct Worker {
    Context* home = nullptr;
    std::vector<Fiber*> fibers, idle;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    RunQueue runnable;
    Kernel* kernel = nullptr;
    uint3 block{};
    Thread* current = nullptr;
    int live = 0, waiting = 0;  // threads that have not returned; threads at the barrier
    char* shared = nullptr;     // shared memory with redzones: SHARED_REGION_BYTES
    size_t shared_used = 0;
    std::vector<SharedVariable> variables;
    char barrier_token = 0, block_token = 0;  // for TSan: the order that barriers and the block's start make
    uint64_t random = 0;
    AsyncProxy* async = nullptr;
};
inline thread_local Worker* worker = nullptr;

const Location NOWHERE(nullptr, 0);

// Runs all blocks of a kernel, on all OS threads.
void run_kernel(Kernel& kernel);
void make_runnable(Worker& w, Thread& t);
// Switches to the thread that runs next, and returns when this one can go on.
void wait_here(Worker& w);

// -------------------------------------------------------------------------------------------------
// cusim_shared.cpp

// Empty shared memory before a block, but for the launch's dynamic part; and check after it that no
// redzone has changed.
void reset_shared(Worker& w);
void check_shared(Worker& w);
// The last shared variable of the block that begins at p or before; null if there is none.
const SharedVariable* shared_variable_before(const Worker& w, const void* p);

// -------------------------------------------------------------------------------------------------
// cusim_hopper.cpp

void reset_async(Worker& w);
bool deliver_box(Worker& w);  // the oldest one that is on its way to shared memory; false: there is none
inline bool boxes_on_their_way(const Worker& w) { return w.async && w.async->loads.count > 0; }
void check_async(Worker& w, const Thread& finished);            // that a thread leaves nothing on its way
void check_async(Worker& w);                                    // and a block neither
[[noreturn]] void report_mbarrier(Worker& w, const Thread& t);  // that this thread waits at for ever
bool runs_on_hopper(const void* kernel);

// -------------------------------------------------------------------------------------------------
// cusim_memory.cpp

struct Allocation {
    char *map, *user;  // what mmap returned, what cudaMalloc returned
    size_t map_bytes, bytes;
};
// Device memory can be accessed while one of these exists; otherwise an access by the host faults.
struct DeviceAccess {
    DeviceAccess();
    ~DeviceAccess();
    static bool open();
};
// A memset that the sanitizers do not see: to them it would be an access by the scheduler.
void fill(void* p, unsigned char value, size_t bytes);
// Faults become a message that names kernel, block, thread and line.
void catch_faults();
// File and line of an instruction of this program, where addr2line is installed.
Location location_of(const void* instruction);
// Checks after a kernel that no redzone has changed.
void check_guards(const char* kernel);
// The allocation that holds p, with its redzones; null if there is none.
const Allocation* find_allocation(const void* p);
// Device memory of so many bytes; null if there is not as much.
void* allocate_device(size_t bytes);
void free_device(void* p);
size_t device_bytes();              // of the simulated GPU: CUSIM_MEMORY_MIB
std::map<char*, size_t>& pinned();  // cudaMallocHost

// -------------------------------------------------------------------------------------------------
// cusim_streams.cpp

void synchronize(cudaStream_t stream);
void synchronize_all();
// Enqueues what takes time that the program cannot shorten: poll() is called until it returns true.
void enqueue_polled(const char* name, cudaStream_t stream, std::function<bool()> poll);
// Enqueues a copy between the device and pinned memory: with CUSIM_COPY_MS it begins as soon as it
// can, and takes so many milliseconds at least, while other streams go on.
void enqueue_copy(const char* name, cudaStream_t stream, std::function<void()> copy);
bool has_highest_priority(cudaStream_t stream);
bool is_captured(cudaStream_t stream);
// Ends the program if any stream is captured; `what` is for the message.
void refuse_in_capture(const char* what);
// Writes a line to the file of CUSIM_DRY, or has the stream's graph write it at each launch. False
// without CUSIM_DRY.
bool note_dry(cudaStream_t stream, const char* fmt, ...) __attribute__((format(printf, 2, 3)));
inline double event_clock_ahead_s = 0;  // what the times of events are ahead of the clock
// CUSIM_HANG=NAME:3: the program stops for ever at the third call of this name, be it a kernel,
// another operation of a stream, or a function of NCCL.
void hang_if_asked(const char* name);
// Dynamic shared memory that cudaFuncSetAttribute has allowed, by kernel.
std::map<const void*, size_t>& dynamic_shared_limits();

// -------------------------------------------------------------------------------------------------
// cusim_count.cpp: what the others tell it (these functions do nothing in builds without COUNT=1)

#ifdef CUSIM_COUNTS
constexpr bool COUNTING = true;  // then one OS thread runs all blocks
enum Access { LOAD, STORE, ATOMIC };
void count_access(Access access, const void* p, uint32_t bytes, const void* code);  // by the running lane
void count_atomic(const void* p, const void* code);
void count_copy(const Copy& copy, const void* code);
void count_collective(const Thread& one);  // all its lanes have arrived
void count_wgmma(const Thread& one);       // all threads of its warpgroup have arrived
void count_box(Access access, const std::vector<std::pair<const char*, size_t>>& rows, const void* code);
void count_barrier(Location where);       // all threads of the block have arrived
void count_block();                       // has ended
void count_kernel(const Kernel& kernel);  // has ended
void pause_counting(bool paused);
#else
constexpr bool COUNTING = false;
inline void count_atomic(const void*, const void*) {}
inline void count_copy(const Copy&, const void*) {}
inline void count_collective(const Thread&) {}
inline void count_wgmma(const Thread&) {}
inline void count_barrier(Location) {}
inline void count_block() {}
inline void count_kernel(const Kernel&) {}
inline void pause_counting(bool) {}
#endif

// -------------------------------------------------------------------------------------------------
// cusim_runtime.cpp

bool has_device();  // CUSIM_DEVICES
// Keeps an error for cudaGetLastError, and returns it.
cudaError_t error(cudaError_t e);

}  // namespace cusim
