// Where the buckets of the weights, or of the gradients, lie in the memory of a process. Usually
// it holds all of them, one after the other. Sharded (ZeRO stages 2 and 3; Rajbhandari et al. 2020,
// arXiv:1910.02054) it keeps its slice of every bucket, and sees few buckets whole: two layers, and
// what is outside the layers.
//
//     all       | layer 0     | layer 1     | layer 2     | ... | last bucket     |
//     sharded   | own slices of layers 0, 1, 2, ..., last bucket | place 0 | place 1 | place of the last bucket |
//
// Layer l has place l % 2, so that the next layer's bucket can travel while this one is computed
// with. The weights of the last bucket, the embeddings, are needed until the backward pass reaches
// the layers, and the gradients of layers from then on. So while a process trains at stage 3 both
// have the same memory: the embeddings borrow the layers' places among the gradients.
//
// If these are too small, and on a CPU, embeddings borrow those among the weights as well. Then
// they are not there while the forward pass is in the layers, and are collected twice:
//
//     weights      | own slices | place 0 | place 1 |
//     gradients                                     | place 0 | place 1 | place of the last bucket | own slices |
//     embeddings                |===================================|
#pragma once
#include <algorithm>
#include <utility>
#include "llmc/gpt2/tensor_parts.h"

struct BucketPlaces {
    bool sharded = false;
    int64_t part = 0;            // the number of this process's slices; of layout.processes
    bool borrows = false;        // of weights: the last bucket has its place among the gradients
    bool borrows_both = false;   // and among the weights of layers
    bool places_first = false;   // of gradients: they begin with the places
    int64_t lent_elems = 0;      // of gradients: what the weights' last bucket takes of the layers' places, or beyond
    bool wte_in_pieces = false;  // of gradients: that of wte is never whole (cpu/wte_pieces.h)

    static constexpr int64_t LAYERS = 2;  // that have places
    int64_t place_of(const ParameterLayout& layout, int64_t bucket) const {
        return bucket == layout.config.L ? LAYERS : bucket % LAYERS;
    }
    int64_t slices_elems(const ParameterLayout& layout) const { return layout.total_elems() / layout.processes; }
    // Whether a bucket can be whole beside another.
    bool hold_both(const ParameterLayout& layout, int64_t a, int64_t b) const {
        return !borrows_both || (a == layout.config.L) == (b == layout.config.L);
    }
    // Elements of all buckets that are seen whole at once; and of their places in this memory.
    int64_t whole_elems(const ParameterLayout& layout) const {
        return LAYERS * layout.bucket_elems(0) + last_elems(layout);
    }
    int64_t last_elems(const ParameterLayout& layout) const {
        return layout.bucket_elems(layout.config.L) - (wte_in_pieces ? layout.wte_elems() : 0);
    }
    int64_t layers_elems(const ParameterLayout& layout) const {
        return std::max(LAYERS * layout.bucket_elems(0), lent_elems);
    }
    int64_t places_elems(const ParameterLayout& layout) const {
        return layers_elems(layout) + (borrows ? 0 : last_elems(layout));
    }
    // Elements of this memory.
    int64_t elems(const ParameterLayout& layout) const {
        return sharded ? slices_elems(layout) + places_elems(layout) : layout.total_elems();
    }
    // The first element of a bucket, where it is seen whole; without wte, where wte would begin.
    int64_t whole(const ParameterLayout& layout, int64_t bucket) const {
        if (!sharded) return layout.bucket_begin[bucket];
        const int64_t places = places_first ? 0 : slices_elems(layout);
        if (bucket < layout.config.L) return places + bucket % LAYERS * layout.bucket_elems(0);
        return places + layers_elems(layout) - (wte_in_pieces ? layout.wte_elems() : 0);
    }
    // Calls f(first element, elements) for the padding in the place of layer l, which is 0 in a
    // bucket of gradients.
    template <class F>
    void for_each_gap(const ParameterLayout& layout, int64_t l, F f) const {
        int64_t end = 0;
        const auto gap_to = [&](int64_t next) {
            if (next > end) f(whole(layout, l) + end, next - end);
        };
        for (int i = 0; i < ALL_TENSORS; i++) {
            if (!TENSORS[i].per_layer || !trains(layout.config, i, l)) continue;
            gap_to(layout.offset_in_bucket(i, l));
            end = layout.offset_in_bucket(i, l) + tensor_elems(i, layout.config);
        }
        gap_to(layout.bucket_elems(l));
    }
    // The first element of the slice that this process keeps of a bucket.
    int64_t own(const ParameterLayout& layout, int64_t bucket) const {
        const int64_t begin = layout.bucket_begin[bucket];
        if (!sharded) return begin + part * layout.slice_elems(bucket);
        return (places_first ? places_elems(layout) : 0) + begin / layout.processes;
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

    // Whether a bucket must be collected now, which takes the place of others.
    bool take(const BucketPlaces& places, const ParameterLayout& layout, int64_t bucket) {
        const bool last = bucket == layout.config.L;
        for (int64_t place = 0; place <= BucketPlaces::LAYERS && places.borrows_both; place++)
            if (last != (place == BucketPlaces::LAYERS)) in_place[place] = -1;
        int64_t& there = in_place[places.place_of(layout, bucket)];
        return std::exchange(there, bucket) != bucket;
    }
    // The gradients of layers take the memory of the embeddings. Whether these were there.
    bool leave_embeddings() { return std::exchange(in_place[BucketPlaces::LAYERS], -1) >= 0; }
};
