// How matrices are rearranged (packed) for the kernels that multiply them, so that these read
// memory front to back: fp32 in panels, bf16 in tiles of pairs.
#pragma once
#include <algorithm>
#include <utility>
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"
#include "llmc/base/integer_math.h"

// A matrix somewhere in memory: element (i, j) is data[i * row_stride + j * col_stride].
template <class floatX>
struct MatrixView {
    const floatX* data;
    int64_t row_stride, col_stride;
    const floatX* at(int64_t i, int64_t j) const { return data + i * row_stride + j * col_stride; }
    MatrixView transposed() const { return {data, col_stride, row_stride}; }
};

// The transpose of a square of VEC_FLOATS x VEC_FLOATS values, one vector per row, in
// log2(VEC_FLOATS) rounds. Each round exchanges the upper right quarter of a square with its lower
// left quarter; the next round does the same in each of the four quarters. With 4 lanes:
//
//              rows            HALF 2: exchange the         HALF 1: exchange in
//                              quarters of the square       each quarter
//     v[0]    a0 a1  a2 a3         a0 a1  c0 c1                 a0 b0  c0 d0
//     v[1]    b0 b1  b2 b3         b0 b1  d0 d1                 a1 b1  c1 d1
//
//     v[2]    c0 c1  c2 c3         a2 a3  c2 c3                 a2 b2  c2 d2
//     v[3]    d0 d1  d2 d3         b2 b3  d2 d3                 a3 b3  c3 d3
//
// A quarter is HALF rows of HALF values. An exchange takes two vectors HALF rows apart, here v[0]
// and v[2], v[1] and v[3], then v[0] and v[1], v[2] and v[3]: two shuffle instructions.
template <int HALF, size_t... I>
VEC_INLINE void exchange(vfloat& upper, vfloat& lower, std::index_sequence<I...>) {
    vfloat u = upper, l = lower;
    upper = __builtin_shufflevector(u, l, (I / HALF % 2 == 0 ? I : VEC_FLOATS + I - HALF)...);
    lower = __builtin_shufflevector(u, l, (I / HALF % 2 == 0 ? I + HALF : VEC_FLOATS + I)...);
}

template <int HALF = VEC_FLOATS / 2>
VEC_INLINE void transpose_square(vfloat (&v)[VEC_FLOATS]) {
#pragma GCC unroll 16
    for (int i = 0; i < VEC_FLOATS; i++)
        if ((i & HALF) == 0) exchange<HALF>(v[i], v[i + HALF], std::make_index_sequence<VEC_FLOATS>());
    if constexpr (HALF > 1) transpose_square<HALF / 2>(v);
}

// -------------------------------------------------------------------------------------------------
// fp32: panels of WIDTH columns, each a matrix by itself. With WIDTH 3:
//
//     B, 2 rows of 5 columns             two panels, one after the other in memory
//
//     a0 b0 c0 d0 e0                     a0 b0 c0   a1 b1 c1     d0 e0 0   d1 e1 0
//     a1 b1 c1 d1 e1

// out[k][j] = from[j][k] for k < K and j < VEC_FLOATS. Rows of out are out_stride apart, rows of
// from from_stride. Prefetches the next VEC_FLOATS rows of from: they are usually read next, and
// they are too short for the CPU's own prefetcher.
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

// Packs the K rows of B from k0 on, in the N columns from n0 on, into panels of WIDTH columns, the
// last filled with zeros: out[panel][k][column in the panel].
template <int WIDTH>
inline void pack_panels(float* out, MatrixView<float> B, int64_t k0, int64_t K, int64_t n0, int64_t N) {
    int64_t n = 0;
    // Several narrow panels are filled side by side, so that a row of B is read in long runs.
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
// bf16: tiles of 32 rows (k) and 16 columns. The instructions that multiply bf16 want the values of
// k and k+1 of a column side by side, as a pair:
//
//     tile[p][j] = the pair B[2p][j], B[2p+1][j]       p = 0 to 15, j = 0 to 15
//
//     B, columns a to p, k = 0 to 31          tile: 16 rows of 16 pairs, each row 64 bytes, a cache line
//
//     a0  b0  ...  p0                         a0  a1    b0  b1   ...   p0  p1
//     a1  b1  ...  p1                         a2  a3    b2  b3   ...   p2  p3
//     ...                                     ...
//     a31 b31 ...  p31                        a30 a31   b30 b31  ...   p30 p31
//
// A pair is moved as 32 bits. Where the columns of B are contiguous, a pair lies in B as it does in
// the tile, and packing is a transpose of 16 x 16 pairs. Where the rows are contiguous, two rows
// are interleaved to one.

constexpr int TILE_ROWS = 16, TILE_COLS = 16, TILE_K = 32, TILE_PAIRS = TILE_K / 2, TILE_ELEMS = TILE_K * TILE_COLS;

// out (16, 16) = the transpose of inp (16, 16), of fp32 values or pairs of bf16. Strides count
// 32-bit values. PAST_CACHES: out is at a multiple of 64 bytes, and so are its rows.
template <bool PAST_CACHES = false>
VEC_INLINE void transpose_16(float* out, int64_t out_stride, const float* inp, int64_t inp_stride) {
    for (int i = 0; i < 16; i += VEC_FLOATS)
        for (int j = 0; j < 16; j += VEC_FLOATS) {
            vfloat v[VEC_FLOATS];
#pragma GCC unroll 16
            for (int k = 0; k < VEC_FLOATS; k++) v[k] = load(inp + (i + k) * inp_stride + j);
            transpose_square(v);
#pragma GCC unroll 16
            for (int k = 0; k < VEC_FLOATS; k++) {
                float* to = out + (j + k) * out_stride + i;
                PAST_CACHES ? stream(to, v[k]) : store(to, v[k]);
            }
        }
}
// Interleaves VEC_FLOATS values of two rows into pairs.
VEC_INLINE vfloat pairs(vhalf even, vhalf odd) { return (vfloat)(zero_extend(even) | zero_extend(odd) << 16); }

// TILES tiles of 32 rows of 16 values each, which lie side by side. Rows are row_stride apart.
template <int TILES>
VEC_INLINE void pack_tiles_of_rows(bf16* const (&tiles)[TILES], const bf16* rows, int64_t row_stride) {
#pragma GCC unroll 4
    for (int p = 0; p < TILE_PAIRS; p++)
        for (int j = 0; j < TILES * TILE_COLS; j += VEC_FLOATS) {
            const bf16* row = rows + 2 * p * row_stride + j;
            bf16* const to = tiles[j / TILE_COLS] + p * TILE_K + 2 * (j % TILE_COLS);
            store((float*)to, pairs(load_bits(row), load_bits(row + row_stride)));
        }
}
// tile = 16 columns of 32 contiguous values each; columns are column_stride apart, an even number.
VEC_INLINE void pack_tile_of_columns(bf16* tile, const bf16* columns, int64_t column_stride) {
    transpose_16((float*)tile, TILE_COLS, (const float*)columns, column_stride / 2);
}

// out (out_rows, out_cols) = the first rows x cols elements at `from`, zeros elsewhere. Rows are
// contiguous, out_stride and stride apart.
inline void copy_padded(bf16* out, int64_t out_stride, int64_t out_rows, int64_t out_cols, const bf16* from,
                        int64_t stride, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < out_rows; i++) {
        const int64_t n = i < rows ? std::max<int64_t>(0, std::min(cols, out_cols)) : 0;
        if (n > 0) memcpy((void*)(out + i * out_stride), from + i * stride, n * sizeof(bf16));
        if (n < out_cols) memset((void*)(out + i * out_stride + n), 0, (out_cols - n) * sizeof(bf16));
    }
}

// pack_tiles() where the columns of B are contiguous. Prefetches the next columns, which are too
// far apart for the CPU's own prefetcher.
inline void pack_tiles_by_columns(bf16* out, MatrixView<bf16> B, int64_t k0, int64_t K, int64_t n0, int64_t N) {
    alignas(64) bf16 padded[TILE_ELEMS];  // a copy of a part of B that does not fill a tile
    for (int64_t n = 0; n < N; n += TILE_COLS)
        for (int64_t k = 0; k < K; k += TILE_K, out += TILE_ELEMS) {
            const bf16* from = B.at(k0 + k, n0 + n);
            // Pairs are read as 32-bit values, so they must be aligned.
            const bool in_place =
                K - k >= TILE_K && N - n >= TILE_COLS && B.col_stride % 2 == 0 && (uintptr_t)from % 4 == 0;
            if (!in_place) copy_padded(padded, TILE_K, TILE_COLS, TILE_K, from, B.col_stride, N - n, K - k);
            for (int j = 0; j < TILE_COLS; j++) __builtin_prefetch(from + (TILE_COLS + j) * B.col_stride);
            pack_tile_of_columns(out, in_place ? from : padded, in_place ? B.col_stride : TILE_K);
        }
}
// Two tiles, side by side a cache line of each of 32 rows, of which rows x columns values are
// there; zeros follow. Prefetches the next 32 rows, to the second-level cache: far apart, they may
// not fit the sets of the first.
VEC_INLINE void pack_two_tiles(bf16* left, bf16* right, const bf16* from, int64_t stride, int64_t rows,
                               int64_t columns) {
    constexpr int WIDTH = 2 * TILE_COLS;
    for (int k = 0; k < TILE_K; k++) fetch_to_second_level(from + (TILE_K + k) * stride);
    if (rows >= TILE_K && columns >= WIDTH) return pack_tiles_of_rows({left, right}, from, stride);
    alignas(64) bf16 padded[TILE_K * WIDTH];
    copy_padded(padded, WIDTH, TILE_K, WIDTH, from, stride, rows, columns);
    pack_tiles_of_rows({left, right}, padded, WIDTH);
}
// pack_tiles() where the rows of B are contiguous.
inline void pack_tiles_by_rows(bf16* out, MatrixView<bf16> B, int64_t k0, int64_t K, int64_t n0, int64_t N) {
    alignas(64) bf16 beyond[TILE_ELEMS];
    const int64_t k_tiles = ceil_div(K, TILE_K), next = k_tiles * TILE_ELEMS;
    for (int64_t k = 0; k < k_tiles; k++)
        for (int64_t n = 0; n < N; n += 2 * TILE_COLS) {
            bf16* const tile = out + (n / TILE_COLS * k_tiles + k) * TILE_ELEMS;
            pack_two_tiles(tile, N - n > TILE_COLS ? tile + next : beyond, B.at(k0 + k * TILE_K, n0 + n), B.row_stride,
                           K - k * TILE_K, N - n);
        }
}
// Packs the K rows of B from k0 on, in the N columns from n0 on, into tiles, filled with zeros. The
// tiles of one column of tiles follow each other: tile (n, k) is at out + (n * k_tiles + k) *
// TILE_ELEMS.
inline void pack_tiles(bf16* out, MatrixView<bf16> B, int64_t k0, int64_t K, int64_t n0, int64_t N) {
    (B.row_stride == 1 ? pack_tiles_by_columns : pack_tiles_by_rows)(out, B, k0, K, n0, N);
}

// Transposes a matrix A whose columns are contiguous, so that its rows are: inp is A^T, with K rows
// that are inp_stride apart. Rows 0 to M - 1 of out, out_stride apart, are the columns of inp from
// m0 on, K values each. Zeros fill K up to whole tiles, and M up to out_rows, whole strips of 16
// rows. 32 rows of inp are read at a time, along the rows. PAST_CACHES: as for transpose_16().
template <bool PAST_CACHES>
void pack_rows(bf16* out, int64_t out_stride, const bf16* inp, int64_t inp_stride, int64_t m0, int64_t M,
               int64_t out_rows, int64_t K) {
    alignas(64) bf16 tiles[2][TILE_ELEMS];
    for (int64_t k = 0; k < K; k += TILE_K)
        for (int64_t m = 0; m < out_rows; m += 2 * TILE_ROWS) {
            pack_two_tiles(tiles[0], tiles[1], inp + k * inp_stride + m0 + m, inp_stride, K - k, M - m);
            for (int i = 0; i < 2 && m + i * TILE_ROWS < out_rows; i++)
                transpose_16<PAST_CACHES>((float*)(out + (m + i * TILE_ROWS) * out_stride + k), out_stride / 2,
                                          (const float*)tiles[i], TILE_COLS);
        }
    if (PAST_CACHES) streams_done();
}
