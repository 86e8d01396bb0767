// The linear layer, out (rows, OC) = inp (rows, C) weight (OC, C)^T + bias: nine tenths of a
// training step, and where most is to be gained.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/reference.h"

struct Dims {
    int64_t rows, C, OC;
};

// i, k, j instead of i, j, k: the innermost loop runs along rows of both weight^T and out. Needs
// the weight transposed, once.
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

// A dot product in vectors, with four sums so that each addition need not wait for the one before.
static float dot(const float* x, const float* w, int64_t C) {
    return row_sum(C, [&](size_t i, size_t count) { return load_some(x + i, count) * load_some(w + i, count); });
}
static void vectorised(float* out, const float* inp, const float* weight, const float* bias, Dims d) {
    for (int64_t r = 0; r < d.rows; r++)
        for (int64_t o = 0; o < d.OC; o++) out[r * d.OC + o] = dot(inp + r * d.C, weight + o * d.C, d.C) + bias[o];
}
// The same, for blocks of 64 weight rows at a time: they stay in the second-level cache while all
// rows of inp pass.
static void blocked(float* out, const float* inp, const float* weight, const float* bias, Dims d) {
    for (int64_t o0 = 0; o0 < d.OC; o0 += 64)
        for (int64_t r = 0; r < d.rows; r++)
            for (int64_t o = o0; o < std::min(d.OC, o0 + 64); o++)
                out[r * d.OC + o] = dot(inp + r * d.C, weight + o * d.C, d.C) + bias[o];
}

// 4 x 4 dot products side by side: 8 vectors loaded for 16 multiply-adds, not 32.
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
    float *inp = random_floats(d.rows * d.C), *weight = random_floats(d.OC * d.C), *bias = random_floats(d.OC),
          *out = buffer<float>(d.rows * d.OC), *transposed = buffer<float>(d.C * d.OC);
    bf16 *inp16 = as_bf16(inp, d.rows * d.C), *weight16 = as_bf16(weight, d.OC * d.C), *bias16 = as_bf16(bias, d.OC),
         *out16 = buffer<bf16>(d.rows * d.OC);
    flops(2.0 * d.rows * d.C * d.OC), bytes(4.0 * (d.rows * d.C + d.C * d.OC + d.rows * d.OC));
    output("out", out, d.rows * d.OC, sum_tolerance(d.C));
    output("out", out16, d.rows * d.OC, bf16_tolerance(1, d.C));
    expected([=] { reference::matmul_forward(out, inp, weight, bias, d.rows, d.C, d.OC); });
    const double pairs = (double)d.rows * d.C * d.OC, results = 4.0 * d.rows * d.OC, repacking = 8.0 * d.C * d.OC;
    requested(8 * pairs + results);  // two values of 4 bytes for each multiply-add
    variant("naive", "three loops; each sum waits for the addition before it",
            [=] { reference::matmul_forward(out, inp, weight, bias, d.rows, d.C, d.OC); });
    requested(12 * pairs + repacking);  // and the sum, stored and loaded, with one of the two
    variant("loop-order",
            "the innermost loop runs along memory and its iterations are independent: the compiler makes vectors of it",
            [=] { loop_order(out, inp, weight, bias, d, transposed); });
    requested(8 * pairs + results);
    variant("vectorised",
            "dot products in vectors, four sums at once: the result stays in registers, where the loop above loads and "
            "stores it in each step",
            [=] { vectorised(out, inp, weight, bias, d); });
    requested(8 * pairs + results);  // as many, but nearer
    variant(
        "blocked",
        "64 rows of the weight at a time, all of inp for each: the weight comes out of the cache, not out of memory",
        [=] { blocked(out, inp, weight, bias, d); });
    requested(8 * pairs / 4 + results);
    variant("register-tiled", "4 x 4 results at once: half a load for each multiply-add in place of two",
            [=] { register_tiled(out, inp, weight, bias, d); });
    const double tiled = 4 * pairs * (1.0 / GEMM_MR + 1.0 / GEMM_NR) + repacking + results;
    requested(tiled);
    variant("packed",
            "8 x 48 results in registers, the weight repacked so that it is read front to back, single values of inp "
            "multiplied with vectors of it: no sums over lanes (llmc/cpu/gemm.h, one thread)",
            [=] { on_one_thread([=] { matmul_forward(out, inp, weight, bias, d.rows, d.C, d.OC); }); });
    requested(tiled);
    variant("shipped", "blocks of the result shared out to the threads",
            [=] { matmul_forward(out, inp, weight, bias, d.rows, d.C, d.OC); });
    bytes(2.0 * (d.rows * d.C + d.C * d.OC + d.rows * d.OC));
    variant(
        "bf16-portable",
        "bf16 without a unit for it: half the bytes, but each pair is widened by a shift and a mask before it is "
        "multiplied",
        [=] {
            const MatrixUnit unit = device.unit;
            device.unit = UNIT_PORTABLE;
            matmul_forward(out16, inp16, weight16, bias16, d.rows, d.C, d.OC);
            device.unit = unit;
        },
        IN_BF16);
    variant(
        "bf16-shipped",
        "pairs of bf16 on the matrix unit: AMX multiplies 16 x 32 by 32 x 16 in one instruction, AVX512-BF16 twice "
        "what an FMA does (llmc/cpu/gemm_bf16.h)",
        [=] { matmul_forward(out16, inp16, weight16, bias16, d.rows, d.C, d.OC); }, IN_BF16);
}

BENCH("matmul_backward", dims("rows", "C", "OC"), shapes({{256, 768, 3072}, {1024, 768, 3072}, {33, 80, 49}})) {
    const Dims d{shape[0], shape[1], shape[2]};
    float *inp = random_floats(d.rows * d.C), *weight = random_floats(d.OC * d.C), *dout = random_floats(d.rows * d.OC);
    float *dinp = buffer<float>(d.rows * d.C), *dweight = buffer<float>(d.OC * d.C), *dbias = buffer<float>(d.OC);
    bf16 *inp16 = as_bf16(inp, d.rows * d.C), *weight16 = as_bf16(weight, d.OC * d.C),
         *dout16 = as_bf16(dout, d.rows * d.OC);
    bf16 *dinp16 = buffer<bf16>(d.rows * d.C), *dweight16 = buffer<bf16>(d.OC * d.C), *dbias16 = buffer<bf16>(d.OC);
    flops(4.0 * d.rows * d.C * d.OC), bytes(4.0 * (2 * d.rows * d.C + 2 * d.C * d.OC + d.rows * d.OC));
    output("dinp", dinp, d.rows * d.C, sum_tolerance(d.OC)),
        output("dweight", dweight, d.OC * d.C, sum_tolerance(d.rows)),
        output("dbias", dbias, d.OC, sum_tolerance(d.rows));
    output("dinp", dinp16, d.rows * d.C, bf16_tolerance(1, d.OC)),
        output("dweight", dweight16, d.OC * d.C, bf16_tolerance(1, d.rows)),
        output("dbias", dbias16, d.OC, bf16_tolerance(1, d.rows));
    expected([=] { reference::matmul_backward(dinp, dweight, dbias, dout, inp, weight, d.rows, d.C, d.OC, false); });
    variant("naive", "one loop over rows and outputs; dinp and dweight are loaded and stored for each multiply-add",
            [=] { reference::matmul_backward(dinp, dweight, dbias, dout, inp, weight, d.rows, d.C, d.OC, false); });
    variant("shipped",
            "two products by the kernel of the forward pass; dout is packed transposed for that of the weight",
            [=] { matmul_backward(dinp, dweight, dbias, dout, inp, weight, d.rows, d.C, d.OC, false); });
    bytes(2.0 * (2 * d.rows * d.C + 2 * d.C * d.OC + d.rows * d.OC));
    variant(
        "bf16-shipped", "both on the matrix unit; dout is transposed once, by all threads",
        [=] { matmul_backward(dinp16, dweight16, dbias16, dout16, inp16, weight16, d.rows, d.C, d.OC, false); },
        IN_BF16);
}
