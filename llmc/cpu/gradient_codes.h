// Compressed gradients on the CPU: codes and their values, block by block (formulas:
// llmc/compress/gradient_codes.h).
#pragma once
#include <cmath>
#include "llmc/compress/gradient_codes.h"
#include "llmc/cpu/device.h"

// The block that stands for n values, which are 0 behind those. A value that is not finite makes
// its whole block so: the step has no update.
inline void encode_gradients(SignBlock& block, const BlockValues& values, int n) {
    constexpr int N = 16;  // as many in parallel
    float sums[N] = {};
    for (int i = 0; i < STATE_BLOCK_ELEMS; i += N)
        for (int j = 0; j < N; j++) sums[j] += std::fabs(values[i + j]);
    for (int half = N / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    block.scale = sums[0] / (float)n;
    for (int i = 0; i < STATE_BLOCK_ELEMS; i += 8) {
        unsigned bits = 0;
        for (int j = 0; j < 8; j++) bits |= values[i + j] < 0 ? 1u << j : 0u;
        block.negative[i / 8] = (uint8_t)bits;
    }
}
inline void encode_gradients(StateBlock& block, const BlockValues& values, int) {
    float zero = 0;
    for (float value : values) zero += value * 0.0f;
    encode_block<true>(block, values);
    if (zero != 0) block.scale = NAN;
}
inline void decode_gradients(BlockValues& values, const StateBlock& block) { decode_block<true>(values, block); }
inline void decode_gradients(BlockValues& values, const SignBlock& block) {
    for (int i = 0; i < STATE_BLOCK_ELEMS; i++) values[i] = sign_value(block, i);
}

// Calls f(block type, its number, first element, elements) for the blocks of n elements.
template <class F>
void for_each_code_block(Compression kind, int64_t n, F f) {
    parallel_ranges(blocks_of(n), 64, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; b++) {
            const int64_t first = b * STATE_BLOCK_ELEMS;
            const int elems = (int)std::min<int64_t>(STATE_BLOCK_ELEMS, n - first);
            kind == IN_1_BIT ? f(SignBlock(), b, first, elems) : f(StateBlock(), b, first, elems);
        }
    });
}

// codes = those of values + residual (n); residual = what they leave out.
inline void encode_slice(void* codes, float* residual, const float* values, int64_t n, Compression kind) {
    for_each_code_block(kind, n, [&](auto type, int64_t b, int64_t first, int elems) {
        decltype(type)& block = ((decltype(type)*)codes)[b];
        BlockValues p, sent;
        for (int i = 0; i < STATE_BLOCK_ELEMS; i++) p[i] = i < elems ? values[first + i] + residual[first + i] : 0.0f;
        encode_gradients(block, p, elems);
        decode_gradients(sent, block);
        for (int i = 0; i < elems; i++) residual[first + i] = p[i] - sent[i];
    });
}
// out (n) = the sum of the values of `slices` slices of codes, bytes apart, added in their order;
// held within the limit of v (n), if v is not null.
inline void decode_slices(float* out, const void* codes, int64_t bytes, int64_t slices, const float* v, float limit,
                          int64_t n, Compression kind) {
    for_each_code_block(kind, n, [&](auto type, int64_t b, int64_t first, int elems) {
        BlockValues sum = {}, values;
        for (int64_t s = 0; s < slices; s++) {
            decode_gradients(values, ((const decltype(type)*)((const char*)codes + s * bytes))[b]);
            for (int i = 0; i < STATE_BLOCK_ELEMS; i++) sum[i] = s == 0 ? values[i] : sum[i] + values[i];
        }
        for (int i = 0; i < elems; i++) out[first + i] = v ? held_within(sum[i], v[first + i], limit) : sum[i];
    });
}
