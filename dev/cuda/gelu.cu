// GELU, forward and backward. Memory-bound, so the rungs differ in how they request the same bytes.
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/gelu.cuh"

// One thread per element. Each load of a warp asks for 64 bytes: half a cache line.
__global__ void gelu_scalar_kernel(bf16* out, const bf16* inp, size_t n) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = (float)inp[i];
    out[i] = (bf16)(0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + GELU_CUBIC * x * x * x))));
}
// The same with the logistic function and the fast exponential (llmc/cuda/gelu.cuh).
__global__ void gelu_logistic_kernel(bf16* out, const bf16* inp, size_t n) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (bf16)gelu((float)inp[i]);
}
// One thread per Pack. The gradient of the bias is left to a kernel that reads dinp again.
__global__ void gelu_backward_packed_kernel(bf16* dinp, const bf16* dout, const bf16* inp, size_t n) {
    for_each_pack<bf16>(n, [&](size_t i, int count) {
        const PackFloats<bf16> x = load_some(inp + i, count);
        PackFloats<bf16> d = load_some(dout + i, count);
        for (int k = 0; k < Pack<bf16>::size; k++) d[k] *= gelu_derivative(x[k]);
        store_some(dinp + i, d, count);
    });
}
__global__ void gelu_backward_scalar_kernel(bf16* dinp, const bf16* dout, const bf16* inp, size_t n) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dinp[i] = (bf16)((float)dout[i] * gelu_derivative((float)inp[i]));
}

BENCH("gelu_forward", dims("rows", "C"), shapes({{16384, 3072}, {33, 80}, {1, 7}}, counted({64, 3072}))) {
    const int64_t n = shape[0] * shape[1];
    float *inp = random_floats(n, 4), *out = buffer<float>(n);
    bf16 *d_inp = on_device<bf16>(inp, n), *d_out = device_buffer<bf16>(n);
    bytes(4.0 * n);
    output("out", out, n, 0), device_output("out", d_out, n, bf16_tolerance(1, 20));
    expected([=] { reference::gelu_forward(out, inp, n); });
    auto scalar = [=] {
        launch("gelu_scalar", gelu_scalar_kernel, blocks_for(n, 256), 256, 0, stream, d_out, d_inp, (size_t)n);
    };
    variant_bf16("scalar", "one thread per element, tanhf of the CUDA library", scalar);
    auto logistic = [=](int threads) {
        launch("gelu_logistic", gelu_logistic_kernel, blocks_for(n, threads), threads, 0, stream, d_out, d_inp,
               (size_t)n);
    };
    sweep_bf16("logistic", {64, 128, 256, 512, 1024},
               "the logistic function with the fast exponential: fewer instructions than tanhf; -64 to -1024: threads "
               "per block",
               logistic);
    auto shipped = [=] { gelu_forward(d_out, d_inp, n, stream); };
    variant_bf16("shipped",
                 "128 bits per thread: an eighth of the loads and stores for the same bytes; stores that are the first "
                 "to leave the caches",
                 shipped);
}

// With the gradient of the bias of the linear layer before it, the sums over the rows of dinp.
BENCH("gelu_backward", dims("rows", "C"), shapes({{16384, 3072}, {33, 80}, {1, 8}}, counted({64, 3072}))) {
    const int64_t rows = shape[0], C = shape[1], n = rows * C;
    float *inp = random_floats(n, 4), *dout = random_floats(n), *dinp = buffer<float>(n), *dbias = buffer<float>(C);
    bf16 *d_inp = on_device<bf16>(inp, n), *d_dout = on_device<bf16>(dout, n), *d_dinp = device_buffer<bf16>(n),
         *d_dbias = device_buffer<bf16>(C);
    float* d_partials = device_buffer<float>(COLUMN_SUM_PARTS * C);
    bytes(6.0 * n);
    output("dinp", dinp, n, 0), device_output("dinp", d_dinp, n, bf16_tolerance(1, 20));
    output("dbias", dbias, C, 0), device_output("dbias", d_dbias, C, bf16_tolerance(2, rows));
    expected([=] {
        reference::gelu_backward(dinp, dout, inp, n);
        std::fill(dbias, dbias + C, 0.0f);
        for (int64_t i = 0; i < n; i++) dbias[i % C] += (float)bf16(dinp[i]);  // of dinp as stored
    });
    bf16* const no_second = nullptr;
    auto bias = [=] {
        sum_parts(d_dbias, no_second, column_sums(d_partials, d_dinp, rows, C, stream), C, false, stream);
    };
    auto scalar = [=] {
        launch("gelu_backward_scalar", gelu_backward_scalar_kernel, blocks_for(n, 256), 256, 0, stream, d_dinp, d_dout,
               d_inp, (size_t)n);
        bias();
    };
    variant_bf16("scalar", "one thread per element; the bias's gradient by its own kernel, which reads dinp again",
                 scalar);
    auto packed = [=] {
        launch("gelu_backward_packed", gelu_backward_packed_kernel, pack_blocks<bf16>(n), PACK_THREADS, 0, stream,
               d_dinp, d_dout, d_inp, (size_t)n);
        bias();
    };
    variant_bf16("packed", "128 bits per thread", packed);
    auto shipped = [=] {
        const ColumnSums sums = gelu_backward(d_dinp, d_partials, d_dout, d_inp, rows, C, stream);
        sum_parts(d_dbias, no_second, sums, C, false, stream);
    };
    variant_bf16("shipped",
                 "warps walk over rows, two at a time with all four loads in flight, and sum dinp on the way: it is "
                 "not read again",
                 shipped);
}
