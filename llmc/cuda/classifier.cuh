// The end of the network; formulas: llmc/cpu/classifier.h. Rows go through in chunks, so that all
// logits never exist at once. One block handles one row: it reads the row once for maximum and sum
// together (Milakov & Gimelshein 2018, arXiv:1805.02867), a second time, out of the second-level
// cache, to turn it into its gradient in place. Sums are fp32.
#pragma once
#include "llmc/cuda/matmul.cuh"

// More rows make the products more efficient, and the logits larger: 2048 of GPT-2's are 206 MB in
// bf16.
inline int64_t classifier_chunk_rows(int64_t rows) { return rows < 2048 ? rows : 2048; }

constexpr int CLASSIFIER_THREADS = 512;

// Maximum and sum of e^(x - maximum) of what has been seen.
struct SoftmaxState {
    float max, sum;
    __device__ void add(float other_max, float other_sum) {
        const float top = fmaxf(max, other_max);
        if (top == -INFINITY) return;  // nothing seen on either side
        sum = sum * expf(max - top) + other_sum * expf(other_max - top);
        max = top;
    }
};

// losses (rows); logits (rows, Vp) become gradients, dloss times (p - onehot), 0 in columns V..Vp,
// or stay as they are if !gradients.
template <class floatX>
__global__ void __launch_bounds__(CLASSIFIER_THREADS)
    softmax_loss_kernel(float* losses, floatX* logits, const int* targets, int64_t V, int64_t Vp, float dloss,
                        bool gradients) {
    constexpr int N = Pack<floatX>::size;
    __shared__ SoftmaxState warps[CLASSIFIER_THREADS / 32];
    floatX* row = logits + (int64_t)blockIdx.x * Vp;
    const int target = targets[blockIdx.x];
    SoftmaxState state{-INFINITY, 0};
    for (int64_t c = threadIdx.x * N; c < V; c += CLASSIFIER_THREADS * N) {
        const Pack<floatX> x = load_pack(row + c);
        float top = -INFINITY, sum = 0;
        for (int k = 0; k < N && c + k < V; k++) top = fmaxf(top, (float)x[k]);
        for (int k = 0; k < N && c + k < V; k++) sum += expf((float)x[k] - top);
        state.add(top, sum);
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other_max = __shfl_xor_sync(0xFFFFFFFFu, state.max, distance),
                    other_sum = __shfl_xor_sync(0xFFFFFFFFu, state.sum, distance);
        state.add(other_max, other_sum);
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = state;
    __syncthreads();
    state = warps[0];
    for (int w = 1; w < CLASSIFIER_THREADS / 32; w++) state.add(warps[w].max, warps[w].sum);
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(state.sum) - ((float)row[target] - state.max);
    if (!gradients) return;
    __syncthreads();  // the target's logit has been read
    const float scale = 1.0f / state.sum;
    for (int64_t c = threadIdx.x * N; c < Vp; c += CLASSIFIER_THREADS * N) {
        Pack<floatX> x = load_pack_streaming(row + c);
        for (int k = 0; k < N; k++)
            x[k] =
                (floatX)(c + k < V ? (expf((float)x[k] - state.max) * scale - (c + k == target ? 1.0f : 0.0f)) * dloss
                                   : 0.0f);
        store_pack(row + c, x);
    }
}

// *sum (fp64) = or += sum of losses (n), by one block.
template <class T>
__global__ void __launch_bounds__(1024) loss_sum_kernel(double* sum, const T* losses, int64_t n, bool add) {
    double mine = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) mine += losses[i];
    const double total = block_sum(mine);
    if (threadIdx.x == 0) *sum = add ? *sum + total : total;
}
inline void loss_sum(double* sum, const float* losses, int64_t n, bool add, cudaStream_t stream) {
    launch("loss_sum", loss_sum_kernel<float>, 1, 1024, 0, stream, sum, losses, n, add);
}

// As llmc/cpu/classifier.h, but dwte (Vp, C) is fp32, summed over the chunks in it.
template <class floatX>
void classifier(float* losses, floatX* dinp, float* dwte, floatX* logits, const floatX* inp, const floatX* wte,
                const int* targets, int64_t rows, int64_t C, int64_t V, int64_t Vp, float dloss, bool add,
                cudaStream_t stream) {
    const int64_t chunk = classifier_chunk_rows(rows);
    for (int64_t r = 0; r < rows; r += chunk) {
        const int64_t n = chunk < rows - r ? chunk : rows - r;
        matmul_forward(logits, inp + r * C, wte, (const floatX*)nullptr, n, C, Vp, stream);
        launch("softmax_loss", softmax_loss_kernel<floatX>, dim3((unsigned)n), CLASSIFIER_THREADS, 0, stream,
               losses + r, logits, targets + r, V, Vp, dloss, dinp != nullptr);
        if (dinp)
            matmul_backward(dinp + r * C, dwte, (floatX*)nullptr, (float*)nullptr, logits, inp + r * C, wte, n, C, Vp,
                            add || r > 0, stream);
    }
}
