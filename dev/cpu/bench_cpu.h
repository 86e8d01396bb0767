// The CPU for the harness (dev/bench.h): threads, scratch memory, and measured peaks.
#pragma once
#include "dev/bench.h"
#include "llmc/cpu/peak_file.h"
#include "llmc/cpu/scratch.h"

using namespace bench;

inline Machine bench::open_machine(int threads) {
    device.threads = threads > 0 ? threads : available_threads();
    device.unit = best_matrix_unit();
    device.scratch_elems = std::max(thread_scratch_elems<float>(1024, 128), thread_scratch_elems<bf16>(1024, 128));
    device.transposed_elems = 32 << 20;
    allocate_scratch();
    Machine m;
    m.name = format("%s, %d threads, %s", cpu_name(), device.threads, MATRIX_UNIT_NAMES[device.unit]);
    m.memory_bytes_s = measure_memory_peak();
    // The most of several, none kept: threads that have just woken may share a core for some 10 ms.
    for (bool in_bf16 : {false, true}) m.flops_s[in_bf16 ? IN_BF16 : IN_FP32] = find_peak_range(in_bf16, "").most;
    m.seconds = [](const std::function<void()>& run) {
        const double begin = now_seconds();
        run();
        return now_seconds() - begin;
    };
    m.empty_caches = [] {
        static std::vector<char> other(256 << 20);
        for (size_t i = 0; i < other.size(); i += 64) other[i]++;
    };
    return m;
}

// Runs f on one thread.
template <class F>
inline void on_one_thread(F f) {
    const int threads = device.threads;
    device.threads = 1;
    f();
    device.threads = threads;
}
