// Blocks at work. The threads of a block are fibers that run on one OS thread, one at a time. A
// thread runs until it must wait, for a barrier or for the other lanes of its warp; then it
// switches to the next that can go on. If none can and some have not returned, they wait for each
// other: a deadlock, which is reported. The blocks of a kernel are spread over the OS threads.
#include "dev/cusim/cusim_inside.h"
#include <unistd.h>
#include <algorithm>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <thread>
#include "llmc/base/integer_math.h"

namespace cusim {

static std::string describe_thread(const uint3& t) {
    char text[64];
    snprintf(text, sizeof(text), "thread (%u,%u,%u)", t.x, t.y, t.z);
    return text;
}

void fail(Location location, const char* fmt, ...) {
    static std::atomic<bool> failing{false};
    if (failing.exchange(true))
        for (;;) pause();  // another OS thread is reporting already, and will end the program
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
    if (location.file) fprintf(stderr, "error: %s%s:%d: %s\n", where.c_str(), location.file, location.line, text);
    else fprintf(stderr, "error: %s%s\n", where.c_str(), text);
    fflush(stderr);
    _exit(1);
}

void make_runnable(Worker& w, Thread& t) {
    t.state = RUNNABLE;
    w.runnable.push(t.id);
}

// -------------------------------------------------------------------------------------------------
// barriers

static bool same_text(const char* a, const char* b) { return a == b || strcmp(a, b) == 0; }
static bool same_location(const Location& a, const Location& b) {
    return a.line == b.line && same_text(a.file, b.file);
}

static void release_barrier(Worker& w) {
    Thread* first = nullptr;
    for (Thread& t : w.threads)
        if (t.state == AT_BARRIER) {
            if (!first) first = &t;
            else if (!same_location(t.location, first->location)) {
                w.current = &t;
                fail(t.location,
                     "waits at this __syncthreads while %s waits at %s:%d: all threads of a block must reach the same "
                     "barrier",
                     describe_thread(first->index).c_str(), first->location.file, first->location.line);
            }
        }
    for (Thread& t : w.threads)
        if (t.state == AT_BARRIER) make_runnable(w, t);
    w.waiting = 0;
    count_barrier(first ? first->location : NOWHERE);
}

void block_barrier(Location location) {
    Worker& w = *worker;
    Thread& self = *w.current;
    tsan_release(&w.barrier_token);
    self.state = AT_BARRIER, self.location = location;
    w.waiting++;
    if (w.waiting == w.live) release_barrier(w);
    wait_here(w);
    tsan_acquire(&w.barrier_token);
}

// -------------------------------------------------------------------------------------------------
// warps

static void check_collective(Worker& w, Thread& t, const Thread* lanes, unsigned expected, unsigned waiting) {
    for (int lane = 0; lane < 32; lane++) {
        const Thread& other = lanes[lane];
        const bool is_expected = expected >> lane & 1, is_waiting = waiting >> lane & 1;
        if (is_waiting && !is_expected && other.mask & expected) {
            w.current = &t;
            fail(t.location, "%s with mask %08x, but %s waits for this lane in %s with mask %08x at %s:%d", t.what,
                 t.mask, describe_thread(other.index).c_str(), other.what, other.mask, other.location.file,
                 other.location.line);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        const Thread& other = lanes[lane];
        if (!(expected >> lane & 1)) continue;
        if (other.mask != t.mask || !same_text(other.what, t.what) || !same_location(other.location, t.location)) {
            w.current = &t;
            fail(t.location, "%s with mask %08x, but %s, which that mask names, is in %s with mask %08x at %s:%d",
                 t.what, t.mask, describe_thread(other.index).c_str(), other.what, other.mask, other.location.file,
                 other.location.line);
        }
    }
}

// The collective that thread t waits in: if all its lanes have arrived, computes it and lets them
// go on. Returns whether they had.
static bool try_collective(Worker& w, Thread& t) {
    Warp& warp = w.warps[t.id / 32];
    Thread* first = &w.threads[t.id / 32 * 32];
    const unsigned expected = t.mask & warp.live;
    if (expected & ~warp.waiting) return false;
    check_collective(w, t, first, expected, warp.waiting);
    void* lanes[32];
    for (int lane = 0; lane < 32; lane++) lanes[lane] = expected >> lane & 1 ? first[lane].arguments : nullptr;
    tsan_acquire(first);
    count_collective(t);
    pause_counting(true);  // compute() is a model of the instruction, no access of a lane
    if (t.compute) t.compute(lanes);
    pause_counting(false);
    tsan_release(first);
    warp.waiting &= ~expected;
    for (unsigned lane = 0; lane < 32; lane++)
        if (expected >> lane & 1) make_runnable(w, first[lane]);
    return true;
}

void warp_collective(unsigned mask, const char* what, Location location, void* arguments, void (*compute)(void**)) {
    Worker& w = *worker;
    Thread& self = *w.current;
    Thread* first = &w.threads[self.id / 32 * 32];
    const int lane = self.id % 32;
    if (!(mask >> lane & 1))
        fail(location, "%s with mask %08x, which does not name the calling lane %d", what, mask, lane);
    tsan_release(first);
    self.state = IN_COLLECTIVE, self.location = location, self.mask = mask, self.what = what;
    self.arguments = arguments, self.compute = compute;
    w.warps[self.id / 32].waiting |= 1u << lane;
    try_collective(w, self);
    wait_here(w);
    tsan_acquire(first);
}

// -------------------------------------------------------------------------------------------------
// the scheduler

// A thread has returned. Threads that waited only for it can go on.
static void finish_thread(Worker& w) {
    Thread& self = *w.current;
    const int warp_begin = self.id / 32 * 32, warp_end = std::min(warp_begin + 32, (int)w.threads.size());
    self.state = FINISHED;
    check_async(w, self);
    self.fiber->copies.clear(), self.fiber->groups.clear();
    w.live--;
    w.warps[self.id / 32].live &= ~(1u << self.id % 32);
    if (w.live > 0 && w.waiting == w.live) release_barrier(w);
    for (int id = warp_begin; id < warp_end; id++)
        if (w.threads[id].state == IN_COLLECTIVE && try_collective(w, w.threads[id])) break;
}

// The thread that runs next: with a seed the newest in the queue, so that one warp can run far
// ahead of the others, or a random one.
static int next_thread(Worker& w) {
    if (seed()) {
        const uint64_t bits = random_bits(w.random);
        if (bits % 4) return w.runnable.pop_newest();
        std::swap(w.runnable.at(0), w.runnable.at((unsigned)((bits >> 32) % w.runnable.size)));
    }
    return w.runnable.pop();
}

static void run_threads();
static void add_fiber(Worker& w) { w.fibers.push_back(new_fiber(run_threads, w.fibers.size())); }
static Fiber* idle_fiber(Worker& w) {
    if (w.idle.empty()) add_fiber(w), w.idle.push_back(w.fibers.back());
    Fiber* fiber = w.idle.back();
    w.idle.pop_back();
    return fiber;
}

// Makes the next thread the current one, and returns its fiber.
static Fiber* choose(Worker& w) {
    Thread& t = w.threads[next_thread(w)];
    if (!t.fiber) t.fiber = idle_fiber(w);
    t.state = RUNNABLE;
    w.current = &t;
    threadIdx = t.index;
    return t.fiber;
}
// Switches from a fiber to that of the next thread; to schedule() if none can go on, or if there
// are boxes, which it delivers.
static void leave(Worker& w, Fiber* self) {
    if (w.runnable.size == 0 || boxes_on_their_way(w)) return switch_context(self->context, w.home);
    Fiber* next = choose(w);
    if (next != self) switch_context(self->context, next->context);
}
void wait_here(Worker& w) { leave(w, w.current->fiber); }

// What every fiber runs: the thread that it was given, to its end; then the next one that it is
// given.
static void run_threads() {
    fiber_begins();
    for (;;) {
        Worker& w = *worker;
        Fiber* self = w.current->fiber;
        tsan_acquire(&w.kernel->begin_token);
        tsan_acquire(&w.block_token);
        w.kernel->body();
        tsan_release(&w.kernel->end_token);
        finish_thread(w);
#ifndef CUSIM_SANITIZE_thread
        w.idle.push_back(self);  // its stack serves another thread
#endif
        leave(w, self);
    }
}

[[noreturn]] static void report_deadlock(Worker& w) {
    const Thread* first[IN_WARPGROUP + 1] = {};
    for (Thread& t : w.threads)
        if (!first[t.state]) first[t.state] = &t;
    const Thread *at_barrier = first[AT_BARRIER], *in_collective = first[IN_COLLECTIVE];
    if (first[AT_MBARRIER]) report_mbarrier(w, *first[AT_MBARRIER]);
    const Thread* one = in_collective ? in_collective : at_barrier ? at_barrier : first[IN_WARPGROUP];
    w.current = &w.threads[one->id];
    if (at_barrier && in_collective)
        fail(in_collective->location,
             "waits in %s with mask %08x for lanes that wait at the __syncthreads at %s:%d, or elsewhere",
             in_collective->what, in_collective->mask, at_barrier->location.file, at_barrier->location.line);
    fail(one->location, "waits here for threads that never come");
}

static void start_block(Worker& w, uint64_t number) {
    Kernel& k = *w.kernel;
    const int n = k.block.x * k.block.y * k.block.z;
    w.block = {(unsigned)(number % k.grid.x), (unsigned)(number / k.grid.x % k.grid.y),
               (unsigned)(number / k.grid.x / k.grid.y)};
    blockIdx = w.block, blockDim = k.block, gridDim = k.grid;
    w.random = seed() * 1000003 + number;
    w.live = n, w.waiting = 0;
    w.threads.resize(n);
    w.warps.assign(ceil_div(n, 32), {0, 0});
    w.runnable.first = w.runnable.size = 0;
    w.current = nullptr;
    reset_shared(w);
    reset_async(w);
    for (int id = 0; id < n; id++) {
        Thread& t = w.threads[id];
        t.index = {id % k.block.x, id / k.block.x % k.block.y, id / k.block.x / k.block.y};
        t.id = id, t.state = NOT_STARTED, t.fiber = nullptr;
        w.runnable.push(id);
        w.warps[id / 32].live |= 1u << id % 32;
    }
#ifdef CUSIM_SANITIZE_thread
    tsan_release(&w.block_token);
    // A thread never gets the fiber of a thread of the block before: to TSan, a fiber is a thread,
    // and what it did in one block would come before what it does in the next.
    while ((int)w.fibers.size() < 2 * n) add_fiber(w);
    w.idle = w.fibers;
    for (size_t i = w.idle.size(); i > 1; i--) std::swap(w.idle[i - 1], w.idle[random_bits(w.random) % i]);
#endif
}

static void schedule(Worker& w) {
    while (w.runnable.size > 0 || (w.live > 0 && deliver_box(w))) {
        if (w.runnable.size == 0) continue;
        if (seed() && random_bits(w.random) % 4 == 0) deliver_box(w);
        switch_context(w.home, choose(w)->context);
    }
}

static void run_block(Worker& w, uint64_t number) {
    start_block(w, number);
    schedule(w);
    if (w.live > 0) report_deadlock(w);
    w.current = nullptr;
    check_async(w);
    count_block();
    check_shared(w);
}

// -------------------------------------------------------------------------------------------------
// the OS threads

static void work_on(Kernel& k) {
    if (!worker) worker = new Worker;
    Worker& w = *worker;
    w.home = this_context();
    w.kernel = &k;
    for (uint64_t i; (i = k.next_block.fetch_add(1)) < k.blocks;)
        run_block(w, (k.block_first + i * k.block_step) % k.blocks);
    w.kernel = nullptr;
}

// The OS threads beside the one that waits for a stream. They are started for the first kernel of
// more than one block.
struct Pool {
    std::mutex mutex;
    std::condition_variable wake, done;
    uint64_t threads = 0;
    Kernel* kernel = nullptr;
    uint64_t generation = 0;  // of kernels
    uint64_t busy = 0;

    void run(Kernel& k) {
        if (k.blocks < 2) return work_on(k);
        {
            std::unique_lock<std::mutex> lock(mutex);
            if (threads == 0) start_threads();
            kernel = &k, busy = threads, generation++;
        }
        wake.notify_all();
        work_on(k);
        std::unique_lock<std::mutex> lock(mutex);
        done.wait(lock, [this] { return busy == 0; });
    }
    void start_threads() {
        const uint64_t wanted = COUNTING ? 1 : environment_number("CUSIM_THREADS", std::thread::hardware_concurrency());
        for (; threads + 1 < wanted; threads++) std::thread([this] { serve(); }).detach();
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

void run_kernel(Kernel& kernel) {
    static Pool* pool = new Pool;  // never freed: its threads run until the program ends
    kernel.next_block = 0;         // a graph runs it again and again
    if (seed()) {  // another order of the blocks: every step that is coprime to their number visits each once
        uint64_t random = seed() + kernel.blocks;
        kernel.block_first = random_bits(random) % kernel.blocks;
        do kernel.block_step = 1 + random_bits(random) % kernel.blocks;
        while (std::__gcd(kernel.block_step, kernel.blocks) != 1);
    }
    tsan_release(&kernel.begin_token);
    pool->run(kernel);
    count_kernel(kernel);
    tsan_acquire(&kernel.end_token);
}

}  // namespace cusim
