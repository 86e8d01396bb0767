// The parts of tensors that a process works on, where a whole tensor counts and not each element
// for itself.
#pragma once
#include "llmc/gpt2/tensors.h"

// A part of a tensor of one layer: elements first to end - 1. The padding of the vocabulary is left
// out.
struct TensorPart {
    int tensor, number;  // number: counts the tensors of all layers
    int64_t layer, first, end;
    int64_t bucket;
    int64_t index;  // of element `first` among all parameters
    int64_t state;  // of element `first` among those of which this process keeps state
    int64_t elems() const { return end - first; }
};

// How many tensors a model has, each layer's counted.
inline int64_t all_tensors(const GPT2Config& c) {
    int64_t n = 0;
    for (int i = 0; i < ALL_TENSORS; i++) n += tensor_layers(i, c);
    return n;
}
// Rows of a tensor, without the padding of the vocabulary.
inline int64_t real_rows(int tensor, const GPT2Config& c) {
    return tensor == WTE ? c.V : dimension(TENSORS[tensor].rows, c);
}

// Calls each(part) for every tensor of every layer that trains: the part that `own` holds of it,
// which may be empty. kept: the slices of which this process keeps state; they contain own.
template <class Each>
inline void for_each_part(const ParameterLayout& layout, const BucketSlice& own, const BucketSlice& kept, Each each) {
    const GPT2Config& c = layout.config;
    int number = 0;
    for (int i = 0; i < ALL_TENSORS; i++)
        for (int64_t l = 0; l < tensor_layers(i, c); l++, number++) {
            if (!trains(c, i, l)) continue;
            const int64_t bucket = layout.bucket_of(i, l), begin = layout.offset_in_bucket(i, l);
            const int64_t elems = real_rows(i, c) * dimension(TENSORS[i].cols, c);
            const int64_t low = std::max(begin, own.begin(layout, bucket));
            const int64_t high = std::max(low, std::min(begin + elems, own.end(layout, bucket)));
            const int64_t state = kept.state_begin(layout, bucket) + low - kept.begin(layout, bucket);
            each(TensorPart{i, number, l, low - begin, high - begin, bucket, layout.bucket_begin[bucket] + low, state});
        }
}

// Calls each(part) for the parts of a bucket's tensors.
template <class Each>
void for_each_part_of(int64_t bucket, const ParameterLayout& layout, const BucketSlice& own, const BucketSlice& kept,
                      Each each) {
    for_each_part(layout, own, kept, [&](const TensorPart& part) {
        if (part.bucket == bucket) each(part);
    });
}
// Calls each(part) for what a process updates of a bucket's tensors, and keeps state of.
template <class Each>
void for_each_part_of(int64_t bucket, const ParameterLayout& layout, const BucketSlice& slice, Each each) {
    for_each_part_of(bucket, layout, slice, slice, [&](const TensorPart& part) {
        if (part.elems() > 0) each(part);
    });
}
