// AdamW on n parameters: bound by memory, and nothing of it can be skipped.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/reference.h"

// A pass for each line of the formula, as it would be written with whole arrays.
static void separate(float* p, float* m, float* v, const float* g, int64_t n, const AdamW& k) {
    for (int64_t i = 0; i < n; i++) m[i] = k.beta1 * m[i] + (1 - k.beta1) * g[i];
    for (int64_t i = 0; i < n; i++) v[i] = k.beta2 * v[i] + (1 - k.beta2) * g[i] * g[i];
    for (int64_t i = 0; i < n; i++) p[i] -= k.learning_rate * k.weight_decay * p[i];
    for (int64_t i = 0; i < n; i++)
        p[i] -= k.learning_rate * (m[i] / k.correction1) / (std::sqrt(v[i] / k.correction2) + k.eps);
}

BENCH("adamw", dims("n"), shapes({{64 << 20}, {1000}})) {
    const int64_t n = shape[0];
    float *p0 = random_floats(n), *g = random_floats(n, 0.1), *m0 = random_floats(n, 0.1), *v0 = random_floats(n, 0.01),
          *p = buffer<float>(n), *m = buffer<float>(n), *v = buffer<float>(n);
    for (int64_t i = 0; i < n; i++) v0[i] = std::fabs(v0[i]) + 1e-4f;
    bf16 *p16 = buffer<bf16>(n), *g16 = as_bf16(g, n);
    float* master = buffer<float>(n);
    const AdamW k = adamw_constants(1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 3);
    bytes(28.0 * n);  // 4 values read, 3 written
    // a stochastic rounding is off by up to a unit, twice that of one to nearest
    output("params", p, n, 1e-6), output("m", m, n, 1e-6), output("params", p16, n, bf16_tolerance(4, 1));
    setup([=] {
        std::copy(p0, p0 + n, p), std::copy(m0, m0 + n, m), std::copy(v0, v0 + n, v), std::copy(p0, p0 + n, master),
            std::copy(p0, p0 + n, p16);
    });
    expected([=] { reference::adamw_update(p, (float*)nullptr, m, v, g, n, k); });
    variant("separate", "a pass for each line of the formula: every array read and written again",
            [=] { separate(p, m, v, g, n, k); });
    variant("fused", "one pass; each value read once and written once, in vectors (one thread)",
            [=] { on_one_thread([=] { adamw_update(p, (float*)nullptr, m, v, g, n, k); }); });
    variant("shipped", "shared out to the threads, which together draw more from the memory than one",
            [=] { adamw_update(p, (float*)nullptr, m, v, g, n, k); });
    variant(
        "bf16-shipped", "bf16 weights and gradients beside an fp32 master: as many bytes",
        [=] { adamw_update(p16, master, m, v, g16, n, k); }, IN_BF16);
    bytes(22.0 * n);
    variant(
        "bf16-rounded", "no master, weights rounded stochastically: 6 bytes less, a hash more",
        [=] { adamw_update(p16, (float*)nullptr, m, v, g16, n, k, 7, 0); }, IN_BF16);
}
