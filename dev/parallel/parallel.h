// What the programs of this folder share: a small GPT-2 of which a process has a part, what its
// layers keep between their passes, its tokens, its update, and what is counted on the way.
//
// The model is that of the trainers, on the kernels of llmc/cpu: the same first weights, the same
// tokens in the same order, so one process has the losses of
//
//     ./train_gpt2_cpu -e L8C32H4T64V257 -b 1 -t 64 -d 512 --shuffle 0 -k constant -l 0.003 --grad-clip 0
//
// The backward pass of a layer is in two halves, which a schedule may pull apart:
//
//     inputs     d(output) to d(input), by way of every d of a matrix product's output, which it keeps
//     weights    from these and from what the forward pass has kept: Dweight += Dout^T inp
//
// What is no matrix product (layer norms, embeddings) is cheap, and done with the inputs. Gradients
// are added up in the order in which the micro-batches come: the bits depend on nothing else.
#pragma once
#include "dev/parallel/held.h"
#include "dev/parallel/part.h"

// What a layer keeps of a micro-batch. Between the two halves of the backward pass the gradients of
// its four products' outputs replace what nobody needs any more: qkv, fch, input, residual2.
struct LayerRecord {
    Counted input, ln1, qkv, atty, residual2, ln2, fch, gelu, norms, lse;  // norms: means and deviations
};
// Elements that a layer keeps: of C channels 1, 1, 3, 1, 1, 1, 4 and 4.
inline int64_t layer_record_elems(const GPT2Config& c) { return ROWS * (16 * c.C + 4 + c.NH); }

// hidden: of the MLP, 0 where it is another's.
inline LayerRecord layer_record(const GPT2Config& c, Counted&& input, int64_t hidden) {
    const int64_t rows = (int64_t)input.size() / c.C;
    const auto wide = [&](int64_t n) { return Counted(rows * n); };
    return {std::move(input), wide(c.C),    wide(3 * c.C), wide(c.C), wide(c.C),
            wide(c.C),        wide(hidden), wide(hidden),  wide(4),   wide(c.NH)};
}
inline LayerRecord layer_record(const GPT2Config& c, Counted&& input) {
    return layer_record(c, std::move(input), 4 * c.C);
}
// Attention of a process that has all positions.
struct WholeAttention {
    void forward(const GPT2Config& c, LayerRecord& k) const {
        kernels::attention_forward(k.atty.data(), k.lse.data(), k.qkv.data(), B, T, c.C, c.NH);
    }
    void backward(const GPT2Config& c, float* dqkv, const float* datty, LayerRecord& k) const {
        kernels::attention_backward(dqkv, datty, k.atty.data(), k.lse.data(), k.qkv.data(), B, T, c.C, c.NH);
    }
};
// The first half of a layer: attention, and what the MLP reads. Writes k from ln1 to ln2.
template <class Attention = WholeAttention>
void attention_forward(Part& part, int64_t l, LayerRecord& k, const Attention& attention = {}) {
    const int64_t C = part.c.C, rows = (int64_t)k.input.size() / C;
    const auto w = [&](int tensor) { return part.weight(tensor, l); };
    float* norms = k.norms.data();
    Floats branch(rows * C);
    kernels::layernorm_forward(k.ln1.data(), norms, norms + rows, k.input.data(), w(LN1W), w(LN1B), rows, C);
    kernels::matmul_forward(k.qkv.data(), k.ln1.data(), w(QKVW), w(QKVB), rows, C, 3 * C);
    attention.forward(part.c, k);
    kernels::matmul_forward(branch.data(), k.atty.data(), w(ATTPROJW), w(ATTPROJB), rows, C, C);
    kernels::residual_layernorm_forward(k.residual2.data(), k.ln2.data(), norms + 2 * rows, norms + 3 * rows,
                                        k.input.data(), branch.data(), w(LN2W), w(LN2B), rows, C);
}
// out (rows, C) = the layer's output, from k.input; the rest of k is written.
template <class Attention = WholeAttention>
void layer_forward(Part& part, int64_t l, LayerRecord& k, float* out, const Attention& attention = {}) {
    const int64_t C = part.c.C, rows = (int64_t)k.input.size() / C;
    const auto w = [&](int tensor) { return part.weight(tensor, l); };
    Floats branch(rows * C);
    attention_forward(part, l, k, attention);
    kernels::matmul_forward(k.fch.data(), k.ln2.data(), w(FCW), w(FCB), rows, C, 4 * C, k.gelu.data());
    kernels::matmul_forward(branch.data(), k.gelu.data(), w(FCPROJW), w(FCPROJB), rows, 4 * C, C);
    kernels::residual_forward(out, k.residual2.data(), branch.data(), rows * C);
}
inline void keep(Counted& place, const Floats& gradient) { place.assign(gradient.begin(), gradient.end()); }
// d (rows, C): from the gradient of residual2 without the MLP, with that of ln2 (rows, C), to that
// of the layer's input.
template <class Attention = WholeAttention>
void attention_backward_inputs(Part& part, int64_t l, LayerRecord& k, float* d, const float* dln2,
                               const Attention& attention = {}) {
    const int64_t C = part.c.C, rows = (int64_t)k.input.size() / C;
    const auto w = [&](int tensor) { return part.weight(tensor, l); };
    const auto g = [&](int tensor) { return part.gradient(tensor, l); };
    float *const none = nullptr, *norms = k.norms.data();
    Floats branch(rows * C), dqkv(rows * 3 * C);
    kernels::layernorm_backward(d, g(LN2W), g(LN2B), dln2, k.residual2.data(), w(LN2W), norms + 2 * rows,
                                norms + 3 * rows, rows, C, true);
    const Floats dattproj(d, d + rows * C);
    kernels::matmul_backward(branch.data(), none, none, d, k.atty.data(), w(ATTPROJW), rows, C, C, true);
    attention.backward(part.c, dqkv.data(), branch.data(), k);
    kernels::matmul_backward(branch.data(), none, none, dqkv.data(), k.ln1.data(), w(QKVW), rows, C, 3 * C, true);
    kernels::layernorm_backward(d, g(LN1W), g(LN1B), branch.data(), k.input.data(), w(LN1W), norms, norms + rows, rows,
                                C, true);
    keep(k.qkv, dqkv), keep(k.input, dattproj);
}
// d (rows, C): from the gradient of the layer's output to that of its input.
template <class Attention = WholeAttention>
void layer_backward_inputs(Part& part, int64_t l, LayerRecord& k, float* d, const Attention& attention = {}) {
    const int64_t C = part.c.C, rows = (int64_t)k.input.size() / C;
    float* const none = nullptr;
    const Floats dfcproj(d, d + rows * C);
    Floats dfch(rows * 4 * C), dln2(rows * C);
    kernels::matmul_backward(dfch.data(), none, none, d, k.gelu.data(), part.weight(FCPROJW, l), rows, 4 * C, C, true,
                             k.fch.data());
    kernels::matmul_backward(dln2.data(), none, none, dfch.data(), k.ln2.data(), part.weight(FCW, l), rows, C, 4 * C,
                             true);
    attention_backward_inputs(part, l, k, d, dln2.data(), attention);
    keep(k.fch, dfch), keep(k.residual2, dfcproj);
}
inline void product_backward_weights(Part& part, int64_t l, int weight, int bias, const Counted& dout,
                                     const Counted& inp, int64_t rows) {
    const int64_t in = (int64_t)inp.size() / rows, out = (int64_t)dout.size() / rows;
    kernels::matmul_backward((float*)nullptr, part.gradient(weight, l), part.gradient(bias, l), dout.data(), inp.data(),
                             part.weight(weight, l), rows, in, out, true);
}
inline void attention_backward_weights(Part& part, int64_t l, LayerRecord& k, int64_t rows) {
    product_backward_weights(part, l, ATTPROJW, ATTPROJB, k.input, k.atty, rows);
    product_backward_weights(part, l, QKVW, QKVB, k.qkv, k.ln1, rows);
}
inline void layer_backward_weights(Part& part, int64_t l, LayerRecord& k) {
    const int64_t rows = (int64_t)k.ln1.size() / part.c.C;
    product_backward_weights(part, l, FCPROJW, FCPROJB, k.residual2, k.gelu, rows);
    product_backward_weights(part, l, FCW, FCB, k.fch, k.ln2, rows);
    attention_backward_weights(part, l, k, rows);
}
