// The classifier: logits of all words, their softmax and cross-entropy, and the gradients of both
// operands, for rows positions.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/reference.h"

BENCH("classifier", dims("rows", "C", "V"), shapes({{1024, 768, 50257}, {33, 80, 300}})) {
    const int64_t rows = shape[0], C = shape[1], V = shape[2], Vp = round_up(V, 128);
    float *inp = random_floats(rows * C), *wte = random_floats(Vp * C, 0.05), *losses = buffer<float>(rows),
          *dinp = buffer<float>(rows * C), *dwte = buffer<float>(Vp * C), *logits = buffer<float>(rows * Vp),
          *sums = buffer<float>(Vp * C);
    bf16 *inp16 = as_bf16(inp, rows * C), *wte16 = as_bf16(wte, Vp * C), *dinp16 = buffer<bf16>(rows * C),
         *dwte16 = buffer<bf16>(Vp * C), *logits16 = buffer<bf16>(rows * Vp);
    int* targets = buffer<int>(rows);
    for (int64_t i = 0; i < rows; i++) targets[i] = (int)(i * 7919 % V);
    const float dloss = 1.0f / (float)rows;
    // wte read, dwte written; the logits need never leave the caches
    flops(6.0 * rows * C * Vp), bytes(4.0 * (2 * Vp * C + 4 * rows * C));
    output("dinp", dinp, rows * C, 4 * sum_tolerance(C + V)), output("dwte", dwte, Vp * C, 4 * sum_tolerance(C + rows));
    // logits, up to 5, are rounded: an error of 5 u in e^logit
    output("dinp", dinp16, rows * C, bf16_tolerance(12, C + V)),
        output("dwte", dwte16, Vp * C, bf16_tolerance(12, C + rows));
    // All at once: the logits of all rows in memory, read again for the softmax, its gradient and
    // each product.
    auto unfused = [=] {
        matmul_forward(logits, inp, wte, (const float*)nullptr, rows, C, Vp);
        parallel_for(rows, [&](int64_t r) {
            float *x = logits + r * Vp, top = *std::max_element(x, x + V), total = 0;
            for (int64_t v = 0; v < V; v++) total += std::exp(x[v] - top);
            losses[r] = std::log(total) - (x[targets[r]] - top);
            for (int64_t v = 0; v < V; v++)
                x[v] = (std::exp(x[v] - top) / total - (v == targets[r] ? 1.0f : 0.0f)) * dloss;
            for (int64_t v = V; v < Vp; v++) x[v] = 0;
        });
        matmul_backward(dinp, dwte, (float*)nullptr, logits, inp, wte, rows, C, Vp, false);
    };
    auto fused = [=] {
        matmul_forward(logits, inp, wte, (const float*)nullptr, rows, C, Vp);
        parallel_for(rows, [&](int64_t r) { losses[r] = softmax_loss_row(logits + r * Vp, targets[r], V, Vp, dloss); });
        matmul_backward(dinp, dwte, (float*)nullptr, logits, inp, wte, rows, C, Vp, false);
    };
    expected(unfused);
    variant("naive", "fast products, but the softmax as the formula says it: exponentials one at a time, and twice",
            unfused);
    variant("fused", "loss and gradient of a row in one place, exponentials in vectors and once", fused);
    variant(
        "shipped",
        "512 rows at a time: memory for the logits of 512 rows whatever B and T are; wte and dwte pass once a chunk",
        [=] { classifier(losses, dinp, dwte, logits, inp, wte, targets, rows, C, V, Vp, dloss, false); });
    bytes(2.0 * (2 * Vp * C + 4 * rows * C));
    variant(
        "bf16-shipped", "products on the matrix unit; dwte summed over chunks in fp32",
        [=] {
            classifier(losses, dinp16, dwte16, logits16, inp16, wte16, targets, rows, C, V, Vp, dloss, false, sums);
        },
        IN_BF16);
}
