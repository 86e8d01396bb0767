// Where the matrices that --prune prunes (adapt/prune.h) and what belongs to them lie in the memory
// of a process.
#pragma once
#include "llmc/model/model_state.h"

// A part of a matrix. master, m and v: null where there are none. gradients: where those of pruned
// weights are to become 0, else null, and the state of pruned weights becomes 0.
template <class floatX, class floatG>
struct PrunedPart {
    const floatX* weights;
    float *master, *m, *v;
    floatG* gradients;
    int64_t elems;
};
// A weight in fp16 may be 0 where its master is not, and trains on unless it is pruned: then
// both are 0.
template <class floatX, class floatG>
HOST_DEVICE inline void keep_pruned(const PrunedPart<floatX, floatG>& part, int64_t i) {
    if (part.gradients) {
        if ((part.master ? part.master[i] : (float)part.weights[i]) == 0) part.gradients[i] = floatG(0.0f);
        return;
    }
    if ((float)part.weights[i] != 0) return;
    if (part.master) part.master[i] = 0;
    if (part.m) part.m[i] = 0;
    if (part.v) part.v[i] = 0;
}

// Calls each(part) for the matrices of the layers: with gradients, for those that this process has
// summed; without (null), for what it keeps state of.
template <class floatX, class floatG, class Each>
void for_each_pruned(GPT2& model, floatG* gradients, Each each) {
    const BucketSlice summed{comm.shards.processes, comm.shards.rank};
    const auto at = [](auto* memory, int64_t i) { return memory ? (float*)memory + i : nullptr; };
    for_each_part(model.layout, gradients ? summed : model.slice, model.slice, [&](const TensorPart& part) {
        if (!is_layer_matrix(part.tensor) || part.elems() <= 0) return;
        each(PrunedPart<floatX, floatG>{(const floatX*)model.params + model.weight_places.at(model.layout, part),
                                        at(model.master, part.state), at(model.m, part.state), at(model.v, part.state),
                                        gradients ? gradients + model.gradient_places.at(model.layout, part) : nullptr,
                                        part.elems()});
    });
}
