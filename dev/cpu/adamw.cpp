// AdamW on n parameters: memory-bound, and no value can be skipped.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/reference.h"

// One pass for each line of the formula, as it would be written with operations on whole arrays.
static void separate(float* p, float* m, float* v, const float* g, int64_t n, const UpdateConstants& k) {
    for (int64_t i = 0; i < n; i++) m[i] = k.beta1 * m[i] + (1 - k.beta1) * g[i];
    for (int64_t i = 0; i < n; i++) v[i] = k.beta2 * v[i] + (1 - k.beta2) * g[i] * g[i];
    for (int64_t i = 0; i < n; i++) p[i] -= k.learning_rate * k.weight_decay * p[i];
    for (int64_t i = 0; i < n; i++)
        p[i] -= k.learning_rate * (m[i] / k.correction1) / (std::sqrt(v[i] / k.correction2) + k.eps);
}

BENCH("adamw", dims("n"), shapes({{64 << 20}, {1000}})) {
    const int64_t n = shape[0];
    const float *p0 = random_floats(n), *m0 = random_floats(n, 0.1), *g = random_floats(n, 0.1);
    float* v0 = random_floats(n, 0.01);
    for (int64_t i = 0; i < n; i++) v0[i] = std::fabs(v0[i]) + 1e-4f;
    float *p = buffer<float>(n), *m = buffer<float>(n), *v = buffer<float>(n), *master = buffer<float>(n);
    float* const no_master = nullptr;
    bf16 *p16 = buffer<bf16>(n), *g16 = as_bf16(g, n);
    const UpdateConstants k = update_constants(1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 3);
    output("params", p, n, 1e-6);
    output("m", m, n, 1e-6);
    // Stochastic rounding is off by up to twice as much as rounding to nearest: 2 = sqrt(4).
    output("params", p16, n, bf16_tolerance(4, 1));
    setup([=] {
        std::copy(p0, p0 + n, p);
        std::copy(m0, m0 + n, m);
        std::copy(v0, v0 + n, v);
        std::copy(p0, p0 + n, master);
        std::copy(p0, p0 + n, p16);
    });
    expected([=] { reference::adamw_update(p, no_master, m, v, g, n, k); });

    auto fused = [=] { adamw_update(p, no_master, m, v, g, n, k); };
    auto with_master = [=] { adamw_update(p16, master, m, v, g16, n, k); };
    auto rounded = [=] { adamw_update(p16, no_master, m, v, g16, n, k, 7, 0); };
    bytes(28.0 * n);  // 4 values read, 3 written
    variant("separate",
            "one pass over the arrays for each line of the formula: values are read and written several times",
            [=] { separate(p, m, v, g, n, k); });
    variant("fused", "one pass in vectors: each value is read once and written at most once (one thread)",
            [=] { on_one_thread(fused); });
    variant("shipped", "split among the threads, which together get more bandwidth out of the memory than one", fused);
    variant("bf16-shipped", "bf16 weights and gradients, and an fp32 master copy: the same number of bytes",
            with_master, IN_BF16);
    bytes(22.0 * n);
    variant("bf16-rounded",
            "no master copy, weights rounded stochastically: 6 bytes fewer per parameter, one hash more", rounded,
            IN_BF16);
}
