// AdamW: Adam (Kingma & Ba 2015, arXiv:1412.6980) with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2).
// With g the gradient (times grad_scale, which is how clipping gets in), t = 1, 2, ... the number of this update:
//
//     m = beta1 m + (1 - beta1) g            mhat = m / (1 - beta1^t)
//     v = beta2 v + (1 - beta2) g^2          vhat = v / (1 - beta2^t)
//     p = p - lr (mhat / (sqrt(vhat) + eps) + weight_decay p)
//
// One pass over everything. Memory-bound: reads 4 values and writes 3 for a parameter, 28 bytes in fp32.
#pragma once
#include <cmath>
#include "llmc/update_rule.h"
#include "llmc/cpu/device.h"

// params, m, v (n_elems each) are updated with grads (n_elems).
template <class floatX>
void adamw_update(floatX* params, float* m, float* v, const floatX* grads, size_t n_elems, const AdamW& k) {
    const float step = k.learning_rate / k.correction1, root = 1.0f / std::sqrt(k.correction2), keep = 1.0f - k.learning_rate * k.weight_decay;
    parallel_ranges(n_elems, 1 << 15, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const float g = (float)grads[i] * k.grad_scale;
            const float mi = k.beta1 * m[i] + (1.0f - k.beta1) * g;
            const float vi = k.beta2 * v[i] + (1.0f - k.beta2) * (g * g);
            m[i] = mi, v[i] = vi;
            params[i] = keep * (float)params[i] - step * (mi / (std::sqrt(vi) * root + k.eps));
        }
    });
}
