// GPT-2 on a GPU: the same story as train_gpt2_cpu.cpp, section by section; read that one first.
// What a GPU changes: the model's memory is the device's, tokens are uploaded, and every line of
// the forward pass, the backward pass and the update only puts work into a stream. The device
// decides by itself whether to update. The host runs ahead, and loads the next tokens. Once per
// step it waits for the GPU, in wait_for_step(); with several processes once more, for the weights
// that they have updated, while the GPU computes with those that are there. (Muon also waits while
// they share its matrices.) Evaluation, samples and checkpoints wait for what they copy to the
// host.
//
//     make train_gpt2cu data && ./train_gpt2cu -e d12 -b 16 -t 1024   bf16 mixed precision
//     make train_gpt2cu PRECISION=FP32                               fp32, TF32 products unless -f 0
//     make train_gpt2cu PRECISION=FP16                               fp16 mixed precision, with loss scaling
//     make train_gpt2sim data && ./train_gpt2sim -e L2C64H2T64 -t 64  the same source on a CPU (dev/cusim)
//
// Mixed precision (Micikevicius et al. 2018, arXiv:1710.03740): weights, activations and gradients
// are bf16; sums, softmax, norms, losses and the optimizer's state are fp32. The optimizer updates
// an fp32 copy of the weights (-w 1), or rounds its result stochastically (-w 0). The gradients of
// one micro-step are bf16. Those of several are summed in fp32: a layer's bf16 gradients are needed
// only until they are added to the sums, so that all layers share the memory of one. The gradient
// of the tied embedding is summed in fp32 in either case. The same holds in fp16, but for -w 0; its
// gradients are those of a scaled loss (llmc/optim/loss_scale.h).
#include "llmc/base/program.h"
#include "llmc/cuda/backend.cuh"
#include "llmc/cuda/decode.cuh"
#include "llmc/cuda/dropout.cuh"
#include "llmc/cuda/linear.cuh"
#include "llmc/cuda/other_optimizers.cuh"
#include "llmc/cuda/shard.cuh"
#include "llmc/cuda/upload.cuh"
#include "llmc/run/services.h"

#ifdef PRECISION_FP32
typedef float floatX;  // type of weights, gradients and activations
#else
typedef halfX floatX;  // bf16, or with PRECISION_FP16 fp16
#endif
constexpr bool IS_FP32 = sizeof(floatX) == 4;

// Where backward() writes the gradient of a tensor; null if it does not train (--train). Where
// gradients are summed, all layers use the memory of one in turn; behind it lies what is outside
// the layers, but wte.
floatX* grad(GPT2& model, int tensor, int64_t layer = 0) {
    const ParameterLayout& layout = model.layout;
    floatX* grads = (floatX*)model.grads;
    if (!trains(layout.config, tensor, layer)) return nullptr;
    if (!model.sizes.sums_gradients()) return grads + model.gradient_at(tensor, layer);
    if (TENSORS[tensor].per_layer) return grads + layout.offset_in_bucket(tensor, layer);
    return grads + layout.most_layer_elems() + layout.offset_in_bucket(tensor) - layout.wte_elems();
}
// The gradient of wte, in fp32; null if it does not train.
float* dwte(GPT2& model) {
    if (!trains(model.layout.config, WTE)) return nullptr;
    if (model.sizes.sums_gradients()) return model.grad_sums + model.gradient_at(WTE);
    return IS_FP32 ? (float*)grad(model, WTE) : model.act32(DWTE);
}

// -------------------------------------------------------------------------------------------------
// forward

// The first half of the MLP of layer l, from C channels to 4 C: fch, and GELU of it.
void expand(GPT2& model, int64_t l, int64_t rows) {
    const int64_t C = model.layout.config.C;
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    linear_forward(model, l, FCW, act(FCH), act(LN2), rows, C, 4 * C, act(FCH_GELU));
}

// Layer l: from qkv, which is there already, to the branch that its MLP adds to the residual
// stream. Dropout does nothing, here and elsewhere, unless a batch of training has it.
void layer_forward(GPT2& model, int64_t l, const Batch& batch) {
    const Range range("layer_forward", l);
    const int64_t B = batch.B, T = batch.T, rows = B * T, C = model.layout.config.C, NH = model.layout.config.NH;
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const cudaStream_t stream = model.gpu->stream;
    attention_forward(act(ATTY), act32(ATT_LSE), act(QKV), B, T, C, NH, stream, model.gpu->documents, model.window(l));
    linear_forward(model, l, ATTPROJW, act(BRANCH), act(ATTY), rows, C, C);
    dropout(act(BRANCH), act(BRANCH), rows * C, batch.dropout.mask(DROP_ATTENTION, l, C), stream);
    // residual2 = input + branch, ln2 = its norm, in one pass over memory
    residual_layernorm_forward(act(RESIDUAL2), act(LN2), act32(LN2_MEAN), act32(LN2_RSTD),
                               layer_input<floatX>(model, l), act(BRANCH), param(LN2W), param(LN2B), rows, C, stream);
    expand(model, l, rows);
    linear_forward(model, l, FCPROJW, act(BRANCH), act(FCH_GELU), rows, 4 * C, C);
    dropout(act(BRANCH), act(BRANCH), rows * C, batch.dropout.mask(DROP_MLP, l, C), stream);
}

// Layers first to end-1, from the residual stream that the first of them reads to the branch of the
// last, and what `leaves` names. If that is the cache, the last layer ends there, with its qkv.
void forward_layers(GPT2& model, int64_t first, int64_t end, const Batch& batch, Leaves leaves = LEAVES_NOTHING) {
    const int64_t T = batch.T, rows = batch.B * T, C = model.layout.config.C, NH = model.layout.config.NH;
    const cudaStream_t stream = model.gpu->stream;
    for (int64_t l = first; l < end; l++) {
        const auto [param, act, act32] = of_layer<floatX>(model, l);
        floatX* input = layer_input<floatX>(model, l);
        fetch_weights<floatX>(model, l, l + 1 < end ? l + 1 : -1);
        if (l == first)
            layernorm_forward(act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), input, param(LN1W), param(LN1B), rows, C,
                              stream);
        else  // input = residual2 + branch of the layer before, in one pass over memory; ln1 = its norm
            residual_layernorm_forward(input, act(LN1), act32(LN1_MEAN), act32(LN1_RSTD),
                                       model.act<floatX>(RESIDUAL2, l - 1), act(BRANCH), param(LN1W), param(LN1B), rows,
                                       C, stream);
        linear_forward(model, l, QKVW, act(QKV), act(LN1), rows, C, 3 * C);
        if (leaves == LEAVES_CACHE) fill_cache(act(KEYS), act(VALUES), act(QKV), T, model.sizes.cache_T, C, NH, stream);
        if (leaves == LEAVES_CACHE && l + 1 == end) return;
        layer_forward(model, l, batch);
        if (leaves == LEAVES_CODES) encode_kept<floatX>(model, l, encode_activations<floatX>, stream);
        if (leaves == LEAVES_CODES) leave_input(model, l);
    }
}

// The tokens (B,T) of a batch, which are on the device, to the residual stream that layer 0 reads.
void forward_embeddings(GPT2& model, const int* tokens, const Batch& batch) {
    const int64_t B = batch.B, T = batch.T, C = model.layout.config.C;
    floatX* const encoded = model.act<floatX>(ENCODED);
    fetch_weights<floatX>(model, model.layout.config.L, 0);
    embed(model, encoded, tokens, B, T);
    dropout(encoded, encoded, B * T * C, batch.dropout.mask(DROP_EMBEDDINGS, 0, C), model.gpu->stream);
}

// The tokens (B,T) of a batch, which are on the device, to lnf (B,T,C).
void forward_to_lnf(GPT2& model, const int* tokens, const Batch& batch, Leaves leaves = LEAVES_NOTHING) {
    const int64_t C = model.layout.config.C, L = model.layout.config.L;
    const auto [param, act, act32] = of_layer<floatX>(model, L - 1);
    forward_embeddings(model, tokens, batch);
    forward_layers(model, 0, L, batch, leaves);
    // residual3 = residual2 + branch of the last layer, lnf = its norm
    residual_layernorm_forward(act(RESIDUAL3), act(LNF), act32(LNF_MEAN), act32(LNF_RSTD), act(RESIDUAL2), act(BRANCH),
                               param(LNFW), param(LNFB), batch.B * batch.T, C, model.gpu->stream);
}

// The loss of every position of a micro-batch. The scores of all words (B,T,Vp) would take more
// memory than all else, so the classifier computes a chunk of rows at a time, and while it is there
// also what the backward pass needs of it: d(lnf), in BRANCH, and the gradient of wte. Both passes
// are enqueued kernel by kernel or, with --cuda-graph 1, as one graph each (step_graph.cuh).
void forward(GPT2& model, const Batch& batch) {
    const Range range("forward");
    const GPT2Config& c = model.layout.config;
    const int64_t rows = batch.B * batch.T;
    by_graph(model, FORWARD_PASS, batch, [&] {
        const auto [param, act, act32] = of_layer<floatX>(model, 0);
        if (model.teacher) forward_to_lnf(*model.teacher, model.ints(INPUTS), {batch.x, batch.y, batch.B, batch.T});
        forward_to_lnf(model, model.ints(INPUTS), batch, LEAVES_CODES);
        free_place(model, c.L);  // the gradient of wte is written next
        classifier(act32(LOSSES), act(BRANCH), dwte(model), act(LOGITS), act(LNF), matrix_of<floatX>(model, WTE),
                   model.ints(TARGETS), rows, model.sizes.logit_rows, c.C, c.V, c.Vp, batch.dloss, model.adds(batch),
                   model.gpu->stream, teacher_of<floatX>(model));
        loss_sum(&results_of(model)->loss_sum, act32(LOSSES), rows, batch.micro > 0, model.gpu->stream);
    });
}

// Losses of all positions of x, y (B,T), without gradients.
void evaluate(GPT2& model, const int* x, const int* y, int64_t B, int64_t T, float* losses) {
    const Range range("evaluate");
    const GPT2Config& c = model.layout.config;
    floatX* const none = nullptr;
    const auto [param, act, act32] = of_layer<floatX>(model, 0);
    upload<floatX>(model, {x, y, B, T}, false);
    forward_to_lnf(model, model.ints(INPUTS), {x, y, B, T});
    classifier(act32(LOSSES), none, nullptr, act(LOGITS), act(LNF), matrix_of<floatX>(model, WTE), model.ints(TARGETS),
               B * T, model.sizes.logit_rows, c.C, c.V, c.Vp, 0.0f, false, model.gpu->stream);
    copy_to_host(losses, act32(LOSSES), B * T * sizeof(float), model.gpu->stream);
}

// -------------------------------------------------------------------------------------------------
// backward

// Before the backward pass of layer l: decodes what it keeps in codes, and recomputes what it did
// not keep: from level 3 on a whole segment, at its last layer (Sizes::recomputed_before()).
void layer_recompute(GPT2& model, int64_t l, const Batch& batch) {
    const Range range("layer_recompute", l);
    const int64_t C = model.layout.config.C, rows = batch.B * batch.T;
    const int64_t level = model.sizes.recompute, layers = model.sizes.recomputed_before(l);
    const cudaStream_t stream = model.gpu->stream;
    decode_kept<floatX>(model, l, decode_activations<floatX>, stream);
    if (layers == 0) return;
    if (level >= 3) return forward_layers(model, l + 1 - layers, l + 1, batch);
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    fetch_weights<floatX>(model, l);
    if (level >= 2) {
        layernorm_forward(act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), layer_input<floatX>(model, l), param(LN1W),
                          param(LN1B), rows, C, stream);
        layernorm_forward(act(LN2), act32(LN2_MEAN), act32(LN2_RSTD), act(RESIDUAL2), param(LN2W), param(LN2B), rows, C,
                          stream);
    }
    if (level < 1) return;
    // The fused product applies GELU to sums that are not rounded: it is repeated, to get the same
    // bits.
    if (model.gpu->gelu_fusion >= 1 && !is_adapted(FCW, model.layout.config)) expand(model, l, rows);
    else gelu_forward(act(FCH_GELU), act(FCH), rows * 4 * C, stream);
}

// Layer l, from the gradient of its output to that of its input. Which buffer holds what after each
// line, and why some outputs are added to: see train_gpt2_cpu.cpp. A kernel that writes a gradient
// may leave partial sums of its columns, from which the next matmul_backward makes the gradient of
// its bias (column_sums.cuh): `sums` are those of the line before, at first and in the end those of
// dresidual. Dropout discards them.
ColumnSums layer_backward(GPT2& model, int64_t l, const Batch& batch, bool add, ColumnSums sums) {
    const Range range("layer_backward", l);
    const int64_t B = batch.B, T = batch.T, rows = B * T, C = model.layout.config.C, NH = model.layout.config.NH;
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    const auto grad = [&](int tensor) { return ::grad(model, tensor, l); };
    const cudaStream_t stream = model.gpu->stream;
    floatX *dresidual = act(DRESIDUAL), *dbranch = act(BRANCH), *dwide = act(DWIDE);
    float* partials = act32(PARTIALS);
    const floatX* dmlp = dropout(dbranch, dresidual, rows * C, batch.dropout.mask(DROP_MLP, l, C), stream, &sums);
    sums = linear_backward(model, l, FCPROJW, grad, dwide, sums, dmlp, act(FCH_GELU), rows, 4 * C, C, add, act(FCH));
    linear_backward(model, l, FCW, grad, dbranch, sums, dwide, act(LN2), rows, C, 4 * C, add);
    sums = layernorm_backward(dresidual, grad(LN2W), grad(LN2B), partials, dbranch, act(RESIDUAL2), param(LN2W),
                              act32(LN2_MEAN), act32(LN2_RSTD), rows, C, add, stream);
    const floatX* dattention =
        dropout(dwide, dresidual, rows * C, batch.dropout.mask(DROP_ATTENTION, l, C), stream, &sums);
    linear_backward(model, l, ATTPROJW, grad, dbranch, sums, dattention, act(ATTY), rows, C, C, add);
    sums = attention_backward(dwide, act32(ATT_D), dbranch, act(ATTY), act32(ATT_LSE), act(QKV), B, T, C, NH, stream,
                              model.gpu->documents, partials, model.window(l));
    floatX* dln1 = model.layout.goes_below(l) ? dbranch : nullptr;
    linear_backward(model, l, QKVW, grad, dln1, sums, dwide, act(LN1), rows, C, 3 * C, add);
    if (!dln1) return {partials};
    return layernorm_backward(dresidual, grad(LN1W), grad(LN1B), partials, dbranch, layer_input<floatX>(model, l),
                              param(LN1W), act32(LN1_MEAN), act32(LN1_RSTD), rows, C, add, stream);
}

// Where gradients are summed in fp32: adds to the sums what this micro-step has computed of one
// tensor outside the layers, or of a layer. The first micro-step overwrites the sums (!add).
void sum_tensor_gradients(GPT2& model, int tensor, bool add) {
    if (!model.sizes.sums_gradients() || !trains(model.layout.config, tensor)) return;
    const int64_t elems = tensor_elems(tensor, model.layout.config);
    add_gradients(model.grad_sums + model.gradient_at(tensor), grad(model, tensor), elems, add, model.gpu->stream);
}
void sum_layer_gradients(GPT2& model, int64_t l, bool add) {
    if (!model.sizes.sums_gradients() || model.layout.bucket_elems(l) == 0) return;
    float* const sums = model.grad_sums + model.gradient_places.whole(model.layout, l);
    add_gradients(sums, (floatX*)model.grads, model.layout.bucket_elems(l), add, model.gpu->stream);
}

// Calls f with the gradients that processes exchange: fp32 where micro-steps are summed, else
// floatX.
template <class F>
void with_gradients(GPT2& model, F f) {
    if (model.sizes.sums_gradients()) f(model.grad_sums);
    else f((floatX*)model.grads);
}
// To be called when the gradients of a bucket are complete. The noise scale needs the norm that
// they have after the first micro-step (noise_scale.h).
void note_first_gradients(GPT2& model, int64_t bucket) {
    if (!model.noise_scale) return;
    const int64_t elems = model.layout.bucket_elems(bucket);
    const bool add = bucket != model.layout.config.L - 1;  // the last layer is the first to be complete
    with_gradients(model, [&](auto* grads) {
        sum_small_squares(results_of(model), (double*)model.act32(NORM_PARTIALS),
                          grads + model.gradient_places.whole(model.layout, bucket), elems, add, model.gpu->stream);
    });
}

// The gradients of all parameters, from what forward() has left. wte has two uses, as the
// classifier's matrix and as the embedding: the classifier has written its gradient, and
// encoder_backward adds to it. The last micro-step starts the sum of each layer's gradients over
// the processes as soon as they are complete.
void backward(GPT2& model, const Batch& batch) {
    const Range range("backward");
    const GPT2Config& c = model.layout.config;
    const int64_t B = batch.B, T = batch.T, rows = B * T, last = c.L - 1;
    const bool add = model.adds(batch);
    const bool add_in_place = add && IS_FP32;  // 16-bit gradients are written, and added to sums elsewhere
    const cudaStream_t stream = model.gpu->stream;
    const int64_t lowest = model.layout.lowest_trained();  // -1 unless some tensors do not train
    const auto reduce = [&](int64_t bucket) {              // starts its sum over the processes
        if (sent_otherwise(model, bucket)) return;         // --compress-gradients, --sync-every
        if (model.layout.bucket_elems(bucket) == 0) return;
        with_gradients(model, [&](auto* grads) { sum_over_processes(model, grads, bucket, batch); });
    };
    floatX* dresidual = model.act<floatX>(DRESIDUAL);
    model.phases.enter(PHASE_BACKWARD);
    by_graph(model, BACKWARD_PASS, batch, [&] {
        const auto [param, act, act32] = of_layer<floatX>(model, last);
        check_cuda(cudaMemsetAsync(dresidual, 0, rows * c.C * sizeof(floatX), stream), "clearing a gradient");
        ColumnSums sums = layernorm_backward(dresidual, grad(model, LNFW), grad(model, LNFB), act32(PARTIALS),
                                             act(BRANCH), act(RESIDUAL3), param(LNFW), act32(LNF_MEAN), act32(LNF_RSTD),
                                             rows, c.C, add_in_place, stream);
        sum_tensor_gradients(model, LNFW, add), sum_tensor_gradients(model, LNFB, add);
        for (int64_t l = last; l >= std::max<int64_t>(0, lowest); l--) {
            fetch_input(model, l), layer_recompute(model, l, batch);
            fetch_weights<floatX>(model, l, l - 1), free_place(model, l);
            sums = layer_backward(model, l, batch, add_in_place, sums);
            sum_layer_gradients(model, l, add);
            if (batch.micro == 0) note_first_gradients(model, l);
            if (model.sends(batch)) reduce(l);
        }
        if (lowest < 0) dropout(dresidual, dresidual, rows * c.C, batch.dropout.mask(DROP_EMBEDDINGS, 0, c.C), stream);
    });
    const int *order = model.ints(TOKEN_ORDER), *begins = order + rows;
    if (lowest < 0)
        encoder_backward(dwte(model), grad(model, WPE), model.act32(PARTIALS), dresidual, model.ints(INPUTS), order,
                         begins, model.gpu->tokens, B, T, c.C, c.maxT, add_in_place, stream);
    sum_tensor_gradients(model, WPE, add);
    if (model.sizes.has_dwte_sums()) round_gradients(grad(model, WTE), dwte(model), c.Vp * c.C, stream);
    if (batch.micro == 0) note_first_gradients(model, c.L);
    if (model.sends(batch)) reduce(c.L);
}

// -------------------------------------------------------------------------------------------------
// update

// The end of a step, enqueued: loss, the mean over all tokens, norm of the gradient, and from both
// the device's decision whether to update; then the optimizer, which does nothing if not: AdamW,
// unless --optimizer names another. ZeRO stage 0: every process gets the whole gradient, and all
// make the same update. Stages 1 and 2: each process updates its slices of the weights, and every
// process gets them all; stage 3: when it needs them (cuda/shard.cuh).
template <class floatG>
void update_from(GPT2& model, floatG* grads, const UpdateSettings& settings) {
    const ParameterLayout& layout = model.layout;
    const cudaStream_t stream = model.gpu->stream;
    DeviceResults* results = results_of(model);
    const bool in_slices = model.slice.parts > 1, gathers = !in_slices && !model.apart && !model.compressed.on;
    floatX* params = (floatX*)model.params;
    model.phases.enter(PHASE_COMMUNICATION);
    join_gradients(model);
    mask_gradients<floatX>(model, grads);  // --prune
    model.phases.enter(PHASE_UPDATE);
    const BucketSlice shard{comm.shards.processes, comm.shards.rank};
    const SliceMap own_slices = slice_map(model, model.apart ? model.slice : shard);
    sum_squares(results, (double*)model.act32(NORM_PARTIALS), grads, own_slices, comm.rank, stream);
    gpu_group(KernelWork{{"sums and gradients"}}, [&] {
        // of every rank its loss and its squares
        gpu_all_gather((double*)rank_sums(results), 2, -1, stream, (const double*)nullptr, ALL_GPUS);
        for (int64_t b = 0; b < layout.buckets() && gathers; b++)
            gpu_all_gather(grads + layout.bucket_begin[b], layout.slice_elems(b), b, stream);
    });
    model.phases.enter(PHASE_COMMUNICATION);
    gpu_comm_join(stream);
    model.phases.enter(PHASE_UPDATE);
    finish_norm(results, comm.processes, shard.parts, settings, stream);
    if (!layout.layers_alike()) update_by_tensor<floatX>(model, grads, settings);
    else if (model.optimizer != ADAMW) update_by_other<floatX>(model, grads, settings);
    else
        for_each_stretch(model, [&](const StateStretch& s) {  // of the state: all of it, but with --offload
            adamw_update(params, s.master, (float*)s.m, (float*)s.v, grads, s.mine, settings.constants,
                         model.gpu->decayed, results, settings.rounding_seed, stream);
        });
    check_cuda(cudaMemcpyAsync(model.gpu->host_results, results, sizeof(DeviceResults), cudaMemcpyDeviceToHost, stream),
               "copying results");
    model.phases.enter(NO_PHASE);
    model.weights_there = {};
    if (model.weight_places.sharded) return;  // layers collect their own
    // The next forward pass begins while they arrive: first what is outside the layers, bucket L.
    for (int64_t n = layout.buckets(), b = n - 1; in_slices && n > 0; n--, b = (b + 1) % layout.buckets())
        gpu_gather_weights(params + layout.bucket_begin[b], layout.slice_elems(b), b, stream);
}
void loss_norm_and_update(GPT2& model, const UpdateSettings& settings) {
    const Range range("update");
    with_gradients(model, [&](auto* grads) { update_from(model, grads, settings); });
    if (model.phases.on) model.gpu->reading = gpu_reading();
}

// The host waits for the step.
StepResult wait_for_step(GPT2& model, const UpdateSettings& settings) {
    wait_for_stream(model.gpu->stream, "waiting for the step");
    const DeviceResults& results = *model.gpu->host_results;
    return {results.loss, results.norm, results.wanted != 0,
            model.noise_scale ? results.small_squares / (settings.loss_scale * settings.loss_scale) : 0};
}

// -------------------------------------------------------------------------------------------------
// generation

// The logits (V) of what follows n tokens, at most T of Sizes, which are positions 0 to n - 1. One
// forward pass; their keys and values go to the cache. Of the last layer the rest is computed for
// the last position only: nothing reads that of the others.
const float* prefill(GPT2& model, const int* tokens, int64_t n) {
    const Range range("prefill");
    const int64_t last = model.layout.config.L - 1, C = model.layout.config.C;
    const Batch batch{tokens, tokens, 1, n};
    upload<floatX>(model, batch, false);
    forward_embeddings(model, model.ints(INPUTS), batch);
    forward_layers(model, 0, last + 1, batch, LEAVES_CACHE);
    floatX* const residual = layer_input<floatX>(model, last) + (n - 1) * C;
    layer_decode(model, last, residual, model.act<floatX>(QKV, last) + (n - 1) * 3 * C, n - 1);
    return logits_of(model, residual);
}

// -------------------------------------------------------------------------------------------------
// main

// A training run. What is not in this file is a service of llmc/run.
int train(Run& run) {
    GPT2& model = run.model;
    model.format = format_of<floatX>(), model.backend = &GPU_BACKEND<floatX>;
    model.evaluate = evaluate, model.prefill = prefill, model.decode = decode<floatX>;
    if (!begin_run(run)) return 0;
    const auto micro_step = [&](int64_t micro) {
        const Range range("micro_step", micro);
        const Batch batch = next_batch(run, micro);  // x, y (B,T): this process's windows
        upload<floatX>(model, batch);                // from here on all is enqueued, and the host runs ahead
        forward(model, batch);  // the loss of every position; each layer waits for its weights, not the host
        if (micro == 0) gpu_comm_wait("the weights of the other processes");
        backward(model, batch);  // adds to the gradients; the last one sends them on their way
    };
    for (;;) {
        evaluate_when_due(run);                     // validation loss, HellaSwag, a sample
        if (run_is_over(run)) return end_run(run);  // the last step is done, or a signal came
        begin_step(run);
        for (int64_t micro = 0; micro < model.micro_steps; micro++) micro_step(micro);
        if (data_failed(run)) continue;                     // the run is over
        const UpdateSettings settings = begin_update(run);  // learning rate, clipping, what is an outlier
        loss_norm_and_update(model, settings);              // over all processes; AdamW, if the device decides so
        load_ahead(run);                                    // while it computes
        const StepResult result = wait_for_step(model, settings);
        average_weights(run, result);                 // --ema: an average of the weights
        meet_when_due(run);                           // --sync-every: processes that train apart
        end_step(run, settings, result, micro_step);  // logs and counts it; micro_step finds where a NaN began
        save_when_due(run);
    }
}

#ifndef TRAINER_WITHOUT_MAIN
int main(int argc, char** argv) {
    return run_program([&] {
        Run run;
        run.options = options_of_command(argc, argv);
        return train(run);
    });
}
#endif
