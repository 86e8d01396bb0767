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

struct Gpu {
    cudaStream_t stream = nullptr;
    int* host_tokens = nullptr;             // pinned: inputs, targets and their order, of each micro-step
    DeviceResults* host_results = nullptr;  // pinned
    TokenOrder tokens{};                    // of the micro-step
    DocumentTiles documents;                // likewise
    DecayRanges decayed;
    WholeTensorTables whole_tensors;
    GeluFusion gelu_fusion{};
    GpuPhaseClock phases;
    StepGraphs graphs;
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
