// The end of the network: logits, loss and their gradient; formulas and shapes:
// llmc/cpu/classifier.h. Rows are processed in chunks, so that the logits of all rows never exist
// at once.
//
// Softmax and loss: one block of 512 threads per row. The first pass over the row computes maximum
// and sum together (Milakov & Gimelshein 2018, arXiv:1805.02867, section 3). The second, with the
// row in the second-level cache, turns the logits into their gradient in place. Sums are fp32.
// Memory-bound: reads and writes each logit once from memory, and reads it once more from the
// cache.
#pragma once
#include "llmc/constants.h"
#include "llmc/cuda/matmul.cuh"

// Rows per chunk. More rows make the products more efficient, and the logits larger: with GPT-2's
// vocabulary, padded to 50304, those of 2048 rows are 206 MB in bf16.
inline int64_t classifier_chunk_rows(int64_t rows) { return rows < 2048 ? rows : 2048; }

constexpr int CLASSIFIER_THREADS = 512;

// The maximum of the logits seen so far, and the sum of e^(x - maximum) over them. add() joins the
// states of two sets of logits, in any order:  m = max(m1, m2),  s = s1 e^(m1 - m) + s2 e^(m2 - m).
struct SoftmaxState {
    float max, sum;
    __device__ void add(float other_max, float other_sum) {
        const float top = fmaxf(max, other_max);
        if (top == -INFINITY) return;  // both sets are empty
        sum = sum * expf(max - top) + other_sum * expf(other_max - top);
        max = top;
    }
};

// losses (rows) are written. If gradients, logits (rows, Vp) become (p - onehot(target)) dloss,
// with 0 in columns V .. Vp - 1; otherwise they stay. Of a row whose target is IGNORED_TARGET, loss
// and gradient are 0. One block per row, one Pack per thread at a
// time. States are joined in a thread, then across lanes, then across warps.
template <class floatX>
__global__ void __launch_bounds__(CLASSIFIER_THREADS)
    softmax_loss_kernel(float* losses, floatX* logits, const int* targets, int64_t V, int64_t Vp, float dloss,
                        bool gradients) {
    constexpr int N = Pack<floatX>::size;
    __shared__ SoftmaxState warps[CLASSIFIER_THREADS / 32];
    floatX* row = logits + (int64_t)blockIdx.x * Vp;
    const int target = targets[blockIdx.x];
    if (target == IGNORED_TARGET) {
        if (threadIdx.x == 0) losses[blockIdx.x] = 0;
        Pack<floatX> zeros;
        for (int k = 0; k < N; k++) zeros[k] = (floatX)0.0f;
        for (int64_t c = threadIdx.x * N; c < Vp && gradients; c += CLASSIFIER_THREADS * N) store_pack(row + c, zeros);
        return;
    }
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
    __syncthreads();  // thread 0 has read the target's logit, which is overwritten below
    const float scale = 1.0f / state.sum;
    for (int64_t c = threadIdx.x * N; c < Vp; c += CLASSIFIER_THREADS * N) {
        Pack<floatX> x = load_pack_streaming(row + c);
        for (int k = 0; k < N; k++) {
            const float p = expf((float)x[k] - state.max) * scale, onehot = c + k == target ? 1.0f : 0.0f;
            x[k] = (floatX)(c + k < V ? (p - onehot) * dloss : 0.0f);
        }
        store_pack(row + c, x);
    }
}

// *sum (fp64) = sum of losses (n), or += if add. One block of 1024 threads.
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

// Arguments: llmc/cpu/classifier.h, except that dwte (Vp, C) is fp32: the sum over the chunks is
// not rounded in between.
template <class floatX>
void classifier(float* losses, floatX* dinp, float* dwte, floatX* logits, const floatX* inp, const floatX* wte,
                const int* targets, int64_t rows, int64_t C, int64_t V, int64_t Vp, float dloss, bool add,
                cudaStream_t stream) {
    const StreamRange in_stream(work::classifier(rows, C, Vp, dinp, sizeof(floatX), sizeof(float)), stream);
    const int64_t chunk = classifier_chunk_rows(rows);
    const floatX* const no_bias = nullptr;
    floatX* const no_dbias = nullptr;
    float* const no_partials = nullptr;
    for (int64_t r = 0; r < rows; r += chunk) {
        const int64_t n = chunk < rows - r ? chunk : rows - r;
        const floatX* const chunk_inp = inp + r * C;
        matmul_forward(logits, chunk_inp, wte, no_bias, n, C, Vp, stream);
        launch("softmax_loss", softmax_loss_kernel<floatX>, dim3((unsigned)n), CLASSIFIER_THREADS, 0, stream,
               losses + r, logits, targets + r, V, Vp, dloss, dinp != nullptr);
        if (dinp)
            matmul_backward(dinp + r * C, dwte, no_dbias, no_partials, logits, chunk_inp, wte, n, C, Vp, add || r > 0,
                            stream);
    }
}
