// Linear layers; formulas: llmc/cpu/matmul.h. The products are cuBLASLt's, which also adds the bias
// and, where asked, applies GELU or its derivative in the epilogue, while a result is still in
// registers. The bias gradient, a sum over rows, is a kernel of ours.
//
// cuBLASLt thinks in columns: our row-major (rows, cols) matrix is its column-major (cols, rows)
// one. So out (rows, OC) = inp weight^T is to it out' (OC, rows) = weight'^T inp' with weight' (C,
// OC), inp' (C, rows); likewise for the others.
#pragma once
#include <cublasLt.h>
#include <type_traits>
#include <vector>
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/layernorm.cuh"

inline void check_blas(cublasStatus_t status, const char* what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    runtime_failure("cuBLASLt, %s: status %d%s", what, (int)status,
                    status == CUBLAS_STATUS_NOT_SUPPORTED ? " (no algorithm for this shape and type)" : "");
}

// What a product of one shape needs, made once: description, layouts, and the algorithm that the
// library's heuristic takes first.
struct BlasPlan {
    int64_t m, n, k;
    cublasOperation_t transA, transB;
    cudaDataType_t type, typeD;
    cublasLtEpilogue_t epilogue;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t A, B, D;
    cublasLtMatmulAlgo_t algorithm;
};

// The library's handle and scratch memory, and the plans so far.
struct Blas {
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    bool tf32 = false;  // fp32 products on tensor cores: 10 bits of mantissa instead of 23
    std::vector<BlasPlan> plans;
};
inline Blas blas;

template <class T>
constexpr cudaDataType_t blas_type() {
    return std::is_same<T, float>::value ? CUDA_R_32F : CUDA_R_16BF;
}

inline BlasPlan& blas_plan(const BlasPlan& wanted) {
    for (BlasPlan& p : blas.plans)
        if (p.m == wanted.m && p.n == wanted.n && p.k == wanted.k && p.transA == wanted.transA &&
            p.transB == wanted.transB && p.type == wanted.type && p.typeD == wanted.typeD &&
            p.epilogue == wanted.epilogue)
            return p;
    BlasPlan p = wanted;
    const cublasComputeType_t compute =
        p.type == CUDA_R_32F && blas.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check_blas(cublasLtMatmulDescCreate(&p.matmul, compute, CUDA_R_32F), "describing a product");
    auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
        check_blas(cublasLtMatmulDescSetAttribute(p.matmul, attribute, &value, sizeof(value)), "describing a product");
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.transA);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.transB);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    const void* some = blas.workspace;  // the heuristic wants pointers; the real ones come with the product
    const bool uses_bias = p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
               uses_aux = p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || p.epilogue == CUBLASLT_EPILOGUE_DGELU;
    if (uses_bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, p.type), set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, some);
    if (uses_aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.m), set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, some);
    auto layout = [&](cublasLtMatrixLayout_t& out, cudaDataType_t type, int64_t rows, int64_t cols) {
        check_blas(cublasLtMatrixLayoutCreate(&out, type, rows, cols, rows), "describing a matrix");
    };
    if (p.transA == CUBLAS_OP_N) layout(p.A, p.type, p.m, p.k);
    else layout(p.A, p.type, p.k, p.m);
    if (p.transB == CUBLAS_OP_N) layout(p.B, p.type, p.k, p.n);
    else layout(p.B, p.type, p.n, p.k);
    layout(p.D, p.typeD, p.m, p.n);
    cublasLtMatmulPreference_t preference;
    check_blas(cublasLtMatmulPreferenceCreate(&preference), "choosing an algorithm");
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
        check_blas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
                   "choosing an algorithm");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, blas.workspace_bytes);
    // tensors begin at multiples of 16 elements (tensors.h), not of the 256 bytes that it assumes
    const uint32_t alignment = 16;
    for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        prefer(attribute, alignment);
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    check_blas(
        cublasLtMatmulAlgoGetHeuristic(blas.handle, p.matmul, p.A, p.B, p.D, p.D, preference, 1, &result, &found),
        "choosing an algorithm");
    if (found == 0)
        runtime_failure("cuBLASLt has no algorithm for a product of %lld x %lld x %lld", (long long)p.m, (long long)p.n,
                        (long long)p.k);
    p.algorithm = result.algo;
    check_blas(cublasLtMatmulPreferenceDestroy(preference), "choosing an algorithm");
    blas.plans.push_back(p);
    return blas.plans.back();
}

// D (m, n) = op(A) op(B), or += if add, all column-major without gaps; k is the length of the sums.
template <class floatD, class floatX>
void blas_product(const char* name, floatD* D, const floatX* A, bool transA, const floatX* B, bool transB, int64_t m,
                  int64_t n, int64_t k, bool add, cudaStream_t stream,
                  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT, const floatX* bias = nullptr,
                  const floatX* aux = nullptr) {
    Range range(name);
    BlasPlan wanted{};
    wanted.m = m, wanted.n = n, wanted.k = k, wanted.type = blas_type<floatX>(), wanted.typeD = blas_type<floatD>(),
    wanted.epilogue = epilogue;
    wanted.transA = transA ? CUBLAS_OP_T : CUBLAS_OP_N, wanted.transB = transB ? CUBLAS_OP_T : CUBLAS_OP_N;
    BlasPlan& p = blas_plan(wanted);
    if (bias)
        check_blas(cublasLtMatmulDescSetAttribute(p.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)),
                   name);
    if (aux)
        check_blas(
            cublasLtMatmulDescSetAttribute(p.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof(aux)),
            name);
    const float alpha = 1, beta = add ? 1 : 0;
    check_blas(cublasLtMatmul(blas.handle, p.matmul, &alpha, A, p.A, B, p.B, &beta, D, p.D, D, p.D, &p.algorithm,
                              blas.workspace, blas.workspace_bytes, stream),
               name);
}

// out (rows, OC) = inp (rows, C) weight (OC, C)^T + bias (OC), bias may be null. With gelu_out
// (rows, OC) also gelu_out = gelu(out): by a kernel of its own from out as stored, or, if
// fuse_gelu, by the epilogue from the sum before it is rounded.
template <class floatX>
void matmul_forward(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int64_t rows, int64_t C,
                    int64_t OC, cudaStream_t stream, floatX* gelu_out = nullptr, bool fuse_gelu = false) {
    if (gelu_out && fuse_gelu)
        return blas_product("matmul_forward_gelu", gelu_out, weight, true, inp, false, OC, rows, C, false, stream,
                            CUBLASLT_EPILOGUE_GELU_AUX_BIAS, bias, (const floatX*)out);
    blas_product("matmul_forward", out, weight, true, inp, false, OC, rows, C, false, stream,
                 bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT, bias);
    if (gelu_out) gelu_forward(gelu_out, out, rows * OC, stream);
}

// partials (parts, n): part p has the sums over rows p, p + parts, ... A thread: one Pack of
// columns; a warp's loads are whole cache lines.
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
// sums (n) = sum over rows of inp (rows, n), or += if add; partials (COLUMN_SUM_PARTS * n) is
// scratch.
template <class floatX>
void column_sums(floatX* sums, float* partials, const floatX* inp, int64_t rows, int64_t n, bool add,
                 cudaStream_t stream) {
    const int64_t all = ceil_div(rows, COLUMN_SUM_WARPS), parts = all < COLUMN_SUM_PARTS ? all : COLUMN_SUM_PARTS;
    launch("column_sums", column_sums_kernel<floatX>,
           dim3((unsigned)ceil_div(n, 32 * Pack<floatX>::size), (unsigned)parts), dim3(32, COLUMN_SUM_WARPS), 0, stream,
           partials, inp, rows, n);
    sum_parts(sums, (floatX*)nullptr, partials, parts, n, n, add, stream);
}

// As llmc/cpu/matmul.h; floatW is the type in which dweight is summed, fp32 for the tied embedding.
// partials (COLUMN_SUM_PARTS * OC) is scratch for dbias. The derivative of GELU comes by a kernel
// of its own, or, if fuse_gelu, in the epilogue.
template <class floatW, class floatX>
void matmul_backward(floatX* dinp, floatW* dweight, floatX* dbias, float* partials, const floatX* dout,
                     const floatX* inp, const floatX* weight, int64_t rows, int64_t C, int64_t OC, bool add,
                     cudaStream_t stream, const floatX* pre_gelu = nullptr, bool fuse_gelu = false) {
    if (dinp) {
        const bool fused = pre_gelu && fuse_gelu;
        blas_product("matmul_backward_input", dinp, weight, false, dout, false, C, rows, OC, false, stream,
                     fused ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_DEFAULT, (const floatX*)nullptr,
                     fused ? pre_gelu : nullptr);
        if (pre_gelu && !fuse_gelu) gelu_backward(dinp, dinp, pre_gelu, rows * C, stream);
    }
    blas_product("matmul_backward_weight", dweight, inp, false, dout, true, C, OC, rows, add, stream);
    if (dbias) column_sums(dbias, partials, dout, rows, OC, add, stream);
}
