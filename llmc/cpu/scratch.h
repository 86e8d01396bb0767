// The scratch memory of the CPU kernels: what they need at most, and its allocation. How much one
// kernel needs is computed beside its code; here is the maximum over all of them.
#pragma once
#include "llmc/cpu/attention_bf16.h"
#include "llmc/cpu/classifier.h"

// Elements of 4 bytes for each thread, where kernels compute in floatX on sequences of T tokens and
// heads of HS channels. A multiple of 16: each thread's part begins at a multiple of 64 bytes.
template <class floatX>
size_t thread_scratch_elems(int64_t T, int64_t HS) {
    const bool on_unit = sizeof(floatX) == 2 || device.splits_fp32;
    const size_t attention = sizeof(floatX) == 2 ? attention_bf16_scratch_elems(T, HS) : attention_scratch_elems(T, HS);
    return round_up(std::max(on_unit ? GEMM_BF16_SCRATCH_ELEMS : GEMM_SCRATCH_ELEMS, attention), 16);
}

// Elements of the one transposed matrix of a backward pass over rows = B*T positions: that of the
// widest layer, fc (4C outputs), or that of the classifier. In fp32, split, a forward pass needs no
// more: fcproj (4C inputs) is its widest layer.
template <class floatX>
int64_t backward_transposed_elems(int64_t rows, int64_t C, int64_t Vp) {
    return std::max(matmul_transposed_elems<floatX>(rows, 4 * C), classifier_transposed_elems<floatX>(rows, Vp));
}

inline int64_t thread_scratch_bytes() { return device.threads * device.scratch_elems * sizeof(float); }
inline int64_t transposed_bytes() { return device.transposed_elems * sizeof(bf16); }

// Memory for device.threads threads, of the sizes that device.scratch_elems and
// device.transposed_elems say.
inline void allocate_scratch() {
    device.transposed = (bf16*)map_memory(transposed_bytes());
    device.scratch = (float*)map_memory(thread_scratch_bytes());
}
inline void free_scratch() {
    unmap_memory(device.transposed, transposed_bytes());
    unmap_memory(device.scratch, thread_scratch_bytes());
}
