// bfloat16 (Kalamkar et al. 2019, arXiv:1905.12322): the upper 16 bits of an fp32 value. The same
// range, 8 significant bits: unit roundoff 2^-9. Half the memory and, on matrix units, many times
// the speed; what is summed is still summed in fp32.
//
// Weights kept in 16 bits alone are smaller than what rounding to nearest would leave of an update,
// so they are rounded stochastically: up with the probability that makes the mean right (Gupta et
// al. 2015, arXiv:1502.02551). The random bits are a hash of seed and place, so that they depend on
// nobody's order of work.
#pragma once
#include <cstdint>
#include <cstring>
#include "llmc/host_device.h"

#ifdef __CUDACC__  // CUDA has its own
#include <cuda_bf16.h>
typedef __nv_bfloat16 bf16;
#else

// Rounded to nearest, ties to even; NaN stays NaN.
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

// 32 bits from seed and place (splitmix64; Steele et al. 2014).
HOST_DEVICE inline uint32_t hash_bits(uint64_t seed, uint64_t place) {
    uint64_t h = seed + place * 0x9E3779B97F4A7C15u;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)(h >> 32);
}
// The bits of a bf16 that the fp32 value with these bits rounds to, up with the probability of the
// part that is cut off.
HOST_DEVICE inline uint16_t stochastic_bits(uint32_t value, uint32_t random) {
    return (uint16_t)((value + (random & 0xFFFF)) >> 16);
}
