// The classifier: the logits of all tokens, their softmax and cross-entropy, and the gradients of
// both operands.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/reference.h"

// The loss of one row and the gradients of its logits x (Vp), as the formula says.
static float naive_row(float* x, int target, int64_t V, int64_t Vp, float dloss) {
    const float top = *std::max_element(x, x + V), target_logit = x[target];
    float total = 0;
    for (int64_t v = 0; v < V; v++) total += std::exp(x[v] - top);
    for (int64_t v = 0; v < V; v++) x[v] = (std::exp(x[v] - top) / total - (v == target ? 1.0f : 0.0f)) * dloss;
    for (int64_t v = V; v < Vp; v++) x[v] = 0;
    return std::log(total) - (target_logit - top);
}

BENCH("classifier", dims("rows", "C", "V"), shapes({{1024, 768, 50257}, {33, 80, 300}})) {
    const int64_t rows = shape[0], C = shape[1], V = shape[2], Vp = round_up(V, 128);
    const float *inp = random_floats(rows * C), *wte = random_floats(Vp * C, 0.05);
    float *losses = buffer<float>(rows), *logits = buffer<float>(rows * Vp);
    float *dinp = buffer<float>(rows * C), *dwte = buffer<float>(Vp * C), *dwte_sums = buffer<float>(Vp * C);
    const bf16 *inp16 = as_bf16(inp, rows * C), *wte16 = as_bf16(wte, Vp * C);
    bf16 *logits16 = buffer<bf16>(rows * Vp), *dinp16 = buffer<bf16>(rows * C), *dwte16 = buffer<bf16>(Vp * C);
    int* targets = buffer<int>(rows);
    for (int64_t i = 0; i < rows; i++) targets[i] = (int)(i * 7919 % V);
    const float dloss = 1.0f / (float)rows;
    output("dinp", dinp, rows * C, 4 * sum_tolerance(C + V));
    output("dwte", dwte, Vp * C, 4 * sum_tolerance(C + rows));
    // A logit that is rounded changes e^logit by |logit| u, more than one rounding of the result
    // would.
    output("dinp", dinp16, rows * C, bf16_tolerance(12, C + V));
    output("dwte", dwte16, Vp * C, bf16_tolerance(12, C + rows));

    // The logits of all rows in memory, which are read again for the softmax, its gradient and each
    // product.
    auto unfused = [=] {
        matmul_forward(logits, inp, wte, (const float*)nullptr, rows, C, Vp);
        parallel_for(rows, [&](int64_t r) { losses[r] = naive_row(logits + r * Vp, targets[r], V, Vp, dloss); });
        matmul_backward(dinp, dwte, (float*)nullptr, logits, inp, wte, rows, C, Vp, false);
    };
    auto fused = [=] {
        matmul_forward(logits, inp, wte, (const float*)nullptr, rows, C, Vp);
        parallel_for(rows, [&](int64_t r) { losses[r] = softmax_loss_row(logits + r * Vp, targets[r], V, Vp, dloss); });
        matmul_backward(dinp, dwte, (float*)nullptr, logits, inp, wte, rows, C, Vp, false);
    };
    auto in_chunks = [=] { classifier(losses, dinp, dwte, logits, inp, wte, targets, rows, C, V, Vp, dloss, false); };
    auto in_chunks_bf16 = [=] {
        classifier(losses, dinp16, dwte16, logits16, inp16, wte16, targets, rows, C, V, Vp, dloss, false, dwte_sums);
    };
    expected(unfused);
    flops(6.0 * rows * C * Vp);
    bytes(4.0 * (2 * Vp * C + 4 * rows * C));  // wte read, dwte written; the logits need not leave the caches
    variant("naive",
            "fast products, but the softmax as the formula says: exponentials one at a time, and each computed twice",
            unfused);
    variant("fused", "loss and gradient of a row in one function, exponentials in vectors and computed once", fused);
    variant("shipped",
            "512 rows at a time: the logits need memory for 512 rows only, whatever B and T are; but wte and dwte are "
            "read again for each chunk",
            in_chunks);
    bytes(2.0 * (2 * Vp * C + 4 * rows * C));
    variant("bf16-shipped", "products on the matrix unit; dwte is summed over the chunks in fp32", in_chunks_bf16,
            IN_BF16);
}
