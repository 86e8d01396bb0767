// AdamW: Adam (Kingma & Ba 2015, arXiv:1412.6980) with decoupled weight decay (Loshchilov & Hutter
// 2019, arXiv:1711.05101, algorithm 2). With g the gradient times grad_scale (clipping sets it),
// and t = 1, 2, ... the number of the update:
//
//     m = beta1 m + (1 - beta1) g            mhat = m / (1 - beta1^t)
//     v = beta2 v + (1 - beta2) g^2          vhat = v / (1 - beta2^t)
//     p = p - lr (mhat / (sqrt(vhat) + eps) + weight_decay p)
//
// Where weights are bf16, most updates are smaller than half the spacing between bf16 numbers, and
// rounding to nearest would lose them. So either an fp32 master copy is updated, and the weight is
// its rounding; or there is no master, and the weight is rounded stochastically (bf16.h), or
// with --rounding nearest to nearest.
//
// This is the default optimizer; the others (optimizers.h) differ from it in the rule alone.
//
// One pass over all arrays. Memory-bound: 28 bytes per parameter in fp32 (4 values read, 3
// written). With bf16 weights and gradients, 28 bytes with a master copy and 22 without.
#pragma once
#include <cmath>
#include "llmc/update_rule.h"
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

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

// Stores the first `count` lanes of v as bf16, stochastically rounded. index: of the first one
// among all parameters.
VEC_INLINE void store_stochastically(uint16_t* p, vfloat v, size_t count, uint64_t seed, int64_t index) {
    uint32_t bits[VEC_FLOATS];
    memcpy(bits, &v, sizeof(v));
    for (size_t j = 0; j < count; j++) p[j] = stochastic_bits(bits[j], hash_bits(seed, index + j));
}

// Updates params, m and v (n_elems each) by a rule of optimizers.h, with grads (n_elems); also
// master, if it is not null. m and v are null if the optimizer does not keep them. bf16 params
// without a master are rounded to nearest or stochastically, with random bits that follow from seed
// and from index, that of the first element among all parameters.
template <class Rule, class floatX, class floatG>
void update_by(floatX* params, float* master, float* m, float* v, const floatG* grads, size_t n_elems,
               const UpdateConstants& constants, uint64_t seed, int64_t index) {
    const RuleConstants k = rule_constants(constants, true);
    parallel_ranges(n_elems, 1 << 15, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            i += begin;
            const vfloat g = load_some(grads + i, count) * constants.grad_scale;
            vfloat mi = m ? load_some(m + i, count) : vfloat{}, vi = v ? load_some(v + i, count) : vfloat{};
            vfloat p = master ? load_some(master + i, count) : load_some(params + i, count);
            Rule::update(p, mi, vi, g, k);
            if (m) store_some(m + i, mi, count);
            if (v) store_some(v + i, vi, count);
            if (master) store_some(master + i, p, count);
            if (sizeof(floatX) == 2 && !master && !constants.round_to_nearest)
                store_stochastically((uint16_t*)(params + i), p, count, seed, index + i);
            else store_some(params + i, p, count);
        });
    });
}

template <class floatX, class floatG>
void optimizer_update(Optimizer optimizer, floatX* params, float* master, float* m, float* v, const floatG* grads,
                      size_t n_elems, const UpdateConstants& k, uint64_t seed = 0, int64_t index = 0) {
    const Range range(work::update(OPTIMIZERS[optimizer], n_elems, master, sizeof(floatX), sizeof(floatG)));
    with_optimizer(optimizer, [&](auto constant) {
        update_by<RuleOf<constant.value>>(params, master, m, v, grads, n_elems, k, seed, index);
    });
}
template <class floatX, class floatG>
void adamw_update(floatX* params, float* master, float* m, float* v, const floatG* grads, size_t n_elems,
                  const UpdateConstants& k, uint64_t seed = 0, int64_t index = 0) {
    optimizer_update(ADAMW, params, master, m, v, grads, n_elems, k, seed, index);
}
