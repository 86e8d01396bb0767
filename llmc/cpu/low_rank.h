// A linear layer whose matrix stays as it is, with an adapter of low rank beside it: LoRA (Hu et
// al. 2021, arXiv:2106.09685).
//
//     out   = inp weight^T + bias + low B      low  = scale inp A^T     A (R,C), B (R,OC): R is small
//     Dinp  = Dout weight + Dlow A             Dlow = scale Dout B^T
//     DA    = Dlow^T inp,   DB = low^T Dout
//
// The adapter's share of out and of Dinp is added to the sums of the large product while they are
// in the first-level cache (gemm.h): R multiply-adds for each, and no pass over memory. B is stored
// transposed, so that both adapters are read along their rows. low is computed again in the
// backward pass: 2 rows C R FLOPs are less than keeping it is worth.
//
// The matrix may be in codes (InStrips): QLoRA (Dettmers et al. 2023, arXiv:2305.14314). Then the
// large product is computed a strip at a time.
#pragma once
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/weight_codes.h"

// out (rows, R) = scale inp (rows, n) weight (R, n)^T, written.
template <class floatX>
void scaled_product(floatX* out, const floatX* inp, const floatX* weight, int64_t rows, int64_t n, int64_t R,
                    float scale) {
    const auto scaled = [=](int64_t, int64_t, vfloat v, size_t) { return v * scale; };
    gemm(out, R, MatrixView<floatX>{inp, n, 1}, MatrixView<floatX>{weight, 1, n}, rows, R, n, false,
         epilogue_of(out, R, scaled));
}
// v + what a row of low (R) times the columns from `column` on of adapter (R, n) is.
template <class floatX>
VEC_INLINE vfloat add_low_rank(vfloat v, const floatX* low, const floatX* adapter, int64_t n, int64_t R, int64_t column,
                               size_t count) {
    const floatX* row = adapter + column;
    for (int64_t r = 0; r < R; r++, row += n) v += load_some(row, count) * (float)low[r];
    return v;
}

// The epilogue that stores finish(row, column, sums, count) in C (M, n), the sums with low (M, R)
// adapter (R, n) added. A whole register tile is multiplied as those of the large product are.
template <class floatX, class Finish>
Epilogue low_rank_epilogue(floatX* C, int64_t n, const floatX* low, const floatX* adapter, int64_t R, Finish finish) {
    const Epilogue by_vector = epilogue_of(C, n, [=](int64_t row, int64_t col, vfloat v, size_t count) {
        return finish(row, col, add_low_rank(v, low + row * R, adapter, n, R, col, count), count);
    });
    if constexpr (sizeof(floatX) == 2) return by_vector;
    else
        return [=](const FinishedSums& of) {
            constexpr int MR = GEMM_MR, NV = GEMM_NV;
            if (of.rows < MR || of.columns < GEMM_NR) return by_vector(of);
            const Finish finish_one = finish;  // a copy, which stays in registers
            vfloat sums[MR][NV];
            const float* rows[MR];
            for (int i = 0; i < MR; i++) {
                rows[i] = low + (of.row + i) * R;
                for (int j = 0; j < NV; j++) sums[i][j] = load(of.sums + i * of.stride + j * VEC_FLOATS);
            }
            multiply_tile<MR, NV>(sums, rows, 1, adapter + of.column, n, R);
            for (int i = 0; i < MR; i++)
                for (int j = 0; j < NV; j++) {
                    const int64_t row = of.row + i, column = of.column + j * VEC_FLOATS;
                    store(C + row * n + column, finish_one(row, column, sums[i][j], (size_t)VEC_FLOATS));
                }
        };
}

// out (rows, OC), and gelu_out (rows, OC) if it is not null, as matmul_forward() writes them, with
// the adapter. Weight: const floatX*, or InStrips. low (rows, R) is scratch.
template <class floatX, class Weight>
void low_rank_forward(floatX* out, const floatX* inp, Weight weight, const floatX* bias, const floatX* A,
                      const floatX* B, floatX* low, int64_t rows, int64_t C, int64_t OC, int64_t R, float scale,
                      floatX* gelu_out = nullptr) {
    const Range range(work::low_rank(rows, C, OC, R, gelu_out, sizeof(floatX)));
    scaled_product(low, inp, A, rows, C, R, scale);
    const auto finish_from = [=](int64_t first) {  // that of columns `first` and on
        return [=](int64_t row, int64_t col, vfloat v, size_t count) {
            if (bias) v += load_some(bias + first + col, count);
            if (gelu_out) store_some(gelu_out + row * OC + first + col, gelu(as_stored<floatX>(v)), count);
            return v;
        };
    };
    constexpr bool HAS_CODES = !std::is_pointer_v<Weight>;
    if (HAS_CODES || rows > MATMUL_FEW_ROWS)
        return for_row_strips(weight, OC, [&](const floatX* strip, int64_t first, int64_t n) {
            gemm(out + first, OC, MatrixView<floatX>{inp, C, 1}, MatrixView<floatX>{strip, 1, C}, rows, n, C, false,
                 low_rank_epilogue(out + first, OC, (const floatX*)low, B + first, R, finish_from(first)));
        });
    const auto finish = finish_from(0);
    if constexpr (!HAS_CODES) matmul_forward(out, inp, weight, (const floatX*)nullptr, rows, C, OC);
    for (int64_t row = 0; row < rows; row++)
        for_each_vector(OC, [&](size_t col, size_t count) {
            floatX* at = out + row * OC + col;
            const vfloat v = add_low_rank(load_some(at, count), low + row * R, B, OC, R, (int64_t)col, count);
            store_some(at, finish(row, (int64_t)col, v, count), count);
        });
}

// Adds the adapter to out (rows, OC), a product of inp (rows, C) with a matrix in codes
// (adapt/weight_codes.h), and writes gelu_out (rows, OC) if it is not null. low (rows, R) is
// scratch.
template <class floatX>
void low_rank_add(floatX* out, const floatX* inp, const floatX* A, const floatX* B, floatX* low, int64_t rows,
                  int64_t C, int64_t OC, int64_t R, float scale, floatX* gelu_out = nullptr) {
    scaled_product(low, inp, A, rows, C, R, scale);
    parallel_for(rows, [&](int64_t row) {
        for_each_vector(OC, [&](size_t col, size_t count) {
            floatX* at = out + row * OC + col;
            const vfloat v = add_low_rank(load_some(at, count), low + row * R, B, OC, R, (int64_t)col, count);
            store_some(at, v, count);
            if (gelu_out) store_some(gelu_out + row * OC + col, gelu(as_stored<floatX>(v)), count);
        });
    });
}

// dinp (rows, C) is written, times gelu'(pre_gelu) if that is not null; dA (R, C) and dB (R, OC)
// are written, or added to if add. dinp may be null if it is not wanted. low (2, rows, R) is
// scratch.
template <class floatX, class floatG, class Weight>
void low_rank_backward(floatX* dinp, floatG* dA, floatG* dB, const floatX* dout, const floatX* inp, Weight weight,
                       const floatX* A, const floatX* B, floatX* low, int64_t rows, int64_t C, int64_t OC, int64_t R,
                       float scale, bool add, const floatX* pre_gelu = nullptr) {
    const Range range(work::low_rank_backward(rows, C, OC, R, sizeof(floatX), sizeof(floatG), dinp));
    floatX *dlow = low + round_up(rows * R, 16), *const none = nullptr;
    floatG* const no_bias = nullptr;
    scaled_product(low, inp, A, rows, C, R, scale);
    scaled_product(dlow, dout, B, rows, OC, R, scale);
    matmul_backward(none, dA, no_bias, dlow, inp, none, rows, C, R, add);
    matmul_backward(none, dB, no_bias, low, dout, none, rows, OC, R, add);
    if (!dinp) return;
    for_column_strips(weight, C, [&](const floatX* strip, int64_t first, int64_t n) {
        const floatX* const before = pre_gelu ? pre_gelu + first : nullptr;
        const auto finish = [=](int64_t row, int64_t col, vfloat v, size_t count) {
            return before ? v * gelu_derivative(load_some(before + row * C + col, count)) : v;
        };
        gemm(dinp + first, C, MatrixView<floatX>{dout, OC, 1}, MatrixView<floatX>{strip, n, 1}, rows, n, OC, false,
             low_rank_epilogue(dinp + first, C, (const floatX*)dlow, A + first, R, finish), before);
    });
}
