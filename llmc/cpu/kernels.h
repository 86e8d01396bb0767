// The kernels of the CPU trainer: those of this folder, or the naive loops of reference.h
// (KERNELS=reference).
#pragma once
#include "llmc/cpu/activation_codes.h"
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/optimizer_passes.h"
#include "llmc/cpu/attention_decode.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/coded_layers.h"
#include "llmc/cpu/directions.h"
#include "llmc/cpu/dropout.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/factors.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/low_rank.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/orthogonalize.h"
#include "llmc/cpu/reference_low_rank.h"
#include "llmc/cpu/reference_optimizers.h"
#include "llmc/cpu/reference_weight_codes.h"
#include "llmc/cpu/scratch.h"

#if defined(KERNELS_REFERENCE)
namespace kernels = reference;
#else
namespace kernels {
using ::adamw_update, ::attention_backward, ::attention_decode, ::attention_forward, ::blocks_update, ::classifier,
    ::classifier_chunk_rows, ::coded_backward, ::coded_classifier, ::coded_encoder, ::coded_matmul, ::collect_factors,
    ::directions_from_state, ::encoder_backward, ::encoder_forward, ::decode_activations, ::directions_from_factors,
    ::dropout, ::encode_activations, ::gelu_forward, ::global_norm_squared, ::layernorm_backward, ::layernorm_forward,
    ::low_rank_add, ::low_rank_backward, ::low_rank_forward, ::matmul_backward, ::matmul_forward, ::optimizer_update,
    ::orthogonalize, ::residual_forward, ::residual_layernorm_forward;
}
#endif
