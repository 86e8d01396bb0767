// --sync-every on the CPU: the mean of what processes have that train apart (compress/sync.h).
#pragma once
#include "llmc/comm/comm.h"
#include "llmc/cpu/device.h"
#include "llmc/model/model.h"

// values, of all buckets = their mean over all ranks; step(value, its number among those of this
// rank's slices) has the last word.
template <class Step>
void average(const ParameterLayout& layout, float* values, Step step) {
    const int64_t P = comm.processes;
    for (int64_t b = 0; b < layout.buckets(); b++)
        comm_reduce_scatter_start(values + layout.bucket_begin[b], layout.slice_elems(b), b);
    comm_wait("the mean of the weights");
    for (int64_t b = 0; b < layout.buckets(); b++) {
        const int64_t elems = layout.slice_elems(b), at = layout.bucket_begin[b];
        float* const slice = values + at + comm.rank * elems;
        parallel_ranges(elems, 1 << 15, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) slice[i] = step(slice[i] / (float)P, at / P + i);
        });
        comm_all_gather_start(values + at, elems, b);
    }
    comm_wait("the collection of the weights");
}

template <class floatX>
void meet_on_cpu(GPT2& model, Meeting meeting) {
    const Range range("meet");
    const ParameterLayout& layout = model.layout;
    const int64_t P = comm.processes;
    float* const weights = model.master ? model.master : (float*)model.params;
    const auto mean = [](float value, int64_t) { return value; };
    if (meeting == MEET_STATES) {
        for (void* state : {model.m, model.v})
            if (state) average(layout, (float*)state, mean);
        return;
    }
    if (meeting == FIRST_MEETING) {
        for (int64_t b = 0; b < layout.buckets() && model.outer_weights; b++)
            memcpy(model.outer_weights + layout.bucket_begin[b] / P,
                   weights + layout.bucket_begin[b] + comm.rank * layout.slice_elems(b), layout.slice_elems(b) * 4);
        return;
    }
    if (!model.outer_weights) average(layout, weights, mean);
    else
        average(layout, weights, [&](float value, int64_t i) {
            return model.outer(value, model.outer_weights[i], model.outer_momentum[i]);
        });
    if (!model.master) return;
    parallel_ranges(layout.total_elems(), 1 << 15, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) ((floatX*)model.params)[i] = (floatX)weights[i];
    });
}
