// Matrix multiplication of bf16 with sums in fp32: C = A B, or C += A B, on the CPU's matrix unit (matrix_unit.h).
//
// A block of B, KC x NC, is packed into tiles and stays in the second-level cache while all rows of A pass it, 32 at a time, which stay in the first: B is packed
// once, whatever the number of rows. A is read where it lies, since its rows are contiguous in k (activations times weights); where they
// are not (weight gradients, A = Dout^T), A is first transposed as a whole, by all threads, into device.transposed.
// Sums over more than KC stay in fp32 in the thread's scratch memory until the last block of k; what is stored was rounded once.
//
// The blocks of C are independent; each is computed whole by one thread, k in the same order always, so the bits do not depend on who
// computes what. Work 2 M N K FLOPs; packing moves each value of B (and of A, if transposed) once: 2 bytes read, 2 written.
#pragma once
#include "llmc/cpu/gemm.h"
#include "llmc/cpu/matrix_unit.h"

// AMX multiplies 32 rows of A at once, which stay in the first-level cache if they are no longer than KC_AMX; AVX-512 takes 8, which may be longer.
constexpr int64_t BF16_KC = 768, BF16_KC_AMX = 384, BF16_NC = 192, BF16_MC = 1024, BF16_STRIPS = 2, BF16_ROWS = BF16_STRIPS * TILE_ROWS;
constexpr size_t BF16_EDGE_STRIDE = BF16_KC + TILE_K;  // not a power of two: rows in different sets of the cache
constexpr size_t GEMM_BF16_SCRATCH_ELEMS = BF16_KC * BF16_NC / 2 + BF16_MC * BF16_NC + BF16_ROWS * BF16_EDGE_STRIDE / 2;

// Elements of device.transposed for an A of (M, K) whose columns are contiguous.
inline int64_t transposed_stride(int64_t K) { return round_up(K, TILE_K) + TILE_K; }
inline int64_t gemm_transposed_elems(int64_t M, int64_t K) { return round_up(M, BF16_ROWS) * transposed_stride(K); }

// Rows of A, contiguous in k. padded: there are zeros up to whole tiles, and whole strips of rows.
struct RowsOfA {
    const bf16* data;
    int64_t stride;
    bool padded;
};

// One block: C[m0..m1, n0..n1] for all k, n1 - n0 <= NC, m1 - m0 <= MC.
template <class floatC, class Epilogue>
inline void gemm_block(floatC* C, int64_t ldc, RowsOfA A, MatrixView<bf16> B, int64_t m0, int64_t m1, int64_t n0, int64_t n1, int64_t K, bool add, Epilogue epilogue, const bf16* epilogue_reads) {
    float* sums = thread_scratch(GEMM_BF16_SCRATCH_ELEMS);
    bf16 *tiles = (bf16*)(sums + BF16_MC * BF16_NC), *edge = tiles + BF16_KC * BF16_NC;
    const int64_t longest = device.unit == UNIT_AMX || device.unit == UNIT_AMX_TWIN ? BF16_KC_AMX : BF16_KC;
    const int64_t k_blocks = (K + longest - 1) / longest, kc = round_up((K + k_blocks - 1) / k_blocks, TILE_K), columns = n1 - n0;
    for (int64_t k0 = 0; k0 < K; k0 += kc) {
        const int64_t k_elems = std::min(kc, K - k0), k_tiles = (k_elems + TILE_K - 1) / TILE_K;
        const bool last = k0 + kc >= K;
        pack_tiles(tiles, B, k0, k_elems, n0, columns);
        for (int64_t m = m0; m < m1; m += BF16_ROWS) {
            const int64_t rows = std::min(BF16_ROWS, m1 - m);
            const bf16* a = A.data + m * A.stride + k0;
            int64_t a_stride = A.stride;
            if (!A.padded && (rows < BF16_ROWS || k_elems % TILE_K)) {
                copy_padded(edge, BF16_EDGE_STRIDE, round_up(rows, TILE_ROWS), k_tiles * TILE_K, a, A.stride, rows, k_elems);
                a = edge, a_stride = BF16_EDGE_STRIDE;
            }
            if (last && epilogue_reads) fetch_ahead(epilogue_reads + m * ldc + n0, ldc, rows, columns);
            float* c = sums + (k_blocks > 1 ? m - m0 : 0) * BF16_NC;
            multiply_tiles({c, BF16_NC, a, a_stride, (rows + TILE_ROWS - 1) / TILE_ROWS, tiles, k_tiles * TILE_ELEMS, (columns + TILE_COLS - 1) / TILE_COLS, k_tiles, k0 > 0});
            for (int64_t i = 0; i < rows && last; i++) {
                floatC* out = C + (m + i) * ldc + n0;
                for_each_vector(columns, [&](size_t j, size_t count) {
                    vfloat v = load_some(c + i * BF16_NC + j, count);
                    if (add) v += load_some(out + j, count);
                    store_some(out + j, epilogue(m + i, n0 + j, v, count), count);
                });
            }
        }
    }
}

// C (M, N), rows ldc apart, fp32 or bf16, = A (M, K) B (K, N), or += if add; the epilogue makes of the sums what is stored; epilogue_reads as in
// gemm.h. C must not overlap A or B. Of each of A and B rows or columns are contiguous.
template <class floatC, class Epilogue = NoEpilogue>
inline void gemm(floatC* C, int64_t ldc, MatrixView<bf16> A, MatrixView<bf16> B, int64_t M, int64_t N, int64_t K, bool add, Epilogue epilogue = {}, const bf16* epilogue_reads = nullptr) {
    RowsOfA rows{A.data, A.row_stride, false};
    if (A.col_stride != 1) {
        const int64_t stride = transposed_stride(K);
        if (gemm_transposed_elems(M, K) > (int64_t)device.transposed_elems) runtime_failure("internal: a transposed matrix of %lld elements does not fit the %zu planned", (long long)gemm_transposed_elems(M, K), device.transposed_elems);
        parallel_ranges(round_up(M, BF16_ROWS), BF16_ROWS, [&](int64_t begin, int64_t) { pack_rows(device.transposed + begin * stride, stride, A.data, A.col_stride, begin, std::min(BF16_ROWS, M - begin), BF16_ROWS, K); });
        rows = {device.transposed, stride, true};
    }
    int64_t mc = BF16_MC;
    const int64_t n_blocks = (N + BF16_NC - 1) / BF16_NC;
    while (too_few_pieces((M + mc - 1) / mc * n_blocks) && mc >= 4 * BF16_ROWS) mc /= 2;
    parallel_for((M + mc - 1) / mc * n_blocks, [&](int64_t block) {
        const int64_t m = block / n_blocks * mc, n = block % n_blocks * BF16_NC;
        gemm_block(C, ldc, rows, B, m, std::min(m + mc, M), n, std::min(n + BF16_NC, N), K, add, epilogue, epilogue_reads);
    });
}
