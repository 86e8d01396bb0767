// The simulated GPU: fibers, blocks, warps, streams, device memory, and the checks. cusim.h says
// what kernels see of it.
#include "dev/cusim/cusim.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include "dev/cusim/include/cuda_runtime.h"
#include "llmc/clock.h"
#include "llmc/integer_math.h"
#ifdef CUSIM_SANITIZE_address
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
// the macros do nothing in this file, which is not sanitized
static void poison(const void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
static void unpoison(const void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
#else
static void poison(const void*, size_t) {}
static void unpoison(const void*, size_t) {}
#endif
#ifdef CUSIM_SANITIZE_thread
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* addr);
void __tsan_release(void* addr);
}
#endif
#if !defined(__x86_64__) && !defined(CUSIM_UCONTEXT)
#define CUSIM_UCONTEXT
#endif

namespace cusim {

#ifdef CUSIM_SANITIZE_address
constexpr size_t STACK_BYTES = 256 << 10;
#else
constexpr size_t STACK_BYTES = 128 << 10;
#endif
constexpr size_t PAGE = 4096, STACK_GUARD_BYTES = 64 << 10, REDZONE_BYTES = 256;
static const Place NOWHERE(nullptr, 0);
// a block's, of the smallest chip from sm_80 to sm_120
constexpr size_t SHARED_DEFAULT_BYTES = 48 << 10, SHARED_MOST_BYTES = 99 << 10;
constexpr int MOST_THREADS = 1024;  // of a block
// 0xFFFF.. is NaN in fp32, bf16 and fp64
constexpr unsigned char POISON = 0xFF, CANARY = 0xFD;

static uint64_t environment_number(const char* name, uint64_t fallback) {
    const char* text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 10) : fallback;
}
static uint64_t seed() {
    static const uint64_t value = environment_number("CUSIM_SEED", 0);
    return value;
}
static uint64_t random_bits(uint64_t& state) {  // splitmix64
    uint64_t h = state += 0x9E3779B97F4A7C15u;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
    return h ^ (h >> 31);
}

// -------------------------------------------------------------------------------------------------
// fibers: a stack, and a switch from one to another

struct Context {
#ifdef CUSIM_UCONTEXT
    ucontext_t context;
#else
    void* stack_pointer = nullptr;
#endif
    char* stack = nullptr;
    void *tsan = nullptr, *asan_fake = nullptr;
};

#ifndef CUSIM_UCONTEXT
// Saves the registers that a function must preserve on the stack it leaves, and takes them from the
// one it enters.
extern "C" void cusim_switch(void** leave, void* enter);
asm(R"(
.text
.globl cusim_switch
.type cusim_switch,@function
cusim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cusim_switch,.-cusim_switch
)");
#endif

static void switch_context(Context& from, Context& to) {
#ifdef CUSIM_SANITIZE_address
    __sanitizer_start_switch_fiber(&from.asan_fake, to.stack, STACK_BYTES);
#endif
#ifdef CUSIM_SANITIZE_thread
    __tsan_switch_to_fiber(to.tsan, 1);  // 1: the switch orders nothing; barriers do
#endif
#ifdef CUSIM_UCONTEXT
    swapcontext(&from.context, &to.context);
#else
    cusim_switch(&from.stack_pointer, to.stack_pointer);
#endif
#ifdef CUSIM_SANITIZE_address
    __sanitizer_finish_switch_fiber(from.asan_fake, nullptr, nullptr);
#endif
}

// -------------------------------------------------------------------------------------------------
// a block at work

enum State { NOT_STARTED, RUNNABLE, AT_BARRIER, IN_COLLECTIVE, FINISHED };

struct Copy {
    void* to;
    const void* from;
    size_t bytes, bytes_read;
};
struct Fiber;
struct Thread {
    uint3 index;
    int id;
    State state;
    Fiber* fiber;
    Place place;    // where it waits
    unsigned mask;  // of the collective it waits in
    const char* what;
    void* arguments;
    void (*compute)(void**);
};
struct Fiber : Context {
    std::vector<Copy> copies;    // cp.async of its thread under way
    std::vector<size_t> groups;  // copies up to each commit
};
struct SharedVariable {
    const void* key;
    const char* name;
    char* begin;
    size_t bytes;
};

struct Kernel {
    std::string name;
    dim3 grid, block;
    size_t shared_bytes;
    std::function<void()> body;
    std::atomic<uint64_t> next_block{0};
    uint64_t blocks, block_step = 1, block_first = 0;
    char begin_token, end_token;  // what TSan sees as ordering host, kernel, host
};

struct Warp {
    unsigned live, waiting;
};  // lanes that have not returned, lanes in a collective
struct Worker {
    Context home;
    std::vector<Fiber*> fibers, idle;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    int ring[MOST_THREADS];  // threads that may go on: `runnable` of them from `first` on; each at most once
    unsigned first = 0, runnable = 0;
    int& in_line(unsigned i) { return ring[(first + i) % MOST_THREADS]; }
    Kernel* kernel = nullptr;
    uint3 block{};
    Thread* current = nullptr;
    int live = 0, waiting = 0;
    char* shared = nullptr;  // SHARED_MOST_BYTES and redzones
    size_t shared_used = 0;
    std::vector<SharedVariable> variables;
    char barrier_token = 0, block_token = 0;  // what TSan sees as ordering threads: the barrier, the start of the block
    uint64_t random = 0;
};
static thread_local Worker* worker = nullptr;
static char dynamic_shared_memory_key;
static std::atomic<bool> failing{false};

// memset behind the back of the sanitizers, to whom it would be an access by the scheduler.
static void fill(void* p, unsigned char value, size_t bytes) {
    const uint64_t eight = value * 0x0101010101010101u;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        __builtin_memcpy((char*)p + i, &eight, 8);
        asm volatile("" ::: "memory");  // else the compiler sees a memset, and calls it
    }
    for (; i < bytes; i++) ((volatile unsigned char*)p)[i] = value;
}

static std::string describe_thread(const uint3& t) {
    char text[64];
    snprintf(text, sizeof(text), "thread (%u,%u,%u)", t.x, t.y, t.z);
    return text;
}

void fail(Place place, const char* fmt, ...) {
    if (failing.exchange(true))
        for (;;) pause();  // another thread is already saying something
    va_list args;
    va_start(args, fmt);
    char text[1024];
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fflush(stdout);
    std::string where;
    if (worker && worker->kernel) {
        const uint3& b = worker->block;
        char block[64];
        snprintf(block, sizeof(block), ", block (%u,%u,%u)", b.x, b.y, b.z);
        where = "kernel " + worker->kernel->name + block +
                (worker->current ? ", " + describe_thread(worker->current->index) : "") + ": ";
    }
    if (place.file) fprintf(stderr, "error: %s%s:%d: %s\n", where.c_str(), place.file, place.line, text);
    else fprintf(stderr, "error: %s%s\n", where.c_str(), text);
    fflush(stderr);
    _exit(1);
}

static void finish_thread(Worker& w);

// What every fiber runs, forever: the thread it was given, to its end, and back to the scheduler.
static void fiber_main() {
#ifdef CUSIM_SANITIZE_address
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    for (;;) {
        Worker& w = *worker;
        Fiber* self = w.current->fiber;
#ifdef CUSIM_SANITIZE_thread
        __tsan_acquire(&w.kernel->begin_token);
        __tsan_acquire(&w.block_token);
#endif
        w.kernel->body();
#ifdef CUSIM_SANITIZE_thread
        __tsan_release(&w.kernel->end_token);
#endif
        finish_thread(w);
        switch_context(*self, w.home);
    }
}

static Fiber* new_fiber(Worker& w) {
    Fiber* fiber = new Fiber;
    char* memory = (char*)mmap(nullptr, STACK_BYTES + STACK_GUARD_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail(NOWHERE, "no memory for the stack of a thread");
    mprotect(memory, STACK_GUARD_BYTES, PROT_NONE);  // an overflow faults
    fiber->stack = memory + STACK_GUARD_BYTES;
    const size_t colour = w.fibers.size() % 32 * 192;  // not all in the same sets of the cache
    char* top = fiber->stack + STACK_BYTES - 64 - colour / 16 * 16;
#ifdef CUSIM_UCONTEXT
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = top - fiber->stack;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, fiber_main, 0);
#else
    void** sp = (void**)((uintptr_t)top / 16 * 16);
    // where a caller's return address would be: at entry rsp % 16 == 8, as the ABI has it
    *--sp = nullptr;
    *--sp = (void*)fiber_main;  // what the first switch returns into
    sp -= 6;                    // six registers, whatever they hold
    memset(sp, 0, 6 * sizeof(void*));
    fiber->stack_pointer = sp;
#endif
#ifdef CUSIM_SANITIZE_thread
    fiber->tsan = __tsan_create_fiber(0);
#endif
    w.fibers.push_back(fiber);
    return fiber;
}

static void make_runnable(Worker& w, Thread& t) {
    t.state = RUNNABLE;
    w.in_line(w.runnable++) = t.id;
}

// The scheduler's side of waiting: back to run_block, which comes back when this thread may go on.
static void wait_here(Worker& w) {
    Thread* self = w.current;
    switch_context(*self->fiber, w.home);
}

static void release_barrier(Worker& w) {
    Thread* first = nullptr;
    for (Thread& t : w.threads)
        if (t.state == AT_BARRIER) {
            if (!first) first = &t;
            else if (t.place.line != first->place.line || strcmp(t.place.file, first->place.file) != 0) {
                w.current = &t;
                fail(t.place,
                     "waits at this __syncthreads while %s waits at %s:%d: all threads of a block must reach the same "
                     "barrier",
                     describe_thread(first->index).c_str(), first->place.file, first->place.line);
            }
        }
    for (Thread& t : w.threads)
        if (t.state == AT_BARRIER) make_runnable(w, t);
    w.waiting = 0;
}

void block_barrier(Place place) {
    Worker& w = *worker;
    Thread& self = *w.current;
#ifdef CUSIM_SANITIZE_thread
    __tsan_release(&w.barrier_token);
#endif
    self.state = AT_BARRIER, self.place = place;
    w.waiting++;
    if (w.waiting == w.live) release_barrier(w);
    wait_here(w);
#ifdef CUSIM_SANITIZE_thread
    __tsan_acquire(&w.barrier_token);
#endif
}

static bool same_text(const char* a, const char* b) { return a == b || strcmp(a, b) == 0; }

// The collective that thread t waits in: done if all its lanes are there. Returns whether it was.
static bool try_collective(Worker& w, Thread& t) {
    Warp& warp = w.warps[t.id / 32];
    Thread* first = &w.threads[t.id / 32 * 32];
    const unsigned expected = t.mask & warp.live;
    if (expected & ~warp.waiting) return false;
    void* lanes[32];
    for (int lane = 0; lane < 32; lane++)
        if (warp.waiting & ~expected & 1u << lane && first[lane].mask & expected) {
            w.current = &t;
            fail(t.place, "%s with mask %08x, but %s waits for this lane in %s with mask %08x at %s:%d", t.what, t.mask,
                 describe_thread(first[lane].index).c_str(), first[lane].what, first[lane].mask, first[lane].place.file,
                 first[lane].place.line);
        }
    for (int lane = 0; lane < 32; lane++) {
        lanes[lane] = nullptr;
        if (!(expected >> lane & 1)) continue;
        const Thread& other = first[lane];
        if (other.mask != t.mask || other.place.line != t.place.line || !same_text(other.what, t.what) ||
            !same_text(other.place.file, t.place.file)) {
            w.current = &t;
            fail(t.place, "%s with mask %08x, but %s, which that mask names, is in %s with mask %08x at %s:%d", t.what,
                 t.mask, describe_thread(other.index).c_str(), other.what, other.mask, other.place.file,
                 other.place.line);
        }
        lanes[lane] = other.arguments;
    }
#ifdef CUSIM_SANITIZE_thread
    __tsan_acquire(first);
#endif
    if (t.compute) t.compute(lanes);
#ifdef CUSIM_SANITIZE_thread
    __tsan_release(first);
#endif
    warp.waiting &= ~expected;
    for (unsigned lane = 0; lane < 32; lane++)
        if (expected >> lane & 1) make_runnable(w, first[lane]);
    return true;
}

void warp_collective(unsigned mask, const char* what, Place place, void* arguments, void (*compute)(void**)) {
    Worker& w = *worker;
    Thread& self = *w.current;
    if (!(mask >> (self.id % 32) & 1))
        fail(place, "%s with mask %08x, which does not name the calling lane %d", what, mask, self.id % 32);
#ifdef CUSIM_SANITIZE_thread
    __tsan_release(&w.threads[self.id / 32 * 32]);
#endif
    self.state = IN_COLLECTIVE, self.place = place, self.mask = mask, self.what = what, self.arguments = arguments,
    self.compute = compute;
    w.warps[self.id / 32].waiting |= 1u << self.id % 32;
    try_collective(w, self);
    wait_here(w);
#ifdef CUSIM_SANITIZE_thread
    __tsan_acquire(&w.threads[self.id / 32 * 32]);
#endif
}

// A thread has returned: those that waited only for it may go on.
static void finish_thread(Worker& w) {
    Thread& self = *w.current;
    self.state = FINISHED;
    self.fiber->copies.clear(), self.fiber->groups.clear();
    w.live--;
    w.warps[self.id / 32].live &= ~(1u << self.id % 32);
    if (w.live > 0 && w.waiting == w.live) release_barrier(w);
    for (int id = self.id / 32 * 32; id < std::min(self.id / 32 * 32 + 32, (int)w.threads.size()); id++)
        if (w.threads[id].state == IN_COLLECTIVE && try_collective(w, w.threads[id])) break;
}

[[noreturn]] static void report_deadlock(Worker& w) {
    Thread *at_barrier = nullptr, *in_collective = nullptr;
    for (Thread& t : w.threads) {
        if (t.state == AT_BARRIER && !at_barrier) at_barrier = &t;
        if (t.state == IN_COLLECTIVE && !in_collective) in_collective = &t;
    }
    w.current = in_collective ? in_collective : at_barrier;
    if (at_barrier && in_collective)
        fail(in_collective->place,
             "waits in %s with mask %08x for lanes that wait at the __syncthreads at %s:%d, or elsewhere",
             in_collective->what, in_collective->mask, at_barrier->place.file, at_barrier->place.line);
    fail(w.current->place, "waits here for threads that never come");
}

static void reset_shared(Worker& w) {
#ifdef CUSIM_SANITIZE_thread
    // fresh addresses: blocks that follow each other share nothing
    if (w.shared) munmap(w.shared, 2 * SHARED_MOST_BYTES);
    w.shared = nullptr;
#endif
    if (!w.shared) {
        w.shared =
            (char*)mmap(nullptr, 2 * SHARED_MOST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (w.shared == MAP_FAILED) fail(NOWHERE, "no memory for shared memory");
        w.shared_used = 2 * SHARED_MOST_BYTES;
    }
    unpoison(w.shared, 2 * SHARED_MOST_BYTES);
    fill(w.shared, CANARY, w.shared_used);
    w.shared_used = 0;
    w.variables.clear();
    poison(w.shared, 2 * SHARED_MOST_BYTES);
}

void* shared_memory(const void* key, const char* name, size_t bytes, size_t alignment) {
    Worker& w = *worker;
    for (const SharedVariable& v : w.variables)
        if (v.key == key) return v.begin;
    size_t total = bytes;
    for (const SharedVariable& v : w.variables) total += v.bytes;
    if (key != &dynamic_shared_memory_key &&
        total - (w.variables.empty() || w.variables[0].key != &dynamic_shared_memory_key ? 0 : w.variables[0].bytes) >
            SHARED_DEFAULT_BYTES)
        fail(NOWHERE, "__shared__ variables take more than %zu bytes, with %s", SHARED_DEFAULT_BYTES, name);
    if (total > SHARED_MOST_BYTES)
        fail(NOWHERE, "the block takes %zu bytes of shared memory, chips from sm_80 to sm_120 all have %zu", total,
             SHARED_MOST_BYTES);
    const size_t begin = round_up(w.shared_used, alignment);
    w.shared_used = round_up(begin + bytes + REDZONE_BYTES, 16);
    if (w.shared_used > 2 * SHARED_MOST_BYTES) fail(NOWHERE, "too many __shared__ variables, with %s", name);
    char* p = w.shared + begin;
    unpoison(p, bytes);
    fill(p, POISON, bytes);
    w.variables.push_back({key, name, p, bytes});
    return p;
}
void* dynamic_shared_memory() {
    Worker& w = *worker;
    if (w.kernel->shared_bytes == 0) fail(NOWHERE, "asks for dynamic shared memory, the launch gives none");
    return w.variables[0].begin;  // run_block has put it there
}

static void check_shared(Worker& w) {
#ifndef CUSIM_SANITIZE_address
    for (const SharedVariable& v : w.variables)
        for (size_t i = 0; i < REDZONE_BYTES; i++)
            if ((unsigned char)v.begin[v.bytes + i] != CANARY)
                fail(NOWHERE, "a write beyond the end of the shared variable %s, at byte %zu of %zu", v.name,
                     v.bytes + i, v.bytes);
#endif
    (void)w;
}

void misaligned(const void* p, size_t bytes, Place place) {
    fail(place, "misaligned access of %zu bytes at %p", bytes, p);
}

static void deliver(const Copy& c) {
    memcpy(c.to, c.from, c.bytes_read);
    memset((char*)c.to + c.bytes_read, 0, c.bytes - c.bytes_read);
}
void async_copy(void* to, const void* from, size_t bytes, size_t bytes_read, Place place) {
    check_alignment(to, bytes, place);
    check_alignment(from, bytes, place);
    const Copy copy{to, from, bytes, bytes_read};
    if (seed() && random_bits(worker->random) % 2) deliver(copy);  // it may come at any time up to the wait
    else worker->current->fiber->copies.push_back(copy);
}
void async_commit() {
    Fiber& t = *worker->current->fiber;
    t.groups.push_back(t.copies.size());
}
void async_wait(int groups_left) {
    Fiber& t = *worker->current->fiber;
    const int done = (int)t.groups.size() - groups_left;
    if (done <= 0) return;
    const size_t end = t.groups[done - 1];
    for (size_t i = 0; i < end; i++) deliver(t.copies[i]);
    t.copies.erase(t.copies.begin(), t.copies.begin() + end);
    t.groups.erase(t.groups.begin(), t.groups.begin() + done);
    for (size_t& g : t.groups) g -= end;
}

static void run_block(Worker& w, uint64_t number) {
    Kernel& k = *w.kernel;
    const int n = k.block.x * k.block.y * k.block.z;
    w.block = {(unsigned)(number % k.grid.x), (unsigned)(number / k.grid.x % k.grid.y),
               (unsigned)(number / k.grid.x / k.grid.y)};
    blockIdx = w.block, blockDim = k.block, gridDim = k.grid;
    w.random = seed() * 1000003 + number;
    w.live = n, w.waiting = 0;
    w.threads.resize(n);
    w.warps.assign(ceil_div(n, 32), {0, 0});
    w.first = w.runnable = 0;
    w.current = nullptr;
    reset_shared(w);
    if (k.shared_bytes) shared_memory(&dynamic_shared_memory_key, "(dynamic)", k.shared_bytes, 128);
    for (int id = 0; id < n; id++) {
        Thread& t = w.threads[id];
        t.index = {id % k.block.x, id / k.block.x % k.block.y, id / k.block.x / k.block.y};
        t.id = id, t.state = NOT_STARTED, t.fiber = nullptr;
        w.in_line(w.runnable++) = id;
        w.warps[id / 32].live |= 1u << id % 32;
    }
#ifdef CUSIM_SANITIZE_thread
    __tsan_release(&w.block_token);
    // A thread has its own fiber, never the one of its namesake in the block before, so that no
    // accident of scheduling orders them.
    while ((int)w.fibers.size() < 2 * n) new_fiber(w);
    w.idle = w.fibers;
    for (size_t i = w.idle.size(); i > 1; i--) std::swap(w.idle[i - 1], w.idle[random_bits(w.random) % i]);
#endif
    while (w.runnable > 0) {
        if (seed()) {  // any of them, or whoever came last: that lets one warp run far ahead of the others
            const uint64_t bits = random_bits(w.random);
            std::swap(w.in_line(0), w.in_line(bits % 4 ? w.runnable - 1 : (unsigned)((bits >> 32) % w.runnable)));
        }
        Thread& t = w.threads[w.in_line(0)];
        w.first++, w.runnable--;
        if (!t.fiber) {
            if (w.idle.empty()) w.idle.push_back(new_fiber(w));
            t.fiber = w.idle.back();
            w.idle.pop_back();
        }
        t.state = RUNNABLE;
        w.current = &t;
        threadIdx = t.index;
        switch_context(w.home, *t.fiber);
#ifndef CUSIM_SANITIZE_thread
        if (t.state == FINISHED) w.idle.push_back(t.fiber);  // its stack serves the next thread
#endif
    }
    if (w.live > 0) report_deadlock(w);
    w.current = nullptr;
    check_shared(w);
}

static Worker* this_worker() {
    if (!worker) {
        worker = new Worker;
        pthread_attr_t attributes;  // ASan wants to know the stack that it comes home to
        void* stack;
        size_t bytes;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &stack, &bytes);
        pthread_attr_destroy(&attributes);
        worker->home.stack = (char*)stack + bytes - STACK_BYTES;
        static thread_local char signal_stack[64 << 10];  // a fault may come from a stack that has overflowed
        stack_t alternate{};
        alternate.ss_sp = signal_stack, alternate.ss_size = sizeof(signal_stack);
        sigaltstack(&alternate, nullptr);
    }
#ifdef CUSIM_SANITIZE_thread
    worker->home.tsan = __tsan_get_current_fiber();
#endif
    return worker;
}

static void work_on(Kernel& k) {
    Worker& w = *this_worker();
    w.kernel = &k;
    for (uint64_t i; (i = k.next_block.fetch_add(1)) < k.blocks;)
        run_block(w, (k.block_first + i * k.block_step) % k.blocks);
    w.kernel = nullptr;
}

// The OS threads beside the one that waits for a stream, started with the first kernel of more than
// one block.
struct Pool {
    std::mutex mutex;
    std::condition_variable wake, done;
    std::vector<std::thread> threads;
    Kernel* kernel = nullptr;
    uint64_t generation = 0;
    int busy = 0;

    void run(Kernel& k) {
        if (k.blocks < 2) return work_on(k);
        {
            std::unique_lock<std::mutex> lock(mutex);
            if (threads.empty()) {
                const uint64_t n = environment_number("CUSIM_THREADS", std::thread::hardware_concurrency());
                for (uint64_t i = 1; i < n; i++) std::thread([this] { serve(); }).detach(), threads.emplace_back();
            }
            kernel = &k, busy = (int)threads.size(), generation++;
        }
        wake.notify_all();
        work_on(k);
        std::unique_lock<std::mutex> lock(mutex);
        done.wait(lock, [this] { return busy == 0; });
    }
    void serve() {
        for (uint64_t seen = 0;;) {
            Kernel* k;
            {
                std::unique_lock<std::mutex> lock(mutex);
                wake.wait(lock, [&] { return generation != seen; });
                seen = generation, k = kernel;
            }
            work_on(*k);
            std::unique_lock<std::mutex> lock(mutex);
            if (--busy == 0) done.notify_all();
        }
    }
};
static Pool& pool() {
    static Pool* p = new Pool;  // outlives its threads
    return *p;
}

// -------------------------------------------------------------------------------------------------
// device memory

struct Allocation {
    char *map, *user;
    size_t map_bytes, bytes;
};
struct Guard {
    std::string name;
    unsigned char* begin;
    size_t bytes;
};
static std::map<char*, Allocation>& allocations() {
    static auto* all = new std::map<char*, Allocation>;
    return *all;
}
static std::vector<Guard> guards;
static std::map<char*, size_t>& pinned() {
    static auto* all = new std::map<char*, size_t>;
    return *all;
}
static size_t live_bytes = 0;
static int access_depth = 0;

size_t requested_bytes() { return live_bytes; }

static void protect(const Allocation& a, int how) { mprotect(a.user, a.map_bytes - 2 * PAGE, how); }
struct DeviceAccess {
    DeviceAccess() {
        if (access_depth++ == 0)
            for (auto& [user, a] : allocations()) protect(a, PROT_READ | PROT_WRITE);
    }
    ~DeviceAccess() {
        if (--access_depth == 0)
            for (auto& [user, a] : allocations()) protect(a, PROT_NONE);
    }
};

static const Allocation* find_allocation(const void* p) {
    for (auto& [user, a] : allocations())
        if (p >= a.map && p < a.map + a.map_bytes) return &a;
    return nullptr;
}

// File and line of an instruction of this program, where addr2line is installed.
static Place place_of(const void* instruction) {
    static char text[512];
    Dl_info info;
    if (!dladdr(instruction, &info)) return NOWHERE;
    char command[600];
    snprintf(command, sizeof(command), "addr2line -i -e '%s' %#zx 2>/dev/null", info.dli_fname,
             (size_t)((const char*)instruction - (const char*)info.dli_fbase));
    FILE* pipe = popen(command, "r");
    char* colon = pipe && fgets(text, sizeof(text), pipe) ? strrchr(text, ':') : nullptr;
    if (pipe) pclose(pipe);
    if (!colon || text[0] == '?') return NOWHERE;
    *colon = '\0';
    char here[512];  // the name as the other messages have it: relative to where the program was built
    const char* name =
        getcwd(here, sizeof(here)) && strncmp(text, here, strlen(here)) == 0 ? text + strlen(here) + 1 : text;
    if (strncmp(name, "build/sim/", 10) == 0) name += 10;  // the rewritten copy
    return Place(name, atoi(colon + 1));
}

static void on_fault(int, siginfo_t* info, void* context) {
    const void* at = info->si_addr;
    const Allocation* a = find_allocation(at);
#if defined(__x86_64__) && defined(__linux__)
    const Place place = place_of((const void*)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP]);
#else
    const Place place = ((void)context, NOWHERE);
#endif
    if (worker && worker->current) {
        if (a && (char*)at < a->user)
            fail(place, "access to %p, %zu bytes before a device buffer of %zu bytes", at,
                 (size_t)(a->user - (char*)at), a->bytes);
        if (a)
            fail(place, "access to %p, byte %zu of a device buffer of %zu bytes", at, (size_t)((char*)at - a->user),
                 a->bytes);
        for (Fiber* f : worker->fibers)
            if (at >= f->stack - STACK_GUARD_BYTES && at < f->stack)
                fail(place, "stack overflow: a thread has %zu KiB for its local variables", STACK_BYTES >> 10);
        fail(place, "access to %p, which is no device memory", at);
    }
    if (a)
        fail(place,
             "host code touches device memory: byte %td of a device buffer of %zu bytes; cudaMemcpy brings it to the "
             "host",
             (char*)at - a->user, a->bytes);
    signal(SIGSEGV, SIG_DFL);  // no business of ours
    raise(SIGSEGV);
}

static void catch_faults() {
#if !defined(CUSIM_SANITIZE_address) && !defined(CUSIM_SANITIZE_thread)
    static bool done = false;
    if (done) return;
    done = true;
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
#else
    (void)on_fault;  // the sanitizer's own report has the line
#endif
}

static void fill_guard(unsigned char* p, size_t bytes) {
    fill(p, CANARY, bytes);
    poison(p, bytes);
}
void guard(const char* name, void* p, size_t bytes) {
    if (bytes == 0) return;
    DeviceAccess access;
    fill_guard((unsigned char*)p, bytes);
    guards.push_back({name, (unsigned char*)p, bytes});
}

// After a kernel: no redzone has changed.
static void check_guards(const char* kernel) {
#ifndef CUSIM_SANITIZE_address
    for (const Guard& g : guards)
        for (size_t i = 0; i < g.bytes; i++)
            if (g.begin[i] != CANARY)
                fail(NOWHERE, "kernel %s wrote beyond its memory: byte %zu after %s", kernel, i, g.name.c_str());
#endif
    (void)kernel;
}

// -------------------------------------------------------------------------------------------------
// streams: queues that move when the host waits

struct Operation {
    std::string name;
    std::function<void()> run;
    cudaEvent_t event = nullptr;
    uint64_t version = 0;  // of the event to wait for
    enum Kind { WORK, RECORD, WAIT } kind = WORK;
};

}  // namespace cusim

struct CusimStream {
    std::deque<cusim::Operation> queue;
};
struct CusimEvent {
    uint64_t recorded = 0, reached = 0;
    double time = 0;
};

namespace cusim {

static std::vector<cudaStream_t>& streams() {
    static auto* all = new std::vector<cudaStream_t>{new CusimStream};  // [0] stands for the default stream
    return *all;
}
static cudaStream_t stream_of(cudaStream_t stream) { return stream ? stream : streams()[0]; }

static bool ready(cudaStream_t s) {
    return !s->queue.empty() &&
           (s->queue.front().kind != Operation::WAIT || s->queue.front().event->reached >= s->queue.front().version);
}

static void run_front(cudaStream_t s) {
    Operation op = std::move(s->queue.front());
    s->queue.pop_front();
    if (op.kind == Operation::WORK) op.run(), check_guards(op.name.c_str());
    if (op.kind == Operation::RECORD && op.event->reached < op.version)
        op.event->reached = op.version, op.event->time = now_seconds();
}

// Runs until done() holds: first what the caller waits for, other streams only where that depends
// on them, so that work nobody waits for comes late; with a seed, whatever is ready, in random
// order.
template <class Done>
static void run_until(cudaStream_t preferred, Done done) {
    static uint64_t random = seed();
    if (access_depth > 0) return;  // asked by an operation that is itself under way
    DeviceAccess access;
    while (!done()) {
        std::vector<cudaStream_t> candidates;
        if (!seed() && preferred && ready(preferred)) candidates.push_back(preferred);
        else
            for (cudaStream_t s : streams())
                if (ready(s)) candidates.push_back(s);
        if (candidates.empty()) fail(NOWHERE, "the host waits for a stream that waits for an event nobody records");
        run_front(candidates[seed() ? random_bits(random) % candidates.size() : candidates.size() - 1]);
    }
}
static void synchronize(cudaStream_t s) {
    run_until(s, [&] { return s->queue.empty(); });
}
static void synchronize_all() {
    run_until(nullptr, [] {
        return std::all_of(streams().begin(), streams().end(), [](cudaStream_t s) { return s->queue.empty(); });
    });
}

static void enqueue(cudaStream_t stream, Operation op) {
    if (!stream) synchronize_all();  // the legacy default stream waits for all others
    stream_of(stream)->queue.push_back(std::move(op));
    if (!stream) synchronize_all();
}
void enqueue_host(const char* name, cudaStream_t stream, std::function<void()> work) {
    enqueue(stream, {name, std::move(work)});
}

static std::map<const void*, size_t>& dynamic_shared_limits() {
    static auto* all = new std::map<const void*, size_t>;
    return *all;
}
static cudaError_t last_error = cudaSuccess;
static cudaError_t error(cudaError_t e) {
    if (e != cudaSuccess) last_error = e;
    return e;
}

// CUSIM_LAUNCHES=file: every kernel's symbol with each combination of threads and dynamic shared
// memory it was launched with.
static void note_launch(const void* function, uint64_t threads, size_t shared_bytes) {
    static FILE* file = getenv("CUSIM_LAUNCHES") ? fopen(getenv("CUSIM_LAUNCHES"), "w") : nullptr;
    static std::map<std::pair<const void*, std::pair<uint64_t, size_t>>, bool> seen;
    Dl_info info;
    if (!file || std::exchange(seen[{function, {threads, shared_bytes}}], true) || !dladdr(function, &info) ||
        !info.dli_sname)
        return;
    fprintf(file, "%s %llu %zu\n", info.dli_sname, (unsigned long long)threads, shared_bytes);
    fflush(file);
}

void enqueue_kernel(const char* name, const void* function, dim3 grid, dim3 block, size_t shared_bytes,
                    cudaStream_t stream, std::function<void()> body) {
    catch_faults();
    const uint64_t threads = (uint64_t)block.x * block.y * block.z, blocks = (uint64_t)grid.x * grid.y * grid.z;
    const auto limit = dynamic_shared_limits().find(function);
    const size_t shared_limit = limit == dynamic_shared_limits().end() ? SHARED_DEFAULT_BYTES : limit->second;
    if (threads == 0 || threads > MOST_THREADS || block.z > 64 || blocks == 0 || grid.x > 0x7FFFFFFFu ||
        grid.y > 65535 || grid.z > 65535)
        fail(NOWHERE, "kernel %s: a grid of (%u,%u,%u) blocks of (%u,%u,%u) threads is beyond what a GPU accepts", name,
             grid.x, grid.y, grid.z, block.x, block.y, block.z);
    if (shared_bytes > shared_limit)
        fail(NOWHERE,
             "kernel %s: %zu bytes of dynamic shared memory, %zu are allowed (cudaFuncSetAttribute raises it to %zu)",
             name, shared_bytes, shared_limit, SHARED_MOST_BYTES);
    note_launch(function, threads, shared_bytes);
    auto kernel = std::make_shared<Kernel>();
    kernel->name = name, kernel->grid = grid, kernel->block = block, kernel->shared_bytes = shared_bytes,
    kernel->body = std::move(body), kernel->blocks = blocks;
    enqueue(stream,
            {name, [kernel, blocks] {
                 if (seed()) {  // another order of the blocks: every step coprime to their number visits each once
                     uint64_t random = seed() + blocks;
                     kernel->block_first = random_bits(random) % blocks;
                     do kernel->block_step = 1 + random_bits(random) % blocks;
                     while (std::__gcd(kernel->block_step, blocks) != 1);
                 }
#ifdef CUSIM_SANITIZE_thread
                 __tsan_release(&kernel->begin_token);
#endif
                 pool().run(*kernel);
#ifdef CUSIM_SANITIZE_thread
                 __tsan_acquire(&kernel->end_token);
#endif
             }});
}

static bool has_device() { return environment_number("CUSIM_DEVICES", 1) > 0; }
static size_t device_memory() {
    return environment_number("CUSIM_MEMORY_MIB", (uint64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) >> 20)
           << 20;
}

}  // namespace cusim

// -------------------------------------------------------------------------------------------------
// the CUDA runtime's functions

using namespace cusim;

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t e) {
    switch (e) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
        default: return "invalid argument";
    }
}
cudaError_t cudaDriverGetVersion(int* version) {
    return *version = (int)environment_number("CUSIM_DRIVER", 13000), cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
    *count = (int)environment_number("CUSIM_DEVICES", 1);
    if (environment_number("CUSIM_DRIVER", 13000) < 12000) return error(cudaErrorInsufficientDriver);
    return *count ? cudaSuccess : error(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
    return device < (int)environment_number("CUSIM_DEVICES", 1) ? cudaSuccess : error(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    if (!has_device()) return error(cudaErrorNoDevice);
    if (device >= (int)environment_number("CUSIM_DEVICES", 1)) return error(cudaErrorInvalidDevice);
    *p = {};
    std::stringstream names(getenv("CUSIM_NAMES") ? getenv("CUSIM_NAMES") : "cusim");
    std::string name;
    for (int i = 0; i <= device && std::getline(names, name, ','); i++) {}  // the last one's, where there are too few
    snprintf(p->name, sizeof(p->name), "%s", name.c_str());
    const int capability = (int)environment_number("CUSIM_CAPABILITY", 80);
    p->major = capability / 10, p->minor = capability % 10, p->multiProcessorCount = 4;
    p->sharedMemPerBlockOptin = SHARED_MOST_BYTES, p->totalGlobalMem = device_memory();
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    return *total = device_memory(), *free_bytes = *total - std::min(*total, live_bytes), cudaSuccess;
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
    catch_faults();
    if (!has_device()) return error(cudaErrorNoDevice);
    if (live_bytes + bytes > device_memory()) return error(cudaErrorMemoryAllocation);
    Allocation a;
    a.bytes = bytes;
    a.map_bytes = round_up(bytes + REDZONE_BYTES, PAGE) + 2 * PAGE;
    a.map = (char*)mmap(nullptr, a.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a.map == MAP_FAILED) return error(cudaErrorMemoryAllocation);
    a.user = a.map + PAGE;
    protect(a, PROT_READ | PROT_WRITE);
    fill(a.user, POISON, bytes);
    fill_guard((unsigned char*)a.user + bytes, REDZONE_BYTES);
    char name[64];
    snprintf(name, sizeof(name), "a buffer of %zu bytes", bytes);
    guards.push_back({name, (unsigned char*)a.user + bytes, REDZONE_BYTES});
    if (access_depth == 0) protect(a, PROT_NONE);
    allocations()[a.user] = a;
    live_bytes += bytes;
    *p = a.user;
    return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
    if (!p) return cudaSuccess;
    auto found = allocations().find((char*)p);
    if (found == allocations().end()) fail(NOWHERE, "cudaFree of %p, which no cudaMalloc returned", p);
    synchronize_all();
    const Allocation a = found->second;
    guards.erase(
        std::remove_if(guards.begin(), guards.end(),
                       [&](const Guard& g) { return (char*)g.begin >= a.map && (char*)g.begin < a.map + a.map_bytes; }),
        guards.end());
    unpoison(a.map, a.map_bytes);
    munmap(a.map, a.map_bytes);
    live_bytes -= a.bytes;
    allocations().erase(found);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
    *p = malloc(bytes ? bytes : 1);
    if (!*p) return error(cudaErrorMemoryAllocation);
    memset(*p, POISON, bytes);
    pinned()[(char*)*p] = bytes;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
    synchronize_all();
    pinned().erase((char*)p);
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    bool is_pinned = false;
    for (auto& [begin, size] : pinned()) is_pinned |= from >= begin && (char*)from + bytes <= begin + size;
    if (kind == cudaMemcpyHostToDevice && !is_pinned) {  // pageable memory is read before the call returns
        std::vector<char> staged((const char*)from, (const char*)from + bytes);
        enqueue(stream,
                {"cudaMemcpyAsync", [to, staged = std::move(staged)] { memcpy(to, staged.data(), staged.size()); }});
    } else enqueue(stream, {"cudaMemcpyAsync", [=] { memcpy(to, from, bytes); }});
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
    enqueue(stream, {"cudaMemsetAsync", [=] { memset(p, value, bytes); }});
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    if (!has_device()) return error(cudaErrorNoDevice);
    streams().push_back(*stream = new CusimStream);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    synchronize(stream);
    streams().erase(std::find(streams().begin(), streams().end(), stream));
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return synchronize(stream_of(stream)), cudaSuccess; }
// the work must move some time
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaDeviceSynchronize() { return synchronize_all(), cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CusimEvent, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return synchronize_all(), delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    enqueue(stream, {"cudaEventRecord", nullptr, event, ++event->recorded, Operation::RECORD});
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    enqueue(stream, {"cudaStreamWaitEvent", nullptr, event, event->recorded, Operation::WAIT});
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const uint64_t version = event->recorded;
    run_until(nullptr, [&] { return event->reached >= version; });
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    return *ms = (float)((end->time - begin->time) * 1e3), cudaSuccess;
}
cudaError_t cusim_set_dynamic_shared(const void* kernel, int bytes) {
    if ((size_t)bytes > SHARED_MOST_BYTES) return error(cudaErrorInvalidValue);
    dynamic_shared_limits()[kernel] = bytes;
    return cudaSuccess;
}
