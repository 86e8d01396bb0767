// Layer normalisation with the residual sum before it: residual = a + b, out = norm(residual), all
// (rows, C). Memory-bound.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/reference.h"

BENCH("layernorm_forward", dims("rows", "C"), shapes({{16384, 768}, {1024, 768}, {33, 80}})) {
    const int64_t rows = shape[0], C = shape[1];
    const float *a = random_floats(rows * C), *b = random_floats(rows * C);
    const float *weight = random_floats(C), *bias = random_floats(C);
    float *residual = buffer<float>(rows * C), *out = buffer<float>(rows * C);
    float *mean = buffer<float>(rows), *rstd = buffer<float>(rows);
    const bf16 *a16 = as_bf16(a, rows * C), *b16 = as_bf16(b, rows * C);
    const bf16 *weight16 = as_bf16(weight, C), *bias16 = as_bf16(bias, C);
    bf16 *residual16 = buffer<bf16>(rows * C), *out16 = buffer<bf16>(rows * C);
    output("out", out, rows * C, sum_tolerance(C));
    output("out", out16, rows * C, bf16_tolerance(2, C));

    auto naive = [=] { reference::residual_layernorm_forward(residual, out, mean, rstd, a, b, weight, bias, rows, C); };
    auto separate = [=] {
        residual_forward(residual, a, b, rows * C);
        layernorm_forward(out, mean, rstd, residual, weight, bias, rows, C);
    };
    auto fused = [=] { residual_layernorm_forward(residual, out, mean, rstd, a, b, weight, bias, rows, C); };
    auto fused_bf16 = [=] {
        residual_layernorm_forward(residual16, out16, mean, rstd, a16, b16, weight16, bias16, rows, C);
    };
    expected(naive);
    bytes(16.0 * rows * C);  // two values read, two written
    variant("naive",
            "the residual sum, then three passes over each row, in which each addition waits for the one before it",
            naive);
    variant("vectorised",
            "the three passes in vectors, with the row in the first-level cache; the residual sum still goes through "
            "memory (one thread)",
            [=] { on_one_thread(separate); });
    variant("fused",
            "each row is added up and normalised while it is in the cache: one value less per element is read from "
            "memory (one thread)",
            [=] { on_one_thread(fused); });
    variant("shipped", "rows are split among the threads", fused);
    bytes(8.0 * rows * C);
    variant("bf16-shipped", "half the bytes", fused_bf16, IN_BF16);
}

BENCH("layernorm_backward", dims("rows", "C"), shapes({{16384, 768}, {1024, 768}, {33, 80}})) {
    const int64_t rows = shape[0], C = shape[1];
    const float *inp = random_floats(rows * C), *dout = random_floats(rows * C), *before = random_floats(rows * C);
    const float *weight = random_floats(C), *bias = random_floats(C);
    float *mean = buffer<float>(rows), *rstd = buffer<float>(rows);
    float *dinp = buffer<float>(rows * C), *dweight = buffer<float>(C), *dbias = buffer<float>(C);
    if (!current->only_listed) layernorm_forward(dinp, mean, rstd, inp, weight, bias, rows, C);
    const bf16 *inp16 = as_bf16(inp, rows * C), *dout16 = as_bf16(dout, rows * C), *weight16 = as_bf16(weight, C);
    bf16 *dinp16 = buffer<bf16>(rows * C), *dweight16 = buffer<bf16>(C), *dbias16 = buffer<bf16>(C);
    output("dinp", dinp, rows * C, sum_tolerance(C));
    output("dweight", dweight, C, sum_tolerance(rows));
    output("dbias", dbias, C, sum_tolerance(rows));
    output("dinp", dinp16, rows * C, bf16_tolerance(1, C));
    output("dweight", dweight16, C, bf16_tolerance(1, rows));
    output("dbias", dbias16, C, bf16_tolerance(1, rows));
    setup([=] {
        std::copy(before, before + rows * C, dinp);
        std::copy(before, before + rows * C, dinp16);
    });

    auto naive = [=] {
        reference::layernorm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, rows, C, false);
    };
    auto vectorised = [=] { layernorm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, rows, C, false); };
    auto vectorised_bf16 = [=] {
        layernorm_backward(dinp16, dweight16, dbias16, dout16, inp16, weight16, mean, rstd, rows, C, false);
    };
    expected(naive);
    bytes(16.0 * rows * C);  // inp and dout read, dinp read and written
    variant("naive", "row by row, value by value", naive);
    variant("vectorised",
            "row by row in vectors; the rows are cut into 64 pieces, each with its own sums over rows, which are "
            "added at the end (one thread)",
            [=] { on_one_thread(vectorised); });
    variant("shipped", "the pieces are split among the threads", vectorised);
    bytes(8.0 * rows * C);
    variant("bf16-shipped", "half the bytes", vectorised_bf16, IN_BF16);
}
