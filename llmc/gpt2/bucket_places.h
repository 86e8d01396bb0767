// Where the buckets of the weights, or of the gradients, lie in the memory of a process. Usually
// it holds all of them, one after the other. Sharded (ZeRO stages 2 and 3; Rajbhandari et al. 2020,
// arXiv:1910.02054) it keeps its slice of every bucket, and sees few buckets whole: two layers, and
// what is outside the layers.
//
//     all       | layer 0     | layer 1     | layer 2     | ... | last bucket     |
//     sharded   | own slices of layers 0, 1, 2, ..., last bucket | place 0 | place 1 | place of the last bucket |
//
// Layer l has place l % 2, so that the next layer's bucket can travel while this one is computed
// with.
#pragma once
#include <utility>
#include "llmc/gpt2/tensor_parts.h"

struct BucketPlaces {
    bool sharded = false;
    int64_t part = 0;  // the number of this process's slices; of layout.processes

    static constexpr int64_t LAYERS = 2;  // that have places
    int64_t place_of(const ParameterLayout& layout, int64_t bucket) const {
        return bucket == layout.config.L ? LAYERS : bucket % LAYERS;
    }
    int64_t slices_elems(const ParameterLayout& layout) const { return layout.total_elems() / layout.processes; }
    int64_t places_elems(const ParameterLayout& layout) const {
        return LAYERS * layout.bucket_elems(0) + layout.bucket_elems(layout.config.L);
    }
    // Elements of this memory.
    int64_t elems(const ParameterLayout& layout) const {
        return sharded ? slices_elems(layout) + places_elems(layout) : layout.total_elems();
    }
    // The first element of a bucket, where it is seen whole.
    int64_t whole(const ParameterLayout& layout, int64_t bucket) const {
        if (!sharded) return layout.bucket_begin[bucket];
        return slices_elems(layout) + place_of(layout, bucket) * layout.bucket_elems(0);
    }
    // The first element of the slice that this process keeps of a bucket.
    int64_t own(const ParameterLayout& layout, int64_t bucket) const {
        const int64_t begin = layout.bucket_begin[bucket];
        return sharded ? begin / layout.processes : begin + part * layout.slice_elems(bucket);
    }
    // Where an element lies that this process keeps; index: its number among all parameters. And
    // the first element of a part.
    int64_t at(const ParameterLayout& layout, int64_t bucket, int64_t index) const {
        if (!sharded) return index;
        return own(layout, bucket) + index - layout.bucket_begin[bucket] - part * layout.slice_elems(bucket);
    }
    int64_t at(const ParameterLayout& layout, const TensorPart& of_tensor) const {
        return at(layout, of_tensor.bucket, of_tensor.index);
    }
};

// Which buckets are whole in their places now.
struct BucketsThere {
    int64_t in_place[BucketPlaces::LAYERS + 1] = {-1, -1, -1};

    // Whether a bucket must be collected now, which takes the place of another.
    bool take(const BucketPlaces& places, const ParameterLayout& layout, int64_t bucket) {
        int64_t& there = in_place[places.place_of(layout, bucket)];
        return std::exchange(there, bucket) != bucket;
    }
};
