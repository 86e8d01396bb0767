// Whether a GPU has the memory that a run needs, asked before it is taken.
#pragma once
#include "llmc/cuda/common.cuh"
#include "llmc/plan/plan.h"

// What must stay free beside the plan: cuBLASLt and the driver load kernels when they first run,
// which may be in the middle of a step.
constexpr int64_t LOADED_LATER_BYTES = 512 << 20;

// Exit 1 if the GPU has not enough free memory for these rows.
inline void check_free_memory(const std::vector<PlanRow>& rows) {
    size_t free_bytes = 0, total_bytes = 0;
    check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for memory");
    if (plan_bytes(rows) + LOADED_LATER_BYTES <= (int64_t)free_bytes) return;
    print_plan_rows(stderr, rows);
    runtime_failure(
        "out of memory: the run needs %.0f MiB as above, and %.0f more for kernels that are loaded later; the GPU has "
        "%.0f of %.0f MiB free; a smaller -b, -t or -e, a higher -r, or -w 0 lowers it",
        plan_bytes(rows) / MIB, LOADED_LATER_BYTES / MIB, free_bytes / MIB, total_bytes / MIB);
}
