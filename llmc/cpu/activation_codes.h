// Compressed activations: values to codes and back; formula, sources and what the codes are:
// gpt2/activation_codes.h.
//
// Memory-bound: both move a value and 1 + 4/64 bytes of its code. A block is read once: its 64
// values stay in registers while its scale is found.
#pragma once
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"
#include "llmc/gpt2/activation_codes.h"

constexpr int CODE_VECTORS = CODE_BLOCK / VEC_FLOATS;
// Lanes of vector j of a block that has n values.
VEC_INLINE size_t code_lanes(size_t n, int j) {
    const size_t first = (size_t)j * VEC_FLOATS;
    return n <= first ? 0 : n - first < (size_t)VEC_FLOATS ? n - first : VEC_FLOATS;
}

// One block: codes (64), and its scale, of inp (n), n <= 64. Behind the end codes are 0.
template <class floatX>
VEC_INLINE float encode_block_of(int8_t* codes, const floatX* inp, size_t n) {
    vfloat x[CODE_VECTORS], largest{}, not_finite{};
    for (int j = 0; j < CODE_VECTORS; j++) {
        const size_t lanes = code_lanes(n, j);
        x[j] = lanes ? load_some(inp + j * VEC_FLOATS, lanes) : vfloat{};
        const vfloat size = x[j] < 0 ? -x[j] : x[j];
        largest = size > largest ? size : largest;
        not_finite += x[j] - x[j];  // 0, or NaN
    }
    const float scale = code_scale(max(largest), sum(not_finite)), inverse = inverse_scale(scale);
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, which is then in the low bits
    for (int j = 0; j < CODE_VECTORS; j++) store(codes + j * VEC_FLOATS, (vint)(rounded(x[j] * inverse) + shift));
    return scale;
}

// codes (n_elems) of inp (n_elems), written.
template <class floatX>
void encode_activations(ActivationCodes codes, const floatX* inp, size_t n_elems) {
    const Range range(work::encode_activations(n_elems, sizeof(floatX)));
    parallel_ranges(ceil_div((int64_t)n_elems, CODE_BLOCK), 256, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; block++) {
            const size_t first = block * CODE_BLOCK, left = n_elems - first;
            codes.scales[block] = left >= CODE_BLOCK ? encode_block_of(codes.codes + first, inp + first, CODE_BLOCK)
                                                     : encode_block_of(codes.codes + first, inp + first, left);
        }
    });
}

// out (n_elems) = what the codes stand for, written.
template <class floatX>
void decode_activations(floatX* out, ActivationCodes codes, size_t n_elems) {
    const Range range(work::decode_activations(n_elems, sizeof(floatX)));
    parallel_ranges(ceil_div((int64_t)n_elems, CODE_BLOCK), 256, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; block++) {
            const size_t first = block * CODE_BLOCK, left = n_elems - first;
            const vfloat scale = broadcast(codes.scales[block]);
            for (int j = 0; j < CODE_VECTORS; j++) {
                const size_t lanes = code_lanes(left, j), i = first + j * VEC_FLOATS;
                if (lanes) store_some(out + i, __builtin_convertvector(load(codes.codes + i), vfloat) * scale, lanes);
            }
        }
    });
}
