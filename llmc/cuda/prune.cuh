// --prune on a GPU: what is 0 stays 0 (adapt/prune.h).
#pragma once
#include "llmc/cuda/gpu.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/model/pruned.h"

// One thread for each weight of a part; see keep_pruned_on_cpu() in llmc/cpu/prune.h.
template <class floatX, class floatG>
__global__ void keep_pruned_kernel(PrunedPart<floatX, floatG> part) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < part.elems) keep_pruned(part, i);
}
template <class floatX, class floatG>
void keep_pruned_on_gpu(GPT2& model, floatG* gradients) {
    for_each_pruned<floatX>(model, gradients, [&](const PrunedPart<floatX, floatG>& part) {
        launch("keep_pruned", keep_pruned_kernel<floatX, floatG>, dim3((unsigned)ceil_div(part.elems, (int64_t)256)),
               256, 0, model.gpu->stream, part);
    });
}
// Once the gradients are complete: those of pruned weights become 0.
template <class floatX, class floatG>
void mask_gradients(GPT2& model, floatG* gradients) {
    if (model.prunes) keep_pruned_on_gpu<floatX>(model, gradients);
}
// Once weights are pruned: their state becomes 0.
template <class floatX>
void clear_pruned_on_gpu(GPT2& model) {
    keep_pruned_on_gpu<floatX>(model, (float*)nullptr);
}
