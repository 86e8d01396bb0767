// The model that --teacher names, on a GPU (llmc/model/teacher.h): it computes in the stream of the
// model that learns from it, with its workspace.
#pragma once
#include "llmc/cuda/gpu.cuh"
#include "llmc/model/teacher.h"

// To be called when the sizes of the model are settled.
inline void settle_teacher_on_gpu(GPT2& model, const Sizes& sizes) {
    if (!model.teacher) return;
    model.sizes = sizes, model.sizes.blas_workspace_bytes = 0;
    settle_teacher(model);
    model.teacher->gpu = model.gpu;
}
// take(bytes) returns memory of the GPU.
template <class Take>
void allocate_teacher(GPT2& model, Take take) {
    GPT2* const teacher = model.teacher.get();
    if (!teacher) return;
    teacher->params = take(teacher_weight_bytes(*teacher));
    teacher->acts = take(teacher->activations.total_bytes);
}
inline void free_teacher(GPT2& model) {
    if (!model.teacher) return;
    for (void* p : {model.teacher->params, (void*)model.teacher->acts}) check_cuda(cudaFree(p), "freeing memory");
}
