// Optimizers that look at whole tensors: LARS and LAMB (You et al. 2020, arXiv:1904.00962), Muon
// (muon.h), Adafactor and SM3 (factors.h). The others move every element by what is known of it
// alone. These find a direction d, with a value for every element, and move a tensor along it as
// far as one number says that depends on the whole tensor. An update has three steps:
//
//     direction   d = direction(g), element by element; m and v are updated. d replaces g in memory,
//                 in fp32 (Sizes::sums_gradients()), and the squares of p and d are summed by tensor
//     scale       one number for each tensor of each layer, from these sums
//     update      p = p - rate scale d, in the pass over all parameters that every optimizer has
//
// Muon orthogonalises d before the update, and Adafactor and SM3 renew factors before or after d is
// found. cpu/whole_tensors.h and cuda/whole_tensors.cuh carry the steps out.
//
// A tensor is summed in the parts that the slices of the processes have of it (tensor_parts.h), and
// the sums of the parts are added in the order of ranks: in ZeRO stage 1 by the processes together,
// in stage 0 by each of them alone. So both stages have the same bits.
#pragma once
#include "llmc/optim/optimizer_state.h"
#include "llmc/gpt2/tensor_parts.h"

// The constants as they are for one tensor.
inline UpdateConstants constants_for(int tensor, UpdateConstants k) {
    if (!TENSORS[tensor].decayed) k.weight_decay = 0;
    k.matrix = is_layer_matrix(tensor);
    return k;
}

// Where the factors of an optimizer lie; it may have none.
inline StateLayout factor_layout(Optimizer optimizer, const ParameterLayout& layout) {
    return state_layout(layout, OPTIMIZERS[optimizer], STATE_FACTORS);
}

// Where v of a part of a tensor begins: in which of the states that this process keeps, and at
// which element. NUM_STATES if there is none.
struct PlaceOfV {
    OptimizerState state;
    int64_t at;
};
inline PlaceOfV place_of_v(Optimizer optimizer, const ParameterLayout& layout, const BucketSlice& kept,
                           const TensorPart& part) {
    const StateLayout factors = factor_layout(optimizer, layout);
    const Kept v = OPTIMIZERS[optimizer].keeps.v;
    if (v == KEEP_ALL) return {STATE_V, part.state};
    if (v == KEEP_OUTSIDE && !TENSORS[part.tensor].per_layer)
        return {STATE_V, part.state - kept.state_begin(layout, layout.config.L)};
    if (factors.kept == KEEP_VECTORS && factor_elems(KEEP_VECTORS, part.tensor, layout.config) > 0)
        return {STATE_FACTORS, factors.factors_at(part.tensor, part.layer) + part.first};
    return {NUM_STATES, 0};
}

// The ranks whose slices this process updates: in ZeRO stage 1 its own alone, in stage 0 all.
struct RankRange {
    int64_t begin, end;
};
inline RankRange updated_ranks(const BucketSlice& kept, int64_t processes) {
    return kept.parts > 1 ? RankRange{kept.part, kept.part + 1} : RankRange{0, processes};
}

// Calls f with the optimizer as a std::integral_constant, if its rule finds directions.
template <class F>
void with_direction(Optimizer optimizer, F f) {
    with_optimizer(optimizer, [&](auto constant) {
        if constexpr (OPTIMIZERS[constant.value].whole_tensors) f(constant);
    });
}

// The constants of the update along a direction, which takes the gradient's place: grad_scale is in
// it already.
HOST_DEVICE inline UpdateConstants along_directions(UpdateConstants k, float scale) {
    k.grad_scale = 1, k.scale = scale;
    return k;
}

// The scale of a tensor with so many rows and columns.
inline float direction_scale(Optimizer optimizer, const SquareSums& sums, int64_t rows, int64_t cols,
                             const UpdateConstants& k) {
    float scale = 1;
    with_direction(optimizer, [&](auto constant) {
        scale = (float)RuleOf<constant.value>::scale(sums, (double)rows, (double)cols, k);
    });
    return scale;
}
