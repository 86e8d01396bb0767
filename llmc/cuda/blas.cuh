// Matrix products by cuBLASLt, NVIDIA's library: the handle, and one plan for each kind of product.
//
// The library works on column-major matrices. A row-major (rows, cols) matrix, as everything here,
// is to it a column-major (cols, rows) one, its transpose. Transposing both sides of a product
// exchanges the operands; matmul.cuh has the three products of a linear layer in both views.
//
// After the product, while results are still in registers, the library can add a bias and apply
// GELU or its derivative, and sum the result over its columns for the gradient of a bias: the
// epilogue.
#pragma once
#include <cublasLt.h>
#include <tuple>
#include <type_traits>
#include <vector>
#include "llmc/cuda/blas_choice.cuh"
#include "llmc/cuda/common.cuh"

inline void check_blas(cublasStatus_t status, const char* what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    runtime_failure("cuBLASLt, %s: %s", what, cublasLtGetStatusName(status));
}

// A kind of product: D (m, n) = op(A) op(B), column-major without gaps; sums have k terms. A and B
// are of one type. `alignment`: A, B and D begin at multiples of so many bytes, at most 256.
struct BlasProduct {
    int64_t m, n, k;
    cublasOperation_t transA, transB;
    cudaDataType_t type, typeD;
    cublasLtEpilogue_t epilogue;
    uint32_t alignment;
    bool operator==(const BlasProduct& o) const {
        return std::tie(m, n, k, transA, transB, type, typeD, epilogue, alignment) ==
               std::tie(o.m, o.n, o.k, o.transA, o.transB, o.type, o.typeD, o.epilogue, o.alignment);
    }
};

// What the library needs to compute it, created at the first product of the kind.
struct BlasPlan {
    BlasProduct product;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t A, B, D;
    bool chosen = false, possible = true;  // whether the library was asked, and has not refused
    BlasAlgorithm algorithm;
};

// The library's handle, its scratch memory, and the plans so far.
struct Blas {
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    bool tf32 = false;  // fp32 products on tensor cores, whose operands keep 10 of 23 mantissa bits
    std::vector<BlasPlan> plans;
    BlasChoices choices;
};
inline Blas blas;

// Opens the library, with BLAS_WORKSPACE_BYTES of scratch memory, on the GPU of this name.
inline void start_blas(const char* gpu, void* workspace) {
    if (!blas.handle) check_blas(cublasLtCreate(&blas.handle), "starting");
    blas.workspace = workspace, blas.workspace_bytes = BLAS_WORKSPACE_BYTES;
    blas.choices.path = kept_file("algorithms");
    blas.choices.machine = format("%s, cuBLASLt %d", gpu, cublasLtGetVersion());
}

template <class T>
constexpr cudaDataType_t blas_type() {
    return std::is_same<T, float>::value ? CUDA_R_32F : is_fp16<T>() ? CUDA_R_16F : CUDA_R_16BF;
}

// Whether the epilogue computes GELU or its derivative, which a kernel can do instead.
inline bool computes_gelu(const BlasProduct& p) {
    return p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || p.epilogue == CUBLASLT_EPILOGUE_DGELU;
}

// Success, or what the library says against the description.
inline cublasStatus_t describe_product(cublasLtMatmulDesc_t& matmul, const BlasProduct& p) {
    const bool in_tf32 = p.type == CUDA_R_32F && blas.tf32;
    const cublasComputeType_t compute = in_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check_blas(cublasLtMatmulDescCreate(&matmul, compute, CUDA_R_32F), "describing a product");
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
        if (status == CUBLAS_STATUS_SUCCESS)
            status = cublasLtMatmulDescSetAttribute(matmul, attribute, &value, sizeof(value));
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.transA);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.transB);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    const bool uses_bias = p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.epilogue != CUBLASLT_EPILOGUE_DGELU;
    if (uses_bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, p.type);
    if (computes_gelu(p)) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.m);
    return status;
}

inline cublasLtMatrixLayout_t describe_matrix(cudaDataType_t type, int64_t rows, int64_t cols, bool transposed) {
    if (transposed) std::swap(rows, cols);
    cublasLtMatrixLayout_t layout;
    check_blas(cublasLtMatrixLayoutCreate(&layout, type, rows, cols, rows), "describing a matrix");
    return layout;
}

inline const char* epilogue_text(cublasLtEpilogue_t epilogue) {
    if (epilogue == CUBLASLT_EPILOGUE_BIAS) return ", bias";
    if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) return ", bias and GELU";
    return epilogue == CUBLASLT_EPILOGUE_DGELU ? ", derivative of GELU" : "";
}
// The kind of product in words: what is printed, and what its algorithm is kept under.
inline std::string product_text(const BlasProduct& p) {
    const auto name = [](cudaDataType_t type) {
        return type == CUDA_R_16BF ? "bf16" : type == CUDA_R_16F ? "fp16" : "fp32";
    };
    const char *stored = name(p.type), *result = name(p.typeD);
    const char* computed = p.type == CUDA_R_32F && blas.tf32 ? "tf32" : stored;
    return format("%d x %d x %d, %c%c, %s to %s%s, aligned to %u bytes", p.m, p.n, p.k, "NT"[p.transA], "NT"[p.transB],
                  computed, result, epilogue_text(p.epilogue), p.alignment);
}

// The library does not compute this kind of product. Where GELU may be what it refuses, whatever
// its reason, a kernel computes GELU from now on (blas_product() returns false); else exit 1.
inline void refused(BlasPlan& plan, cublasStatus_t status) {
    size_t free_bytes, all_bytes;  // any call says whether a kernel before this failed, which the library reports too
    check_cuda(cudaMemGetInfo(&free_bytes, &all_bytes), "a product");
    const std::string text = product_text(plan.product);
    const char* why = cublasLtGetStatusName(status);
    plan.possible = false;
    if (!computes_gelu(plan.product)) runtime_failure("cuBLASLt does not compute a product of %s: %s", text, why);
    warning("cuBLASLt does not fuse GELU with a product of %s (%s): a kernel computes it", text, why);
}

// The algorithms that the library's heuristic puts first, at most `most`; `status` says why there
// are none.
inline std::vector<BlasAlgorithm> first_algorithms(const BlasPlan& plan, int most, cublasStatus_t& status) {
    const char* const what = "choosing an algorithm";
    cublasLtMatmulPreference_t preference;
    check_blas(cublasLtMatmulPreferenceCreate(&preference), what);
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
        check_blas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), what);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, blas.workspace_bytes);
    for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        prefer(attribute, plan.product.alignment);
    std::vector<cublasLtMatmulHeuristicResult_t> results(most);
    int found = 0;
    status = cublasLtMatmulAlgoGetHeuristic(blas.handle, plan.matmul, plan.A, plan.B, plan.D, plan.D, preference, most,
                                            results.data(), &found);
    check_blas(cublasLtMatmulPreferenceDestroy(preference), what);
    std::vector<BlasAlgorithm> algorithms;
    if (status != CUBLAS_STATUS_SUCCESS) return algorithms;
    status = CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < found; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
    return algorithms;
}

// Sets the algorithm of a kind of product that occurs for the first time, if there is one. Timed
// are the sizes that a step of training has, multiples of 64: a prompt may have any length, and
// each would be a kind of its own. run(algorithm) enqueues the product, which must not add to D.
template <class Run>
inline void choose_algorithm(BlasPlan& plan, bool may_run, Run run, cudaStream_t stream) {
    const BlasProduct& p = plan.product;
    const bool timed = may_run && p.m % 64 == 0 && p.n % 64 == 0 && p.k % 64 == 0;
    cublasStatus_t status;
    const std::vector<BlasAlgorithm> candidates = first_algorithms(plan, timed ? BLAS_CANDIDATES : 1, status);
    plan.chosen = true;
    if (candidates.empty()) return refused(plan, status);
    const auto accepted = [&](const BlasAlgorithm& algorithm) {
        cublasLtMatmulHeuristicResult_t result{};
        return cublasLtMatmulAlgoCheck(blas.handle, plan.matmul, plan.A, plan.B, plan.D, plan.D, &algorithm, &result) ==
                   CUBLAS_STATUS_SUCCESS &&
               result.workspaceSize <= blas.workspace_bytes;
    };
    plan.algorithm = choose_among(candidates, blas.choices, product_text(p), run, accepted, stream);
}

inline BlasPlan& blas_plan(const BlasProduct& p) {
    for (BlasPlan& plan : blas.plans)
        if (plan.product == p) return plan;
    BlasPlan plan;
    plan.product = p;
    const cublasStatus_t status = describe_product(plan.matmul, p);
    if (status != CUBLAS_STATUS_SUCCESS) refused(plan, status);
    plan.A = describe_matrix(p.type, p.m, p.k, p.transA == CUBLAS_OP_T);
    plan.B = describe_matrix(p.type, p.k, p.n, p.transB == CUBLAS_OP_T);
    plan.D = describe_matrix(p.typeD, p.m, p.n, false);
    blas.plans.push_back(plan);
    return blas.plans.back();
}

// The largest power of 2, up to 256, of which all addresses are multiples.
inline uint32_t common_alignment(const void* a, const void* b, const void* c) {
    const uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | 256;
    return (uint32_t)(bits & (~bits + 1));
}

// D (m, n) = alpha op(A) op(B), or += if add, then the epilogue, with bias (m) and aux (m, n),
// GELU's input, where it uses them. `name` is for profilers. False, and nothing is computed, if the
// library refuses GELU in this epilogue.
template <class floatD, class floatX>
bool blas_product(const char* name, floatD* D, const floatX* A, bool transA, const floatX* B, bool transB, int64_t m,
                  int64_t n, int64_t k, bool add, cudaStream_t stream,
                  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT, const floatX* bias = nullptr,
                  const floatX* aux = nullptr, float alpha = 1) {
    const Range range(name);
    const StreamRange in_stream({{name}}, stream);
    const cublasOperation_t opA = transA ? CUBLAS_OP_T : CUBLAS_OP_N, opB = transB ? CUBLAS_OP_T : CUBLAS_OP_N;
    BlasPlan& plan =
        blas_plan({m, n, k, opA, opB, blas_type<floatX>(), blas_type<floatD>(), epilogue, common_alignment(A, B, D)});
    auto point = [&](cublasLtMatmulDescAttributes_t attribute, const floatX* p) {
        if (!p) return;
        const cublasStatus_t status = cublasLtMatmulDescSetAttribute(plan.matmul, attribute, &p, sizeof(p));
        if (status != CUBLAS_STATUS_SUCCESS && plan.possible) refused(plan, status);
    };
    point(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    point(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    const auto run = [&](const BlasAlgorithm& algorithm) {
        const float beta = add ? 1 : 0;
        return cublasLtMatmul(blas.handle, plan.matmul, &alpha, A, plan.A, B, plan.B, &beta, D, plan.D, D, plan.D,
                              &algorithm, blas.workspace, blas.workspace_bytes, stream);
    };
    if (plan.possible && !plan.chosen) choose_algorithm(plan, !add, run, stream);
    if (!plan.possible) return false;
    const cublasStatus_t status = run(plan.algorithm);
    if (status != CUBLAS_STATUS_SUCCESS) refused(plan, status);
    return plan.possible;
}

// D (m, n) = alpha op(A) op(B), or += if add.
template <class floatX>
void blas_product(const char* name, floatX* D, const floatX* A, bool transA, const floatX* B, bool transB, int64_t m,
                  int64_t n, int64_t k, bool add, cudaStream_t stream, float alpha) {
    const floatX* const none = nullptr;
    blas_product(name, D, A, transA, B, transB, m, n, k, add, stream, CUBLASLT_EPILOGUE_DEFAULT, none, none, alpha);
}
