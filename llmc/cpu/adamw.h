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
// its rounding; or there is no master, and the weight is rounded stochastically (bf16.h).
//
// One pass over all arrays. Memory-bound: 28 bytes per parameter in fp32 (4 values read, 3
// written). With bf16 weights and gradients, 28 bytes with a master copy and 22 without.
#pragma once
#include <cmath>
#include "llmc/update_rule.h"
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

// Stores the first `count` lanes of v as bf16, stochastically rounded. index: of the first one
// among all parameters.
VEC_INLINE void store_stochastically(uint16_t* p, vfloat v, size_t count, uint64_t seed, int64_t index) {
    uint32_t bits[VEC_FLOATS];
    memcpy(bits, &v, sizeof(v));
    for (size_t j = 0; j < count; j++) p[j] = stochastic_bits(bits[j], hash_bits(seed, index + j));
}

// Updates params, m, v (n_elems each) and, if it is not null, master with grads (n_elems). bf16
// params without a master are rounded stochastically, with random bits that follow from seed and
// from index, that of the first element among all parameters.
template <class floatX, class floatG>
void adamw_update(floatX* params, float* master, float* m, float* v, const floatG* grads, size_t n_elems,
                  const AdamW& k, uint64_t seed = 0, int64_t index = 0) {
    const Range range(work::adamw(n_elems, master, sizeof(floatX), sizeof(floatG)));
    const float step = k.learning_rate / k.correction1, root = 1.0f / std::sqrt(k.correction2),
                keep = 1.0f - k.learning_rate * k.weight_decay;
    parallel_ranges(n_elems, 1 << 15, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            i += begin;
            const vfloat g = load_some(grads + i, count) * k.grad_scale;
            const vfloat mi = load_some(m + i, count) * k.beta1 + g * (1.0f - k.beta1);
            const vfloat vi = load_some(v + i, count) * k.beta2 + g * g * (1.0f - k.beta2);
            store_some(m + i, mi, count), store_some(v + i, vi, count);
            const vfloat old = master ? load_some(master + i, count) : load_some(params + i, count);
            const vfloat updated = old * keep - mi / (sqrt(vi) * root + k.eps) * step;
            if (master) store_some(master + i, updated, count);
            if (sizeof(floatX) == 2 && !master)
                store_stochastically((uint16_t*)(params + i), updated, count, seed, index + i);
            else store_some(params + i, updated, count);
        });
    });
}
