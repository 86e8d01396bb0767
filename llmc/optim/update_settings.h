// What the update of one step needs beside the gradients, and how it decides between updating,
// clipping and skipping. Host and GPU run the same code; a GPU decides on the device, so that the
// host need not wait for the norm. The formulas of the optimizers are in optimizers.h.
//
// A skipped update changes neither weights nor the optimizer's state. Its step counts as one of the
// run and of the learning rate, but not in t, the number of the update, with which optimizers
// correct means that began at 0 (update_constants.h): for them it never was, as in PyTorch, where a
// loop that skips does not call optimizer.step().
#pragma once
#include <cmath>
#include <cstdint>
#include "llmc/optim/update_constants.h"

struct UpdateSettings {
    // The optimizer's constants. weight_decay is for the tensors that tensors.h marks; the update
    // sets grad_scale.
    UpdateConstants constants;
    double tokens;          // of the step that count; its loss is the mean over them
    double grad_clip = 0;   // the largest norm of the gradient; 0: no limit
    double models = 1;      // that processes train apart (compress/sync.h); squares of gradients are summed over them
    double loss_scale = 1;  // the gradients are this many times as large as those of the loss (loss_scale.h)
    double loss_limit = INFINITY, norm_limit = INFINITY;  // above either the update is skipped
    uint64_t rounding_seed = 0;                           // of stochastic rounding (base/bf16.h)
};

struct StepResult {
    double loss, norm;  // mean loss before the update, norm of the gradient before clipping
    bool wanted;        // whether the weights are to be updated
    // Squared norm of the gradient of this process's first micro-step, as it is summed; if it was
    // asked for (noise_scale.h).
    double small_squares = 0;
};

// The loss of a step from the sum over its tokens; 0 if none of them counts.
HOST_DEVICE inline double mean_loss(double sum, const UpdateSettings& settings) {
    return settings.tokens > 0 ? sum / settings.tokens : 0;
}

// Whether this step updates the weights: not if none of its tokens counts, and not if loss or norm
// is not finite, or is an outlier.
HOST_DEVICE inline bool update_wanted(double loss, double norm, const UpdateSettings& settings) {
    const double largest = 1.7976931348623157e308;
    return settings.tokens > 0 && fabs(loss) <= largest && fabs(norm) <= largest && !(loss > settings.loss_limit) &&
           !(norm > settings.norm_limit);
}

// The norm of the gradient from the sum of the squares of what the backward pass has left; of
// several models, the root of the mean of their squares.
HOST_DEVICE inline double gradient_norm(double squares, const UpdateSettings& settings) {
    return sqrt(squares / settings.models) / settings.loss_scale;
}

// The factor that brings the norm of the gradient down to the limit (Pascanu et al. 2013,
// arXiv:1211.5063), 1 if it is within.
HOST_DEVICE inline float clipping_scale(double norm, const UpdateSettings& settings) {
    return settings.grad_clip > 0 && norm > settings.grad_clip ? (float)(settings.grad_clip / norm) : 1.0f;
}

// What the gradients are multiplied by, which clips them and takes back the loss scale.
HOST_DEVICE inline float gradient_factor(double norm, const UpdateSettings& settings) {
    return clipping_scale(norm, settings) / (float)settings.loss_scale;
}
