// What both trainers do in the same way with their model, a struct GPT2; what differs between
// devices is in the trainers (model_contract.h).
#pragma once
#include <tuple>
#include "llmc/gpt2/activations.h"
#include "llmc/comm/comm.h"
#include "llmc/base/fp16.h"
#include "llmc/checkpoint/model_file.h"
#include "llmc/optim/optimizer_state.h"
#include "llmc/options/options.h"
#include "llmc/gpt2/tensor_parts.h"

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
void* state_memory(Model& model, int state) {
    void* const optimizer[] = {model.m, model.v, model.factors};
    if (state != STATE_MASTER) return optimizer[state];
    return is_16_bit<typename Model::Element>() ? model.master : (float*)model.params;
}

// Of blocks that follow each other, `from` or `to` the first: the values of n elements; and the
// reverse, where the values are those from element `first` on.
template <class Model>
const float* get_blocks(Model& model, bool is_signed, const StateBlock* from, int64_t n) {
    std::vector<StateBlock> blocks(blocks_of(n));
    copy_out(model, blocks.data(), from, (int64_t)(blocks.size() * sizeof(StateBlock)));
    decode_blocks(model.host_values, blocks, is_signed);
    return model.host_values.data();
}
template <class Model>
void set_blocks(Model& model, bool is_signed, StateBlock* to, int64_t first, int64_t n, const float* values) {
    const int64_t begin = first / STATE_BLOCK_ELEMS, bytes = (blocks_of(first + n) - begin) * sizeof(StateBlock);
    std::vector<StateBlock> blocks(bytes / sizeof(StateBlock));
    std::vector<float> all;
    copy_out(model, blocks.data(), to + begin, bytes);
    decode_blocks(all, blocks, is_signed);
    std::copy(values, values + n, all.begin() + first - begin * STATE_BLOCK_ELEMS);
    encode_blocks(blocks, all, is_signed);
    copy_in(model, to + begin, blocks.data(), bytes);
}

// State is read, written and converted in pieces, so that a large bucket takes no memory for that.
constexpr int64_t STATE_PIECE_ELEMS = 256 * STATE_BLOCK_ELEMS;

// Of this rank's slice of a bucket's state, state_layout().slice_elems(bucket) values, n from
// `first` on, on the host until the next such call; first is a multiple of STATE_PIECE_ELEMS. In
// ZeRO stage 1 a process has no more than its slice; in stage 0, and of factors, it has the whole
// bucket.
template <class Model>
const float* state_piece(Model& model, int state, int64_t bucket, int64_t first, int64_t n) {
    const StateLayout layout = state_layout(model, state);
    const int64_t elems = layout.slice_elems(bucket), skip = layout.held(model.slice).parts > 1 ? 0 : comm.rank * elems;
    const int64_t at = layout.held_begin(model.slice, bucket) + skip + first;
    void* const memory = state_memory(model, state);
    if (layout.kept == KEEP_8BIT) {
        const BlockMap map = block_map(model.layout, model.slice);
        const int64_t slice = (map.slices > 1 ? comm.rank : 0) * map.slice_blocks(bucket);
        const int64_t block = map.first_block(bucket) + slice + first / STATE_BLOCK_ELEMS;
        return get_blocks(model, state == STATE_M, (StateBlock*)memory + block, n);
    }
    if (layout.kept == KEEP_BF16) return to_host(model, (bf16*)memory + at, n);
    return to_host(model, (float*)memory + at, n);
}
// Calls each(first, n) for the pieces of a slice of so many elements.
template <class Each>
void for_each_state_piece(int64_t elems, Each each) {
    for (int64_t first = 0; first < elems; first += STATE_PIECE_ELEMS)
        each(first, std::min(STATE_PIECE_ELEMS, elems - first));
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
    void* const memory = state_memory(model, state);
    if (!memory || low >= high) return;
    values += low - first;
    const int64_t at = layout.held_begin(kept, bucket) + low - begin;
    if (layout.kept == KEEP_BF16) return to_device(model, (bf16*)memory + at, values, high - low);
    if (layout.kept != KEEP_8BIT) return to_device(model, (float*)memory + at, values, high - low);
    const BlockMap map = block_map(model.layout, kept);
    const int64_t slice_elems = model.layout.slice_elems(bucket);
    StateBlock* blocks = (StateBlock*)memory + map.first_block(bucket);
    for (int64_t i = low - begin, end = high - begin; i < end;) {  // slice by slice
        const int64_t slice = i / slice_elems, n = std::min(end, (slice + 1) * slice_elems) - i;
        set_blocks(model, state == STATE_M, blocks + slice * map.slice_blocks(bucket), i % slice_elems, n, values);
        i += n, values += n;
    }
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
// updated weights (stage 1) to all. In between Muon shares directions and factors in slices
// (muon.h); other factors are renewed from what every process has collected for all of them
// (factors.h). Single numbers count where the trace has them: on a GPU the sums of the step
// (global_norm.cuh) and, in stage 1, those of the tensors (directions.cuh).
template <class Model>
int64_t wire_bytes_per_step(const Model& model) {
    typedef typename Model::Element floatX;
    const Sizes& s = model.sizes;
    const bool in_slices = model.slice.parts > 1;
    const StateLayout factors = state_layout(model, STATE_FACTORS);
    const int64_t summed = s.gradient_bytes(), gathered = in_slices ? sizeof(floatX) : summed;
    const int64_t all = model.layout.total_elems(), layers = model.layout.bucket_begin[s.config.L];
    const int64_t shared = s.orthogonalizes ? layers + (in_slices ? factors.total_elems() : 0) : 0;
    const int64_t collected = factors.kept == KEEP_FACTORED ? factors.total_elems() : 0;
    const int64_t sums = s.gpu ? 1 + (in_slices && s.directions ? all_tensors(s.config) : 0) : 0;
    const int64_t slices = (all * (summed + gathered) + shared * 8) / comm.processes;
    return (slices + collected * 4 + sums * (int64_t)sizeof(DirectionSums)) * (comm.processes - 1);
}
