// AdamW; formula: llmc/cpu/adamw.h. One launch over all parameters of the process, whatever tensor
// they belong to; whether a parameter is decayed follows from its place in its bucket
// (llmc/tensors.h). The device decides from its own results whether to update at all, and how far
// to clip. Memory-bound: in bf16 with master weights it reads 14 to 16 bytes a parameter and writes
// 14.
//
// Where weights are 16-bit, updates are smaller than half a unit in their last place, and would
// vanish by rounding. Either a master copy in fp32 is updated, and the weight is its rounding; or
// the weight is rounded stochastically (llmc/bf16.h).
#pragma once
#include "llmc/cuda/global_norm.cuh"

// Which parts of a bucket are decayed, as ranges of elements: of a layer, and of the last bucket.
struct DecayRanges {
    int64_t layer_elems, layers_end;  // elements of a layer's bucket, and where the last bucket begins
    int64_t begin[2][NUM_TENSORS], end[2][NUM_TENSORS];
    int count[2];
};
inline DecayRanges decay_ranges(const ParameterLayout& layout) {
    DecayRanges r{};
    r.layer_elems = layout.bucket_begin[1], r.layers_end = layout.bucket_begin[layout.config.L];
    for (int i = 0; i < NUM_TENSORS; i++) {
        const int last = TENSORS[i].per_layer ? 0 : 1;
        if (!TENSORS[i].decayed) continue;
        r.begin[last][r.count[last]] = layout.offset_in_bucket[i];
        r.end[last][r.count[last]++] = layout.offset_in_bucket[i] + tensor_elems(i, layout.config);
    }
    return r;
}
__device__ inline bool is_decayed(const DecayRanges& r, int64_t i) {
    const int last = i >= r.layers_end;
    const int64_t place = last ? i - r.layers_end : i % r.layer_elems;
    for (int k = 0; k < r.count[last]; k++)
        if (place >= r.begin[last][k] && place < r.end[last][k]) return true;
    return false;
}

__device__ inline __nv_bfloat16 round_stochastically(float x, uint32_t random) {
    return __ushort_as_bfloat16(stochastic_bits(__float_as_uint(x), random));
}

// N values as fp32 from, or rounded to nearest into, whole Packs of any type.
template <class T, int N>
__device__ inline void load_floats(float (&x)[N], const T* p) {
#pragma unroll
    for (int i = 0; i < N; i += Pack<T>::size) {
        const Pack<T> pack = load_pack_streaming(p + i);
        for (int k = 0; k < Pack<T>::size; k++) x[i + k] = (float)pack[k];
    }
}
template <class T, int N>
__device__ inline void store_floats(T* p, const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += Pack<T>::size) {
        Pack<T> pack;
        for (int k = 0; k < Pack<T>::size; k++) pack[k] = (T)x[i + k];
        store_pack_streaming(p + i, pack);
    }
}

constexpr int ADAMW_ELEMS = 8;  // of a thread; tensors begin at multiples of 16, so they are all of one tensor

// The part of params that `mine` names is updated with the same part of grads; m, v and, if not
// null, master hold mine.elems() each.
template <class floatX, class floatG>
__global__ void adamw_kernel(floatX* params, float* master, float* m, float* v, const floatG* grads, SliceMap mine,
                             AdamW k, DecayRanges ranges, const DeviceResults* results, uint64_t seed) {
    constexpr int N = ADAMW_ELEMS;
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (i >= mine.elems() || !results->wanted) return;
    const int64_t at = mine.position(i);  // among all parameters
    const float step = k.learning_rate / k.correction1, root = 1.0f / sqrtf(k.correction2),
                grad_scale = results->grad_scale;
    const float keep = is_decayed(ranges, at) ? 1.0f - k.learning_rate * k.weight_decay : 1.0f;
    float g[N], mi[N], vi[N], p[N];
    load_floats(g, grads + at), load_floats(mi, m + i), load_floats(vi, v + i);
    if (master) load_floats(p, master + i);
    else load_floats(p, params + at);
#pragma unroll
    for (int j = 0; j < N; j++) {
        g[j] *= grad_scale;
        mi[j] = k.beta1 * mi[j] + (1.0f - k.beta1) * g[j];
        vi[j] = k.beta2 * vi[j] + (1.0f - k.beta2) * (g[j] * g[j]);
        p[j] = keep * p[j] - step * (mi[j] / (sqrtf(vi[j]) * root + k.eps));
    }
    store_floats(m + i, mi), store_floats(v + i, vi);
    if (master) store_floats(master + i, p);
    if constexpr (sizeof(floatX) == 2) {
        if (!master) {
#pragma unroll
            // a bf16 now: storing it rounds no more
            for (int j = 0; j < N; j++) p[j] = round_stochastically(p[j], hash_bits(seed, at + j));
        }
    }
    store_floats(params + at, p);
}

template <class floatX, class floatG>
void adamw_update(floatX* params, float* master, float* m, float* v, const floatG* grads, const SliceMap& mine,
                  const AdamW& k, const DecayRanges& ranges, const DeviceResults* results, uint64_t seed,
                  cudaStream_t stream) {
    launch("adamw", adamw_kernel<floatX, floatG>, dim3((unsigned)ceil_div(mine.elems(), ADAMW_ELEMS * 256)), 256, 0,
           stream, params, master, m, v, grads, mine, k, ranges, results, seed);
}

// sums (n_elems, fp32) = or += grads (n_elems, a multiple of the Pack): gradients of one micro-step
// into those of the step.
template <class floatX>
__global__ void add_gradients_kernel(float* sums, const floatX* grads, size_t n_elems, bool add) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int) {
        const Pack<floatX> g = load_pack_streaming(grads + i);
        for (int k = 0; k < Pack<floatX>::size; k++) sums[i + k] = add ? sums[i + k] + (float)g[k] : (float)g[k];
    });
}
template <class floatX>
void add_gradients(float* sums, const floatX* grads, size_t n_elems, bool add, cudaStream_t stream) {
    launch("add_gradients", add_gradients_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream, sums,
           grads, n_elems, add);
}
// out (n_elems, a multiple of the Pack) = inp, rounded to nearest.
template <class floatX>
__global__ void round_gradients_kernel(floatX* out, const float* inp, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int) {
        Pack<floatX> x;
        for (int k = 0; k < Pack<floatX>::size; k++) x[k] = (floatX)inp[i + k];
        store_pack(out + i, x);
    });
}
template <class floatX>
void round_gradients(floatX* out, const float* inp, size_t n_elems, cudaStream_t stream) {
    launch("round_gradients", round_gradients_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream,
           out, inp, n_elems);
}
