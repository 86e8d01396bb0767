// A linear layer with an adapter of low rank, as plain loops: the oracle of low_rank.h, which has
// formulas and shapes.
#pragma once
#include "llmc/base/integer_math.h"
#include "llmc/cpu/reference.h"

namespace reference {

// low (rows, R) is written: scale inp (rows, C) A (R, C)^T.
template <class floatX>
void low_product(floatX* low, const floatX* inp, const floatX* A, int64_t rows, int64_t C, int64_t R, float scale) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < R; k++) {
            float sum = 0;
            for (int64_t c = 0; c < C; c++) sum += (float)inp[r * C + c] * (float)A[k * C + c];
            low[r * R + k] = scale * sum;
        }
}
// out (rows, OC) += low B.
template <class floatX>
void low_rank_add(floatX* out, const floatX* inp, const floatX* A, const floatX* B, floatX* low, int64_t rows,
                  int64_t C, int64_t OC, int64_t R, float scale, floatX* gelu_out = nullptr) {
    low_product(low, inp, A, rows, C, R, scale);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < OC; o++) {
            float sum = out[r * OC + o];
            for (int64_t k = 0; k < R; k++) sum += (float)low[r * R + k] * (float)B[k * OC + o];
            out[r * OC + o] = sum;
        }
    if (gelu_out) gelu_forward(gelu_out, out, rows * OC);
}
template <class floatX>
void low_rank_forward(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, const floatX* A,
                      const floatX* B, floatX* low, int64_t rows, int64_t C, int64_t OC, int64_t R, float scale,
                      floatX* gelu_out = nullptr) {
    matmul_forward(out, inp, weight, bias, rows, C, OC);
    low_rank_add(out, inp, A, B, low, rows, C, OC, R, scale, gelu_out);
}
template <class floatX, class floatG>
void low_rank_backward(floatX* dinp, floatG* dA, floatG* dB, const floatX* dout, const floatX* inp,
                       const floatX* weight, const floatX* A, const floatX* B, floatX* low, int64_t rows, int64_t C,
                       int64_t OC, int64_t R, float scale, bool add, const floatX* pre_gelu = nullptr) {
    floatX* dlow = low + round_up(rows * R, 16);
    low_product(low, inp, A, rows, C, R, scale), low_product(dlow, dout, B, rows, OC, R, scale);
    for (int64_t i = 0; i < R * C && !add; i++) dA[i] = 0;
    for (int64_t i = 0; i < R * OC && !add; i++) dB[i] = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < R; k++) {
            for (int64_t c = 0; c < C; c++) dA[k * C + c] += (float)dlow[r * R + k] * (float)inp[r * C + c];
            for (int64_t o = 0; o < OC; o++) dB[k * OC + o] += (float)low[r * R + k] * (float)dout[r * OC + o];
        }
    if (!dinp) return;
    floatG* const none = nullptr;
    matmul_backward(dinp, none, none, dout, inp, weight, rows, C, OC, add);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < C; c++) {
            float sum = dinp[r * C + c];
            for (int64_t k = 0; k < R; k++) sum += (float)dlow[r * R + k] * (float)A[k * C + c];
            dinp[r * C + c] = sum;
        }
    if (pre_gelu) gelu_backward(dinp, dinp, pre_gelu, rows * C);
}

}  // namespace reference
