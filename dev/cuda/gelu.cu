// GELU, forward and backward: bound by memory, so what counts is how the bytes are asked for.
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/gelu.cuh"

// One element a thread. A warp asks for 32 x 2 bytes at once: half a cache line's worth of requests
// for the same bytes.
__global__ void gelu_scalar_kernel(bf16* out, const bf16* inp, size_t n) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = (float)inp[i];
    out[i] = (bf16)(0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + GELU_CUBIC * x * x * x))));
}
__global__ void gelu_logistic_kernel(bf16* out, const bf16* inp, size_t n) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (bf16)gelu((float)inp[i]);
}
__global__ void gelu_backward_scalar_kernel(bf16* dinp, const bf16* dout, const bf16* inp, size_t n) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dinp[i] = (bf16)((float)dout[i] * gelu_derivative((float)inp[i]));
}

BENCH("gelu_forward", dims("rows", "C"), shapes({{16384, 3072}, {33, 80}, {1, 7}})) {
    const int64_t n = shape[0] * shape[1];
    float *inp = random_floats(n, 4), *out = buffer<float>(n);
    bf16 *d_inp = on_device<bf16>(inp, n), *d_out = device_buffer<bf16>(n);
    bytes(4.0 * n), requested_by_all(4.0 * n);
    output("out", out, n, 0), device_output("out", d_out, n, bf16_tolerance(1, 20));
    expected([=] { reference::gelu_forward(out, inp, n); });
    const dim3 blocks((unsigned)ceil_div(n, 256));
    variant(
        "scalar", "one element a thread, tanh of the library",
        [=] { launch("gelu_scalar", gelu_scalar_kernel, blocks, 256, 0, stream, d_out, d_inp, (size_t)n); }, IN_BF16);
    sweep(
        "logistic", {64, 128, 256, 512, 1024},
        "the logistic function with the fast exponential: a tenth of the instructions, which had begun to show beside "
        "the memory; threads a block",
        [=](int threads) {
            launch("gelu_logistic", gelu_logistic_kernel, dim3((unsigned)ceil_div(n, threads)), threads, 0, stream,
                   d_out, d_inp, (size_t)n);
        },
        IN_BF16);
    variant(
        "shipped",
        "128 bits a thread: an eighth of the loads and stores for the same bytes, which leave the caches to others "
        "when stored",
        [=] { gelu_forward(d_out, d_inp, n, stream); }, IN_BF16);
}

BENCH("gelu_backward", dims("rows", "C"), shapes({{16384, 3072}, {33, 80}, {1, 7}})) {
    const int64_t n = shape[0] * shape[1];
    float *inp = random_floats(n, 4), *dout = random_floats(n), *dinp = buffer<float>(n);
    bf16 *d_inp = on_device<bf16>(inp, n), *d_dout = on_device<bf16>(dout, n), *d_dinp = device_buffer<bf16>(n);
    bytes(6.0 * n), requested_by_all(6.0 * n);
    output("dinp", dinp, n, 0), device_output("dinp", d_dinp, n, bf16_tolerance(1, 20));
    expected([=] { reference::gelu_backward(dinp, dout, inp, n); });
    variant(
        "scalar", "one element a thread",
        [=] {
            launch("gelu_backward_scalar", gelu_backward_scalar_kernel, dim3((unsigned)ceil_div(n, 256)), 256, 0,
                   stream, d_dinp, d_dout, d_inp, (size_t)n);
        },
        IN_BF16);
    variant(
        "shipped", "128 bits a thread", [=] { gelu_backward(d_dinp, d_dout, d_inp, n, stream); }, IN_BF16);
}
