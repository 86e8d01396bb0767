// GELU; formulas and shapes: llmc/cpu/gelu.h. Forward: one thread per Pack of 128 bits, 256 threads
// per block. Backward: warps walk over rows, so that the gradient of the bias, a sum over rows, is
// left on the way. Memory-bound: forward moves 2 values per element, backward 3.
#pragma once
#include "llmc/gpt2/constants.h"
#include "llmc/cuda/column_sums.cuh"
#include "llmc/cuda/mma.cuh"

// Few instructions, of which a multiprocessor issues no more than it must while memory is on its
// way:
//
//     gelu(x)  = x s,    s = 1 / (1 + 2^(x (a + b x^2))),    a = -2 log2(e) GELU_SCALE,  b = a GELU_CUBIC
//     gelu'(x) = s + s (1 - s) x (c + d x^2),                c = 2 GELU_SCALE,           d = 3 c GELU_CUBIC
__device__ inline float gelu_logistic(float x) {
    constexpr float A = -2 * LOG2_E * GELU_SCALE, B = A * GELU_CUBIC;
    return __fdividef(1.0f, 1.0f + exp2_flushed(x * (A + B * (x * x))));
}
__device__ inline float gelu(float x) { return x * gelu_logistic(x); }
__device__ inline float gelu_derivative(float x) {
    constexpr float C = 2 * GELU_SCALE, D = 3 * C * GELU_CUBIC;
    const float s = gelu_logistic(x), slope = s - s * s, w = x * (C + D * (x * x));
    return slope == 0.0f ? s : s + slope * w;  // where w overflows, slope is 0 and the product would be NaN
}

template <class floatX>
__global__ void gelu_forward_kernel(floatX* out, const floatX* inp, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        const PackFloats<floatX> x = load_some(inp + i, count);
        PackFloats<floatX> y;
        for (int k = 0; k < Pack<floatX>::size; k++) y[k] = gelu(x[k]);
        store_some(out + i, y, count);
    });
}
constexpr int GELU_ROWS = 2;  // rows of which a lane loads both Packs before it computes the first
// The backward kernel, which also leaves the parts of the sums over the rows of dinp, as stored
// (column_sums.cuh).
template <class floatX>
__global__ void __launch_bounds__(32 * COLUMN_SUM_WARPS, 8)
    gelu_backward_kernel(floatX* dinp, float* partials, const floatX* dout, const floatX* inp, int64_t rows,
                         int64_t n) {
    constexpr int N = Pack<floatX>::size, ROWS = GELU_ROWS;
    float sum[N] = {};
    for_own_rows<floatX, ROWS>(rows, n, [&](const int64_t(&offset)[ROWS], const bool(&here)[ROWS]) {
        int4 x_bits[ROWS] = {}, d_bits[ROWS] = {};
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (here[i]) x_bits[i] = load_bits_streaming(inp + offset[i]), d_bits[i] = load_bits(dout + offset[i]);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (!here[i]) continue;
            const PackFloats<floatX> x = to_floats<floatX>(x_bits[i]);
            PackFloats<floatX> d = to_floats<floatX>(d_bits[i]);
            for (int k = 0; k < N; k++) d[k] *= gelu_derivative(x[k]);
            d = store_rounded(dinp + offset[i], d);
            for (int k = 0; k < N; k++) sum[k] += d[k];
        }
    });
    write_part<floatX>(partials, sum, n);
}

template <class floatX>
void gelu_forward(floatX* out, const floatX* inp, size_t n_elems, cudaStream_t stream) {
    const StreamRange in_stream(work::gelu(n_elems, sizeof(floatX)), stream);
    launch("gelu_forward", gelu_forward_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream, out, inp,
           n_elems);
}
// dinp (rows, n) = dout (rows, n) * gelu'(inp (rows, n)); dinp may be dout. n must be a multiple of
// Pack<floatX>::size. partials has room for COLUMN_SUM_PARTS * n. Returns the parts of the sums
// over the rows of dinp, which are there.
template <class floatX>
ColumnSums gelu_backward(floatX* dinp, float* partials, const floatX* dout, const floatX* inp, int64_t rows, int64_t n,
                         cudaStream_t stream) {
    const ColumnSumGrid grid = column_sum_grid<floatX>(rows, n);
    launch("gelu_backward", gelu_backward_kernel<floatX>, grid.blocks, grid.threads, 0, stream, dinp, partials, dout,
           inp, rows, n);
    return {partials, grid.parts, n};
}
