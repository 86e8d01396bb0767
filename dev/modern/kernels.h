// The kernels of the model: llmc's, and those that GPT-2 has not; naive loops where
// KERNELS=reference.
#pragma once
#include "dev/modern/rmsnorm.h"
#include "dev/modern/rope.h"
#include "dev/modern/softcap.h"
#include "dev/modern/swiglu.h"
#include "dev/modern/values.h"
#include "llmc/cpu/kernels.h"

#ifndef KERNELS_REFERENCE
namespace kernels {
using ::add_to_values, ::capped_classifier, ::gelu_backward, ::mix_values_backward, ::mix_values_forward,
    ::qk_norm_backward, ::qk_norm_forward, ::relu2_backward, ::relu2_forward, ::residual_rmsnorm_forward,
    ::rmsnorm_backward, ::rmsnorm_forward, ::rope, ::softcap_forward, ::swiglu_backward, ::swiglu_forward;
}
#endif
