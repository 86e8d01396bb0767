// What a rank alone keeps (compress/rank_state.h), as values on the host, to be saved and loaded.
#pragma once
#include "llmc/comm/add_in_order.h"
#include "llmc/compress/rank_state.h"
#include "llmc/model/model_state.h"
#include "llmc/options/messages.h"

// Where it lies in the device's memory; null if it is not kept.
inline float* rank_memory(const GPT2& model, RankState state) {
    float* const memory[] = {model.compressed.residual, model.compressed.sum_residual, model.outer_momentum,
                             model.average};
    return memory[state];
}
// What the model must know of messages between processes.
inline void settle_messages(GPT2& model, const Options& o) {
    model.compressed.kind = compression_of(o), model.compressed.limit = (float)(1 / (1 - o.beta2));
    model.averages = o.ema > 0 && o.max_steps != 0;
    model.apart = trains_apart(o), model.outer = {(float)o.outer_lr, (float)o.outer_momentum};
}
// The states that this run keeps, as bits.
inline int64_t kept_rank_states(const GPT2& model) {
    int64_t states = 0;
    for (int state = 0; state < NUM_RANK_STATES; state++)
        if (rank_memory(model, (RankState)state)) states |= 1 << state;
    return states;
}
inline const float* rank_values_at(GPT2& model, RankState state, int64_t at, int64_t n) {
    return to_host(model, FORMAT_FP32, rank_memory(model, state) + at, n);
}

// Adds values to memory[at..at+n], which begins at 0.
inline void add_values(GPT2& model, float* memory, int64_t at, int64_t n, const float* values) {
    std::vector<float> sum(values, values + n);
    const float* there = to_host(model, FORMAT_FP32, memory + at, n);
    add_two(sum.data(), sum.data(), there, n);
    to_device(model, FORMAT_FP32, memory + at, sum.data(), n);
}

// Takes what old rank `old` has saved of a bucket, elements `begin` on, as far as it concerns this
// rank. Padding may have been longer. In ZeRO stage 1 the residual of a sum joins that of the
// process that computes the sum.
inline void take_rank_piece(GPT2& model, RankState state, int64_t old, int64_t begin, const RankPiece& piece,
                            const float* values) {
    const ParameterLayout& layout = model.layout;
    const int64_t slice = layout.slice_elems(piece.bucket), own = comm.shards.rank * slice;
    const bool whole = is_whole(state);
    const int64_t low = std::max(begin, whole ? 0 : own);
    const int64_t high = std::min(begin + piece.elems, whole ? layout.bucket_elems(piece.bucket) : own + slice);
    if (low >= high || (whole && old % comm.shards.processes != comm.shards.rank)) return;
    values += low - begin;
    const int64_t at = layout.bucket_begin[piece.bucket];
    if (float* memory = rank_memory(model, state))
        add_values(model, memory, whole ? at + low : at / layout.processes + low - own, high - low, values);
    else if (state == SUM_RESIDUAL && model.compressed.residual)
        add_values(model, model.compressed.residual, at + low, high - low, values);
}

// Says what a checkpoint had that this run does not keep.
inline void warn_of_dropped(const GPT2& model, int64_t saved) {
    for (RankState state :
         {RESIDUAL, OUTER_MOMENTUM, AVERAGE})  // the residual of sums goes where that of gradients goes
        if (comm.rank == 0 && (saved & ~kept_rank_states(model)) >> state & 1)
            warning("%s of the run to resume is dropped: this run does not %s", RANK_STATES[state],
                    state == AVERAGE          ? "keep one (--ema)"
                    : state == OUTER_MOMENTUM ? "take outer steps"
                                              : "compress gradients");
}
