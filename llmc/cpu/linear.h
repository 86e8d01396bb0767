// What is computed with the matrices of a model, be they numbers or codes (adapt/weight_codes.h).
// With --lora an adapter adds to a product (low_rank.h).
#pragma once
#include "llmc/cpu/kernels.h"
#include "llmc/model/teacher.h"

template <class floatX>
InStrips<floatX> in_strips(GPT2& model, int64_t l, int matrix) {
    return {model.codes.matrix(matrix, l), (floatX*)model.decoded_strip};
}

// out (rows, OC) = inp (rows, C) times a matrix (OC, C) of layer l, or wte, plus its bias if it has
// one; and gelu_out (rows, OC) = gelu(out) unless it is null.
template <class floatX>
void linear_forward(GPT2& model, int64_t l, int matrix, floatX* out, const floatX* inp, int64_t rows, int64_t C,
                    int64_t OC, floatX* gelu_out = nullptr) {
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const floatX *weight = param(matrix), *bias = matrix == WTE ? nullptr : param(matrix + 1);
    const bool adapted = is_adapted(matrix, model.layout.config), exact = model.sizes.training;
    const bool few_rows = rows <= MATMUL_FEW_ROWS && !exact;
    if (model.codes && (few_rows || !adapted))
        kernels::coded_matmul(out, inp, model.codes.matrix(matrix, l), bias, rows, adapted ? nullptr : gelu_out,
                              model.decoded_strip, exact);
    else if (!adapted) kernels::matmul_forward(out, inp, weight, bias, rows, C, OC, gelu_out);
    if (!adapted) return;
    const LowRank& lora = model.layout.config.lora;
    const floatX *A = param(adapter_of(matrix)), *B = param(adapter_of(matrix) + 1);
    floatX* const low = act(LOW_RANK);
    if (model.codes && few_rows)
        kernels::low_rank_add(out, inp, A, B, low, rows, C, OC, lora.rank, lora.scale(), gelu_out);
    else if (model.codes)
        kernels::low_rank_forward(out, inp, in_strips<floatX>(model, l, matrix), bias, A, B, low, rows, C, OC,
                                  lora.rank, lora.scale(), gelu_out);
    else kernels::low_rank_forward(out, inp, weight, bias, A, B, low, rows, C, OC, lora.rank, lora.scale(), gelu_out);
}
// The gradients of inp, and of what trains; grad(tensor) of the layer, as train_gpt2_cpu.cpp has
// it.
template <class floatX, class Grad>
void linear_backward(GPT2& model, int64_t l, int matrix, Grad grad, floatX* dinp, const floatX* dout, const floatX* inp,
                     int64_t rows, int64_t C, int64_t OC, bool add, const floatX* pre_gelu = nullptr) {
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const floatX* weight = param(matrix);
    if (!is_adapted(matrix, model.layout.config)) {
        if (!model.codes)
            kernels::matmul_backward(dinp, grad(matrix), grad(matrix + 1), dout, inp, weight, rows, C, OC, add,
                                     pre_gelu);
        else if (dinp)
            kernels::coded_backward(dinp, dout, model.codes.matrix(matrix, l), rows, model.decoded_strip, pre_gelu);
        return;
    }
    const LowRank& lora = model.layout.config.lora;
    const int adapter = adapter_of(matrix);
    const floatX *A = param(adapter), *B = param(adapter + 1);
    floatX* const low = act(LOW_RANK);
    const auto backward = [&](const auto& matrix) {
        kernels::low_rank_backward(dinp, grad(adapter), grad(adapter + 1), dout, inp, matrix, A, B, low, rows, C, OC,
                                   lora.rank, lora.scale(), add, pre_gelu);
    };
    if (model.codes) backward(in_strips<floatX>(model, l, matrix));
    else backward(weight);
}

// out (B,T,C) = the embeddings of tokens (B,T), which are positions first to first + T - 1.
template <class floatX>
void embed(GPT2& model, floatX* out, const int* tokens, int64_t B, int64_t T, int64_t first = 0) {
    const floatX* const wpe = model.param<floatX>(WPE);
    if (model.codes) kernels::coded_encoder(out, tokens, model.codes.matrix(WTE), wpe, B, T, first);
    else kernels::encoder_forward(out, tokens, model.param<floatX>(WTE), wpe, B, T, model.layout.config.C, first);
}

// losses (rows) of targets (rows) after lnf (rows, C), and unless dlnf is null gradients: as
// classifier().
template <class floatX, class floatG>
void losses_of(GPT2& model, float* losses, floatX* dlnf, floatG* dwte, const floatX* lnf, const int* targets,
               int64_t rows, float dloss, bool add, float* dwte_sums, const Teacher<floatX>& teacher) {
    const GPT2Config& c = model.layout.config;
    floatX* const logits = model.act<floatX>(LOGITS);
    if (model.codes)
        kernels::coded_classifier(losses, dlnf, logits, lnf, model.codes.matrix(WTE), targets, rows, c.V, dloss,
                                  model.decoded_strip, teacher);
    else
        kernels::classifier(losses, dlnf, dwte, logits, lnf, model.param<floatX>(WTE), targets, rows, c.C, c.V, c.Vp,
                            dloss, add, dwte_sums, teacher, model.gradient_places.wte_in_pieces);
}
template <class floatX>
void losses_of(GPT2& model, float* losses, const floatX* lnf, const int* targets, int64_t rows) {
    floatX* const none = nullptr;
    losses_of(model, losses, none, none, lnf, targets, rows, 0.0f, false, nullptr, Teacher<floatX>());
}
