// A vector of floats as wide as the machine's registers, in the portable vector extensions of GCC
// and clang: the same source becomes AVX-512, AVX2 or NEON. Ordinary operators on vfloat work lane
// by lane; a comparison gives a vint of 0 (false) and -1 (true), and `mask ? a : b` selects lane by
// lane. Loads and stores need no alignment. Kernels compute on vfloat whatever the type in memory:
// a load widens bf16, a store rounds to nearest.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include "llmc/base/bf16.h"
#ifdef __AVX2__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
constexpr int VEC_BYTES = 64, VEC_REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int VEC_BYTES = 32, VEC_REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int VEC_BYTES = 16, VEC_REGISTERS = 32;
#else
constexpr int VEC_BYTES = 16, VEC_REGISTERS = 16;
#endif
constexpr int VEC_FLOATS = VEC_BYTES / sizeof(float);

typedef float vfloat __attribute__((vector_size(VEC_BYTES)));
typedef int32_t vint __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t vuint __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t vhalf __attribute__((vector_size(VEC_BYTES / 2)));  // VEC_FLOATS bf16
typedef int8_t vbyte __attribute__((vector_size(VEC_FLOATS)));       // VEC_FLOATS whole numbers of 8 bits
typedef float vfloat_anywhere __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));
typedef uint16_t vhalf_anywhere __attribute__((vector_size(VEC_BYTES / 2), aligned(2), may_alias));
typedef uint32_t vpairs_anywhere __attribute__((vector_size(VEC_BYTES), aligned(2), may_alias));
typedef int8_t vbyte_anywhere __attribute__((vector_size(VEC_FLOATS), aligned(1), may_alias));

#define VEC_INLINE inline __attribute__((always_inline))

// Prefetches the cache line of p to the second-level cache, past the first; or, to be written, to
// the first.
VEC_INLINE void fetch_to_second_level(const void* p) { __builtin_prefetch(p, /*for a write*/ 0, 2); }
VEC_INLINE void fetch_to_write(const void* p) { __builtin_prefetch(p, /*for a write*/ 1, 3); }

VEC_INLINE vfloat load(const float* p) { return *(const vfloat_anywhere*)p; }
VEC_INLINE void store(float* p, vfloat v) { *(vfloat_anywhere*)p = v; }
VEC_INLINE vfloat broadcast(float x) { return x - vfloat{}; }

VEC_INLINE vhalf load_bits(const bf16* p) { return *(const vhalf_anywhere*)p; }
// Widens the bits of each lane to 32: one instruction, of which GCC makes five.
VEC_INLINE vuint zero_extend(vhalf bits) {
#if defined(__AVX512F__)
    return (vuint)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)bits);
#elif defined(__AVX2__)
    return (vuint)_mm256_cvtepu16_epi32((__m128i)bits);
#else
    return __builtin_convertvector(bits, vuint);
#endif
}
VEC_INLINE vfloat widen(vhalf bits) { return (vfloat)(zero_extend(bits) << 16); }
VEC_INLINE vhalf narrow(vfloat v) {
#ifdef __AVX512BF16__
    return (vhalf)_mm512_cvtneps_pbh((__m512)v);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return (vhalf)vcvt_bf16_f32((float32x4_t)v);
#else
    const vuint u = (vuint)v, rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16;
    return __builtin_convertvector((vuint)(v == v ? (vint)rounded : (vint)(rounded | 0x7FFF)), vhalf);
#endif
}
VEC_INLINE vfloat load(const bf16* p) { return widen(load_bits(p)); }
// VEC_FLOATS pairs of bf16, the first of each in the low half.
VEC_INLINE vuint load_pairs(const bf16* p) { return *(const vpairs_anywhere*)p; }
VEC_INLINE vfloat widen_first(vuint pairs) { return (vfloat)(pairs << 16); }
VEC_INLINE vfloat widen_second(vuint pairs) { return (vfloat)(pairs & 0xFFFF0000u); }
VEC_INLINE void store(bf16* p, vfloat v) { *(vhalf_anywhere*)p = narrow(v); }
// Store a vector, or two of bf16, at a multiple of 64 bytes, past the caches where the CPU can: for
// what is not read soon. streams_done() comes before other threads read it.
VEC_INLINE void stream(float* p, vfloat v) {
#ifdef __AVX512F__
    _mm512_stream_ps(p, (__m512)v);
#else
    store(p, v);
#endif
}
VEC_INLINE void stream(float* p, vfloat first, vfloat second) { stream(p, first), stream(p + VEC_FLOATS, second); }
VEC_INLINE void stream(bf16* p, vfloat first, vfloat second) {
#ifdef __AVX512BF16__
    _mm512_stream_si512((__m512i*)p, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#else
    store(p, first), store(p + VEC_FLOATS, second);
#endif
}
VEC_INLINE void streams_done() {
#ifdef __AVX512F__
    _mm_sfence();
#endif
}
// to (bytes) = from, past the caches where the CPU can: two pages at once, because several streams
// get more bandwidth out of the memory than one.
inline void copy_past_caches(void* to, const void* from, int64_t bytes) {
    int64_t done = 0;
#ifdef __AVX512F__
    constexpr int64_t LINE = 64, PAGE = 4096;
    done = std::min(bytes, -(int64_t)to & (LINE - 1));
    memcpy(to, from, done);
    for (; done + 2 * PAGE <= bytes; done += 2 * PAGE)
        for (int64_t i = done; i < done + PAGE; i += LINE)
            for (int64_t at : {i, i + PAGE})
                stream((float*)((char*)to + at), load((const float*)((const char*)from + at)));
    streams_done();
#endif
    memcpy((char*)to + done, (const char*)from + done, bytes - done);
}
// v as it is after a store to memory of type floatX and a load.
template <class floatX>
VEC_INLINE vfloat as_stored(vfloat v) {
    if constexpr (sizeof(floatX) == 2) return widen(narrow(v));
    else return v;
}

// The value of a product, which the compiler then cannot fuse with an addition that follows.
VEC_INLINE vfloat rounded(vfloat v) {
#if defined(__x86_64__)
    asm("" : "+v"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
    return v;
}

// Load and store whole numbers of 8 bits; a store keeps the lower 8 bits of each lane.
VEC_INLINE vint load(const int8_t* p) {
    const vbyte bits = *(const vbyte_anywhere*)p;
#if defined(__AVX512F__)
    return (vint)_mm512_maskz_cvtepi8_epi32(0xFFFF, (__m128i)bits);
#else
    return __builtin_convertvector(bits, vint);
#endif
}
VEC_INLINE void store(int8_t* p, vint v) {
#if defined(__AVX512F__)
    *(vbyte_anywhere*)p = (vbyte)_mm512_maskz_cvtepi32_epi8(0xFFFF, (__m512i)v);
#else
    *(vbyte_anywhere*)p = __builtin_convertvector(v, vbyte);
#endif
}

// Load and store the first n lanes, n < VEC_FLOATS. The other lanes are 0 after a load; a store
// leaves the memory behind the first n alone.
VEC_INLINE vfloat load_first(const float* p, size_t n) {
    vfloat v{};
    memcpy(&v, p, n * sizeof(float));
    return v;
}
VEC_INLINE void store_first(float* p, vfloat v, size_t n) { memcpy(p, &v, n * sizeof(float)); }
VEC_INLINE vfloat load_first(const bf16* p, size_t n) {
    vhalf bits{};
    memcpy(&bits, p, n * sizeof(bf16));
    return widen(bits);
}
VEC_INLINE void store_first(bf16* p, vfloat v, size_t n) {
    const vhalf bits = narrow(v);
    memcpy((void*)p, &bits, n * sizeof(bf16));
}

// The numbers of the lanes: 0, 1, 2, ...
VEC_INLINE vint lane_numbers() {
    vint lane;
    for (int i = 0; i < VEC_FLOATS; i++) lane[i] = i;
    return lane;
}

// Sum and maximum over the lanes, always in the same order: the upper half is added to the lower
// half, then the upper quarter to the lower quarter, and so on.
template <int HALF, size_t... I>
VEC_INLINE vfloat swap_halves(vfloat v, std::index_sequence<I...>) {
    return __builtin_shufflevector(v, v, (I ^ HALF)...);
}
template <int HALF = VEC_FLOATS / 2>
VEC_INLINE float sum(vfloat v) {
    v += swap_halves<HALF>(v, std::make_index_sequence<VEC_FLOATS>());
    if constexpr (HALF > 1) return sum<HALF / 2>(v);
    else return v[0];
}
template <int HALF = VEC_FLOATS / 2>
VEC_INLINE float max(vfloat v) {
    const vfloat other = swap_halves<HALF>(v, std::make_index_sequence<VEC_FLOATS>());
    v = v > other ? v : other;
    if constexpr (HALF > 1) return max<HALF / 2>(v);
    else return v[0];
}

// e^x, to 2 units in the last place:
//
//     n = the integer nearest to x / ln 2,   r = x - n ln 2,   so |r| <= ln 2 / 2
//     e^x = 2^n e^r,   e^r = 1 + r + r^2 p(r)      p: a polynomial of degree 5 (Cephes, expf; Moshier 1989)
//
// 2^n is made from its exponent bits. Below -87.7 n is -127, these bits are 0, and so is the
// result. Above 88.3 the result is e^88.3, not infinity. NaN stays NaN.
VEC_INLINE vfloat exp(vfloat x) {
    vfloat low = broadcast(-88.0f), high = broadcast(88.3f), clamped = x < low ? low : x;
    clamped = high < clamped ? high : clamped;
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
    vfloat shifted = clamped * 1.44269504088896341f + shift;
    vfloat n = shifted - shift;
    vfloat r = clamped - n * 0.693359375f;  // ln 2 in two parts; n times the first is exact
    r = r - n * -2.12194440e-4f;
    vfloat p = broadcast(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    vint exponent_bits;
    memcpy(&exponent_bits, &shifted, sizeof(vint));
    vint power = (exponent_bits + (127 - 0x4B400000)) << 23;
    vfloat two_to_n;
    memcpy(&two_to_n, &power, sizeof(vfloat));
    return p * two_to_n;
}

VEC_INLINE vfloat sqrt(vfloat v) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_maskz_sqrt_ps(0xFFFF, (__m512)v);
#elif defined(__AVX2__)
    return (vfloat)_mm256_sqrt_ps((__m256)v);
#else
    for (int i = 0; i < VEC_FLOATS; i++) v[i] = __builtin_sqrtf(v[i]);  // compiled to one instruction
    return v;
#endif
}

// Calls f(i, count) for each vector of a row of n values. It begins at value i and has `count`
// lanes: VEC_FLOATS, or in the last vector what is left.
template <class F>
VEC_INLINE void for_each_vector(size_t n, F f) {
    size_t i = 0;
    for (; i + VEC_FLOATS <= n; i += VEC_FLOATS) f(i, (size_t)VEC_FLOATS);
    if (i < n) f(i, n - i);
}
// The sum over a row of n values, of which f(i, count) returns the vector that begins at value i,
// with zeros in the lanes from `count` on. There are four sums, so that an addition need not wait
// for the one before it. The order is always the same.
template <class F>
VEC_INLINE float row_sum(size_t n, F f) {
    vfloat total[4] = {};
    size_t i = 0;
    for (; i + 4 * VEC_FLOATS <= n; i += 4 * VEC_FLOATS)
        for (int j = 0; j < 4; j++) total[j] += f(i + j * VEC_FLOATS, (size_t)VEC_FLOATS);
    for_each_vector(n - i, [&](size_t k, size_t count) { total[0] += f(i + k, count); });
    return sum((total[0] + total[1]) + (total[2] + total[3]));
}
// Load and store the first `count` lanes, 1 to VEC_FLOATS.
template <class floatX>
VEC_INLINE vfloat load_some(const floatX* p, size_t count) {
    return count == VEC_FLOATS ? load(p) : load_first(p, count);
}
template <class floatX>
VEC_INLINE void store_some(floatX* p, vfloat v, size_t count) {
    if (count == VEC_FLOATS) store(p, v);
    else store_first(p, v, count);
}

// to (n) = from (n), rounded to nearest where `to` has 16 bits.
template <class To, class From>
void copy_values(To* to, const From* from, size_t n) {
    for_each_vector(n, [&](size_t i, size_t count) { store_some(to + i, load_some(from + i, count), count); });
}
