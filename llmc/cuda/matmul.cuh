// Linear layers; formulas and shapes: llmc/cpu/matmul.h. The products are cuBLASLt's (blas.cuh).
// The gradient of the bias is a sum over rows (column_sums.cuh).
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
#include "llmc/cuda/column_sums.cuh"
#include "llmc/cuda/gelu.cuh"

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

// Arguments: llmc/cpu/matmul.h. dweight has a type of its own, floatW: fp32 for the tied embedding.
// dbias is computed from dout_sums; if the kernel that wrote dout has not left its sums there, from
// dout. With pre_gelu, dinp is multiplied by the derivative of GELU: in the epilogue if fuse_gelu,
// otherwise by a kernel of its own. Returns the sums of dinp, if that kernel has left them;
// dout_sums.partials then holds them, with room for COLUMN_SUM_PARTS * max(C, OC).
template <class floatW, class floatX>
ColumnSums matmul_backward(floatX* dinp, floatW* dweight, floatX* dbias, ColumnSums dout_sums, const floatX* dout,
                           const floatX* inp, const floatX* weight, int64_t rows, int64_t C, int64_t OC, bool add,
                           cudaStream_t stream, const floatX* pre_gelu = nullptr, bool fuse_gelu = false) {
    const StreamRange in_stream(
        work::matmul_backward(rows, C, OC, pre_gelu, sizeof(floatX), sizeof(floatW), dinp, dweight), stream);
    ColumnSums dinp_sums{dout_sums.partials};
    if (dbias) {
        if (dout_sums.parts == 0) dout_sums = column_sums(dout_sums.partials, dout, rows, OC, stream);
        floatX* const no_second = nullptr;
        sum_parts(dbias, no_second, dout_sums, OC, add, stream);
    }
    if (dinp) {
        const floatX* const no_bias = nullptr;
        const bool fused = pre_gelu && fuse_gelu &&
                           blas_product("matmul_backward_input_gelu", dinp, weight, false, dout, false, C, rows, OC,
                                        false, stream, CUBLASLT_EPILOGUE_DGELU, no_bias, pre_gelu);
        if (!fused) blas_product("matmul_backward_input", dinp, weight, false, dout, false, C, rows, OC, false, stream);
        if (pre_gelu && !fused) dinp_sums = gelu_backward(dinp, dinp_sums.partials, dinp, pre_gelu, rows, C, stream);
    }
    if (dweight) blas_product("matmul_backward_weight", dweight, inp, false, dout, true, C, OC, rows, add, stream);
    return dinp_sums;
}
