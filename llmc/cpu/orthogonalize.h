// Muon's orthogonalisation (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon). A
// matrix X = U S V^T, S its singular values, is replaced by about U V^T: every direction that it
// has becomes equally strong. A Newton-Schulz iteration does it with products alone, 5 times
//
//     A = X X^T
//     X = P X,   P = a I + b A + c A A,   a = 3.4445, b = -4.7750, c = 2.0315
//
// which turns each singular value s into a s + b s^3 + c s^5 and leaves U and V. X begins with a
// norm of 1, so that no s is above 1. The larger a is, the faster a small s grows. This a is so
// large that no s settles at 1: from 0.003 on they end between 0.68 and 1.21, which is near enough
// for training. If X is tall, A = X^T X and X = X P are the same with smaller matrices: A and P are
// n x n, n the smaller side of X.
//
// The products are of the model's type floatX. bf16 changes the result by about 1%, less than the
// iteration is away from U V^T. 5 (4 n^2 m + 2 n^3) FLOPs, m the larger side.
#pragma once
#include <cmath>
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/optim/newton_schulz.h"

// Replaces d (rows, cols), in fp32, which is also scratch memory until the end. scratch overlaps
// nothing. In bf16 a tall d is transposed in device.transposed: see orthogonalize_transposed_elems.
template <class floatX>
void orthogonalize(float* d, int64_t rows, int64_t cols, const OrthogonalScratch<floatX>& scratch) {
    const Range range(work::orthogonalize(rows, cols, sizeof(floatX)));
    const bool tall = rows > cols;
    const int64_t elems = rows * cols, n = std::min(rows, cols);
    const float scale = (float)(1.0 / std::max(NEWTON_SCHULZ_EPS, std::sqrt(global_norm_squared(d, elems))));
    floatX *x = scratch.x, *next = (floatX*)d;
    const MatrixView<floatX> A{scratch.gram, n, 1}, P{scratch.polynomial, n, 1};
    parallel_ranges(elems, 1 << 15, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            store_some(x + begin + i, load_some(d + begin + i, count) * scale, count);
        });
    });
    const auto polynomial = [&](int64_t row, int64_t col, vfloat squares, size_t count) {
        vfloat p = NEWTON_SCHULZ_B * load_some(scratch.gram + row * n + col, count) + NEWTON_SCHULZ_C * squares;
        if (row >= col && row < col + (int64_t)count) p[row - col] += NEWTON_SCHULZ_A;
        return p;
    };
    for (int i = 1; i <= NEWTON_SCHULZ_STEPS; i++) {
        const MatrixView<floatX> X{x, cols, 1};
        gemm(scratch.gram, n, tall ? X.transposed() : X, tall ? X : X.transposed(), n, n, tall ? rows : cols, false);
        gemm(scratch.polynomial, n, A, A, n, n, n, false, epilogue_of(scratch.polynomial, n, polynomial), scratch.gram);
        const auto multiply = [&](auto* out) { gemm(out, cols, tall ? X : P, tall ? P : X, rows, cols, n, false); };
        if (i == NEWTON_SCHULZ_STEPS) multiply(d);  // in fp32; X is in scratch.x, as the number of steps is odd
        else multiply(next);
        std::swap(x, next);
    }
}

// Elements of device.transposed that orthogonalize() needs for the matrices of a layer of C
// channels.
template <class floatX>
int64_t orthogonalize_transposed_elems(int64_t C) {
    return matmul_transposed_elems<floatX>(4 * C, C);
}
