// --prune on the CPU: what is 0 stays 0 (adapt/prune.h).
#pragma once
#include "llmc/cpu/device.h"
#include "llmc/model/pruned.h"

template <class floatX, class floatG>
void keep_pruned_on_cpu(GPT2& model, floatG* gradients) {
    for_each_pruned<floatX>(model, gradients, [](const PrunedPart<floatX, floatG>& part) {
        parallel_ranges(part.elems, 1 << 15, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) keep_pruned(part, i);
        });
    });
}
// Once the gradients are complete: those of pruned weights become 0.
template <class floatX>
void mask_gradients(GPT2& model) {
    if (!model.prunes) return;
    const Range range("mask_gradients");
    if (model.sizes.sums_gradients()) keep_pruned_on_cpu<floatX>(model, model.grad_sums);
    else keep_pruned_on_cpu<floatX>(model, (floatX*)model.grads);
}
// Once weights are pruned: their state becomes 0.
template <class floatX>
void clear_pruned_on_cpu(GPT2& model) {
    keep_pruned_on_cpu<floatX>(model, (float*)nullptr);
}
