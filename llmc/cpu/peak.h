// What the machine can do at most: fused multiply-adds on registers alone, on all threads, the best of a few short runs.
#pragma once
#include <algorithm>
#include <utility>
#include "llmc/clock.h"
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

// FLOPs of one thread's loop: enough independent chains to hide the latency of an FMA, few enough to stay in registers.
constexpr int PEAK_CHAINS = VEC_REGISTERS == 32 ? 24 : 12;
constexpr int64_t PEAK_ROUNDS = 100000;

template <size_t... I>
inline float fma_chains(std::index_sequence<I...>) {
    vfloat factor = broadcast(0.999f), term = broadcast(0.001f), chain[] = {broadcast(1.0f + 0.01f * I)...};
    for (int64_t r = 0; r < PEAK_ROUNDS; r++) ((chain[I] = chain[I] * factor + term), ...);
    vfloat total{};
    ((total += chain[I]), ...);
    return sum(total);
}

// fp32 FLOP/s of device.threads threads.
inline double measure_peak_flops() {
    double best = 0;
    for (int run = 0; run < 12; run++) {
        const double begin = now_seconds();
        parallel_for(device.threads, [](int64_t) { volatile float keep = fma_chains(std::make_index_sequence<PEAK_CHAINS>()); (void)keep; });
        const double seconds = now_seconds() - begin;
        best = std::max(best, 2.0 * VEC_FLOATS * PEAK_CHAINS * PEAK_ROUNDS * device.threads / seconds);
    }
    return best;
}
