// How long cuBLASLt's algorithms take for one product, measured on the GPU.
#pragma once
#include <cublasLt.h>
#include <cmath>
#include <vector>
#include "llmc/cuda/common.cuh"

typedef cublasLtMatmulAlgo_t BlasAlgorithm;
constexpr int BLAS_TIMED_RUNS = 3;

// Two events, around what is timed.
struct Stopwatch {
    cudaEvent_t begin = nullptr, end = nullptr;

    Stopwatch() {
        for (cudaEvent_t* event : {&begin, &end}) check_cuda(cudaEventCreate(event), "timing algorithms");
    }
    ~Stopwatch() {
        for (cudaEvent_t event : {begin, end}) cudaEventDestroy(event);
    }
    Stopwatch(const Stopwatch&) = delete;
};

// Milliseconds of the fastest of a few runs, after one that is not timed; infinite if the library
// refuses. run(algorithm) enqueues the product.
template <class Run>
inline float milliseconds_of(const BlasAlgorithm& algorithm, const Stopwatch& watch, Run run, cudaStream_t stream) {
    const char* const what = "timing an algorithm";
    if (run(algorithm) != CUBLAS_STATUS_SUCCESS) return INFINITY;
    float least = INFINITY, ms = 0;
    for (int i = 0; i < BLAS_TIMED_RUNS; i++) {
        check_cuda(cudaEventRecord(watch.begin, stream), what);
        run(algorithm);
        check_cuda(cudaEventRecord(watch.end, stream), what);
        wait_for_stream(stream, what);
        check_cuda(cudaEventElapsedTime(&ms, watch.begin, watch.end), what);
        least = std::min(least, ms);
    }
    return least;
}

// Milliseconds of each of the algorithms.
template <class Run>
inline std::vector<float> time_algorithms(const std::vector<BlasAlgorithm>& algorithms, Run run, cudaStream_t stream) {
    const Stopwatch watch;
    std::vector<float> ms;
    for (const BlasAlgorithm& algorithm : algorithms) ms.push_back(milliseconds_of(algorithm, watch, run, stream));
    return ms;
}
