// A whole program that computes on a GPU: memory there, a copy to it, a kernel, a copy back, and a
// look at every answer. Chapter 13 goes through it.
//
//     make build/first_kernel && build/first_kernel 1000000        in the simulator
//     nvcc -std=c++17 -arch=sm_80 -I. dev/course/first_kernel.cu -o first_kernel -ldl
#include <cstdio>
#include <cstdlib>
#include <vector>
#include "llmc/cuda/common.cuh"

// out[i] = factor inp[i]: one thread per element.
__global__ void scale_kernel(float* out, const float* inp, float factor, size_t n) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = factor * inp[i];
}

static void scale_on_gpu(std::vector<float>& out, const std::vector<float>& inp, float factor) {
    const size_t n = inp.size(), bytes = n * sizeof(float);
    const int threads = 256, blocks = (int)((n + threads - 1) / threads);  // rounded up: some threads are too many
    cudaStream_t stream;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    float *device_inp, *device_out;  // addresses of the GPU's memory: the host must not follow them
    check_cuda(cudaMalloc((void**)&device_inp, bytes), "allocating");
    check_cuda(cudaMalloc((void**)&device_out, bytes), "allocating");

    // Each of these is enqueued in the stream, and they run there in this order.
    check_cuda(cudaMemcpyAsync(device_inp, inp.data(), bytes, cudaMemcpyHostToDevice, stream), "copying to the GPU");
    launch("scale", scale_kernel, blocks, threads, 0, stream, device_out, device_inp, factor, n);
    check_cuda(cudaMemcpyAsync(out.data(), device_out, bytes, cudaMemcpyDeviceToHost, stream), "copying back");
    wait_for_stream(stream, "scaling");  // until here nothing needs to have happened

    check_cuda(cudaFree(device_inp), "freeing");
    check_cuda(cudaFree(device_out), "freeing");
    check_cuda(cudaStreamDestroy(stream), "ending a stream");
}

int main(int argc, char** argv) {
    char* end = nullptr;
    const long long n = argc == 2 ? strtoll(argv[1], &end, 10) : 0;
    if (n < 1 || *end) return fprintf(stderr, "usage: first_kernel N, the number of elements, 1 or more\n"), 2;
    std::vector<float> inp(n), out(n);
    for (long long i = 0; i < n; i++) inp[i] = (float)(i % 1000);
    scale_on_gpu(out, inp, 0.5f);
    for (long long i = 0; i < n; i++)
        if (out[i] != 0.5f * inp[i]) return fprintf(stderr, "error: out[%lld] is %g\n", i, out[i]), 1;
    printf("%lld elements, each half of what it was\n", n);
}
