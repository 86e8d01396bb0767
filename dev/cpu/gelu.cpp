// GELU, forward and backward. In training it is part of the product of the linear layer before it
// (llmc/cpu/matmul.h); alone, it is what recomputation costs.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/gelu.h"
#include "llmc/cpu/reference.h"

// The formula with e^x in vectors: tanh(u) = 1 - 2 / (1 + e^(2u)).
static void with_tanh(float* out, const float* inp, int64_t n) {
    for_each_vector(n, [&](size_t i, size_t count) {
        const vfloat x = load_some(inp + i, count), u = (x + x * x * x * GELU_CUBIC) * GELU_SCALE,
                     tanh_u = 1.0f - 2.0f / (1.0f + exp(u * 2.0f));
        store_some(out + i, x * (tanh_u + 1.0f) * 0.5f, count);
    });
}

BENCH("gelu_forward", dims("rows", "C"), shapes({{8192, 3072}, {256, 3072}, {33, 81}})) {
    const int64_t n = shape[0] * shape[1];
    const float* inp = random_floats(n, 4);
    float* out = buffer<float>(n);
    const bf16* inp16 = as_bf16(inp, n);
    bf16* out16 = buffer<bf16>(n);
    output("out", out, n, 1e-6);
    output("out", out16, n, bf16_tolerance(1, 1));

    auto naive = [=] { reference::gelu_forward(out, inp, n); };
    auto logistic = [=] { gelu_forward(out, inp, n); };
    auto logistic_bf16 = [=] { gelu_forward(out16, inp16, n); };
    expected(naive);
    bytes(8.0 * n);
    variant("naive", "the exponential of the C library, in double, one value at a time", naive);
    variant("vectorised", "tanh from an exponential, in vectors (one thread)", [=] { with_tanh(out, inp, n); });
    variant("logistic",
            "x times the logistic function of 2u, the same curve with fewer operations and no cancellation (one "
            "thread)",
            [=] { on_one_thread(logistic); });
    variant("shipped", "split among the threads", logistic);
    bytes(4.0 * n);
    variant("bf16-shipped", "half the bytes; what remains is arithmetic", logistic_bf16, IN_BF16);
}

BENCH("gelu_backward", dims("rows", "C"), shapes({{8192, 3072}, {256, 3072}, {33, 81}})) {
    const int64_t n = shape[0] * shape[1];
    const float *inp = random_floats(n, 4), *dout = random_floats(n);
    float* dinp = buffer<float>(n);
    const bf16 *inp16 = as_bf16(inp, n), *dout16 = as_bf16(dout, n);
    bf16* dinp16 = buffer<bf16>(n);
    output("dinp", dinp, n, 2e-6);
    output("dinp", dinp16, n, bf16_tolerance(1, 1));

    auto naive = [=] { reference::gelu_backward(dinp, dout, inp, n); };
    auto vectorised = [=] { gelu_backward(dinp, dout, inp, n); };
    auto vectorised_bf16 = [=] { gelu_backward(dinp16, dout16, inp16, n); };
    expected(naive);
    bytes(12.0 * n);
    variant("naive", "the exponential of the C library, in double, one value at a time", naive);
    variant("vectorised", "one exponential in vectors gives the logistic function and its derivative (one thread)",
            [=] { on_one_thread(vectorised); });
    variant("shipped", "split among the threads", vectorised);
    bytes(6.0 * n);
    variant("bf16-shipped", "half the bytes", vectorised_bf16, IN_BF16);
}
