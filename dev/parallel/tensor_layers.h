// The layers of a model that processes share (tensor.h), forward and backward, with the embedding
// and the classifier.
#pragma once
#include "dev/parallel/tensor.h"

// What a process has of them.
struct SharedLayers {
    Split split;
    Part part;
    double loss = 0;  // of the tokens since it was set to 0

    float* w(int tensor, int64_t layer = 0) { return part.weight(tensor, layer); }
    float* g(int tensor, int64_t layer = 0) { return part.gradient(tensor, layer); }
};
inline float* const none = nullptr;
// At three times this rate, rounding alone takes weights more than 1e-5 apart within 200 steps.
constexpr float RATE = 1e-3f;
// ---- a layer

// The elements that a layer keeps of a micro-batch: of all C channels, and of those of the heads
// of this process.
inline int64_t record_elems(const Split& s) {
    return s.rows() * (2 * s.c.C + 4) + s.kept_rows() * 2 * s.c.C + ROWS * (12 * s.width() + s.c.NH / s.P());
}
inline LayerRecord record(const Split& s, const Floats& x) {
    const int64_t C = s.c.C, W = s.width(), rows = s.rows(), kept = s.kept_rows();
    return {Counted(x.begin(), x.end()), Counted(kept * C),
            Counted(ROWS * 3 * W),       Counted(ROWS * W),
            Counted(rows * C),           Counted(kept * C),
            Counted(ROWS * 4 * W),       Counted(ROWS * 4 * W),
            Counted(rows * 4),           Counted(ROWS * s.c.NH / s.P())};
}
// all (ROWS, C) from own (rows, C), of which kept has as much as the backward pass is to find.
inline void gather_and_keep(const Split& s, float* all, Counted& kept, const float* own) {
    all_rows(s, all, own);
    std::copy_n(s.sequence == 2 ? own : all, kept.size(), kept.begin());
}
// x (rows, C): from the layer's input to its output. k is written. The bias of a row product is in
// one part of the sum.
inline void layer_forward(SharedLayers& m, int64_t l, LayerRecord& k, Floats& x) {
    const Split& s = m.split;
    const int64_t C = s.c.C, W = s.width(), rows = s.rows();
    const auto bias = [&](int tensor) { return s.group.rank == 0 ? m.w(tensor, l) : none; };
    float* norms = k.norms.data();
    Floats all(ROWS * C), own(rows * C);
    kernels::layernorm_forward(own.data(), norms, norms + rows, x.data(), m.w(LN1W, l), m.w(LN1B, l), rows, C);
    gather_and_keep(s, all.data(), k.ln1, own.data());
    kernels::matmul_forward(k.qkv.data(), all.data(), m.w(QKVW, l), m.w(QKVB, l), ROWS, C, 3 * W);
    kernels::attention_forward(k.atty.data(), k.lse.data(), k.qkv.data(), B, T, W, s.c.NH / s.P());
    kernels::matmul_forward(all.data(), k.atty.data(), m.w(ATTPROJW, l), bias(ATTPROJB), ROWS, W, C);
    sum_rows(s, own.data(), all.data());
    kernels::residual_layernorm_forward(k.residual2.data(), x.data(), norms + 2 * rows, norms + 3 * rows,
                                        k.input.data(), own.data(), m.w(LN2W, l), m.w(LN2B, l), rows, C);
    gather_and_keep(s, all.data(), k.ln2, x.data());
    kernels::matmul_forward(k.fch.data(), all.data(), m.w(FCW, l), m.w(FCB, l), ROWS, C, 4 * W, k.gelu.data());
    kernels::matmul_forward(all.data(), k.gelu.data(), m.w(FCPROJW, l), bias(FCPROJB), ROWS, 4 * W, C);
    sum_rows(s, own.data(), all.data());
    kernels::residual_forward(x.data(), k.residual2.data(), own.data(), rows * C);
}
// Backward through a column product that read the layer norm of inp: dout (ROWS, OC) becomes a
// gradient of inp, which is added to d (rows, C).
inline void column_backward(SharedLayers& m, int64_t l, float* d, const Floats& dout, const Counted& kept, int weight,
                            int bias, const Counted& inp, int norm_weight, int norm_bias, const float* norms) {
    const Split& s = m.split;
    const int64_t C = s.c.C, rows = s.rows();
    Floats all, part(ROWS * C), own(rows * C);
    if (s.sequence == 2) all.resize(ROWS * C), all_rows(s, all.data(), kept.data());
    kernels::matmul_backward(part.data(), m.g(weight, l), m.g(bias, l), dout.data(),
                             s.sequence == 2 ? all.data() : kept.data(), m.w(weight, l), ROWS, C,
                             (int64_t)dout.size() / ROWS, true);
    sum_rows(s, own.data(), part.data());
    kernels::layernorm_backward(d, m.g(norm_weight, l), m.g(norm_bias, l), own.data(), inp.data(), m.w(norm_weight, l),
                                norms, norms + rows, rows, C, true);
}
// d (rows, C): from the gradient of the layer's output to that of its input.
inline void layer_backward(SharedLayers& m, int64_t l, LayerRecord& k, float* d) {
    const Split& s = m.split;
    const int64_t C = s.c.C, W = s.width();
    Floats all(ROWS * C), dfch(ROWS * 4 * W), datty(ROWS * W), dqkv(ROWS * 3 * W);
    all_rows(s, all.data(), d);
    kernels::matmul_backward(dfch.data(), m.g(FCPROJW, l), m.g(FCPROJB, l), all.data(), k.gelu.data(), m.w(FCPROJW, l),
                             ROWS, 4 * W, C, true, k.fch.data());
    column_backward(m, l, d, dfch, k.ln2, FCW, FCB, k.residual2, LN2W, LN2B, k.norms.data() + 2 * s.rows());
    all_rows(s, all.data(), d);
    kernels::matmul_backward(datty.data(), m.g(ATTPROJW, l), m.g(ATTPROJB, l), all.data(), k.atty.data(),
                             m.w(ATTPROJW, l), ROWS, W, C, true);
    kernels::attention_backward(dqkv.data(), datty.data(), k.atty.data(), k.lse.data(), k.qkv.data(), B, T, W,
                                s.c.NH / s.P());
    column_backward(m, l, d, dqkv, k.ln1, QKVW, QKVB, k.input, LN1W, LN1B, k.norms.data());
}

// ---- the embedding and the classifier, split by tokens of the vocabulary

// x (rows, C) = wte + wpe. The process that has a token's row brings it to the sum, the others 0.
inline void embed(SharedLayers& m, Floats& x, const int* inp) {
    const Split& s = m.split;
    const int64_t C = s.c.C;
    Floats all(ROWS * C);
    for_own_tokens(s, inp, [&](int64_t t, int64_t row) { std::copy_n(m.w(WTE) + row * C, C, &all[t * C]); });
    sum_rows(s, x.data(), all.data());
    kernels::residual_forward(x.data(), x.data(), m.w(WPE), x.size());
}
inline void embed_backward(SharedLayers& m, const Floats& d, const int* inp) {
    const Split& s = m.split;
    const int64_t C = s.c.C;
    Floats all(ROWS * C);
    all_rows(s, all.data(), d.data());
    for_own_tokens(s, inp, [&](int64_t t, int64_t row) {
        kernels::residual_forward(m.g(WTE) + row * C, m.g(WTE) + row * C, &all[t * C], C);
    });
    kernels::residual_forward(m.g(WPE), m.g(WPE), d.data(), d.size());
}

// x (rows, C): from the last layer's output to its gradient.
inline void classify(SharedLayers& m, Floats& x, const int* targets, float dloss) {
    const Split& s = m.split;
    const int64_t C = s.c.C, rows = s.rows();
    const Counted residual3(x.begin(), x.end());
    Counted norms(2 * rows);
    Floats all(ROWS * C), lnf(ROWS * C), logits(ROWS * s.vocabulary());
    kernels::layernorm_forward(x.data(), norms.data(), norms.data() + rows, residual3.data(), m.w(LNFW), m.w(LNFB),
                               rows, C);
    all_rows(s, lnf.data(), x.data());
    kernels::matmul_forward(logits.data(), lnf.data(), m.w(WTE), none, ROWS, C, s.vocabulary());
    m.loss += softmax_losses(s, logits.data(), targets, dloss);
    kernels::matmul_backward(all.data(), m.g(WTE), none, logits.data(), lnf.data(), m.w(WTE), ROWS, C, s.vocabulary(),
                             true);
    Floats dlnf(rows * C);
    sum_rows(s, dlnf.data(), all.data());
    std::fill(x.begin(), x.end(), 0.0f);
    kernels::layernorm_backward(x.data(), m.g(LNFW), m.g(LNFB), dlnf.data(), residual3.data(), m.w(LNFW), norms.data(),
                                norms.data() + rows, rows, C, true);
}
