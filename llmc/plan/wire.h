// What travels between the processes of a run.
#pragma once
#include "llmc/comm/comm.h"
#include "llmc/model/model_state.h"

// Bytes that this process sends in a step: gradients to be summed, then gradients (stage 0) or
// updated weights (stage 1) to all. In between Muon shares directions and factors in slices
// (muon.h); other factors are renewed from what every process has collected for all of them
// (factors.h). Single numbers count where the trace has them: on a GPU the sums of the step
// (global_norm.cuh) and, in stage 1, those of the tensors (directions.cuh).
inline int64_t wire_bytes_per_step(const GPT2& model) {
    const Sizes& s = model.sizes;
    const bool in_slices = model.slice.parts > 1;
    const StateLayout factors = state_layout(model, STATE_FACTORS);
    const int64_t summed = s.gradient_bytes(), gathered = in_slices ? s.floatX_bytes : summed;
    const int64_t all = model.layout.total_elems(), layers = model.layout.bucket_begin[s.config.L];
    const int64_t shared = s.orthogonalizes ? layers + (in_slices ? factors.total_elems() : 0) : 0;
    const int64_t collected = factors.kept == KEEP_FACTORED ? factors.total_elems() : 0;
    const int64_t sums = s.gpu ? 1 + (in_slices && s.directions ? all_tensors(s.config) : 0) : 0;
    const int64_t slices = (all * (summed + gathered) + shared * 8) / comm.processes;
    return (slices + collected * 4 + sums * (int64_t)sizeof(DirectionSums)) * (comm.processes - 1);
}
