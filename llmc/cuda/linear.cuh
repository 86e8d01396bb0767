// What is computed with the matrices of a model on a GPU, be they numbers or codes
// (weight_codes.cuh); with --lora an adapter adds to a product (low_rank.cuh). static: tests link
// the CPU's functions of the same names.
#pragma once
#include "llmc/cuda/encoder.cuh"
#include "llmc/cuda/gpu.cuh"
#include "llmc/cuda/low_rank.cuh"
#include "llmc/cuda/weight_codes.cuh"
#include "llmc/model/model.h"

// A matrix of layer l, or wte; of codes the numbers that they stand for, until the next call.
template <class floatX>
static const floatX* matrix_of(GPT2& model, int matrix, int64_t l = 0) {
    if (!model.codes) return model.param<floatX>(matrix, l);
    decode_weights((floatX*)model.decoded_strip, model.codes.matrix(matrix, l), model.gpu->stream);
    return (const floatX*)model.decoded_strip;
}

// out (rows, OC) of a matrix (OC, C) of layer l, or of wte, which has no bias, and gelu_out of it
// unless it is null.
template <class floatX>
static void linear_forward(GPT2& model, int64_t l, int matrix, floatX* out, const floatX* inp, int64_t rows, int64_t C,
                           int64_t OC, floatX* gelu_out = nullptr) {
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const cudaStream_t stream = model.gpu->stream;
    const floatX* bias = matrix == WTE ? nullptr : param(matrix + 1);
    const int adapter = is_adapted(matrix, model.layout.config) ? adapter_of(matrix) : -1;
    const LowRank& lora = model.layout.config.lora;
    if (model.codes && rows == 1 && !model.sizes.training) {
        coded_matvec(out, inp, model.codes.matrix(matrix, l), bias, stream, adapter < 0 ? gelu_out : nullptr);
        if (adapter >= 0)
            low_rank_add(out, inp, (const floatX*)param(adapter), (const floatX*)param(adapter + 1), act(LOW_RANK),
                         rows, C, OC, lora.rank, lora.scale(), stream, gelu_out);
        return;
    }
    const floatX* weight = matrix_of<floatX>(model, matrix, l);
    if (adapter < 0)
        return matmul_forward(out, inp, weight, bias, rows, C, OC, stream, gelu_out, model.gpu->gelu_fusion >= 1);
    low_rank_forward(out, inp, weight, bias, (const floatX*)param(adapter), (const floatX*)param(adapter + 1),
                     act(LOW_RANK), rows, C, OC, lora.rank, lora.scale(), stream, gelu_out);
}
// The gradients of inp, and of what trains; grad(tensor) of the layer, as train_gpt2.cu has it.
template <class floatX, class Grad>
static ColumnSums linear_backward(GPT2& model, int64_t l, int matrix, Grad grad, floatX* dinp, ColumnSums sums,
                                  const floatX* dout, const floatX* inp, int64_t rows, int64_t C, int64_t OC, bool add,
                                  const floatX* pre_gelu = nullptr) {
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const cudaStream_t stream = model.gpu->stream;
    const floatX* weight = dinp ? matrix_of<floatX>(model, matrix, l) : nullptr;  // only Dinp needs it
    if (!is_adapted(matrix, model.layout.config))
        return matmul_backward(dinp, grad(matrix), grad(matrix + 1), sums, dout, inp, weight, rows, C, OC, add, stream,
                               pre_gelu, model.gpu->gelu_fusion >= 2);
    const int A = adapter_of(matrix);
    const LowRank& lora = model.layout.config.lora;
    return low_rank_backward(dinp, grad(A), grad(A + 1), sums.partials, dout, inp, weight, (const floatX*)param(A),
                             (const floatX*)param(A + 1), act(LOW_RANK), rows, C, OC, lora.rank, lora.scale(), add,
                             stream, pre_gelu);
}

// out (B,T,C) = the embeddings of tokens (B,T), which are positions first to first + T - 1.
template <class floatX>
static void embed(GPT2& model, floatX* out, const int* tokens, int64_t B, int64_t T, int64_t first = 0) {
    const floatX *const wte = model.param<floatX>(WTE), *const wpe = model.param<floatX>(WPE);
    const cudaStream_t stream = model.gpu->stream;
    if (model.codes) coded_encoder(out, tokens, model.codes.matrix(WTE), wpe, B, T, first, stream);
    else encoder_forward(out, tokens, wte, wpe, B, T, model.layout.config.C, first, stream);
}
