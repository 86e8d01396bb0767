// For the judges of exercises in CUDA, which run in the simulator (dev/cusim).
#pragma once
#include "dev/course/exercises/judge.h"
#include "llmc/cuda/common.cuh"
#include "llmc/cuda/mma.cuh"

// The stream of all judges.
inline cudaStream_t judge_stream() {
    static cudaStream_t stream = nullptr;
    if (!stream) check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    return stream;
}

// A copy of an array in device memory. An access beyond its end is found, or reads NaN.
template <class T>
struct OnDevice {
    T* p = nullptr;
    size_t n;

    explicit OnDevice(const std::vector<T>& values) : n(values.size()) {
        check_cuda(cudaMalloc(&p, n * sizeof(T)), "allocating");
        check_cuda(cudaMemcpyAsync(p, values.data(), n * sizeof(T), cudaMemcpyHostToDevice, judge_stream()), "copying");
        check_cuda(cudaStreamSynchronize(judge_stream()), "waiting");
    }
    ~OnDevice() { cudaFree(p); }
    OnDevice(const OnDevice&) = delete;
    operator T*() { return p; }
    std::vector<T> fetch() {
        std::vector<T> values(n);
        check_cuda(cudaStreamSynchronize(judge_stream()), "waiting");
        check_cuda(cudaMemcpy(values.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost), "copying");
        return values;
    }
};

// Launches the student's kernel. `name` is what the limits of the exercise refer to.
template <class... Params, class... Args>
void run(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, Args&&... args) {
    launch(name, kernel, grid, block, 0, judge_stream(), static_cast<Params>(args)...);
}
