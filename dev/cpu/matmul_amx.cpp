// The linear layer in bf16 on AMX, out (rows, OC) = inp (rows, C) weight (OC, C)^T + bias: from one
// tile at a time to what ships (llmc/cpu/gemm_bf16.h). C is a multiple of 32, OC of 32. The bytes
// are those of tiles loaded and stored, of packing and of copying. On a CPU without AMX the same
// code runs on AMX in C++ (AmxTwin): that proves it right, and its times mean nothing.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/reference.h"

struct Layer {
    bf16* out;
    const bf16 *inp, *weight, *bias;  // inp has rows up to a multiple of 32
    int64_t rows, C, OC;
    bf16 *tiles, *copy;  // all of weight^T or inp^T in tiles; 32 rows
    float* sums;         // 32 rows
};

template <class F>
static void on_amx(F f) {
#ifdef __x86_64__
    if (has_matrix_unit(UNIT_AMX)) return f((Amx*)nullptr);
#endif
    f((AmxTwin*)nullptr);
}

struct Registers {
#ifdef __x86_64__
    const bool amx = has_matrix_unit(UNIT_AMX);
    Registers() {
        if (amx) Amx::open();
    }
    ~Registers() {
        if (amx) Amx::close();
    }
#endif
};

// out = finished sums + bias.
static Epilogue with_bias(const Layer& l) {
    const bf16* bias = l.bias;
    return epilogue_of(l.out, l.OC, [=](int64_t, int64_t column, vfloat v, size_t count) {
        return v + load_some(bias + column, count);
    });
}

// STRIPS x COLS tiles of sums at a time, which stay in their registers for all k.
template <int STRIPS, int COLS>
static void in_registers(const Layer& l) {
    pack_tiles(l.tiles, {l.weight, 1, l.C}, 0, l.C, 0, l.OC);
    const int64_t k_tiles = l.C / TILE_K, rows = STRIPS * TILE_ROWS, columns = COLS * TILE_COLS;
    const Registers registers;
    on_amx([&](auto* type) {
        std::remove_pointer_t<decltype(type)> unit;
        for (int64_t m = 0; m < l.rows; m += rows)
            for (int64_t n = 0; n < l.OC; n += columns) {
                multiply_tiles_amx<STRIPS, COLS>(unit,
                                                 {l.sums, columns, l.inp + m * l.C, l.C, STRIPS, l.tiles + n * l.C,
                                                  k_tiles * TILE_ELEMS, COLS, k_tiles, false},
                                                 0, 0);
                with_bias(l)({l.sums, columns, m, std::min(rows, l.rows - m), n, columns});
            }
    });
}

// inner: of k, at a time. 256 are 16 KiB of A, and as much of each two columns of tiles of B.
struct Way {
    bool packs, copies, blocks, squares, fetches;
    int64_t inner = 256;
};
// The epilogue gets A (M, K) B (K, N), N columns from n0 on, 32 rows of A at a time.
static void in_strips(const Layer& l, const bf16* A, MatrixView<bf16> B, int64_t M, int64_t n0, int64_t N, int64_t K,
                      Way way, const Epilogue& epilogue) {
    const int64_t inner = way.inner;
    bf16* tiles = l.tiles + n0 * K;
    const int64_t columns = round_up(N, TILE_COLS), panel = way.squares ? 2 * TILE_COLS : columns;
    for (int64_t k = 0; k < K && way.packs; k += inner)
        pack_tiles(tiles + k * columns, B, k, std::min(inner, K - k), n0, N);
    const Registers registers;
    on_amx([&](auto* type) {
        for (int64_t m = 0; m < M; m += BF16_ROWS) {
            const bf16* a = A + m * K;
            const int64_t stride = way.copies ? K + TILE_K : K, rows = std::min(BF16_ROWS, M - m);
            if (way.copies) copy_padded(l.copy, stride, BF16_ROWS, K, a, K, rows, K), a = l.copy;
            for (int64_t k = 0; k < K; k += inner) {
                const int64_t k_tiles = std::min(inner, K - k) / TILE_K;
                for (int64_t n = 0; n < columns; n += panel) {
                    const int64_t width = std::min(panel, columns - n), next = std::min(BF16_ROWS, M - m - BF16_ROWS);
                    TileProduct product{l.sums + n * BF16_ROWS,
                                        panel,
                                        a + k,
                                        stride,
                                        BF16_STRIPS,
                                        tiles + k * columns + n * k_tiles * TILE_K,
                                        k_tiles * TILE_ELEMS,
                                        width / TILE_COLS,
                                        k_tiles,
                                        k > 0};
                    if (way.fetches && next > 0) {
                        const int64_t from = n * next / columns;
                        product.next = A + (m + BF16_ROWS + from) * K + k;
                        product.next_stride = K, product.next_rows = (n + width) * next / columns - from;
                    }
                    multiply_amx<std::remove_pointer_t<decltype(type)>>(product);
                    if (k + inner >= K)
                        epilogue({l.sums + n * BF16_ROWS, panel, m, rows, n0 + n, std::min(width, N - n)});
                }
            }
        }
    });
}
// blocks: 512 columns of B at a time, 768 KiB of a second-level cache of 2 MiB.
static void in_blocks(const Layer& l, const bf16* A, MatrixView<bf16> B, int64_t M, int64_t N, int64_t K, Way way,
                      const Epilogue& epilogue) {
    const int64_t columns = way.blocks ? 512 : N;
    for (int64_t n = 0; n < N; n += columns) in_strips(l, A, B, M, n, std::min(columns, N - n), K, way, epilogue);
}
static void rows_first(const Layer& l, Way way) {
    in_blocks(l, l.inp, {l.weight, 1, l.C}, l.rows, l.OC, l.C, way, with_bias(l));
}
static void weights_first(const Layer& l, Way way) {
    in_blocks(l, l.weight, {l.inp, 1, l.C}, l.OC, l.rows, l.C, way, transposed_epilogue(with_bias(l)));
}

BENCH("matmul_amx", dims("rows", "C", "OC"), shapes({{256, 768, 3072}, {1024, 768, 3072}, {33, 96, 64}})) {
    const int64_t rows = shape[0], C = shape[1], OC = shape[2], padded = round_up(rows, BF16_ROWS);
    const float *inp = random_floats(padded * C), *weight = random_floats(OC * C), *bias = random_floats(OC);
    float* out = buffer<float>(rows * OC);
    bf16* out16 = buffer<bf16>(rows * OC);
    const Layer l{out16,
                  as_bf16(inp, padded * C),
                  as_bf16(weight, OC * C),
                  as_bf16(bias, OC),
                  rows,
                  C,
                  OC,
                  buffer<bf16>(std::max(padded, OC) * C),
                  buffer<bf16>(BF16_ROWS * (C + TILE_K)),
                  buffer<float>(BF16_ROWS * std::max(padded, OC))};
    output("out", out, rows * OC, sum_tolerance(C));
    output("out", out16, rows * OC, bf16_tolerance(1, C));
    expected([=] { reference::matmul_forward(out, inp, weight, bias, rows, C, OC); });
    flops(2.0 * rows * C * OC);
    bytes(2.0 * (rows * C + OC * C + rows * OC));

    // of a tile of A or B for 16 or 32 columns or rows of C; of sums, stored and read; of what is
    // packed
    const double products = (double)rows * C * OC, sums = 8.0 * rows * OC, results = 2.0 * rows * OC;
    const double weight_packed = 4.0 * OC * C, inp_packed = 4.0 * rows * C;
    const double sums_of_strips = sums * ceil_div(C, 256) + results, longer = sums * ceil_div(C, 384) + results;
    const auto run = [](auto f) { return [=] { on_one_thread(f); }; };
    const auto by_rows = [=](Way way) { return run([=] { rows_first(l, way); }); };
    requested(4 * products / 16 + weight_packed + sums + results);
    variant("one-tile", "the weight packed in tiles; two tiles are loaded for each instruction that multiplies",
            run([=] { in_registers<1, 1>(l); }), IN_BF16);
    requested(4 * products / 32 + weight_packed + sums + results);
    variant("four-tiles", "2 x 2 tiles of sums: each tile that is loaded is used twice",
            run([=] { in_registers<2, 2>(l); }), IN_BF16);
    requested(4 * products / 32 + weight_packed + sums_of_strips);
    variant("strips",
            "32 rows of inp and 256 of k at a time, with all weights: inp and a part of the weight stay in the "
            "first-level cache, but the sums are loaded and stored for each 256 of k",
            by_rows({true, false, false, false, false}), IN_BF16);
    requested(4 * products / 32 + weight_packed + inp_packed + sums_of_strips);
    variant("copied", "the 32 rows are copied first, so that they lie in few pages",
            by_rows({true, true, false, false, false}), IN_BF16);
    requested(4 * products / 32 + weight_packed + inp_packed + sums_of_strips);
    variant("blocks", "512 weights at a time, whose tiles the second-level cache holds",
            by_rows({true, true, true, false, false}), IN_BF16);
    requested(4 * products / 32 + weight_packed + sums_of_strips);
    variant("squares",
            "sums as squares of 32 x 32, each a run of 4 KiB, and finished while the first-level cache has it; the "
            "rows of inp where they lie",
            by_rows({true, false, true, true, false}), IN_BF16);
    requested(4 * products / 32 + weight_packed + sums_of_strips);
    variant("prefetched", "while 32 rows are multiplied, the next 32 come to the second-level cache",
            by_rows({true, false, true, true, true}), IN_BF16);
    requested(4 * products / 32 + weight_packed + longer);
    variant("longer",
            "384 of k at a time: 24 KiB of inp stay in the first-level cache, since tiles of weights and sums are "
            "loaded as used once (tileloaddt1); the sums move twice, not three times",
            by_rows({true, false, true, true, true, 384}), IN_BF16);
    requested(4 * products / 32 + longer);
    variant("packed-before", "as if the weight lay in tiles already: what packing it costs, with so many rows",
            by_rows({false, false, true, true, true, 384}), IN_BF16);
    requested(4 * products / 32 + inp_packed + longer);
    variant("weights-first",
            "out^T = weight inp^T: inp is packed, the weight is read where it lies, and the sums are transposed on "
            "their way",
            run([=] {
                weights_first(l, Way{true, false, true, true, true, 384});
            }),
            IN_BF16);
    variant(
        "shipped",
        "blocks that fit the caches, split among the threads; the weight first where there are few rows "
        "(llmc/cpu/gemm_bf16.h)",
        [=] {
            const MatrixUnit unit = device.unit;
            device.unit = has_matrix_unit(UNIT_AMX) ? UNIT_AMX : UNIT_AMX_TWIN;
            matmul_forward(l.out, l.inp, l.weight, l.bias, rows, C, OC);
            device.unit = unit;
        },
        IN_BF16);
}
