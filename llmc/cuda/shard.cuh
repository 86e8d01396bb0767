// Sharded weights and gradients on a GPU: what cpu/shard.h says of the stages, with streams.
// Buckets travel in the stream of the collectives while another layer is computed; events say when
// a place is filled, and when it is free.
//
//     stream           | layer l             | layer l+1           | layer l+2
//     gpu_comm.stream  | weights of l+1      | weights of l+2      | ...         into the place that layer l has left
//     stream           | backward l          | backward l-1        | backward l-2, in the place of l
//     gpu_comm.stream                        | sum of l, to slices | sum of l-1
#pragma once
#include "llmc/cuda/gpu.cuh"
#include "llmc/cuda/comm.cuh"

// Events that say when what was enqueued in gpu_comm.stream is done.
struct ShardEvents {
    // Of the weights in each place, and of the gradients that have left each.
    cudaEvent_t filled[BucketPlaces::LAYERS + 1] = {}, freed[BucketPlaces::LAYERS + 1] = {};
    cudaEvent_t fetched[LAYERS_AHEAD] = {};  // of the last fetches
    int64_t fetches = 0;
};
inline ShardEvents shard_events;

// Starts collecting the weights of a bucket in its place, behind the work enqueued so far.
template <class floatX>
static void start_fetch(GPT2& model, int64_t bucket) {
    const ParameterLayout& layout = model.layout;
    const BucketPlaces& places = model.weight_places;
    cudaEvent_t& fetched = shard_events.fetched[shard_events.fetches++ % LAYERS_AHEAD];
    if (fetched) wait_for_event(fetched, "the weights of the other processes");  // LAYERS_AHEAD says why
    gpu_all_gather(model.whole_weights<floatX>(bucket), layout.slice_elems(bucket), bucket, model.gpu->stream,
                   (floatX*)model.params + places.own(layout, bucket));
    record_event(fetched, gpu_comm.stream);
    record_event(shard_events.filled[places.place_of(layout, bucket)], gpu_comm.stream);
}
// What is enqueued from now on finds the weights of a bucket; those of `next` (-1: none) travel
// meanwhile. Where every process keeps all weights, it finds those that the others have updated.
template <class floatX>
static void fetch_weights(GPT2& model, int64_t bucket, int64_t next = -1) {
    const cudaStream_t stream = model.gpu->stream;
    if (!model.weight_places.sharded && !model.sizes.training)
        return;  // a teacher's, or those of a run that only reads
    if (!model.weight_places.sharded)
        return bucket < model.layout.config.L ? gpu_wait_for_layer(bucket, stream)
                                              : gpu_wait_for_weights(bucket, stream);
    const Together together;
    for (int64_t b : {bucket, next})
        if (b >= 0 && model.weights_there.take(model.weight_places, model.layout, b)) start_fetch<floatX>(model, b);
    wait_in_stream(shard_events.filled[model.weight_places.place_of(model.layout, bucket)], stream);
}

// What is enqueued from now on may write the gradients of a bucket in their place.
static inline void free_place(GPT2& model, int64_t bucket) {
    const BucketPlaces& places = model.gradient_places;
    const cudaStream_t stream = model.gpu->stream;
    if (places.sharded) wait_in_stream(shard_events.freed[places.place_of(model.layout, bucket)], stream);
    if (bucket == model.layout.config.L || !model.weights_there.leave_embeddings()) return;
    const int64_t bytes = model.sizes.gradient_bytes();
    char* const grads = model.grad_sums ? (char*)model.grad_sums : (char*)model.grads;
    for (int64_t l = 0; l < std::min(BucketPlaces::LAYERS, model.layout.config.L); l++)
        places.for_each_gap(model.layout, l, [&](int64_t first, int64_t elems) {
            check_cuda(cudaMemsetAsync(grads + first * bytes, 0, elems * bytes, stream), "clearing a gradient");
        });
}
// Starts the sum of a bucket's gradients over the processes. Sharded, this process keeps its slice
// of it, added to those of the micro-steps before; after the last, it is summed over replicas.
template <class floatG>
void sum_over_processes(GPT2& model, floatG* grads, int64_t bucket, const Batch& batch) {
    const bool add = batch.micro > 0;
    const ParameterLayout& layout = model.layout;
    const BucketPlaces& places = model.gradient_places;
    const int64_t elems = layout.slice_elems(bucket);
    floatG* const whole = grads + places.whole(layout, bucket);
    if (!places.sharded) return gpu_sum_later(whole, elems, bucket, model.gpu->stream);
    floatG *const kept = grads + places.own(layout, bucket), *const own = whole + comm.shards.rank * elems;
    gpu_reduce_scatter(whole, elems, bucket, model.gpu->stream, add ? own : kept);
    if constexpr (sizeof(floatG) == 4)
        if (add && comm.shards.processes > 1) add_gradients(kept, own, elems, true, gpu_comm.stream);
    if (batch.last) gpu_sum_over_replicas(kept, elems, bucket, model.gpu->stream);
    if (comm.shards.processes > 1) record_event(shard_events.freed[places.place_of(layout, bucket)], gpu_comm.stream);
}

// The elements of `slice`, as kernels of the update find them.
inline SliceMap slice_map(const GPT2& model, const BucketSlice& slice) {
    SliceMap map = slice_map(model.layout, slice);
    map.weights_sliced = model.weight_places.sharded, map.gradients_sliced = model.gradient_places.sharded;
    return map;
}
