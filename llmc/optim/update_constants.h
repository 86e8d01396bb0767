// The constants of an optimizer's update, as the trainers set them and as the rules (optimizers.h)
// use them.
#pragma once
#include <cmath>
#include <cstdint>
#include "llmc/base/host_device.h"

// The constants of one update, named as AdamW's; a rule takes those that its formula has.
struct UpdateConstants {
    float learning_rate, beta1, beta2, eps, weight_decay;
    float grad_scale;                // the gradient is multiplied by this
    float correction1, correction2;  // 1 - beta1^t, 1 - beta2^t
    int64_t t;                       // the number of the update
    bool nesterov = false;           // of momentum
    bool round_to_nearest = false;   // bf16 weights without a master copy; else stochastically
    bool matrix = false;             // the tensor is a matrix of a layer
    float scale = 1;                 // of the step along a direction (whole_tensors.h), of this tensor
};

// The constants of update t = 1, 2, ...
inline UpdateConstants update_constants(float learning_rate, float beta1, float beta2, float eps, float weight_decay,
                                        float grad_scale, int64_t t) {
    const auto correction = [t](float beta) { return (float)(1.0 - std::pow((double)beta, (double)t)); };
    return {learning_rate, beta1, beta2, eps, weight_decay, grad_scale, correction(beta1), correction(beta2), t};
}

// Makes the update one that leaves v as it was after update number t.
inline void keep_v(UpdateConstants& k, float beta2, int64_t t) {
    k.beta2 = 1, k.correction2 = (float)(1.0 - std::pow((double)beta2, (double)t));
}

// The constants of one update as the rules use them, for elements that are decayed, or for others.
struct RuleConstants {
    float rate, beta1, beta2, eps;
    float decay, keep;  // weight decay as part of the gradient; decoupled, as a factor of the weight
    float step, root;   // rate / (1 - beta1^t) and 1 / sqrt(1 - beta2^t)
    bool nesterov;
    float along;  // rate times the scale of a direction
    float mean;   // 1 / (1 - beta1^t)
    bool matrix;
};
HOST_DEVICE inline RuleConstants rule_constants(const UpdateConstants& k, bool decayed) {
    const float decay = decayed ? k.weight_decay : 0.0f, keep = decayed ? 1.0f - k.learning_rate * decay : 1.0f;
    const float step = k.learning_rate / k.correction1, root = 1.0f / sqrtf(k.correction2);
    const float along = k.learning_rate * k.scale, mean = 1.0f / k.correction1;
    return {k.learning_rate, k.beta1, k.beta2, k.eps, decay, keep, step, root, k.nesterov, along, mean, k.matrix};
}
