// The one table of GPT-2's parameters. Sizes, places in memory, initial values, weight decay,
// shards, the order on disk and the names in tests all come from it.
//
// In memory the parameters of one layer lie together, a bucket a layer and one last bucket for what
// is outside the layers, so that a layer's gradients can travel as one message while the next layer
// is still computing, and each of P processes can own one P-th of every bucket. Tensors begin at
// multiples of 64 bytes and buckets are padded to a whole number of such pieces a process; padding
// is 0 and stays 0. On disk the order is by tensor, all layers of it together (checkpoint.h).
#pragma once
#include <vector>
#include "llmc/config.h"
#include "llmc/integer_math.h"

enum Dimension { DIM_1, DIM_C, DIM_3C, DIM_4C, DIM_VP, DIM_MAXT };
enum InitialValue { INIT_NORMAL, INIT_NORMAL_RESIDUAL, INIT_ZERO, INIT_ONE };

// INIT_NORMAL: standard deviation 0.02. INIT_NORMAL_RESIDUAL: 0.02 / sqrt(2L), for the projections
// that add to the residual stream (Radford et al. 2019, section 2.3). Decayed: the matrices, not
// biases and gains.
struct TensorInfo {
    // hf_name: in Hugging Face's GPT2LMHeadModel, %d the layer; its Conv1D weights are transposed
    const char *name, *hf_name;
    Dimension rows, cols;
    bool per_layer, decayed;
    InitialValue init;
};

// clang-format off
constexpr TensorInfo TENSORS[] = {
    {"wte",      "transformer.wte.weight",                DIM_VP,   DIM_C,  false, true,  INIT_NORMAL},
    {"wpe",      "transformer.wpe.weight",                DIM_MAXT, DIM_C,  false, true,  INIT_NORMAL},
    {"ln1w",     "transformer.h.%d.ln_1.weight",          DIM_1,    DIM_C,  true,  false, INIT_ONE},
    {"ln1b",     "transformer.h.%d.ln_1.bias",            DIM_1,    DIM_C,  true,  false, INIT_ZERO},
    {"qkvw",     "transformer.h.%d.attn.c_attn.weight",   DIM_3C,   DIM_C,  true,  true,  INIT_NORMAL},
    {"qkvb",     "transformer.h.%d.attn.c_attn.bias",     DIM_1,    DIM_3C, true,  false, INIT_ZERO},
    {"attprojw", "transformer.h.%d.attn.c_proj.weight",   DIM_C,    DIM_C,  true,  true,  INIT_NORMAL_RESIDUAL},
    {"attprojb", "transformer.h.%d.attn.c_proj.bias",     DIM_1,    DIM_C,  true,  false, INIT_ZERO},
    {"ln2w",     "transformer.h.%d.ln_2.weight",          DIM_1,    DIM_C,  true,  false, INIT_ONE},
    {"ln2b",     "transformer.h.%d.ln_2.bias",            DIM_1,    DIM_C,  true,  false, INIT_ZERO},
    {"fcw",      "transformer.h.%d.mlp.c_fc.weight",      DIM_4C,   DIM_C,  true,  true,  INIT_NORMAL},
    {"fcb",      "transformer.h.%d.mlp.c_fc.bias",        DIM_1,    DIM_4C, true,  false, INIT_ZERO},
    {"fcprojw",  "transformer.h.%d.mlp.c_proj.weight",    DIM_C,    DIM_4C, true,  true,  INIT_NORMAL_RESIDUAL},
    {"fcprojb",  "transformer.h.%d.mlp.c_proj.bias",      DIM_1,    DIM_C,  true,  false, INIT_ZERO},
    {"lnfw",     "transformer.ln_f.weight",               DIM_1,    DIM_C,  false, false, INIT_ONE},
    {"lnfb",     "transformer.ln_f.bias",                 DIM_1,    DIM_C,  false, false, INIT_ZERO},
};
// clang-format on
// clang-format off
enum Tensor {
    WTE, WPE, LN1W, LN1B, QKVW, QKVB, ATTPROJW, ATTPROJB, LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB,
    LNFW, LNFB, NUM_TENSORS
};
// clang-format on
static_assert(sizeof(TENSORS) / sizeof(TENSORS[0]) == NUM_TENSORS, "one row a tensor");

inline int64_t dimension(Dimension d, const GPT2Config& c) {
    switch (d) {
        case DIM_C: return c.C;
        case DIM_3C: return 3 * c.C;
        case DIM_4C: return 4 * c.C;
        case DIM_VP: return c.Vp;
        case DIM_MAXT: return c.maxT;
        default: return 1;
    }
}

// Elements of a tensor, of one layer if it is per layer.
inline int64_t tensor_elems(int tensor, const GPT2Config& c) {
    return dimension(TENSORS[tensor].rows, c) * dimension(TENSORS[tensor].cols, c);
}
inline int64_t tensor_layers(int tensor, const GPT2Config& c) { return TENSORS[tensor].per_layer ? c.L : 1; }

// Parameters of the model as people count them: padding left out.
inline int64_t parameter_count(const GPT2Config& c) {
    int64_t total = -(c.Vp - c.V) * c.C;
    for (int i = 0; i < NUM_TENSORS; i++) total += tensor_elems(i, c) * tensor_layers(i, c);
    return total;
}

// Where everything lies. Bucket l < L is layer l, bucket L what is outside the layers.
struct ParameterLayout {
    GPT2Config config;
    int64_t processes = 1;
    int64_t offset_in_bucket[NUM_TENSORS];
    std::vector<int64_t> bucket_begin;  // L + 2 entries, the last the total

    int64_t buckets() const { return config.L + 1; }
    int64_t total_elems() const { return bucket_begin.back(); }
    int64_t bucket_of(int tensor, int64_t layer) const { return TENSORS[tensor].per_layer ? layer : config.L; }
    int64_t offset(int tensor, int64_t layer = 0) const {
        return bucket_begin[bucket_of(tensor, layer)] + offset_in_bucket[tensor];
    }
    int64_t bucket_elems(int64_t bucket) const { return bucket_begin[bucket + 1] - bucket_begin[bucket]; }
    int64_t shard_elems(int64_t bucket) const { return bucket_elems(bucket) / processes; }
};

// Which part of every bucket a process updates, and keeps optimizer state for: all of it, or its
// slice (ZeRO stage 1; Rajbhandari et al. 2020, arXiv:1910.02054). State lies bucket by bucket,
// without gaps.
struct ZeroShard {
    int64_t parts = 1, part = 0;
    int64_t elems(const ParameterLayout& layout) const { return layout.total_elems() / parts; }
    int64_t state_begin(const ParameterLayout& layout, int64_t bucket) const {
        return layout.bucket_begin[bucket] / parts;
    }
    // within the bucket
    int64_t first(const ParameterLayout& layout, int64_t bucket) const {
        return layout.bucket_elems(bucket) / parts * part;
    }
    int64_t end(const ParameterLayout& layout, int64_t bucket) const {
        return layout.bucket_elems(bucket) / parts * (part + 1);
    }
};

inline ParameterLayout parameter_layout(const GPT2Config& config, int64_t processes) {
    const int64_t piece = 16;  // 64 bytes of fp32
    ParameterLayout layout;
    layout.config = config, layout.processes = processes;
    int64_t layer_elems = 0, outside_elems = 0;
    for (int i = 0; i < NUM_TENSORS; i++) {
        int64_t& at = TENSORS[i].per_layer ? layer_elems : outside_elems;
        layout.offset_in_bucket[i] = at;
        at += round_up(tensor_elems(i, config), piece);
    }
    auto pad = [&](int64_t n) { return round_up(n, piece * processes); };
    layout.bucket_begin.push_back(0);
    for (int64_t l = 0; l <= config.L; l++)
        layout.bucket_begin.push_back(layout.bucket_begin.back() + pad(l < config.L ? layer_elems : outside_elems));
    return layout;
}
