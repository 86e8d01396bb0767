// Matrix multiplication of bf16 with sums in fp32: C = A B, or C += A B, on the CPU's matrix unit
// (matrix_unit.h). 2 M N K FLOPs.
//
//                     nc
//                 +--------+
//              kc | B      |  packed into tiles (pack.h), stays in the second-level cache
//                 +--------+
//        kc
//     +------+    +--------+
//     +------+    +--------+
//     | A    | 32 | C      |  32 rows at a time, which stay in the first-level cache
//     +------+    +--------+
//     +------+    +--------+
//
// A block of B, kc x nc, is packed once, and all rows of A pass it. The rows of A must be
// contiguous along k, as those of activations are in the forward pass. Where its columns are (in
// the gradient of a weight, A = Dout^T), A is first transposed as a whole, by all threads, into
// device.transposed. Where K is larger than kc, the sums of a block of C stay in fp32 in the
// thread's scratch memory until the last block of k, so that they are rounded once.
//
// fp32 can be multiplied here, too, each value as two bf16 (split_fp32.h; --precision fp32x3). A is
// split as a whole, into device.transposed, and B where it is packed.
//
// The blocks of C are independent. Each is computed whole by one thread, with k in the same order
// always, so the bits do not depend on the number of threads. Packing moves each value of B, and of
// A if it is transposed, once: 2 bytes read, 2 written.
#pragma once
#include "llmc/cpu/gemm.h"
#include "llmc/cpu/matrix_unit.h"
#include "llmc/cpu/split_fp32.h"

constexpr int64_t BF16_STRIPS = 2, BF16_ROWS = BF16_STRIPS * TILE_ROWS;

// Parts of a value that are multiplied: bf16 as it is, fp32 as two bf16 (split_fp32.h).
template <class floatX>
constexpr int64_t BF16_PARTS = sizeof(floatX) / sizeof(bf16);

// How a product is cut. Blocks of C have at most mc x nc elements, and are computed over kc of k at
// a time, of which the unit takes `inner` in one call, for `panel` columns.
struct Bf16Blocking {
    int64_t mc, nc, kc, inner, panel;
};
inline bool unit_is_amx() { return device.unit == UNIT_AMX || device.unit == UNIT_AMX_TWIN; }
constexpr int64_t BF16_INNER_ELEMS = 768;         // the largest inner
constexpr int64_t BF16_TILES_ELEMS = 384 * 1024;  // the largest kc * nc
constexpr int64_t BF16_SUMS_ELEMS = 384 * 1024;   // the largest mc * nc, or 32 * nc where no sums are kept

// AMX multiplies 16 times as fast as FMA units do, so what counts is memory. A block of B takes 768
// KiB of a second-level cache of 2 MiB. With 384 of k in one call, 32 rows of A take 24 KiB: the
// first-level cache keeps them, since tiles of B and C are loaded as used once (matrix_unit.h); of
// fp32, in two parts, 192. Weights as A come from memory while they are multiplied, and 256 of k,
// 16 KiB, leave room for the lines that arrive. AVX-512 and the portable code multiply slower, and
// in smaller blocks.
template <class floatX>
Bf16Blocking bf16_blocking(int64_t K, bool weights = false) {
    constexpr int64_t AMX_KC = 1024, ALL = int64_t(1) << 40, PARTS = BF16_PARTS<floatX>;
    if (!unit_is_amx()) return {1024, 192, BF16_INNER_ELEMS / PARTS, BF16_INNER_ELEMS / PARTS, 192};
    const int64_t inner = PARTS == 2 ? 192 : weights ? 256 : 384;
    if (K > AMX_KC) return {1024, BF16_TILES_ELEMS / PARTS / AMX_KC, AMX_KC, inner, 32};
    const int64_t nc = BF16_TILES_ELEMS / PARTS / round_up(K, TILE_K) / 32 * 32;
    return {ALL, std::min<int64_t>(nc, 1536), AMX_KC, inner, 32};  // no sums are kept
}

// Rows of A in one piece of work where it is transposed. More are faster, for they are longer runs
// of A^T: of 1024 x 3072 values 1536 rows take 0.33 ms on two threads, 256 take 0.77.
constexpr int64_t BF16_TRANSPOSED_LEAST = 256, BF16_TRANSPOSED_MOST = 1536;
// Of the copy of rows of A; no power of two, for the cache's sets.
constexpr int64_t BF16_COPY_STRIDE = BF16_INNER_ELEMS + TILE_K;
constexpr size_t GEMM_BF16_SCRATCH_ELEMS = BF16_TILES_ELEMS / 2 + BF16_SUMS_ELEMS + BF16_ROWS * BF16_COPY_STRIDE / 2;

// How A (M, K) lies in device.transposed, where its columns are contiguous: the distance of its
// rows, and the elements of all. In fp32 low parts follow high parts.
inline int64_t transposed_stride(int64_t K) { return round_up(K, TILE_K) + TILE_K; }
inline int64_t gemm_transposed_elems(int64_t M, int64_t K) { return round_up(M, BF16_ROWS) * transposed_stride(K); }

// Rows of A, contiguous along k. padded: zeros follow up to whole tiles, and up to whole strips.
// weights: they come from memory, once, so the next ones are prefetched. low: of fp32, split.
struct RowsOfA {
    const bf16* data;
    int64_t stride;
    bool padded, weights;
    int64_t low = 0;
};

// Whether the first-level cache holds 32 rows of `inner` values, this far apart, beside each other:
// a cache of 64 sets has those whose distance is a multiple of 2 KiB in one or two of them.
inline bool rows_fit_cache(int64_t stride) { return stride * sizeof(bf16) % 2048 != 0; }

// Returns `rows` rows of A from m on, k_elems values from k0 on, as the unit wants them: where they
// lie, or in `copy`, filled with zeros up to whole tiles. A matrix register that is loaded from
// beyond the first-level cache waits for each of its 16 rows.
inline RowsOfA rows_for_unit(RowsOfA A, int64_t m, int64_t rows, int64_t k0, int64_t k_elems, bf16* copy) {
    const bf16* a = A.data + m * A.stride + k0;
    const bool whole = A.padded || (rows == BF16_ROWS && k_elems % TILE_K == 0);
    if (whole && (!unit_is_amx() || rows_fit_cache(A.stride) || A.low)) return {a, A.stride, true, A.weights, A.low};
    const int64_t width = round_up(k_elems, TILE_K);
    copy_padded(copy, BF16_COPY_STRIDE, round_up(rows, TILE_ROWS), width, a, A.stride, rows, k_elems);
    return {copy, BF16_COPY_STRIDE, true, false};
}

// The parts of tiles follow each other, `low` elements apart.
inline void pack_parts(bf16* out, MatrixView<bf16> B, int64_t k0, int64_t K, int64_t n0, int64_t N) {
    pack_tiles(out, B, k0, K, n0, N);
}
inline void pack_parts(bf16* out, MatrixView<float> B, int64_t k0, int64_t K, int64_t n0, int64_t N) {
    pack_tiles(out, round_up(K, TILE_K) * round_up(N, TILE_COLS), B, k0, K, n0, N);
}
// A product of the high parts, and in fp32 the two with a low part.
template <class floatX>
void multiply_parts(TileProduct product, int64_t low_of_A, int64_t low_of_B) {
    multiply_tiles(product);
    if (BF16_PARTS<floatX> == 1) return;
    product.add = true;
    if (product.next) product.next += low_of_A;  // the next rows have low parts as well
    product.B += low_of_B, multiply_tiles(product);
    product.B -= low_of_B, product.A += low_of_A, product.next_rows = 0, multiply_tiles(product);
}

// Computes one block of C: rows m0 to m1 - 1, at most mc, and columns n0 to n1 - 1, at most nc, for
// all k. The epilogue stores it.
template <class floatX>
void gemm_block(RowsOfA A, MatrixView<floatX> B, int64_t m0, int64_t m1, int64_t n0, int64_t n1, int64_t K,
                const Epilogue& epilogue, const floatX* epilogue_reads, int64_t ldc, bool streams) {
    const MatrixRegisters registers;
    constexpr int64_t PARTS = BF16_PARTS<floatX>;
    const Bf16Blocking by = bf16_blocking<floatX>(K, A.weights);
    float* sums = thread_scratch(GEMM_BF16_SCRATCH_ELEMS);
    bf16 *tiles = (bf16*)(sums + BF16_SUMS_ELEMS), *a_copy = tiles + BF16_TILES_ELEMS;
    const int64_t k_blocks = ceil_div(K, by.kc), kc = round_up(ceil_div(K, k_blocks), TILE_K);
    const int64_t inner_blocks = ceil_div(kc, by.inner);
    const int64_t inner = round_up(ceil_div(kc, inner_blocks), TILE_K);
    const int64_t columns = round_up(n1 - n0, TILE_COLS), panel = std::min(streams ? 2 * by.panel : by.panel, columns);
    const int64_t panels = ceil_div(columns, panel), sums_of_strip = panels * panel * BF16_ROWS;
    for (int64_t k0 = 0; k0 < K; k0 += kc) {
        const int64_t k_elems = std::min(kc, K - k0);
        for (int64_t k = 0; k < k_elems; k += inner)
            pack_parts(tiles + PARTS * k * columns, B, k0 + k, std::min(inner, k_elems - k), n0, n1 - n0);
        for (int64_t m = m0; m < m1; m += BF16_ROWS) {
            const int64_t rows = std::min(BF16_ROWS, m1 - m), strips = ceil_div(rows, TILE_ROWS);
            const int64_t next = unit_is_amx() || A.weights ? std::clamp<int64_t>(m1 - m - BF16_ROWS, 0, BF16_ROWS) : 0;
            float* strip = sums + (k_blocks > 1 ? (m - m0) / BF16_ROWS * sums_of_strip : 0);
            for (int64_t k = 0; k < k_elems; k += inner) {
                const int64_t inner_elems = std::min(inner, k_elems - k), k_tiles = ceil_div(inner_elems, TILE_K);
                const RowsOfA a = rows_for_unit(A, m, rows, k0 + k, inner_elems, a_copy);
                const bool last = k0 + k + inner >= K;
                for (int64_t p = 0; p < panels; p++) {
                    const int64_t n = p * panel, width = std::min(panel, columns - n);
                    float* c = strip + n * BF16_ROWS;
                    TileProduct product{c,
                                        panel,
                                        a.data,
                                        a.stride,
                                        strips,
                                        tiles + PARTS * k * columns + n * k_tiles * TILE_K,
                                        k_tiles * TILE_ELEMS,
                                        width / TILE_COLS,
                                        k_tiles,
                                        k0 + k > 0};
                    if (next > 0) {
                        const int64_t from = p * next / panels;
                        product.next = A.data + (m + BF16_ROWS + from) * A.stride + k0 + k;
                        product.next_stride = A.stride, product.next_rows = (p + 1) * next / panels - from;
                    }
                    if (last && epilogue_reads) fetch_ahead(epilogue_reads + m * ldc + n0 + n, ldc, rows, width);
                    multiply_parts<floatX>(product, a.low, k_tiles * TILE_K * columns);
                    if (last) epilogue({c, panel, m, rows, n0 + n, std::min(width, n1 - n0 - n)});
                }
            }
        }
    }
}

// How a product is cut among the threads: blocks of mc x nc elements of C.
struct BlockSize {
    int64_t mc, nc;
};
template <class floatX>
BlockSize bf16_block_size(int64_t M, int64_t N, int64_t K) {
    const Bf16Blocking by = bf16_blocking<floatX>(K);
    int64_t m_blocks = ceil_div(M, by.mc), n_blocks = ceil_div(N, by.nc);
    // With AMX the columns are split among the threads, although each of them then copies all of A;
    // unless A is by far the larger operand.
    if (unit_is_amx() && M < 4 * N)
        n_blocks = std::min(round_up(n_blocks, device.threads), std::max(n_blocks, N / 192));
    const int64_t nc = round_up(ceil_div(N, n_blocks), TILE_COLS);
    n_blocks = ceil_div(N, nc);
    const auto too_few = [&](int64_t pieces) {
        return unit_is_amx() ? 8 * (round_up(pieces, device.threads) - pieces) > pieces : too_few_pieces(pieces);
    };
    int64_t mc = round_up(ceil_div(M, m_blocks), BF16_ROWS);
    while (too_few(ceil_div(M, mc) * n_blocks) && M / (m_blocks + 1) >= 2 * BF16_ROWS)
        mc = round_up(ceil_div(M, ++m_blocks), BF16_ROWS);
    return {mc, nc};
}

// A as the unit wants it as a whole: transposed, if its columns are contiguous, and in fp32 split.
template <class floatX>
RowsOfA arranged_rows(MatrixView<floatX> A, int64_t M, int64_t K) {
    constexpr int64_t PARTS = BF16_PARTS<floatX>;
    const int64_t stride = transposed_stride(K), low = gemm_transposed_elems(M, K);
    if (PARTS * low > (int64_t)device.transposed_elems)
        runtime_failure("internal: a transposed matrix of %d elements does not fit the %d planned", PARTS * low,
                        device.transposed_elems);
    const int64_t for_all_threads = round_up(ceil_div(M, device.threads), BF16_ROWS);
    const int64_t grain =
        A.col_stride == 1 ? BF16_ROWS : std::clamp(for_all_threads, BF16_TRANSPOSED_LEAST, BF16_TRANSPOSED_MOST);
    parallel_ranges(round_up(M, BF16_ROWS), grain, [&](int64_t begin, int64_t end) {
        bf16* const out = device.transposed + begin * stride;
        const int64_t rows = std::min(M, end) - begin;
        if constexpr (PARTS == 2) split_rows(out, low, stride, A, begin, rows, end - begin, K);
        else pack_rows<true>(out, stride, A.data, A.col_stride, begin, rows, end - begin, K);
    });
    return {device.transposed, stride, true, false, PARTS == 2 ? low : 0};
}
// The epilogue gets A (M, K) B (K, N); epilogue_reads as in gemm.h, rows ldc apart. In A the rows
// or the columns must be contiguous, and in B as well. weights: A is read from memory, once.
// streams: the epilogue writes past the caches, and gets 64 columns at a time: memory takes pairs
// of cache lines, 128 bytes of bf16, 1.7 times as fast as single ones.
template <class floatX>
void gemm_on_unit(MatrixView<floatX> A, MatrixView<floatX> B, int64_t M, int64_t N, int64_t K, const Epilogue& epilogue,
                  const floatX* epilogue_reads, int64_t ldc, bool weights = false, bool streams = false) {
    const bool in_place = BF16_PARTS<floatX> == 1 && A.col_stride == 1;
    const RowsOfA rows = in_place ? RowsOfA{(const bf16*)A.data, A.row_stride, false, weights} : arranged_rows(A, M, K);
    const BlockSize size = bf16_block_size<floatX>(M, N, K);
    const int64_t n_blocks = ceil_div(N, size.nc);
    parallel_for(ceil_div(M, size.mc) * n_blocks, [&](int64_t block) {
        const int64_t m = block / n_blocks * size.mc, n = block % n_blocks * size.nc;
        gemm_block(rows, B, m, std::min(m + size.mc, M), n, std::min(n + size.nc, N), K, epilogue, epilogue_reads, ldc,
                   streams);
        streams_done();
    });
}

// The epilogue that stores the sums in C past the caches: for gradients, which are not read soon.
// gemm_on_unit() calls streams_done() after each block.
template <class floatC>
Epilogue streaming_epilogue(floatC* C, int64_t ldc) {
    return [=](const FinishedSums& of) {
        for (int64_t i = 0; i < of.rows; i++) {
            const float* sums = of.sums + i * of.stride;
            floatC* out = C + (of.row + i) * ldc + of.column;
            int64_t j = 0;
            for (; (uintptr_t)out % 64 == 0 && j + 2 * VEC_FLOATS <= of.columns; j += 2 * VEC_FLOATS)
                stream(out + j, load(sums + j), load(sums + j + VEC_FLOATS));
            copy_values(out + j, sums + j, of.columns - j);
        }
    };
}

// C (M, N), fp32 or bf16, rows ldc apart, = A B; then the epilogue. C must not overlap A or B. Or
// without an epilogue, C += A B if add.
template <class floatC, class floatX>
void gemm(floatC* C, int64_t ldc, MatrixView<floatX> A, MatrixView<floatX> B, int64_t M, int64_t N, int64_t K, bool add,
          const Epilogue& epilogue = nullptr, const floatX* epilogue_reads = nullptr) {
    if constexpr (sizeof(floatX) == 4)
        if (!device.splits_fp32) return gemm_fp32(C, ldc, A, B, M, N, K, add, epilogue, epilogue_reads);
    const auto sum = [=](int64_t row, int64_t column, vfloat v, size_t count) {
        return add ? v + load_some(C + row * ldc + column, count) : v;
    };
    gemm_on_unit(A, B, M, N, K, epilogue ? epilogue : epilogue_of(C, ldc, sum), epilogue_reads, ldc);
}
