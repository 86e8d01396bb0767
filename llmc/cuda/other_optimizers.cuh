// --optimizer, where it is not adamw, on a GPU: the trainer's update_from() calls update_by_other()
// instead of adamw_update().
#pragma once
#include "llmc/cuda/shard.cuh"
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
            return whole_tensors_update(model.optimizer, model.gpu->whole_tensors, params, model.master,
                                        (float*)model.m, (float*)model.v, model.factors, grads, model.slice, k, results,
                                        settings.rounding_seed, stream, [&] {
                                            if (model.sizes.orthogonalizes)
                                                orthogonalize_directions<floatX>(model, grads, stream);
                                        });
    const SliceMap mine = slice_map(model, model.slice);
    if (OPTIMIZERS[model.optimizer].keeps.m == KEEP_8BIT)
        return blocks_update(model.optimizer, params, model.master, (StateBlock*)model.m, (StateBlock*)model.v, grads,
                             mine, block_map(model.layout, model.slice), k, model.gpu->decayed, results,
                             settings.rounding_seed, stream);
    optimizer_update(model.optimizer, params, model.master, model.m, model.v, grads, mine, k, model.gpu->decayed,
                     results, settings.rounding_seed, stream);
}
