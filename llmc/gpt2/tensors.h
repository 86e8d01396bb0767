// The one table of GPT-2's parameters. Sizes, offsets in memory, initial values, weight decay,
// slices, the order on disk and the names in tests all come from it.
//
// In memory the parameters of one layer lie together in one bucket; a last bucket holds what is
// outside the layers. So a layer's gradients can travel as one message while the backward pass of
// the next layer computes, and each of P processes can own one slice, a P-th, of every bucket.
// Tensors begin at multiples of 16 elements, 64 bytes of fp32; buckets are padded to a multiple of
// 16 P elements. Padding is 0 and stays 0. On disk the order is by tensor, all layers of one tensor
// together (model_file.h).
#pragma once
#include <vector>
#include "llmc/gpt2/config.h"

enum Dimension { DIM_1, DIM_C, DIM_3C, DIM_4C, DIM_VP, DIM_MAXT };

// INIT_NORMAL: standard deviation 0.02. INIT_NORMAL_RESIDUAL: 0.02 / sqrt(2L), for the projections
// that add to the residual stream (Radford et al. 2019, section 2.3).
enum InitialValue { INIT_NORMAL, INIT_NORMAL_RESIDUAL, INIT_ZERO, INIT_ONE };

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
// clang-format on
#define CONSTANT_OF_ROW(constant, ...) constant,
#define INFO_OF_ROW(constant, ...) {__VA_ARGS__},
enum Tensor { TENSOR_TABLE(CONSTANT_OF_ROW) NUM_TENSORS };
constexpr TensorInfo TENSORS[] = {TENSOR_TABLE(INFO_OF_ROW)};
#undef CONSTANT_OF_ROW
#undef INFO_OF_ROW

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

inline bool is_layer_matrix(int tensor) { return TENSORS[tensor].per_layer && TENSORS[tensor].rows != DIM_1; }
// Whether inputs are multiplied with it.
inline bool is_product_matrix(int tensor) { return tensor == WTE || is_layer_matrix(tensor); }

// Elements of a tensor, of one layer if it is per layer.
inline int64_t tensor_elems(int tensor, const GPT2Config& c) {
    return dimension(TENSORS[tensor].rows, c) * dimension(TENSORS[tensor].cols, c);
}
inline int64_t tensor_layers(int tensor, const GPT2Config& c) { return TENSORS[tensor].per_layer ? c.L : 1; }

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
    int64_t offset_in_bucket[NUM_TENSORS];
    std::vector<int64_t> bucket_begin;  // L + 2 entries; the last is the number of all elements

    int64_t buckets() const { return config.L + 1; }
    int64_t total_elems() const { return bucket_begin.back(); }
    int64_t bucket_of(int tensor, int64_t layer) const { return TENSORS[tensor].per_layer ? layer : config.L; }
    int64_t offset(int tensor, int64_t layer = 0) const {
        return bucket_begin[bucket_of(tensor, layer)] + offset_in_bucket[tensor];
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
    int64_t layer_elems = 0, outside_elems = 0;
    for (int i = 0; i < NUM_TENSORS; i++) {
        int64_t& at = TENSORS[i].per_layer ? layer_elems : outside_elems;
        layout.offset_in_bucket[i] = at;
        at += in_codes && is_product_matrix(i) ? 0 : round_up(tensor_elems(i, config), piece);
    }
    auto pad = [&](int64_t n) { return round_up(n, piece * processes); };
    layout.bucket_begin.push_back(0);
    for (int64_t l = 0; l <= config.L; l++)
        layout.bucket_begin.push_back(layout.bucket_begin.back() + pad(l < config.L ? layer_elems : outside_elems));
    return layout;
}
