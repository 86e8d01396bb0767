// --offload: what is not needed all the time lies elsewhere, on a CPU in a file (cpu/offload.h), on
// a GPU in the memory of its host (cuda/offload.cuh).
#pragma once
#include "llmc/base/check.h"
#include "llmc/options/option_values.h"

inline bool offloads(const Options& o, const char* what) { return o.offload == what || o.offload == "both"; }

// Exit 2 if there would be nothing to keep elsewhere.
inline void check_offload(const Options& o, bool training, int64_t recompute) {
    if (training && offloads(o, "activations") && recompute < 3)
        usage_error("--offload %s keeps the inputs of recomputed layers elsewhere; it is accepted with -r 3 and -r 4",
                    o.offload);
    if (!o.offload_dir.empty() && o.offload == "none")
        usage_error("--offload-dir %s has no effect without --offload; optimizer, activations, both are accepted",
                    o.offload_dir);
}
