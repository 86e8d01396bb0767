// What is computed with the matrices of a model, be they numbers or, for generation and evaluation,
// codes (adapt/weight_codes.h). With --lora an adapter adds to a product (low_rank.h).
#pragma once
#include "llmc/cpu/kernels.h"
#include "llmc/model/teacher.h"

// out (rows, OC) = inp (rows, C) times a matrix (OC, C) of layer l, or wte, plus its bias if it has
// one; and gelu_out (rows, OC) = gelu(out) unless it is null.
template <class floatX>
void linear_forward(GPT2& model, int64_t l, int matrix, floatX* out, const floatX* inp, int64_t rows, int64_t C,
                    int64_t OC, floatX* gelu_out = nullptr) {
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const floatX *weight = param(matrix), *bias = matrix == WTE ? nullptr : param(matrix + 1);
    const bool adapted = is_adapted(matrix, model.layout.config);
    if (model.codes)
        kernels::coded_matmul(out, inp, model.codes.matrix(matrix, l), bias, rows, adapted ? nullptr : gelu_out,
                              model.decoded_strip);
    else if (!adapted) kernels::matmul_forward(out, inp, weight, bias, rows, C, OC, gelu_out);
    if (!adapted) return;
    const int A = adapter_of(matrix);
    const LowRank& lora = model.layout.config.lora;
    if (model.codes)
        return kernels::low_rank_add(out, inp, (const floatX*)param(A), (const floatX*)param(A + 1), act(LOW_RANK),
                                     rows, C, OC, lora.rank, lora.scale(), gelu_out);
    kernels::low_rank_forward(out, inp, weight, bias, (const floatX*)param(A), (const floatX*)param(A + 1),
                              act(LOW_RANK), rows, C, OC, lora.rank, lora.scale(), gelu_out);
}
// The gradients of inp, and of what trains; grad(tensor) of the layer, as train_gpt2_cpu.cpp has
// it.
template <class floatX, class Grad>
void linear_backward(GPT2& model, int64_t l, int matrix, Grad grad, floatX* dinp, const floatX* dout, const floatX* inp,
                     int64_t rows, int64_t C, int64_t OC, bool add, const floatX* pre_gelu = nullptr) {
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const floatX* weight = param(matrix);
    if (!is_adapted(matrix, model.layout.config))
        return kernels::matmul_backward(dinp, grad(matrix), grad(matrix + 1), dout, inp, weight, rows, C, OC, add,
                                        pre_gelu);
    const int A = adapter_of(matrix);
    const LowRank& lora = model.layout.config.lora;
    kernels::low_rank_backward(dinp, grad(A), grad(A + 1), dout, inp, weight, (const floatX*)param(A),
                               (const floatX*)param(A + 1), act(LOW_RANK), rows, C, OC, lora.rank, lora.scale(), add,
                               pre_gelu);
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
