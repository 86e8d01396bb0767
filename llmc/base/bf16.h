// bfloat16 (Kalamkar et al. 2019, arXiv:1905.12322): the upper 16 bits of an fp32 value. It has the
// range of fp32 and 8 significant bits in place of 24: its numbers are 2^-7 apart at 1, and
// rounding to nearest changes a value by at most 2^-8 of it (the unit roundoff). bf16 takes half
// the memory of fp32, and matrix units multiply it many times as fast. Sums stay in fp32.
//
// Weights that are kept in bf16 alone need another rounding: most updates are smaller than half the
// spacing between bf16 numbers, so rounding to nearest would lose them. These weights are rounded
// stochastically: up or down at random, with probabilities that make the mean exact (Gupta et al.
// 2015, arXiv:1502.02551). The random bits are a hash of the seed and the index of the weight, so
// they are the same whichever thread rounds it, and in whatever order.
#pragma once
#include <cstdint>
#include <cstring>
#include "llmc/base/host_device.h"

#ifdef __CUDACC__  // CUDA has its own type
#include <cuda_bf16.h>
typedef __nv_bfloat16 bf16;
#else

// A value is rounded to nearest, ties to even; NaN stays NaN.
struct bf16 {
    uint16_t bits;
    bf16() = default;
    bf16(float value) {
        uint32_t u;
        memcpy(&u, &value, 4);
        bits = (u & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFF : (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
    }
    operator float() const {
        const uint32_t u = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &u, 4);
        return value;
    }
};
#endif
static_assert(sizeof(bf16) == 2, "two bytes, as in files");

// 32 random bits that follow from seed and index (splitmix64; Steele et al. 2014).
HOST_DEVICE inline uint32_t hash_bits(uint64_t seed, uint64_t index) {
    uint64_t h = seed + index * 0x9E3779B97F4A7C15u;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)(h >> 32);
}
// The upper 16 bits of an fp32 value, given by its bits, after stochastic rounding: away from zero
// with probability (lower 16 bits) / 2^16, else towards zero. `random` is 16 random bits or more.
HOST_DEVICE inline uint16_t stochastic_bits(uint32_t value, uint32_t random) {
    return (uint16_t)((value + (random & 0xFFFF)) >> 16);
}
