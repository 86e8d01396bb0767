// What a model after GPT-2 has in memory: its weights, by a table of tensors; what a step computes,
// by a table of activations; and the plan, which is what is allocated.
//
// Tensors lie in the order of the table and of model files, each over all layers before the next.
// Gradients, m and v lie likewise, in fp32, and so does master where weights have 16 bits. Layers
// and tensors that a switch turns off have no elements.
#pragma once
#include <string>
#include <vector>
#include "dev/modern/config.h"
#include "dev/modern/kernels.h"

namespace modern {

// N(0, 0.02); the same over sqrt(2L), for what adds to the residual stream; constants.
enum Init { NORMAL, RESIDUAL, ONE, HALF };

// clang-format off
//  constant   name        rows                            columns                    layers decay  at first
#define MODERN_TENSORS(X) \
  X(WTE,      "wte",      c.Vp,                           c.C,                       1,     true,  NORMAL) \
  X(WPE,      "wpe",      c.positions == LEARNED ? c.maxT : 0, c.C,                  1,     true,  NORMAL) \
  X(NORM1W,   "norm1w",   1,                              c.C,                       c.L,   false, ONE) \
  X(QKVW,     "qkvw",     c.qkv_row(),                    c.C,                       c.L,   true,  NORMAL) \
  X(QW,       "qw",       c.qk_norm,                      c.HS,                      c.L,   false, ONE) \
  X(KW,       "kw",       c.qk_norm,                      c.HS,                      c.L,   false, ONE) \
  X(SHAREW,   "sharew",   c.value_residual,               1,                         c.L,   false, HALF) \
  X(ATTPROJW, "attprojw", c.C,                            c.NH * c.HS,               c.L,   true,  RESIDUAL) \
  X(NORM2W,   "norm2w",   1,                              c.C,                       c.L,   false, ONE) \
  X(FCW,      "fcw",      c.fc_row(),                     c.C,                       c.L,   true,  NORMAL) \
  X(FCPROJW,  "fcprojw",  c.C,                            c.F,                       c.L,   true,  RESIDUAL) \
  X(NORMFW,   "normfw",   1,                              c.C,                       1,     false, ONE) \
  X(HEADW,    "headw",    c.tied ? 0 : c.Vp,              c.C,                       1,     true,  NORMAL)
//  constant   name              type    elements of a layer                   layers, if not each
#define MODERN_ACTIVATIONS(X) \
  X(ENCODED,   "encoded",        FLOATX, rows * c.C,                            1) \
  X(NORM1,     "norm1",          FLOATX, rows * c.C,                            c.L) \
  X(QKV,       "qkv",            FLOATX, rows * c.qkv_row(),                    c.L) \
  X(QK_RAW,    "qk raw",         FLOATX, c.qk_norm * rows * (c.NH + c.NKV) * c.HS, c.L) \
  X(V_RAW,     "v raw",          FLOATX, c.value_residual * rows * c.NKV * c.HS, c.L) \
  X(ATTY,      "atty",           FLOATX, rows * c.NH * c.HS,                    c.L) \
  X(RESIDUAL2, "residual2",      FLOATX, rows * c.C,                            c.L) \
  X(NORM2,     "norm2",          FLOATX, rows * c.C,                            c.L) \
  X(FC,        "fc",             FLOATX, rows * c.fc_row(),                     c.L) \
  X(HIDDEN,    "hidden",         FLOATX, rows * c.F,                            c.L) \
  X(RESIDUAL3, "residual3",      FLOATX, rows * c.C,                            c.L) \
  X(NORMF,     "normf",          FLOATX, rows * c.C,                            1) \
  X(BRANCH,    "branch",         FLOATX, rows * std::max(c.C, c.NH * c.HS),     1) \
  X(DRESIDUAL, "dresidual",      FLOATX, rows * c.C,                            1) \
  X(DWIDE,     "dwide",          FLOATX, rows * std::max(c.F, c.qkv_row()),     1) \
  X(LOGITS,    "logits",         FLOATX, kernels::classifier_chunk_rows(rows) * c.Vp, 1) \
  X(CAPPED,    "capped logits",  FLOATX, c.softcap > 0 ? kernels::classifier_chunk_rows(rows) * c.Vp : 0, 1) \
  X(ZEROS,     "no bias",        FLOATX, c.norm == LAYER ? c.C : 0,             1) \
  X(RSTD1,     "rstd1",          FP32,   rows,                                  c.L) \
  X(RSTD2,     "rstd2",          FP32,   rows,                                  c.L) \
  X(RSTDF,     "rstdf",          FP32,   rows,                                  1) \
  X(MEAN1,     "mean1",          FP32,   c.norm == LAYER ? rows : 0,            c.L) \
  X(MEAN2,     "mean2",          FP32,   c.norm == LAYER ? rows : 0,            c.L) \
  X(MEANF,     "meanf",          FP32,   c.norm == LAYER ? rows : 0,            1) \
  X(QK_RSTD,   "qk rstd",        FP32,   c.qk_norm * rows * (c.NH + c.NKV),     c.L) \
  X(DFIRST,    "dfirst",         FP32,   c.value_residual * rows * c.NKV * c.HS, 1) \
  X(LSE,       "lse",            FP32,   rows * c.NH,                           c.L) \
  X(ROPE,      "rope",           FP32,   c.positions == ROTARY ? T * c.HS : 0,  1) \
  X(LOSSES,    "losses",         FP32,   rows,                                  1)
#define CONSTANT(constant, ...) constant,
enum Tensor { MODERN_TENSORS(CONSTANT) TENSORS };
enum Activation { MODERN_ACTIVATIONS(CONSTANT) ACTIVATIONS };
#undef CONSTANT
// clang-format on
enum Type { FLOATX, FP32 };

struct TensorShape {
    const char* name;
    int64_t rows, cols, layers;
    bool decayed;
    Init init;
    int64_t elems() const { return rows * cols; }  // of a layer
};
inline TensorShape shape_of(int tensor, const Config& c) {
#define ROW(constant, name, rows, cols, layers, decayed, init) {name, rows, cols, layers, decayed, init},
    const TensorShape table[] = {MODERN_TENSORS(ROW)};
#undef ROW
    return table[tensor];
}
struct ActivationShape {
    const char* name;
    Type type;
    int64_t elems, layers;
};
inline ActivationShape shape_of_activation(int activation, const Config& c, int64_t B, int64_t T) {
    const int64_t rows = B * T;
#define ROW(constant, name, type, elems, layers) {name, type, elems, layers},
    const ActivationShape table[] = {MODERN_ACTIVATIONS(ROW)};
#undef ROW
    return table[activation];
}

struct Model {
    Config config;
    int64_t B = 0, T = 0;
    bool in_bf16 = false;
    int64_t weights = 0, begin[TENSORS] = {};         // elements of all tensors, and where each begins
    int64_t acts_bytes = 0, first[ACTIVATIONS] = {};  // bytes likewise
    char *params = nullptr, *acts = nullptr;
    float *grads = nullptr, *m = nullptr, *v = nullptr, *master = nullptr;
    Optimizer optimizer = ADAMW;  // or MUON
    void* orthogonal = nullptr;   // Muon's scratch memory
    int64_t updates = 0;
    double loss_sum = 0;
    int64_t allocated_bytes = 0;
    char* cache = nullptr;  // in generation: of each layer keys and values (NKV,cache_T,HS); scores (NH,cache_T)
    int64_t cache_T = 0;

    int64_t weight_bytes() const { return in_bf16 ? 2 : 4; }
    int64_t at(int tensor, int64_t l) const { return begin[tensor] + l * shape_of(tensor, config).elems(); }
    template <class floatX>
    floatX* param(int tensor, int64_t l = 0) const {
        return (floatX*)params + at(tensor, l);
    }
    float* grad(int tensor, int64_t l = 0) const { return grads + at(tensor, l); }
    template <class type>
    type* act(int activation, int64_t l = 0) const {
        const ActivationShape shape = shape_of_activation(activation, config, B, T);
        const int64_t layer = shape.layers == 1 ? 0 : l;
        return (type*)(acts + first[activation]) + layer * shape.elems;
    }
    Heads heads() const { return {config.NH, config.NKV, config.HS}; }
    int64_t keys_elems() const { return config.NKV * cache_T * config.HS; }  // of a layer
    template <class floatX>
    floatX* keys(int64_t l) const {
        return (floatX*)cache + 2 * l * keys_elems();
    }
    template <class floatX>
    floatX* values(int64_t l) const {
        return keys<floatX>(l) + keys_elems();
    }
    float* scores() const { return (float*)(cache + 2 * config.L * keys_elems() * weight_bytes()); }
    int64_t cache_bytes() const { return 2 * config.L * keys_elems() * weight_bytes() + config.NH * cache_T * 4; }
};
inline Model model_of(const Config& c, int64_t B, int64_t T, bool in_bf16, Optimizer optimizer = ADAMW) {
    Model model{c, B, T, in_bf16};
    model.optimizer = optimizer;
    for (int i = 0; i < TENSORS; i++) {
        model.begin[i] = model.weights;
        model.weights += shape_of(i, c).elems() * shape_of(i, c).layers;
    }
    for (int i = 0; i < ACTIVATIONS; i++) {
        const ActivationShape shape = shape_of_activation(i, c, B, T);
        model.first[i] = model.acts_bytes;
        model.acts_bytes +=
            round_up(shape.elems * shape.layers * (shape.type == FP32 || !in_bf16 ? 4 : 2), (int64_t)64);
    }
    return model;
}

// What lies outside the layers; and what Muon updates.
inline bool is_outside(int tensor) { return tensor == WTE || tensor == WPE || tensor == NORMFW || tensor == HEADW; }
inline bool is_layer_matrix(int tensor, const Config& c) { return !is_outside(tensor) && shape_of(tensor, c).rows > 1; }
// The elements of Muon's scratch memory, of the largest matrix; and of device.transposed.
inline int64_t orthogonal_elems(const Model& model) {
    int64_t most = 0;
    for (int i = 0; i < TENSORS && model.optimizer == MUON; i++) {
        const TensorShape shape = shape_of(i, model.config);
        const int64_t least = std::min(shape.rows, shape.cols);
        if (is_layer_matrix(i, model.config)) most = std::max(most, shape.elems() + 2 * least * least);
    }
    return most;
}
template <class floatX>
int64_t orthogonal_transposed_elems(const Model& model) {
    int64_t most = 0;
    for (int i = 0; i < TENSORS && model.optimizer == MUON; i++) {
        const TensorShape shape = shape_of(i, model.config);
        if (is_layer_matrix(i, model.config))
            most = std::max<int64_t>(most, matmul_transposed_elems<floatX>(shape.rows, shape.cols));
    }
    return most;
}

// A part of the plan, and where its memory will be.
struct PlanRow {
    const char* name;
    int64_t bytes;
    void** place;
};
// What a step needs beside the kernels' scratch memory.
inline std::vector<PlanRow> plan_rows(Model& model) {
    const int64_t n = model.weights;
    return {{"weights", n * model.weight_bytes(), (void**)&model.params},
            {"gradients", n * 4, (void**)&model.grads},
            {"m", n * 4, (void**)&model.m},
            {"v", n * 4, (void**)&model.v},
            {"master", model.in_bf16 ? n * 4 : 0, (void**)&model.master},
            {"orthogonal", orthogonal_elems(model) * model.weight_bytes(), &model.orthogonal},
            {"activations", model.acts_bytes, (void**)&model.acts},
            {"cache", model.cache_bytes(), (void**)&model.cache}};
}
// Sets the sizes of the kernels' scratch memory, and returns its bytes.
template <class floatX>
int64_t settle_scratch(const Model& model) {
    const Config& c = model.config;
    const int64_t rows = model.B * model.T, widest = std::max({c.qkv_row(), c.fc_row(), c.C});
    device.unit = sizeof(floatX) == 2 ? best_matrix_unit() : UNIT_PORTABLE;
    device.scratch_elems = std::max<size_t>(thread_scratch_elems<floatX>(model.T, c.HS),
                                            round_up(std::max(c.C, sizeof(floatX) == 2 ? c.V : 0), (int64_t)16));
    device.transposed_elems =
        std::max({matmul_transposed_elems<floatX>(rows, widest), classifier_transposed_elems<floatX>(rows, c.Vp),
                  orthogonal_transposed_elems<floatX>(model)});
    return thread_scratch_bytes() + transposed_bytes();
}
template <class floatX>
void allocate(Model& model) {
    for (const PlanRow& row : plan_rows(model))
        if (row.bytes > 0) *row.place = map_memory(row.bytes), model.allocated_bytes += row.bytes;
    model.allocated_bytes += settle_scratch<floatX>(model);
    allocate_scratch();
    if (model.config.positions == ROTARY)
        rope_table(model.act<float>(ROPE), model.T, model.config.HS, model.config.theta);
}

// A tensor of a layer from fp32 values, rounded where weights have 16 bits.
template <class floatX>
void set_tensor(Model& model, int tensor, int64_t l, const float* values) {
    const int64_t n = shape_of(tensor, model.config).elems();
    copy_values(model.param<floatX>(tensor, l), values, n);
    if (model.master) std::copy_n(values, n, model.master + model.at(tensor, l));
}
// The first weights, drawn as llmc/model/initial_weights.h does: first what is outside the layers,
// then layer by layer. Rows of the padded vocabulary are 0.
template <class floatX>
void draw_weights(Model& model, uint64_t seed) {
    const Config& c = model.config;
    MersenneTwister rng(seed);
    std::vector<float> values;
    for (int64_t layer = -1; layer < c.L; layer++)
        for (int i = 0; i < TENSORS; i++) {
            const TensorShape shape = shape_of(i, c);
            if (is_outside(i) != (layer < 0)) continue;
            values.assign(shape.elems(), shape.init == ONE ? 1.0f : shape.init == HALF ? 0.5f : 0.0f);
            const bool padded = i == WTE || (i == HEADW && !c.tied);
            const int64_t drawn = padded ? c.V * c.C : shape.elems();
            const float std = shape.init == NORMAL ? 0.02f : (float)(0.02 / std::sqrt(2.0 * c.L));
            if (shape.init == NORMAL || shape.init == RESIDUAL) normal_fill(rng, values.data(), drawn, std);
            set_tensor<floatX>(model, i, std::max<int64_t>(layer, 0), values.data());
        }
}

}  // namespace modern
