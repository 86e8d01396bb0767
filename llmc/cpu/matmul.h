// A linear layer: its forward product and its two backward products, and what is computed on the
// fly while a part of the result is still in the first-level cache: bias, GELU, the derivative of
// GELU.
//
//     out     = inp weight^T + bias            weight is (OC, C): one row per output
//     Dinp    = Dout weight
//     Dweight = Dout^T inp
//     Dbias   = sum over rows of Dout
//
// Operands are fp32 or bf16, sums are fp32. Gradients of parameters have a type of their own
// (floatG): they may be fp32 where everything else is bf16, and are then not rounded. Each product
// takes 2 rows C OC FLOPs, and moves at least each of its three matrices once.
#pragma once
#include "llmc/cpu/dot_products.h"
#include "llmc/cpu/gelu.h"
#include "llmc/cpu/gemm_few_rows.h"

// The most rows of inp for which a product is computed as dot products (dot_products.h).
constexpr int64_t MATMUL_FEW_ROWS = 4;

// out (rows, OC) = inp (rows, C) weight (OC, C)^T + bias (OC), written, and gelu_out (rows, OC) if
// it is not null, for at most ROWS rows.
template <int ROWS, class floatX>
void matmul_forward_few_rows(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int64_t rows,
                             int64_t C, int64_t OC, floatX* gelu_out) {
    parallel_streams(OC, C * sizeof(floatX), [&](int64_t begin, int64_t end) {
        dot_product_columns<ROWS>(out, inp, weight, bias, rows, C, OC, begin, end);
        for (int64_t first = begin; gelu_out && first < rows * OC; first += OC)
            for_each_vector(end - begin, [&](size_t i, size_t count) {
                store_some(gelu_out + first + i, gelu(load_some(out + first + i, count)), count);
            });
    });
}

// A product of more rows, with the rows of out and gelu_out `stride` apart.
template <class floatX>
void matmul_forward_many_rows(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int64_t rows,
                              int64_t C, int64_t OC, floatX* gelu_out, int64_t stride) {
    const auto add_bias = [=](int64_t row, int64_t col, vfloat v, size_t count) {
        if (bias) v += load_some(bias + col, count);
        if (gelu_out) store_some(gelu_out + row * stride + col, gelu(as_stored<floatX>(v)), count);
        return v;
    };
    const MatrixView<floatX> A{inp, C, 1}, B{weight, 1, C};
    gemm_of_rows(out, stride, A, B, rows, OC, C, epilogue_of(out, stride, add_bias));
}

// out (rows, OC) = inp (rows, C) weight (OC, C)^T + bias (OC), written; bias may be null. If
// gelu_out (rows, OC) is not null, gelu(out) is written to it. out and gelu_out overlap nothing.
template <class floatX>
void matmul_forward(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int64_t rows, int64_t C,
                    int64_t OC, floatX* gelu_out = nullptr) {
    const Range range(work::matmul(rows, C, OC, gelu_out, sizeof(floatX)));
    if (rows <= MATMUL_FEW_ROWS) {
        const auto product =
            rows == 1 ? matmul_forward_few_rows<1, floatX> : matmul_forward_few_rows<MATMUL_FEW_ROWS, floatX>;
        return product(out, inp, weight, bias, rows, C, OC, gelu_out);
    }
    matmul_forward_many_rows(out, inp, weight, bias, rows, C, OC, gelu_out, OC);
}

// sums (n) = the sum over rows of inp (rows, n), or += if add.
template <class floatG, class floatX>
void column_sums(floatG* sums, const floatX* inp, int64_t rows, int64_t n, bool add) {
    constexpr int64_t VECTORS = 8, WIDTH = VECTORS * VEC_FLOATS;
    parallel_ranges(n, 2 * WIDTH, [&](int64_t begin, int64_t end) {
        int64_t c = begin;
        for (; c + WIDTH <= end; c += WIDTH) {
            vfloat total[VECTORS] = {};
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < VECTORS; i++) total[i] += load(inp + r * n + c + i * VEC_FLOATS);
            for (int64_t i = 0; i < VECTORS; i++) {
                floatG* sum = sums + c + i * VEC_FLOATS;
                store(sum, add ? load(sum) + total[i] : total[i]);
            }
        }
        for_each_vector(end - c, [&](size_t i, size_t count) {
            vfloat total{};
            for (int64_t r = 0; r < rows; r++) total += load_some(inp + r * n + c + i, count);
            store_some(sums + c + i, add ? load_some(sums + c + i, count) + total : total, count);
        });
    });
}

// Elements of device.transposed that matmul_backward needs: in bf16 for Dout^T, the left operand of
// Dweight, which is made as a whole (gemm_bf16.h); in fp32, where it is split, for Dout as well.
template <class floatX>
int64_t matmul_transposed_elems(int64_t rows, int64_t OC) {
    if (sizeof(floatX) == 2) return gemm_transposed_elems(OC, rows);
    return device.splits_fp32 ? 2 * std::max(gemm_transposed_elems(OC, rows), gemm_transposed_elems(rows, OC)) : 0;
}
// Elements of device.transposed that matmul_forward needs: where fp32 is split, for inp.
template <class floatX>
int64_t matmul_forward_split_elems(int64_t rows, int64_t C) {
    return sizeof(floatX) == 4 && device.splits_fp32 ? 2 * gemm_transposed_elems(rows, C) : 0;
}

// Some rows and columns of dweight (OC, C), at `part`, rows C apart, are written, or added to if
// add: out_count columns of dout, which are OC apart, times count columns of inp.
template <class floatX, class floatG>
void weight_gradient(floatG* part, const floatX* dout, int64_t OC, int64_t out_count, const floatX* inp, int64_t C,
                     int64_t count, int64_t rows, bool add) {
    const MatrixView<floatX> A{dout, 1, OC}, B{inp, C, 1};
    const floatX* const nothing = nullptr;
    if (add || (sizeof(floatX) == 4 && !device.splits_fp32)) return gemm(part, C, A, B, out_count, count, rows, add);
    gemm_on_unit(A, B, out_count, count, rows, streaming_epilogue(part, C), nothing, C, false, /*streams*/ true);
}

// dinp (rows, C) = dout (rows, OC) weight (OC, C) is written. dweight (OC, C) and dbias (OC) are
// written, or added to if add. Each may be null if it is not wanted. inp is what the
// forward pass read. If it was computed as gelu(pre_gelu), then with pre_gelu (rows, C) dinp is
// multiplied by gelu'(pre_gelu). dinp overlaps none of the others.
template <class floatX, class floatG>
void matmul_backward(floatX* dinp, floatG* dweight, floatG* dbias, const floatX* dout, const floatX* inp,
                     const floatX* weight, int64_t rows, int64_t C, int64_t OC, bool add,
                     const floatX* pre_gelu = nullptr) {
    const Range range(work::matmul_backward(rows, C, OC, pre_gelu, sizeof(floatX), sizeof(floatG), dinp, dweight));
    const auto through_gelu = [=](int64_t row, int64_t col, vfloat v, size_t count) {
        return v * gelu_derivative(load_some(pre_gelu + row * C + col, count));
    };
    if (dinp)
        gemm(dinp, C, MatrixView<floatX>{dout, OC, 1}, MatrixView<floatX>{weight, C, 1}, rows, C, OC, false,
             pre_gelu ? epilogue_of(dinp, C, through_gelu) : nullptr, pre_gelu);
    if (dweight) weight_gradient(dweight, dout, OC, OC, inp, C, C, rows, add);
    if (dbias) column_sums(dbias, dout, rows, OC, add);
}
