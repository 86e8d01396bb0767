// Linear layers; formulas and shapes: llmc/cpu/matmul.h. The products are cuBLASLt's (blas.cuh).
// The bias gradient, a sum over rows, is a kernel of its own.
//
// Row-major matrices, as stored, and the same products in the library's column-major view, in which
// every matrix is transposed (written with '):
//
//     out     (rows, OC) = inp weight^T        out'     (OC, rows) = weight'^T inp'
//     dinp    (rows, C)  = dout weight         dinp'    (C, rows)  = weight' dout'
//     dweight (OC, C)    = dout^T inp          dweight' (C, OC)    = inp' dout'^T
//
//     inp' (C, rows), weight' (C, OC), dout' (OC, rows)
//
// Each product takes 2 rows C OC FLOPs, and moves at least each of its three matrices once.
#pragma once
#include "llmc/cuda/blas.cuh"
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/layernorm.cuh"

// out (rows, OC) = inp (rows, C) weight (OC, C)^T + bias (OC), written; bias may be null. With
// gelu_out (rows, OC), not null, also gelu_out = gelu(out). If fuse_gelu, the epilogue computes it,
// from the sum before it is rounded to floatX; otherwise, or if the library cannot do that, a
// kernel of its own does, from out as stored.
template <class floatX>
void matmul_forward(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int64_t rows, int64_t C,
                    int64_t OC, cudaStream_t stream, floatX* gelu_out = nullptr, bool fuse_gelu = false) {
    const StreamRange in_stream(work::matmul(rows, C, OC, gelu_out, sizeof(floatX)), stream);
    if (gelu_out && fuse_gelu &&
        blas_product("matmul_forward_gelu", gelu_out, weight, true, inp, false, OC, rows, C, false, stream,
                     CUBLASLT_EPILOGUE_GELU_AUX_BIAS, bias, (const floatX*)out))
        return;
    const cublasLtEpilogue_t epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    blas_product("matmul_forward", out, weight, true, inp, false, OC, rows, C, false, stream, epilogue, bias);
    if (gelu_out) gelu_forward(gelu_out, out, rows * OC, stream);
}

// partials (parts, n): partial sums over the rows of inp (rows, n). Grid (n / 32 Packs, parts), 32
// x 4 threads. A lane has one Pack of columns. The rows are split among the warps of all parts; the
// first warp of a block adds the sums of its 4 warps in order, through shared memory.
constexpr int COLUMN_SUM_PARTS = 64, COLUMN_SUM_WARPS = 4;
template <class floatX>
__global__ void column_sums_kernel(float* partials, const floatX* inp, int64_t rows, int64_t n) {
    constexpr int N = Pack<floatX>::size;
    __shared__ float sums[COLUMN_SUM_WARPS][32 * N];
    const int64_t c = ((int64_t)blockIdx.x * 32 + threadIdx.x) * N;
    float sum[N] = {};
    for (int64_t row = blockIdx.y * COLUMN_SUM_WARPS + threadIdx.y; row < rows && c < n;
         row += gridDim.y * COLUMN_SUM_WARPS) {
        const Pack<floatX> x = load_pack(inp + row * n + c);
        for (int k = 0; k < N; k++) sum[k] += (float)x[k];
    }
    for (int k = 0; k < N; k++) sums[threadIdx.y][k * 32 + threadIdx.x] = sum[k];
    __syncthreads();
    if (threadIdx.y > 0 || c >= n) return;
    for (int k = 0; k < N; k++) {
        float total = 0;
        for (int w = 0; w < COLUMN_SUM_WARPS; w++) total += sums[w][k * 32 + threadIdx.x];
        partials[blockIdx.y * n + c + k] = total;
    }
}
// sums (n) = sum over the rows of inp (rows, n), or += if add. partials (COLUMN_SUM_PARTS * n) is
// scratch. Memory-bound: reads inp once.
template <class floatX>
void column_sums(floatX* sums, float* partials, const floatX* inp, int64_t rows, int64_t n, bool add,
                 cudaStream_t stream) {
    const int64_t most_parts = ceil_div(rows, COLUMN_SUM_WARPS);
    const int64_t parts = most_parts < COLUMN_SUM_PARTS ? most_parts : COLUMN_SUM_PARTS;
    const dim3 grid((unsigned)ceil_div(n, 32 * Pack<floatX>::size), (unsigned)parts), threads(32, COLUMN_SUM_WARPS);
    launch("column_sums", column_sums_kernel<floatX>, grid, threads, 0, stream, partials, inp, rows, n);
    floatX* const no_second = nullptr;
    sum_parts(sums, no_second, partials, parts, n, n, add, stream);
}

// Arguments: llmc/cpu/matmul.h. dweight has a type of its own, floatW: fp32 for the tied embedding.
// partials (COLUMN_SUM_PARTS * OC) is scratch for dbias. With pre_gelu, dinp is multiplied by the
// derivative of GELU: in the epilogue if fuse_gelu, otherwise by a kernel of its own.
template <class floatW, class floatX>
void matmul_backward(floatX* dinp, floatW* dweight, floatX* dbias, float* partials, const floatX* dout,
                     const floatX* inp, const floatX* weight, int64_t rows, int64_t C, int64_t OC, bool add,
                     cudaStream_t stream, const floatX* pre_gelu = nullptr, bool fuse_gelu = false) {
    const StreamRange in_stream(work::matmul_backward(rows, C, OC, pre_gelu, sizeof(floatX), sizeof(floatW)), stream);
    if (dinp) {
        const floatX* const no_bias = nullptr;
        const bool fused = pre_gelu && fuse_gelu &&
                           blas_product("matmul_backward_input_gelu", dinp, weight, false, dout, false, C, rows, OC,
                                        false, stream, CUBLASLT_EPILOGUE_DGELU, no_bias, pre_gelu);
        if (!fused) blas_product("matmul_backward_input", dinp, weight, false, dout, false, C, rows, OC, false, stream);
        if (pre_gelu && !fused) gelu_backward(dinp, dinp, pre_gelu, rows * C, stream);
    }
    blas_product("matmul_backward_weight", dweight, inp, false, dout, true, C, OC, rows, add, stream);
    if (dbias) column_sums(dbias, partials, dout, rows, OC, add, stream);
}
