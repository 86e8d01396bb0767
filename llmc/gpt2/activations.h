// The one table of everything that a model holds beside its parameters: activations, scratch
// memory, and the cache of generation. What is allocated, and what --plan prints, come from it, to
// the byte.
//
// A row that is per layer has L copies, unless the recompute level drops it: then the backward pass
// recomputes it, and one copy serves all layers in turn, as without training.
//   level 1 drops the output of GELU, 2 also those of the layer norms, 3 all but the residual stream between layers
//   level 4 keeps the residual stream between segments of k layers. The backward pass recomputes one segment at a time,
//   and k copies serve the layers in turn (Chen et al. 2016, arXiv:1604.06174). Level 3 is the same with k = 1.
// What is then still kept, --compress-activations 1 keeps in 8 bits (activation_codes.h): the codes
// are a row of their own, and a copy of what they stand for serves all layers in turn. floatX is
// the trainer's type of weights and activations: fp32, bf16 or fp16.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>
#include "llmc/gpt2/activation_codes.h"
#include "llmc/gpt2/tensors.h"

enum ElementType { FLOATX, FP32, INT32, BYTES };

// The sizes that activations depend on.
struct Sizes {
    GPT2Config config;
    int64_t B, T, recompute;
    int64_t cache_T;     // positions whose keys and values generation keeps; 0: no generation
    int64_t logit_rows;  // rows of logits that exist at once
    bool training;
    int64_t micro_steps = 1, processes = 1;
    bool gpu = false;
    int64_t floatX_bytes = 4, blas_workspace_bytes = 0;
    bool fp16 = false;                    // floatX is fp16
    bool whole_tensors = false;           // the optimizer looks at whole tensors (optim/whole_tensors.h)
    bool orthogonalizes = false;          // and those of matrices are orthogonalised (muon.h)
    int64_t guard_bytes = 0;              // unused bytes after each tensor, which the simulator watches
    int64_t recompute_every = 1;          // layers of a segment at recompute level 4
    int64_t end_of_text = -1;             // the token at which documents begin; -1: no document mask
    bool dropout = false;                 // it takes no memory, but time (dropout.h)
    bool compressed_activations = false;  // --compress-activations 1
    bool compressed_gradients = false;    // travel compressed between processes (compress/gradient_codes.h)
    bool inputs_on_host = false;          // of segments: a GPU keeps INPUT_PLACES of them (cuda/offload.cuh)
    double teacher_flops = 0;             // of a token: the forward pass of --teacher
    int64_t shards = 0;                   // processes among which a bucket is in slices; 0: all

    int64_t rows() const { return B * T; }
    int64_t slices() const { return shards > 0 ? shards : processes; }  // of a bucket
    // Bytes of a weight in a model file, which has fp16 numbers as fp32 (checkpoint/model_file.h).
    int64_t file_bytes() const { return fp16 ? 4 : floatX_bytes; }
    // Layers that the backward pass recomputes at a time.
    int64_t segment_layers() const { return training && recompute == 4 ? recompute_every : 1; }
    // Layers in whole segments before the last segment. The last one needs no recomputation: the
    // forward pass ended with it, and its activations are still there.
    int64_t recomputed_layers() const { return (config.L - 1) / segment_layers() * segment_layers(); }
    // How many layers, l the last of them, are recomputed before the backward pass of layer l: a
    // whole segment at its last layer, none at the others.
    int64_t recomputed_before(int64_t l) const {
        const bool ends_segment = (l + 1) % segment_layers() == 0;
        return ends_segment && l < recomputed_layers() ? segment_layers() : 0;
    }

    // Whether 16-bit gradients are summed in fp32: over micro-steps, and on a CPU also over
    // processes; where the optimizer turns them into directions; and before they are compressed.
    bool sums_gradients() const {
        return floatX_bytes < 4 &&
               (micro_steps > 1 || whole_tensors || compressed_gradients || (!gpu && processes > 1));
    }
    int64_t gradient_bytes() const { return sums_gradients() ? 4 : floatX_bytes; }

    // Whether the gradient of wte has fp32 sums of its own, which are rounded once. It needs them
    // if all gradients are 16-bit and it is summed in parts: on a GPU always, on a CPU where the
    // classifier takes its rows in several chunks.
    bool has_dwte_sums() const {
        return training && floatX_bytes < 4 && !sums_gradients() && (gpu || rows() > logit_rows) && trains(config, WTE);
    }
    // Whether these sums borrow the memory of the layers' gradients, if it is large enough. On a
    // CPU they can: they are rounded before the backward pass writes the gradient of any layer.
    bool dwte_sums_borrow_gradients() const {
        const int64_t layers_elems = parameter_layout(config, slices()).bucket_begin[config.L];
        return has_dwte_sums() && !gpu && layers_elems * floatX_bytes >= config.Vp * config.C * 4;
    }
    // Rows of the scratch memory in which Muon also computes, between steps: a matrix 4C x C in
    // DWIDE, and C x C in BRANCH and DRESIDUAL.
    int64_t scratch_rows() const { return training && orthogonalizes ? std::max(rows(), config.C) : rows(); }
    // The document mask (documents.h): on a CPU a number for each position, on a GPU three for each
    // tile, of which there are as many as positions at most.
    int64_t starts_elems() const { return end_of_text < 0 || gpu ? 0 : rows(); }
    int64_t tiles_elems() const { return end_of_text < 0 ? 0 : 3 * rows(); }
    int64_t dwte_elems() const { return has_dwte_sums() && !dwte_sums_borrow_gradients() ? config.Vp * config.C : 0; }
};

struct ActivationInfo {
    const char *name, *shape;
    // How many there are: one for the model, or one for each layer, or one for the last layer of
    // each segment and k-1 that serve the layers between in turn; or one for each segment but the
    // last, which needs no codes.
    enum Copies { ONE, EACH, SEGMENTS, CODED } copies;
    int dropped_at;  // the recompute level from which on k copies serve all layers
    // When the contents are needed: from the forward to the backward pass of its layer; from the
    // forward pass on; from the end of the forward pass to the beginning of the backward pass; in
    // the backward pass; between steps.
    enum Purpose { LAYER, FORWARD, CLASSIFIER, BACKWARD, GENERATION } purpose;
    ElementType type;
    enum Devices { ALL, GPU } devices;
    int64_t (*elems)(const Sizes& s);  // of one copy
};

constexpr int NEVER = 99;
// With --offload activations the inputs of segments that are on a GPU at once: one is read, the
// next on its way.
constexpr int64_t INPUT_PLACES = 2;

// Layers of a segment at recompute level 4, unless a flag says: sqrt(L), as Chen et al. propose.
inline int64_t default_recompute_every(int64_t L) { return std::lround(std::sqrt((double)L)); }

// Elements of the partial sums over rows on a GPU: the most, in the backward passes of layer norm
// and attention.
constexpr int64_t partials_elems(int64_t C) { return 512 * 3 * C; }
// Bytes of a step's results on a GPU: DeviceResults, then RankSums of each process
// (cuda/global_norm.cuh).
inline int64_t results_bytes(int64_t processes) { return 64 + 16 * processes; }
inline int64_t layer_codes_bytes(const Sizes& s);  // see codes_offset()

// Each line makes both the enum's constant and the table's row. `dropped`: see the levels above.
// clang-format off
//  constant          name              shape            copies dropped purpose    type    on   elements of one copy
#define ACTIVATION_TABLE(X) \
  /* kept from the forward pass for the backward pass */ \
  X(ENCODED,        "encoded",        "(B,T,C)",        ONE,  NEVER, FORWARD,    FLOATX, ALL, rows * C) \
  X(LN1,            "ln1",            "(B,T,C)",        EACH, 2,     LAYER,      FLOATX, ALL, rows * C) \
  X(LN1_MEAN,       "ln1_mean",       "(B,T)",          EACH, 3,     LAYER,      FP32,   ALL, rows) \
  X(LN1_RSTD,       "ln1_rstd",       "(B,T)",          EACH, 3,     LAYER,      FP32,   ALL, rows) \
  X(QKV,            "qkv",            "(B,T,3C)",       EACH, 3,     LAYER,      FLOATX, ALL, rows * 3 * C) \
  X(ATTY,           "atty",           "(B,T,C)",        EACH, 3,     LAYER,      FLOATX, ALL, rows * C) \
  X(ATT_LSE,        "att_lse",        "(B,NH,T)",       EACH, 3,     LAYER,      FP32,   ALL, rows * NH) \
  X(RESIDUAL2,      "residual2",      "(B,T,C)",        EACH, 3,     LAYER,      FLOATX, ALL, rows * C) \
  X(LN2,            "ln2",            "(B,T,C)",        EACH, 2,     LAYER,      FLOATX, ALL, rows * C) \
  X(LN2_MEAN,       "ln2_mean",       "(B,T)",          EACH, 3,     LAYER,      FP32,   ALL, rows) \
  X(LN2_RSTD,       "ln2_rstd",       "(B,T)",          EACH, 3,     LAYER,      FP32,   ALL, rows) \
  X(FCH,            "fch",            "(B,T,4C)",       EACH, 3,     LAYER,      FLOATX, ALL, rows * 4 * C) \
  X(FCH_GELU,       "fch_gelu",       "(B,T,4C)",       EACH, 1,     LAYER,      FLOATX, ALL, rows * 4 * C) \
  X(RESIDUAL3,      "residual3",      "(B,T,C)",    SEGMENTS, NEVER, LAYER,      FLOATX, ALL, rows * C) \
  X(CODES,          "codes",          "of a layer",    CODED, NEVER, LAYER,      BYTES,  ALL, layer_codes_bytes(s)) \
  X(LNF,            "lnf",            "(B,T,C)",        ONE,  NEVER, CLASSIFIER, FLOATX, ALL, rows * C) \
  X(LNF_MEAN,       "lnf_mean",       "(B,T)",          ONE,  NEVER, CLASSIFIER, FP32,   ALL, rows) \
  X(LNF_RSTD,       "lnf_rstd",       "(B,T)",          ONE,  NEVER, CLASSIFIER, FP32,   ALL, rows) \
  X(LOSSES,         "losses",         "(B,T)",          ONE,  NEVER, CLASSIFIER, FP32,   ALL, rows) \
  X(DOCUMENT_STARTS,"document_starts","(B,T)",          ONE,  NEVER, FORWARD,    INT32,  ALL, s.starts_elems()) \
  /* scratch of every pass */ \
  X(BRANCH,         "branch",         "(B,T,C)",        ONE,  NEVER, FORWARD,    FLOATX, ALL, scratch * C) \
  X(LOW_RANK,       "low_rank",       "(2,B,T,R)",      ONE,  NEVER, FORWARD,    FLOATX, ALL, 2 * low) \
  X(LOGITS,         "logits",         "(chunk,Vp)",     ONE,  NEVER, CLASSIFIER, FLOATX, ALL, s.logit_rows * Vp) \
  /* scratch of the backward pass */ \
  X(DRESIDUAL,      "dresidual",      "(B,T,C)",        ONE,  NEVER, BACKWARD,   FLOATX, ALL, scratch * C) \
  X(DWIDE,          "dwide",          "(B,T,4C)",       ONE,  NEVER, BACKWARD,   FLOATX, ALL, scratch * 4 * C) \
  /* generation */ \
  X(KEYS,           "keys",           "(NH,pos,HS)",    EACH, NEVER, GENERATION, FLOATX, ALL, s.cache_T * C) \
  X(VALUES,         "values",         "(NH,pos,HS)",    EACH, NEVER, GENERATION, FLOATX, ALL, s.cache_T * C) \
  X(SCORES,         "scores",         "(NH,pos)",       ONE,  NEVER, GENERATION, FP32,   ALL, s.cache_T * NH) \
  /* on a GPU */ \
  X(INPUTS,         "inputs",         "(B,T)",          ONE,  NEVER, FORWARD,    INT32,  GPU, rows) \
  X(TARGETS,        "targets",        "(B,T)",          ONE,  NEVER, FORWARD,    INT32,  GPU, rows) \
  X(DOCUMENT_TILES, "document_tiles", "(3 B*T)",        ONE,  NEVER, FORWARD,    INT32,  GPU, s.tiles_elems()) \
  X(PARTIALS,       "partials",       "(parts,3C)",     ONE,  NEVER, BACKWARD,   FP32,   GPU, partials_elems(C)) \
  X(NORM_PARTIALS,  "norm_partials",  "(2 blocks)",     ONE,  NEVER, BACKWARD,   FP32,   GPU, 2 * 1024) \
  X(RESULTS,        "results",        "(8 + 2P)",       ONE,  NEVER, FORWARD,    BYTES,  GPU, results_bytes(P)) \
  X(BLAS_WORKSPACE, "blas_workspace", "",               ONE,  NEVER, FORWARD,    BYTES,  GPU, s.blas_workspace_bytes) \
  X(ATT_D,          "att_d",          "(B,NH,T)",       ONE,  NEVER, BACKWARD,   FP32,   GPU, rows * NH) \
  X(TOKEN_ORDER,    "token_order",    "(2 B*T + 1)",    ONE,  NEVER, BACKWARD,   INT32,  GPU, 2 * rows + 1) \
  /* fp32 sums of the gradient of wte */ \
  X(DWTE,           "dwte",           "(Vp,C)",         ONE,  NEVER, BACKWARD,   FP32,   ALL, s.dwte_elems())
#define CONSTANT_OF_ROW(constant, ...) constant,
#define INFO_OF_ROW(constant, name, shape, copies, dropped_at, purpose, type, devices, elems) \
  {name, shape, ActivationInfo::copies, dropped_at, ActivationInfo::purpose, type, ActivationInfo::devices, \
   [](const Sizes& s) -> int64_t { \
       [[maybe_unused]] const int64_t rows = s.rows(), C = s.config.C, NH = s.config.NH, Vp = s.config.Vp, \
                                P = s.processes, scratch = s.scratch_rows(), \
                                low = round_up(rows * s.config.lora.rank, 16); \
       return elems; \
   }},
// clang-format on
inline const char* const PURPOSE_NAMES[] = {"its layer", "both passes", "classifier", "backward", "generation"};
enum Activation { ACTIVATION_TABLE(CONSTANT_OF_ROW) NUM_ACTIVATIONS };
inline const ActivationInfo ACTIVATIONS[] = {ACTIVATION_TABLE(INFO_OF_ROW)};
#undef CONSTANT_OF_ROW
#undef INFO_OF_ROW

// Whether layers keep the activation as codes.
inline bool is_coded(int a, const Sizes& s) {
    const ActivationInfo& info = ACTIVATIONS[a];
    if (!s.compressed_activations || !s.training || info.purpose != ActivationInfo::LAYER || info.type != FLOATX)
        return false;
    return info.copies == ActivationInfo::SEGMENTS || s.recompute < info.dropped_at;
}
// Where the codes of an activation begin in a copy of CODES; behind the last of them.
inline int64_t codes_offset(int a, const Sizes& s) {
    int64_t bytes = 0;
    for (int i = 0; i < a; i++)
        if (is_coded(i, s)) bytes += codes_bytes(ACTIVATIONS[i].elems(s));
    return bytes;
}
inline int64_t layer_codes_bytes(const Sizes& s) { return codes_offset(NUM_ACTIVATIONS, s); }

inline int64_t activation_copies(int a, const Sizes& s) {
    const ActivationInfo& info = ACTIVATIONS[a];
    if (info.devices == ActivationInfo::GPU && !s.gpu) return 0;
    if (info.purpose == ActivationInfo::BACKWARD && !s.training) return 0;
    if (info.purpose == ActivationInfo::GENERATION && s.cache_T == 0) return 0;
    const int64_t L = s.config.L, k = s.segment_layers();
    if (info.copies == ActivationInfo::ONE) return 1;
    const int64_t inputs = s.inputs_on_host && s.recompute >= 3 ? INPUT_PLACES : L;  // at most
    if (info.copies == ActivationInfo::CODED)
        return s.compressed_activations && s.training ? std::min(inputs, s.recomputed_layers() / k) : 0;
    if (!s.training && info.purpose == ActivationInfo::LAYER) return 1;
    if (is_coded(a, s)) return k;
    if (info.copies == ActivationInfo::SEGMENTS) return std::min(inputs, L / k) + k - 1;
    return s.recompute >= info.dropped_at ? k : L;
}
// The number of the copy that a layer uses. SEGMENTS: the copies that are kept follow the k-1
// others; without training there is one, and k where codes are kept. Where fewer are kept on a GPU,
// they serve in turn.
inline int64_t copy_of_layer(int a, int64_t layer, int64_t copies, int64_t k) {
    const bool ends_segment = (layer + 1) % k == 0;
    if (ACTIVATIONS[a].copies == ActivationInfo::SEGMENTS && copies > k)
        return ends_segment ? k - 1 + layer / k % (copies - (k - 1)) : layer % k;
    return copies > 0 ? layer % copies : 0;
}

// Bytes of one copy: a multiple of 256, so that every vector load is aligned, and the guard.
inline int64_t activation_bytes(int a, const Sizes& s) {
    const int64_t elems = ACTIVATIONS[a].elems(s), type_bytes[] = {s.floatX_bytes, 4, 4, 1};
    return elems == 0 ? 0 : round_up(elems * type_bytes[ACTIVATIONS[a].type], 256) + s.guard_bytes;
}

// Where each activation lies in one block of memory, in bytes: its copies, one after the other.
struct ActivationLayout {
    int64_t first[NUM_ACTIVATIONS], bytes[NUM_ACTIVATIONS], copies[NUM_ACTIVATIONS], total_bytes = 0;
    int64_t segment_layers;
    int64_t copy_offset(int a, int64_t copy) const { return first[a] + copy * bytes[a]; }
    int64_t offset(int a, int64_t layer) const {
        return copy_offset(a, copy_of_layer(a, layer, copies[a], segment_layers));
    }
};
// Lays out the activations of a run. Exit 2 if their bytes do not fit 64 bits; those of one copy
// always do, within the limits of the flags.
inline ActivationLayout activation_layout(const Sizes& s) {
    ActivationLayout layout;
    double total_bytes = 0;
    for (int a = 0; a < NUM_ACTIVATIONS; a++)
        total_bytes += (double)activation_bytes(a, s) * (double)activation_copies(a, s);
    if (total_bytes > 4e18)
        usage_error(
            "-b %d with -t %d and a model of %d layers and %d channels needs %.1e bytes for its activations; "
            "up to 4e18 are accepted",
            s.B, s.T, s.config.L, s.config.C, total_bytes);
    layout.segment_layers = s.segment_layers();
    for (int a = 0; a < NUM_ACTIVATIONS; a++) {
        layout.first[a] = layout.total_bytes;
        layout.bytes[a] = activation_bytes(a, s), layout.copies[a] = activation_copies(a, s);
        layout.total_bytes += layout.bytes[a] * layout.copies[a];
    }
    return layout;
}
