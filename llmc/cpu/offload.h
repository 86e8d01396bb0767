// --offload on a CPU: what is not needed all the time lies in a file (base/mapped_file.h), after
// ZeRO-Offload and ZeRO-Infinity (Ren et al. 2021, arXiv:2101.06840; Rajbhandari et al. 2021,
// arXiv:2104.07857), which keep it in the memory of the host and on its disks.
//
//     optimizer     m, v and the master weights, of which an update needs a bucket at a time:
//                       read       | bucket 0 | bucket 1 | bucket 2 |
//                       update                | bucket 0 | bucket 1 | bucket 2 |
//                       written                          | bucket 0 | bucket 1 |
//     activations   the residual stream between segments of layers, of which the backward pass needs one at a time
//
// The same numbers as without, only elsewhere.
#pragma once
#include "llmc/base/folder.h"
#include "llmc/base/mapped_file.h"
#include "llmc/model/model_state.h"
#include "llmc/options/offload.h"

// The folder of the file: --offload-dir, else that of -o, or the nearest above it that is there.
inline std::string offload_folder(const Options& o) {
    std::string folder = !o.offload_dir.empty() ? o.offload_dir : o.out_dir.empty() ? "." : o.out_dir;
    while (o.offload_dir.empty() && !folder_exists(folder)) folder = folder_of(folder);
    return folder;
}

// The most that the state of a bucket takes in main memory.
inline int64_t most_offloaded_bytes(const GPT2& model, bool master) {
    int64_t most = 0;
    for (int64_t b : {(int64_t)0, model.layout.config.L}) {
        int64_t bytes = 0;
        for (OptimizerState state : states_of(OPTIMIZERS[model.optimizer], master))
            if (state != STATE_FACTORS) bytes += state_bytes(model, state, b).bytes;
        most = std::max(most, bytes);
    }
    return most;
}

// The activations that may lie in a file, --offload activations: the copies of RESIDUAL3 that are
// kept from the forward pass for the backward pass, in bytes of acts.
struct ActivationBytes {
    int64_t begin = 0, end = 0;
};
inline ActivationBytes offloaded_activations(const ActivationLayout& layout) {
    const int64_t shared = layout.segment_layers - 1;  // copies that serve the layers within a segment in turn
    const int64_t first = layout.copy_offset(RESIDUAL3, shared);
    const int64_t end = layout.copy_offset(RESIDUAL3, layout.copies[RESIDUAL3]);
    const ActivationBytes whole_pages{round_up(first, MAPPED_PAGE), end / MAPPED_PAGE * MAPPED_PAGE};
    return whole_pages.begin < whole_pages.end ? whole_pages : ActivationBytes{};
}
// What layer l reads from the residual stream: is not needed for some time; will be needed soon.
inline void advise_input(GPT2& model, int64_t l, int advice) {
    if (!model.offloaded_acts || l < 1) return;
    char* const copy = model.act<char>(RESIDUAL3, l - 1);
    char* const begin = std::max(model.offloaded_acts, copy);
    advise_mapped(begin, std::min(model.offloaded_acts_end, copy + model.activations.bytes[RESIDUAL3]) - begin, advice);
}
inline void leave_input(GPT2& model, int64_t l) { advise_input(model, l, MADV_DONTNEED); }
inline void fetch_input(GPT2& model, int64_t l) { advise_input(model, l, MADV_WILLNEED); }

// While it exists, a bucket's state is in use; that of the next is on its way. Then it may leave.
struct StateInUse {
    GPT2& model;
    const int64_t bucket;
    StateInUse(GPT2& model, int64_t bucket) : model(model), bucket(bucket) {
        if (model.offloads_state && bucket + 1 < model.layout.buckets())
            for_each_offloaded(model, bucket + 1, fetch_mapped);
    }
    ~StateInUse() { leave_states(model, bucket); }
};
