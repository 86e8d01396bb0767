// The end of the network: logits, loss and their gradient; formulas and shapes:
// llmc/cpu/classifier.h. Rows are processed in chunks, so that the logits of all rows never exist
// at once.
//
// Softmax and loss: one block of up to 1024 threads per row. The first pass over the row computes
// maximum and sum together (Milakov & Gimelshein 2018, arXiv:1805.02867, section 3). The second
// turns the logits into their gradient in place. Sums are fp32. Memory-bound: reads and writes each
// logit once from memory.
//
// Where a multiprocessor has shared memory for the rows of two blocks (GPT-2's in 16 bits: 101 KB
// each, an H100 has 228 KB), the row is copied there by cp.async, and both passes read it there:
// the whole row is on its way at once, and while one block waits for its own the other computes.
// Elsewhere both passes read global memory, the second from the last logit to the first, because
// what was read last is still in the second-level cache: two blocks per multiprocessor, so that the
// rows in work fit there.
#pragma once
#include "llmc/gpt2/constants.h"
#include "llmc/cuda/distill.cuh"
#include "llmc/cuda/matmul.cuh"
#include "llmc/cuda/mma.cuh"

// Rows per chunk. Each chunk reads and writes dwte, which is fp32: with GPT-2's vocabulary, padded
// to 50304, and 768 channels 309 MB. More rows make the logits larger: those of 8192 rows are 824
// MB in bf16. Twice as many where that takes at most a sixteenth of the GPU's memory. (Not where
// the plan fits: the order of dwte's sums, and so its bits, would depend on whatever else takes
// memory.)
static inline int64_t classifier_chunk_rows(int64_t rows, int64_t row_bytes, double memory_bytes) {
    const int64_t most = 16 * 16384.0 * (double)row_bytes <= memory_bytes ? 16384 : 8192;
    return rows < most ? rows : most;
}

// Threads of a block at most, for which the kernel is compiled: a warp has one lane for each warp
// of the block, so 1024; and two blocks fit where a multiprocessor holds 1536 (CUDA C++ Programming
// Guide, technical specifications per compute capability).
#if defined(__CUDA_ARCH__) && ((__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1200)
constexpr int CLASSIFIER_THREADS = 768;
#else
constexpr int CLASSIFIER_THREADS = 1024;
#endif

// The maximum of the logits seen so far, and the sum of e^(x - maximum) over them. add() joins the
// states of two sets of logits, in any order:  m = max(m1, m2),  s = s1 e^(m1 - m) + s2 e^(m2 - m).
struct SoftmaxState {
    float max, sum;
    __device__ void add(float other_max, float other_sum) {
        const float top = fmaxf(max, other_max);
        if (top == -INFINITY) return;  // both sets are empty
        sum = sum * exp_flushed(max - top) + other_sum * exp_flushed(other_max - top);
        max = top;
    }
    template <class floatX>
    __device__ void add(const PackFloats<floatX>& x) {
        float top = x[0];
        for (int k = 1; k < PackFloats<floatX>::size; k++) top = fmaxf(top, x[k]);
        if (top > max) sum *= exp_flushed(max - top), max = top;  // soon rare
        if (max == -INFINITY) return;
        for (int k = 0; k < PackFloats<floatX>::size; k++) sum += exp_flushed(x[k] - max);
    }
    // Joins the states of all lanes, for all lanes.
    __device__ void add_lanes() {
        for (int distance = 16; distance > 0; distance /= 2) {
            const float other_max = __shfl_xor_sync(0xFFFFFFFFu, max, distance);
            add(other_max, __shfl_xor_sync(0xFFFFFFFFu, sum, distance));
        }
    }
};

// The state of a row of V logits, for all threads of its block: each thread takes two Packs at a
// time. States are joined in a thread, then across lanes, then across warps.
template <class floatX>
__device__ inline SoftmaxState softmax_state(const floatX* row, int V) {
    constexpr int N = Pack<floatX>::size;
    __shared__ SoftmaxState warps[32];
    const int packs = V / N, step = blockDim.x, lane = threadIdx.x % 32;
    SoftmaxState state{-INFINITY, 0};
    for (int i = threadIdx.x; i < packs; i += 2 * step) {
        const bool second = i + step < packs;
        const int4 bits = load_bits(row + i * N), more = second ? load_bits(row + (i + step) * N) : int4{};
        state.add(to_floats<floatX>(bits));
        if (second) state.add(to_floats<floatX>(more));
    }
    if (packs * N + (int)threadIdx.x < V) state.add((float)row[packs * N + threadIdx.x], 1);  // behind the last Pack
    state.add_lanes();
    if (lane == 0) warps[threadIdx.x / 32] = state;
    __syncthreads();
    state = lane < step / 32 ? warps[lane] : SoftmaxState{-INFINITY, 0};
    state.add_lanes();
    return state;
}

// Writes losses (rows). If gradients, logits (rows, Vp) become (p - onehot(target)) dloss, with 0
// in columns V .. Vp - 1; otherwise they stay. Of a row whose target is IGNORED_TARGET, loss and
// gradient are 0. One block per row. IN_SHARED: the row is copied to shared memory first.
template <class floatX, bool IN_SHARED>
__global__ void __launch_bounds__(CLASSIFIER_THREADS, 2)
    softmax_loss_kernel(float* losses, floatX* logits, const int* targets, int V, int Vp, float dloss, bool gradients) {
    constexpr int N = Pack<floatX>::size;
    floatX* row = logits + (int64_t)blockIdx.x * Vp;
    const int target = targets[blockIdx.x];
    if (target == IGNORED_TARGET) {
        if (threadIdx.x == 0) losses[blockIdx.x] = 0;
        for (int c = threadIdx.x * N; c < Vp && gradients; c += blockDim.x * N)
            store_floats(row + c, PackFloats<floatX>{});
        return;
    }
    const floatX* seen = row;
    if constexpr (IN_SHARED) {
        extern __shared__ __align__(128) int4 shared_row[];
        floatX* const copy = (floatX*)shared_row;
        for (int c = threadIdx.x * N; c < Vp; c += blockDim.x * N) copy_async(copy + c, row + c, true);
        copy_async_commit();
        copy_async_wait<0>();
        __syncthreads();  // the row has arrived, for all threads
        seen = copy;
    }
    const SoftmaxState state = softmax_state(seen, V);
    const float target_logit = (float)seen[target];
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(state.sum) - (target_logit - state.max);
    if (!gradients) return;
    __syncthreads();  // all threads have read the target's logit, which is overwritten below
    const float scale = dloss / state.sum;
    const auto p_dloss = [&](float logit) { return exp_flushed(logit - state.max) * scale; };
    const int packs = V / N;
    for (int i = packs - 1 - (int)threadIdx.x; i >= 0; i -= (int)blockDim.x) {
        PackFloats<floatX> x = IN_SHARED ? load_floats(seen + i * N) : load_floats_streaming(seen + i * N);
        for (int k = 0; k < N; k++) x[k] = p_dloss(x[k]);
        store_floats(row + i * N, x);
    }
    for (int c = packs * N + (int)threadIdx.x; c < Vp; c += (int)blockDim.x)  // behind the last whole Pack
        row[c] = (floatX)(c < V ? p_dloss((float)seen[c]) : 0.0f);
    __syncthreads();  // the target's column has been written, without the 1
    if (threadIdx.x == 0) row[target] = (floatX)(p_dloss(target_logit) - dloss);
}

// Threads of a block: two Packs of the row for each, as far as there are so many.
template <class floatX, class Kernel>
inline dim3 classifier_threads(int64_t V, Kernel* kernel) {
    const int64_t two_packs_each = round_up(ceil_div(V, 2 * Pack<floatX>::size), 32);
    return dim3((unsigned)std::min(two_packs_each, most_threads(kernel, 2)));
}
// Whether the rows of two blocks fit a multiprocessor's shared memory, with 1 KB that the runtime
// takes for each block and what the kernel has beside the row.
inline bool row_fits_shared(int64_t row_bytes) {
    const int64_t block_bytes = row_bytes + 1024 + 32 * (int64_t)sizeof(SoftmaxState);
    return 2 * block_bytes <= device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
}
// Softmax and loss of n rows, which fit shared memory if in_shared.
template <class floatX>
void softmax_loss(float* losses, floatX* logits, const int* targets, int64_t n, int64_t V, int64_t Vp, float dloss,
                  bool gradients, bool in_shared, cudaStream_t stream) {
    const size_t shared_bytes = in_shared ? Vp * sizeof(floatX) : 0;
    const auto kernel = in_shared ? softmax_loss_kernel<floatX, true> : softmax_loss_kernel<floatX, false>;
    allow_shared(kernel, shared_bytes, "softmax_loss");
    launch("softmax_loss", kernel, dim3((unsigned)n), classifier_threads<floatX>(V, kernel), shared_bytes, stream,
           losses, logits, targets, (int)V, (int)Vp, dloss, gradients);
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

// The whole of it; arguments: llmc/cpu/classifier.h, except that logits has chunk_rows rows, and
// that dwte (Vp, C) is fp32: the sum over the chunks is not rounded in between. A teacher is for
// training: dinp and dwte are not null then.
template <class floatX>
void classifier(float* losses, floatX* dinp, float* dwte, floatX* logits, const floatX* inp, const floatX* wte,
                const int* targets, int64_t rows, int64_t chunk_rows, int64_t C, int64_t V, int64_t Vp, float dloss,
                bool add, cudaStream_t stream, const Teacher<floatX>& teacher = {}) {
    const StreamRange in_stream(work::classifier(rows, C, Vp, dinp, sizeof(floatX), sizeof(float), dwte), stream);
    const floatX* const no_bias = nullptr;
    floatX* const no_dbias = nullptr;
    const ColumnSums no_sums{nullptr};
    const bool in_shared = row_fits_shared(Vp * sizeof(floatX));
    for (int64_t r = 0; r < rows; r += chunk_rows) {
        const int64_t n = chunk_rows < rows - r ? chunk_rows : rows - r;
        const floatX* const chunk_inp = inp + r * C;
        matmul_forward(logits, chunk_inp, wte, no_bias, n, C, Vp, stream);
        if (teacher) {
            matmul_forward(teacher.logits, teacher.lnf + r * teacher.C, teacher.wte, no_bias, n, teacher.C, Vp, stream);
            distilled_loss(losses + r, logits, targets + r, n, V, Vp, dloss, teacher, stream);
        } else {
            softmax_loss(losses + r, logits, targets + r, n, V, Vp, dloss, dinp != nullptr, in_shared, stream);
        }
        if (dinp)
            matmul_backward(dinp + r * C, dwte, no_dbias, no_sums, logits, chunk_inp, wte, n, C, Vp, add || r > 0,
                            stream);
    }
}
