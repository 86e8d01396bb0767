// The linear layers of a model on a GPU: a product with a matrix, and with --lora what an adapter
// adds to it (low_rank.cuh). static: tests link the CPU's functions of the same names.
#pragma once
#include "llmc/cuda/gpu.cuh"
#include "llmc/cuda/low_rank.cuh"
#include "llmc/model/model.h"

// out (rows, OC) of a matrix (OC, C) of layer l, and gelu_out of it unless it is null.
template <class floatX>
static void linear_forward(GPT2& model, int64_t l, int matrix, floatX* out, const floatX* inp, int64_t rows, int64_t C,
                           int64_t OC, floatX* gelu_out = nullptr) {
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const cudaStream_t stream = model.gpu->stream;
    const floatX *weight = param(matrix), *bias = param(matrix + 1);
    if (!is_adapted(matrix, model.layout.config))
        return matmul_forward(out, inp, weight, bias, rows, C, OC, stream, gelu_out, model.gpu->gelu_fusion >= 1);
    const int A = adapter_of(matrix);
    const LowRank& lora = model.layout.config.lora;
    low_rank_forward(out, inp, weight, bias, (const floatX*)param(A), (const floatX*)param(A + 1), act(LOW_RANK), rows,
                     C, OC, lora.rank, lora.scale(), stream, gelu_out);
}
// The gradients of inp, and of what trains; grad(tensor) of the layer, as train_gpt2.cu has it.
template <class floatX, class Grad>
static ColumnSums linear_backward(GPT2& model, int64_t l, int matrix, Grad grad, floatX* dinp, ColumnSums sums,
                                  const floatX* dout, const floatX* inp, int64_t rows, int64_t C, int64_t OC, bool add,
                                  const floatX* pre_gelu = nullptr) {
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const cudaStream_t stream = model.gpu->stream;
    const floatX* weight = param(matrix);
    if (!is_adapted(matrix, model.layout.config))
        return matmul_backward(dinp, grad(matrix), grad(matrix + 1), sums, dout, inp, weight, rows, C, OC, add, stream,
                               pre_gelu, model.gpu->gelu_fusion >= 2);
    const int A = adapter_of(matrix);
    const LowRank& lora = model.layout.config.lora;
    return low_rank_backward(dinp, grad(A), grad(A + 1), sums.partials, dout, inp, weight, (const floatX*)param(A),
                             (const floatX*)param(A + 1), act(LOW_RANK), rows, C, OC, lora.rank, lora.scale(), add,
                             stream, pre_gelu);
}
