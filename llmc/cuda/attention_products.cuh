// Products of tiles on tensor cores, for attention. A warp has M fragments of operand A, 16 M rows,
// and multiplies all of them by each fragment of operand B that it loads: 2 M mma per ldmatrix.
// Shared memory delivers 128 bytes per clock, so an ldmatrix takes 4 clocks of it. In 4 clocks the
// four tensor cores of an A100 do 2 mma, those of an H100 4. So with M 1, loading B takes as long
// as multiplying on an A100, and twice as long on an H100; with M 2 half as long, and as long.
#pragma once
#include <type_traits>
#include "llmc/cuda/attention_tiles.cuh"

// Operand A of multiply_transposed: 16 M rows of a tile, from `row` on. load() is for channels 16k
// .. 16k + 15: lanes 0-15 pass the rows' chunk 2k, lanes 16-31 their chunk 2k + 1.
template <int HS, int M>
struct RowsInShared {
    Tile<HS> tile;
    int row;
    __device__ void load(uint32_t (&a)[M][4], int k) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < M; m++) ldmatrix(a[m], tile.from_row(row + m * 16).at(lane % 16, 2 * k + lane / 16));
    }
};
// Operand A that is loaded once, into M HS / 4 registers.
template <int HS, int M>
struct RowsInRegisters {
    uint32_t fragments[HS / 16][M][4];
    __device__ RowsInRegisters(RowsInShared<HS, M> rows) {
#pragma unroll
        for (int k = 0; k < HS / 16; k++) rows.load(fragments[k], k);
    }
    __device__ void load(uint32_t (&a)[M][4], int k) const {
#pragma unroll
        for (int m = 0; m < M; m++)
            for (int i = 0; i < 4; i++) a[m][i] = fragments[k][m][i];
    }
};
// Operand A in registers, where they suffice.
template <int HS, int M>
using KeptRows = std::conditional_t<HS <= 128, RowsInRegisters<HS, M>, RowsInShared<HS, M>>;

// c (16 M x N) = a times rows 0 .. N - 1 of b, transposed: 32 M HS N FLOPs of one warp. c[m][n] is
// the C fragment of rows 16m .. 16m + 15, columns 8n .. 8n + 7. Row j of b is column j of the
// operand B, and contiguous along the sum; so ldmatrix, without transposing, loads B fragments:
// fb[0], fb[1] of columns 16n .. 16n + 7, fb[2], fb[3] of the 8 columns after them.
template <int N, int M, int HS, class Rows>
__device__ inline void multiply_transposed(float (&c)[M][N / 8][4], const Rows& a, Tile<HS> b) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N / 8; n++)
            for (int i = 0; i < 4; i++) c[m][n][i] = 0;
#pragma unroll(HS <= 128 ? HS / 16 : 4)
    for (int k = 0; k < HS / 16; k++) {
        uint32_t fa[M][4], fb[4];
        a.load(fa, k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            ldmatrix(fb, b.from_row(n * 16).at(lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(c[m][2 * n], fa[m], fb[0], fb[1]);
                mma(c[m][2 * n + 1], fa[m], fb[2], fb[3]);
            }
        }
    }
}

// c (16 M x HS) += p (16 M x N), rounded to halfX, times rows 0 .. N - 1 of b: 32 M HS N FLOPs. p
// is a result of multiply_transposed: p[m][2j], p[m][2j + 1] are two C fragments side by side,
// which are the A fragment of columns 16j .. 16j + 15 (mma.cuh). Row j of b is row j of the operand
// B, so ldmatrix transposes.
template <int N, int M, int HS>
__device__ inline void multiply(float (&c)[M][HS / 8][4], const float (&p)[M][N / 8][4], Tile<HS> b) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
        uint32_t fa[M][4], fb[4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            const float(&left)[4] = p[m][2 * j], (&right)[4] = p[m][2 * j + 1];
            fa[m][0] = pack_pair<halfX>(left[0], left[1]), fa[m][1] = pack_pair<halfX>(left[2], left[3]);
            fa[m][2] = pack_pair<halfX>(right[0], right[1]), fa[m][3] = pack_pair<halfX>(right[2], right[3]);
        }
#pragma unroll
        for (int n = 0; n < HS / 16; n++) {
            ldmatrix_transposed(fb, b.from_row(j * 16).at(lane % 16, 2 * n + lane / 16));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(c[m][2 * n], fa[m], fb[0], fb[1]);
                mma(c[m][2 * n + 1], fa[m], fb[2], fb[3]);
            }
        }
    }
}

// Causality: a score becomes -infinity, and its probability 0, where hidden(row, column). Rows
// count from first_row on, columns from first_column on.
template <int M, int N8, class Hidden>
__device__ inline void mask(float (&s)[M][N8][4], int first_row, int first_column, Hidden hidden) {
    const int lane = threadIdx.x % 32, row = first_row + lane / 4, column = first_column + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N8; n++)
            for (int i = 0; i < 4; i++)
                if (hidden(row + m * 16 + i / 2 * 8, column + n * 8 + i % 2)) s[m][n][i] = -INFINITY;
}

// Masks the keys that a warp's queries do not see: those after a query, and those a window or more
// before it. A tile that no edge crosses is left as it is.
template <int M, int N8>
__device__ inline void mask_keys(float (&s)[M][N8][4], int first_query, int first_key, int window) {
    if (first_key + 8 * N8 - 1 > first_query)
        mask(s, first_query, first_key, [](int query, int key) { return key > query; });
    if (first_key + window < first_query + 16 * M)
        mask(s, first_query, first_key, [&](int query, int key) { return key + window <= query; });
}
