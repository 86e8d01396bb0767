// bfloat16 as this project uses it: the upper half of an fp32 value, rounded to nearest, ties to even.
#pragma once
#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float value) {
        uint32_t u;
        memcpy(&u, &value, 4);
        bits = (u & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFF : (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
    }
    operator float() const {
        uint32_t u = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &u, 4);
        return value;
    }
};
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    __nv_bfloat16 value;
    value.bits = bits;
    return value;
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
