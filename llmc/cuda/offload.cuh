// --offload on a GPU: what is not needed all the time lies in pinned memory of the host, and
// travels in streams of its own while the GPU computes; cpu/offload.h keeps it in a file.
//
// The optimizer's state, m, v and the master weights, comes to the GPU a stretch at a time, about
// as much as a layer has. Three places take turns:
//
//     up       | state 0 | state 1  | state 2  | state 3  | ...
//     stream             | update 0 | update 1 | update 2 | ...
//     down                          | state 0  | state 1  | ...
//
// ZeRO-Offload (Ren et al. 2021, arXiv:2101.06840) moves the other way: gradients go to the host,
// whose cores update. That sends 2 bytes a parameter each way in bf16, where this sends 12. But
// here every optimizer has one rule, with the same bits wherever its state lies; the device goes on
// deciding whether to update, so that the host need not wait for the norm; and the update takes no
// time of cores, of which 8 GPUs have to share those of a machine. PCIe carries both directions at
// once. (--plan says how long that takes.)
//
// The inputs of segments of layers that are recomputed (-r 3, -r 4; with --compress-activations 1
// their codes) go down once their first layer has read them, and come back while the segment behind
// is computed. INPUT_PLACES of them are on the GPU; the last segment's stays.
//
//     stream   | forward 0 | forward 1  | forward 2  | ... | backward 2 | backward 1 | backward 0
//     down                 | input of 1 | input of 2 |
//     up                                                   | input of 1 |
#pragma once
#include "llmc/cuda/shard.cuh"
#include "llmc/model/model_state.h"

// Whether stretches of a state come and go.
inline bool is_offloaded(const GPT2& model, OptimizerState state) {
    const auto& states = model.gpu->offload.states;
    return std::find(states.begin(), states.end(), state) != states.end();
}

// -------------------------------------------------------------------------------------------------
// the optimizer's state

// What a stretch has of a state: bytes of the host's memory, from byte `at` on.
struct StretchBytes {
    int64_t at = 0, bytes = 0;
};
inline StretchBytes stretch_bytes(const GPT2& model, OptimizerState state, int64_t stretch) {
    const StateLayout layout = state_layout(model, state);
    const StretchBegin begin = model.gpu->offload.begins[stretch], end = model.gpu->offload.begins[stretch + 1];
    const int64_t block_bytes = sizeof(StateBlock), value_bytes = layout.kept == KEEP_BF16 ? 2 : 4;
    if (layout.kept == KEEP_8BIT) return {begin.block * block_bytes, (end.block - begin.block) * block_bytes};
    const int64_t outside = model.slice.state_begin(model.layout, model.layout.config.L);
    const int64_t first = layout.kept == KEEP_OUTSIDE ? outside : 0;
    if (begin.elem < first) return {};
    return {(begin.elem - first) * value_bytes, (end.elem - begin.elem) * value_bytes};
}

// Where stretches begin, and the end of the last. Each layer is one; behind the layers they are
// about as long, but no block of 8-bit state and no piece of a tensor (directions.cuh) is cut.
inline std::vector<StretchBegin> stretch_begins(const GPT2& model) {
    const ParameterLayout& layout = model.layout;
    const BlockMap map = block_map(layout, model.slice);
    const int64_t L = layout.config.L, most = model.slice.state_begin(layout, 1);
    const StretchBegin end{model.slice.state_elems(layout), map.blocks()};
    std::vector<StretchBegin> begins, cuts;
    for (int64_t l = 0; l <= L; l++) begins.push_back({model.slice.state_begin(layout, l), map.first_block(l)});
    int elems;
    if (OPTIMIZERS[model.optimizer].keeps.m == KEEP_8BIT)
        for (int64_t b = map.first_block(L); b < end.block; b++) cuts.push_back({map.begin(b, elems), b});
    else if (OPTIMIZERS[model.optimizer].whole_tensors)
        for (const Piece& piece : model.gpu->whole_tensors.tables.pieces) cuts.push_back({piece.state, 0});
    else
        for (int64_t at = begins.back().elem; at < end.elem; at += most) cuts.push_back({at, 0});
    std::sort(cuts.begin(), cuts.end(), [](StretchBegin a, StretchBegin b) { return a.elem < b.elem; });
    cuts.push_back(end);
    for (size_t i = 0; i + 1 < cuts.size(); i++)
        if (cuts[i].elem > begins.back().elem && cuts[i + 1].elem > begins.back().elem + most)
            begins.push_back(cuts[i]);
    begins.push_back(end);
    return begins;
}

// Bytes of a place for a state, and for all of them; of the whole state, which the host keeps.
inline int64_t place_bytes(const GPT2& model, OptimizerState state) {
    int64_t most = 0;
    for (int64_t i = 0; i < model.gpu->offload.stretches(); i++)
        most = std::max(most, stretch_bytes(model, state, i).bytes);
    return round_up(most, 256);
}
inline int64_t place_bytes(const GPT2& model) {
    int64_t bytes = 0;
    for (OptimizerState state : model.gpu->offload.states) bytes += place_bytes(model, state);
    return bytes;
}
inline int64_t state_on_host_bytes(const GPT2& model) {
    int64_t bytes = 0;
    for (OptimizerState state : model.gpu->offload.states) bytes += state_layout(model, state).held_bytes(model.slice);
    return bytes;
}
// 1-bit Adam reads v in the backward pass, a slice of a bucket at a time.
inline int64_t frozen_v_bytes(const GPT2& model) {
    const ParameterLayout& layout = model.layout;
    if (model.compressed.kind != IN_1_BIT || !is_offloaded(model, STATE_V)) return 0;
    return 4 * std::max(layout.slice_elems(0), layout.slice_elems(layout.config.L));
}

// Enqueues the copies of a stretch of the states in `which`, between the host and a place.
inline void copy_stretch(GPT2& model, int64_t stretch, char* place, int which, bool up, cudaStream_t stream) {
    const StreamRange in_stream({{up ? "state to the GPU" : "state to the host", (double)stretch}}, stream);
    for (OptimizerState state : model.gpu->offload.states) {
        const StretchBytes of_host = stretch_bytes(model, state, stretch);
        char* const host = (char*)state_memory(model, state) + of_host.at;
        const auto kind = up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
        if (which >> state & 1 && of_host.bytes > 0)
            check_cuda(cudaMemcpyAsync(up ? place : host, up ? host : place, of_host.bytes, kind, stream),
                       "copying the optimizer's state");
        place += place_bytes(model, state);
    }
}
// Where the states of a stretch are while it is on the GPU.
inline StateStretch state_in_place(GPT2& model, int64_t stretch, char* place) {
    const Offload& own = model.gpu->offload;
    const StretchBegin begin = own.begins[stretch], end = own.begins[stretch + 1];
    StateStretch s{slice_map(model, model.slice), block_map(model.layout, model.slice)};
    s.mine.first = begin.elem, s.mine.count = end.elem - begin.elem;
    s.blocks.first = begin.block, s.blocks.count = end.block - begin.block;
    s.first_v = stretch_bytes(model, STATE_V, stretch).at / 4;
    for (OptimizerState state : own.states) {
        if (state == STATE_M) s.m = place;
        if (state == STATE_V) s.v = place;
        if (state == STATE_MASTER) s.master = (float*)place;
        place += place_bytes(model, state);
    }
    return s;
}

// Calls update(stretch), which enqueues the update of a stretch of what this process keeps state
// of: of all at once, but with --offload of one after the other, with the states in `brought` on
// the GPU. Those in `changed` go back. Bits: 1 << OptimizerState.
constexpr int MOMENTS = 1 << STATE_M | 1 << STATE_V, MASTER = 1 << STATE_MASTER, ALL_STATES = MOMENTS | MASTER;
template <class Update>
void for_each_stretch(GPT2& model, int brought, int changed, Update update) {
    Offload& own = model.gpu->offload;
    int offloaded = 0;
    for (OptimizerState state : own.states) offloaded |= 1 << state;
    if (!(offloaded & brought))
        return update(StateStretch{slice_map(model, model.slice), block_map(model.layout, model.slice), model.m,
                                   model.v, model.master});
    const cudaStream_t stream = model.gpu->stream;
    const int64_t bytes = place_bytes(model);
    wait_in_stream(own.state_left, own.up);  // what changed in the last pass
    for (int64_t i = 0; i < own.stretches(); i++) {
        const int64_t number = own.next++ % STATE_PLACES;
        char* const place = own.places + number * bytes;
        wait_in_stream(own.left[number], own.up);
        copy_stretch(model, i, place, brought, true, own.up);
        record_event(own.came[number], own.up), wait_in_stream(own.came[number], stream);
        update(state_in_place(model, i, place));
        record_event(own.used[number], stream), wait_in_stream(own.used[number], own.down);
        copy_stretch(model, i, place, changed, false, own.down);
        record_event(own.left[number], own.down);
    }
    record_event(own.state_left, own.down);
}
template <class Update>
void for_each_stretch(GPT2& model, Update update) {
    for_each_stretch(model, ALL_STATES, ALL_STATES, update);
}
// n values of v from `at` on, for what is enqueued next.
inline const float* v_on_gpu(GPT2& model, const float* at, int64_t n) {
    Offload& own = model.gpu->offload;
    if (!at || !is_offloaded(model, STATE_V)) return at;
    wait_in_stream(own.state_left, model.gpu->stream);
    check_cuda(cudaMemcpyAsync(own.frozen_v, at, n * 4, cudaMemcpyHostToDevice, model.gpu->stream), "copying v");
    return own.frozen_v;
}

// -------------------------------------------------------------------------------------------------
// inputs of segments

// Segment j reads the input that layer j k - 1 leaves. Those of segments 1 to inputs_on_host() go
// to the host.
inline int64_t inputs_on_host(const Sizes& s) {
    return s.inputs_on_host ? std::max<int64_t>(0, s.recomputed_layers() / s.segment_layers() - 1) : 0;
}
inline int64_t input_bytes(const GPT2& model) {
    const Sizes& s = model.sizes;
    return activation_bytes(s.compressed_activations ? CODES : RESIDUAL3, s) - s.guard_bytes;
}
// Enqueues a copy of the input of segment j.
inline void copy_input(GPT2& model, int64_t j, bool up, cudaStream_t stream) {
    const StreamRange in_stream({{up ? "input to the GPU" : "input to the host", (double)j}}, stream);
    const ActivationLayout& acts = model.activations;
    const int64_t shared = acts.copies[RESIDUAL3] - INPUT_PLACES, number = (j - 1) % INPUT_PLACES;
    const bool coded = model.sizes.compressed_activations;
    char* const here = model.acts + acts.copy_offset(coded ? CODES : RESIDUAL3, coded ? number : shared + number);
    char* const host = model.gpu->offload.inputs + (j - 1) * input_bytes(model);
    check_cuda(cudaMemcpyAsync(up ? here : host, up ? host : here, input_bytes(model),
                               up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream),
               "copying the input of a layer");
}

// Layer l has read its input in the forward pass of training, and what it keeps of it is there. If
// a segment begins with it: the input goes to the host. What is enqueued from now on may write the
// next input, whose place has become free.
static inline void leave_input(GPT2& model, int64_t l) {
    Offload& own = model.gpu->offload;
    const int64_t k = model.sizes.segment_layers(), j = l / k;
    if (!own.inputs || l % k != 0 || j == 0) return;
    const cudaStream_t stream = model.gpu->stream;
    if (j <= inputs_on_host(model.sizes)) {
        record_event(own.reached, stream), wait_in_stream(own.reached, own.down);
        copy_input(model, j, false, own.down);
        record_event(own.input_left[(j - 1) % INPUT_PLACES], own.down);
    }
    wait_in_stream(own.input_left[j % INPUT_PLACES], stream);
}
// Before the backward pass of layer l, the last of a segment: what is enqueued from now on finds
// the segment's input. That of the segment before begins to travel, to the place of the one behind.
static inline void fetch_input(GPT2& model, int64_t l) {
    Offload& own = model.gpu->offload;
    const int64_t k = model.sizes.segment_layers(), j = l / k, on_host = inputs_on_host(model.sizes);
    if (!own.inputs || ((l + 1) % k != 0 && l + 1 != model.layout.config.L)) return;
    const cudaStream_t stream = model.gpu->stream;
    if (j >= 1 && j <= on_host) wait_in_stream(own.input_came[(j - 1) % INPUT_PLACES], stream);
    if (j < 2 || j - 1 > on_host) return;
    const int64_t place = (j - 2) % INPUT_PLACES;
    record_event(own.reached, stream),
        wait_in_stream(own.reached, own.up);  // leave_input() has waited for its way down
    copy_input(model, j - 1, true, own.up);
    record_event(own.input_came[place], own.up);
}
