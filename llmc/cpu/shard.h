// Sharded weights and gradients on a CPU (gpt2/bucket_places.h): buckets are collected before they
// are computed with, and their gradients summed into slices as soon as they are complete.
//
//     ZeRO stage     kept of every bucket                           a step sends, in buckets of all P processes
//     0              weights, gradients, state                      gradients to be summed, their sums
//     1              weights, gradients, 1/P of the state           gradients, weights
//     2              weights, 1/P of gradients and state            gradients of every micro-step, weights
//     3              1/P of weights, gradients and state            these, and weights twice in every micro-step
//
// All stages have the same bits where a step is one micro-step. Of several, stages 0 and 1 sum
// first the micro-steps of each process, and then over the processes; a process that keeps no more
// than its slices cannot, for that takes all gradients until the end of the step. So stages 2 and 3
// sum over the processes in every micro-step, and differ from 0 and 1 by rounding.
//
// With --shard-within N the P processes are N neighbours that have a slice each, and so many
// replicas of these as there are such groups: hybrid sharding (Zhao et al. 2023, arXiv:2304.11277,
// section 3.2.2). Weights travel among neighbours, which one machine has; over the network goes
// only the slice of the sum, once a step.
#pragma once
#include "llmc/comm/add_in_order.h"
#include "llmc/comm/all_reduce.h"
#include "llmc/cpu/device.h"
#include "llmc/model/model.h"

// Starts the sum over the processes of gradients, n of each slice of a bucket from its element
// `first` on, which are in data (processes * n), in a place. Sharded, this process keeps its own of
// them in the end, or adds it to what it has if add.
inline void start_sum(GPT2& model, float* data, int64_t bucket, int64_t first, int64_t n, int64_t place, bool add) {
    const Collective sum = comm_reduce_scatter_start(data, n, bucket);
    if (!model.gradient_places.sharded || comm.processes == 1) return;
    float* const kept = (float*)model.grads + model.gradient_places.own(model.layout, bucket) + first;
    model.arriving.push_back({place, data + comm.shards.rank * n, kept, n, add, sum});
}
inline void start_sum(GPT2& model, int64_t bucket, bool add) {
    const BucketPlaces& places = model.gradient_places;
    float* const data = (float*)model.grads + places.whole(model.layout, bucket);
    start_sum(model, data, bucket, 0, model.layout.slice_elems(bucket), places.place_of(model.layout, bucket), add);
}
// Waits for the sums that were started, and keeps this process's slices of them: of those in one
// place, or (-1) of all.
inline void keep_slices(GPT2& model, int64_t place = -1) {
    const StepPhase phase = model.phases.phase;
    const auto keep = [&](const ArrivingSum& arriving) {
        if (place >= 0 && place != arriving.place) return false;
        model.phases.enter(PHASE_COMMUNICATION);
        comm_wait(arriving.collective, "the sum of the gradients");
        model.phases.enter(phase);
        parallel_ranges(arriving.elems, 1 << 14, [arriving](int64_t begin, int64_t end) {
            const auto [place, sum, kept, elems, add, collective] = arriving;
            if (add) add_two(kept + begin, kept + begin, sum + begin, end - begin);
            else memcpy(kept + begin, sum + begin, (end - begin) * sizeof(float));
        });
        return true;
    };
    auto& all = model.arriving;
    all.erase(std::remove_if(all.begin(), all.end(), keep), all.end());
}
// Starts collecting the weights of a bucket in its place.
template <class floatX>
Collective start_fetch(GPT2& model, int64_t bucket) {
    const ParameterLayout& layout = model.layout;
    const int64_t elems = layout.slice_elems(bucket);
    floatX* const whole = model.whole_weights<floatX>(bucket);
    if (whole == model.borrowed)
        for (int64_t place = 0; place < BucketPlaces::LAYERS; place++) keep_slices(model, place);
    memcpy((void*)(whole + comm.shards.rank * elems), (floatX*)model.params + model.weight_places.own(layout, bucket),
           elems * sizeof(floatX));
    return comm_all_gather_start(whole, elems, bucket);
}
// Returns once the weights of a bucket are there; those of `next` (-1: none) travel meanwhile,
// unless it takes their place. To be called by all processes in the same order. Does nothing where
// every process keeps all weights.
template <class floatX>
void fetch_weights(GPT2& model, int64_t bucket, int64_t next = -1) {
    if (!model.weight_places.sharded) return;
    const Together together;
    const StepPhase phase = model.phases.phase;
    const auto fetching = [&](int64_t b) -> Collective& {
        return model.fetching[model.weight_places.place_of(model.layout, b)];
    };
    const auto fetch = [&](int64_t b) {
        if (model.weights_there.take(model.weight_places, model.layout, b)) fetching(b) = start_fetch<floatX>(model, b);
    };
    model.phases.enter(PHASE_COMMUNICATION);
    fetch(bucket);
    if (next >= 0 && model.weight_places.hold_both(model.layout, bucket, next)) fetch(next);
    comm_wait(fetching(bucket), "the weights of a layer");
    model.phases.enter(phase);
}

// Waits until all gradients of the step are summed over all processes: those that have shards of
// the model (--shard-within), then their replicas.
inline void receive_sums(GPT2& model) {
    comm_wait("the sum of the gradients");
    keep_slices(model);
    const ParameterLayout& layout = model.layout;
    for (int64_t b = 0; b < layout.buckets() && comm.replicas.processes > 1; b++)
        comm_all_reduce((float*)model.grads + model.gradient_places.own(layout, b), layout.slice_elems(b), b,
                        comm.replicas, "the sum over replicas");
}
// To be called before a layer's gradients are written: their place must be free. What it had before
// the last layers may have been the embeddings', and padding is 0.
inline void free_place(GPT2& model, int64_t bucket) {
    const BucketPlaces& places = model.gradient_places;
    if (!places.sharded) return;
    keep_slices(model, places.place_of(model.layout, bucket));
    model.weights_there.leave_embeddings();
    if (bucket + BucketPlaces::LAYERS < model.layout.config.L) return;
    places.for_each_gap(model.layout, bucket, [&](int64_t first, int64_t elems) {
        memset((float*)model.grads + first, 0, elems * sizeof(float));
    });
}
