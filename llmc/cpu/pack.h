// How matrices are rearranged for the kernels that multiply them, so that they read memory front to
// back: fp32 in panels, bf16 in tiles of pairs.
#pragma once
#include <algorithm>
#include <utility>
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"
#include "llmc/integer_math.h"

// A matrix somewhere in memory: element (i, j) is data[i * row_stride + j * col_stride].
template <class floatX>
struct MatrixView {
    const floatX* data;
    int64_t row_stride, col_stride;
    const floatX* at(int64_t i, int64_t j) const { return data + i * row_stride + j * col_stride; }
    MatrixView transposed() const { return {data, col_stride, row_stride}; }
};

// Exchanges the upper right with the lower left quarter of every 2 HALF x 2 HALF block that two
// rows, HALF apart, lie in.
template <int HALF, size_t... I>
VEC_INLINE void exchange(vfloat& upper, vfloat& lower, std::index_sequence<I...>) {
    vfloat u = upper, l = lower;
    upper = __builtin_shufflevector(u, l, (I / HALF % 2 == 0 ? I : VEC_FLOATS + I - HALF)...);
    lower = __builtin_shufflevector(u, l, (I / HALF % 2 == 0 ? I + HALF : VEC_FLOATS + I)...);
}

// Transposes a VEC_FLOATS x VEC_FLOATS square in registers, in log2(VEC_FLOATS) rounds of
// exchanges.
template <int HALF = VEC_FLOATS / 2>
VEC_INLINE void transpose_square(vfloat (&v)[VEC_FLOATS]) {
#pragma GCC unroll 16
    for (int i = 0; i < VEC_FLOATS; i++)
        if ((i & HALF) == 0) exchange<HALF>(v[i], v[i + HALF], std::make_index_sequence<VEC_FLOATS>());
    if constexpr (HALF > 1) transpose_square<HALF / 2>(v);
}

// -------------------------------------------------------------------------------------------------
// fp32: panels of columns

// out[k][j] = from[j][k] for k < K and j < VEC_FLOATS; rows of out are out_stride apart, rows of
// from from_stride. Fetches the VEC_FLOATS rows below on the way: they are usually next, and too
// short for the CPU to guess.
inline void transpose_strip(float* out, int64_t out_stride, const float* from, int64_t from_stride, int64_t K) {
    int64_t k = 0;
    for (; k + VEC_FLOATS <= K; k += VEC_FLOATS) {
        vfloat v[VEC_FLOATS];
        for (int j = 0; j < VEC_FLOATS; j++) v[j] = load(from + j * from_stride + k);
        for (int j = 0; j < VEC_FLOATS; j++) __builtin_prefetch(from + (VEC_FLOATS + j) * from_stride + k);
        transpose_square(v);
        for (int j = 0; j < VEC_FLOATS; j++) store(out + (k + j) * out_stride, v[j]);
    }
    for (; k < K; k++)
        for (int j = 0; j < VEC_FLOATS; j++) out[k * out_stride + j] = from[j * from_stride + k];
}

// Packs rows k0..k0+K of columns n0..n0+N of B into panels of WIDTH columns, zeros beyond N:
// out[panel][k][column in panel].
template <int WIDTH>
inline void pack_panels(float* out, MatrixView<float> B, int64_t k0, int64_t K, int64_t n0, int64_t N) {
    int64_t n = 0;
    // narrow panels are filled several at once, so that a row is read in long runs
    auto copy_rows = [&](auto side_by_side) {
        constexpr int64_t PANELS = decltype(side_by_side)::value;
        for (; B.col_stride == 1 && n + PANELS * WIDTH <= N; n += PANELS * WIDTH)
            for (int64_t k = 0; k < K; k++) {
                const float* from = B.at(k0 + k, n0 + n);
#pragma GCC unroll 8
                for (int64_t p = 0; p < PANELS; p++)
                    memcpy(out + (n + p * WIDTH) * K + k * WIDTH, from + p * WIDTH, WIDTH * sizeof(float));
            }
    };
    if (WIDTH <= 8) copy_rows(std::integral_constant<int64_t, 8>());
    copy_rows(std::integral_constant<int64_t, 1>());
    for (; n < N; n += WIDTH) {
        const int64_t columns = std::min<int64_t>(WIDTH, N - n);
        const float* from = B.at(k0, n0 + n);
        float* panel = out + n * K;
        if (columns < WIDTH) memset(panel, 0, K * WIDTH * sizeof(float));
        int64_t j = 0;
        if (B.row_stride == 1)
            for (; j + VEC_FLOATS <= columns; j += VEC_FLOATS)
                transpose_strip(panel + j, WIDTH, from + j * B.col_stride, B.col_stride, K);
        for (int64_t k = 0; k < K; k++)
            for (int64_t i = j; i < columns; i++) panel[k * WIDTH + i] = from[k * B.row_stride + i * B.col_stride];
    }
}

// -------------------------------------------------------------------------------------------------
// bf16: tiles of 32 rows (k) and 16 columns, in which the values of k and k+1 of a column are
// neighbours, as the instructions that multiply them want:
//
//     tile[p][j] = the pair B[2p][j], B[2p+1][j]     p = 0..15, j = 0..15; 1 KB, one 64-byte line a row of pairs
//
// Packing moves 32-bit pairs: where B is contiguous in k a transposition, else two rows shuffled
// into one.

constexpr int TILE_ROWS = 16, TILE_COLS = 16, TILE_K = 32, TILE_PAIRS = TILE_K / 2, TILE_ELEMS = TILE_K * TILE_COLS;

// out (16, 16) = the transpose of inp (16, 16): 32-bit values, or pairs of bf16. Strides in 32-bit
// values.
VEC_INLINE void transpose_16(float* out, int64_t out_stride, const float* inp, int64_t inp_stride) {
    for (int i = 0; i < 16; i += VEC_FLOATS)
        for (int j = 0; j < 16; j += VEC_FLOATS) {
            vfloat v[VEC_FLOATS];
#pragma GCC unroll 16
            for (int k = 0; k < VEC_FLOATS; k++) v[k] = load(inp + (i + k) * inp_stride + j);
            transpose_square(v);
#pragma GCC unroll 16
            for (int k = 0; k < VEC_FLOATS; k++) store(out + (j + k) * out_stride + i, v[k]);
        }
}
// VEC_FLOATS columns of two rows as pairs.
VEC_INLINE vfloat pairs(vhalf even, vhalf odd) {
    return (vfloat)(__builtin_convertvector(even, vuint) | __builtin_convertvector(odd, vuint) << 16);
}

// tile = 32 rows of 16 values, row_stride apart, as pairs of rows.
VEC_INLINE void pack_tile_of_rows(bf16* tile, const bf16* rows, int64_t row_stride) {
#pragma GCC unroll 4
    for (int p = 0; p < TILE_PAIRS; p++)
        for (int j = 0; j < TILE_COLS; j += VEC_FLOATS) {
            const bf16* row = rows + 2 * p * row_stride + j;
            store((float*)(tile + p * TILE_K + 2 * j), pairs(load_bits(row), load_bits(row + row_stride)));
        }
}
// tile = 16 columns of 32 values, each contiguous, column_stride apart.
VEC_INLINE void pack_tile_of_columns(bf16* tile, const bf16* columns, int64_t column_stride) {
    transpose_16((float*)tile, TILE_COLS, (const float*)columns, column_stride / 2);
}

// The piece of up to 32 x 16 elements (first index: memory rows) of a matrix at `from`, padded with
// zeros.
inline void copy_padded(bf16* out, int64_t out_stride, int64_t out_rows, int64_t out_cols, const bf16* from,
                        int64_t stride, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < out_rows; i++) {
        const int64_t n = i < rows ? std::max<int64_t>(0, std::min(cols, out_cols)) : 0;
        if (n > 0) memcpy((void*)(out + i * out_stride), from + i * stride, n * sizeof(bf16));
        if (n < out_cols) memset((void*)(out + i * out_stride + n), 0, (out_cols - n) * sizeof(bf16));
    }
}

// Rows k0..k0+K of columns n0..n0+N of B as tiles, zeros beyond: tile (column n, k) at out + (n *
// k_tiles + k) * TILE_ELEMS. Fetches what later tiles are made of, the next columns or the next
// rows, which is too far off for the CPU to guess.
inline void pack_tiles(bf16* out, MatrixView<bf16> B, int64_t k0, int64_t K, int64_t n0, int64_t N) {
    alignas(64) bf16 edge[TILE_ELEMS];
    const bool by_columns = B.row_stride == 1;
    const int64_t k_tiles = ceil_div(K, TILE_K), n_tiles = ceil_div(N, TILE_COLS);
    auto pack = [&](int64_t tile_n, int64_t tile_k) {
        const int64_t n = tile_n * TILE_COLS, k = tile_k * TILE_K, rows = K - k, columns = N - n;
        const bf16* from = B.at(k0 + k, n0 + n);
        bf16* tile = out + (tile_n * k_tiles + tile_k) * TILE_ELEMS;
        // pairs are moved as 32 bits
        const bool in_place = rows >= TILE_K && columns >= TILE_COLS &&
                              (!by_columns || (B.col_stride % 2 == 0 && (uintptr_t)from % 4 == 0));
        if (by_columns) {
            if (!in_place) copy_padded(edge, TILE_K, TILE_COLS, TILE_K, from, B.col_stride, columns, rows);
            for (int j = 0; j < TILE_COLS; j++) __builtin_prefetch(from + (TILE_COLS + j) * B.col_stride);
            pack_tile_of_columns(tile, in_place ? from : edge, in_place ? B.col_stride : TILE_K);
        } else {
            if (!in_place) copy_padded(edge, TILE_COLS, TILE_K, TILE_COLS, from, B.row_stride, rows, columns);
            // a line is two tiles wide
            for (int j = 0; j < TILE_K && tile_n % 2 == 0; j++) __builtin_prefetch(from + (TILE_K + j) * B.row_stride);
            pack_tile_of_rows(tile, in_place ? from : edge, in_place ? B.row_stride : TILE_COLS);
        }
    };
    if (by_columns)
        for (int64_t n = 0; n < n_tiles; n++)
            for (int64_t k = 0; k < k_tiles; k++) pack(n, k);
    else
        for (int64_t k = 0; k < k_tiles; k++)
            for (int64_t n = 0; n < n_tiles; n++) pack(n, k);
}

// out (whole strips of rows up to out_rows, out_stride apart) = columns m0..m0+M of inp, whose K
// rows are inp_stride apart: A, transposed so that it is contiguous in k. Zeros fill K up to whole
// tiles, and the rows beyond M. Each group of 32 rows of inp is read along its rows, and the next
// one fetched meanwhile.
inline void pack_rows(bf16* out, int64_t out_stride, const bf16* inp, int64_t inp_stride, int64_t m0, int64_t M,
                      int64_t out_rows, int64_t K) {
    alignas(64) bf16 edge[TILE_ELEMS], tile[TILE_ELEMS];
    for (int64_t k = 0; k < K; k += TILE_K)
        for (int64_t m = 0; m < out_rows; m += TILE_ROWS) {
            const bf16* from = inp + k * inp_stride + m0 + m;
            const bool whole = K - k >= TILE_K && M - m >= TILE_ROWS;
            if (!whole) copy_padded(edge, TILE_ROWS, TILE_K, TILE_ROWS, from, inp_stride, K - k, M - m);
            for (int j = 0; j < TILE_K && m % (2 * TILE_ROWS) == 0; j++)
                __builtin_prefetch(from + (TILE_K + j) * inp_stride);  // a line is two tiles wide
            pack_tile_of_rows(tile, whole ? from : edge, whole ? inp_stride : TILE_ROWS);
            transpose_16((float*)(out + m * out_stride + k), out_stride / 2, (const float*)tile, TILE_COLS);
        }
}
