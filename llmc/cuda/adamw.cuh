// The optimizers; rules and sources: llmc/optim/optimizers.h, the default one explained:
// llmc/cpu/adamw.h. One launch updates all parameters of the process, whatever tensor they belong
// to: 8 elements per thread, 256 threads per block. Whether an element is decayed follows from its
// offset in its bucket (llmc/gpt2/tensors.h). AdamW as code, with g already clipped:
//
//     m = beta1 m + (1 - beta1) g                   step = learning_rate / (1 - beta1^t)
//     v = beta2 v + (1 - beta2) g^2                 root = 1 / sqrt(1 - beta2^t)
//     p = keep p - step m / (sqrt(v) root + eps)    keep = 1 - learning_rate weight_decay, or 1
//
// Whether to update at all, and how far to clip, the kernel reads from the results that
// global_norm.cuh left on the device; the host does not wait for them.
//
// 16-bit weights have a master copy in fp32, which is updated, and of which the weight is the
// rounding. bf16 weights may have none; then they are rounded stochastically (llmc/base/bf16.h says
// why), unless --rounding says to nearest.
//
// Memory-bound. Bytes per parameter of AdamW, with bf16 weights and a master: 14 read (16 where
// gradients are fp32), 14 written. In fp32: 16 read, 12 written.
#pragma once
#include "llmc/optim/update_work.h"
#include "llmc/optim/small_state.h"
#include "llmc/cuda/global_norm.cuh"

// The ranges of elements that are decayed: [0] within a layer's bucket, of layers that are alike,
// [1] within the last bucket.
struct DecayRanges {
    int64_t layer_elems, layers_end;  // size of a layer's bucket, index of the last bucket's first element
    int64_t begin[2][NUM_TENSORS], end[2][NUM_TENSORS];
    int count[2];
};
inline DecayRanges decay_ranges(const ParameterLayout& layout) {
    DecayRanges r{};
    r.layer_elems = layout.bucket_begin[1], r.layers_end = layout.bucket_begin[layout.config.L];
    for (int i = 0; i < ALL_TENSORS; i++) {
        const int last = TENSORS[i].per_layer ? 0 : 1;
        if (!TENSORS[i].decayed || tensor_elems(i, layout.config) == 0 || !trains(layout.config, i)) continue;
        r.begin[last][r.count[last]] = layout.offset_in_bucket(i);
        r.end[last][r.count[last]++] = layout.offset_in_bucket(i) + tensor_elems(i, layout.config);
    }
    return r;
}
// All elements, or none.
inline DecayRanges same_decay(bool decayed) {
    DecayRanges r{};
    r.layer_elems = r.layers_end = r.end[0][0] = INT64_MAX, r.count[0] = decayed;
    return r;
}
__device__ inline bool is_decayed(const DecayRanges& r, int64_t i) {
    const int last = i >= r.layers_end;
    const int64_t offset = last ? i - r.layers_end : i % r.layer_elems;  // in its bucket
    for (int k = 0; k < r.count[last]; k++)
        if (offset >= r.begin[last][k] && offset < r.end[last][k]) return true;
    return false;
}

__device__ inline __nv_bfloat16 round_stochastically(float x, uint32_t random) {
    return __ushort_as_bfloat16(stochastic_bits(__float_as_uint(x), random));
}

// Load N values, a whole number of Packs, as fp32; or round them to nearest and store them.
template <class T, int N>
__device__ inline void load_packs(float (&x)[N], const T* p) {
#pragma unroll
    for (int i = 0; i < N; i += Pack<T>::size) {
        const PackFloats<T> values = load_floats_streaming(p + i);
        for (int k = 0; k < Pack<T>::size; k++) x[i + k] = values[k];
    }
}
template <class T, int N>
__device__ inline void store_packs(T* p, const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += Pack<T>::size) {
        PackFloats<T> values;
        for (int k = 0; k < Pack<T>::size; k++) values[k] = x[i + k];
        store_floats_streaming(p + i, values);
    }
}

// Stores updated weights, m or v: bf16 rounded to nearest, or stochastically, with random bits that
// follow from seed and from index, that of the first of them among all parameters.
template <class floatX, int N>
__device__ inline void store_updated(floatX* params, float (&p)[N], bool stochastically, uint64_t seed, int64_t index) {
    if constexpr (std::is_same<floatX, bf16>::value) {
        if (stochastically) {
#pragma unroll
            // the results are bf16 values, which store_packs does not change
            for (int j = 0; j < N; j++) p[j] = round_stochastically(p[j], hash_bits(seed, index + j));
        }
    }
    store_packs(params, p);
}

// Load N weights: from element `kept` of the fp32 master on or, if that is null, from element
// `weight` of params on. After an update they are stored in both; without a master, bf16 is rounded
// to nearest or stochastically, as `index` among all parameters says.
template <class floatX, int N>
__device__ inline void load_weights(float (&p)[N], const floatX* params, const float* master, int64_t weight,
                                    int64_t kept) {
    if (master) load_packs(p, master + kept);
    else load_packs(p, params + weight);
}
template <class floatX, int N>
__device__ inline void store_weights(floatX* params, float* master, float (&p)[N], bool to_nearest, uint64_t seed,
                                     int64_t index, int64_t weight, int64_t kept) {
    if (master) store_packs(master + kept, p);
    store_updated(params + weight, p, !master && !to_nearest, seed, index);
}

// What an update finds of the optimizer's state: that of all elements that the process updates, or
// with --offload of a stretch of them. Element 0 of m, v and master is the first of `mine`.
struct StateStretch {
    SliceMap mine;
    BlockMap blocks;  // those of `mine`, where state has 8 bits
    void *m = nullptr, *v = nullptr;
    float* master = nullptr;
    int64_t first_v = 0;  // the first of v, where only some elements have one
};

// Elements per thread. Tensors begin at multiples of 16, so one thread's elements are of one
// tensor: all decayed, or none.
constexpr int UPDATE_ELEMS = 8;

// Updates the elements `mine` of params by the rule of an optimizer, with the same elements of
// grads. m, v and master hold these mine.elems() elements only, without gaps. Each may be null: m
// and v if the optimizer does not keep them.
template <Optimizer optimizer, class floatX, class State, class floatG>
__device__ inline void update_by(floatX* params, float* master, State* m, State* v, const floatG* grads,
                                 const SliceMap& mine, const UpdateConstants& constants, const DecayRanges& ranges,
                                 const DeviceResults* results, uint64_t seed) {
    constexpr int N = UPDATE_ELEMS;
    constexpr bool keeps_m = OPTIMIZERS[optimizer].keeps.m != KEEP_NONE,
                   keeps_v = OPTIMIZERS[optimizer].keeps.v != KEEP_NONE;
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (i >= mine.elems() || !results->wanted) return;
    const int64_t at = mine.index(i);
    const float grad_scale = results->grad_scale;
    const RuleConstants k = rule_constants(constants, is_decayed(ranges, at));
    float g[N], mi[N], vi[N], p[N];
    load_packs(g, grads + mine.gradient(i));
    if constexpr (keeps_m) load_packs(mi, m + i);
    if constexpr (keeps_v) load_packs(vi, v + i);
    load_weights(p, params, master, mine.weight(i), i);
#pragma unroll
    for (int j = 0; j < N; j++) {
        g[j] *= grad_scale;
        RuleOf<optimizer>::update(p[j], mi[j], vi[j], g[j], k);
    }
    if constexpr (keeps_m) store_updated(m + i, mi, true, seed_of_state(seed, 0), at);
    if constexpr (keeps_v) store_updated(v + i, vi, true, seed_of_state(seed, 1), at);
    store_weights(params, master, p, constants.round_to_nearest, seed, at, mine.weight(i), i);
}

// AdamW's kernel has a name of its own, by which profiles and tables show it. The kernels of the
// other optimizers are shown with the optimizer's number.
template <class floatX, class floatG>
__global__ void adamw_kernel(floatX* params, float* master, float* m, float* v, const floatG* grads, SliceMap mine,
                             UpdateConstants k, DecayRanges ranges, const DeviceResults* results, uint64_t seed) {
    update_by<ADAMW>(params, master, m, v, grads, mine, k, ranges, results, seed);
}
template <Optimizer optimizer, class floatX, class State, class floatG>
__global__ void optimizer_kernel(floatX* params, float* master, State* m, State* v, const floatG* grads, SliceMap mine,
                                 UpdateConstants k, DecayRanges ranges, const DeviceResults* results, uint64_t seed) {
    update_by<optimizer>(params, master, m, v, grads, mine, k, ranges, results, seed);
}

// Updates the elements `mine` of params; arguments: update_by(). m and v are in the optimizer's
// format.
template <class floatX, class floatG>
void optimizer_update(Optimizer optimizer, floatX* params, float* master, void* m, void* v, const floatG* grads,
                      const SliceMap& mine, const UpdateConstants& k, const DecayRanges& ranges,
                      const DeviceResults* results, uint64_t seed, cudaStream_t stream) {
    const OptimizerInfo& info = OPTIMIZERS[optimizer];
    const StreamRange in_stream(work::update(info, mine.elems(), master, sizeof(floatX), sizeof(floatG)), stream);
    const dim3 blocks((unsigned)ceil_div(mine.elems(), UPDATE_ELEMS * 256));
    with_optimizer(optimizer, [&](auto constant) {
        constexpr OptimizerInfo chosen = OPTIMIZERS[constant.value];
        typedef StateType<constant.value> State;
        const auto start = [&](auto* kernel) {
            launch(info.name, kernel, blocks, 256, 0, stream, params, master, (State*)m, (State*)v, grads, mine, k,
                   ranges, results, seed);
        };
        if constexpr (constant.value == ADAMW) start(adamw_kernel<floatX, floatG>);
        else if constexpr (!chosen.whole_tensors && chosen.keeps.m != KEEP_8BIT)  // whole_tensors.cuh, small_state.cuh
            start(optimizer_kernel<constant.value, floatX, State, floatG>);
    });
}
template <class floatX, class floatG>
void adamw_update(floatX* params, float* master, float* m, float* v, const floatG* grads, const SliceMap& mine,
                  const UpdateConstants& k, const DecayRanges& ranges, const DeviceResults* results, uint64_t seed,
                  cudaStream_t stream) {
    optimizer_update(ADAMW, params, master, m, v, grads, mine, k, ranges, results, seed, stream);
}

// sums (n_elems, fp32) = grads (n_elems), or += if add: adds the gradients of one micro-step to
// those of the step. n_elems is a multiple of Pack<floatX>::size. One thread per Pack of grads.
template <class floatX>
__global__ void add_gradients_kernel(float* sums, const floatX* grads, size_t n_elems, bool add) {
    constexpr int N = Pack<floatX>::size;
    for_each_pack<floatX>(n_elems, [&](size_t i, int) {
        float g[N], sum[N] = {};
        load_packs(g, grads + i);
        if (add) load_packs(sum, sums + i);
        for (int k = 0; k < N; k++) sum[k] += g[k];
        store_packs(sums + i, sum);
    });
}
template <class floatX>
void add_gradients(float* sums, const floatX* grads, size_t n_elems, bool add, cudaStream_t stream) {
    launch("add_gradients", add_gradients_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream, sums,
           grads, n_elems, add);
}
// out (n_elems) = inp (n_elems, fp32), rounded to nearest. n_elems is a multiple of
// Pack<floatX>::size. One thread per Pack of out.
template <class floatX>
__global__ void round_gradients_kernel(floatX* out, const float* inp, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int) {
        float x[Pack<floatX>::size];
        load_packs(x, inp + i);
        store_packs(out + i, x);
    });
}
template <class floatX>
void round_gradients(floatX* out, const float* inp, size_t n_elems, cudaStream_t stream) {
    launch("round_gradients", round_gradients_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream,
           out, inp, n_elems);
}
