// The linear layer, out (rows, OC) = inp (rows, C) weight (OC, C)^T + bias: nine tenths of a
// training step.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/reference.h"

struct Dims {
    int64_t rows, C, OC;
};

// The loops in another order: the innermost one runs along a row of out and a row of weight^T. The
// weight is transposed once for that.
static void loop_order(float* out, const float* inp, const float* weight, const float* bias, Dims d,
                       float* transposed) {
    for (int64_t o = 0; o < d.OC; o++)
        for (int64_t c = 0; c < d.C; c++) transposed[c * d.OC + o] = weight[o * d.C + c];
    for (int64_t r = 0; r < d.rows; r++) {
        for (int64_t o = 0; o < d.OC; o++) out[r * d.OC + o] = bias[o];
        for (int64_t c = 0; c < d.C; c++)
            for (int64_t o = 0; o < d.OC; o++) out[r * d.OC + o] += inp[r * d.C + c] * transposed[c * d.OC + o];
    }
}

// A dot product in vectors. row_sum has four sums, so that an addition need not wait for the one
// before it.
static float dot(const float* x, const float* w, int64_t C) {
    return row_sum(C, [&](size_t i, size_t count) { return load_some(x + i, count) * load_some(w + i, count); });
}
static void vectorised(float* out, const float* inp, const float* weight, const float* bias, Dims d) {
    for (int64_t r = 0; r < d.rows; r++)
        for (int64_t o = 0; o < d.OC; o++) out[r * d.OC + o] = dot(inp + r * d.C, weight + o * d.C, d.C) + bias[o];
}
// The same for 64 rows of the weight at a time, which stay in the second-level cache while all rows
// of inp pass.
static void blocked(float* out, const float* inp, const float* weight, const float* bias, Dims d) {
    for (int64_t o0 = 0; o0 < d.OC; o0 += 64)
        for (int64_t r = 0; r < d.rows; r++)
            for (int64_t o = o0; o < std::min(d.OC, o0 + 64); o++)
                out[r * d.OC + o] = dot(inp + r * d.C, weight + o * d.C, d.C) + bias[o];
}

// 4 x 4 dot products side by side: 8 vectors are loaded for 16 multiply-adds, not 32.
static void register_tiled(float* out, const float* inp, const float* weight, const float* bias, Dims d) {
    for (int64_t o0 = 0; o0 < d.OC; o0 += 64)
        for (int64_t r = 0; r < d.rows; r += 4)
            for (int64_t o = o0; o < std::min(d.OC, o0 + 64); o += 4) {
                vfloat sums[4][4] = {};
                const float *x[4], *w[4];
                for (int i = 0; i < 4; i++)
                    x[i] = inp + std::min(r + i, d.rows - 1) * d.C, w[i] = weight + std::min(o + i, d.OC - 1) * d.C;
                for_each_vector(d.C, [&](size_t c, size_t count) {
                    vfloat wc[4];
                    for (int j = 0; j < 4; j++) wc[j] = load_some(w[j] + c, count);
                    for (int i = 0; i < 4; i++) {
                        const vfloat xc = load_some(x[i] + c, count);
                        for (int j = 0; j < 4; j++) sums[i][j] += xc * wc[j];
                    }
                });
                for (int64_t i = 0; i < std::min<int64_t>(4, d.rows - r); i++)
                    for (int64_t j = 0; j < std::min<int64_t>(4, d.OC - o); j++)
                        out[(r + i) * d.OC + o + j] = sum(sums[i][j]) + bias[o + j];
            }
}

BENCH("matmul_forward", dims("rows", "C", "OC"), shapes({{256, 768, 3072}, {1024, 768, 3072}, {33, 80, 49}})) {
    const Dims d{shape[0], shape[1], shape[2]};
    const int64_t inp_elems = d.rows * d.C, weight_elems = d.OC * d.C, out_elems = d.rows * d.OC;
    const float *inp = random_floats(inp_elems), *weight = random_floats(weight_elems), *bias = random_floats(d.OC);
    float *out = buffer<float>(out_elems), *transposed = buffer<float>(weight_elems);
    const bf16 *inp16 = as_bf16(inp, inp_elems), *weight16 = as_bf16(weight, weight_elems),
               *bias16 = as_bf16(bias, d.OC);
    bf16* out16 = buffer<bf16>(out_elems);
    output("out", out, out_elems, sum_tolerance(d.C));
    output("out", out16, out_elems, bf16_tolerance(1, d.C));

    auto naive = [=] { reference::matmul_forward(out, inp, weight, bias, d.rows, d.C, d.OC); };
    auto packed = [=] { matmul_forward(out, inp, weight, bias, d.rows, d.C, d.OC); };
    auto on_unit = [=] { matmul_forward(out16, inp16, weight16, bias16, d.rows, d.C, d.OC); };
    auto without_unit = [=] {
        const MatrixUnit unit = device.unit;
        device.unit = UNIT_PORTABLE;
        on_unit();
        device.unit = unit;
    };
    expected(naive);
    flops(2.0 * d.rows * d.C * d.OC);
    bytes(4.0 * (inp_elems + weight_elems + out_elems));
    // Bytes requested: for each multiply-add two values of 4 bytes, unless registers hold them.
    const double multiply_adds = (double)d.rows * d.C * d.OC, results = 4.0 * out_elems, repacking = 8.0 * weight_elems;
    requested(8 * multiply_adds + results);
    variant("naive", "three loops; each addition waits for the one before it", naive);
    requested(12 * multiply_adds + repacking);  // one value, and the sum loaded and stored
    variant("loop-order",
            "the innermost loop runs along memory and its iterations are independent, so the compiler vectorises it",
            [=] { loop_order(out, inp, weight, bias, d, transposed); });
    requested(8 * multiply_adds + results);
    variant("vectorised",
            "dot products in vectors, four sums at once: the result stays in registers, where the loop above loads and "
            "stores it in each step",
            [=] { vectorised(out, inp, weight, bias, d); });
    requested(8 * multiply_adds + results);  // as many, but nearer
    variant("blocked",
            "64 rows of the weight at a time, with all rows of inp: the weight comes from the cache, not from memory",
            [=] { blocked(out, inp, weight, bias, d); });
    requested(8 * multiply_adds / 4 + results);
    variant("register-tiled", "4 x 4 results at once: half a load per multiply-add instead of two",
            [=] { register_tiled(out, inp, weight, bias, d); });
    const double tiled = 4 * multiply_adds * (1.0 / GEMM_MR + 1.0 / GEMM_NR) + repacking + results;
    requested(tiled);
    variant("packed",
            "8 x 48 results in registers; the weight is repacked so that it is read front to back, and vectors of it "
            "are multiplied with single values of inp: no sums over lanes (llmc/cpu/gemm.h, one thread)",
            [=] { on_one_thread(packed); });
    requested(tiled);
    variant("shipped", "blocks of the result are split among the threads", packed);
    bytes(2.0 * (inp_elems + weight_elems + out_elems));
    variant("bf16-portable",
            "bf16 without a unit for it: half the bytes, but each pair of the weight is widened by a shift and a mask "
            "for 16 rows of inp, which are widened once for all columns",
            without_unit, IN_BF16);
    variant("bf16-shipped",
            "pairs of bf16 on the matrix unit: one instruction of AMX multiplies 16 x 32 by 32 x 16, one of "
            "AVX512-BF16 does twice the work of an FMA (llmc/cpu/gemm_bf16.h)",
            on_unit, IN_BF16);
}

// ---- Few rows, as of a short prompt: packing the weight takes as long as multiplying it.
BENCH("matmul_few_rows", dims("rows", "C", "OC"), shapes({{32, 768, 3072}, {128, 768, 3072}, {17, 80, 49}})) {
    const int64_t rows = shape[0], C = shape[1], OC = shape[2];
    const float *inp = random_floats(rows * C), *weight = random_floats(OC * C), *no_bias = nullptr;
    const bf16 *inp16 = as_bf16(inp, rows * C), *weight16 = as_bf16(weight, OC * C);
    float* out = buffer<float>(rows * OC);
    bf16* out16 = buffer<bf16>(rows * OC);
    output("out", out, rows * OC, sum_tolerance(C));
    output("out", out16, rows * OC, bf16_tolerance(1, C));
    expected([=] { reference::matmul_forward(out, inp, weight, no_bias, rows, C, OC); });
    flops(2.0 * rows * C * OC);
    bytes(2.0 * (rows * C + OC * C + rows * OC));
    const MatrixView<float> A{inp, C, 1}, B{weight, 1, C};
    const MatrixView<bf16> A16{inp16, C, 1}, B16{weight16, 1, C};
    variant("weight-packed", "the weight in panels, which are read once for 8 rows",
            [=] { gemm(out, OC, A, B, rows, OC, C, false); });
    variant("weight-first",
            "out^T = weight inp^T: inp is packed, the weight is read where it lies, and its next rows are prefetched "
            "(llmc/cpu/gemm_few_rows.h)",
            [=] { matmul_forward(out, inp, weight, no_bias, rows, C, OC); });
    variant(
        "weight-packed", "the weight in tiles, which are read once or twice",
        [=] { gemm(out16, OC, A16, B16, rows, OC, C, false); }, IN_BF16);
    variant(
        "weight-first", "as in fp32",
        [=] {
            const auto sum = [](int64_t, int64_t, vfloat v, size_t) { return v; };
            gemm_few_rows(A16, B16, rows, OC, C, epilogue_of(out16, OC, sum));
        },
        IN_BF16);
}

// ---- From a tile of sums in registers to the shipped product, for the gradient of the input: dinp
// (rows, C) = dout (rows, OC) weight (OC, C). Here B, the weight, is read along its rows.

enum Way { IN_PLACE, COPIED, ON_THE_WAY, PREFETCHED };  // how rows of B reach the tile

// As multiply_tile() of gemm.h; the rows of B that it reads are also written to `panel`.
static void multiply_and_store(vfloat (&acc)[GEMM_MR][GEMM_NV], const float* const (&a)[GEMM_MR], const float* b,
                               int64_t b_stride, int64_t K, float* panel) {
    for (int64_t k = 0; k < K; k++, b += b_stride, panel += GEMM_NR) {
        vfloat bv[GEMM_NV];
#pragma GCC unroll 8
        for (int j = 0; j < GEMM_NV; j++) store(panel + j * VEC_FLOATS, bv[j] = load(b + j * VEC_FLOATS));
#pragma GCC unroll 16
        for (int i = 0; i < GEMM_MR; i++) {
            const vfloat ai = broadcast(a[i][k]);
#pragma GCC unroll 8
            for (int j = 0; j < GEMM_NV; j++) acc[i][j] += ai * bv[j];
        }
    }
}

// C (M, N) = A (M, K) B (K, N) on one thread, in blocks of kc x nc of B, through which all rows of
// A pass. Columns that do not fill a tile are left to plain loops.
template <Way WAY>
static void tiled_product(float* C, const float* A, const float* B, int64_t M, int64_t N, int64_t K, int64_t kc,
                          int64_t nc) {
    constexpr int MR = GEMM_MR, NV = GEMM_NV, NR = GEMM_NR;
    const int64_t whole = N / NR * NR;
    float* panels = thread_scratch(GEMM_SCRATCH_ELEMS);
    for (int64_t k0 = 0; k0 < K; k0 += kc)
        for (int64_t n0 = 0; n0 < whole; n0 += nc) {
            const int64_t depth = std::min(kc, K - k0), columns = std::min(nc, whole - n0);
            if (WAY == COPIED) pack_panels<NR>(panels, {B, N, 1}, k0, depth, n0, columns);
            for (int64_t m = 0; m < M; m += MR) {
                const float* a[MR];
                for (int i = 0; i < MR; i++) a[i] = A + std::min(m + i, M - 1) * K + k0;
                for (int64_t n = 0; n < columns; n += NR) {
                    vfloat acc[MR][NV] = {};
                    const float* b = B + k0 * N + n0 + n;
                    float* panel = panels + n * depth;
                    if (WAY == IN_PLACE) multiply_tile<MR, NV>(acc, a, 1, b, N, depth);
                    else if (WAY == ON_THE_WAY && m == 0) multiply_and_store(acc, a, b, N, depth, panel);
                    else if (WAY == PREFETCHED && m == 0) multiply_tile<MR, NV, true>(acc, a, 1, b, N, depth, panel);
                    else multiply_tile<MR, NV>(acc, a, 1, panel, NR, depth);
                    for (int64_t i = 0; i < std::min<int64_t>(MR, M - m); i++)
                        for (int j = 0; j < NV; j++) {
                            float* c = C + (m + i) * N + n0 + n + j * VEC_FLOATS;
                            store(c, k0 > 0 ? load(c) + acc[i][j] : acc[i][j]);
                        }
                }
            }
        }
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = whole; n < N; n++) {
            float sum = 0;
            for (int64_t k = 0; k < K; k++) sum += A[m * K + k] * B[k * N + n];
            C[m * N + n] = sum;
        }
}

BENCH("matmul_input_gradient", dims("rows", "C", "OC"), shapes({{256, 768, 3072}, {1024, 768, 3072}, {33, 80, 49}})) {
    const int64_t rows = shape[0], C = shape[1], OC = shape[2], inp_elems = rows * C, weight_elems = OC * C;
    const float *dout = random_floats(rows * OC), *weight = random_floats(weight_elems);
    float* dinp = buffer<float>(inp_elems);
    output("dinp", dinp, inp_elems, sum_tolerance(OC));
    auto naive = [=] {
        memset(dinp, 0, inp_elems * sizeof(float));
        for (int64_t r = 0; r < rows; r++)
            for (int64_t o = 0; o < OC; o++)
                for (int64_t c = 0; c < C; c++) dinp[r * C + c] += dout[r * OC + o] * weight[o * C + c];
    };
    expected(naive);
    flops(2.0 * rows * C * OC);
    bytes(4.0 * (inp_elems + weight_elems + rows * OC));
    auto tiled = [=](auto way, int64_t kc, int64_t nc) {
        tiled_product<decltype(way)::value>(dinp, dout, weight, rows, C, OC, kc, nc);
    };
    const auto in_place = std::integral_constant<Way, IN_PLACE>();
    const int64_t kc = GEMM_IN_PLACE.KC, nc = GEMM_IN_PLACE.NC;
    variant("naive", "along memory, so the compiler vectorises it; each multiply-add loads a sum and stores it", naive);
    variant("registers", "8 x 48 sums in registers: 3 loads of weight and 8 numbers of dout for 24 multiply-adds",
            [=] { tiled(in_place, OC, C); });
    variant("blocked", "768 x 96 numbers of the weight at a time, which stay in the second-level cache for all rows",
            [=] { tiled(in_place, kc, nc); });
    variant("packed",
            "the block is first copied to panels of 48 columns, which are read front to back: fewer pages, and "
            "no two rows that compete for the same place in the cache",
            [=] { tiled(std::integral_constant<Way, COPIED>(), kc, nc); });
    variant("on-the-way",
            "no copy beforehand: the first 8 rows multiply the weight where it lies, and store the panels",
            [=] { tiled(std::integral_constant<Way, ON_THE_WAY>(), kc, nc); });
    variant("prefetched", "and ask for the row of the weight that is 32 rows ahead, which the CPU would not guess",
            [=] { tiled(std::integral_constant<Way, PREFETCHED>(), kc, nc); });
    variant("ahead",
            "meanwhile the block that comes next is fetched from memory to the second-level cache, a line now and then "
            "(llmc/cpu/block_ahead.h); with 2 MiB of that, blocks are twice as wide",
            [=] {
                gemm_fp32_block<true>(dinp, C, {dout, OC, 1}, {weight, C, 1}, 0, rows, {0, C}, {0, 0}, OC, false,
                                      nullptr, nullptr);
            });
    variant("shipped", "blocks of the result are split among the threads (llmc/cpu/gemm.h)", [=] {
        gemm(dinp, C, MatrixView<float>{dout, OC, 1}, MatrixView<float>{weight, C, 1}, rows, C, OC, false);
    });
}

BENCH("matmul_backward", dims("rows", "C", "OC"), shapes({{256, 768, 3072}, {1024, 768, 3072}, {33, 80, 49}})) {
    const int64_t rows = shape[0], C = shape[1], OC = shape[2];
    const int64_t inp_elems = rows * C, weight_elems = OC * C, out_elems = rows * OC;
    const float *inp = random_floats(inp_elems), *weight = random_floats(weight_elems),
                *dout = random_floats(out_elems);
    float *dinp = buffer<float>(inp_elems), *dweight = buffer<float>(weight_elems), *dbias = buffer<float>(OC);
    const bf16 *inp16 = as_bf16(inp, inp_elems), *weight16 = as_bf16(weight, weight_elems);
    const bf16* dout16 = as_bf16(dout, out_elems);
    bf16 *dinp16 = buffer<bf16>(inp_elems), *dweight16 = buffer<bf16>(weight_elems), *dbias16 = buffer<bf16>(OC);
    output("dinp", dinp, inp_elems, sum_tolerance(OC));
    output("dweight", dweight, weight_elems, sum_tolerance(rows));
    output("dbias", dbias, OC, sum_tolerance(rows));
    output("dinp", dinp16, inp_elems, bf16_tolerance(1, OC));
    output("dweight", dweight16, weight_elems, bf16_tolerance(1, rows));
    output("dbias", dbias16, OC, bf16_tolerance(1, rows));

    auto naive = [=] { reference::matmul_backward(dinp, dweight, dbias, dout, inp, weight, rows, C, OC, false); };
    auto packed = [=] { matmul_backward(dinp, dweight, dbias, dout, inp, weight, rows, C, OC, false); };
    auto on_unit = [=] { matmul_backward(dinp16, dweight16, dbias16, dout16, inp16, weight16, rows, C, OC, false); };
    expected(naive);
    flops(4.0 * rows * C * OC);
    bytes(4.0 * (2 * inp_elems + 2 * weight_elems + out_elems));
    variant("naive", "one loop over rows and outputs; dinp and dweight are loaded and stored for each multiply-add",
            naive);
    variant("shipped",
            "two products by the kernel of the forward pass; for the gradient of the weight, dout is packed transposed",
            packed);
    bytes(2.0 * (2 * inp_elems + 2 * weight_elems + out_elems));
    variant("bf16-shipped", "both products on the matrix unit; dout is transposed once, by all threads", on_unit,
            IN_BF16);
}

// ---- fp32 as three products of bf16. A value is high + low, each a bf16: 16 bits of 24. Of the
// four products the smallest, low times low, is left out (PyTorch:
// float32_matmul_precision("high")).

static void split(bf16* high, bf16* low, const float* values, int64_t n) {
    parallel_ranges(n, 1 << 14, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            const vfloat v = load_some(values + begin + i, count);
            store_some(high + begin + i, v, count);
            store_some(low + begin + i, v - as_stored<bf16>(v), count);
        });
    });
}

BENCH("matmul_fp32x3", dims("rows", "C", "OC"), shapes({{1024, 768, 3072}, {256, 768, 3072}, {33, 80, 49}})) {
    const int64_t rows = shape[0], C = shape[1], OC = shape[2], inp_elems = rows * C, weight_elems = OC * C;
    float *inp = buffer<float>(inp_elems), *weight = buffer<float>(weight_elems), *out = buffer<float>(rows * OC);
    bf16 *inp_high = buffer<bf16>(inp_elems), *inp_low = buffer<bf16>(inp_elems);
    bf16 *weight_high = buffer<bf16>(weight_elems), *weight_low = buffer<bf16>(weight_elems);
    if (!bench::current->only_listed) {
        const std::vector<float> x = random_values(inp_elems, 1), w = random_values(weight_elems, 1);
        std::copy(x.begin(), x.end(), inp), std::copy(w.begin(), w.end(), weight);
    }
    const float* const no_bias = nullptr;
    constexpr double SIXTEEN_BITS = 1.0 / (1 << 16);  // what a value loses, at most half of it; low times low as much
    output("out", out, rows * OC, sum_tolerance(C) + SIXTEEN_BITS);
    expected([=] { reference::matmul_forward(out, inp, weight, no_bias, rows, C, OC); });
    flops(2.0 * rows * C * OC);
    bytes(4.0 * (inp_elems + weight_elems + rows * OC));
    variant("one-product", "by the FMA units (llmc/cpu/gemm.h)",
            [=] { matmul_forward(out, inp, weight, no_bias, rows, C, OC); });
    variant("three-products",
            "high times high, high times low, low times high, on the matrix unit: three products at its speed, and "
            "one pass to split each operand",
            [=] {
                split(inp_high, inp_low, inp, inp_elems), split(weight_high, weight_low, weight, weight_elems);
                const auto multiply = [&](const bf16* x, const bf16* w, bool add) {
                    gemm(out, OC, MatrixView<bf16>{x, C, 1}, MatrixView<bf16>{w, 1, C}, rows, OC, C, add);
                };
                multiply(inp_high, weight_high, false);
                multiply(inp_high, weight_low, true);
                multiply(inp_low, weight_high, true);
            });
    variant("shipped",
            "the three are added to one square of sums while it is in the first-level cache; the weight is split where "
            "it is packed (llmc/cpu/split_fp32.h)",
            [=] {
                device.splits_fp32 = true;
                matmul_forward(out, inp, weight, no_bias, rows, C, OC);
                device.splits_fp32 = false;
            });
}
