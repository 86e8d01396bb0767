// What a process at ZeRO stages 2 and 3 collects in a step, bucket by bucket, as the trainers do.
#pragma once
#include "llmc/plan/plan.h"

// Elements of all weights that are collected in a step: those of each layer before its forward and
// its backward pass, unless they are still in their place, and in every micro-step those outside
// the layers.
inline int64_t fetched_elems(const GPT2& model) {
    const Sizes& s = model.sizes;
    const ParameterLayout& layout = model.layout;
    const int64_t L = s.config.L;
    BucketsThere there;
    int64_t elems = 0;
    const auto fetch = [&](int64_t bucket, int64_t next) {
        for (int64_t b : {bucket, next})
            if (b >= 0 && model.weight_places.hold_both(layout, bucket, b) &&
                there.take(model.weight_places, layout, b))
                elems += layout.bucket_elems(b);
    };
    const auto forward_layers = [&](int64_t first, int64_t end) {
        for (int64_t l = first; l < end; l++) fetch(l, l + 1 < end ? l + 1 : -1);
    };
    for (int64_t micro = 0; micro < s.micro_steps && model.weight_places.sharded; micro++) {
        fetch(L, 0);
        forward_layers(0, L);
        fetch(L, -1);
        for (int64_t l = L - 1; l >= 0; l--) {
            const int64_t again = s.recomputed_before(l);
            if (again > 0 && s.recompute >= 3) forward_layers(l + 1 - again, l + 1);
            fetch(l, l - 1);
        }
        there.leave_embeddings();
    }
    return elems;
}
