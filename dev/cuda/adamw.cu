// AdamW, with fp32 master weights and with stochastic rounding. Memory-bound.
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/adamw.cuh"

// One kernel per line of the formula, one thread per parameter.
__global__ void adamw_m_kernel(float* m, const bf16* g, size_t n, UpdateConstants k) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) m[i] = k.beta1 * m[i] + (1 - k.beta1) * (float)g[i];
}
__global__ void adamw_v_kernel(float* v, const bf16* g, size_t n, UpdateConstants k) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) v[i] = k.beta2 * v[i] + (1 - k.beta2) * (float)g[i] * (float)g[i];
}
__global__ void adamw_p_kernel(bf16* p, float* master, const float* m, const float* v, size_t n, UpdateConstants k) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float step = m[i] / k.correction1 / (sqrtf(v[i] / k.correction2) + k.eps) + k.weight_decay * master[i];
    p[i] = (bf16)(master[i] -= k.learning_rate * step);
}
// All of it in one kernel, one thread per parameter. STOCHASTIC: no master; the weight itself is
// rounded up or down at random.
template <bool STOCHASTIC>
__global__ void adamw_fused_kernel(bf16* p, float* master, float* m, float* v, const bf16* g, size_t n,
                                   UpdateConstants k, uint64_t seed) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float gi = (float)g[i], mi = k.beta1 * m[i] + (1 - k.beta1) * gi,
                vi = k.beta2 * v[i] + (1 - k.beta2) * gi * gi, old = STOCHASTIC ? (float)p[i] : master[i];
    m[i] = mi, v[i] = vi;
    const float updated =
        old - k.learning_rate * (mi / k.correction1 / (sqrtf(vi / k.correction2) + k.eps) + k.weight_decay * old);
    if (STOCHASTIC) p[i] = round_stochastically(updated, hash_bits(seed, i));
    else master[i] = updated, p[i] = (bf16)updated;
}

// Results that want an update, without clipping.
static DeviceResults* wanted_results() {
    DeviceResults r{};
    r.wanted = 1, r.grad_scale = 1;
    DeviceResults* d = (DeviceResults*)device_buffer<char>(256);
    if (d) copy_to_device(d, &r, sizeof(r), stream);
    return d;
}
static DecayRanges decay_all(int64_t n) {
    DecayRanges r{};
    r.layer_elems = r.layers_end = n, r.count[0] = 1, r.end[0][0] = n;
    return r;
}

BENCH("adamw", dims("n"), shapes({{64 << 20}, {16 * 77}}, counted({1 << 16}))) {
    const int64_t n = shape[0];
    float *p0 = random_floats(n), *g = random_floats(n, 0.1), *m0 = random_floats(n, 0.1), *v0 = random_floats(n, 0.01),
          *p = buffer<float>(n), *m = buffer<float>(n), *v = buffer<float>(n);
    for (int64_t i = 0; i < n; i++) v0[i] = std::fabs(v0[i]) + 1e-4f;
    bf16 *d_p = device_buffer<bf16>(n), *d_g = on_device<bf16>(g, n);
    float *d_master = device_buffer<float>(n), *d_m = device_buffer<float>(n), *d_v = device_buffer<float>(n);
    const UpdateConstants k = update_constants(1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 3);
    DeviceResults* results = wanted_results();
    const DecayRanges ranges = decay_all(n);
    const SliceMap all{n, n, 0, 1, 0};
    bytes(28.0 * n);
    // stochastic rounding changes a value by up to a spacing of bf16, twice as much as rounding to
    // nearest
    output("params", p, n, 0), device_output("params", d_p, n, bf16_tolerance(4, 1));
    output("m", m, n, 0), device_output("m", d_m, n, 1e-6);
    setup([=] {
        std::copy(p0, p0 + n, p), std::copy(m0, m0 + n, m), std::copy(v0, v0 + n, v);
        put_back(d_p, p0, n), put_back(d_master, p0, n), put_back(d_m, m0, n), put_back(d_v, v0, n);
    });
    expected([=] { reference::adamw_update(p, (float*)nullptr, m, v, g, n, k); });
    const dim3 blocks = blocks_for(n, 256);
    auto three_kernels = [=] {
        launch("adamw_m", adamw_m_kernel, blocks, 256, 0, stream, d_m, d_g, (size_t)n, k);
        launch("adamw_v", adamw_v_kernel, blocks, 256, 0, stream, d_v, d_g, (size_t)n, k);
        launch("adamw_p", adamw_p_kernel, blocks, 256, 0, stream, d_p, d_master, d_m, d_v, (size_t)n, k);
    };
    variant_bf16("three-kernels", "one kernel per line of the formula: m and v are written and then read again",
                 three_kernels);
    auto fused = [=](int threads) {
        launch("adamw_fused", adamw_fused_kernel<false>, blocks_for(n, threads), threads, 0, stream, d_p, d_master, d_m,
               d_v, d_g, (size_t)n, k, (uint64_t)0);
    };
    sweep_bf16("fused", {64, 128, 256, 512, 1024},
               "one kernel, one thread per parameter: everything is read once and written once; -64 to -1024: threads "
               "per block",
               fused);
    auto shipped = [=] { adamw_update(d_p, d_master, d_m, d_v, d_g, all, k, ranges, results, 0, stream); };
    variant_bf16("shipped",
                 "8 parameters per thread, 128 bits per load; one launch for all tensors, which looks up whether an "
                 "element is decayed",
                 shipped);
}

BENCH("stochastic_rounding", dims("n"), shapes({{64 << 20}, {16 * 77}}, counted({1 << 16}))) {
    const int64_t n = shape[0];
    float *p0 = random_floats(n), *g = random_floats(n, 0.1), *m0 = random_floats(n, 0.1), *v0 = random_floats(n, 0.01),
          *p = buffer<float>(n), *m = buffer<float>(n), *v = buffer<float>(n);
    for (int64_t i = 0; i < n; i++) v0[i] = std::fabs(v0[i]) + 1e-4f;
    bf16 *d_p = device_buffer<bf16>(n), *d_g = on_device<bf16>(g, n);
    float *d_m = device_buffer<float>(n), *d_v = device_buffer<float>(n);
    const UpdateConstants k = update_constants(1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 3);
    DeviceResults* results = wanted_results();
    const DecayRanges ranges = decay_all(n);
    const SliceMap all{n, n, 0, 1, 0};
    const uint64_t seed = 7;
    bytes(22.0 * n);
    // stochastic rounding changes a value by up to a spacing of bf16, twice as much as rounding to
    // nearest
    output("params", p, n, 0), device_output("params", d_p, n, bf16_tolerance(4, 1));
    setup([=] {
        std::copy(p0, p0 + n, p), std::copy(m0, m0 + n, m), std::copy(v0, v0 + n, v);
        put_back(d_p, p0, n), put_back(d_m, m0, n), put_back(d_v, v0, n);
    });
    expected([=] { reference::adamw_update(p, (float*)nullptr, m, v, g, n, k); });
    auto scalar = [=] {
        launch("adamw_fused", adamw_fused_kernel<true>, blocks_for(n, 256), 256, 0, stream, d_p, (float*)nullptr, d_m,
               d_v, d_g, (size_t)n, k, seed);
    };
    variant_bf16("scalar", "AdamW without a master copy, one thread per parameter", scalar);
    auto shipped = [=] { adamw_update(d_p, (float*)nullptr, d_m, d_v, d_g, all, k, ranges, results, seed, stream); };
    variant_bf16("shipped",
                 "8 parameters per thread, 128 bits per load; the arithmetic of the hash is hidden behind the loads",
                 shipped);
}
