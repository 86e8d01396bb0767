// GPT-2 on the CPU: forward and backward pass, update, generation, and main, where a training run
// is a screen of code.
//
// The network (Radford et al. 2019): each position has a residual stream of C channels. It begins
// as the sum of two embeddings, of the token and of its position. Each of L layers adds to it
// twice: once the output of attention, once that of a two-layer network (MLP). After a last layer
// norm, the score of every word is the product of the stream with the word's embedding. Each line
// of the forward pass is one layer of llmc/cpu, and the backward pass has the same lines in
// reverse. llmc/README.md is the map of what surrounds them: the model (struct GPT2 in
// model/model.h), the services that train() calls (run/services.h). A Range computes nothing: it
// names a stretch of the time line that --trace draws; phases.enter() only books time. With one
// process comm_ functions do nothing.
//
// Everything is written for an element type floatX, fp32 or bf16; --precision chooses. In bf16
// weights and activations have 16 bits and the matrix unit multiplies them
// (llmc/cpu/matrix_unit.h), while sums, softmax, norms, losses and the optimizer stay in fp32.
//
//     make train_gpt2_cpu data && ./train_gpt2_cpu -e L6C384H6 -b 4 -t 128
//     make train_gpt2_cpu KERNELS=reference               the same with the naive loops of llmc/cpu/reference.h
#include <numeric>
#include "llmc/base/program.h"
#include "llmc/cpu/compiled_once.h"  // kernels::, and what the services need of a CPU
#include "llmc/cpu/decode.h"
#include "llmc/cpu/linear.h"
#include "llmc/cpu/wte_pieces.h"
#include "llmc/run/services.h"

// The gradient of a tensor of one layer; null if it does not train, or is made in pieces
// (cpu/wte_pieces.h). floatG is fp32 where 16-bit gradients would be summed over micro-steps or
// processes (Sizes::sums_gradients()), else floatX.
template <class floatG>
floatG* grad(GPT2& model, int tensor, int64_t layer = 0) {
    if (!trains(model.layout.config, tensor, layer) || (tensor == WTE && model.gradient_places.wte_in_pieces))
        return nullptr;
    return (floatG*)model.grads + model.gradient_at(tensor, layer);
}
// The fp32 sums of the gradient of wte over the classifier's chunks; null if there are none.
inline float* dwte_sums(GPT2& model) {
    if (!model.sizes.has_dwte_sums()) return nullptr;
    return model.sizes.dwte_sums_borrow_gradients() ? (float*)model.grads : model.act32(DWTE);
}
// The first position that each position sees; null where it sees all before it.
inline int* documents(GPT2& model) { return model.sizes.end_of_text < 0 ? nullptr : model.ints(DOCUMENT_STARTS); }

// -------------------------------------------------------------------------------------------------
// forward

// Layer l: from qkv, which is there already, to the branch that its MLP adds to the residual
// stream. Dropout does nothing, here and elsewhere, unless a batch of training has it.
template <class floatX>
void layer_forward(GPT2& model, int64_t l, const Batch& batch) {
    const Range range("layer_forward", l);
    const int64_t B = batch.B, T = batch.T, rows = B * T, C = model.layout.config.C, NH = model.layout.config.NH;
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    kernels::attention_forward(act(ATTY), act32(ATT_LSE), act(QKV), B, T, C, NH, documents(model), model.window(l));
    linear_forward(model, l, ATTPROJW, act(BRANCH), act(ATTY), rows, C, C);
    kernels::dropout(act(BRANCH), act(BRANCH), rows * C, batch.dropout.mask(DROP_ATTENTION, l, C));
    // residual2 = input + branch, ln2 = its norm, in one pass over memory
    kernels::residual_layernorm_forward(act(RESIDUAL2), act(LN2), act32(LN2_MEAN), act32(LN2_RSTD),
                                        layer_input<floatX>(model, l), act(BRANCH), param(LN2W), param(LN2B), rows, C);
    linear_forward(model, l, FCW, act(FCH), act(LN2), rows, C, 4 * C, act(FCH_GELU));  // and GELU
    linear_forward(model, l, FCPROJW, act(BRANCH), act(FCH_GELU), rows, 4 * C, C);
    kernels::dropout(act(BRANCH), act(BRANCH), rows * C, batch.dropout.mask(DROP_MLP, l, C));
}

// Layers first to end-1, from the residual stream that the first of them reads to the branch of the
// last, and what `leaves` names. If that is the cache, the last layer ends there, with its qkv.
template <class floatX>
void forward_layers(GPT2& model, int64_t first, int64_t end, const Batch& batch, Leaves leaves = LEAVES_NOTHING) {
    const int64_t T = batch.T, rows = batch.B * T, C = model.layout.config.C, NH = model.layout.config.NH;
    for (int64_t l = first; l < end; l++) {
        const auto [param, act, act32] = of_layer<floatX>(model, l);
        floatX* input = layer_input<floatX>(model, l);
        fetch_weights<floatX>(model, l, l + 1 < end ? l + 1 : -1);
        if (l == first)
            kernels::layernorm_forward(act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), input, param(LN1W), param(LN1B),
                                       rows, C);
        else  // input = residual2 + branch of the layer before, in one pass over memory; ln1 = its norm
            kernels::residual_layernorm_forward(input, act(LN1), act32(LN1_MEAN), act32(LN1_RSTD),
                                                model.act<floatX>(RESIDUAL2, l - 1), act(BRANCH), param(LN1W),
                                                param(LN1B), rows, C);
        linear_forward(model, l, QKVW, act(QKV), act(LN1), rows, C, 3 * C);
        if (leaves == LEAVES_CACHE) fill_cache(act(KEYS), act(VALUES), act(QKV), T, model.sizes.cache_T, C, NH);
        if (leaves == LEAVES_CACHE && l + 1 == end) return;
        layer_forward<floatX>(model, l, batch);
        if (leaves == LEAVES_CODES) encode_kept<floatX>(model, l, kernels::encode_activations<floatX>);
        leave_input(model, l);
    }
}

// x (B,T) of a batch to the residual stream that layer 0 reads.
template <class floatX>
void forward_embeddings(GPT2& model, const Batch& batch) {
    const int64_t B = batch.B, T = batch.T, C = model.layout.config.C;
    floatX* const encoded = model.act<floatX>(ENCODED);
    fetch_weights<floatX>(model, model.layout.config.L, 0);
    if (documents(model)) find_documents(documents(model), batch.x, B, T, model.sizes.end_of_text);
    embed(model, encoded, batch.x, B, T);
    kernels::dropout(encoded, encoded, B * T * C, batch.dropout.mask(DROP_EMBEDDINGS, 0, C));
}

// x (B,T) of a batch to lnf (B,T,C).
template <class floatX>
void forward_to_lnf(GPT2& model, const Batch& batch, Leaves leaves = LEAVES_NOTHING) {
    const int64_t C = model.layout.config.C, L = model.layout.config.L;
    const auto [param, act, act32] = of_layer<floatX>(model, L - 1);
    forward_embeddings<floatX>(model, batch);
    forward_layers<floatX>(model, 0, L, batch, leaves);
    fetch_weights<floatX>(model, L);
    // residual3 = residual2 + branch of the last layer, lnf = its norm
    kernels::residual_layernorm_forward(act(RESIDUAL3), act(LNF), act32(LNF_MEAN), act32(LNF_RSTD), act(RESIDUAL2),
                                        act(BRANCH), param(LNFW), param(LNFB), batch.B * batch.T, C);
}

// The loss of every position of a micro-batch. The scores of all words (B,T,Vp) would take more
// memory than all else, so the classifier computes a chunk of rows at a time, and while it is there
// also what the backward pass needs of it: d(lnf), in BRANCH, and the gradient of wte.
template <class floatX>
void forward(GPT2& model, const Batch& batch) {
    const Range range("forward");
    const int64_t rows = batch.B * batch.T;
    float* losses = model.act32(LOSSES);
    floatX *dlnf = model.act<floatX>(BRANCH), *lnf = model.act<floatX>(LNF);
    model.phases.enter(PHASE_FORWARD);
    if (model.teacher) forward_to_lnf<floatX>(*model.teacher, {batch.x, batch.y, batch.B, batch.T});
    forward_to_lnf<floatX>(model, batch, LEAVES_CODES);
    keep_slices(model);  // of the micro-step before: the gradient of wte is written next
    const auto classify = [&](auto* dwte) {
        losses_of(model, losses, dlnf, dwte, lnf, batch.y, rows, batch.dloss, model.adds(batch), dwte_sums(model),
                  teacher_of<floatX>(model));
    };
    if (model.sizes.sums_gradients()) classify(grad<float>(model, WTE));
    else classify(grad<floatX>(model, WTE));
    if (batch.micro == 0) model.loss_sum = 0;
    model.loss_sum += std::accumulate(losses, losses + rows, 0.0);
}

// Losses of all positions of x, y (B,T), without gradients.
template <class floatX>
void evaluate(GPT2& model, const int* x, const int* y, int64_t B, int64_t T, float* losses) {
    const Range range("evaluate");
    forward_to_lnf<floatX>(model, {x, y, B, T});
    losses_of(model, losses, model.act<floatX>(LNF), y, B * T);
}

// -------------------------------------------------------------------------------------------------
// backward

// Before the backward pass of layer l: decodes what it keeps in codes, and recomputes what it did
// not keep: from level 3 on a whole segment, at its last layer (Sizes::recomputed_before()).
template <class floatX>
void layer_recompute(GPT2& model, int64_t l, const Batch& batch) {
    const Range range("layer_recompute", l);
    const int64_t C = model.layout.config.C, rows = batch.B * batch.T;
    const int64_t level = model.sizes.recompute, layers = model.sizes.recomputed_before(l);
    decode_kept<floatX>(model, l, kernels::decode_activations<floatX>);
    if (layers == 0) return;
    if (level >= 3) return forward_layers<floatX>(model, l + 1 - layers, l + 1, batch);
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    fetch_weights<floatX>(model, l);
    if (level >= 2) {
        kernels::layernorm_forward(act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), layer_input<floatX>(model, l),
                                   param(LN1W), param(LN1B), rows, C);
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
// what they belong to is used once. With --dropout d(branch) is not all of DRESIDUAL, which goes on
// undropped: then dropout() returns BRANCH or DWIDE, which are free, else DRESIDUAL. Gradients of
// parameters are written by the first micro-step of a step, and added to by the others.
template <class floatG, class floatX>
void layer_backward(GPT2& model, int64_t l, const Batch& batch) {
    const Range range("layer_backward", l);
    const int64_t B = batch.B, T = batch.T, rows = B * T, C = model.layout.config.C, NH = model.layout.config.NH;
    const bool add = model.adds(batch);
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const auto grad = [&](int tensor) { return ::grad<floatG>(model, tensor, l); };
    floatX *dresidual = act(DRESIDUAL), *dbranch = act(BRANCH), *dwide = act(DWIDE);
    const floatX* dmlp = kernels::dropout(dbranch, dresidual, rows * C, batch.dropout.mask(DROP_MLP, l, C));
    // act(FCH): and back through GELU
    linear_backward(model, l, FCPROJW, grad, dwide, dmlp, act(FCH_GELU), rows, 4 * C, C, add, act(FCH));
    linear_backward(model, l, FCW, grad, dbranch, dwide, act(LN2), rows, C, 4 * C, add);
    kernels::layernorm_backward(dresidual, grad(LN2W), grad(LN2B), dbranch, act(RESIDUAL2), param(LN2W),
                                act32(LN2_MEAN), act32(LN2_RSTD), rows, C, add);
    const floatX* dattention = kernels::dropout(dwide, dresidual, rows * C, batch.dropout.mask(DROP_ATTENTION, l, C));
    linear_backward(model, l, ATTPROJW, grad, dbranch, dattention, act(ATTY), rows, C, C, add);
    kernels::attention_backward(dwide, dbranch, act(ATTY), act32(ATT_LSE), act(QKV), B, T, C, NH, documents(model),
                                model.window(l));
    floatX* dln1 = model.layout.goes_below(l) ? dbranch : nullptr;
    linear_backward(model, l, QKVW, grad, dln1, dwide, act(LN1), rows, C, 3 * C, add);
    if (dln1)
        kernels::layernorm_backward(dresidual, grad(LN1W), grad(LN1B), dln1, layer_input<floatX>(model, l), param(LN1W),
                                    act32(LN1_MEAN), act32(LN1_RSTD), rows, C, add);
}

// To be called when the gradients of a bucket are complete: bucket l < L is layer l, bucket L what
// is outside the layers. The noise scale needs the norm that they have after the first micro-step
// (noise_scale.h).
template <class floatG>
void note_first_gradients(GPT2& model, int64_t bucket) {
    if (!model.noise_scale) return;
    if (bucket == model.layout.config.L - 1) model.small_squares = 0;  // the last layer is the first to be complete
    const floatG* grads = (floatG*)model.grads + model.gradient_places.whole(model.layout, bucket);
    model.small_squares += kernels::global_norm_squared(grads, model.layout.bucket_elems(bucket));
}

// Starts the sum of a bucket's gradients over the processes, in fp32 or compressed. With
// --sync-every each process keeps its own.
template <class floatG>
void reduce_gradients(GPT2& model, int64_t bucket, const Batch& batch) {
    if (model.apart) return;
    model.phases.enter(PHASE_COMMUNICATION);
    if (model.compressed.on) send_compressed(model, bucket);
    else if constexpr (sizeof(floatG) == 4) start_sum(model, bucket, batch.micro > 0);
    model.phases.enter(PHASE_BACKWARD);
}

// The gradients of all parameters, from what forward() has left. wte has two uses, as the
// classifier's matrix and as the embedding: the classifier has written its gradient, and
// encoder_backward adds to it. The last micro-step starts the sum of each layer's gradients over
// the processes as soon as they are complete.
template <class floatG, class floatX>
void backward_to(GPT2& model, const Batch& batch) {
    const GPT2Config& c = model.layout.config;
    const int64_t B = batch.B, T = batch.T, rows = B * T, last = c.L - 1;
    const bool add = model.adds(batch);
    const auto [param, act, act32] = of_layer<floatX>(model, last);
    // d(residual3), from d(lnf) in BRANCH: layernorm_backward adds to it
    memset((void*)act(DRESIDUAL), 0, rows * c.C * sizeof(floatX));
    kernels::layernorm_backward(act(DRESIDUAL), grad<floatG>(model, LNFW), grad<floatG>(model, LNFB), act(BRANCH),
                                act(RESIDUAL3), param(LNFW), act32(LNF_MEAN), act32(LNF_RSTD), rows, c.C, add);
    const int64_t lowest = model.layout.lowest_trained();  // -1 unless some tensors do not train
    for (int64_t l = last; l >= std::max<int64_t>(0, lowest); l--) {
        layer_recompute<floatX>(model, l, batch);
        fetch_weights<floatX>(model, l, l - 1), free_place(model, l);
        fetch_input(model, l - 1);
        layer_backward<floatG, floatX>(model, l, batch);
        leave_input(model, l);
        if (batch.micro == 0) note_first_gradients<floatG>(model, l);
        if (model.sends(batch)) reduce_gradients<floatG>(model, l, batch);
        comm_progress();
    }
    kernels::dropout(act(DRESIDUAL), act(DRESIDUAL), rows * c.C, batch.dropout.mask(DROP_EMBEDDINGS, 0, c.C));
    kernels::encoder_backward(grad<floatG>(model, WTE), grad<floatG>(model, WPE), act(DRESIDUAL), batch.x, B, T, c.C,
                              c.maxT, add);
    if (model.gradient_places.wte_in_pieces) return sum_wte_in_pieces<floatX>(model, batch);
    if (batch.micro == 0) note_first_gradients<floatG>(model, c.L);
    if (model.sends(batch)) reduce_gradients<floatG>(model, c.L, batch);
}
template <class floatX>
void backward(GPT2& model, const Batch& batch) {
    const Range range("backward");
    model.phases.enter(PHASE_BACKWARD);
    if (model.sizes.sums_gradients()) backward_to<float, floatX>(model, batch);
    else backward_to<floatX, floatX>(model, batch);
}

// -------------------------------------------------------------------------------------------------
// update

// Sum of the squares of all gradients. Of several processes each sums its slices of the buckets, of
// replicas the first; the sums are added in the order of ranks. Processes that train apart sum all
// of their own.
template <class floatG>
double gradient_norm_squared(GPT2& model) {
    const ParameterLayout& layout = model.layout;
    const floatG* grads = (floatG*)model.grads;
    if (comm.processes == 1) return kernels::global_norm_squared(grads, layout.total_elems());
    double mine = 0;
    if (model.apart) mine = kernels::global_norm_squared(grads, layout.total_elems());
    for (int64_t b = 0; b < layout.buckets() && !model.apart && comm.replicas.rank == 0; b++) {
        const int64_t elems = layout.slice_elems(b);
        mine += kernels::global_norm_squared(grads + model.gradient_places.own(layout, b), elems);
    }
    return comm_sum(mine, "the sum of the gradient's norm");
}

// The loss of the step, its mean over all tokens, and the norm of its gradient.
template <class floatX>
StepResult loss_and_norm(GPT2& model, const UpdateSettings& settings) {
    model.phases.enter(PHASE_COMMUNICATION);
    receive_compressed(model);
    receive_sums(model);
    mask_gradients<floatX>(model);  // --prune
    const double loss = mean_loss(comm_sum(model.loss_sum, "the sum of the losses"), settings);
    model.phases.enter(PHASE_UPDATE);
    const double squares =
        model.sizes.sums_gradients() ? gradient_norm_squared<float>(model) : gradient_norm_squared<floatX>(model);
    const double norm = gradient_norm(squares, settings);
    return {loss, norm, update_wanted(loss, norm, settings), model.small_squares};
}

// Starts collecting all processes' slices of a bucket of gradients, or of weights.
template <class T>
static void gather(GPT2& model, T* elems, int64_t bucket) {
    model.phases.enter(PHASE_COMMUNICATION);
    comm_all_gather_start(elems + model.layout.bucket_begin[bucket], model.layout.slice_elems(bucket), bucket);
    model.phases.enter(PHASE_UPDATE);
}

// The optimizer: AdamW, unless --optimizer names another. ZeRO stage 0: every process gets the
// whole gradient, and all make the same update. Stages 1 and 2: each process updates its slices of
// the weights, and every process gets them all; stage 3: when it needs them (cpu/shard.h).
template <class floatX>
void update(GPT2& model, const UpdateSettings& settings, const StepResult& result) {
    const Range range("update");
    const ParameterLayout& layout = model.layout;
    const bool in_slices = model.slice.parts > 1, sums = model.sizes.sums_gradients();
    const bool gathers = !in_slices && !model.apart && !model.compressed.on;  // compressed sums are there
    floatX *params = (floatX*)model.params, *grads = (floatX*)model.grads;
    UpdateConstants constants = settings.constants;
    constants.grad_scale = gradient_factor(result.norm, settings);  // clips
    for (int64_t b = 0; b < layout.buckets() && gathers; b++)
        sums ? gather(model, model.grad_sums, b) : gather(model, grads, b);
    model.phases.enter(PHASE_COMMUNICATION);
    comm_wait("the collection of the gradients");
    model.in_update = true;
    model.phases.enter(PHASE_UPDATE);
    const auto adamw = [&](const TensorPart& part) {
        UpdateConstants k = constants;
        if (!TENSORS[part.tensor].decayed) k.weight_decay = 0;
        float* master = model.master ? model.master + part.state : nullptr;
        const auto update_part = [&](auto* gradients) {
            kernels::adamw_update(params + model.weight_places.at(layout, part), master, (float*)model.m + part.state,
                                  (float*)model.v + part.state, gradients + model.gradient_places.at(layout, part),
                                  part.elems(), k, settings.rounding_seed, part.index);
        };
        sums ? update_part(model.grad_sums) : update_part(grads);
    };
    std::function<void(int64_t bucket)> other;
    if (model.optimizer != ADAMW) other = prepare_other_optimizer<floatX>(model, constants, settings);
    for (int64_t b = 0; b < layout.buckets(); b++) {
        const StateInUse state(model, b);
        if (other) other(b);
        else for_each_part_of(b, layout, model.slice, adamw);
        if (in_slices && !model.weight_places.sharded) gather(model, params, b);
        comm_progress();
    }
    model.phases.enter(PHASE_COMMUNICATION);
    comm_wait("the collection of the weights");
    model.weights_there = {};
}

// -------------------------------------------------------------------------------------------------
// generation

// The logits (V) of what follows n tokens, at most T of Sizes, which are positions 0 to n - 1. One
// forward pass; their keys and values go to the cache. Of the last layer the rest is computed for
// the last position only: nothing reads that of the others.
template <class floatX>
const float* prefill(GPT2& model, const int* tokens, int64_t n) {
    const Range range("prefill");
    const int64_t last = model.layout.config.L - 1, C = model.layout.config.C;
    forward_embeddings<floatX>(model, {tokens, tokens, 1, n});
    forward_layers<floatX>(model, 0, last + 1, {tokens, tokens, 1, n}, LEAVES_CACHE);
    floatX* const residual = layer_input<floatX>(model, last) + (n - 1) * C;
    layer_decode<floatX>(model, last, residual, model.act<floatX>(QKV, last) + (n - 1) * 3 * C, n - 1);
    return logits_of(model, residual);
}

// -------------------------------------------------------------------------------------------------
// main

// A training run. What is not in this file is a service of llmc/run.
template <class floatX>
int train(Run& run) {
    GPT2& model = run.model;
    model.format = format_of<floatX>(), model.backend = &cpu_backend<floatX>();
    model.evaluate = evaluate<floatX>, model.prefill = prefill<floatX>, model.decode = decode<floatX>;
    if (!begin_run(run)) return 0;
    const auto micro_step = [&](int64_t micro) {
        const Range range("micro_step", micro);
        const Batch batch = next_batch(run, micro);  // x, y (B,T): this process's windows
        forward<floatX>(model, batch);               // the loss of every position
        backward<floatX>(model, batch);              // adds to the gradients; the last one sends them on their way
    };
    for (;;) {
        evaluate_when_due(run);                     // validation loss, HellaSwag, a sample
        if (run_is_over(run)) return end_run(run);  // the last step is done, or a signal came
        begin_step(run);
        for (int64_t micro = 0; micro < model.micro_steps; micro++) micro_step(micro);
        if (data_failed(run)) continue;                     // no update; run_is_over() is true now
        const UpdateSettings settings = begin_update(run);  // learning rate, clipping, what is an outlier
        const StepResult result = loss_and_norm<floatX>(model, settings);  // over all processes
        if (result.wanted) update<floatX>(model, settings, result);        // AdamW
        average_weights(run, result);                                      // --ema: an average of the weights
        meet_when_due(run);                                                // --sync-every: processes that train apart
        end_step(run, settings, result, micro_step);  // logs and counts it; micro_step finds where a NaN began
        save_when_due(run);
    }
}

#ifndef TRAINER_WITHOUT_MAIN
int main(int argc, char** argv) {
    return run_program([&] {
        const DenormalsAreZero mode;  // on this thread as on all others (denormals.h)
        Run run;
        run.options = options_of_command(argc, argv);
        [[maybe_unused]] const bool in_bf16 = computes_in_bf16(run.options);
#ifndef KERNELS_REFERENCE
        if (in_bf16) return train<bf16>(run);
#endif
        return train<float>(run);
    });
}
#endif
