// Where the average of the weights (llmc/optim/average.h) and what it is made of lie in the memory
// of a process.
#pragma once
#include "llmc/model/model_state.h"
#include "llmc/optim/average.h"

inline bool moves_weights(Averaging what) { return what == USE_AVERAGE || what == USE_WEIGHTS; }

// This rank's slice of a bucket. master: of 16-bit weights, else null.
template <class floatX>
struct AveragedSlice {
    float* average;
    floatX* weights;
    float* master;
    int64_t elems;
};
template <class floatX>
AveragedSlice<floatX> averaged_slice(const GPT2& model, int64_t bucket) {
    const ParameterLayout& layout = model.layout;
    const int64_t elems = layout.slice_elems(bucket), at = layout.bucket_begin[bucket], own = comm.shards.rank * elems;
    float* master = model.master ? model.master + model.slice.state_begin(layout, bucket) : nullptr;
    if (master && model.slice.parts == 1) master += own;
    return {model.average + at / layout.processes,
            (floatX*)model.params + model.weight_places.at(layout, bucket, at + own), master, elems};
}
