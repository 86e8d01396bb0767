// The one table of everything a model holds beside its parameters: activations, scratch, the cache
// for generation. What is allocated, what --plan prints and what it adds up to come from here, to
// the byte.
//
// Per layer: L copies, unless the recompute level says that the backward pass makes it again; then
// one copy serves all layers in turn.
//   level 1 drops the output of GELU, 2 also those of the layer norms, 3 all but the residual stream between layers.
// floatX is the trainer's type of weights and activations, fp32 or bf16. Rows marked GPU exist
// there only.
#pragma once
#include <algorithm>
#include <string>
#include <vector>
#include "llmc/integer_math.h"
#include "llmc/tensors.h"

// clang-format off
enum Activation {
    ENCODED, LN1, LN1_MEAN, LN1_RSTD, QKV, ATTY, ATT_LSE, RESIDUAL2, LN2, LN2_MEAN, LN2_RSTD, FCH, FCH_GELU, RESIDUAL3,
    LNF, LNF_MEAN, LNF_RSTD, LOSSES,
    BRANCH, LOGITS, DRESIDUAL, DWIDE, KEYS, VALUES, SCORES,
    INPUTS, TARGETS, PARTIALS, RESULTS, BLAS_WORKSPACE, ATT_D, TOKEN_ORDER,  // on GPUs only
    DWTE, NUM_ACTIVATIONS
};
// clang-format on
enum ElementType { FLOATX, FP32, INT32, BYTES };

struct Sizes {
    GPT2Config config;
    // cache_T: positions of generation, 0 = none; logit_rows: rows of logits at once
    int64_t B, T, recompute, cache_T, logit_rows;
    bool training;
    int64_t micro_steps = 1, processes = 1;
    bool gpu = false;
    // guard_bytes: left free after each tensor, for the simulator to watch
    int64_t floatX_bytes = 4, blas_workspace_bytes = 0, guard_bytes = 0;
    // What is summed over several micro-steps is summed in fp32; on a CPU also what is summed over
    // several processes.
    bool sums_gradients() const { return floatX_bytes < 4 && (micro_steps > 1 || (!gpu && processes > 1)); }
    // Whether the gradient of wte needs fp32 sums of its own before it is rounded: where 16-bit
    // gradients have no others, on a CPU only for several chunks of rows, which it gets over before
    // anything is written to the gradients of the layers. If these are large enough, the sums lie
    // there.
    bool dwte_has_sums() const {
        return floatX_bytes < 4 && !sums_gradients() && training && (gpu || B * T > logit_rows);
    }
    bool dwte_sums_in_layers() const {
        return dwte_has_sums() && !gpu &&
               parameter_layout(config, processes).bucket_begin[config.L] * floatX_bytes >= config.Vp * config.C * 4;
    }
};

struct ActivationInfo {
    const char *name, *shape, *until;  // until: what needs it last
    bool per_layer;
    int dropped_at;  // recompute level from which one copy is enough
    enum Purpose { FORWARD, BACKWARD, GENERATION } purpose;
    ElementType type;
    int64_t (*elems)(const Sizes& s);  // of one copy
    bool gpu_only = false;
};

#define ELEMS [](const Sizes& s) -> int64_t
constexpr int NEVER = 99;
inline const ActivationInfo ACTIVATIONS[] = {{"encoded", "(B,T,C)", "backward of layer 0", false, NEVER,
                                              ActivationInfo::FORWARD, FLOATX, ELEMS{return s.B * s.T * s.config.C;
}
}
, {"ln1", "(B,T,C)", "backward of qkv", true, 2, ActivationInfo::FORWARD, FLOATX, ELEMS{return s.B * s.T * s.config.C;
}
}
, {"ln1_mean", "(B,T)", "backward of ln1", true, 3, ActivationInfo::FORWARD, FP32, ELEMS{return s.B * s.T;
}
}
, {"ln1_rstd", "(B,T)", "backward of ln1", true, 3, ActivationInfo::FORWARD, FP32, ELEMS{return s.B * s.T;
}
}
, {"qkv", "(B,T,3C)", "backward of attention", true, 3, ActivationInfo::FORWARD, FLOATX,
   ELEMS{return s.B * s.T * 3 * s.config.C;
}
}
, {"atty", "(B,T,C)", "backward of attention", true, 3, ActivationInfo::FORWARD, FLOATX,
   ELEMS{return s.B * s.T * s.config.C;
}
}
, {"att_lse", "(B,NH,T)", "backward of attention", true, 3, ActivationInfo::FORWARD, FP32,
   ELEMS{return s.B * s.T * s.config.NH;
}
}
, {"residual2", "(B,T,C)", "backward of ln2", true, 3, ActivationInfo::FORWARD, FLOATX,
   ELEMS{return s.B * s.T * s.config.C;
}
}
, {"ln2", "(B,T,C)", "backward of fc", true, 2, ActivationInfo::FORWARD, FLOATX, ELEMS{return s.B * s.T * s.config.C;
}
}
, {"ln2_mean", "(B,T)", "backward of ln2", true, 3, ActivationInfo::FORWARD, FP32, ELEMS{return s.B * s.T;
}
}
, {"ln2_rstd", "(B,T)", "backward of ln2", true, 3, ActivationInfo::FORWARD, FP32, ELEMS{return s.B * s.T;
}
}
, {"fch", "(B,T,4C)", "backward of gelu", true, 3, ActivationInfo::FORWARD, FLOATX,
   ELEMS{return s.B * s.T * 4 * s.config.C;
}
}
, {"fch_gelu", "(B,T,4C)", "backward of fcproj", true, 1, ActivationInfo::FORWARD, FLOATX,
   ELEMS{return s.B * s.T * 4 * s.config.C;
}
}
, {"residual3", "(B,T,C)", "backward of the next ln1", true, NEVER, ActivationInfo::FORWARD, FLOATX,
   ELEMS{return s.B * s.T * s.config.C;
}
}
, {"lnf", "(B,T,C)", "classifier", false, NEVER, ActivationInfo::FORWARD, FLOATX, ELEMS{return s.B * s.T * s.config.C;
}
}
, {"lnf_mean", "(B,T)", "backward of lnf", false, NEVER, ActivationInfo::FORWARD, FP32, ELEMS{return s.B * s.T;
}
}
, {"lnf_rstd", "(B,T)", "backward of lnf", false, NEVER, ActivationInfo::FORWARD, FP32, ELEMS{return s.B * s.T;
}
}
, {"losses", "(B,T)", "the end of the step", false, NEVER, ActivationInfo::FORWARD, FP32, ELEMS{return s.B * s.T;
}
}
, {"branch", "(B,T,C)", "scratch: what joins the residual stream; backward, its gradient", false, NEVER,
   ActivationInfo::FORWARD, FLOATX, ELEMS{return s.B * s.T * s.config.C;
}
}
, {"logits", "(chunk,Vp)", "scratch: one chunk of rows, then its gradient; generation, one row", false, NEVER,
   ActivationInfo::FORWARD, FLOATX, ELEMS{return s.logit_rows * s.config.Vp;
}
}
, {"dresidual", "(B,T,C)", "scratch: gradient of the residual stream", false, NEVER, ActivationInfo::BACKWARD, FLOATX,
   ELEMS{return s.B * s.T * s.config.C;
}
}
, {"dwide", "(B,T,4C)", "scratch: gradient of fch, then of qkv", false, NEVER, ActivationInfo::BACKWARD, FLOATX,
   ELEMS{return s.B * s.T * 4 * s.config.C;
}
}
, {"keys", "(positions,C)", "generation", true, NEVER, ActivationInfo::GENERATION, FLOATX,
   ELEMS{return s.cache_T * s.config.C;
}
}
, {"values", "(positions,C)", "generation", true, NEVER, ActivationInfo::GENERATION, FLOATX,
   ELEMS{return s.cache_T * s.config.C;
}
}
, {"scores", "(NH,positions)", "generation", false, NEVER, ActivationInfo::GENERATION, FP32,
   ELEMS{return s.cache_T * s.config.NH;
}
}
, {"inputs", "(B,T)", "the end of the micro-step", false, NEVER, ActivationInfo::FORWARD, INT32, ELEMS{return s.B * s.T;
}
, true
}
, {"targets", "(B,T)", "the end of the micro-step", false, NEVER, ActivationInfo::FORWARD, INT32,
   ELEMS{return s.B * s.T;
}
, true
}
, {"partials", "(parts,C)", "scratch: pieces of sums over rows", false, NEVER, ActivationInfo::FORWARD, FP32,
   ELEMS{return std::max<int64_t>(512 * s.config.C, 4096);
}
, true
}
, {"results", "(8 + 2P)", "loss, norm and their kin, of each rank and all, fp64", false, NEVER, ActivationInfo::FORWARD,
   BYTES, ELEMS{return 64 + 16 * s.processes;
}
, true
}
, {"blas_workspace", "", "scratch of cuBLASLt", false, NEVER, ActivationInfo::FORWARD, BYTES,
   ELEMS{return s.blas_workspace_bytes;
}
, true
}
, {"att_d", "(B,NH,T)", "scratch: dout . out of every head", false, NEVER, ActivationInfo::BACKWARD, FP32,
   ELEMS{return s.B * s.T * s.config.NH;
}
, true
}
, {"token_order", "(2 B*T + 1)", "backward of the embedding", false, NEVER, ActivationInfo::BACKWARD, INT32,
   ELEMS{return 2 * s.B * s.T + 1;
}
, true
}
, {"dwte", "(Vp,C)",
   "sums of the gradient of wte before it is rounded; on a CPU in the gradients of the layers, if these are large "
   "enough",
   false, NEVER, ActivationInfo::BACKWARD, FP32,
   ELEMS{return s.dwte_has_sums() && !s.dwte_sums_in_layers() ? s.config.Vp * s.config.C : 0;
}
}
,
}
;
#undef ELEMS
static_assert(sizeof(ACTIVATIONS) / sizeof(ACTIVATIONS[0]) == NUM_ACTIVATIONS, "one row an activation");

inline int64_t activation_copies(int a, const Sizes& s) {
    const ActivationInfo& info = ACTIVATIONS[a];
    if (info.gpu_only && !s.gpu) return 0;
    if (info.purpose == ActivationInfo::BACKWARD && !s.training) return 0;
    if (info.purpose == ActivationInfo::GENERATION && s.cache_T == 0) return 0;
    if (!info.per_layer) return 1;
    const bool only_forward = !s.training && info.purpose == ActivationInfo::FORWARD && a != RESIDUAL3;
    return only_forward || s.recompute >= info.dropped_at ? 1 : s.config.L;
}

// Bytes of one copy as laid out: whole pieces of 256, so that every vector load is aligned, and the
// guard.
inline int64_t activation_bytes(int a, const Sizes& s) {
    const int64_t elems = ACTIVATIONS[a].elems(s), type_bytes[] = {s.floatX_bytes, 4, 4, 1};
    return elems == 0 ? 0 : round_up(elems * type_bytes[ACTIVATIONS[a].type], 256) + s.guard_bytes;
}

// Where each activation lies in one block of memory: place of its first copy and distance between
// layers, in bytes.
struct ActivationLayout {
    int64_t offset[NUM_ACTIVATIONS], layer_stride[NUM_ACTIVATIONS], total_bytes = 0;
};
// Exit 2 where they are more than can be counted; one copy never is, by what the flags accept.
inline ActivationLayout activation_layout(const Sizes& s) {
    ActivationLayout layout;
    double total_bytes = 0;
    for (int a = 0; a < NUM_ACTIVATIONS; a++)
        total_bytes += (double)activation_bytes(a, s) * (double)activation_copies(a, s);
    if (total_bytes > 4e18)
        usage_error(
            "-b %lld with -t %lld and a model of %lld layers and %lld channels needs %.1e bytes for its activations; "
            "up to 4e18 are accepted",
            (long long)s.B, (long long)s.T, (long long)s.config.L, (long long)s.config.C, total_bytes);
    for (int a = 0; a < NUM_ACTIVATIONS; a++) {
        const int64_t bytes = activation_bytes(a, s), copies = activation_copies(a, s);
        layout.offset[a] = layout.total_bytes;
        layout.layer_stride[a] = copies > 1 ? bytes : 0;
        layout.total_bytes += bytes * copies;
    }
    return layout;
}
