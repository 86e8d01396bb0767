// What the machine can do at most: multiply-adds on registers alone, on all threads, the best of a few short runs.
#pragma once
#include <algorithm>
#include <utility>
#include "llmc/clock.h"
#include "llmc/cpu/matrix_unit.h"

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

#ifdef __x86_64__
// The same on bf16 pairs, zeros: their values cost no other time.
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
    unit.zero<0>(), unit.zero<1>(), unit.zero<2>(), unit.zero<3>(), unit.zero<4>(), unit.zero<6>();
    for (int64_t r = 0; r < PEAK_ROUNDS; r++) unit.multiply<0, 4, 6>(), unit.multiply<1, 4, 6>(), unit.multiply<2, 4, 6>(), unit.multiply<3, 4, 6>();
}
#endif

// FLOP/s of device.threads threads, each of which makes so many FLOPs in f().
template <class F>
inline double measure_peak(double flops, F f) {
    double best = 0;
    for (int run = 0; run < 12; run++) {
        const double begin = now_seconds();
        parallel_for(device.threads, [&](int64_t) { f(); });
        best = std::max(best, flops * device.threads / (now_seconds() - begin));
    }
    return best;
}
inline double measure_peak_fp32() {
    return measure_peak(2.0 * VEC_FLOATS * PEAK_CHAINS * PEAK_ROUNDS, [] { volatile float keep = fma_chains(std::make_index_sequence<PEAK_CHAINS>()); (void)keep; });
}
// On device.unit; without one, bf16 is multiplied on the fp32 units.
inline double measure_peak_bf16() {
#ifdef __x86_64__
    if (device.unit == UNIT_AMX) return measure_peak(4.0 * 2 * TILE_ROWS * TILE_COLS * TILE_K * PEAK_ROUNDS, amx_chains);
    if (device.unit == UNIT_AVX512_BF16) return measure_peak(64.0 * PEAK_CHAINS * PEAK_ROUNDS, avx512_chains);
#endif
    return measure_peak_fp32();
}
