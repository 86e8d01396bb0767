// Where the first value came from that is not finite, after a step whose loss or gradient norm is
// infinite or NaN. Such a step does not update the weights, so that its micro-steps can be run
// again. This time everything is looked at as soon as it is there: the weights first, then what
// each layer has written, when its Range ends (trace.h).
//
//     end of          what is looked at, in the order in which it was computed
//     layer_forward   what the layer reads from the residual stream; its activations; what its MLP adds to the stream
//     forward         the residual stream after the last layer, and the layer norm of that
//     layer_recompute (before the backward pass of layer l) of the last layer: the losses, the gradients of the last
//                     layer norm; of others: the gradients of layer l+1; then the gradient of the stream after layer l
//     backward        the gradients of layer 0, of the stream that it reads, and of the embeddings
//
// What layers share at a recompute level is looked at before the next one overwrites it. Layers are
// counted from 0. Each process looks at its own micro-batches, and sends nothing to the others.
#pragma once
#include <cmath>
#include "llmc/model/model_state.h"
#include "llmc/checkpoint/model_file.h"

struct FirstNotFinite {
    GPT2& model;
    int64_t micro = 0;
    std::string found{};  // empty: everything has been finite so far
    float largest_gradient = 0;
    std::string largest{};  // whose gradient that is

    // ---- one tensor: get(first, n) returns n of its values

    template <class Get>
    bool is_finite(int64_t elems, Get get) {
        const int64_t piece = 1 << 16;
        for (int64_t first = 0; first < elems; first += piece) {
            const int64_t n = std::min(piece, elems - first);
            if (!all_finite(get(first, n), n)) return false;
        }
        return true;
    }
    std::string in_pass(const char* pass) const { return format(", in the %s pass of micro-step %d", pass, micro + 1); }
    void weight(int tensor, int64_t l) {
        if (!found.empty()) return;
        const ElementRange kept = kept_elements(model, tensor, l);
        const auto get = [&](int64_t first, int64_t n) { return tensor_data(model, tensor, l, kept.low + first, n); };
        if (!is_finite(kept.high - kept.low, get))
            found = "the weights " + tensor_text(tensor, l) + ", before the step";
    }
    void gradient(int tensor, int64_t l) {
        if (!found.empty()) return;
        if (tensor == WTE && model.gradient_places.wte_in_pieces) return activation(LOGITS, 0);  // a factor of it
        const auto get = [&](int64_t first, int64_t n) {
            const float* values = gradient_data(model, tensor, l, first, n);
            for (int64_t i = 0; i < n; i++)
                if (std::fabs(values[i]) > largest_gradient)
                    largest_gradient = std::fabs(values[i]), largest = tensor_text(tensor, l);
            return values;
        };
        if (!is_finite(tensor_elems(tensor, model.layout.config), get))
            found = "the gradient of " + tensor_text(tensor, l) + in_pass("backward");
    }
    bool activation_is_finite(int a, int64_t l) {
        const int64_t elems = ACTIVATIONS[a].elems(model.sizes);
        return is_finite(elems, [&](int64_t first, int64_t n) { return activation_data(model, a, l, first, n); });
    }
    static std::string activation_text(int a, int64_t l) {
        const bool one = ACTIVATIONS[a].copies == ActivationInfo::ONE;
        return one ? ACTIVATIONS[a].name : format("%s of layer %d", ACTIVATIONS[a].name, l);
    }
    void activation(int a, int64_t l) {
        if (found.empty() && !activation_is_finite(a, l))
            found = "the activation " + activation_text(a, l) + in_pass("forward");
    }
    // The gradient of the residual stream that layer l leaves; of layer -1: that layer 0 reads.
    void stream_gradient(int64_t l) {
        if (found.empty() && !activation_is_finite(DRESIDUAL, 0))
            found = "the gradient of " + (l < 0 ? "encoded" : activation_text(RESIDUAL3, l)) + in_pass("backward");
    }

    // ---- what there is when a range ends

    void after_layer_forward(int64_t l) {
        if (l == 0) activation(ENCODED, 0);
        else activation(RESIDUAL3, l - 1);
        for (int a = 0; a < NUM_ACTIVATIONS; a++)
            if (ACTIVATIONS[a].purpose == ActivationInfo::LAYER && a != RESIDUAL3 && a != CODES) activation(a, l);
        if (found.empty() && !activation_is_finite(BRANCH, 0))
            found = format("what the MLP of layer %d adds to the residual stream", l) + in_pass("forward");
    }
    // The backward pass computes them in the reverse order of their table.
    void layer_gradients(int64_t l) {
        for (int i = NUM_TENSORS - 1; i >= 0; i--)
            if (TENSORS[i].per_layer) gradient(i, l);
    }
    void after_layer_recompute(int64_t l) {
        if (l + 1 < model.layout.config.L) layer_gradients(l + 1);
        else activation(LOSSES, 0), gradient(LNFB, 0), gradient(LNFW, 0);
        stream_gradient(l);
    }
    void after(const KernelName& range) {
        const std::string name = range.text;
        const int64_t l = (int64_t)range.size;
        if (!found.empty()) return;
        if (name == "layer_forward") after_layer_forward(l);
        if (name == "forward") activation(RESIDUAL3, model.layout.config.L - 1), activation(LNF, 0);
        if (name == "layer_recompute") after_layer_recompute(l);
        if (name == "backward") layer_gradients(0), stream_gradient(-1), gradient(WPE, 0), gradient(WTE, 0);
    }
};

// Looks for the first value that is not finite: in the weights, then in the micro-steps of the last
// step, which run_micro_step(micro) runs again. Says what has it, and when; empty if nothing has.
template <class RunMicroStep>
inline FirstNotFinite first_not_finite(GPT2& model, RunMicroStep run_micro_step) {
    FirstNotFinite first{model};
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0; l < tensor_layers(i, model.layout.config); l++) first.weight(i, l);
    trace.at_end = [&](const KernelWork& range) { first.after(range.name); };
    const bool together = model.weight_places.sharded;  // then no process can stop before the others
    for (int64_t m = 0; (together || first.found.empty()) && m < model.micro_steps; m++)
        first.micro = m, run_micro_step(m);
    trace.at_end = nullptr;
    return first;
}
