// The one table of GPT-2's parameters. Sizes, offsets in memory, initial values, weight decay,
// slices, the order on disk and the names in tests all come from it. Adapters (--lora) have a table
// of their own behind it.
//
// In memory the parameters of one layer lie together in one bucket; a last bucket holds what is
// outside the layers. So a layer's gradients can travel as one message while the backward pass of
// the next layer computes, and each of P processes can own one slice, a P-th, of every bucket.
// Tensors begin at multiples of 16 elements, 64 bytes of fp32; buckets are padded to a multiple of
// 16 P elements. Padding is 0 and stays 0. On disk the order is by tensor, all layers of one tensor
// together (model_file.h).
//
// Buckets hold what trains. A tensor that does not (--train, --lora) lies behind all buckets, in
// memory of the weights alone: it has no gradient and no state, and nothing of it travels.
#pragma once
#include <algorithm>
#include <array>
#include <vector>
#include "llmc/gpt2/config.h"

// The last four: the rank of the adapters of a matrix, 0 if it has none.
enum Dimension { DIM_1, DIM_C, DIM_3C, DIM_4C, DIM_VP, DIM_MAXT, RANK_QKV, RANK_ATTPROJ, RANK_FC, RANK_FCPROJ };

// INIT_NORMAL: standard deviation 0.02. INIT_NORMAL_RESIDUAL: 0.02 / sqrt(2L), for the projections
// that add to the residual stream (Radford et al. 2019, section 2.3). INIT_UNIFORM: between -1 /
// sqrt(cols) and 1 / sqrt(cols), as PyTorch's linear layers.
enum InitialValue { INIT_NORMAL, INIT_NORMAL_RESIDUAL, INIT_ZERO, INIT_ONE, INIT_UNIFORM };

struct TensorInfo {
    const char* name;
    const char* hf_name;  // in Hugging Face's GPT2LMHeadModel, %d the layer; its Conv1D weights are transposed
    Dimension rows, cols;
    bool per_layer;  // one in each layer, or one in the model
    bool decayed;    // by weight decay: matrices are, biases and gains are not
    InitialValue init;
};

// Each line makes both the enum's constant and the table's row.
// clang-format off
//  constant    name        name in Hugging Face's model           rows      cols   layer? decay? initial values
#define TENSOR_TABLE(X) \
  X(WTE,      "wte",      "transformer.wte.weight",              DIM_VP,   DIM_C,  false, true,  INIT_NORMAL) \
  X(WPE,      "wpe",      "transformer.wpe.weight",              DIM_MAXT, DIM_C,  false, true,  INIT_NORMAL) \
  X(LN1W,     "ln1w",     "transformer.h.%d.ln_1.weight",        DIM_1,    DIM_C,  true,  false, INIT_ONE) \
  X(LN1B,     "ln1b",     "transformer.h.%d.ln_1.bias",          DIM_1,    DIM_C,  true,  false, INIT_ZERO) \
  X(QKVW,     "qkvw",     "transformer.h.%d.attn.c_attn.weight", DIM_3C,   DIM_C,  true,  true,  INIT_NORMAL) \
  X(QKVB,     "qkvb",     "transformer.h.%d.attn.c_attn.bias",   DIM_1,    DIM_3C, true,  false, INIT_ZERO) \
  X(ATTPROJW, "attprojw", "transformer.h.%d.attn.c_proj.weight", DIM_C,    DIM_C,  true,  true,  INIT_NORMAL_RESIDUAL) \
  X(ATTPROJB, "attprojb", "transformer.h.%d.attn.c_proj.bias",   DIM_1,    DIM_C,  true,  false, INIT_ZERO) \
  X(LN2W,     "ln2w",     "transformer.h.%d.ln_2.weight",        DIM_1,    DIM_C,  true,  false, INIT_ONE) \
  X(LN2B,     "ln2b",     "transformer.h.%d.ln_2.bias",          DIM_1,    DIM_C,  true,  false, INIT_ZERO) \
  X(FCW,      "fcw",      "transformer.h.%d.mlp.c_fc.weight",    DIM_4C,   DIM_C,  true,  true,  INIT_NORMAL) \
  X(FCB,      "fcb",      "transformer.h.%d.mlp.c_fc.bias",      DIM_1,    DIM_4C, true,  false, INIT_ZERO) \
  X(FCPROJW,  "fcprojw",  "transformer.h.%d.mlp.c_proj.weight",  DIM_C,    DIM_4C, true,  true,  INIT_NORMAL_RESIDUAL) \
  X(FCPROJB,  "fcprojb",  "transformer.h.%d.mlp.c_proj.bias",    DIM_1,    DIM_C,  true,  false, INIT_ZERO) \
  X(LNFW,     "lnfw",     "transformer.ln_f.weight",             DIM_1,    DIM_C,  false, false, INIT_ONE) \
  X(LNFB,     "lnfb",     "transformer.ln_f.bias",               DIM_1,    DIM_C,  false, false, INIT_ZERO)
// LoRA's A, and B transposed (cpu/low_rank.h); names of PEFT.
#define ADAPTER_TABLE(X) \
  X(QKV_A,    "qkv_a",    PEFT "attn.c_attn.lora_A.weight",      RANK_QKV,     DIM_C,  true, true, INIT_UNIFORM) \
  X(QKV_B,    "qkv_b",    PEFT "attn.c_attn.lora_B.weight",      RANK_QKV,     DIM_3C, true, true, INIT_ZERO) \
  X(ATTPROJ_A,"attproj_a",PEFT "attn.c_proj.lora_A.weight",      RANK_ATTPROJ, DIM_C,  true, true, INIT_UNIFORM) \
  X(ATTPROJ_B,"attproj_b",PEFT "attn.c_proj.lora_B.weight",      RANK_ATTPROJ, DIM_C,  true, true, INIT_ZERO) \
  X(FC_A,     "fc_a",     PEFT "mlp.c_fc.lora_A.weight",         RANK_FC,      DIM_C,  true, true, INIT_UNIFORM) \
  X(FC_B,     "fc_b",     PEFT "mlp.c_fc.lora_B.weight",         RANK_FC,      DIM_4C, true, true, INIT_ZERO) \
  X(FCPROJ_A, "fcproj_a", PEFT "mlp.c_proj.lora_A.weight",       RANK_FCPROJ,  DIM_4C, true, true, INIT_UNIFORM) \
  X(FCPROJ_B, "fcproj_b", PEFT "mlp.c_proj.lora_B.weight",       RANK_FCPROJ,  DIM_C,  true, true, INIT_ZERO)
#define PEFT "base_model.model.transformer.h.%d."
// clang-format on
#define CONSTANT_OF_ROW(constant, ...) constant,
#define INFO_OF_ROW(constant, ...) {__VA_ARGS__},
enum Tensor {
    TENSOR_TABLE(CONSTANT_OF_ROW) NUM_TENSORS,  // of GPT-2; adapters follow
    LAST_OF_GPT2 = NUM_TENSORS - 1,
    ADAPTER_TABLE(CONSTANT_OF_ROW) ALL_TENSORS
};
constexpr TensorInfo TENSORS[] = {TENSOR_TABLE(INFO_OF_ROW) ADAPTER_TABLE(INFO_OF_ROW)};
#undef PEFT
#undef CONSTANT_OF_ROW
#undef INFO_OF_ROW

// The adapters of a matrix of the layers: A; B is the next.
constexpr int adapter_of(int matrix) {
    return matrix == QKVW ? QKV_A : matrix == ATTPROJW ? ATTPROJ_A : matrix == FCW ? FC_A : FCPROJ_A;
}
inline bool is_adapted(int matrix, const GPT2Config& c) {
    return c.lora.rank > 0 && matrix != WTE && (c.lora.on >> (adapter_of(matrix) - NUM_TENSORS) / 2 & 1) != 0;
}

inline int64_t dimension(Dimension d, const GPT2Config& c) {
    const auto rank = [&c](int matrix) { return is_adapted(matrix, c) ? c.lora.rank : 0; };
    switch (d) {
        case DIM_C: return c.C;
        case DIM_3C: return 3 * c.C;
        case DIM_4C: return 4 * c.C;
        case DIM_VP: return c.Vp;
        case DIM_MAXT: return c.maxT;
        case RANK_QKV: return rank(QKVW);
        case RANK_ATTPROJ: return rank(ATTPROJW);
        case RANK_FC: return rank(FCW);
        case RANK_FCPROJ: return rank(FCPROJW);
        default: return 1;
    }
}

inline bool is_layer_matrix(int tensor) { return TENSORS[tensor].per_layer && TENSORS[tensor].rows != DIM_1; }
// Whether inputs are multiplied with it.
inline bool is_product_matrix(int tensor) { return tensor == WTE || (tensor < NUM_TENSORS && is_layer_matrix(tensor)); }

// Elements of a tensor, of one layer if it is per layer.
inline int64_t tensor_elems(int tensor, const GPT2Config& c) {
    return dimension(TENSORS[tensor].rows, c) * dimension(TENSORS[tensor].cols, c);
}
// How many of a tensor there are.
inline int64_t tensor_layers(int tensor, const GPT2Config& c) {
    if (tensor >= NUM_TENSORS && tensor_elems(tensor, c) == 0) return 0;
    return TENSORS[tensor].per_layer ? c.L : 1;
}
// Whether a tensor of one layer trains.
inline bool trains(const GPT2Config& c, int tensor, int64_t layer = 0) {
    return c.trained.empty() || (c.trained[TENSORS[tensor].per_layer ? layer : c.L] >> tensor & 1) != 0;
}

// Parameters of the model as papers count them: without padding.
inline int64_t parameter_count(const GPT2Config& c) {
    int64_t total = -(c.Vp - c.V) * c.C;
    for (int i = 0; i < NUM_TENSORS; i++) total += tensor_elems(i, c) * tensor_layers(i, c);
    return total;
}

// Where each parameter lies, in elements. Bucket l < L is layer l; bucket L is what is outside the
// layers.
struct ParameterLayout {
    GPT2Config config;
    int64_t processes = 1;
    std::vector<int64_t> bucket_begin;  // L + 2 entries; the last is the number of all elements that train
    std::vector<std::array<int64_t, ALL_TENSORS>> offsets;  // from the beginning of a bucket to each of its tensors
    int64_t frozen_elems = 0;                               // of what does not train, behind the buckets

    int64_t buckets() const { return config.L + 1; }
    int64_t total_elems() const { return bucket_begin.back(); }
    int64_t bucket_of(int tensor, int64_t layer) const { return TENSORS[tensor].per_layer ? layer : config.L; }
    int64_t offset_in_bucket(int tensor, int64_t layer = 0) const { return offsets[bucket_of(tensor, layer)][tensor]; }
    int64_t offset(int tensor, int64_t layer = 0) const {
        return bucket_begin[bucket_of(tensor, layer)] + offset_in_bucket(tensor, layer);
    }
    // The lowest layer that has something to train, itself or below it: -1 for the embeddings, L if
    // there is none.
    int64_t lowest_trained() const {
        if (trains(config, WTE) || trains(config, WPE)) return -1;
        return std::upper_bound(bucket_begin.begin(), bucket_begin.end() - 1, 0) - bucket_begin.begin() - 1;
    }
    // Whether the same tensors train in all layers.
    bool layers_alike() const {
        const auto& trained = config.trained;
        return trained.empty() ||
               std::all_of(trained.begin(), trained.end() - 1, [&](uint32_t t) { return t == trained[0]; });
    }
    // Elements of the largest bucket of a layer; and of what comes before wpe in the last bucket.
    int64_t most_layer_elems() const {
        int64_t most = 0;
        for (int64_t l = 0; l < config.L; l++) most = std::max(most, bucket_elems(l));
        return most;
    }
    int64_t wte_elems() const { return trains(config, WTE) ? round_up(tensor_elems(WTE, config), 16) : 0; }
    // Whether the backward pass of layer l goes on to ln1 and to what is below.
    bool goes_below(int64_t l) const {
        return l > lowest_trained() || trains(config, LN1W, l) || trains(config, LN1B, l);
    }
    int64_t bucket_elems(int64_t bucket) const { return bucket_begin[bucket + 1] - bucket_begin[bucket]; }
    int64_t slice_elems(int64_t bucket) const { return bucket_elems(bucket) / processes; }
};

struct ElementRange {
    int64_t low, high;
};
// What one process updates of every bucket, and keeps optimizer state for: the whole bucket, or
// slice number `part` of `parts` (ZeRO stage 1; Rajbhandari et al. 2020, arXiv:1910.02054). The
// state of all buckets lies bucket by bucket, without gaps.
struct BucketSlice {
    int64_t parts = 1, part = 0;
    // The slice's first element, and its end, counted from the beginning of the bucket.
    int64_t begin(const ParameterLayout& layout, int64_t bucket) const {
        return layout.bucket_elems(bucket) / parts * part;
    }
    int64_t end(const ParameterLayout& layout, int64_t bucket) const {
        return layout.bucket_elems(bucket) / parts * (part + 1);
    }
    // Which of n elements of a bucket, from its element `first` on, are in the slice, counted
    // from `first`; none if low >= high.
    ElementRange within(const ParameterLayout& layout, int64_t bucket, int64_t first, int64_t n) const {
        return {std::max<int64_t>(0, begin(layout, bucket) - first), std::min(n, end(layout, bucket) - first)};
    }
    int64_t state_elems(const ParameterLayout& layout) const { return layout.total_elems() / parts; }
    int64_t state_begin(const ParameterLayout& layout, int64_t bucket) const {
        return layout.bucket_begin[bucket] / parts;
    }
};

// in_codes: the matrices lie elsewhere, as codes (adapt/weight_codes.h), and take no room here.
inline ParameterLayout parameter_layout(const GPT2Config& config, int64_t processes, bool in_codes = false) {
    const int64_t piece = 16;  // 64 bytes of fp32
    ParameterLayout layout;
    layout.config = config, layout.processes = processes;
    layout.offsets.resize(config.L + 1);
    layout.bucket_begin.push_back(0);
    // Calls each(bucket, tensor, elems in memory) for all tensors.
    const auto for_each_tensor = [&](auto each) {
        for (int64_t b = 0; b <= config.L; b++)
            for (int i = 0; i < ALL_TENSORS; i++)
                if (TENSORS[i].per_layer == (b < config.L))
                    each(b, i, in_codes && is_product_matrix(i) ? 0 : round_up(tensor_elems(i, config), piece));
    };
    std::vector<int64_t> bucket_elems(config.L + 1);
    for_each_tensor([&](int64_t b, int tensor, int64_t elems) {
        layout.offsets[b][tensor] = bucket_elems[b];
        if (trains(config, tensor, b)) bucket_elems[b] += elems;
    });
    for (int64_t elems : bucket_elems)
        layout.bucket_begin.push_back(layout.bucket_begin.back() + round_up(elems, piece * processes));
    for_each_tensor([&](int64_t b, int tensor, int64_t elems) {
        if (trains(config, tensor, b)) return;
        layout.offsets[b][tensor] = layout.total_elems() + layout.frozen_elems - layout.bucket_begin[b];
        layout.frozen_elems += elems;
    });
    return layout;
}
