// What the gradient of a softmax needs from its row: D, the sum over the keys of p dp, where dp =
// dout . v. As out is the sum of p v, D is dout . out, and needs no score.
#pragma once
#include "llmc/cuda/common.cuh"

// D (B,NH,T) = dout . out, the dot product over the channels of a head at a position. One thread
// per head and position; n = B T NH of them. Memory-bound: reads dout and out (B,T,C) once.
template <class floatX>
__global__ void attention_dot_kernel(float* D, const floatX* dout, const floatX* out, int64_t n, int64_t T, int64_t NH,
                                     int head_size) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;  // (b, t, h)
    if (i >= n) return;
    float sum = 0;
    for (int c = 0; c < head_size; c += Pack<floatX>::size) {
        const Pack<floatX> a = load_pack(dout + i * head_size + c), b = load_pack(out + i * head_size + c);
        for (int k = 0; k < Pack<floatX>::size; k++) sum += (float)a[k] * (float)b[k];
    }
    const int64_t h = i % NH, t = i / NH % T, b = i / NH / T;
    D[(b * NH + h) * T + t] = sum;
}
template <class floatX>
void attention_dot(float* D, const floatX* dout, const floatX* out, int64_t B, int64_t T, int64_t NH, int head_size,
                   cudaStream_t stream) {
    const int64_t n = B * T * NH;
    launch("attention_dot", attention_dot_kernel<floatX>, dim3((unsigned)ceil_div(n, 256)), 256, 0, stream, D, dout,
           out, n, T, NH, head_size);
}
