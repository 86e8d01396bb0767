// GPT-2 on the CPU: the model, its forward and backward pass, its update, generation, and main.
//
// The network (Radford et al. 2019): each position has a residual stream of C channels. It begins
// as the sum of two embeddings, of the token and of its position. Each of L layers adds to it
// twice: once the output of attention, once that of a two-layer network (MLP). After a last layer
// norm, the score of every word is the product of the stream with the word's embedding. Each line
// of forward() is one layer of llmc/cpu, and backward() is the same lines in reverse. What
// surrounds the model (flags, data, loop, checkpoints) is in llmc/run/train.h.
//
// Everything is written for an element type floatX, fp32 or bf16; --precision chooses. In bf16
// weights and activations have 16 bits and the matrix unit multiplies them
// (llmc/cpu/matrix_unit.h), while sums, softmax, norms, losses and the optimizer stay in fp32.
//
//     make train_gpt2_cpu data && ./train_gpt2_cpu -e L6C384H6 -b 4 -t 128
//     make train_gpt2_cpu KERNELS=reference               the same with the naive loops of llmc/cpu/reference.h
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/attention_decode.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/directions.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/muon.h"
#include "llmc/cpu/peak_file.h"
#include "llmc/cpu/reference_optimizers.h"
#include "llmc/base/resident.h"
#include "llmc/cpu/scratch.h"
#include "llmc/run/train.h"

#if defined(KERNELS_REFERENCE)
namespace kernels = reference;
#else
namespace kernels {
using ::attention_backward, ::attention_decode, ::attention_forward, ::blocks_update, ::classifier,
    ::classifier_chunk_rows, ::collect_factors, ::directions, ::encoder_backward, ::encoder_forward,
    ::factored_directions, ::gelu_forward, ::global_norm_squared, ::layernorm_backward, ::layernorm_forward,
    ::matmul_backward, ::matmul_forward, ::optimizer_update, ::orthogonalize, ::residual_forward,
    ::residual_layernorm_forward;
}
#endif

// The model. Its tensors are listed in llmc/gpt2/tensors.h, its activations in
// llmc/gpt2/activations.h.
template <class floatX>
struct GPT2 {
    typedef floatX Element;
    ParameterLayout layout;
    Sizes sizes;
    int64_t micro_steps = 1;  // of this step
    ActivationLayout activations;
    BucketSlice slice;            // what this process updates of every bucket
    floatX* params = nullptr;     // layout.total_elems()
    char* grads = nullptr;        // as many, in floatX, or in fp32 where they are summed (Sizes)
    Optimizer optimizer = ADAMW;  // --optimizer
    // Its state (llmc/optim/optimizer_state.h), null where it keeps none. m and v: of what this
    // process updates, v of Muon of the last bucket alone; in fp32 or smaller.
    void *m = nullptr, *v = nullptr;
    float* factors = nullptr;                  // all of them, in every process
    float* master = nullptr;                   // slice.state_elems() fp32 weights, or null if there are none
    float* collected = nullptr;                // collected_elems(): what a step collects for them, or null
    std::function<void()> gradients_complete;  // is called by update(), before directions replace them
    char* acts = nullptr;                      // activations.total_bytes
    double loss_sum = 0;                       // over the tokens of this step so far
    bool noise_scale = false;                  // --noise-scale 1: computes the next
    double small_squares = 0;                  // squared norm of the gradient of the first micro-step
    double peak = 0;                           // FLOP/s, measured (llmc/cpu/peak_file.h)
    int peak_measurements = 0;
    std::vector<float> host_values;  // what to_host() returned last
    PartClock parts;                 // of the step

    floatX* param(int tensor, int64_t layer = 0) { return params + layout.offset(tensor, layer); }
    template <class floatG>
    floatG* grad(int tensor, int64_t layer = 0) {
        return (floatG*)grads + layout.offset(tensor, layer);
    }
    floatX* act(int a, int64_t layer = 0) { return (floatX*)(acts + activations.offset(a, layer)); }
    float* act32(int a, int64_t layer = 0) { return (float*)(acts + activations.offset(a, layer)); }
    // The first position that each position sees; null where it sees all before it.
    int* documents() { return sizes.end_of_text < 0 ? nullptr : (int*)(acts + activations.offset(DOCUMENT_STARTS, 0)); }
    float* dwte_sums() {
        if (!sizes.has_dwte_sums()) return nullptr;
        return sizes.dwte_sums_borrow_gradients() ? (float*)grads : act32(DWTE);
    }
};

// -------------------------------------------------------------------------------------------------
// forward

// Layer l: from ln1, which is there already, to the branch that its MLP adds to the residual
// stream.
template <class floatX>
void layer_forward(GPT2<floatX>& model, int64_t l, int64_t B, int64_t T) {
    const Range range("layer_forward", l);
    const int64_t C = model.layout.config.C, NH = model.layout.config.NH, rows = B * T;
    const auto [param, act, act32] = of_layer(model, l);
    kernels::matmul_forward(act(QKV), act(LN1), param(QKVW), param(QKVB), rows, C, 3 * C);
    kernels::attention_forward(act(ATTY), act32(ATT_LSE), act(QKV), B, T, C, NH, model.documents());
    kernels::matmul_forward(act(BRANCH), act(ATTY), param(ATTPROJW), param(ATTPROJB), rows, C, C);
    kernels::residual_layernorm_forward(act(RESIDUAL2), act(LN2), act32(LN2_MEAN), act32(LN2_RSTD),
                                        layer_input(model, l), act(BRANCH), param(LN2W), param(LN2B), rows, C);
    kernels::matmul_forward(act(FCH), act(LN2), param(FCW), param(FCB), rows, C, 4 * C, act(FCH_GELU));
    kernels::matmul_forward(act(BRANCH), act(FCH_GELU), param(FCPROJW), param(FCPROJB), rows, 4 * C, C);
}

// Layers first to end-1, from the residual stream that the first of them reads to the branch of the
// last. The addition that ends a layer is fused with the layer norm that opens the next.
// fills_cache: keys and values of the one sequence are also written to the cache of generation.
template <class floatX>
void forward_layers(GPT2<floatX>& model, int64_t first, int64_t end, int64_t B, int64_t T, bool fills_cache = false) {
    const int64_t C = model.layout.config.C, NH = model.layout.config.NH, rows = B * T;
    for (int64_t l = first; l < end; l++) {
        const auto [param, act, act32] = of_layer(model, l);
        floatX* input = layer_input(model, l);
        if (l == first)
            kernels::layernorm_forward(act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), input, param(LN1W), param(LN1B),
                                       rows, C);
        else
            kernels::residual_layernorm_forward(input, act(LN1), act32(LN1_MEAN), act32(LN1_RSTD),
                                                model.act(RESIDUAL2, l - 1), act(BRANCH), param(LN1W), param(LN1B),
                                                rows, C);
        layer_forward(model, l, B, T);
        if (fills_cache) fill_cache(model.act(KEYS, l), model.act(VALUES, l), act(QKV), T, model.sizes.cache_T, C, NH);
    }
}

// x (B,T) to lnf (B,T,C).
template <class floatX>
void forward(GPT2<floatX>& model, const int* x, int64_t B, int64_t T, bool fills_cache = false) {
    const Range range("forward");
    const int64_t C = model.layout.config.C, L = model.layout.config.L;
    const auto [param, act, act32] = of_layer(model, L - 1);
    if (model.documents()) find_documents(model.documents(), x, B, T, model.sizes.end_of_text);
    kernels::encoder_forward(act(ENCODED), x, param(WTE), param(WPE), B, T, C);
    forward_layers(model, 0, L, B, T, fills_cache);
    kernels::residual_layernorm_forward(act(RESIDUAL3), act(LNF), act32(LNF_MEAN), act32(LNF_RSTD), act(RESIDUAL2),
                                        act(BRANCH), param(LNFW), param(LNFB), B * T, C);
}

// Losses of all positions of x, y (B,T), without gradients.
template <class floatX>
void evaluate(GPT2<floatX>& model, const int* x, const int* y, int64_t B, int64_t T, float* losses) {
    const Range range("evaluate");
    const GPT2Config& c = model.layout.config;
    floatX* const none = nullptr;
    forward(model, x, B, T);
    kernels::classifier(losses, none, none, model.act(LOGITS), model.act(LNF), model.param(WTE), y, B * T, c.C, c.V,
                        c.Vp, 0.0f, false);
}

// -------------------------------------------------------------------------------------------------
// backward

// Before the backward pass of layer l: recomputes what the recompute level did not keep. From level
// 3 on that is a whole segment of layers, at its last layer (Sizes::recomputed_before()).
template <class floatX>
void layer_recompute(GPT2<floatX>& model, int64_t l, int64_t B, int64_t T) {
    const Range range("layer_recompute", l);
    const int64_t C = model.layout.config.C, rows = B * T;
    const int64_t level = model.sizes.recompute, layers = model.sizes.recomputed_before(l);
    if (layers == 0) return;
    if (level >= 3) return forward_layers(model, l + 1 - layers, l + 1, B, T);
    const auto [param, act, act32] = of_layer(model, l);
    if (level >= 2) {
        kernels::layernorm_forward(act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), layer_input(model, l), param(LN1W),
                                   param(LN1B), rows, C);
        kernels::layernorm_forward(act(LN2), act32(LN2_MEAN), act32(LN2_RSTD), act(RESIDUAL2), param(LN2W), param(LN2B),
                                   rows, C);
    }
    if (level >= 1) kernels::gelu_forward(act(FCH_GELU), act(FCH), rows * 4 * C);
}

// Layer l, from the gradient of its output to that of its input. The same three buffers serve all
// layers. What they hold after each line, d(x) being the gradient of x:
//
//     line         DRESIDUAL       BRANCH     DWIDE
//     (before)     d(residual3)    free       free       residual3 = residual2 + branch: d(branch) = d(residual3)
//     fcproj       d(residual3)    free       d(fch)
//     fc           d(residual3)    d(ln2)     free
//     ln2          d(residual2)    free       free       d(residual2) = d(residual3) + what came through ln2
//     attproj      d(residual2)    d(atty)    free
//     attention    d(residual2)    free       d(qkv)
//     qkv          d(residual2)    d(ln1)     free
//     ln1          d(input)        free       free       d(input) = d(residual2) + what came through ln1
//
// The two layer norms add to DRESIDUAL: what they read also goes on unchanged in the residual
// stream, and the gradient of a value that is used twice is a sum. BRANCH and DWIDE are written:
// what they belong to is used once. Gradients of parameters are written by the first micro-step of
// a step, and added to by the others (`add`).
template <class floatG, class floatX>
void layer_backward(GPT2<floatX>& model, int64_t l, int64_t B, int64_t T, bool add) {
    const Range range("layer_backward", l);
    const int64_t C = model.layout.config.C, NH = model.layout.config.NH, rows = B * T;
    const auto [param, act, act32] = of_layer(model, l);
    const auto grad = [&](int tensor) { return model.template grad<floatG>(tensor, l); };
    floatX *dresidual = act(DRESIDUAL), *dbranch = act(BRANCH), *dwide = act(DWIDE);
    kernels::matmul_backward(dwide, grad(FCPROJW), grad(FCPROJB), dresidual, act(FCH_GELU), param(FCPROJW), rows, 4 * C,
                             C, add, act(FCH));
    kernels::matmul_backward(dbranch, grad(FCW), grad(FCB), dwide, act(LN2), param(FCW), rows, C, 4 * C, add);
    kernels::layernorm_backward(dresidual, grad(LN2W), grad(LN2B), dbranch, act(RESIDUAL2), param(LN2W),
                                act32(LN2_MEAN), act32(LN2_RSTD), rows, C, add);
    kernels::matmul_backward(dbranch, grad(ATTPROJW), grad(ATTPROJB), dresidual, act(ATTY), param(ATTPROJW), rows, C, C,
                             add);
    kernels::attention_backward(dwide, dbranch, act(ATTY), act32(ATT_LSE), act(QKV), B, T, C, NH, model.documents());
    kernels::matmul_backward(dbranch, grad(QKVW), grad(QKVB), dwide, act(LN1), param(QKVW), rows, C, 3 * C, add);
    kernels::layernorm_backward(dresidual, grad(LN1W), grad(LN1B), dbranch, layer_input(model, l), param(LN1W),
                                act32(LN1_MEAN), act32(LN1_RSTD), rows, C, add);
}

// The gradients of a bucket are complete. The noise scale needs the norm that they have after the
// first micro-step (noise_scale.h).
template <class floatG, class floatX>
void note_first_gradients(GPT2<floatX>& model, int64_t bucket) {
    if (!model.noise_scale) return;
    const floatG* grads = (floatG*)model.grads + model.layout.bucket_begin[bucket];
    model.small_squares += kernels::global_norm_squared(grads, model.layout.bucket_elems(bucket));
}

// Starts the sum of a bucket's gradients over the processes, in fp32.
template <class floatG, class floatX>
void reduce_gradients(GPT2<floatX>& model, int64_t bucket) {
    const ParameterLayout& layout = model.layout;
    model.parts.enter(PART_COMMUNICATION);
    if constexpr (sizeof(floatG) == 4)
        comm_reduce_scatter_start((float*)model.grads + layout.bucket_begin[bucket], layout.slice_elems(bucket),
                                  bucket);
    model.parts.enter(PART_BACKWARD);
}

// Losses of all positions, and the gradients of all parameters, where dloss is the gradient of each
// loss. wte has two uses, as the classifier's matrix and as the embedding: the classifier writes
// its gradient, and encoder_backward adds to it. The last micro-step starts the sum of each layer's
// gradients over the processes as soon as they are complete.
template <class floatG, class floatX>
void backward(GPT2<floatX>& model, const int* x, const int* y, int64_t B, int64_t T, float dloss, bool add,
              bool last_micro) {
    const Range range("backward");
    const GPT2Config& c = model.layout.config;
    const int64_t rows = B * T, last = c.L - 1;
    const auto [param, act, act32] = of_layer(model, last);
    const auto grad = [&](int tensor) { return model.template grad<floatG>(tensor); };
    kernels::classifier(act32(LOSSES), act(BRANCH), grad(WTE), act(LOGITS), act(LNF), param(WTE), y, rows, c.C, c.V,
                        c.Vp, dloss, add, model.dwte_sums());
    memset((void*)act(DRESIDUAL), 0, rows * c.C * sizeof(floatX));  // layernorm_backward adds to it
    kernels::layernorm_backward(act(DRESIDUAL), grad(LNFW), grad(LNFB), act(BRANCH), act(RESIDUAL3), param(LNFW),
                                act32(LNF_MEAN), act32(LNF_RSTD), rows, c.C, add);
    for (int64_t l = last; l >= 0; l--) {
        layer_recompute(model, l, B, T);
        layer_backward<floatG>(model, l, B, T, add);
        if (!add) note_first_gradients<floatG>(model, l);
        if (last_micro) reduce_gradients<floatG>(model, l);
        comm_progress();
    }
    kernels::encoder_backward(grad(WTE), grad(WPE), act(DRESIDUAL), x, B, T, c.C, c.maxT, add);
    if (!add) note_first_gradients<floatG>(model, c.L);
    if (last_micro) reduce_gradients<floatG>(model, c.L);
}

// Forward and backward pass of micro-batch number `micro` of a step.
template <class floatX>
void micro_step(GPT2<floatX>& model, const int* x, const int* y, int64_t B, int64_t T, float dloss, int64_t micro) {
    const Range range("micro_step", micro);
    model.parts.enter(PART_FORWARD);
    forward(model, x, B, T);
    model.parts.enter(PART_BACKWARD);
    const bool add = micro > 0, last_micro = micro + 1 == model.micro_steps;
    if (micro == 0) model.loss_sum = model.small_squares = 0;
    if (model.sizes.sums_gradients()) backward<float>(model, x, y, B, T, dloss, add, last_micro);
    else backward<floatX>(model, x, y, B, T, dloss, add, last_micro);
    const float* losses = model.act32(LOSSES);
    double total = 0;
    for (int64_t i = 0; i < B * T; i++) total += losses[i];
    model.loss_sum += total;
}

// -------------------------------------------------------------------------------------------------
// update

// Sum of the squares of all gradients. Of several processes each sums its slices of the buckets;
// the sums are added in the order of ranks.
template <class floatG, class floatX>
double gradient_norm_squared(GPT2<floatX>& model) {
    const ParameterLayout& layout = model.layout;
    const floatG* grads = (floatG*)model.grads;
    if (comm.processes == 1) return kernels::global_norm_squared(grads, layout.total_elems());
    double mine = 0;
    for (int64_t b = 0; b < layout.buckets(); b++) {
        const int64_t elems = layout.slice_elems(b);
        mine += kernels::global_norm_squared(grads + layout.bucket_begin[b] + comm.rank * elems, elems);
    }
    return comm_sum(mine, "the sum of the gradient's norm");
}

// The same as the next function where m and v are in blocks, which do not end where tensors do.
template <class floatG, class floatX>
void update_blocks(GPT2<floatX>& model, int64_t bucket, const UpdateConstants& constants, const UpdateRule& rule) {
    const ParameterLayout& layout = model.layout;
    const BlockMap map = block_map(layout, model.slice);
    const int64_t first = model.slice.begin(layout, bucket), elems = layout.slice_elems(bucket);
    for (int64_t slice = 0; slice < map.slices; slice++) {
        const int64_t begin = first + slice * elems, index = layout.bucket_begin[bucket] + begin;
        const int64_t block = map.first_block(bucket) + slice * map.slice_blocks(bucket);
        float* master = model.master ? model.master + model.slice.state_begin(layout, bucket) + slice * elems : nullptr;
        kernels::blocks_update(model.optimizer, model.params + index, master, (StateBlock*)model.m + block,
                               (StateBlock*)model.v + block, (floatG*)model.grads + index, elems,
                               tensor_ranges(layout, bucket, begin, begin + elems), constants, rule.rounding_seed,
                               index);
    }
}

// The optimizer on what this process updates of a bucket; weight decay on the tensors that the
// table marks. scales: of every tensor, where the gradients have become directions; else empty.
template <class floatG, class floatX>
void update_bucket(GPT2<floatX>& model, int64_t bucket, UpdateConstants constants, const UpdateRule& rule,
                   const std::vector<float>& scales) {
    const ParameterLayout& layout = model.layout;
    const bool directed = !scales.empty();
    if (OPTIMIZERS[model.optimizer].keeps.m == KEEP_8BIT) return update_blocks<floatG>(model, bucket, constants, rule);
    const int64_t first = model.slice.begin(layout, bucket), end = model.slice.end(layout, bucket);
    for (int i = 0; i < NUM_TENSORS; i++) {
        if (TENSORS[i].per_layer != (bucket < layout.config.L)) continue;
        const int64_t tensor_begin = layout.offset_in_bucket[i];
        const int64_t low = std::max(tensor_begin, first);
        const int64_t high = std::min(tensor_begin + tensor_elems(i, layout.config), end);
        if (low >= high) continue;
        constants.weight_decay = TENSORS[i].decayed ? rule.constants.weight_decay : 0.0f;
        const int64_t index = layout.bucket_begin[bucket] + low;                         // among all parameters
        const int64_t kept = model.slice.state_begin(layout, bucket) + low - first;      // among those with state
        const int64_t bytes = OPTIMIZERS[model.optimizer].keeps.m == KEEP_BF16 ? 2 : 4;  // of an element of m or v
        const auto state = [&](void* all) { return all && !directed ? (char*)all + kept * bytes : nullptr; };
        float* const master = model.master ? model.master + kept : nullptr;
        if (directed) constants = along_directions(constants, scales[tensor_number(i, bucket, layout.config)]);
        kernels::optimizer_update(model.optimizer, model.params + index, master, state(model.m), state(model.v),
                                  (floatG*)model.grads + index, high - low, constants, rule.rounding_seed, index);
    }
}

// The end of a step. ZeRO stage 0: every process gets the whole gradient, and all make the same
// update. Stage 1: each process updates its slices of the weights, and every process gets them all.
template <class floatG, class floatX>
StepResult update_from(GPT2<floatX>& model, const UpdateRule& rule) {
    const ParameterLayout& layout = model.layout;
    model.parts.enter(PART_COMMUNICATION);
    comm_wait("the sum of the gradients");
    const double loss = mean_loss(comm_sum(model.loss_sum, "the sum of the losses"), rule);
    model.parts.enter(PART_UPDATE);
    const double norm = gradient_norm(gradient_norm_squared<floatG>(model), rule);
    if (!update_wanted(loss, norm, rule)) return {loss, norm, false};
    UpdateConstants constants = rule.constants;
    constants.grad_scale = gradient_factor(norm, rule);
    const bool updates_slices = model.slice.parts > 1;
    const auto gather = [&](auto* elems, int64_t b) {
        model.parts.enter(PART_COMMUNICATION);
        comm_all_gather_start(elems + layout.bucket_begin[b], layout.slice_elems(b), b);
    };
    for (int64_t b = 0; b < layout.buckets() && !updates_slices; b++) gather((floatG*)model.grads, b);
    comm_wait("the collection of the gradients");
    model.parts.enter(PART_UPDATE);
    std::vector<float> scales;
    const DirectionKernels<floatX> direction_kernels{kernels::directions<floatX>, kernels::collect_factors,
                                                     kernels::factored_directions<floatX>};
    if (model.sizes.directions) scales = find_directions(model, constants, direction_kernels);
    if (model.sizes.orthogonalizes)
        orthogonalize_directions(model, [](auto... arguments) { kernels::orthogonalize(arguments...); });
    for (int64_t b = 0; b < layout.buckets(); b++) {
        model.parts.enter(PART_UPDATE);
        update_bucket<floatG>(model, b, constants, rule, scales);
        if (updates_slices) gather(model.params, b);
        comm_progress();
    }
    model.parts.enter(PART_COMMUNICATION);
    comm_wait("the collection of the weights");
    return {loss, norm, true};
}
// On a CPU there is no meanwhile.
template <class floatX>
StepResult update(GPT2<floatX>& model, const UpdateRule& rule, const std::function<void()>& = {}) {
    const Range range("update");
    const bool sums = model.sizes.sums_gradients();
    const StepResult result = sums ? update_from<float>(model, rule) : update_from<floatX>(model, rule);
    model.parts.enter(NO_PART);
    return {result.loss, result.norm, result.updated, model.small_squares};
}

// -------------------------------------------------------------------------------------------------
// generation

// The scores of all tokens (V) of what follows a position, from its row of lnf.
template <class floatX>
const float* logits_of(GPT2<floatX>& model, const floatX* lnf) {
    const GPT2Config& c = model.layout.config;
    const floatX* const no_bias = nullptr;
    kernels::matmul_forward(model.act(LOGITS), lnf, model.param(WTE), no_bias, 1, c.C, c.Vp);
    return to_host(model, model.act(LOGITS), c.V);
}

// The logits (V) of what follows n tokens, at most T of Sizes, which are positions 0 to n - 1. One
// forward pass; their keys and values go to the cache.
template <class floatX>
const float* prefill(GPT2<floatX>& model, const int* tokens, int64_t n) {
    const Range range("prefill");
    forward(model, tokens, 1, n, true);
    return logits_of(model, model.act(LNF) + (n - 1) * model.layout.config.C);
}

// The logits (V) of what follows `token` at `position`. The cache has the keys and values of the
// positions before it; those of this one are added to it.
template <class floatX>
const float* decode(GPT2<floatX>& model, int token, int64_t position) {
    const GPT2Config& c = model.layout.config;
    const int64_t C = c.C;
    floatX *residual = model.act(ENCODED), *branch = model.act(BRANCH);
    kernels::encoder_forward(residual, &token, model.param(WTE), model.param(WPE), 1, 1, C, position);
    for (int64_t l = 0; l < c.L; l++) {
        const auto [param, act, act32] = of_layer(model, l);
        kernels::layernorm_forward(act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), residual, param(LN1W), param(LN1B), 1,
                                   C);
        kernels::matmul_forward(act(QKV), act(LN1), param(QKVW), param(QKVB), 1, C, 3 * C);
        kernels::attention_decode(act(ATTY), act(KEYS), act(VALUES), act(QKV), act32(SCORES), position,
                                  model.sizes.cache_T, C, c.NH);
        kernels::matmul_forward(branch, act(ATTY), param(ATTPROJW), param(ATTPROJB), 1, C, C);
        kernels::residual_layernorm_forward(residual, act(LN2), act32(LN2_MEAN), act32(LN2_RSTD), residual, branch,
                                            param(LN2W), param(LN2B), 1, C);
        kernels::matmul_forward(act(FCH), act(LN2), param(FCW), param(FCB), 1, C, 4 * C, act(FCH_GELU));
        kernels::matmul_forward(branch, act(FCH_GELU), param(FCPROJW), param(FCPROJB), 1, 4 * C, C);
        kernels::residual_forward(residual, residual, branch, C);
    }
    const auto [param, act, act32] = of_layer(model, c.L - 1);
    kernels::layernorm_forward(act(LNF), act32(LNF_MEAN), act32(LNF_RSTD), residual, param(LNFW), param(LNFB), 1, C);
    return logits_of(model, act(LNF));
}

// -------------------------------------------------------------------------------------------------
// memory and device

// Threads, and all sizes that depend on the device; before anything is allocated.
template <class floatX>
void settle_device(GPT2<floatX>& model, Sizes& sizes, const Options& o) {
    const GPT2Config& c = sizes.config;
    device.threads = threads_of(o);
    if (is_16_bit<floatX>()) device.unit = best_matrix_unit();
    sizes.floatX_bytes = sizeof(floatX);
    model.optimizer = find_optimizer(o.optimizer.c_str());
    sizes.directions = OPTIMIZERS[model.optimizer].direction, sizes.orthogonalizes = model.optimizer == MUON;
    sizes.logit_rows = kernels::classifier_chunk_rows(sizes.rows());
    device.scratch_elems = thread_scratch_elems<floatX>(sizes.T, c.C / c.NH);
    device.transposed_elems = sizes.training ? backward_transposed_elems<floatX>(sizes.rows(), c.C, c.Vp) : 0;
    if (sizes.training && sizes.orthogonalizes)
        device.transposed_elems =
            std::max(device.transposed_elems, (size_t)orthogonalize_transposed_elems<floatX>(c.C));
    if (o.zero_stage) model.slice = {comm.processes, comm.rank};
    model.sizes = sizes, model.micro_steps = sizes.micro_steps, model.noise_scale = o.noise_scale;
    model.activations = activation_layout(sizes);
}

// What a process takes beside the other rows of its plan: estimates, rounded up. test_runs compares
// the peak memory of runs with the sum of all rows.
constexpr int64_t PROGRAM_BYTES = 12 << 20;    // code, libraries, stacks and small buffers
constexpr int64_t TOKENIZER_BYTES = 24 << 20;  // tables that encode() builds from the tokenizer's file

// All memory of the process, row by row.
template <class floatX>
std::vector<PlanRow> plan_rows(const Sizes& s, const Options& o, GPT2<floatX>* model) {
    std::vector<PlanRow> rows;
    const ParameterLayout& layout = model->layout;
    const int64_t elems = layout.total_elems();
    plan_tensors(rows, s, layout);
    if (s.training) {
        const char* name = s.sums_gradients() ? "sums, fp32" : "all";
        rows.push_back({"gradients", name, "as parameters", elems * s.gradient_bytes()});
        plan_optimizer(rows, OPTIMIZERS[model->optimizer], layout, model->slice, has_master<floatX>(o));
        if (const int64_t collected = collected_elems(layout, model->optimizer))
            rows.push_back({"scratch", "rows, columns", "of a bucket", collected * 4});
        if (comm.processes > 1)
            rows.push_back({"scratch", "slices received", "1/P of gradients", elems / comm.processes * 4});
    }
    plan_activations(rows, s);
    if (transposed_bytes() > 0) rows.push_back({"scratch", "transposed", "one dout", transposed_bytes()});
    rows.push_back({"scratch", "threads", format("%d threads", device.threads), thread_scratch_bytes()});
    // Weights are read one tensor at a time, as fp32. A run that trains has room for that in its
    // gradients, whose memory is untouched until the first backward pass.
    int64_t largest = 0;
    for (int i = 0; i < NUM_TENSORS && !s.training; i++) largest = std::max(largest, tensor_elems(i, s.config) * 4);
    if (largest > 0) rows.push_back({"program", "weights on load", "one tensor", largest});
    const int64_t before = s.training ? weights_before_bytes(*model, o) : 0;
    if (before > 0) rows.push_back({"program", "weights before", "of logged steps", before});
    if (encodes(o)) rows.push_back({"program", "tokenizer", "to encode text", TOKENIZER_BYTES});
    if (validates_on_text(o)) rows.push_back({"program", "tokens of -j", "at most", text_tokens_bytes(o.val_data)});
    rows.push_back({"program", "code, stacks", "", PROGRAM_BYTES});
    return rows;
}

template <class floatX>
std::vector<PlanRow> host_plan_rows(const Sizes&, const Options&, GPT2<floatX>*) {
    return {};
}

inline int64_t machine_bytes() { return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE); }
template <class floatX>
PlanDevice this_device(GPT2<floatX>&, const Options&) {
    return {"this machine", find_peak(is_16_bit<floatX>()), find_memory_peak(), (double)machine_bytes()};
}

template <class floatX>
void allocate(GPT2<floatX>& model, const Sizes& s, const Options& o) {
    const int64_t needed = plan_bytes(plan_rows(s, o, &model)), present = machine_bytes();
    if (needed > present)
        runtime_failure(
            "out of memory: the run needs %.0f MiB, the machine has %.0f MiB; --plan shows what for, a smaller -e, -b "
            "or -t or a higher -r lowers it",
            needed / 1048576.0, present / 1048576.0);
    const int64_t elems = model.layout.total_elems();
    model.params = (floatX*)map_memory(elems * sizeof(floatX));
    spread_pages(model.params, elems * sizeof(floatX));  // one thread reads the weights from a file
    if (s.training) {
        model.grads = (char*)map_memory(elems * s.gradient_bytes());
        const auto take = [&](auto*& memory, OptimizerState state) {
            const int64_t bytes = state_layout(model, state).held_bytes(model.slice);
            if (bytes == 0 || (state == STATE_MASTER && !has_master<floatX>(o))) return;
            memory = (std::remove_reference_t<decltype(memory)>)map_memory(bytes);
            spread_pages(memory, bytes);
        };
        take(model.m, STATE_M), take(model.v, STATE_V), take(model.factors, STATE_FACTORS);
        take(model.master, STATE_MASTER);
        model.collected = (float*)map_memory(collected_elems(model.layout, model.optimizer) * 4);
    }
    model.acts = (char*)map_memory(model.activations.total_bytes);
    allocate_scratch();
}

// n values of the model as fp32: where they lie, or converted into model.host_values.
template <class floatX, class T>
const float* to_host(GPT2<floatX>& model, const T* from, int64_t n) {
    if constexpr (sizeof(T) == 4) return from;
    else return model.host_values.assign(from, from + n), model.host_values.data();
}
template <class floatX, class T>
void to_device(GPT2<floatX>&, T* to, const float* values, int64_t n) {
    std::copy(values, values + n, to);
}

template <class floatX>
void copy_out(GPT2<floatX>&, void* to, const void* from, int64_t bytes) {
    memcpy(to, from, bytes);
}
template <class floatX>
void copy_in(GPT2<floatX>&, void* to, const void* from, int64_t bytes) {
    memcpy(to, from, bytes);
}

// Elements first to first + n of the gradient of a tensor.
template <class floatX>
const float* gradient_data(GPT2<floatX>& model, int tensor, int64_t layer, int64_t first, int64_t n) {
    if (model.sizes.sums_gradients()) return to_host(model, model.template grad<float>(tensor, layer) + first, n);
    return to_host(model, model.template grad<floatX>(tensor, layer) + first, n);
}

// A peak that is unknown, or below the FLOP/s that a step has reached, is measured again, up to 4
// times in a run: other programs were running while it was measured.
template <class floatX>
double peak_flops(GPT2<floatX>& model, double reached) {
    for (; model.peak < reached && model.peak_measurements < 4; model.peak_measurements++)
        model.peak = std::max(model.peak, find_peak(is_16_bit<floatX>()));
    return model.peak >= reached ? model.peak : 0;
}

template <class floatX>
void trace_device(GPT2<floatX>&) {
    for (int i = 0; i < device.threads; i++) trace.tracks.push_back({format("thread %d", i), {}});
}

template <class floatX>
const char* kernels_name(GPT2<floatX>&) {
#ifdef KERNELS_REFERENCE
    return "reference";
#else
    return "fast";
#endif
}
template <class floatX>
DetectedDevice detected(GPT2<floatX>&) {
#ifdef KERNELS_REFERENCE
    const std::string kernels = "in naive loops";
#else
    const bool has_unit = is_16_bit<floatX>() && device.unit != UNIT_PORTABLE;
    const std::string unit = has_unit ? format("%s and ", MATRIX_UNIT_NAMES[device.unit]) : "";
    const std::string kernels = "on " + unit + vector_name(VEC_BYTES);
#endif
    return {
        format("%s, %s: %s %s, %d thread%s", cpu_text().c_str(), memory_text((double)machine_bytes()).c_str(),
               is_16_bit<floatX>() ? "bf16" : "fp32", kernels.c_str(), device.threads, device.threads == 1 ? "" : "s"),
        unused_vectors()};
}
template <class floatX>
std::string device_status(GPT2<floatX>&) {
    return "";
}
template <class floatX>
int64_t peak_bytes(GPT2<floatX>&) {
    return most_resident_bytes();
}
template <class floatX>
DeviceReading device_reading(GPT2<floatX>&) {
    return {};
}

#ifndef TRAINER_WITHOUT_MAIN
static int train(const Options& options) {
    if (options.precision == "fp16") usage_error("--precision fp16 is for GPUs; on a CPU fp32 and bf16 are accepted");
    if (options.precision != "bf16") return run_main<GPT2<float>>(options);
#ifdef KERNELS_REFERENCE
    usage_error("--precision bf16: the kernels of KERNELS=reference compute in fp32; fp32 is accepted");
#else
    return run_main<GPT2<bf16>>(options);
#endif
}
int main(int argc, char** argv) {
    return run_program([&] { return train(options_of_run(argc, argv)); });
}
#endif
