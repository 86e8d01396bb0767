// What optimizers share that look at whole tensors: LARS and LAMB (You et al. 2020,
// arXiv:1904.00962). An update has three steps:
//
//     direction   d = direction(g), element by element; m and v are updated. d replaces g in memory,
//                 in fp32 (Sizes::sums_gradients()), and the squares of p and d are summed by tensor
//     scale       one number for each tensor of each layer, from these sums
//     update      p = p - rate scale d, the one pass over all parameters that every optimizer has
//
// A tensor is summed in the parts that the slices of the processes have of it (tensors.h), and the
// sums of the parts are added in the order of ranks: in ZeRO stage 1 by the processes together, in
// stage 0 by each of them alone. So both stages have the same bits.
#pragma once
#include "llmc/optimizers.h"
#include "llmc/tensor_parts.h"

// Calls f with the optimizer as a std::integral_constant, if it has directions.
template <class F>
void with_direction(Optimizer optimizer, F f) {
    with_optimizer(optimizer, [&](auto constant) {
        if constexpr (OPTIMIZERS[constant.value].direction) f(constant);
    });
}

// What step 3 is given beside the directions: they are the gradient, unscaled.
HOST_DEVICE inline UpdateConstants along_directions(UpdateConstants k, float scale) {
    k.grad_scale = 1, k.scale = scale;
    return k;
}

// The scale of a tensor with so many rows and columns.
inline float direction_scale(Optimizer optimizer, const DirectionSums& sums, int64_t rows, int64_t cols) {
    float scale = 1;
    with_direction(optimizer, [&](auto constant) {
        scale = (float)RuleOf<constant.value>::scale(sums, (double)rows, (double)cols);
    });
    return scale;
}
