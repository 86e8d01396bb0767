// --optimizer, where it is not adamw, on a GPU: the trainer's update_from() calls update_by_other()
// instead of adamw_update().
#pragma once
#include "llmc/cuda/offload.cuh"
#include "llmc/cuda/small_state.cuh"
#include "llmc/cuda/whole_tensors.cuh"

// The update by the model's optimizer; grads are complete in the slices that this process updates.
template <class floatX, class floatG>
void update_by_other(GPT2& model, floatG* grads, const UpdateSettings& settings) {
    const UpdateConstants& k = settings.constants;
    const cudaStream_t stream = model.gpu->stream;
    const DeviceResults* results = results_of(model);
    floatX* params = (floatX*)model.params;
    if (model.sizes.whole_tensors && model.gradients_complete) model.gradients_complete();
    if constexpr (sizeof(floatG) == 4)
        if (model.sizes.whole_tensors)
            return whole_tensors_update(
                model.optimizer, model.gpu->whole_tensors, params, model.master, model.factors, grads, model.slice, k,
                results, settings.rounding_seed, stream,
                [&](auto find) { for_each_stretch(model, ALL_STATES, MOMENTS, find); },
                [&](auto move) { for_each_stretch(model, MASTER, MASTER, move); },
                [&] {
                    if (model.sizes.orthogonalizes) orthogonalize_directions<floatX>(model, grads, stream);
                });
    for_each_stretch(model, [&](const StateStretch& s) {
        if (OPTIMIZERS[model.optimizer].keeps.m == KEEP_8BIT)
            return blocks_update(model.optimizer, params, s.master, (StateBlock*)s.m, (StateBlock*)s.v, grads, s.mine,
                                 s.blocks, k, model.gpu->decayed, results, settings.rounding_seed, stream);
        optimizer_update(model.optimizer, params, s.master, s.m, s.v, grads, s.mine, k, model.gpu->decayed, results,
                         settings.rounding_seed, stream);
    });
}

// The update where other tensors train in some layers than in others (--train): one launch for each
// part of a tensor.
template <class floatX, class floatG>
void update_by_tensor(GPT2& model, floatG* grads, const UpdateSettings& settings) {
    const int64_t state_bytes = OPTIMIZERS[model.optimizer].keeps.m == KEEP_BF16 ? 2 : 4;
    for_each_part(model.layout, model.slice, model.slice, [&](const TensorPart& part) {
        if (part.elems() == 0) return;
        SliceMap mine{0, 0, 0, 1, 0};
        mine.first = part.index, mine.count = round_up(part.elems(), 16);  // padding has no gradient, and stays 0
        const auto state = [&](void* all) { return all ? (char*)all + part.state * state_bytes : nullptr; };
        optimizer_update(model.optimizer, (floatX*)model.params, model.master ? model.master + part.state : nullptr,
                         state(model.m), state(model.v), grads, mine, settings.constants,
                         same_decay(TENSORS[part.tensor].decayed), results_of(model), settings.rounding_seed,
                         model.gpu->stream);
    });
}
