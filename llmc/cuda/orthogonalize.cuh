// Muon's orthogonalisation; formula, shapes and FLOPs: llmc/cpu/orthogonalize.h. The products are
// cuBLASLt's. A and P are symmetric, so it does not matter that the library sees them transposed.
// The norm stays on the device. The two kernels between the products are memory-bound: normalize
// reads d and writes X, newton_schulz reads A and A A and writes P over A A.
#pragma once
#include "llmc/cuda/blas.cuh"
#include "llmc/cuda/global_norm.cuh"
#include "llmc/optim/newton_schulz.h"

// Adds the n partials in order, and writes the sum over the first of them. One block.
template <class Sum>
__global__ void sum_norm_kernel(Sum* partials, int n) {
    Sum sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += partials[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[0] = sum;
}
// x (n_elems) = d (n_elems) / the root of squares. One thread per Pack of x.
template <class floatX>
__global__ void normalize_kernel(floatX* x, const float* d, size_t n_elems, const double* squares) {
    const float scale = (float)(1.0 / fmax(NEWTON_SCHULZ_EPS, sqrt(*squares)));
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        PackFloats<floatX> v;
        for (int k = 0; k < Pack<floatX>::size; k++) v[k] = k < count ? d[i + k] * scale : 0.0f;
        store_some(x + i, v, count);
    });
}
// p (n, n) = a I + b gram + c p. One thread per Pack of p.
template <class floatX>
__global__ void newton_schulz_kernel(floatX* p, const floatX* gram, int64_t n) {
    for_each_pack<floatX>(n * n, [&](size_t i, int count) {
        PackFloats<floatX> A = load_some(gram + i, count), squares = load_some(p + i, count), result;
        for (int k = 0; k < Pack<floatX>::size; k++) {
            const bool diagonal = (i + k) / n == (i + k) % n;
            result[k] = (diagonal ? NEWTON_SCHULZ_A : 0.0f) + NEWTON_SCHULZ_B * A[k] + NEWTON_SCHULZ_C * squares[k];
        }
        store_some(p + i, result, count);
    });
}

// Arguments: llmc/cpu/orthogonalize.h. partials (NORM_MOST_BLOCKS) is scratch for the norm.
template <class floatX>
void orthogonalize(float* d, int64_t rows, int64_t cols, const OrthogonalScratch<floatX>& scratch, double* partials,
                   cudaStream_t stream) {
    const StreamRange in_stream(work::orthogonalize(rows, cols, sizeof(floatX)), stream);
    const bool tall = rows > cols;
    const int64_t elems = rows * cols, n = std::min(rows, cols), m = std::max(rows, cols);
    floatX *x = scratch.x, *next = (floatX*)d;
    floatX *A = scratch.gram, *P = scratch.polynomial;
    const int parts = sum_partials(partials, d, SliceMap{0, elems, 0, 1, 0}, stream);
    launch("sum_norm", sum_norm_kernel<double>, 1, 256, 0, stream, partials, parts);
    launch("normalize", normalize_kernel<floatX>, pack_blocks<floatX>(elems), PACK_THREADS, 0, stream, x,
           (const float*)d, (size_t)elems, (const double*)partials);
    for (int i = 1; i <= NEWTON_SCHULZ_STEPS; i++) {
        blas_product("gram", A, x, !tall, x, tall, n, n, m, false, stream);
        blas_product("gram_squared", P, A, false, A, false, n, n, n, false, stream);
        launch("newton_schulz", newton_schulz_kernel<floatX>, pack_blocks<floatX>(n * n), PACK_THREADS, 0, stream, P,
               (const floatX*)A, n);
        const auto multiply = [&](auto* out) {
            blas_product("orthogonalize", out, tall ? P : x, false, tall ? x : P, false, cols, rows, n, false, stream);
        };
        if (i == NEWTON_SCHULZ_STEPS) multiply(d);
        else multiply(next);
        std::swap(x, next);
    }
}
