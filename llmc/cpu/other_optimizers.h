// --optimizer, where it is not adamw, on the CPU: the trainer's update() calls
// prepare_other_optimizer() instead of updating the weights itself. Optimizers with directions
// (optim/whole_tensors.h) first turn the gradients of all buckets into directions.
#pragma once
#include "llmc/cpu/kernels.h"
#include "llmc/cpu/whole_tensors.h"
#include "llmc/optim/update_settings.h"

// The update of a bucket where m and v are in blocks, which do not end where tensors do.
template <class floatG, class floatX>
void update_blocks(GPT2& model, int64_t bucket, const UpdateConstants& constants, const UpdateSettings& settings) {
    const ParameterLayout& layout = model.layout;
    const BlockMap map = block_map(layout, model.slice);
    const int64_t first = model.slice.begin(layout, bucket), elems = layout.slice_elems(bucket);
    for (int64_t slice = 0; slice < map.slices; slice++) {
        const int64_t begin = first + slice * elems, index = layout.bucket_begin[bucket] + begin;
        const int64_t block = map.first_block(bucket) + slice * map.slice_blocks(bucket);
        float* master = model.master ? model.master + model.slice.state_begin(layout, bucket) + slice * elems : nullptr;
        kernels::blocks_update(model.optimizer, (floatX*)model.params + model.weight_places.at(layout, bucket, index),
                               master, (StateBlock*)model.m + block, (StateBlock*)model.v + block,
                               (floatG*)model.grads + model.gradient_places.at(layout, bucket, index), elems,
                               tensor_ranges(layout, bucket, begin, begin + elems), constants, settings.rounding_seed,
                               index);
    }
}

// Prepares an update by the model's optimizer: with directions, the gradients of all tensors become
// directions, which updates m and v. Returns the function that then updates what this process has
// of a bucket.
template <class floatG, class floatX>
std::function<void(int64_t bucket)> prepare_update(GPT2& model, const UpdateConstants& constants,
                                                   const UpdateSettings& settings) {
    const OptimizerInfo& optimizer = OPTIMIZERS[model.optimizer];
    if (optimizer.keeps.m == KEEP_8BIT)
        return [&model, constants, &settings](int64_t bucket) {
            update_blocks<floatG, floatX>(model, bucket, constants, settings);
        };
    std::vector<float> scales;  // of the directions of every tensor; empty if there are none
    if (model.sizes.whole_tensors) {
        const WholeTensorKernels<floatX> whole_tensor_kernels{
            kernels::directions_from_state<floatX>, kernels::collect_factors, kernels::directions_from_factors<floatX>};
        scales = find_directions<floatX>(model, constants, whole_tensor_kernels);
    }
    if (model.sizes.orthogonalizes)
        orthogonalize_directions(model, {[scratch = orthogonal_scratch<floatX>(model)](auto... matrix) {
                                     kernels::orthogonalize(matrix..., scratch);
                                 }});
    const int64_t bytes = optimizer.keeps.m == KEEP_BF16 ? 2 : 4;  // of an element of m or v
    return [=, &model, &settings](int64_t bucket) {
        for_each_part_of(bucket, model.layout, model.slice, [&](const TensorPart& part) {
            UpdateConstants k = constants;
            if (!TENSORS[part.tensor].decayed) k.weight_decay = 0;
            if (!scales.empty()) k = along_directions(k, scales[part.number]);
            const auto state = [&](void* all) {
                return all && scales.empty() ? (char*)all + part.state * bytes : nullptr;
            };
            float* const master = model.master ? model.master + part.state : nullptr;
            floatX* const params = (floatX*)model.params + model.weight_places.at(model.layout, part);
            const floatG* const grads = (floatG*)model.grads + model.gradient_places.at(model.layout, part);
            kernels::optimizer_update(model.optimizer, params, master, state(model.m), state(model.v), grads,
                                      part.elems(), k, settings.rounding_seed, part.index);
        });
    };
}
template <class floatX>
std::function<void(int64_t bucket)> prepare_other_optimizer(GPT2& model, const UpdateConstants& constants,
                                                            const UpdateSettings& settings) {
    return model.sizes.sums_gradients() ? prepare_update<float, floatX>(model, constants, settings)
                                        : prepare_update<floatX, floatX>(model, constants, settings);
}
