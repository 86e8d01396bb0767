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
// kept from the forward pass for the backward pass, or of their codes; in bytes of acts.
struct ActivationBytes {
    int64_t begin = 0, end = 0;
};
inline Activation offloaded_activation(const ActivationLayout& layout) {
    return layout.copies[CODES] ? CODES : RESIDUAL3;
}
inline ActivationBytes offloaded_activations(const ActivationLayout& layout) {
    const Activation a = offloaded_activation(layout);
    const int64_t shared = a == CODES ? 0 : layout.segment_layers - 1;  // copies that serve within a segment in turn
    const int64_t first = layout.copy_offset(a, shared), end = layout.copy_offset(a, layout.copies[a]);
    const ActivationBytes whole_pages{round_up(first, MAPPED_PAGE), end / MAPPED_PAGE * MAPPED_PAGE};
    return whole_pages.begin < whole_pages.end ? whole_pages : ActivationBytes{};
}
// What the segment that begins with layer l reads from the residual stream: is not needed for some
// time; will be needed soon.
inline void advise_input(GPT2& model, int64_t l, int advice) {
    const ActivationLayout& acts = model.activations;
    const int64_t k = acts.segment_layers;
    if (!model.offloaded_acts || l < 1 || l % k != 0) return;
    const Activation a = offloaded_activation(acts);
    char* const copy = model.acts + (a == CODES ? acts.copy_offset(a, l / k - 1) : acts.offset(a, l - 1));
    char* const begin = std::max(model.offloaded_acts, copy);
    advise_mapped(begin, std::min(model.offloaded_acts_end, copy + acts.bytes[a]) - begin, advice);
}
inline void leave_input(GPT2& model, int64_t l) { advise_input(model, l, MADV_DONTNEED); }
// Before the backward pass of layer l, behind the last of a segment or within one.
inline void fetch_input(GPT2& model, int64_t l) {
    const int64_t k = model.activations.segment_layers;
    advise_input(model, l / k * k, MADV_WILLNEED);
}

// v of a slice, which 1-bit Adam reads in the backward pass: will be needed soon; was read.
inline void advise_v(const GPT2& model, const float* v, int64_t n, int advice) {
    if (v && model.offloads_state) advise_mapped(v, n * (int64_t)sizeof(float), advice);
}

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
