// --ema on a GPU: the average of the weights (llmc/optim/average.h), in this rank's slices.
#pragma once
#include "llmc/cuda/comm.cuh"
#include "llmc/cuda/gpu.cuh"
#include "llmc/model/weight_average.h"

// One thread for each weight of a slice; see average_on_cpu() in llmc/cpu/average.h.
template <class floatX>
__global__ void average_kernel(AveragedSlice<floatX> slice, Averaging what, float share) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= slice.elems) return;
    const float average = slice.average[i], weight = slice.master ? slice.master[i] : (float)slice.weights[i];
    if (what == BEGIN_AVERAGE) slice.average[i] = weight;
    else if (what == ADD_TO_AVERAGE) slice.average[i] = average_of(average, weight, share);
    else if (slice.master) slice.weights[i] = (floatX)(what == USE_AVERAGE ? average : weight);
    else slice.weights[i] = (floatX)average, slice.average[i] = weight;
}
template <class floatX>
void average_on_gpu(GPT2& model, Averaging what, float share) {
    const Range range("average");
    const ParameterLayout& layout = model.layout;
    const cudaStream_t stream = model.gpu->stream;
    if (moves_weights(what)) gpu_comm_join(stream);  // weights of other processes may be on their way
    for (int64_t b = 0; b < layout.buckets(); b++) {
        const AveragedSlice<floatX> slice = averaged_slice<floatX>(model, b);
        launch("average", average_kernel<floatX>, dim3((unsigned)ceil_div(slice.elems, (int64_t)256)), 256, 0, stream,
               slice, what, share);
    }
    if (!moves_weights(what)) return;
    model.weights_there = {};
    for (int64_t b = 0; b < layout.buckets() && !model.weight_places.sharded; b++)
        gpu_all_gather((floatX*)model.params + layout.bucket_begin[b], layout.slice_elems(b), b, stream);
    gpu_comm_join(stream);
}
