// Where the state of an optimizer lies, in the memory of a process and in state files.
//
// m, v and the fp32 master weights are like the parameters: cut into the same buckets, and these
// into the slices of the processes (tensors.h). An optimizer may keep v only of the last bucket,
// what is outside the layers. Factors are few values for each tensor, one for each row and each
// column of a matrix or one for each element of a vector, tensor by tensor in the order of the
// table, in buckets as well. Every process holds all of them; of each bucket's factors it saves its
// slice.
//
// In state files all values are fp32. In memory m and v may be smaller (small_state.h).
#pragma once
#include "llmc/optim/small_state.h"

// The states, in the order of a state file.
enum OptimizerState { STATE_M, STATE_V, STATE_FACTORS, STATE_MASTER, NUM_STATES };
inline const char* const STATE_NAMES[] = {"m", "v", "factors", "the master weights"};

// How an optimizer keeps a state.
inline Kept kept_of(const OptimizerInfo& optimizer, int state) {
    const Kept kept[] = {optimizer.keeps.m, optimizer.keeps.v, optimizer.keeps.factors, KEEP_ALL};
    return kept[state];
}
// The states that an optimizer has, with or without master weights.
inline std::vector<OptimizerState> states_of(const OptimizerInfo& optimizer, bool master) {
    std::vector<OptimizerState> states;
    for (OptimizerState state : {STATE_M, STATE_V, STATE_FACTORS})
        if (kept_of(optimizer, state) != KEEP_NONE) states.push_back(state);
    if (master) states.push_back(STATE_MASTER);
    return states;
}

// The factors that are kept of one tensor.
inline int64_t factor_elems(Kept kept, int tensor, const GPT2Config& c) {
    const TensorInfo& info = TENSORS[tensor];
    const int64_t rows = dimension(info.rows, c), cols = dimension(info.cols, c);
    if (rows == 0) return 0;
    if (kept == KEEP_FACTORED) return rows > 1 ? rows + cols : cols;
    return kept == KEEP_VECTORS && info.per_layer && rows == 1 ? cols : 0;
}

// One state of an optimizer: its elements in each bucket.
struct StateLayout {
    const ParameterLayout* parameters;
    Kept kept;
    // Whether every process holds all of it.
    bool replicated() const { return kept == KEEP_VECTORS || kept == KEEP_FACTORED; }
    // Elements of a bucket, those of all processes together.
    int64_t bucket_elems(int64_t bucket) const {
        const bool in_layers = bucket < parameters->config.L;
        if (!replicated())
            return kept == KEEP_NONE || (kept == KEEP_OUTSIDE && in_layers) ? 0 : parameters->bucket_elems(bucket);
        return round_up(factor_offset(ALL_TENSORS, in_layers), 16 * parameters->processes);
    }
    int64_t bucket_begin(int64_t bucket) const {
        if (replicated()) return bucket * bucket_elems(0);
        return kept == KEEP_NONE || kept == KEEP_OUTSIDE ? 0 : parameters->bucket_begin[bucket];
    }
    int64_t total_elems() const { return bucket_begin(parameters->config.L) + bucket_elems(parameters->config.L); }
    // Where the factors of a tensor lie in their bucket: the same in all layers, of which then the
    // same tensors train.
    int64_t factor_offset(int tensor, bool per_layer) const {
        int64_t at = 0;
        for (int i = 0; i < tensor; i++)
            if (TENSORS[i].per_layer == per_layer && trains(parameters->config, i))
                at += factor_elems(kept, i, parameters->config);
        return at;
    }
    // Where the factors of a tensor lie among all factors.
    int64_t factors_at(int tensor, int64_t layer) const {
        return bucket_begin(parameters->bucket_of(tensor, layer)) + factor_offset(tensor, TENSORS[tensor].per_layer);
    }
    // What a process holds that updates `slice` of every bucket.
    BucketSlice held(const BucketSlice& slice) const { return replicated() ? BucketSlice{} : slice; }
    int64_t held_elems(const BucketSlice& slice) const { return total_elems() / held(slice).parts; }
    int64_t held_bytes(const BucketSlice& slice) const {
        if (kept == KEEP_8BIT) return block_map(*parameters, slice).blocks() * (int64_t)sizeof(StateBlock);
        return held_elems(slice) * (kept == KEEP_BF16 ? 2 : 4);
    }
    int64_t held_begin(const BucketSlice& slice, int64_t bucket) const {
        return bucket_begin(bucket) / held(slice).parts;
    }
    // Elements of a bucket in the state file of each process.
    int64_t slice_elems(int64_t bucket) const { return bucket_elems(bucket) / parameters->processes; }
};
inline StateLayout state_layout(const ParameterLayout& layout, const OptimizerInfo& optimizer, int state) {
    return {&layout, kept_of(optimizer, state)};
}

// Values in the state file of each process.
inline int64_t state_values(const ParameterLayout& layout, const OptimizerInfo& optimizer, bool master) {
    int64_t values = 0;
    for (OptimizerState state : states_of(optimizer, master))
        values += state_layout(layout, optimizer, state).total_elems() / layout.processes;
    return values;
}
