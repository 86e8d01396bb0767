// What the CPU kernels share: the number of threads, loops over them, and scratch memory. No result
// depends on the number of threads. A loop that sums is cut into pieces by the shapes alone, and
// every piece sums in a fixed order. Which thread runs which piece does not matter.
#pragma once
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include "llmc/base/bf16.h"
#include "llmc/base/check.h"
#include "llmc/base/integer_math.h"
#include "llmc/base/text.h"
#include "llmc/cpu/threads.h"
#include "llmc/trace/trace.h"

// The hardware that multiplies bf16 matrices (matrix_unit.h).
enum MatrixUnit { UNIT_PORTABLE, UNIT_AVX512_BF16, UNIT_AMX, UNIT_AMX_TWIN, UNIT_NEON_BF16 };

struct Device {
    int threads = 1;
    float* scratch = nullptr;    // threads * scratch_elems; each thread's part is 64-byte aligned
    size_t scratch_elems = 0;    // per thread
    bf16* transposed = nullptr;  // one matrix, for all threads (gemm_bf16.h)
    size_t transposed_elems = 0;
    MatrixUnit unit = UNIT_PORTABLE;
    bool splits_fp32 = false;  // products of fp32 are computed on the unit as well (split_fp32.h)
};
inline Device device;

// The calling thread's own scratch memory, at least n_elems floats. It is made large enough before
// a run starts (settle_cpu() in backend.h).
inline float* thread_scratch(size_t n_elems) {
    if (n_elems > device.scratch_elems)
        runtime_failure("internal: a kernel asks for %d elements of scratch memory, %d are planned", n_elems,
                        device.scratch_elems);
    return device.scratch + thread_number * device.scratch_elems;
}

// Calls piece(context, i) once for each i from 0 to n - 1. One function for all loops, which
// compile faster by it.
__attribute__((noinline)) inline void run_pieces(int64_t n, ThreadPool::Piece piece, void* context) {
    const DenormalsAreZero mode;
    if (n > 1 && device.threads > 1 && !inside_loop) return thread_pool()->run(device.threads, n, piece, context);
    for (int64_t i = 0; i < n; i++) piece(context, i);
}

// Calls f(i) once for each i from 0 to n - 1. Each call goes to the next thread that is free.
template <class F>
inline void parallel_for(int64_t n, F f) {
    run_pieces(
        n, [](void* context, int64_t i) { (*(F*)context)(i); }, &f);
}

// Calls f(begin, end) on consecutive ranges that cover 0 to n - 1. Every range but the last is
// `grain` long, whatever the number of threads.
template <class F>
inline void parallel_ranges(int64_t n, int64_t grain, F f) {
    parallel_for(ceil_div(n, grain), [&](int64_t i) { f(i * grain, (i + 1) * grain < n ? (i + 1) * grain : n); });
}

// Calls f(begin, end) on ranges that cover 0 to n - 1, where results do not depend on the ranges. A
// range is 2/3 of a thread's part of what is left, so that all threads end at the same time (guided
// self-scheduling; Polychronopoulos & Kuck 1987, doi:10.1109/TC.1987.5009495), at most `most`, and
// a multiple of `grain` but for the last.
template <class F>
inline void parallel_shrinking_ranges(int64_t n, int64_t grain, int64_t most, F f) {
    std::atomic<int64_t> next{0};
    parallel_for(device.threads, [&](int64_t) {
        for (int64_t begin = next; begin < n;) {
            const int64_t part = std::min(most, (n - begin) * 2 / (3 * device.threads));
            const int64_t end = std::min(n, begin + std::max(grain, part / grain * grain));
            if (!next.compare_exchange_weak(begin, end)) continue;
            f(begin, end);
            begin = next;
        }
    });
}

// Memory straight from the system: zeroed, page aligned, in huge pages where the system has them. A
// step reads and writes gigabytes; with small pages it spends a tenth of its time on address
// translation.
inline void* map_memory(size_t bytes) {
    if (bytes == 0) bytes = 1;
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        runtime_failure(
            "out of memory: the system refuses %.0f MiB; --plan shows what the run needs, a smaller -b, -t or a higher "
            "-r lowers it",
            bytes / MIB);
#ifdef MADV_HUGEPAGE
    if (bytes >= (4u << 20)) madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}
// Spreads new memory that one thread is about to fill over the memories of all processors. A page
// lies in the memory of the processor (NUMA node) whose thread writes to it first; what kernels
// write first is spread without this, for they write on all threads.
inline void spread_pages(void* p, size_t bytes) {
    constexpr int64_t LARGE_PAGE = 2 << 20, PAGE = 4096;
    parallel_ranges((int64_t)bytes, LARGE_PAGE, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i += PAGE) ((volatile char*)p)[i] = 0;
    });
}
// Has the system provide the pages of new memory in the background, for example while weights are
// read: so that a program that computes once does not wait for them then. Not where there are
// several memories, in which the pages would lie by chance.
inline void fetch_pages(void* p, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
    if (access("/sys/devices/system/node/node1", F_OK) == 0) return;
    char *begin = (char*)round_up((int64_t)p, sysconf(_SC_PAGESIZE)), *end = (char*)p + bytes;
    if (end <= begin) return;
    try {
        std::thread([=] { madvise(begin, end - begin, MADV_POPULATE_WRITE); }).detach();
    } catch (const std::system_error&) {}  // the system lets the program have no more threads: it waits for pages
#else
    (void)p, (void)bytes;
#endif
}
inline void unmap_memory(void* p, size_t bytes) { munmap(p, bytes ? bytes : 1); }
