// What --offload takes of a GPU and of its host: settled, planned, allocated, and asked for by
// those who copy. How it travels: offload.cuh.
#pragma once
#include "llmc/cuda/offload.cuh"
#include "llmc/options/messages.h"
#include "llmc/options/offload.h"
#include "llmc/plan/plan.h"

// What lies on the host, before anything is allocated; exit 2 if it cannot.
inline void settle_offload(GPT2& model, Sizes& s, const Options& o) {
    check_offload(o, s.training, s.recompute);
    Offload& own = model.gpu->offload;
    own = {};
    if (!o.offload_dir.empty())
        usage_error(
            "--offload-dir %s is for CPUs: a GPU offloads to the memory of the host; --offload alone is accepted",
            o.offload_dir);
    if (offloads(o, "activations") && o.cuda_graph)
        usage_error("--offload %s with --cuda-graph 1, which has one stream; one of the two is accepted", o.offload);
    if (offloads(o, "optimizer") && trains_apart(o))
        usage_error(
            "--offload %s with --sync-every %d: on GPUs processes meet with weights and state that lie there; one of "
            "the two is accepted",
            o.offload, o.sync_every);
    s.inputs_on_host = s.training && offloads(o, "activations");
    if (!s.training || !offloads(o, "optimizer")) return;
    for (OptimizerState state : states_of(OPTIMIZERS[model.optimizer], has_master(model.format, o)))
        if (state != STATE_FACTORS) own.states.push_back(state);
    own.begins = stretch_begins(model);
}

// Rows of the plan: what the GPU has of what lies on the host; and what the host has.
inline void plan_offload(std::vector<PlanRow>& rows, const GPT2& model) {
    if (const int64_t bytes = place_bytes(model))
        rows.push_back({"scratch", "state in use", format("%d stretches", STATE_PLACES), STATE_PLACES * bytes});
    if (const int64_t bytes = frozen_v_bytes(model)) rows.push_back({"scratch", "v in use", "of a slice", bytes});
}
inline void plan_offload_on_host(std::vector<PlanRow>& rows, const GPT2& model, const Sizes& s) {
    if (const int64_t bytes = state_on_host_bytes(model)) rows.push_back({"host", "state, pinned", "offloaded", bytes});
    if (const int64_t inputs = inputs_on_host(s))
        rows.push_back({"host", "inputs, pinned", format("of %d segments", inputs), inputs * input_bytes(model)});
}

// Streams, and memory of the host; take(bytes) allocates on the GPU.
template <class Take>
void allocate_offload(GPT2& model, Take take) {
    Offload& own = model.gpu->offload;
    const int64_t inputs = inputs_on_host(model.sizes) * input_bytes(model);
    if (own.states.empty() && inputs == 0) return;
    for (cudaStream_t* stream : {&own.up, &own.down})
        check_cuda(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "making a stream");
    if (inputs > 0) check_cuda(cudaMallocHost(&own.inputs, inputs), "allocating host memory for activations");
    if (own.states.empty()) return;
    own.places = take(STATE_PLACES * place_bytes(model));
    if (const int64_t bytes = frozen_v_bytes(model)) own.frozen_v = (float*)take(bytes);
}
// Memory for a state, zeroed, if it lies on the host; else null.
inline void* state_on_host(const GPT2& model, OptimizerState state, int64_t bytes) {
    void* p = nullptr;
    if (!is_offloaded(model, state)) return p;
    check_cuda(cudaMallocHost(&p, bytes), "allocating host memory for the optimizer's state");
    return memset(p, 0, bytes);
}
// Whether an address of the model's memory is one of the host. Then what travels has arrived.
inline bool lies_on_host(GPT2& model, const void* p) {
    const Offload& own = model.gpu->offload;
    for (OptimizerState state : own.states) {
        const char* const begin = (const char*)state_memory(model, state);
        if (p < begin || p >= begin + state_layout(model, state).held_bytes(model.slice)) continue;
        wait_for_stream(model.gpu->stream, "the update"), wait_for_stream(own.down, "the optimizer's state");
        return true;
    }
    return false;
}
inline void free_offload(GPT2& model) {
    Offload& own = model.gpu->offload;
    for (OptimizerState state : {STATE_M, STATE_V, STATE_MASTER}) {
        void* const p = state == STATE_M ? model.m : state == STATE_V ? model.v : (void*)model.master;
        check_cuda(is_offloaded(model, state) ? cudaFreeHost(p) : cudaFree(p), "freeing memory");
    }
    if (own.inputs) check_cuda(cudaFreeHost(own.inputs), "freeing memory");
    check_cuda(cudaFree(own.places), "freeing memory"), check_cuda(cudaFree(own.frozen_v), "freeing memory");
    for (cudaStream_t stream : {own.up, own.down})
        if (stream) check_cuda(cudaStreamDestroy(stream), "freeing a stream");
}
