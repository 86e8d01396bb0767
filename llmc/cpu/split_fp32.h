// fp32 products on a unit that multiplies bf16 (--precision fp32x3): each value is the sum of two
// bf16, high, which is the value rounded, and low, the rest rounded. Of the four products of a sum
// that of the low parts, the smallest, is left out:
//
//     a b = a_high b_high + a_high b_low + a_low b_high + error       |error| <= 2^-15 |a b|
//
// fp32 keeps 24 bits of a value, this 16, bf16 8. It pays where bf16 is multiplied more than three
// times as fast as fp32: on AMX 16 times. PyTorch has it as float32_matmul_precision("high"); see
// also Henry, Tang & Heinecke 2019, arXiv:1904.06376. Infinity becomes NaN.
//
// Here operands are packed as bf16 is (pack.h), high and low parts apart: `low` elements after each
// high part lies its low part.
#pragma once
#include "llmc/cpu/pack.h"

// As copy_padded(), which splits nothing.
inline void split_padded(bf16* out, int64_t low, int64_t out_stride, int64_t out_rows, int64_t out_cols,
                         const float* from, int64_t stride, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < out_rows; i++) {
        const int64_t n = i < rows ? std::clamp<int64_t>(cols, 0, out_cols) : 0;
        bf16* row = out + i * out_stride;
        for_each_vector(n, [&](size_t j, size_t count) {
            const vfloat v = load_some(from + i * stride + j, count);
            store_some(row + j, v, count), store_some(row + low + j, v - as_stored<bf16>(v), count);
        });
        for (bf16* part : {row, row + low})
            if (n < out_cols) memset((void*)(part + n), 0, (out_cols - n) * sizeof(bf16));
    }
}

// As pack_tiles() of bf16. Prefetches the next tile.
inline void pack_tiles(bf16* out, int64_t low, MatrixView<float> B, int64_t k0, int64_t K, int64_t n0, int64_t N) {
    alignas(64) bf16 parts[2][TILE_ELEMS];
    const bool columns = B.row_stride == 1;  // are contiguous
    const int64_t stride = columns ? B.col_stride : B.row_stride, lines = columns ? TILE_COLS : TILE_K;
    for (int64_t n = 0; n < N; n += TILE_COLS)
        for (int64_t k = 0; k < K; k += TILE_K, out += TILE_ELEMS) {
            const float* from = B.at(k0 + k, n0 + n);
            for (int64_t i = 0; i < lines; i++) __builtin_prefetch(from + (lines + i) * stride);
            if (columns) split_padded(parts[0], TILE_ELEMS, TILE_K, TILE_COLS, TILE_K, from, stride, N - n, K - k);
            else split_padded(parts[0], TILE_ELEMS, TILE_COLS, TILE_K, TILE_COLS, from, stride, K - k, N - n);
            for (int i = 0; i < 2; i++)
                columns ? pack_tile_of_columns(out + i * low, parts[i], TILE_K)
                        : pack_tiles_of_rows({out + i * low}, parts[i], TILE_COLS);
        }
}

// Rows m0 to m0 + M - 1 of A, K values each, as rows of out, out_stride apart; zeros fill K up to
// whole tiles, and M up to out_rows, whole strips of 16 rows. The rows or the columns of A are
// contiguous.
inline void split_rows(bf16* out, int64_t low, int64_t out_stride, MatrixView<float> A, int64_t m0, int64_t M,
                       int64_t out_rows, int64_t K) {
    if (A.col_stride == 1)
        return split_padded(out, low, out_stride, out_rows, round_up(K, TILE_K), A.at(m0, 0), A.row_stride, M, K);
    alignas(64) bf16 parts[2][TILE_ELEMS], tile[TILE_ELEMS];
    for (int64_t k = 0; k < K; k += TILE_K)
        for (int64_t m = 0; m < out_rows; m += TILE_ROWS) {
            const float* from = A.at(m0 + m, k);
            for (int i = 0; i < TILE_K; i++) __builtin_prefetch(from + (TILE_K + i) * A.col_stride);
            split_padded(parts[0], TILE_ELEMS, TILE_ROWS, TILE_K, TILE_ROWS, from, A.col_stride, K - k, M - m);
            for (int i = 0; i < 2; i++) {
                pack_tiles_of_rows({tile}, parts[i], TILE_ROWS);
                transpose_16((float*)(out + i * low + m * out_stride + k), out_stride / 2, (const float*)tile,
                             TILE_COLS);
            }
        }
}
