// Layer normalisation with the sum before it, residual = inp1 + inp2, out = norm(residual) (rows,
// C): bound by memory.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/reference.h"

BENCH("layernorm_forward", dims("rows", "C"), shapes({{16384, 768}, {1024, 768}, {33, 80}})) {
    const int64_t rows = shape[0], C = shape[1];
    float *a = random_floats(rows * C), *b = random_floats(rows * C), *weight = random_floats(C),
          *bias = random_floats(C);
    float *residual = buffer<float>(rows * C), *out = buffer<float>(rows * C), *mean = buffer<float>(rows),
          *rstd = buffer<float>(rows);
    bf16 *a16 = as_bf16(a, rows * C), *b16 = as_bf16(b, rows * C), *weight16 = as_bf16(weight, C),
         *bias16 = as_bf16(bias, C), *residual16 = buffer<bf16>(rows * C), *out16 = buffer<bf16>(rows * C);
    bytes(16.0 * rows * C);  // two values read, two written
    output("out", out, rows * C, sum_tolerance(C)), output("out", out16, rows * C, bf16_tolerance(2, C));
    expected([=] { reference::residual_layernorm_forward(residual, out, mean, rstd, a, b, weight, bias, rows, C); });
    variant("naive", "the sum, then three passes over each row; the sums wait for every addition",
            [=] { reference::residual_layernorm_forward(residual, out, mean, rstd, a, b, weight, bias, rows, C); });
    variant(
        "vectorised",
        "the three passes in vectors, the row in the first-level cache; the sum before them still goes through memory",
        [=] {
            on_one_thread([=] {
                residual_forward(residual, a, b, rows * C);
                layernorm_forward(out, mean, rstd, residual, weight, bias, rows, C);
            });
        });
    variant(
        "fused", "each row is added up and normalised while it is in the cache: a value less read from memory", [=] {
            on_one_thread([=] { residual_layernorm_forward(residual, out, mean, rstd, a, b, weight, bias, rows, C); });
        });
    variant("shipped", "rows shared out to the threads",
            [=] { residual_layernorm_forward(residual, out, mean, rstd, a, b, weight, bias, rows, C); });
    bytes(8.0 * rows * C);
    variant(
        "bf16-shipped", "half the bytes",
        [=] { residual_layernorm_forward(residual16, out16, mean, rstd, a16, b16, weight16, bias16, rows, C); },
        IN_BF16);
}

BENCH("layernorm_backward", dims("rows", "C"), shapes({{16384, 768}, {1024, 768}, {33, 80}})) {
    const int64_t rows = shape[0], C = shape[1];
    float *inp = random_floats(rows * C), *dout = random_floats(rows * C), *before = random_floats(rows * C),
          *weight = random_floats(C), *bias = random_floats(C), *mean = buffer<float>(rows),
          *rstd = buffer<float>(rows);
    float *dinp = buffer<float>(rows * C), *dweight = buffer<float>(C), *dbias = buffer<float>(C);
    if (!current->only_listed) layernorm_forward(dinp, mean, rstd, inp, weight, bias, rows, C);
    bf16 *inp16 = as_bf16(inp, rows * C), *dout16 = as_bf16(dout, rows * C), *weight16 = as_bf16(weight, C),
         *dinp16 = buffer<bf16>(rows * C), *dweight16 = buffer<bf16>(C), *dbias16 = buffer<bf16>(C);
    bytes(16.0 * rows * C);  // inp, dout read, dinp read and written; the sums over rows read inp and dout once more
    output("dinp", dinp, rows * C, sum_tolerance(C)), output("dweight", dweight, C, sum_tolerance(rows)),
        output("dbias", dbias, C, sum_tolerance(rows));
    output("dinp", dinp16, rows * C, bf16_tolerance(1, C)), output("dweight", dweight16, C, bf16_tolerance(1, rows)),
        output("dbias", dbias16, C, bf16_tolerance(1, rows));
    setup([=] { std::copy(before, before + rows * C, dinp), std::copy(before, before + rows * C, dinp16); });
    expected(
        [=] { reference::layernorm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, rows, C, false); });
    variant("naive", "row by row, value by value", [=] {
        reference::layernorm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, rows, C, false);
    });
    variant("vectorised", "sums over rows column by column in registers, then each row in vectors (one thread)", [=] {
        on_one_thread([=] { layernorm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, rows, C, false); });
    });
    variant("shipped", "columns, then rows, shared out to the threads",
            [=] { layernorm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, rows, C, false); });
    bytes(8.0 * rows * C);
    variant(
        "bf16-shipped", "half the bytes",
        [=] { layernorm_backward(dinp16, dweight16, dbias16, dout16, inp16, weight16, mean, rstd, rows, C, false); },
        IN_BF16);
}
