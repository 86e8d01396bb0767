// What the CPU kernels share: the number of threads and their scratch memory. No result depends on
// the number of threads: work is cut into pieces by shape alone, every piece adds up in its own
// fixed order, and threads only choose who takes which piece.
#pragma once
#include <sys/mman.h>
#include <cstddef>
#include <cstdint>
#include "llmc/bf16.h"
#include "llmc/check.h"
#include "llmc/cpu/cores.h"
#include "llmc/cpu/threads.h"
#include "llmc/integer_math.h"

// What multiplies bf16 matrices (matrix_unit.h).
enum MatrixUnit { UNIT_PORTABLE, UNIT_AVX512_BF16, UNIT_AMX, UNIT_AMX_TWIN };

struct Device {
    int threads = 1;
    float* scratch = nullptr;    // threads * scratch_elems, 64-byte aligned slices
    size_t scratch_elems = 0;    // per thread
    bf16* transposed = nullptr;  // one matrix, for all threads (gemm_bf16.h)
    size_t transposed_elems = 0;
    MatrixUnit unit = UNIT_PORTABLE;
};
inline Device device;

// The calling thread's own scratch memory, at least n_elems floats of it. Whoever starts a run
// makes it large enough (settle_device in the trainer).
inline float* thread_scratch(size_t n_elems) {
    if (n_elems > device.scratch_elems)
        runtime_failure("internal: a kernel asks for %zu elements of scratch memory, %zu are planned", n_elems,
                        device.scratch_elems);
    return device.scratch + thread_number * device.scratch_elems;
}

// Calls f(i) for i in 0..n-1, spread over the threads, each i once, as threads become free.
template <class F>
inline void parallel_for(int64_t n, F f) {
    const auto piece = [](void* context, int64_t i) { (*(F*)context)(i); };
    if (n > 1 && device.threads > 1 && !inside_loop) return thread_pool()->run(device.threads, n, piece, &f);
    for (int64_t i = 0; i < n; i++) piece(&f, i);
}

// Calls f(begin, end) on consecutive ranges that cover 0..n-1, every range but the last `grain`
// long, whatever the thread count.
template <class F>
inline void parallel_ranges(int64_t n, int64_t grain, F f) {
    parallel_for(ceil_div(n, grain), [&](int64_t i) { f(i * grain, (i + 1) * grain < n ? (i + 1) * grain : n); });
}

// Memory straight from the system: zeroed, page aligned, in huge pages where the system has them (a
// step walks through gigabytes, and with small pages spends a tenth of its time looking up
// addresses).
inline void* map_memory(size_t bytes) {
    if (bytes == 0) bytes = 1;
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        runtime_failure(
            "out of memory: the system refuses %.0f MiB; --plan shows what the run needs, a smaller -b, -t or a higher "
            "-r lowers it",
            bytes / 1048576.0);
#ifdef MADV_HUGEPAGE
    if (bytes >= (4u << 20)) madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}
inline void unmap_memory(void* p, size_t bytes) { munmap(p, bytes ? bytes : 1); }
