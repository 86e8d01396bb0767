// fp16, the half precision of IEEE 754: 1 bit of sign, 5 of exponent, 10 of fraction. It has 11
// significant bits, three more than bf16, so rounding to nearest changes a value by at most 2^-11
// of it. Its range is the price: the largest number is 65504, the smallest normal one 2^-14 =
// 6.1e-5, the smallest above zero 2^-24 = 6e-8. Gradients need more than that (loss_scale.h).
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#include "llmc/base/host_device.h"

#ifdef __CUDACC__  // CUDA has its own type
#include <cuda_fp16.h>
typedef __half fp16;
#else

// A value is rounded to nearest, ties to even; from 65520 on to infinity. NaN stays NaN.
struct fp16 {
    uint16_t bits;
    fp16() = default;
    fp16(float value) {
        uint32_t u;
        memcpy(&u, &value, 4);
        const uint16_t sign = u >> 16 & 0x8000;
        u &= 0x7FFFFFFF;
        if (u > 0x7F800000) bits = 0x7FFF;
        else if (u >= 0x477FF000) bits = sign | 0x7C00;
        else if (u >= 0x38800000) bits = sign | (uint16_t)((u - 0x38000000 + 0xFFF + (u >> 13 & 1)) >> 13);
        else bits = sign | subnormal_bits(u);
    }
    operator float() const {
        const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = (uint32_t)(bits & 0x7FFF) << 13;
        float value;
        memcpy(&value, &magnitude, 4);
        value *= 5192296858534827628530496329220096.0f;  // 2^112: the exponents are counted from 15 and from 127
        uint32_t u;
        memcpy(&u, &value, 4);
        if (magnitude >= 0x0F800000) u |= 0x7F800000;  // infinity, NaN
        u |= sign;
        memcpy(&value, &u, 4);
        return value;
    }

private:
    // Rounds a value below 2^-14. There fp16 numbers are 2^-24 apart, as fp32 numbers are from 1/2
    // on: adding 1/2 rounds.
    static uint16_t subnormal_bits(uint32_t magnitude) {
        float value;
        memcpy(&value, &magnitude, 4);
        value += 0.5f;
        memcpy(&magnitude, &value, 4);
        return (uint16_t)(magnitude - 0x3F000000);
    }
};
#endif
static_assert(sizeof(fp16) == 2, "two bytes");

template <class T>
HOST_DEVICE constexpr bool is_fp16() {
    return std::is_same<T, fp16>::value;
}

// The formats of weights and activations.
enum NumberFormat { FORMAT_FP32, FORMAT_BF16, FORMAT_FP16 };
constexpr const char* NUMBER_FORMAT_NAMES[] = {"fp32", "bf16", "fp16"};
template <class T>
constexpr NumberFormat format_of() {
    return sizeof(T) == 4 ? FORMAT_FP32 : is_fp16<T>() ? FORMAT_FP16 : FORMAT_BF16;
}
inline int64_t format_bytes(NumberFormat format) { return format == FORMAT_FP32 ? 4 : 2; }
template <class T>
constexpr const char* type_name() {
    return NUMBER_FORMAT_NAMES[format_of<T>()];
}
