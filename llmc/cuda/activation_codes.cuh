// Compressed activations: values to codes and back; what the codes are and sources:
// llmc/gpt2/activation_codes.h, shapes: llmc/cpu/activation_codes.h, whose bits these kernels give.
// One thread per Pack of 128 bits, 256 threads per block: the lanes that share a block of 64
// values, 16 in fp32 and 8 in 16 bits, find its scale by shuffles. Memory-bound.
#pragma once
#include "llmc/cuda/common.cuh"
#include "llmc/gpt2/activation_codes.h"

// The codes of a Pack, byte k that of element k: one access of 32 or 64 bits.
template <class floatX>
using PackCodes = std::conditional_t<Pack<floatX>::size == 4, uint32_t, uint64_t>;

template <class floatX>
__global__ void encode_activations_kernel(ActivationCodes codes, const floatX* inp, size_t n_elems) {
    constexpr int N = Pack<floatX>::size;
    PackFloats<floatX> x;
    for (int k = 0; k < N; k++) x[k] = 0;  // behind the end
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) { x = load_some(inp + i, count); });
    float largest = 0, not_finite = 0;
    for (int k = 0; k < N; k++) largest = fmaxf(largest, fabsf(x[k])), not_finite += x[k] - x[k];  // 0, or NaN
    for (int distance = CODE_BLOCK / N / 2; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, distance));
        not_finite += __shfl_xor_sync(0xFFFFFFFFu, not_finite, distance);
    }
    const float scale = code_scale(largest, not_finite), inverse = inverse_scale(scale);
    for_each_pack<floatX>(round_up(n_elems, CODE_BLOCK), [&](size_t i, int) {
        PackCodes<floatX> word = 0;
        for (int k = 0; k < N; k++) word |= (PackCodes<floatX>)(uint8_t)__float2int_rn(x[k] * inverse) << 8 * k;
        *(PackCodes<floatX>*)(codes.codes + i) = word;
        if (i % CODE_BLOCK == 0) codes.scales[i / CODE_BLOCK] = scale;
    });
}
template <class floatX>
__global__ void decode_activations_kernel(floatX* out, ActivationCodes codes, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        const PackCodes<floatX> word = *(const PackCodes<floatX>*)(codes.codes + i);
        const float scale = codes.scales[i / CODE_BLOCK];
        PackFloats<floatX> x;
        for (int k = 0; k < Pack<floatX>::size; k++) x[k] = (float)(int8_t)(word >> 8 * k) * scale;
        store_some(out + i, x, count);
    });
}

// codes (n_elems) of inp (n_elems), written.
template <class floatX>
void encode_activations(ActivationCodes codes, const floatX* inp, size_t n_elems, cudaStream_t stream) {
    const StreamRange in_stream(work::encode_activations(n_elems, sizeof(floatX)), stream);
    launch("encode_activations", encode_activations_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0,
           stream, codes, inp, n_elems);
}
// out (n_elems) = what the codes stand for, written.
template <class floatX>
void decode_activations(floatX* out, ActivationCodes codes, size_t n_elems, cudaStream_t stream) {
    const StreamRange in_stream(work::decode_activations(n_elems, sizeof(floatX)), stream);
    launch("decode_activations", decode_activations_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0,
           stream, out, codes, n_elems);
}
