// The CPU as the harness (dev/bench.h) sees it: threads, scratch memory, and its peaks, measured: fused multiply-adds, the matrix unit, and copying
// what does not fit the caches (bytes read plus bytes written).
#pragma once
#include "dev/bench.h"
#include "llmc/cpu/attention_bf16.h"
#include "llmc/cpu/peak.h"

using namespace bench;

inline double measure_copy_peak() {
    const size_t bytes = 256 << 20;
    char *from = (char*)map_memory(bytes), *to = (char*)map_memory(bytes);
    memset(from, 1, bytes);
    double best = 0;
    for (int run = 0; run < 6; run++) {
        const double begin = now_seconds();
        parallel_ranges(bytes, 1 << 20, [&](int64_t first, int64_t end) { memcpy(to + first, from + first, end - first); });
        best = std::max(best, 2.0 * bytes / (now_seconds() - begin));
    }
    unmap_memory(from, bytes), unmap_memory(to, bytes);
    return best;
}

inline Machine bench::open_machine(int threads) {
    device.threads = threads > 0 ? threads : available_threads();
    device.unit = best_matrix_unit();
    device.scratch_elems = round_up(std::max({GEMM_SCRATCH_ELEMS, GEMM_BF16_SCRATCH_ELEMS, attention_scratch_elems(1024, 128), attention_bf16_scratch_elems(1024, 128)}), 16);
    device.scratch = (float*)map_memory(device.threads * device.scratch_elems * sizeof(float));
    device.transposed_elems = 32 << 20;
    device.transposed = (bf16*)map_memory(device.transposed_elems * sizeof(bf16));
    Machine m;
    m.name = format("%d threads, %s", device.threads, MATRIX_UNIT_NAMES[device.unit]);
    m.copy_bytes_s = measure_copy_peak();
    m.flops_s[FP32] = measure_peak_fp32(), m.flops_s[BF16] = measure_peak_bf16();
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

// A variant from before threads came in.
template <class F>
inline void on_one_thread(F f) {
    const int threads = device.threads;
    device.threads = 1;
    f();
    device.threads = threads;
}
