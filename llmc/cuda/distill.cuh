// The loss of rows that learn from a teacher, and the gradients of their scores; formulas and the
// meaning of Teacher: llmc/adapt/distill.h.
//
// One block per row. The first pass over both rows of scores finds their maxima, the second sums
// the exponentials, the third replaces the student's scores by their gradients. Both rows come from
// memory once: later passes find them in the second-level cache. Exponentials are computed in each
// pass, and stored nowhere: the row has 16 bits where floatX has.
#pragma once
#include "llmc/adapt/distill.h"
#include "llmc/gpt2/constants.h"
#include "llmc/cuda/mma.cuh"

constexpr int DISTILL_THREADS = 512;

// The maximum of x over a block, for all its threads.
__device__ inline float block_max(float x) {
    __shared__ float warps[32];
    x = warp_max(x);
    __syncthreads();  // threads may still be reading the warps' maxima of the call before
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    float top = warps[0];
    for (int w = 1; w < (int)blockDim.x / 32; w++) top = fmaxf(top, warps[w]);
    return top;
}

// Writes losses (rows); scores (rows, Vp) become their gradients times dloss, with 0 in columns V
// .. Vp - 1; theirs (rows, Vp) stay. Of a row whose target is IGNORED_TARGET, loss and gradient are
// 0.
template <class floatX>
__global__ void __launch_bounds__(DISTILL_THREADS)
    distilled_loss_kernel(float* losses, floatX* scores, const floatX* theirs, const int* targets, int V, int Vp,
                          float dloss, float share, float temperature) {
    constexpr int N = Pack<floatX>::size;
    floatX* const row = scores + (int64_t)blockIdx.x * Vp;
    const floatX* const their_row = theirs + (int64_t)blockIdx.x * Vp;
    const int target = targets[blockIdx.x];
    const int first = threadIdx.x * N, step = blockDim.x * N;
    if (target == IGNORED_TARGET) {
        if (threadIdx.x == 0) losses[blockIdx.x] = 0;
        for (int c = first; c < Vp; c += step) store_floats(row + c, PackFloats<floatX>{});
        return;
    }
    float top = -INFINITY, their_top = -INFINITY;
    for (int c = first; c < V; c += step) {
        const PackFloats<floatX> z = load_floats(row + c), u = load_floats(their_row + c);
        for (int k = 0; k < N; k++)
            if (c + k < V) top = fmaxf(top, z[k]), their_top = fmaxf(their_top, u[k]);
    }
    top = block_max(top), their_top = block_max(their_top);
    const float rate = 1 / temperature;
    // difference: sum over v of theirs[v] (u[v] - z[v]), but for their denominator
    float all = 0, soft = 0, of_theirs = 0, difference = 0;
    for (int c = first; c < V; c += step) {
        const PackFloats<floatX> z = load_floats(row + c), u = load_floats(their_row + c);
        for (int k = 0; k < N; k++) {
            if (c + k >= V) continue;
            const float x = z[k] - top, y = u[k] - their_top, q = exp_flushed(y * rate);
            all += exp_flushed(x), soft += exp_flushed(x * rate), of_theirs += q, difference += q * (y - x);
        }
    }
    all = block_sum(all), soft = block_sum(soft), of_theirs = block_sum(of_theirs), difference = block_sum(difference);
    if (threadIdx.x == 0) {
        const float divergence = difference / of_theirs * rate + logf(soft / of_theirs);
        const float cross_entropy = logf(all) - ((float)row[target] - top);
        losses[blockIdx.x] = (1 - share) * cross_entropy + share * temperature * temperature * divergence;
    }
    __syncthreads();  // the target's score has been read, which is overwritten below
    const float p_scale = dloss * (1 - share) / all, soft_scale = dloss * share * temperature / soft,
                q_scale = dloss * share * temperature / of_theirs;
    for (int c = first; c < Vp; c += step) {
        PackFloats<floatX> x = load_floats(row + c);
        const PackFloats<floatX> u = load_floats(their_row + c);
        for (int k = 0; k < N; k++) {
            const float z = x[k] - top, y = u[k] - their_top;
            const float gradient =
                exp_flushed(z) * p_scale + exp_flushed(z * rate) * soft_scale - exp_flushed(y * rate) * q_scale;
            x[k] = c + k >= V ? 0 : c + k == target ? gradient - dloss * (1 - share) : gradient;
        }
        store_floats(row + c, x);
    }
}

// n rows, whose targets, scores and teacher's scores begin at these pointers.
template <class floatX>
void distilled_loss(float* losses, floatX* scores, const int* targets, int64_t n, int64_t V, int64_t Vp, float dloss,
                    const Teacher<floatX>& teacher, cudaStream_t stream) {
    launch("distilled_loss", distilled_loss_kernel<floatX>, dim3((unsigned)n), DISTILL_THREADS, 0, stream, losses,
           scores, (const floatX*)teacher.logits, targets, (int)V, (int)Vp, dloss, teacher.share, teacher.temperature);
}
