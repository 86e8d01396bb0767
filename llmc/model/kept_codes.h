// What layers keep for the backward pass as codes (gpt2/activation_codes.h): which activations of
// which layer, when they are encoded and when decoded. A copy in floatX serves the layers in turn,
// or at recompute level 4 the k layers of a segment.
//
//     after layer l has run forward    encode what it keeps, but of the last segment, whose activations are still there
//                                      when the backward pass begins; and at the first layer of a segment its input
//     before its backward pass         decode what was kept; and at the last layer of a segment the segment's input,
//                                      whose place the output of the last layer has taken
//
// The functions do nothing in a run without --compress-activations 1.
#pragma once
#include "llmc/model/model_state.h"

// The codes of an activation of a layer; of the residual stream a layer that ends a segment.
inline ActivationCodes codes_of(GPT2& model, int a, int64_t layer) {
    const ActivationLayout& acts = model.activations;
    char* copy = model.acts + acts.copy_offset(CODES, layer / acts.segment_layers % acts.copies[CODES]);
    return codes_at(copy + codes_offset(a, model.sizes), ACTIVATIONS[a].elems(model.sizes));
}

// n values that codes stand for, from element `first` on, a multiple of CODE_BLOCK: as fp32 on the
// host, until the next such call.
inline const float* decoded_data(GPT2& model, int a, int64_t layer, int64_t first, int64_t n) {
    const ActivationCodes from = codes_of(model, a, layer);
    std::vector<int8_t> codes(n);
    std::vector<float> scales(ceil_div(n, CODE_BLOCK));
    model.backend->copy_out(model, codes.data(), from.codes + first, n);
    model.backend->copy_out(model, scales.data(), from.scales + first / CODE_BLOCK, (int64_t)scales.size() * 4);
    model.host_values.resize(n);
    for (int64_t i = 0; i < n; i++) model.host_values[i] = codes[i] * scales[i / CODE_BLOCK];
    return model.host_values.data();
}

// Calls f(a, layer) for each activation that layer l keeps as codes, and for the residual stream
// that `layer` leaves if with_input.
template <class F>
void for_each_coded(GPT2& model, int64_t l, bool with_input, F f) {
    const Sizes& s = model.sizes;
    const int64_t k = s.segment_layers(), input = l / k * k - 1;  // the layer that leaves what the segment reads
    for (int a = 0; a < NUM_ACTIVATIONS; a++) {
        if (!is_coded(a, s)) continue;
        if (ACTIVATIONS[a].copies == ActivationInfo::SEGMENTS) {
            if (with_input && input >= 0) f(a, input);
        } else if (l < s.recomputed_layers()) f(a, l);
    }
}
// After layer l has run forward. encode(codes, values, elems) is the device's; on a GPU it also
// takes a stream.
template <class floatX, class Encode, class... Stream>
void encode_kept(GPT2& model, int64_t l, Encode encode, Stream... stream) {
    for_each_coded(model, l, l % model.sizes.segment_layers() == 0, [&](int a, int64_t layer) {
        encode(codes_of(model, a, layer), model.act<floatX>(a, layer), ACTIVATIONS[a].elems(model.sizes), stream...);
    });
}
// Before the backward pass of layer l. decode(values, codes, elems) likewise.
template <class floatX, class Decode, class... Stream>
void decode_kept(GPT2& model, int64_t l, Decode decode, Stream... stream) {
    const bool ends_segment = (l + 1) % model.sizes.segment_layers() == 0 || l + 1 == model.layout.config.L;
    for_each_coded(model, l, ends_segment, [&](int a, int64_t layer) {
        decode(model.act<floatX>(a, layer), codes_of(model, a, layer), ACTIVATIONS[a].elems(model.sizes), stream...);
    });
}
