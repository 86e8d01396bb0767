// What a model on a GPU has beside its tensors: its stream, pinned memory of the host, tables.
#pragma once
#include "llmc/cuda/adamw.cuh"
#include "llmc/cuda/attention.cuh"
#include "llmc/cuda/phase_clock.cuh"
#include "llmc/cuda/step_graph.cuh"
#include "llmc/cuda/whole_tensors.cuh"
#include "llmc/gpt2/token_order.h"
#include "llmc/model/model.h"
#include "llmc/plan/device_reading.h"

// --offload (cuda/offload.cuh): what lies in pinned memory of the host, and how it travels.
struct StretchBegin {
    int64_t elem, block;  // of what this process keeps state of
};
constexpr int64_t STATE_PLACES = 3;
struct Offload {
    cudaStream_t up = nullptr, down = nullptr;
    std::vector<OptimizerState> states;  // of m, v and master weights those that lie on the host
    std::vector<StretchBegin> begins;    // of stretches of state, and the end
    char* places = nullptr;              // on the GPU: STATE_PLACES stretches
    cudaEvent_t came[STATE_PLACES] = {}, used[STATE_PLACES] = {}, left[STATE_PLACES] = {};  // what a place has
    cudaEvent_t state_left = nullptr;  // all that the last pass has changed
    int64_t next = 0;                  // stretches so far
    float* frozen_v = nullptr;         // on the GPU: v of a slice
    char* inputs = nullptr;            // pinned: of segments
    cudaEvent_t input_came[INPUT_PLACES] = {}, input_left[INPUT_PLACES] = {};
    cudaEvent_t reached = nullptr;  // how far the GPU must be before a copy

    int64_t stretches() const { return begins.empty() ? 0 : (int64_t)begins.size() - 1; }
};

struct Gpu {
    cudaStream_t stream = nullptr;
    int* host_tokens = nullptr;             // pinned: inputs, targets and their order, of each micro-step
    DeviceResults* host_results = nullptr;  // pinned
    TokenOrder tokens{};                    // of the micro-step
    DocumentTiles documents;                // likewise
    DecayRanges decayed;
    WholeTensorTables whole_tensors;
    int64_t gelu_fusion = 0;  // -ge
    GpuPhaseClock phases;
    StepGraphs graphs;
    Offload offload;
    DeviceReading reading;  // of this step
    int64_t allocated_bytes = 0;
};

inline DeviceResults* results_of(GPT2& model) { return model.act<DeviceResults>(RESULTS); }

// Enqueues a part of a micro-step: what enqueue() does, or its graph.
template <class Enqueue>
void by_graph(GPT2& model, StepPart part, const Batch& batch, Enqueue enqueue) {
    Gpu& own = *model.gpu;
    const CapturedValues values{batch.B, batch.T, batch.dloss, batch.dropout, own.documents.count};
    own.graphs.run(part, batch.micro > 0, batch.last, values, own.stream, enqueue);
}

// The pinned memory of a micro-step: room for inputs, targets, the order of the tokens, and the
// tiles of documents.
inline int64_t host_tokens_per_micro_step(const Sizes& s) { return 4 * s.rows() + 1 + s.tiles_elems(); }
inline int64_t host_tokens_bytes(const Sizes& s) {
    return s.micro_steps * host_tokens_per_micro_step(s) * (int64_t)sizeof(int);
}
