// What both trainers do in the same way with their model, a struct GPT2; what differs between
// devices is in the trainers (model_contract.h).
#pragma once
#include <tuple>
#include "llmc/activations.h"
#include "llmc/comm.h"
#include "llmc/fp16.h"
#include "llmc/model_file.h"
#include "llmc/optimizer_state.h"
#include "llmc/options.h"
#include "llmc/plan.h"

// The parameters and activations of one layer, by name: const auto [param, act, act32] =
// of_layer(model, l).
template <class Model>
auto of_layer(Model& model, int64_t layer) {
    return std::make_tuple([&model, layer](int tensor) { return model.param(tensor, layer); },
                           [&model, layer](int a) { return model.act(a, layer); },
                           [&model, layer](int a) { return model.act32(a, layer); });
}

// What layer l reads from the residual stream.
template <class Model>
auto layer_input(Model& model, int64_t l) {
    return l == 0 ? model.act(ENCODED) : model.act(RESIDUAL3, l - 1);
}

// Weights and activations are of one type: float, bf16 or, on GPUs, fp16.
template <class floatX>
constexpr bool is_16_bit() {
    return sizeof(floatX) == 2;
}
template <class floatX>
constexpr const char* type_name() {
    return is_fp16<floatX>() ? "fp16" : is_16_bit<floatX>() ? "bf16" : "fp32";
}
template <class Model>
const char* precision_name(const Model&) {
    return type_name<typename Model::Element>();
}
// The version of the layout in which model files keep weights of this type. It has none for fp16,
// whose numbers are fp32 numbers.
template <class floatX>
constexpr int32_t model_version() {
    return is_16_bit<floatX>() && !is_fp16<floatX>() ? MODEL_VERSION_BF16 : MODEL_VERSION_FP32;
}

// Whether a run with these options keeps fp32 master weights.
template <class floatX>
bool has_master(const Options& o) {
    return is_16_bit<floatX>() && (o.master_weights || is_fp16<floatX>());
}

// The states that the model keeps.
template <class Model>
std::vector<OptimizerState> kept_states(const Model& model) {
    return states_of(OPTIMIZERS[model.optimizer], model.master);
}
template <class Model>
StateLayout state_layout(const Model& model, int state) {
    return state_layout(model.layout, OPTIMIZERS[model.optimizer], state);
}
// Where a state lies. Weights in fp32 are their own master; null if 16-bit weights have none.
template <class Model>
float* state_memory(Model& model, int state) {
    float* const optimizer[] = {model.m, model.v, model.factors};
    if (state != STATE_MASTER) return optimizer[state];
    return is_16_bit<typename Model::Element>() ? model.master : (float*)model.params;
}

// This rank's slice of a bucket's state, on the host: state_layout().slice_elems(bucket) values. In
// ZeRO stage 1 a process has no more than that; in stage 0, and of factors, it has the whole
// bucket.
template <class Model>
const float* state_slice(Model& model, int state, int64_t bucket) {
    const StateLayout layout = state_layout(model, state);
    const int64_t elems = layout.slice_elems(bucket), skip = layout.held(model.slice).parts > 1 ? 0 : comm.rank * elems;
    return to_host(model, state_memory(model, state) + layout.held_begin(model.slice, bucket) + skip, elems);
}
// The reverse: takes elements first to first + elems of a bucket, which any rank may have saved,
// and stores those that this process keeps. In an fp32 model, saved master weights become the
// weights, which every process holds whole. The padding of the buckets may have been another.
template <class Model>
void set_state(Model& model, int state, int64_t bucket, int64_t first, int64_t elems, const float* values) {
    const StateLayout layout = state_layout(model, state);
    const bool in_slices = state != STATE_MASTER || model.master;
    const BucketSlice kept = in_slices ? layout.held(model.slice) : BucketSlice{};
    const int64_t share = layout.bucket_elems(bucket) / kept.parts, begin = share * kept.part;
    const int64_t low = std::max(first, begin), high = std::min(first + elems, begin + share);
    float* memory = state_memory(model, state);
    if (!memory || low >= high) return;
    memory += layout.held_begin(kept, bucket) + low - begin;
    to_device(model, memory, values + low - first, high - low);
}

// One tensor of the weights, of one layer, from fp32 values on the host; and their master copy.
template <class Model>
void set_tensor(Model& model, int tensor, int64_t layer, const float* values) {
    const ParameterLayout& layout = model.layout;
    const int64_t elems = tensor_elems(tensor, layout.config);
    to_device(model, model.param(tensor, layer), values, elems);
    const int64_t bucket = layout.bucket_of(tensor, layer), first = layout.offset_in_bucket[tensor];
    if (model.master) set_state(model, STATE_MASTER, bucket, first, elems, values);
}
// Its elements first..first+elems as fp32 on the host, until the next such call.
template <class Model>
const float* tensor_data(Model& model, int tensor, int64_t layer, int64_t first, int64_t elems) {
    return to_host(model, model.param(tensor, layer) + first, elems);
}

// Bytes that this process sends in a step: gradients to be summed, then gradients (stage 0) or
// updated weights (stage 1) to all; in between Muon's directions and factors (muon.h).
template <class Model>
int64_t wire_bytes_per_step(const Model& model) {
    typedef typename Model::Element floatX;
    const int64_t summed = model.sizes.gradient_bytes(), gathered = model.slice.parts > 1 ? sizeof(floatX) : summed;
    const int64_t all = model.layout.total_elems(), layers = model.layout.bucket_begin[model.layout.config.L];
    const bool shares = model.sizes.orthogonalizes && model.slice.parts > 1;
    const int64_t shared = shares ? layers + state_layout(model, STATE_FACTORS).total_elems() : 0;
    return (all * (summed + gathered) + shared * 8) / comm.processes * (comm.processes - 1);
}
