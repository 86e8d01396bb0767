// Softmax and cross-entropy over the vocabulary, and their gradient, (p - onehot(target)) dloss,
// from logits (rows, Vp). Memory-bound.
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/classifier.cuh"

struct Operands {
    float* losses;
    bf16 *logits, *dlogits;
    float* probs;  // (rows, Vp): the first rungs only
    const int* targets;
    int64_t rows, V, Vp;
    float dloss;
};
// One thread per row.
__global__ void softmax_thread_kernel(Operands o) {
    const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= o.rows) return;
    const bf16* x = o.logits + row * o.Vp;
    float top = -INFINITY, total = 0;
    for (int64_t v = 0; v < o.V; v++) top = fmaxf(top, (float)x[v]);
    for (int64_t v = 0; v < o.V; v++) total += expf((float)x[v] - top);
    for (int64_t v = 0; v < o.V; v++) o.probs[row * o.Vp + v] = expf((float)x[v] - top) / total;
}
// One block per row. Neighbouring threads read neighbouring logits, in three passes.
__global__ void softmax_block_kernel(Operands o) {
    __shared__ float tops[32];
    const bf16* x = o.logits + (int64_t)blockIdx.x * o.Vp;
    float top = -INFINITY, total = 0;
    for (int64_t v = threadIdx.x; v < o.V; v += blockDim.x) top = fmaxf(top, (float)x[v]);
    top = warp_max(top);
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < (int)blockDim.x / 32; w++) top = fmaxf(top, tops[w]);
    for (int64_t v = threadIdx.x; v < o.V; v += blockDim.x) total += expf((float)x[v] - top);
    total = block_sum(total);
    for (int64_t v = threadIdx.x; v < o.V; v += blockDim.x)
        o.probs[(int64_t)blockIdx.x * o.Vp + v] = expf((float)x[v] - top) / total;
}
// One thread per logit: loss and gradient from the probabilities in memory.
__global__ void cross_entropy_kernel(Operands o) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = i / o.Vp, v = i % o.Vp;
    if (row >= o.rows) return;
    const float p = v < o.V ? o.probs[i] : 0.0f;
    if (v == o.targets[row]) o.losses[row] = -logf(p);
    o.dlogits[i] = (bf16)(v < o.V ? (p - (v == o.targets[row] ? 1.0f : 0.0f)) * o.dloss : 0.0f);
}

// In place, and online: maximum and sum in one pass, the gradient in a second. expf of the CUDA
// library, one Pack in flight, and every element is compared with V.
__global__ void __launch_bounds__(512) softmax_online_kernel(Operands o) {
    constexpr int N = Pack<bf16>::size;
    __shared__ float tops[16];
    __shared__ float sums[16];
    bf16* row = o.dlogits + (int64_t)blockIdx.x * o.Vp;
    float top = -INFINITY, sum = 0;
    const auto join = [&](float other_top, float other_sum) {
        const float both = fmaxf(top, other_top);
        if (both == -INFINITY) return;
        sum = sum * expf(top - both) + other_sum * expf(other_top - both), top = both;
    };
    for (int64_t c = threadIdx.x * N; c < o.V; c += blockDim.x * N) {
        const PackFloats<bf16> x = load_floats(row + c);
        float pack_top = -INFINITY, pack_sum = 0;
        for (int k = 0; k < N && c + k < o.V; k++) pack_top = fmaxf(pack_top, x[k]);
        for (int k = 0; k < N && c + k < o.V; k++) pack_sum += expf(x[k] - pack_top);
        join(pack_top, pack_sum);
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other_top = __shfl_xor_sync(0xFFFFFFFFu, top, distance);
        join(other_top, __shfl_xor_sync(0xFFFFFFFFu, sum, distance));
    }
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top, sums[threadIdx.x / 32] = sum;
    __syncthreads();
    top = -INFINITY, sum = 0;
    for (int w = 0; w < (int)blockDim.x / 32; w++) join(tops[w], sums[w]);
    const int target = o.targets[blockIdx.x];
    if (threadIdx.x == 0) o.losses[blockIdx.x] = logf(sum) - ((float)row[target] - top);
    __syncthreads();
    for (int64_t c = threadIdx.x * N; c < o.Vp; c += blockDim.x * N) {
        PackFloats<bf16> x = load_floats(row + c);
        for (int k = 0; k < N; k++)
            x[k] = c + k < o.V ? (expf(x[k] - top) / sum - (c + k == target ? 1.0f : 0.0f)) * o.dloss : 0.0f;
        store_floats(row + c, x);
    }
}

BENCH("classifier", dims("rows", "V"), shapes({{2048, 50257}, {33, 300}, {5, 1000}}, counted({64, 50257}))) {
    const int64_t rows = shape[0], V = shape[1], Vp = round_up(V, 128);
    float *logits = random_floats(rows * Vp, 3), *losses = buffer<float>(rows), *dlogits = buffer<float>(rows * Vp);
    int* targets = buffer<int>(rows);
    for (int64_t i = 0; i < rows; i++) targets[i] = (int)(i * 7919 % V);
    bf16 *d_logits = on_device<bf16>(logits, rows * Vp), *d_dlogits = device_buffer<bf16>(rows * Vp);
    const float dloss = 1.0f / (float)rows;
    float *d_losses = device_buffer<float>(rows), *d_probs = device_buffer<float>(rows * Vp);
    int* d_targets = on_device<int>(targets, rows);
    const Operands o{d_losses, d_logits, d_dlogits, d_probs, d_targets, rows, V, Vp, dloss};
    bytes(4.0 * rows * Vp);  // logits read, gradients written
    output("losses", losses, rows, 0), device_output("losses", d_losses, rows, sum_tolerance(V));
    output("dlogits", dlogits, rows * Vp, 0), device_output("dlogits", d_dlogits, rows * Vp, bf16_tolerance(1, V));
    expected([=] {
        for (int64_t r = 0; r < rows; r++) {
            double total = 0;
            for (int64_t v = 0; v < V; v++) total += std::exp((double)logits[r * Vp + v]);
            losses[r] = (float)(std::log(total) - logits[r * Vp + targets[r]]);
            for (int64_t v = 0; v < Vp; v++)
                dlogits[r * Vp + v] =
                    v < V ? (float)((std::exp((double)logits[r * Vp + v]) / total - (v == targets[r])) * dloss) : 0.0f;
        }
    });
    auto cross_entropy = [=] {
        launch("cross_entropy", cross_entropy_kernel, blocks_for(rows * Vp, 256), 256, 0, stream, o);
    };
    auto thread_per_row = [=] {
        launch("softmax_thread", softmax_thread_kernel, blocks_for(rows, 64), 64, 0, stream, o);
        cross_entropy();
    };
    variant_bf16("thread-per-row",
                 "softmax into fp32 memory, one thread per row, then loss and gradient by another kernel: 16 bytes per "
                 "logit, of which 4 are necessary",
                 thread_per_row);
    auto block_per_row = [=](int threads) {
        launch("softmax_block", softmax_block_kernel, dim3((unsigned)rows), threads, 0, stream, o);
        cross_entropy();
    };
    sweep_bf16("block-per-row", {128, 256, 512, 1024},
               "one block per row: neighbouring threads read neighbouring logits; -128 to -1024: threads per block",
               block_per_row);
    // the last kernels work in place, so each run needs a fresh copy; its time is counted
    auto copy = [=] {
        check_cuda(cudaMemcpyAsync(d_dlogits, d_logits, rows * Vp * sizeof(bf16), cudaMemcpyDeviceToDevice, stream),
                   "copying");
    };
    auto online = [=] {
        copy();
        launch("softmax_online", softmax_online_kernel, dim3((unsigned)rows), 512, 0, stream, o);
    };
    variant_bf16("online",
                 "maximum and sum in one pass of 128-bit loads, loss and gradient in a second, in place: probabilities "
                 "stay in registers",
                 online);
    auto softmax = [=](bool in_shared) {
        copy();
        softmax_loss(d_losses, d_dlogits, d_targets, rows, V, Vp, dloss, true, in_shared, stream);
    };
    auto cached = [=] { softmax(false); };
    variant_bf16("cached",
                 "one instruction for a power of 2; whole Packs, of which only the last is compared with V; two loads "
                 "in flight; fewer rows at a time, and the second pass backwards, so that it finds them in the cache; "
                 "ships where two rows do not fit a multiprocessor's shared memory",
                 cached);
    auto shipped = [=] { softmax(row_fits_shared(Vp * sizeof(bf16))); };
    variant_bf16("shipped",
                 "the row in shared memory: the whole of it is on its way at once, and is read from memory once",
                 shipped);
}
