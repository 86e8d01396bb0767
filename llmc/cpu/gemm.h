// Matrix multiplication, the one kernel that takes nine tenths of a training step: C = A B, or C +=
// A B, in fp32; gemm_bf16.h has its brother.
//
// Three ideas, after Goto & van de Geijn 2008 (doi:10.1145/1356052.1356053) and BLIS (Van Zee & van
// de Geijn 2015):
//
// - Registers. A tile of MR x NR results stays in registers while k runs: NR is a few vectors, and
// each step loads these vectors of
//   a row of B once and multiplies them with MR single values of A. 2 MR NR FLOPs for MR + NR values loaded.
// - Caches. B is cut into blocks of KC x NC values, repacked as panels of NR columns that are read
// front to back. A block is used for
//   all rows of A before the next is packed, a panel of it for all rows in turn, so it comes out of the second-level
//   cache; the MR rows of A come out of the first. Where rows of B are contiguous the first MR rows of A multiply it
//   where it lies, and pack it on the way: copying costs nothing beside the arithmetic, and the memory's latency
//   little.
// - Threads. The blocks of C are independent; each is computed whole by one thread, k in the same
// order always, so the bits do not
//   depend on who computes what.
//
// A is read where it lies if its rows are contiguous in k (activations times weights); otherwise it
// is packed too (weight gradients). Work 2 M N K FLOPs.
#pragma once
#include "llmc/cpu/pack.h"

constexpr int GEMM_NV = 3, GEMM_NR = GEMM_NV * VEC_FLOATS;  // vectors and columns of a register tile
// rows: MR * NV accumulators + NV of B must fit the register file
constexpr int GEMM_MR = VEC_REGISTERS == 32 ? 8 : 4;

// KC x NC values of B are a block; of A, where it is packed, MC x KC. A in place: KC long, so that
// C is seldom read again. A packed: both fit the second-level cache.
struct Blocking {
    int64_t KC, NC, MC;
};
constexpr Blocking GEMM_IN_PLACE = {768, 2 * GEMM_NR, 0}, GEMM_PACKED = {256, 4 * GEMM_NR, 384};
constexpr size_t GEMM_SCRATCH_ELEMS =
    std::max(GEMM_IN_PLACE.KC * GEMM_IN_PLACE.NC, GEMM_PACKED.KC*(GEMM_PACKED.NC + GEMM_PACKED.MC));

// How many rows of B ahead are fetched while it is read where it lies: at 12 cycles a row, the
// latency of the memory.
constexpr int64_t GEMM_ROWS_AHEAD = 32;

// acc (MR x NV vectors) += A (MR x K) B (K x NV vectors). Element (i, k) of A is a[i][k * a_step];
// row k of B is at b + k * b_stride. With PACK what was read of B is also written to panel, row
// after row, for the tiles to come.
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

// Single values of A are multiplied as they lie if they are contiguous in k.
inline bool gemm_reads_in_place(MatrixView<float> A) { return A.col_stride == 1; }

// What becomes of a vector of finished sums, `count` of them, before it is stored at (row, column)
// of C.
struct NoEpilogue {
    VEC_INLINE vfloat operator()(int64_t, int64_t, vfloat sums, size_t) const { return sums; }
};

// Asks for rows x columns values, rows ld apart, that will be read once a product is done, before
// it begins.
template <class T>
VEC_INLINE void fetch_ahead(const T* from, int64_t ld, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j += 64 / sizeof(T)) __builtin_prefetch(from + i * ld + j);
}

// One block: C[m0..m1, n0..n1] for all k, the epilogue while a finished piece is still in the
// first-level cache.
template <class Epilogue>
inline void gemm_block(float* C, int64_t ldc, MatrixView<float> A, MatrixView<float> B, int64_t m0, int64_t m1,
                       int64_t n0, int64_t n1, int64_t K, bool add, Epilogue epilogue, const float* epilogue_reads) {
    constexpr int MR = GEMM_MR, NV = GEMM_NV, NR = GEMM_NR;
    const bool packed_a = !gemm_reads_in_place(A);
    const Blocking by = packed_a ? GEMM_PACKED : GEMM_IN_PLACE;
    float* b_block = thread_scratch(GEMM_SCRATCH_ELEMS);
    float* a_block = b_block + by.KC * by.NC;
    for (int64_t k0 = 0; k0 < K; k0 += by.KC) {
        const int64_t kc = std::min(by.KC, K - k0);
        const bool load_c = add || k0 > 0, last = k0 + kc == K;
        const float* read_later = add && k0 == 0 ? C : last ? epilogue_reads : nullptr;
        if (packed_a) pack_panels<MR>(a_block, A.transposed(), k0, kc, m0, m1 - m0);
        for (int64_t nb = n0; nb < n1; nb += by.NC) {
            const int64_t nc = std::min(by.NC, n1 - nb);
            const bool pack_on_the_way = B.col_stride == 1 && nc % NR == 0;
            if (!pack_on_the_way) pack_panels<NR>(b_block, B, k0, kc, nb, nc);
            for (int64_t m = m0; m < m1; m += MR) {
                const int64_t rows = std::min<int64_t>(MR, m1 - m);
                const float* a[MR];  // rows beyond the last repeat it; their results are dropped
                for (int i = 0; i < MR; i++)
                    a[i] = packed_a ? a_block + (m - m0) * kc + i : A.at(std::min(m + i, m1 - 1), k0);
                for (int64_t n = 0; n < nc; n += NR) {
                    if (read_later) fetch_ahead(read_later + m * ldc + nb + n, ldc, rows, NR);
                    vfloat acc[MR][NV] = {};
                    if (pack_on_the_way && m == m0)
                        multiply_tile<MR, NV, true>(acc, a, packed_a ? MR : 1, B.at(k0, nb + n), B.row_stride, kc,
                                                    b_block + n * kc);
                    else multiply_tile<MR, NV>(acc, a, packed_a ? MR : 1, b_block + n * kc, NR, kc);
                    float* c = C + m * ldc + nb + n;
                    const int64_t columns = std::min<int64_t>(NR, nc - n);
                    if (rows == MR && columns == NR) {
                        if (load_c)
                            for (int i = 0; i < MR; i++)
                                for (int j = 0; j < NV; j++) acc[i][j] += load(c + i * ldc + j * VEC_FLOATS);
                        for (int i = 0; i < MR; i++)
                            for (int j = 0; j < NV; j++) store(c + i * ldc + j * VEC_FLOATS, acc[i][j]);
                    } else {
                        float tile[MR][NR];
                        memcpy(tile, acc, sizeof(tile));
                        for (int64_t i = 0; i < rows; i++)
                            for (int64_t j = 0; j < columns; j++)
                                c[i * ldc + j] = load_c ? tile[i][j] + c[i * ldc + j] : tile[i][j];
                    }
                    if (std::is_same<Epilogue, NoEpilogue>::value || !last) continue;
                    for (int64_t i = 0; i < rows; i++)
                        for_each_vector(columns, [&](size_t j, size_t count) {
                            store_some(c + i * ldc + j,
                                       epilogue(m + i, nb + n + j, load_some(c + i * ldc + j, count), count), count);
                        });
                }
            }
        }
    }
}

// Whether so many pieces of work of one size leave threads idle: less than two for each, or an
// eighth of them missing in the last round.
inline bool too_few_pieces(int64_t pieces) {
    const int64_t rounds = ceil_div(pieces, device.threads);
    return pieces < 2 * device.threads || 8 * (rounds * device.threads - pieces) > pieces;
}

// C (M, N), rows ldc apart, = A (M, K) B (K, N), or += if add; then the epilogue. C must not
// overlap A or B. What the epilogue reads at the places of C, if it is a matrix like C, may be
// given: it is fetched while the product runs.
template <class Epilogue = NoEpilogue>
inline void gemm(float* C, int64_t ldc, MatrixView<float> A, MatrixView<float> B, int64_t M, int64_t N, int64_t K,
                 bool add, Epilogue epilogue = {}, const float* epilogue_reads = nullptr) {
    // A read in place: blocks span all rows, so that B is packed once. A packed: blocks span all
    // columns, so that A is. Where that makes too few blocks the long side is cut as well.
    int64_t mc = M, nc = N;
    const bool in_place = gemm_reads_in_place(A);
    if (in_place) nc = GEMM_IN_PLACE.NC;
    else mc = GEMM_PACKED.MC;
    auto blocks = [&] { return ceil_div(M, mc) * ceil_div(N, nc); };
    while (too_few_pieces(blocks()) && in_place && mc >= 16 * GEMM_MR) mc = round_up(mc / 2, GEMM_MR);
    while (too_few_pieces(blocks()) && !in_place && nc >= 4 * GEMM_NR) nc = round_up(nc / 2, GEMM_NR);
    const int64_t n_blocks = ceil_div(N, nc);
    parallel_for(blocks(), [&](int64_t block) {
        int64_t m = block / n_blocks * mc, n = block % n_blocks * nc;
        gemm_block(C, ldc, A, B, m, std::min(m + mc, M), n, std::min(n + nc, N), K, add, epilogue, epilogue_reads);
    });
}
