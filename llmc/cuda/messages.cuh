// --compress-gradients and --sync-every on GPUs: what the trainer calls in place of reduce-scatters
// (llmc/compress/).
#pragma once
#include "llmc/compress/compressed_sum.h"
#include "llmc/cuda/comm.cuh"
#include "llmc/cuda/gpu.cuh"
#include "llmc/cuda/gradient_codes.cuh"
#include "llmc/cuda/offload.cuh"
#include "llmc/model/rank_memory.h"

struct CompressOnGpu {
    GPT2& model;
    cudaStream_t stream = model.gpu->stream;

    void wait() const { gpu_comm_join(stream); }
    void encode(char* codes, float* residual, const float* values, int64_t n) const {
        encode_slice(codes, residual, values, n, model.compressed.kind, stream);
    }
    void add(float* out, const char* codes, int64_t bytes, int64_t n, int64_t slice, int64_t bucket) const {
        const float* const v = v_on_gpu(model, frozen_v(model, slice, bucket), n);
        decode_slices(out, codes, bytes, comm.processes, v, model.compressed.limit, n, model.compressed.kind, stream);
    }
    void decode(float* out, const char* codes, int64_t n, int64_t slice, int64_t bucket) const {
        const float* const v = v_on_gpu(model, frozen_v(model, slice, bucket), n);
        decode_slices(out, codes, 0, 1, v, model.compressed.limit, n, model.compressed.kind, stream);
    }
    void exchange(char* to, const char* from, int64_t bytes, int64_t bucket) const {
        gpu_all_to_all((float*)to, (const float*)from, bytes / 4, bucket, stream);
    }
    void gather(char* data, int64_t bytes, int64_t bucket) const {
        gpu_all_gather((float*)data, bytes / 4, bucket, stream);
    }
};
// Where gradients are summed, or are fp32 anyway.
inline float* fp32_gradients(const GPT2& model) { return model.grad_sums ? model.grad_sums : (float*)model.grads; }

// Whether a bucket's gradients do not go by a reduce-scatter: they are sent compressed, or not at
// all.
inline bool sent_otherwise(GPT2& model, int64_t bucket) {
    if (model.compressed.on && comm.processes > 1)
        advance_compressed(model.compressed, model.layout, fp32_gradients(model), comm.rank, bucket,
                           CompressOnGpu{model});
    return model.compressed.on || model.apart;
}
// What is enqueued from here on comes after the sums of all gradients, in ZeRO stage 1 and where
// they were not compressed those of this process's own slices.
inline void join_gradients(GPT2& model) {
    finish_compressed(model.compressed, model.layout, fp32_gradients(model), comm.rank, CompressOnGpu{model});
    gpu_comm_join(model.gpu->stream);
}

// values (n) = those of the outer step from their sum over P processes; their mean if w is null.
template <class T>
__global__ void outer_step_kernel(T* values, T* w, T* momentum, int64_t n, float P, OuterStep step) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] = w ? step(values[i] / P, w[i], momentum[i]) : values[i] / P;
}
// values, of all buckets = their mean over all ranks, or those of the outer step from it.
inline void gpu_average(GPT2& model, float* values, float* w, float* momentum) {
    const ParameterLayout& layout = model.layout;
    const int64_t P = comm.processes;
    const cudaStream_t stream = model.gpu->stream;
    for (int64_t b = 0; b < layout.buckets(); b++)
        gpu_reduce_scatter(values + layout.bucket_begin[b], layout.slice_elems(b), b, stream);
    gpu_comm_join(stream);
    for (int64_t b = 0; b < layout.buckets(); b++) {
        const int64_t elems = layout.slice_elems(b), at = layout.bucket_begin[b], own = at / P;
        launch("outer_step", outer_step_kernel<float>, dim3((unsigned)ceil_div(elems, (int64_t)256)), 256, 0, stream,
               values + at + comm.rank * elems, w ? w + own : nullptr, w ? momentum + own : nullptr, elems, (float)P,
               model.outer);
    }
    for (int64_t b = 0; b < layout.buckets(); b++)
        gpu_all_gather(values + layout.bucket_begin[b], layout.slice_elems(b), b, stream);
    gpu_comm_join(stream);
}
// See llmc/cpu/meet.h.
template <class floatX>
void meet_on_gpu(GPT2& model, Meeting meeting) {
    const Range range("meet");
    const ParameterLayout& layout = model.layout;
    const cudaStream_t stream = model.gpu->stream;
    float* const weights = model.master ? model.master : (float*)model.params;
    if (meeting == MEET_STATES) {
        for (void* state : {model.m, model.v})
            if (state) gpu_average(model, (float*)state, nullptr, nullptr);
        return;
    }
    if (meeting == MEET_WEIGHTS) {
        gpu_average(model, weights, model.outer_weights, model.outer_momentum);
        if (model.master) round_gradients((floatX*)model.params, weights, layout.total_elems(), stream);
        return;
    }
    for (int64_t b = 0; b < layout.buckets() && model.outer_weights; b++) {
        const int64_t elems = layout.slice_elems(b), at = layout.bucket_begin[b];
        check_cuda(cudaMemcpyAsync(model.outer_weights + at / comm.processes, weights + at + comm.rank * elems,
                                   elems * 4, cudaMemcpyDeviceToDevice, stream),
                   "copying weights");
    }
}
