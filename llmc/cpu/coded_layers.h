// The layers with a matrix in codes (adapt/weight_codes.h), which has no gradient; formulas:
// matmul.h, classifier.h, encoder.h.
//
// For few rows of inputs memory limits: code_products.h. For many, and where adapters train beside
// codes, arithmetic does: a strip of the weights at a time is turned into numbers, with which the
// usual products compute. In the backward pass, where Dinp has a column for each column of the
// weights, strips are columns: so each of its sums is complete when it is stored.
#pragma once
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/code_products.h"
#include "llmc/cpu/encoder.h"

// out (rows, OC) = inp (rows, C) m^T + bias (OC), and gelu_out = gelu(out), as matmul_forward().
// scratch: WeightCodes::strip_elems() elements. Inputs are not rounded to whole numbers if exact.
template <class floatX>
void coded_matmul(floatX* out, const floatX* inp, const CodeMatrix& m, const floatX* bias, int64_t rows,
                  floatX* gelu_out, void* scratch, bool exact = false) {
    const int64_t C = m.C, OC = m.rows;
    KernelWork work = work::matmul(rows, C, OC, gelu_out, sizeof(floatX));
    work.bytes += m.bytes() - C * OC * (int64_t)sizeof(floatX);
    const Range range(work);
    const auto row_product = m.format == WEIGHTS_INT8   ? coded_matmul_row<WEIGHTS_INT8, floatX>
                             : m.format == WEIGHTS_INT4 ? coded_matmul_row<WEIGHTS_INT4, floatX>
                                                        : coded_matmul_row<WEIGHTS_NF4, floatX>;
    const bool in_strips = exact || rows > MATMUL_FEW_ROWS;
    for (int64_t r = 0; r < rows && !in_strips; r++)
        row_product(out + r * OC, inp + r * C, m, bias, gelu_out ? gelu_out + r * OC : nullptr, (int16_t*)scratch);
    if (!in_strips) return;
    for_row_strips(InStrips<floatX>{m, (floatX*)scratch}, OC, [&](const floatX* weights, int64_t first, int64_t n) {
        matmul_forward_many_rows<floatX>(out + first, inp, weights, bias ? bias + first : nullptr, rows, C, n,
                                         gelu_out ? gelu_out + first : nullptr, OC);
    });
}

// dinp (rows, C) = dout (rows, OC) m, as matmul_backward() writes it.
template <class floatX>
void coded_backward(floatX* dinp, const floatX* dout, const CodeMatrix& m, int64_t rows, void* scratch,
                    const floatX* pre_gelu = nullptr) {
    const int64_t C = m.C, OC = m.rows;
    KernelWork work = work::matmul(rows, C, OC, false, sizeof(floatX));
    work.bytes += m.bytes() - C * OC * (int64_t)sizeof(floatX);
    const Range range(work);
    for_column_strips(InStrips<floatX>{m, (floatX*)scratch}, C, [&](const floatX* weights, int64_t first, int64_t n) {
        const floatX* const before = pre_gelu ? pre_gelu + first : nullptr;
        const auto through_gelu = [=](int64_t row, int64_t col, vfloat v, size_t count) {
            return v * gelu_derivative(load_some(before + row * C + col, count));
        };
        gemm(dinp + first, C, MatrixView<floatX>{dout, OC, 1}, MatrixView<floatX>{weights, n, 1}, rows, n, OC, false,
             before ? epilogue_of(dinp + first, C, through_gelu) : nullptr, before);
    });
}

// As encoder_forward(), with wte in codes.
template <class floatX>
void coded_encoder(floatX* out, const int* inp, const CodeMatrix& wte, const floatX* wpe, int64_t B, int64_t T,
                   int64_t first) {
    const int64_t C = wte.C;
    const Range range(work::embedding(B * T, C, sizeof(floatX)));
    parallel_ranges(B * T, 16, [&](int64_t begin, int64_t end) {
        float* const token = thread_scratch(C);
        for (int64_t row = begin; row < end; row++) {
            decode_row(token, wte, inp[row], 0, C);
            add_row(out + row * C, token, wpe + (first + row % T) * C, C);
        }
    });
}

// As classifier(), with wte in codes, which has no gradient.
template <class floatX>
void coded_classifier(float* losses, floatX* dinp, floatX* logits, const floatX* inp, const CodeMatrix& wte,
                      const int* targets, int64_t rows, int64_t V, float dloss, void* scratch,
                      const Teacher<floatX>& teacher = {}) {
    const int64_t C = wte.C, Vp = wte.rows, chunk = classifier_chunk_rows(rows);
    const Range range(work::classifier(rows, C, Vp, dinp, sizeof(floatX), 0, false));
    for (int64_t r = 0; r < rows; r += chunk) {
        const int64_t n = std::min(chunk, rows - r);
        coded_matmul(logits, inp + r * C, wte, (const floatX*)nullptr, n, (floatX*)nullptr, scratch, dinp != nullptr);
        chunk_losses(losses + r, logits, targets + r, r, n, V, Vp, dinp ? dloss : 0, teacher);
        if (dinp) coded_backward(dinp + r * C, logits, wte, n, scratch);
    }
}
