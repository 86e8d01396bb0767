// Matrix multiplication, nine tenths of a training step: C = A B, or C += A B, in fp32 (in bf16:
// gemm_bf16.h; of few rows: gemm_few_rows.h). 2 M N K FLOPs.
//
//                              N
//                          NC
//                 +---+---------+----+
//                 |   |  |   |  |    |
//              KC |   |  |   |  |    |    B: a block, packed as panels of NR columns
//                 |   |  |   |  |    |
//                 +---+---------+----+
//                 |                  |
//                 +------------------+
//        KC
//      +----+--+  +---+---------+----+
//      |    |  |  |   |         |    |
//   MR |####|  |  |   |  |###|  |    |    C: a tile of MR x NR sums, in registers
//      |    |  |  |   |         |    |
//      +----+--+  +---+---------+----+
//          A
//
// Three ideas, after Goto & van de Geijn 2008 (doi:10.1145/1356052.1356053) and BLIS (Van Zee &
// van de Geijn 2015):
//
// Registers: a tile of MR x NR sums stays in registers while k runs over KC. NR is a few vectors.
// Each k takes these vectors of one row of B, and multiplies them with MR single values of A: 2 MR
// NR FLOPs for MR + NR values loaded.
//
// Caches: a block of KC x NC values of B is packed into panels of NR columns, which are read front
// to back. All rows of A pass it before the next block is packed, MR rows at a time. These MR rows
// stay in the first-level cache while all panels of the block are read from the second-level cache.
// Where the rows of B are contiguous, no separate pass packs the block: the first MR rows of A
// multiply B where it lies, and store the panels on the way. That hides the copy behind arithmetic.
// Meanwhile the block that comes next is fetched from memory to the second-level cache, a line now
// and then.
//
// Threads: the blocks of C are independent. Each is computed whole by one thread, with k in the
// same order always, so the bits do not depend on the number of threads.
//
// A needs no packing if its rows are contiguous along k, as those of activations are in the forward
// pass. Otherwise, as in the gradient of a weight, it is packed too.
#pragma once
#include <functional>
#include "llmc/cpu/block_ahead.h"

constexpr int GEMM_NV = 3, GEMM_NR = GEMM_NV * VEC_FLOATS;  // vectors and columns of a register tile
// Rows of a register tile: MR * NV sums and NV vectors of B must fit the register file.
constexpr int GEMM_MR = VEC_REGISTERS == 32 ? 8 : 4;

// A block is KC x NC values of B, and MC x KC values of A where A is packed. With A in place, KC is
// long, so that sums of C are seldom stored and loaded again. With A packed, both blocks together
// fit the second-level cache.
struct Blocking {
    int64_t KC, NC, MC;
};
constexpr Blocking GEMM_IN_PLACE = {768, 2 * GEMM_NR, 0}, GEMM_PACKED = {256, 4 * GEMM_NR, 384};
// For a second-level cache of 2 MiB or more, with narrower vectors, whose panels are half as wide,
// of 512 KiB: all of A, which comes from farther, is read half as often.
constexpr int64_t GEMM_LARGE_FROM = VEC_BYTES == 64 ? 2 << 20 : 512 << 10;
constexpr Blocking GEMM_IN_PLACE_LARGE = {GEMM_IN_PLACE.KC, 2 * GEMM_IN_PLACE.NC, 0};
constexpr size_t GEMM_SCRATCH_ELEMS =
    std::max(GEMM_IN_PLACE_LARGE.KC * GEMM_IN_PLACE_LARGE.NC, GEMM_PACKED.KC*(GEMM_PACKED.NC + GEMM_PACKED.MC));
inline const Blocking& gemm_in_place() {
    return second_level_bytes() >= GEMM_LARGE_FROM ? GEMM_IN_PLACE_LARGE : GEMM_IN_PLACE;
}

// How many rows ahead B is prefetched while it is read where it lies. A row takes 12 cycles, so 32
// rows take about as long as a load from memory.
constexpr int64_t GEMM_ROWS_AHEAD = 32;

// Of k, after which some lines are fetched that are needed later. To fetch the block of B that is
// packed next gains nothing with narrower vectors, which multiply for longer.
constexpr int64_t GEMM_STEP = 32;
constexpr bool FETCHES_NEXT_BLOCK = VEC_BYTES == 64;

// acc (MR x NV vectors) += A (MR x K) B (K x NV vectors). Element (i, k) of A is a[i][k * a_step];
// row k of B is at b + k * b_stride. With PACK the rows of B that were read are also written to
// panel, for the other rows of A.
template <int MR, int NV, bool PACK = false>
VEC_INLINE void multiply_tile(vfloat (&acc)[MR][NV], const float* const (&a)[MR], int64_t a_step, const float* b,
                              int64_t b_stride, int64_t K, float* panel = nullptr) {
    int64_t ak = 0;
#pragma GCC unroll 4
    for (int64_t k = 0; k < K; k++) {
        vfloat bv[NV];
#pragma GCC unroll 8
        for (int j = 0; j < NV; j++) bv[j] = load(b + j * VEC_FLOATS);
        if constexpr (PACK) {
#pragma GCC unroll 8
            for (int j = 0; j < NV; j++) {
                store(panel + j * VEC_FLOATS, bv[j]);
                __builtin_prefetch(b + GEMM_ROWS_AHEAD * b_stride + j * VEC_FLOATS);
            }
            panel += NV * VEC_FLOATS;
        }
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            vfloat ai = broadcast(a[i][ak]);
#pragma GCC unroll 8
            for (int j = 0; j < NV; j++) acc[i][j] += ai * bv[j];
        }
        ak += a_step;
        b += b_stride;
    }
}

// Whether A needs no packing: its rows are contiguous along k.
inline bool gemm_reads_in_place(MatrixView<float> A) { return A.col_stride == 1; }

// Finished sums of rows x columns of C, the first at (row, column), and `stride` from row to row.
struct FinishedSums {
    const float* sums;
    int64_t stride, row, rows, column, columns;
};
// An epilogue is called with finished sums while they are in the first-level cache, and stores in C
// what becomes of them.
typedef std::function<void(const FinishedSums&)> Epilogue;

// The epilogue that stores function(row, column, sums, count), called with a vector of `count`
// sums.
template <class floatC, class Function>
Epilogue epilogue_of(floatC* C, int64_t ldc, Function function) {
    return [=](const FinishedSums& of) {
        const Function finish = function;  // a copy, which stays in registers: no store can change it
        const auto finish_some = [&](int64_t i, int64_t j, size_t count) {
            const int64_t row = of.row + i, column = of.column + j;
            store_some(C + row * ldc + column,
                       finish(row, column, load_some(of.sums + i * of.stride + j, count), count), count);
        };
        constexpr int64_t LINE = std::max<int64_t>(VEC_FLOATS, 64 / sizeof(floatC));  // a cache line of each row
        int64_t begin = 0;
        for (; begin + LINE <= of.columns; begin += LINE)
            for (int64_t i = 0; i < of.rows; i++)
#pragma GCC unroll 16
                for (int64_t j = 0; j < LINE; j += VEC_FLOATS) finish_some(i, begin + j, VEC_FLOATS);
        for (int64_t i = 0; begin < of.columns && i < of.rows; i++)
            for_each_vector(of.columns - begin, [&](size_t j, size_t count) { finish_some(i, begin + j, count); });
    };
}

// A register tile of C, at c, rows ldc apart, = A B, or += if add: as multiply_tile(), of which the
// first `rows` rows and `columns` columns are stored. Fetches some of what is ahead.
template <int MR, int NV, bool PACK>
VEC_INLINE void compute_tile(float* c, int64_t ldc, const float* const (&a)[MR], int64_t a_step, const float* b,
                             int64_t b_stride, int64_t K, float* panel, int64_t rows, int64_t columns, bool add,
                             BlockAhead& ahead) {
    vfloat acc[MR][NV] = {};
    const bool whole = !FETCHES_NEXT_BLOCK && (PACK || ahead.left == 0);
    if (whole) multiply_tile<MR, NV, PACK>(acc, a, a_step, b, b_stride, K, panel);
    for (int64_t k = 0; k < K && !whole; k += GEMM_STEP) {
        ahead.fetch_some();
        const float* from[MR];
        for (int i = 0; i < MR; i++) from[i] = a[i] + k * a_step;
        multiply_tile<MR, NV, PACK>(acc, from, a_step, b + k * b_stride, b_stride, std::min(GEMM_STEP, K - k),
                                    PACK ? panel + k * NV * VEC_FLOATS : nullptr);
    }
    if (rows == MR && columns == NV * VEC_FLOATS) {
        if (add)
            for (int i = 0; i < MR; i++)
                for (int j = 0; j < NV; j++) acc[i][j] += load(c + i * ldc + j * VEC_FLOATS);
        for (int i = 0; i < MR; i++)
            for (int j = 0; j < NV; j++) store(c + i * ldc + j * VEC_FLOATS, acc[i][j]);
    } else {
        float tile[MR][NV * VEC_FLOATS];
        memcpy(tile, acc, sizeof(tile));
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++) c[i * ldc + j] = add ? tile[i][j] + c[i * ldc + j] : tile[i][j];
    }
}

// Columns from begin on, before end.
struct Columns {
    int64_t begin, end;
};
// What gemm_fp32_block() packs after the block of B at (k, n): more columns, more of k, or the
// first of the columns `next`. The tiles of this block have so many steps.
inline BlockAhead block_after(MatrixView<float> B, const Blocking& by, int64_t k, int64_t K, int64_t n, Columns of,
                              Columns next, int64_t steps) {
    if (!FETCHES_NEXT_BLOCK) return BlockAhead();
    if (n + by.NC < of.end) n += by.NC;
    else if (n = of.begin, k + by.KC < K) k += by.KC;
    else k = 0, n = next.begin, of = next;
    return BlockAhead(B, k, std::min(by.KC, K - k), n, std::min(by.NC, of.end - n), steps);
}

// Computes one block of C: rows m0 to m1 - 1, the columns `of`, for all k. The epilogue is applied
// to each register tile after its last k, while it is still in the first-level cache. This thread
// may compute the columns `next` after it. weights: A comes from memory, once, so its next rows are
// what is fetched ahead. IN_PLACE: whether gemm_reads_in_place(A). The compiler knows it, so the
// step along k is a constant, and one register counts it for all rows of A.
template <bool IN_PLACE>
void gemm_fp32_block(float* C, int64_t ldc, MatrixView<float> A, MatrixView<float> B, int64_t m0, int64_t m1,
                     Columns of, Columns next, int64_t K, bool add, const Epilogue& epilogue,
                     const float* epilogue_reads, bool weights = false) {
    constexpr int MR = GEMM_MR, NV = GEMM_NV, NR = GEMM_NR, step = IN_PLACE ? 1 : MR;
    const Blocking by = IN_PLACE ? gemm_in_place() : GEMM_PACKED;
    float* b_block = thread_scratch(GEMM_SCRATCH_ELEMS);
    float* a_block = b_block + by.KC * by.NC;
    for (int64_t k0 = 0; k0 < K; k0 += by.KC) {
        const int64_t kc = std::min(by.KC, K - k0);
        const bool load_c = add || k0 > 0, last = k0 + kc == K;
        const float* read_later = add && k0 == 0 ? C : last ? epilogue_reads : nullptr;
        if (!IN_PLACE) pack_panels<MR>(a_block, A.transposed(), k0, kc, m0, m1 - m0);
        for (int64_t nb = of.begin; nb < of.end; nb += by.NC) {
            const int64_t nc = std::min(by.NC, of.end - nb);
            const bool pack_on_the_way = B.col_stride == 1 && nc % NR == 0;
            const int64_t steps = ceil_div(m1 - m0, MR) * ceil_div(nc, NR) * ceil_div(kc, GEMM_STEP);
            BlockAhead ahead = weights ? BlockAhead() : block_after(B, by, k0, K, nb, of, next, steps);
            if (!pack_on_the_way) pack_panels<NR>(b_block, B, k0, kc, nb, nc);
            for (int64_t m = m0; m < m1; m += MR) {
                const int64_t rows = std::min<int64_t>(MR, m1 - m);
                if (weights)
                    ahead = BlockAhead(A, m + MR, std::clamp<int64_t>(m1 - m - MR, 0, MR), k0, kc,
                                       ceil_div(nc, NR) * ceil_div(kc, GEMM_STEP));
                const float* a[MR];  // beyond the last row: the last row again, whose results are not stored
                for (int i = 0; i < MR; i++)
                    a[i] = IN_PLACE ? A.at(std::min(m + i, m1 - 1), k0) : a_block + (m - m0) * kc + i;
                for (int64_t n = 0; n < nc; n += NR) {
                    const int64_t columns = std::min<int64_t>(NR, nc - n);
                    if (read_later) fetch_ahead(read_later + m * ldc + nb + n, ldc, rows, NR);
                    float *c = C + m * ldc + nb + n, *panel = b_block + n * kc;
                    const int64_t vectors = ceil_div(columns, VEC_FLOATS);
                    if (pack_on_the_way && m == m0)
                        compute_tile<MR, NV, true>(c, ldc, a, step, B.at(k0, nb + n), B.row_stride, kc, panel, rows,
                                                   columns, load_c, ahead);
                    else if (vectors == 1)
                        compute_tile<MR, 1, false>(c, ldc, a, step, panel, NR, kc, nullptr, rows, columns, load_c,
                                                   ahead);
                    else if (vectors == 2)
                        compute_tile<MR, 2, false>(c, ldc, a, step, panel, NR, kc, nullptr, rows, columns, load_c,
                                                   ahead);
                    else
                        compute_tile<MR, NV, false>(c, ldc, a, step, panel, NR, kc, nullptr, rows, columns, load_c,
                                                    ahead);
                    if (last && epilogue) epilogue({c, ldc, m, rows, nb + n, columns});
                }
            }
        }
    }
}

// Whether so many pieces of equal work leave threads idle: fewer than two pieces per thread, or a
// last round that lacks more than an eighth of the number of pieces.
inline bool too_few_pieces(int64_t pieces) {
    const int64_t rounds = ceil_div(pieces, device.threads);
    return pieces < 2 * device.threads || 8 * (rounds * device.threads - pieces) > pieces;
}

// C (M, N), rows ldc apart, = A (M, K) B (K, N), or += if add; then the epilogue. C must not
// overlap A or B. If the epilogue reads a matrix of the shape and strides of C, it can be given as
// epilogue_reads, and is prefetched while the product runs.
inline void gemm_fp32(float* C, int64_t ldc, MatrixView<float> A, MatrixView<float> B, int64_t M, int64_t N, int64_t K,
                      bool add, const Epilogue& epilogue = nullptr, const float* epilogue_reads = nullptr) {
    // With A in place, a block has all rows of C, so that B is packed once; if there are too few
    // blocks then, they are made narrower, and then the rows are cut too. With A packed, each block
    // packs its part of A and of B: if there are too few, the longer side is cut, for a square has
    // the least to pack.
    int64_t mc = M, nc = N;
    const bool in_place = gemm_reads_in_place(A);
    if (in_place) nc = gemm_in_place().NC;
    else mc = round_up(ceil_div(M, ceil_div(M, GEMM_PACKED.MC)), GEMM_MR);
    const auto too_few = [&] {
        const int64_t pieces = ceil_div(M, mc) * ceil_div(N, nc);
        return too_few_pieces(pieces) || (N % nc != 0 && pieces < 4 * device.threads);  // the last ones are narrow
    };
    if (too_few() && in_place) nc = GEMM_IN_PLACE.NC;
    while (too_few() && in_place && mc >= 16 * GEMM_MR) mc = round_up(mc / 2, GEMM_MR);
    while (too_few() && !in_place && std::max(mc, nc) >= 2 * GEMM_NR) {
        if (mc >= nc) mc = round_up(mc / 2, GEMM_MR);
        else if (nc >= 4 * GEMM_NR) nc = round_up(nc / 2, GEMM_NR);
        else break;
    }
    const int64_t n_blocks = ceil_div(N, nc), blocks = ceil_div(M, mc) * n_blocks;
    const auto columns = [&](int64_t block) {
        const int64_t begin = block % n_blocks * nc;
        return block < blocks ? Columns{begin, std::min(begin + nc, N)} : Columns{0, 0};
    };
    parallel_for(blocks, [&](int64_t block) {
        const int64_t m = block / n_blocks * mc;
        const auto compute = in_place ? gemm_fp32_block<true> : gemm_fp32_block<false>;
        compute(C, ldc, A, B, m, std::min(m + mc, M), columns(block), columns(block + 1), K, add, epilogue,
                epilogue_reads, false);
    });
}
