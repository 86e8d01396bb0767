// What the CPU trainer uses of this folder is compiled once, in compiled_once.cpp, for both types
// of weights: a change of the trainer leaves it alone. One line for each function. To be included
// last.
#pragma once
#include "llmc/cpu/backend.h"
#include "llmc/cpu/compressed_gradients.h"
#include "llmc/cpu/kernels.h"
#include "llmc/cpu/other_optimizers.h"
#include "llmc/cpu/wte_pieces.h"

// clang-format off
#define FUNCTIONS_OF_TYPE(X, floatX) \
  X const Backend& cpu_backend<floatX>(); \
  X std::function<void(int64_t)> prepare_other_optimizer<floatX>(GPT2&, const UpdateConstants&, \
                                                                const UpdateSettings&); \
  X void encoder_forward(floatX*, const int*, const floatX*, const floatX*, int64_t, int64_t, int64_t, int64_t); \
  X void layernorm_forward(floatX*, float*, float*, const floatX*, const floatX*, const floatX*, int64_t, int64_t); \
  X void residual_forward(floatX*, const floatX*, const floatX*, size_t); \
  X void residual_layernorm_forward(floatX*, floatX*, float*, float*, const floatX*, const floatX*, const floatX*, \
                                       const floatX*, int64_t, int64_t); \
  X const floatX* dropout(floatX*, const floatX*, size_t, const DropoutMask&); \
  X void encode_activations(ActivationCodes, const floatX*, size_t); \
  X void decode_activations(floatX*, ActivationCodes, size_t); \
  X void gelu_forward(floatX*, const floatX*, size_t); \
  X void matmul_forward(floatX*, const floatX*, const floatX*, const floatX*, int64_t, int64_t, int64_t, floatX*); \
  X void low_rank_forward(floatX*, const floatX*, const floatX*, const floatX*, const floatX*, const floatX*, floatX*, \
                             int64_t, int64_t, int64_t, int64_t, float, floatX*); \
  X void low_rank_forward(floatX*, const floatX*, InStrips<floatX>, const floatX*, const floatX*, const floatX*, \
                             floatX*, int64_t, int64_t, int64_t, int64_t, float, floatX*); \
  X void low_rank_add(floatX*, const floatX*, const floatX*, const floatX*, floatX*, int64_t, int64_t, int64_t, \
                         int64_t, float, floatX*); \
  X void attention_forward(floatX*, float*, const floatX*, int64_t, int64_t, int64_t, int64_t, const int*, \
                              int64_t, int64_t); \
  X void attention_backward(floatX*, const floatX*, const floatX*, const float*, const floatX*, int64_t, int64_t, \
                               int64_t, int64_t, const int*, int64_t, int64_t); \
  X void attention_decode(floatX*, floatX*, floatX*, const floatX*, float*, int64_t, int64_t, int64_t, int64_t, \
                             int64_t, int64_t); \
  X void fill_cache(floatX*, floatX*, const floatX*, int64_t, int64_t, int64_t, int64_t, int64_t); \
  X void coded_matmul(floatX*, const floatX*, const CodeMatrix&, const floatX*, int64_t, floatX*, void*, bool); \
  X void coded_backward(floatX*, const floatX*, const CodeMatrix&, int64_t, void*, const floatX*); \
  X void coded_encoder(floatX*, const int*, const CodeMatrix&, const floatX*, int64_t, int64_t, int64_t); \
  X void coded_classifier(float*, floatX*, floatX*, const floatX*, const CodeMatrix&, const int*, int64_t, int64_t, \
                             float, void*, const Teacher<floatX>&); \
  X void sum_wte_in_pieces<floatX>(GPT2&, const Batch&); \
  X double global_norm_squared(const floatX*, size_t);
#define FUNCTIONS_OF_TYPES(X, floatX, floatG) \
  X void encoder_backward(floatG*, floatG*, const floatX*, const int*, int64_t, int64_t, int64_t, int64_t, bool); \
  X void layernorm_backward(floatX*, floatG*, floatG*, const floatX*, const floatX*, const floatX*, const float*, \
                               const float*, int64_t, int64_t, bool); \
  X void matmul_backward(floatX*, floatG*, floatG*, const floatX*, const floatX*, const floatX*, int64_t, int64_t, \
                            int64_t, bool, const floatX*); \
  X void low_rank_backward(floatX*, floatG*, floatG*, const floatX*, const floatX*, const floatX*, const floatX*, \
                              const floatX*, floatX*, int64_t, int64_t, int64_t, int64_t, float, bool, const floatX*); \
  X void low_rank_backward(floatX*, floatG*, floatG*, const floatX*, const floatX*, InStrips<floatX>, const floatX*, \
                              const floatX*, floatX*, int64_t, int64_t, int64_t, int64_t, float, bool, const floatX*); \
  X void classifier(float*, floatX*, floatG*, floatX*, const floatX*, const floatX*, const int*, int64_t, int64_t, \
                       int64_t, int64_t, float, bool, float*, const Teacher<floatX>&, bool); \
  X void adamw_update(floatX*, float*, float*, float*, const floatG*, size_t, const UpdateConstants&, uint64_t, \
                         int64_t);
// clang-format on
#ifdef KERNELS_REFERENCE
#define COMPILED_ONCE(X)
#else
#define COMPILED_ONCE(X) \
    FUNCTIONS_OF_TYPE(X, float) \
    FUNCTIONS_OF_TYPE(X, bf16) \
    FUNCTIONS_OF_TYPES(X, float, float) FUNCTIONS_OF_TYPES(X, bf16, float) FUNCTIONS_OF_TYPES(X, bf16, bf16)
#endif
COMPILED_ONCE(extern template)
