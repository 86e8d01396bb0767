// The linear layers of a model: a product with a matrix, and with --lora what an adapter adds to it
// (low_rank.h).
#pragma once
#include "llmc/cpu/kernels.h"
#include "llmc/model/model.h"

// out (rows, OC) of a matrix (OC, C) of layer l, and gelu_out of it unless it is null.
template <class floatX>
void linear_forward(GPT2& model, int64_t l, int matrix, floatX* out, const floatX* inp, int64_t rows, int64_t C,
                    int64_t OC, floatX* gelu_out = nullptr) {
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const floatX *weight = param(matrix), *bias = param(matrix + 1);
    if (!is_adapted(matrix, model.layout.config))
        return kernels::matmul_forward(out, inp, weight, bias, rows, C, OC, gelu_out);
    const int A = adapter_of(matrix);
    const LowRank& lora = model.layout.config.lora;
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
