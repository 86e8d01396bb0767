// What one update of AdamW is given beside the tensors; the formula is in cpu/adamw.h.
#pragma once
#include <cmath>
#include <cstdint>

struct AdamW {
    float learning_rate, beta1, beta2, eps, weight_decay;
    float grad_scale;                   // the gradient counts times this
    float correction1, correction2;     // 1 - beta1^t, 1 - beta2^t
};

// The constants of update t = 1, 2, ...
inline AdamW adamw_constants(float learning_rate, float beta1, float beta2, float eps, float weight_decay, float grad_scale, int64_t t) {
    return {learning_rate, beta1, beta2, eps, weight_decay, grad_scale, (float)(1.0 - std::pow((double)beta1, (double)t)), (float)(1.0 - std::pow((double)beta2, (double)t))};
}
