// Weights and optimizer state of a model as fp32 numbers on the host, to be read, set, saved and
// looked at, whatever format they have and whichever device they lie on.
#pragma once
#include "llmc/base/mapped_file.h"
#include "llmc/comm/comm.h"
#include "llmc/gpt2/tensor_parts.h"
#include "llmc/model/model.h"

// What a process keeps at a ZeRO stage (cpu/shard.h). A single process keeps everything.
inline void settle_stage(GPT2& model, const Sizes& s, int64_t stage) {
    const CommGroup& shards = comm.shards;
    const bool several = shards.processes > 1;
    if (stage >= 1) model.slice = {shards.processes, shards.rank};
    model.weight_places = {several && stage >= 3, shards.rank},
    model.gradient_places = {several && stage >= 2, shards.rank};
    if (!model.weight_places.sharded || !s.training) return;
    const ParameterLayout& layout = model.layout;
    int64_t bytes = layout.bucket_elems(layout.config.L) * s.floatX_bytes;  // of the embeddings
    const int64_t layers_elems = BucketPlaces::LAYERS * layout.bucket_elems(0);
    model.weight_places.borrows = true;
    if (!s.gpu && layout.frozen_elems == 0 && bytes > layers_elems * s.gradient_bytes()) {
        model.weight_places.borrows_both = model.gradient_places.places_first = true;
        bytes = std::max<int64_t>(0, bytes - layers_elems * s.floatX_bytes);
    }
    model.gradient_places.lent_elems = ceil_div(bytes, s.gradient_bytes());
}
// The embeddings' place; to be called when weights and gradients have their memory.
inline void borrow_place(GPT2& model) {
    if (!model.weight_places.borrows) return;
    char* const grads = model.grad_sums ? (char*)model.grad_sums : (char*)model.grads;
    model.borrowed = model.weight_places.borrows_both
                         ? (char*)model.params + model.weight_places.whole(model.layout, 0) * model.sizes.floatX_bytes
                         : grads + model.gradient_places.whole(model.layout, 0) * model.sizes.gradient_bytes();
}

// Whether a run with these options keeps fp32 master weights.
inline bool has_master(NumberFormat format, const Options& o) {
    return format == FORMAT_FP16 || (format == FORMAT_BF16 && o.master_weights);
}

constexpr int64_t CONVERTED_ELEMS = 1 << 16;  // at a time

// n values at `from` in the device's memory, until the next such call: where they lie, if that is
// possible, else in model.host_values.
template <class T>
const float* converted(GPT2& model, const void* from, int64_t n) {
    std::vector<T> piece;
    model.host_values.resize(n);
    for (int64_t first = 0; first < n; first += CONVERTED_ELEMS) {
        piece.resize(std::min(CONVERTED_ELEMS, n - first));
        model.backend->copy_out(model, piece.data(), (const T*)from + first, (int64_t)(piece.size() * sizeof(T)));
        std::copy(piece.begin(), piece.end(), model.host_values.begin() + first);
    }
    return model.host_values.data();
}
inline const float* to_host(GPT2& model, NumberFormat format, const void* from, int64_t n) {
    if (format == FORMAT_FP32 && !model.sizes.gpu) return (const float*)from;
    if (format == FORMAT_BF16) return converted<bf16>(model, from, n);
    return format == FORMAT_FP16 ? converted<fp16>(model, from, n) : converted<float>(model, from, n);
}
// The reverse: n values to `to`, rounded to its format.
template <class T>
void convert(GPT2& model, void* to, const float* values, int64_t n) {
    for (int64_t first = 0; first < n; first += CONVERTED_ELEMS) {
        const std::vector<T> piece(values + first, values + std::min(n, first + CONVERTED_ELEMS));
        model.backend->copy_in(model, (T*)to + first, piece.data(), (int64_t)(piece.size() * sizeof(T)));
    }
}
inline void to_device(GPT2& model, NumberFormat format, void* to, const float* values, int64_t n) {
    if (format == FORMAT_FP32) model.backend->copy_in(model, to, values, n * 4);
    else if (format == FORMAT_BF16) convert<bf16>(model, to, values, n);
    else convert<fp16>(model, to, values, n);
}

// The states that the model keeps.
inline std::vector<OptimizerState> kept_states(const GPT2& model) {
    return states_of(OPTIMIZERS[model.optimizer], model.master);
}
inline StateLayout state_layout(const GPT2& model, int state) {
    return state_layout(model.layout, OPTIMIZERS[model.optimizer], state);
}
// Where a state lies. Weights in fp32 are their own master; null if 16-bit weights have none.
inline void* state_memory(GPT2& model, int state) {
    void* const optimizer[] = {model.m, model.v, model.factors};
    if (state != STATE_MASTER) return optimizer[state];
    return model.format == FORMAT_FP32 ? model.params : model.master;
}

// Where this process's part of a state of one bucket lies.
struct StateBytes {
    char* begin = nullptr;
    int64_t bytes = 0;
};
inline StateBytes state_bytes(const GPT2& model, OptimizerState state, int64_t bucket) {
    const StateLayout layout = state_layout(model, state);
    char* const memory = (char*)(state == STATE_M ? model.m : state == STATE_V ? model.v : (void*)model.master);
    if (layout.kept == KEEP_8BIT) {
        const BlockMap map = block_map(model.layout, model.slice);
        const int64_t blocks = map.slices * map.slice_blocks(bucket);
        return {memory + map.first_block(bucket) * (int64_t)sizeof(StateBlock), blocks * (int64_t)sizeof(StateBlock)};
    }
    const int64_t value_bytes = layout.kept == KEEP_BF16 ? 2 : 4, parts = layout.held(model.slice).parts;
    return {memory + layout.held_begin(model.slice, bucket) * value_bytes,
            layout.bucket_elems(bucket) / parts * value_bytes};
}
constexpr OptimizerState OFFLOADED_STATES[] = {STATE_M, STATE_V, STATE_MASTER};
// Calls each(address, bytes) for what this process keeps of a bucket's states in a file.
template <class Each>
void for_each_offloaded(GPT2& model, int64_t bucket, Each each) {
    for (OptimizerState state : OFFLOADED_STATES) {
        if (!state_memory(model, state) || (state == STATE_MASTER && !model.master)) continue;
        const StateBytes of_bucket = state_bytes(model, state, bucket);
        if (of_bucket.bytes > 0) each(of_bucket.begin, of_bucket.bytes);
    }
}
// Of a bucket whose states were read or set: what lies in a file need not stay in main memory.
inline void leave_states(GPT2& model, int64_t bucket) {
    if (model.offloads_state) for_each_offloaded(model, bucket, release_mapped);
}

// Of blocks that follow each other, `from` or `to` the first: the values of n elements; and the
// reverse, where the values are those from element `first` on.
inline const float* get_blocks(GPT2& model, bool is_signed, const StateBlock* from, int64_t n) {
    std::vector<StateBlock> blocks(blocks_of(n));
    model.backend->copy_out(model, blocks.data(), from, (int64_t)(blocks.size() * sizeof(StateBlock)));
    decode_blocks(model.host_values, blocks, is_signed);
    return model.host_values.data();
}
inline void set_blocks(GPT2& model, bool is_signed, StateBlock* to, int64_t first, int64_t n, const float* values) {
    const int64_t begin = first / STATE_BLOCK_ELEMS, bytes = (blocks_of(first + n) - begin) * sizeof(StateBlock);
    std::vector<StateBlock> blocks(bytes / sizeof(StateBlock));
    std::vector<float> all;
    model.backend->copy_out(model, blocks.data(), to + begin, bytes);
    decode_blocks(all, blocks, is_signed);
    std::copy(values, values + n, all.begin() + first - begin * STATE_BLOCK_ELEMS);
    encode_blocks(blocks, all, is_signed);
    model.backend->copy_in(model, to + begin, blocks.data(), bytes);
}

// State is read, written and converted in pieces, so that a large bucket takes no memory for that.
constexpr int64_t STATE_PIECE_ELEMS = 256 * STATE_BLOCK_ELEMS;

// Of this rank's slice of a bucket's state, state_layout().slice_elems(bucket) values, n from
// `first` on, on the host until the next such call; first is a multiple of STATE_PIECE_ELEMS. In
// ZeRO stage 1 a process has no more than its slice; in stage 0, and of factors, it has the whole
// bucket.
inline const float* state_piece(GPT2& model, int state, int64_t bucket, int64_t first, int64_t n) {
    const StateLayout layout = state_layout(model, state);
    const int64_t elems = layout.slice_elems(bucket), rank = comm.shards.rank;
    const int64_t skip = layout.held(model.slice).parts > 1 ? 0 : rank * elems;
    const int64_t at = layout.held_begin(model.slice, bucket) + skip + first;
    void* const memory = state_memory(model, state);
    if (layout.kept == KEEP_8BIT) {
        const BlockMap map = block_map(model.layout, model.slice);
        const int64_t slice = (map.slices > 1 ? rank : 0) * map.slice_blocks(bucket);
        const int64_t block = map.first_block(bucket) + slice + first / STATE_BLOCK_ELEMS;
        return get_blocks(model, state == STATE_M, (StateBlock*)memory + block, n);
    }
    if (layout.kept == KEEP_BF16) return to_host(model, FORMAT_BF16, (bf16*)memory + at, n);
    return to_host(model, FORMAT_FP32, (float*)memory + at, n);
}
// Calls each(first, n) for the pieces of a slice of so many elements.
template <class Each>
inline void for_each_state_piece(int64_t elems, Each each) {
    for (int64_t first = 0; first < elems; first += STATE_PIECE_ELEMS)
        each(first, std::min(STATE_PIECE_ELEMS, elems - first));
}
// The reverse: takes elements first to first + elems of a bucket, which any rank may have saved,
// and stores those that this process keeps. In an fp32 model, saved master weights become the
// weights, which every process holds whole. The padding of the buckets may have been another.
inline void set_state(GPT2& model, int state, int64_t bucket, int64_t first, int64_t elems, const float* values) {
    const StateLayout layout = state_layout(model, state);
    const bool in_slices = state != STATE_MASTER || model.master || model.weight_places.sharded;
    const BucketSlice kept = in_slices ? layout.held(model.slice) : BucketSlice{};
    const int64_t share = layout.bucket_elems(bucket) / kept.parts, begin = share * kept.part;
    const int64_t low = std::max(first, begin), high = std::min(first + elems, begin + share);
    void* const memory = state_memory(model, state);
    if (!memory || low >= high) return;
    values += low - first;
    const int64_t at = layout.held_begin(kept, bucket) + low - begin;
    if (layout.kept == KEEP_BF16) return to_device(model, FORMAT_BF16, (bf16*)memory + at, values, high - low);
    if (layout.kept != KEEP_8BIT) return to_device(model, FORMAT_FP32, (float*)memory + at, values, high - low);
    const BlockMap map = block_map(model.layout, kept);
    const int64_t slice_elems = model.layout.slice_elems(bucket);
    StateBlock* blocks = (StateBlock*)memory + map.first_block(bucket);
    for (int64_t i = low - begin, end = high - begin; i < end;) {  // slice by slice
        const int64_t slice = i / slice_elems, n = std::min(end, (slice + 1) * slice_elems) - i;
        set_blocks(model, state == STATE_M, blocks + slice * map.slice_blocks(bucket), i % slice_elems, n, values);
        i += n, values += n;
    }
}

// Elements of the weights that this process keeps: all, or those in its slices.
inline BucketSlice kept_weights(const GPT2& model) { return model.weight_places.sharded ? model.slice : BucketSlice{}; }
inline ElementRange kept_elements(const GPT2& model, int tensor, int64_t layer) {
    const ParameterLayout& layout = model.layout;
    const int64_t elems = tensor_elems(tensor, layout.config);
    if (model.codes && is_product_matrix(tensor)) return {0, 0};
    if (!trains(layout.config, tensor, layer)) return {0, elems};
    return kept_weights(model).within(layout, layout.bucket_of(tensor, layer), layout.offset_in_bucket(tensor, layer),
                                      elems);
}
// Element `first` of a tensor of one layer, in the memory of the device; one that this process
// keeps.
inline void* weight_at(const GPT2& model, int tensor, int64_t layer, int64_t first) {
    if (!trains(model.layout.config, tensor, layer))
        return (char*)model.params + (model.frozen_at(tensor, layer) + first) * format_bytes(model.format);
    const int64_t bucket = model.layout.bucket_of(tensor, layer), index = model.layout.offset(tensor, layer) + first;
    return (char*)model.params + model.weight_places.at(model.layout, bucket, index) * format_bytes(model.format);
}
// Writes codes and scales of weights (m.rows, m.C), in memory of the host (cpu/weight_codes.h). In
// services.cpp, as nvcc has no vector types.
void encode_on_host(const CodeMatrix& m, const float* weights);
inline void set_codes(GPT2& model, const CodeMatrix& matrix, const float* values) {
    if (!model.gpu) return encode_on_host(matrix, values);
    std::vector<uint8_t> bytes(matrix.bytes());
    CodeMatrix on_host = matrix;
    on_host.memory = bytes.data();
    encode_on_host(on_host, values);
    model.backend->copy_in(model, matrix.memory, bytes.data(), matrix.bytes());
}
// One tensor of the weights, of one layer, from fp32 values on the host: what this process keeps of
// it; and of its master copy.
inline void set_tensor(GPT2& model, int tensor, int64_t layer, const float* values) {
    if (model.codes && is_product_matrix(tensor)) return set_codes(model, model.codes.matrix(tensor, layer), values);
    const auto [low, high] = kept_elements(model, tensor, layer);
    if (low < high) to_device(model, model.format, weight_at(model, tensor, layer, low), values + low, high - low);
    if (!model.master || !trains(model.layout.config, tensor, layer)) return;
    const int64_t bucket = model.layout.bucket_of(tensor, layer), elems = tensor_elems(tensor, model.layout.config);
    set_state(model, STATE_MASTER, bucket, model.layout.offset_in_bucket(tensor, layer), elems, values);
    leave_states(model, bucket);
}
// Elements first..first+elems of a tensor of the weights, which this process keeps, as fp32 on the
// host, until the next such call.
inline const float* tensor_data(GPT2& model, int tensor, int64_t layer, int64_t first, int64_t elems) {
    return to_host(model, model.format, weight_at(model, tensor, layer, first), elems);
}
// n values of the gradients from element `at` of their memory on, as above.
inline const float* gradient_values(GPT2& model, int64_t at, int64_t n) {
    if (model.sizes.sums_gradients()) return to_host(model, FORMAT_FP32, model.grad_sums + at, n);
    return to_host(model, model.format, (char*)model.grads + at * format_bytes(model.format), n);
}
// The gradient of a tensor of one layer as this process has computed it, summed over the
// micro-steps so far: its elements first to first + n, as above. Sharded: of this micro-step, while
// the bucket is whole.
inline const float* gradient_data(GPT2& model, int tensor, int64_t layer, int64_t first, int64_t n) {
    return gradient_values(model, model.gradient_at(tensor, layer) + first, n);
}
// After the update: n elements of a part that this process keeps, from its element `first` on, of
// the sum over all processes; or the update directions.
inline const float* summed_gradient_data(GPT2& model, const TensorPart& part, int64_t first, int64_t n) {
    return gradient_values(model, model.gradient_places.at(model.layout, part) + first, n);
}
// n values of an activation of one layer from element `first` on, as above.
inline const float* activation_data(GPT2& model, int a, int64_t layer, int64_t first, int64_t n) {
    const NumberFormat format = ACTIVATIONS[a].type == FP32 ? FORMAT_FP32 : model.format;
    return to_host(model, format, model.acts + model.activations.offset(a, layer) + first * format_bytes(format), n);
}
