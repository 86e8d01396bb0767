// What the trainer computes with the weights of its model, be they numbers or codes
// (adapt/weight_codes.h).
#pragma once
#include "llmc/cpu/kernels.h"
#include "llmc/model/model.h"

constexpr int NO_BIAS = -1;

// out (rows, OC) = inp (rows, C) weight^T + bias, with the tensors `weight` (OC, C) and `bias` of
// layer l; and gelu_out (rows, OC) = gelu(out) if it is not null.
template <class floatX>
void linear(GPT2& model, int64_t l, floatX* out, const floatX* inp, int weight, int bias, int64_t rows,
            floatX* gelu_out = nullptr) {
    const GPT2Config& c = model.layout.config;
    const int64_t C = dimension(TENSORS[weight].cols, c), OC = dimension(TENSORS[weight].rows, c);
    const floatX* const b = bias == NO_BIAS ? nullptr : model.param<floatX>(bias, l);
    if (model.codes)
        kernels::coded_matmul(out, inp, model.codes.matrix(weight, l), b, rows, gelu_out, model.decoded_strip);
    else kernels::matmul_forward(out, inp, model.param<floatX>(weight, l), b, rows, C, OC, gelu_out);
}

// out (B,T,C) = the embeddings of tokens (B,T), which are positions first to first + T - 1.
template <class floatX>
void embed(GPT2& model, floatX* out, const int* tokens, int64_t B, int64_t T, int64_t first = 0) {
    const floatX* const wpe = model.param<floatX>(WPE);
    if (model.codes) kernels::coded_encoder(out, tokens, model.codes.matrix(WTE), wpe, B, T, first);
    else kernels::encoder_forward(out, tokens, model.param<floatX>(WTE), wpe, B, T, model.layout.config.C, first);
}

// losses (rows) of targets (rows) after lnf (rows, C), without gradients.
template <class floatX>
void losses_of(GPT2& model, float* losses, const floatX* lnf, const int* targets, int64_t rows) {
    const GPT2Config& c = model.layout.config;
    floatX *const none = nullptr, *const logits = model.act<floatX>(LOGITS);
    if (model.codes)
        kernels::coded_classifier(losses, logits, lnf, model.codes.matrix(WTE), targets, rows, c.V,
                                  model.decoded_strip);
    else
        kernels::classifier(losses, none, none, logits, lnf, model.param<floatX>(WTE), targets, rows, c.C, c.V, c.Vp,
                            0.0f, false);
}
