// AdamW, with fp32 master weights and with stochastic rounding: bound by memory.
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/adamw.cuh"

__global__ void adamw_m_kernel(float* m, const bf16* g, size_t n, AdamW k) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) m[i] = k.beta1 * m[i] + (1 - k.beta1) * (float)g[i];
}
__global__ void adamw_v_kernel(float* v, const bf16* g, size_t n, AdamW k) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) v[i] = k.beta2 * v[i] + (1 - k.beta2) * (float)g[i] * (float)g[i];
}
__global__ void adamw_p_kernel(bf16* p, float* master, const float* m, const float* v, size_t n, AdamW k) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float step = m[i] / k.correction1 / (sqrtf(v[i] / k.correction2) + k.eps) + k.weight_decay * master[i];
    p[i] = (bf16)(master[i] -= k.learning_rate * step);
}
// All of it at once, a parameter a thread. STOCHASTIC: no master; the weight itself is rounded up
// or down.
template <bool STOCHASTIC>
__global__ void adamw_fused_kernel(bf16* p, float* master, float* m, float* v, const bf16* g, size_t n, AdamW k,
                                   uint64_t seed) {
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

static DeviceResults* wanted_results() {
    DeviceResults r{};
    r.wanted = 1, r.grad_scale = 1;
    DeviceResults* d = (DeviceResults*)device_buffer<char>(256);
    if (d) check_cuda(cudaMemcpy(d, &r, sizeof(r), cudaMemcpyHostToDevice), "copying");
    return d;
}
static DecayRanges decay_all(int64_t n) {
    DecayRanges r{};
    r.layer_elems = r.layers_end = n, r.count[0] = 1, r.end[0][0] = n;
    return r;
}

BENCH("adamw", dims("n"), shapes({{64 << 20}, {16 * 77}})) {
    const int64_t n = shape[0];
    float *p0 = random_floats(n), *g = random_floats(n, 0.1), *m0 = random_floats(n, 0.1), *v0 = random_floats(n, 0.01),
          *p = buffer<float>(n), *m = buffer<float>(n), *v = buffer<float>(n);
    for (int64_t i = 0; i < n; i++) v0[i] = std::fabs(v0[i]) + 1e-4f;
    bf16 *d_p = device_buffer<bf16>(n), *d_g = on_device<bf16>(g, n);
    float *d_master = device_buffer<float>(n), *d_m = device_buffer<float>(n), *d_v = device_buffer<float>(n);
    const AdamW k = adamw_constants(1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 3);
    DeviceResults* results = wanted_results();
    const DecayRanges ranges = decay_all(n);
    const SliceMap all{n, n, 0, 1, 0};
    bytes(28.0 * n), requested_by_all(28.0 * n);
    // a stochastic rounding is off by up to a unit, twice that of one to nearest
    output("params", p, n, 0), device_output("params", d_p, n, bf16_tolerance(4, 1));
    output("m", m, n, 0), device_output("m", d_m, n, 1e-6);
    setup([=] {
        std::copy(p0, p0 + n, p), std::copy(m0, m0 + n, m), std::copy(v0, v0 + n, v);
        put_back(d_p, p0, n), put_back(d_master, p0, n), put_back(d_m, m0, n), put_back(d_v, v0, n);
    });
    expected([=] { reference::adamw_update(p, (float*)nullptr, m, v, g, n, k); });
    const dim3 blocks((unsigned)ceil_div(n, 256));
    requested((4 + 4 + 2 + 4 + 4 + 2 + 8 + 4 + 4 + 2) * (double)n);
    variant(
        "three-kernels", "a kernel for each line of the formula: m and v are written, and read again",
        [=] {
            launch("adamw_m", adamw_m_kernel, blocks, 256, 0, stream, d_m, d_g, (size_t)n, k);
            launch("adamw_v", adamw_v_kernel, blocks, 256, 0, stream, d_v, d_g, (size_t)n, k);
            launch("adamw_p", adamw_p_kernel, blocks, 256, 0, stream, d_p, d_master, d_m, d_v, (size_t)n, k);
        },
        IN_BF16);
    sweep(
        "fused", {64, 128, 256, 512, 1024},
        "one pass, a parameter a thread: everything read once and written once; threads a block",
        [=](int threads) {
            launch("adamw_fused", adamw_fused_kernel<false>, dim3((unsigned)ceil_div(n, threads)), threads, 0, stream,
                   d_p, d_master, d_m, d_v, d_g, (size_t)n, k, (uint64_t)0);
        },
        IN_BF16);
    variant(
        "shipped",
        "8 parameters a thread, 128 bits a load; one launch for all tensors, whether a place is decayed is looked up",
        [=] { adamw_update(d_p, d_master, d_m, d_v, d_g, all, k, ranges, results, 0, stream); }, IN_BF16);
}

BENCH("stochastic_rounding", dims("n"), shapes({{64 << 20}, {16 * 77}})) {
    const int64_t n = shape[0];
    float *p0 = random_floats(n), *g = random_floats(n, 0.1), *m0 = random_floats(n, 0.1), *v0 = random_floats(n, 0.01),
          *p = buffer<float>(n), *m = buffer<float>(n), *v = buffer<float>(n);
    for (int64_t i = 0; i < n; i++) v0[i] = std::fabs(v0[i]) + 1e-4f;
    bf16 *d_p = device_buffer<bf16>(n), *d_g = on_device<bf16>(g, n);
    float *d_m = device_buffer<float>(n), *d_v = device_buffer<float>(n);
    const AdamW k = adamw_constants(1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 3);
    DeviceResults* results = wanted_results();
    const DecayRanges ranges = decay_all(n);
    const SliceMap all{n, n, 0, 1, 0};
    const uint64_t seed = 7;
    bytes(22.0 * n), requested_by_all(22.0 * n);
    // off by up to a unit of bf16, twice a rounding to nearest
    output("params", p, n, 0), device_output("params", d_p, n, bf16_tolerance(4, 1));
    setup([=] {
        std::copy(p0, p0 + n, p), std::copy(m0, m0 + n, m), std::copy(v0, v0 + n, v);
        put_back(d_p, p0, n), put_back(d_m, m0, n), put_back(d_v, v0, n);
    });
    expected([=] { reference::adamw_update(p, (float*)nullptr, m, v, g, n, k); });
    variant(
        "scalar", "AdamW without a master, a parameter a thread",
        [=] {
            launch("adamw_fused", adamw_fused_kernel<true>, dim3((unsigned)ceil_div(n, 256)), 256, 0, stream, d_p,
                   (float*)nullptr, d_m, d_v, d_g, (size_t)n, k, seed);
        },
        IN_BF16);
    variant(
        "shipped", "8 parameters a thread; the hash of each place is arithmetic that the memory hides",
        [=] { adamw_update(d_p, (float*)nullptr, d_m, d_v, d_g, all, k, ranges, results, seed, stream); }, IN_BF16);
}
