// AdamW: Adam (Kingma & Ba 2015, arXiv:1412.6980) with decoupled weight decay (Loshchilov & Hutter
// 2019, arXiv:1711.05101, algorithm 2). With g the gradient times grad_scale (clipping sets it),
// and t = 1, 2, ... the number of the update:
//
//     m = beta1 m + (1 - beta1) g            mhat = m / (1 - beta1^t)
//     v = beta2 v + (1 - beta2) g^2          vhat = v / (1 - beta2^t)
//     p = p - lr (mhat / (sqrt(vhat) + eps) + weight_decay p)
//
// In the code (AdamWRule in optim/optimizers.h, which GPUs run as well) what is the same for all
// elements is computed once, in rule_constants():
//
//     keep = 1 - lr weight_decay      step = lr / (1 - beta1^t)      root = 1 / sqrt(1 - beta2^t)
//     p = keep p - step m / (root sqrt(v) + eps)
//
// Where weights are bf16, most updates are smaller than half the spacing between bf16 numbers, and
// rounding to nearest would lose them. So either an fp32 master copy is updated, and the weight is
// its rounding; or there is no master, and the weight is rounded stochastically (bf16.h), or
// with --rounding nearest to nearest.
//
// One pass over all arrays. Memory-bound: 28 bytes per parameter in fp32 (4 values read, 3
// written). With bf16 weights and gradients, 28 bytes with a master copy and 22 without.
#pragma once
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"
#include "llmc/optim/update_work.h"

template <>
struct Lanes<vfloat> {
    VEC_INLINE static vfloat root(vfloat x) { return sqrt(x); }
    VEC_INLINE static vfloat sign(vfloat x) {
        const vfloat zero{}, one = broadcast(1.0f);
        return x > zero ? one : x < zero ? -one : zero;
    }
    VEC_INLINE static vfloat larger(vfloat a, vfloat b) { return a > b ? a : b; }
    VEC_INLINE static vfloat smaller(vfloat a, vfloat b) { return a < b ? a : b; }
    VEC_INLINE static vfloat quotient(vfloat a, vfloat b) { return b > vfloat{} ? a / b : vfloat{}; }
};

// Stores the first `count` lanes of v as bf16, stochastically rounded. index: that of the first
// lane among all parameters.
VEC_INLINE void store_stochastically(uint16_t* p, vfloat v, size_t count, uint64_t seed, int64_t index) {
    uint32_t bits[VEC_FLOATS];
    memcpy(bits, &v, sizeof(v));
    for (size_t j = 0; j < count; j++) p[j] = stochastic_bits(bits[j], hash_bits(seed, index + j));
}

// Stores updated weights p, the first `count` lanes, in params: bf16 rounded to nearest if there is
// a master copy or if to_nearest, else stochastically.
template <class floatX>
VEC_INLINE void store_weights(floatX* params, bool master, vfloat p, size_t count, bool to_nearest, uint64_t seed,
                              int64_t index) {
    if (sizeof(floatX) == 2 && !master && !to_nearest) store_stochastically((uint16_t*)params, p, count, seed, index);
    else store_some(params, p, count);
}

// How far ahead of the update its state is prefetched: 2 KiB of each.
constexpr size_t ADAMW_ELEMS_AHEAD = 512;

// Updates params (n_elems), elements of one tensor, with grads; also master, if it is not null.
// constants.weight_decay is that of the tensor. What is rounded stochastically gets random bits
// that follow from seed and from index, that of the first element among all parameters.
template <class floatX, class floatG>
void adamw_update(floatX* params, float* master, float* m, float* v, const floatG* grads, size_t n_elems,
                  const UpdateConstants& constants, uint64_t seed = 0, int64_t index = 0) {
    const Range range(work::update(OPTIMIZERS[ADAMW], n_elems, master, sizeof(floatX), sizeof(floatG)));
    const RuleConstants k = rule_constants(constants, true);
    // m, v and master of `count` elements, the first of them i; returns the weights.
    const auto updated = [=](size_t i, size_t count) {
        const size_t ahead = i + ADAMW_ELEMS_AHEAD;
        __builtin_prefetch(m + ahead, 1), __builtin_prefetch(v + ahead, 1), __builtin_prefetch(grads + ahead);
        if (master) __builtin_prefetch(master + ahead, 1);
        const vfloat g = load_some(grads + i, count) * constants.grad_scale;
        vfloat mi = load_some(m + i, count), vi = load_some(v + i, count);
        vfloat p = master ? load_some(master + i, count) : load_some(params + i, count);
        AdamWRule::update(p, mi, vi, g, k);
        store_some(m + i, mi, count);
        store_some(v + i, vi, count);
        if (master) store_some(master + i, p, count);
        return p;
    };
    parallel_ranges(n_elems, 1 << 15, [&](int64_t begin, int64_t end) {
        const auto f = updated;  // a copy, which stays in registers
        size_t i = begin;
        // With a master copy the weights are written and not read.
        for (; master && (uintptr_t)(params + i) % 64 == 0 && i + 2 * VEC_FLOATS <= (size_t)end; i += 2 * VEC_FLOATS) {
            const vfloat first = f(i, VEC_FLOATS);
            stream(params + i, first, f(i + VEC_FLOATS, VEC_FLOATS));
        }
        for_each_vector(end - i, [&](size_t j, size_t count) {
            const vfloat p = f(i + j, count);
            store_weights(params + i + j, master != nullptr, p, count, constants.round_to_nearest, seed,
                          index + (int64_t)(i + j));
        });
        streams_done();
    });
}
