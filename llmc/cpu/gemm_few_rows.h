// A product of few rows, as those of a short prompt: C = A B with A = inp and B = weight^T. To pack
// B takes as long as multiplying it by so few rows. So the product is computed as its transpose:
//
//     C^T = B^T A^T       B^T = weight, whose rows are read where they lie, once; A^T = inp^T is packed, which is small
//
// Its sums are transposed on their way to C. They are the same sums, added in the same order.
#pragma once
#include "llmc/cpu/gemm_bf16.h"

// Gives the epilogue squares of sums, transposed. It is called with the sums of at most BF16_ROWS
// rows.
inline Epilogue transposed_epilogue(const Epilogue& epilogue) {
    return [=](const FinishedSums& of) {
        alignas(64) float square[TILE_COLS * BF16_ROWS];
        for (int64_t j = 0; j < of.columns; j += TILE_COLS) {
            for (int64_t i = 0; i < of.rows; i += TILE_ROWS)
                transpose_16(square + i, BF16_ROWS, of.sums + i * of.stride + j, of.stride);
            epilogue({square, BF16_ROWS, of.column + j, std::min<int64_t>(TILE_COLS, of.columns - j), of.row, of.rows});
        }
    };
}

// The most rows of A for which this pays. In fp32: those whose transpose is one block. Not at all
// where fp32 is split for the unit, nor with the portable code of bf16 and AVX2: it widens the rows
// of its left operand before it multiplies, which takes longer than to pack them.
constexpr int64_t FP32_FEW_ROWS = GEMM_IN_PLACE.NC;
template <class floatX>
int64_t most_few_rows() {
    if (sizeof(floatX) == 4) return device.splits_fp32 ? 0 : FP32_FEW_ROWS;
    return device.unit == UNIT_PORTABLE && VEC_BYTES < 64 ? 0 : 256;
}

// In fp32: each thread has the sums of some rows of C^T in its scratch memory, behind A^T.
inline void gemm_few_rows(MatrixView<float> A, MatrixView<float> B, int64_t M, int64_t N, int64_t K,
                          const Epilogue& epilogue) {
    constexpr int64_t BEFORE = GEMM_IN_PLACE.KC * FP32_FEW_ROWS, MOST = GEMM_IN_PLACE.KC / BF16_ROWS * BF16_ROWS;
    static_assert(BEFORE + MOST * FP32_FEW_ROWS <= GEMM_SCRATCH_ELEMS, "the sums fit behind the block");
    const int64_t stride = round_up(M, TILE_COLS), share = round_up(ceil_div(N, 4 * device.threads), BF16_ROWS);
    const Epilogue finish = transposed_epilogue(epilogue);
    parallel_ranges(N, std::clamp(share, 2 * BF16_ROWS, MOST), [&](int64_t begin, int64_t end) {
        float* const sums = thread_scratch(GEMM_SCRATCH_ELEMS) + BEFORE;
        const MatrixView<float> rows{B.at(0, begin), B.col_stride, B.row_stride};
        gemm_fp32_block<true>(sums, stride, rows, A.transposed(), 0, end - begin, {0, M}, {0, 0}, K, false, nullptr,
                              nullptr, /*weights*/ true);
        for (int64_t n = begin; n < end; n += BF16_ROWS)
            finish({sums + (n - begin) * stride, stride, n, std::min(BF16_ROWS, end - n), 0, M});
    });
}

inline void gemm_few_rows(MatrixView<bf16> A, MatrixView<bf16> B, int64_t M, int64_t N, int64_t K,
                          const Epilogue& epilogue) {
    const bf16* const nothing = nullptr;
    gemm_on_unit(B.transposed(), A.transposed(), N, M, K, transposed_epilogue(epilogue), nothing, M, /*weights*/ true);
}

// C (M, N), rows ldc apart, = A (M, K) B (K, N), where the rows of A and the columns of B are
// contiguous; then the epilogue.
template <class floatX>
void gemm_of_rows(floatX* C, int64_t ldc, MatrixView<floatX> A, MatrixView<floatX> B, int64_t M, int64_t N, int64_t K,
                  const Epilogue& epilogue) {
    if (M > most_few_rows<floatX>()) gemm(C, ldc, A, B, M, N, K, false, epilogue);
    else gemm_few_rows(A, B, M, N, K, epilogue);
}
