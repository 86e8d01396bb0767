// The peaks of the machine, measured on all threads: multiply-adds on registers alone, and bytes to
// and from memory.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>
#include "llmc/base/clock.h"
#include "llmc/cpu/matrix_unit.h"

// How many chains of multiply-adds run side by side: enough to hide the latency of an FMA, since in
// a chain each depends on the one before it, and few enough to stay in registers.
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

#ifdef __x86_64__
// Chains of products of bf16 pairs, all zeros: the time does not depend on the values.
__attribute__((target("avx512f,avx512bf16"))) inline void avx512_chains() {
    __m512 chain[PEAK_CHAINS];
    const __m512bh pair = (__m512bh)_mm512_setzero_si512();
#pragma GCC unroll 24
    for (int i = 0; i < PEAK_CHAINS; i++) chain[i] = _mm512_setzero_ps();
    for (int64_t r = 0; r < PEAK_ROUNDS; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < PEAK_CHAINS; i++) {
            chain[i] = _mm512_dpbf16_ps(chain[i], pair, pair);
            asm volatile("" : "+v"(chain[i]));
        }
    }
}
inline void amx_chains() {
    Amx unit;
    Amx::open();
    unit.zero<0>(), unit.zero<1>(), unit.zero<2>(), unit.zero<3>(), unit.zero<4>(), unit.zero<6>();
    for (int64_t r = 0; r < PEAK_ROUNDS; r++)
        unit.multiply<0, 4, 6>(), unit.multiply<1, 4, 6>(), unit.multiply<2, 4, 6>(), unit.multiply<3, 4, 6>();
    Amx::close();
}
#endif

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
inline void neon_chains() {
    float32x4_t chain[PEAK_CHAINS] = {};
    const bfloat16x8_t pairs = vreinterpretq_bf16_u16(vdupq_n_u16(0));
    for (int64_t r = 0; r < PEAK_ROUNDS; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < PEAK_CHAINS; i++) {
            chain[i] = vbfdotq_f32(chain[i], pairs, pairs);
            asm volatile("" : "+w"(chain[i]));
        }
    }
}
#endif

// The most FLOP/s of any run, and whether two rounds in sequence reached the same value. Beside
// other work they do not, and the peak is too low.
struct Peak {
    double flops_s;
    bool steady;
};

// How long to wait for a steady peak. Where a peak is known, one round tells whether it is larger.
constexpr double PATIENCE_SECONDS = 0.3, ONE_ROUND = 0;

// The peak of device.threads threads, each of which runs f(), `flops` FLOPs.
template <class F>
inline Peak measure_peak(double flops, double patience_s, F f) {
    constexpr double ROUND_SECONDS = 0.01, SAME = 0.03;
    const double begin = now_seconds();
    Peak peak{0, false};
    double before = 0;
    do {
        double best = 0;
        for (const double start = now_seconds(); now_seconds() - start < ROUND_SECONDS;) {
            const double run = now_seconds();
            parallel_for(device.threads, [&](int64_t) { f(); });
            best = std::max(best, flops * device.threads / (now_seconds() - run));
        }
        peak = {std::max(peak.flops_s, best), std::fabs(best - before) <= SAME * best};
        before = best;
    } while (!peak.steady && now_seconds() - begin < patience_s);
    return peak;
}
inline Peak measure_peak_fp32(double patience_s) {
    return measure_peak(2.0 * VEC_FLOATS * PEAK_CHAINS * PEAK_ROUNDS, patience_s, [] {
        volatile float keep = fma_chains(std::make_index_sequence<PEAK_CHAINS>());
        (void)keep;
    });
}
// The peak in bf16 on device.unit. Without a matrix unit, bf16 is multiplied by the fp32 units.
inline Peak measure_peak_bf16(double patience_s) {
#ifdef __x86_64__
    if (device.unit == UNIT_AMX)
        return measure_peak(4.0 * 2 * TILE_ROWS * TILE_COLS * TILE_K * PEAK_ROUNDS, patience_s, amx_chains);
    if (device.unit == UNIT_AVX512_BF16)
        return measure_peak(64.0 * PEAK_CHAINS * PEAK_ROUNDS, patience_s, avx512_chains);
#endif
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    if (device.unit == UNIT_NEON_BF16) return measure_peak(16.0 * PEAK_CHAINS * PEAK_ROUNDS, patience_s, neon_chains);
#endif
    return measure_peak_fp32(patience_s);
}

// Bytes per second, read plus written, while arrays larger than the caches are copied or updated in
// place, in turns, whichever is faster. Where a peak is known, two updates of one array tell
// whether it is larger; the first touches the pages, which takes longer than all the rest.
inline double measure_memory_peak(bool known = false) {
    const int runs = known ? 2 : 8, arrays = known ? 1 : 2;
    const int64_t elems = 64 << 20;
    float* to = (float*)map_memory(arrays * elems * 4);
    const float* from = to + (arrays - 1) * elems;
    double best = 0;
    for (int run = 0; run < runs; run++) {
        const double begin = now_seconds();
        parallel_ranges(elems, 1 << 18, [&](int64_t first, int64_t end) {
            if (run % arrays) memcpy(to + first, from + first, (end - first) * sizeof(float));
            else
                for (int64_t i = first; i < end; i += VEC_FLOATS) store(to + i, load(to + i) + 1.0f);
        });
        best = std::max(best, 2.0 * elems * sizeof(float) / (now_seconds() - begin));
    }
    unmap_memory(to, arrays * elems * 4);
    return best;
}
