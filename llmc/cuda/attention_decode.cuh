// Attention in generation; formulas: llmc/cpu/attention.h. fill_cache: the keys and values of a
// whole prompt, one thread per value. attention_decode: one position at a time, one block of 128
// threads per head. It appends k and v of position `last` to the cache of a layer, keys and values
// (NH,maxT,HS), then computes the scores of all positions up to it (one thread per position), their
// softmax, and the weighted sum of the values (one thread per channel). qkv (3C) and out (C) are of
// that position, scores (NH,maxT) is scratch. It sees the last `window` positions, or with 0 all.
// Memory-bound: reads the head's keys and values once.
#pragma once
#include "llmc/cuda/common.cuh"

template <class floatX>
__global__ void fill_cache_kernel(floatX* keys, floatX* values, const floatX* qkv, int64_t T, int64_t maxT, int64_t C,
                                  int head_size) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, t = i / C, c = i % C;
    if (t >= T) return;
    const int64_t to = (c / head_size * maxT + t) * head_size + c % head_size;
    keys[to] = qkv[t * 3 * C + C + c];
    values[to] = qkv[t * 3 * C + 2 * C + c];
}
// Writes keys and values of the first T positions to the cache of a layer, from qkv (T,3C).
template <class floatX>
void fill_cache(floatX* keys, floatX* values, const floatX* qkv, int64_t T, int64_t maxT, int64_t C, int64_t NH,
                cudaStream_t stream) {
    launch("fill_cache", fill_cache_kernel<floatX>, dim3((unsigned)ceil_div(T * C, 256)), 256, 0, stream, keys, values,
           qkv, T, maxT, C, (int)(C / NH));
}

constexpr int DECODE_THREADS = 128;
template <class floatX>
__global__ void __launch_bounds__(DECODE_THREADS)
    attention_decode_kernel(floatX* out, floatX* keys, floatX* values, const floatX* qkv, float* scores, int64_t last,
                            int64_t maxT, int64_t C, int head_size, int64_t begin) {
    __shared__ float tops[DECODE_THREADS / 32];
    const int64_t first = (int64_t)blockIdx.x * head_size;  // channel of the head
    const floatX *q = qkv + first, *k = q + C, *v = k + C;
    floatX *head_keys = keys + first * maxT, *head_values = values + first * maxT;
    for (int c = threadIdx.x; c < head_size; c += DECODE_THREADS)
        head_keys[last * head_size + c] = k[c], head_values[last * head_size + c] = v[c];
    __syncthreads();
    float *p = scores + blockIdx.x * maxT, top = -INFINITY, sum = 0;
    for (int64_t t = begin + threadIdx.x; t <= last; t += DECODE_THREADS) {
        float dot = 0;
        for (int c = 0; c < head_size; c++) dot += (float)q[c] * (float)head_keys[t * head_size + c];
        p[t] = dot / sqrtf((float)head_size);
        top = fmaxf(top, p[t]);
    }
    top = warp_max(top);
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < DECODE_THREADS / 32; w++) top = fmaxf(top, tops[w]);
    for (int64_t t = begin + threadIdx.x; t <= last; t += DECODE_THREADS) sum += p[t] = expf(p[t] - top);
    sum = block_sum(sum);  // its barriers also make all of p visible
    for (int c = threadIdx.x; c < head_size; c += DECODE_THREADS) {
        float mix = 0;
        for (int64_t t = begin; t <= last; t++) mix += p[t] * (float)head_values[t * head_size + c];
        out[first + c] = (floatX)(mix / sum);
    }
}
template <class floatX>
void attention_decode(floatX* out, floatX* keys, floatX* values, const floatX* qkv, float* scores, int64_t last,
                      int64_t maxT, int64_t C, int64_t NH, cudaStream_t stream, int64_t window = 0) {
    const int64_t begin = window > 0 && last >= window ? last + 1 - window : 0;
    launch("attention_decode", attention_decode_kernel<floatX>, dim3((unsigned)NH), DECODE_THREADS, 0, stream, out,
           keys, values, qkv, scores, last, maxT, C, (int)(C / NH), begin);
}
