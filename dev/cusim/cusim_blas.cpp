// cuBLASLt in the simulator: products by the CPU's GEMM in fp32, then the epilogue, then one
// rounding to the type of the result, as the library promises.
//
// CUSIM_ALGORITHMS=n offers n algorithms, of which number i (from 0) adds up the sums in i + 1
// parts, and on the clock of events all but number 1 take a second longer than they do.
// CUSIM_NO_FUSED_GELU=algorithm, description, heuristic or run: it has no algorithm with GELU in
// its epilogue, or refuses it at that point.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>
#include "dev/cusim/cusim_inside.h"
#include "dev/cusim/include/cublasLt.h"
#include "dev/cusim/include/cuda_bf16.h"
#include "dev/cusim/include/cuda_fp16.h"
#include "llmc/base/cores.h"
#include "llmc/cpu/gelu.h"
#include "llmc/cpu/gemm.h"

static float element(const void* p, cudaDataType_t type, int64_t i) {
    if (type == CUDA_R_32F) return ((const float*)p)[i];
    return type == CUDA_R_16F ? (float)((const __half*)p)[i] : (float)((const __nv_bfloat16*)p)[i];
}
static void set_element(void* p, cudaDataType_t type, int64_t i, float value) {
    if (type == CUDA_R_32F) ((float*)p)[i] = value;
    else if (type == CUDA_R_16F) ((__half*)p)[i] = value;
    else ((__nv_bfloat16*)p)[i] = value;
}
static std::vector<float> to_floats(const void* p, const CusimMatrix& m) {
    std::vector<float> values(m.cols * m.ld);
    for (size_t i = 0; i < values.size(); i++) values[i] = element(p, m.type, i);
    return values;
}
static float apply_gelu(float x) { return gelu(broadcast(x))[0]; }
static float apply_gelu_derivative(float x) { return gelu_derivative(broadcast(x))[0]; }

static int64_t algorithms() { return (int64_t)cusim::environment_number("CUSIM_ALGORITHMS", 1); }
constexpr uint64_t ALGORITHM_MAGIC = 0x43555349;  // the first number of an algorithm; the second: which one

static void product(const CusimMatmul& desc, const void* A, const CusimMatrix& a, const void* B, const CusimMatrix& b,
                    float alpha, float beta, void* D, const CusimMatrix& d, int64_t algorithm) {
    if (algorithms() > 1 && algorithm != 1) cusim::event_clock_ahead_s += 1;
    const int64_t m = d.rows, n = d.cols, k = desc.transA == CUBLAS_OP_N ? a.cols : a.rows;
    static std::vector<float> scratch;
    const Device before = device;  // threads and scratch memory of the GEMM, as long as it runs
    device.threads = m * n * k < 1 << 25 ? 1 : available_threads();
#ifdef CUSIM_SANITIZE_thread
    // ThreadSanitizer does not see how threads wait for each other in code that it has not compiled
    device.threads = 1;
#endif
    device.scratch_elems = round_up(GEMM_SCRATCH_ELEMS, 16);
    scratch.resize(device.threads * device.scratch_elems);
    device.scratch = scratch.data();
    const std::vector<float> fa = to_floats(A, a), fb = to_floats(B, b);
    std::vector<float> sums(m * n);
    // column-major D (m, n) = op(A) op(B) is row-major D^T (n, m) = op(B)^T op(A)^T
    const MatrixView<float> left =
        desc.transB == CUBLAS_OP_N ? MatrixView<float>{fb.data(), b.ld, 1} : MatrixView<float>{fb.data(), 1, b.ld};
    const MatrixView<float> right =
        desc.transA == CUBLAS_OP_N ? MatrixView<float>{fa.data(), a.ld, 1} : MatrixView<float>{fa.data(), 1, a.ld};
    const int64_t parts = std::min(k, algorithm + 1);
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = k * part / parts, end = k * (part + 1) / parts;
        const MatrixView<float> left_part{left.at(0, first), left.row_stride, left.col_stride},
            right_part{right.at(first, 0), right.row_stride, right.col_stride};
        gemm_fp32(sums.data(), m, left_part, right_part, n, m, end - first, part > 0);
    }
    device = before;
    std::vector<float> bias_gradient(m);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            float x = alpha * sums[j * m + i];
            if (beta != 0) x += beta * element(D, d.type, j * d.ld + i);
            if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS || desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
                x += element(desc.bias, desc.bias_type, i);
            if (desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
                set_element(desc.aux, d.type, j * desc.aux_ld + i, x);
                x = apply_gelu(x);
            }
            if (desc.epilogue == CUBLASLT_EPILOGUE_DGELU)
                x *= apply_gelu_derivative(element(desc.aux, d.type, j * desc.aux_ld + i));
            set_element(D, d.type, j * d.ld + i, x);
        }
}

static bool refuses_gelu(cublasLtEpilogue_t epilogue, const char* at) {
    static const std::string asked = getenv("CUSIM_NO_FUSED_GELU") ? getenv("CUSIM_NO_FUSED_GELU") : "";
    return asked == at && (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_DGELU);
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
    if (status == CUBLAS_STATUS_EXECUTION_FAILED) return "CUBLAS_STATUS_EXECUTION_FAILED";
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return *handle = nullptr, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t, cudaDataType_t) {
    return *desc = new CusimMatmul, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return delete desc, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
    auto set = [&](auto& field) {
        if (bytes != sizeof(field)) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy((void*)&field, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    };
    const bool sets_epilogue = attribute == CUBLASLT_MATMUL_DESC_EPILOGUE;
    if (sets_epilogue && refuses_gelu(*(const cublasLtEpilogue_t*)value, "description"))
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA: return set(d->transA);
        case CUBLASLT_MATMUL_DESC_TRANSB: return set(d->transB);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(d->epilogue);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(d->bias);
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(d->bias_type);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(d->aux);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(d->aux_ld);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    return *layout = new CusimMatrix{type, (int64_t)rows, (int64_t)cols, ld}, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return delete layout, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    return *preference = new CusimPreference, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return delete preference, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t) {
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return CUBLAS_STATUS_SUCCESS;
    preference->alignment = std::min(preference->alignment, *(const uint32_t*)value);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t A,
                                              cublasLtMatrixLayout_t B, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t D, cublasLtMatmulPreference_t preference,
                                              int wanted, cublasLtMatmulHeuristicResult_t* results, int* found) {
    const bool nA = desc->transA == CUBLAS_OP_N, nB = desc->transB == CUBLAS_OP_N;
    const bool fits = (nA ? A->rows : A->cols) == D->rows && (nB ? B->cols : B->rows) == D->cols &&
                      (nA ? A->cols : A->rows) == (nB ? B->rows : B->cols) && A->type == B->type;
    if (!fits) return CUBLAS_STATUS_INVALID_VALUE;
    if (refuses_gelu(desc->epilogue, "algorithm")) return *found = 0, CUBLAS_STATUS_NOT_SUPPORTED;
    if (refuses_gelu(desc->epilogue, "heuristic")) return CUBLAS_STATUS_INVALID_VALUE;
    *found = (int)std::min<int64_t>(wanted, algorithms());
    for (int i = 0; i < *found; i++)
        results[i] = {{{ALGORITHM_MAGIC, (uint64_t)i, preference->alignment}}, 0, CUBLAS_STATUS_SUCCESS};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
    const bool known = algo->data[0] == ALGORITHM_MAGIC && algo->data[1] < (uint64_t)algorithms();
    *result = {*algo, 0, known ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE};
    return result->state;
}
size_t cublasLtGetVersion() { return 1; }
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t a, const void* B, cublasLtMatrixLayout_t b, const void* beta,
                              const void*, cublasLtMatrixLayout_t, void* D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo, void*, size_t, cudaStream_t stream) {
    if (refuses_gelu(desc->epilogue, "run")) return CUBLAS_STATUS_EXECUTION_FAILED;
    for (const void* p : {A, B, (const void*)D})
        if ((uintptr_t)p % algo->data[2] != 0)
            cusim::fail({}, "cublasLtMatmul: %p is not aligned to the %d bytes that were promised", p,
                        (int)algo->data[2]);
    for (const void* p : {A, B, (const void*)D, (const void*)desc->bias, (const void*)desc->aux})
        if ((uintptr_t)p % 16 != 0) cusim::fail({}, "cublasLtMatmul: %p is not aligned to 16 bytes", p);
    const int64_t k = desc->transA == CUBLAS_OP_N ? a->cols : a->rows;
    if (cusim::note_dry(stream, "product %lld %lld %lld %d %d %d %d", (long long)d->rows, (long long)d->cols,
                        (long long)k, (int)a->type, (int)d->type, (int)desc->epilogue, *(const float*)beta != 0))
        return CUBLAS_STATUS_SUCCESS;
    const CusimMatmul copy = *desc;
    const float scale = *(const float*)alpha, factor = *(const float*)beta;
    const int64_t algorithm = (int64_t)algo->data[1];
    cusim::enqueue_host("cublasLtMatmul", stream,
                        [=, a = *a, b = *b, d = *d] { product(copy, A, a, B, b, scale, factor, D, d, algorithm); });
    return CUBLAS_STATUS_SUCCESS;
}
