// --ema on the CPU: the average of the weights (llmc/optim/average.h), in this rank's slices.
#pragma once
#include "llmc/comm/comm.h"
#include "llmc/cpu/device.h"
#include "llmc/model/weight_average.h"
#include "llmc/optim/average.h"

template <class floatX>
void average_on_cpu(GPT2& model, Averaging what, float share) {
    const Range range("average");
    for (int64_t b = 0; b < model.layout.buckets(); b++) {
        const AveragedSlice<floatX> slice = averaged_slice<floatX>(model, b);
        parallel_ranges(slice.elems, 1 << 15, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) {
                float& average = slice.average[i];
                const float weight = slice.master ? slice.master[i] : (float)slice.weights[i];
                if (what == BEGIN_AVERAGE) average = weight;
                else if (what == ADD_TO_AVERAGE) average = average_of(average, weight, share);
                else if (slice.master) slice.weights[i] = (floatX)(what == USE_AVERAGE ? average : weight);
                else slice.weights[i] = (floatX)average, average = weight;
            }
        });
        if (moves_weights(what) && !model.weight_places.sharded)
            comm_all_gather_start((floatX*)model.params + model.layout.bucket_begin[b], slice.elems, b);
    }
    comm_wait("the collection of the weights");
    if (moves_weights(what)) model.weights_there = {};
}
