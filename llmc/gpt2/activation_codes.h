// Compressed activations, for --compress-activations 1: what the forward pass keeps for the
// backward pass is kept in 8 bits. The forward pass goes on with the values themselves; a layer's
// backward pass reads what the codes stand for.
//
// A block of 64 values x has a scale s, and of each value the nearest multiple of it is kept:
//
//     s = max |x| / 127      code = x / s, rounded to a whole number, -127 to 127      x' = code s
//     |x' - x| <= s / 2 = max |x| / 254
//
// So a value takes 1 + 4/64 bytes in place of 2 or 4. How well it is kept depends on how much
// larger the largest of its block is.
//
// Rounding is to nearest. At random, so that the mean is exact, it would have twice the variance,
// and would not train better with 8 bits.
//
// Sources: Jain et al. 2018, Gist (doi:10.1109/ISCA.2018.00070): values that wait for the backward
// pass may have fewer bits than those with which the forward pass goes on; Chen et al. 2021, ActNN
// (arXiv:2104.14129): a scale for each group of values.
#pragma once
#include <cstdint>
#include "llmc/base/host_device.h"
#include "llmc/base/integer_math.h"

constexpr int CODE_BLOCK = 64;

// The codes of n values, whole blocks of them, and one scale for each block.
struct ActivationCodes {
    int8_t* codes;
    float* scales;
};
// The memory of the codes of n values, which begins at a multiple of 64 bytes.
constexpr int64_t codes_bytes(int64_t n) { return round_up(ceil_div(n, CODE_BLOCK) * (CODE_BLOCK + 4), 64); }
inline ActivationCodes codes_at(char* memory, int64_t n) {
    return {(int8_t*)memory, (float*)(memory + ceil_div(n, CODE_BLOCK) * CODE_BLOCK)};
}

// A block whose scale would be smaller than this is kept as zeros: values that small may count as
// zero on a CPU (cpu/denormals.h), and the inverse of the scale must be finite.
constexpr float LEAST_CODE_SCALE = 0x1p-100f;

// The scale of a block, from the largest of its absolute values; not_finite is NaN if the block has
// a value that is infinite or NaN, else 0. Then the scale is NaN, and with it all that the block
// stands for: what is wrong must be seen.
HOST_DEVICE inline float code_scale(float largest, float not_finite) {
    const float scale = largest * (1 / 127.0f) + not_finite;
    return scale < LEAST_CODE_SCALE ? 0.0f : scale;
}
// What values are multiplied by to divide them by the scale.
HOST_DEVICE inline float inverse_scale(float scale) { return scale > 0 ? 1 / scale : 0.0f; }
