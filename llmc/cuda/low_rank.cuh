// A linear layer with an adapter of low rank beside its matrix; formulas and shapes:
// llmc/cpu/low_rank.h. All products are cuBLASLt's: those with the adapter add to what the large
// ones have written, as transposed in the library's column-major view as in matmul.cuh.
#pragma once
#include "llmc/cuda/matmul.cuh"

// What an adapter adds to out (rows, OC), and then gelu_out unless it is null.
template <class floatX>
void low_rank_add(floatX* out, const floatX* inp, const floatX* A, const floatX* B, floatX* low, int64_t rows,
                  int64_t C, int64_t OC, int64_t R, float scale, cudaStream_t stream, floatX* gelu_out) {
    blas_product("low_rank", low, A, true, inp, false, R, rows, C, false, stream, scale);
    blas_product("low_rank_forward", out, B, false, low, false, OC, rows, R, true, stream, 1.0f);
    if (gelu_out) gelu_forward(gelu_out, out, rows * OC, stream);
}
template <class floatX>
void low_rank_forward(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, const floatX* A,
                      const floatX* B, floatX* low, int64_t rows, int64_t C, int64_t OC, int64_t R, float scale,
                      cudaStream_t stream, floatX* gelu_out = nullptr) {
    const StreamRange in_stream(work::low_rank(rows, C, OC, R, gelu_out, sizeof(floatX)), stream);
    matmul_forward(out, inp, weight, bias, rows, C, OC, stream);
    low_rank_add(out, inp, A, B, low, rows, C, OC, R, scale, stream, gelu_out);
}

// Returns the sums of dinp as matmul_backward() does; partials has the room that it needs.
template <class floatX>
ColumnSums low_rank_backward(floatX* dinp, floatX* dA, floatX* dB, float* partials, const floatX* dout,
                             const floatX* inp, const floatX* weight, const floatX* A, const floatX* B, floatX* low,
                             int64_t rows, int64_t C, int64_t OC, int64_t R, float scale, bool add, cudaStream_t stream,
                             const floatX* pre_gelu = nullptr) {
    const StreamRange in_stream(work::low_rank_backward(rows, C, OC, R, sizeof(floatX), sizeof(floatX), dinp), stream);
    floatX* dlow = low + round_up(rows * R, 16);
    blas_product("low_rank", low, A, true, inp, false, R, rows, C, false, stream, scale);
    blas_product("low_rank", dlow, B, true, dout, false, R, rows, OC, false, stream, scale);
    blas_product("low_rank_weight", dA, inp, false, dlow, true, C, R, rows, add, stream, 1.0f);
    blas_product("low_rank_weight", dB, dout, false, low, true, OC, R, rows, add, stream, 1.0f);
    if (!dinp) return {partials};
    blas_product("matmul_backward_input", dinp, weight, false, dout, false, C, rows, OC, false, stream);
    blas_product("low_rank_input", dinp, A, false, dlow, false, C, rows, R, true, stream, 1.0f);
    return pre_gelu ? gelu_backward(dinp, partials, dinp, pre_gelu, rows, C, stream) : ColumnSums{partials};
}
