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
    m.flops_s[IN_FP32] = measure_peak_fp32().flops_s, m.flops_s[IN_BF16] = measure_peak_bf16().flops_s;
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
