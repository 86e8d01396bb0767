// GPT-2 on a GPU: the same story as train_gpt2_cpu.cpp, section by section; read that one first.
// What a GPU changes: the model's memory is the device's, and every line of forward() and
// backward() only puts work into a stream. The host runs ahead; once per step it waits, for loss
// and norm.
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
#include "llmc/cuda/adamw.cuh"
#include "llmc/cuda/attention.cuh"
#include "llmc/cuda/classifier.cuh"
#include "llmc/cuda/comm.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/directions.cuh"
#include "llmc/cuda/encoder.cuh"
#include "llmc/cuda/layernorm.cuh"
#include "llmc/cuda/muon.cuh"
#include "llmc/cuda/nvml.cuh"
#include "llmc/cuda/part_clock.cuh"
#include "llmc/cuda/small_state.cuh"
#include "llmc/plan/mfu.h"
#include "llmc/run/train.h"

#ifdef PRECISION_FP32
typedef float floatX;  // type of weights, gradients and activations
#else
typedef halfX floatX;  // bf16, or with PRECISION_FP16 fp16
#endif
constexpr bool IS_FP32 = sizeof(floatX) == 4;

// The model as on a CPU; what a GPU adds begins with the stream.
struct GPT2 {
    typedef floatX Element;
    ParameterLayout layout;
    Sizes sizes;
    int64_t micro_steps = 1;  // of this step
    ActivationLayout activations;
    BucketSlice slice;            // what this process updates of every bucket
    floatX* params = nullptr;     // layout.total_elems()
    floatX* grads = nullptr;      // what backward() writes: grads_elems()
    float* grad_sums = nullptr;   // their sums over micro-steps: layout.total_elems(), or null if there are none
    Optimizer optimizer = ADAMW;  // --optimizer
    // Its state (llmc/optim/optimizer_state.h), null where it keeps none. m and v: of what this
    // process updates, v of Muon of the last bucket alone; in fp32 or smaller.
    void *m = nullptr, *v = nullptr;
    float* factors = nullptr;                  // all of them, in every process
    float* master = nullptr;                   // slice.state_elems() fp32 weights, or null if there are none
    std::function<void()> gradients_complete;  // is called by update(), before directions replace them
    Directions directions;
    char* acts = nullptr;  // activations.total_bytes
    cudaStream_t stream = nullptr;
    DecayRanges decayed;
    int* host_tokens = nullptr;             // pinned: inputs, targets and their order, of each micro-step
    DeviceResults* host_results = nullptr;  // pinned
    TokenOrder tokens{};
    DocumentTiles documents;
    int gelu_fusion = 0;
    double peak = 0;                 // FLOP/s, from the table in llmc/plan/mfu.h
    std::vector<float> host_values;  // what to_host() returned last
    GpuPartClock parts;              // of the step
    DeviceReading reading;           // of this step
    bool noise_scale = false;        // --noise-scale 1
    int64_t allocated_bytes = 0;     // on the device

    floatX* param(int tensor, int64_t layer = 0) { return params + layout.offset(tensor, layer); }
    floatX* act(int a, int64_t layer = 0) { return (floatX*)(acts + activations.offset(a, layer)); }
    float* act32(int a, int64_t layer = 0) { return (float*)(acts + activations.offset(a, layer)); }
    int* ints(int a) { return (int*)(acts + activations.offset(a, 0)); }
    DeviceResults* results() { return (DeviceResults*)(acts + activations.offset(RESULTS, 0)); }
    // Where backward() writes the gradient of a tensor. Where gradients are summed, all layers use
    // the memory of the first in turn; behind it lies what is outside the layers, but wte.
    floatX* grad(int tensor, int64_t layer = 0) {
        if (!sizes.sums_gradients()) return grads + layout.offset(tensor, layer);
        if (TENSORS[tensor].per_layer) return grads + layout.offset_in_bucket[tensor];
        return grads + layout.bucket_begin[1] + layout.offset_in_bucket[tensor] - layout.offset_in_bucket[WPE];
    }
    // The gradient of wte, in fp32.
    float* dwte() {
        if (sizes.sums_gradients()) return grad_sums + layout.offset(WTE);
        return IS_FP32 ? (float*)grad(WTE) : act32(DWTE);
    }
};

// n values of the model as fp32 in model.host_values; waits for the device.
template <class T>
const float* to_host(GPT2& model, const T* from, int64_t n);

// -------------------------------------------------------------------------------------------------
// forward

// The first half of the MLP of layer l: fch and GELU of it.
void expand(GPT2& model, int64_t l, int64_t rows) {
    const int64_t C = model.layout.config.C;
    const auto [param, act, act32] = of_layer(model, l);
    matmul_forward(act(FCH), act(LN2), param(FCW), param(FCB), rows, C, 4 * C, model.stream, act(FCH_GELU),
                   model.gelu_fusion >= 1);
}

// Layer l: from ln1, which is there already, to the branch that its MLP adds to the residual
// stream.
void layer_forward(GPT2& model, int64_t l, int64_t B, int64_t T) {
    const Range range("layer_forward", l);
    const int64_t C = model.layout.config.C, NH = model.layout.config.NH, rows = B * T;
    const auto [param, act, act32] = of_layer(model, l);
    const cudaStream_t stream = model.stream;
    matmul_forward(act(QKV), act(LN1), param(QKVW), param(QKVB), rows, C, 3 * C, stream);
    attention_forward(act(ATTY), act32(ATT_LSE), act(QKV), B, T, C, NH, stream, model.documents);
    matmul_forward(act(BRANCH), act(ATTY), param(ATTPROJW), param(ATTPROJB), rows, C, C, stream);
    residual_layernorm_forward(act(RESIDUAL2), act(LN2), act32(LN2_MEAN), act32(LN2_RSTD), layer_input(model, l),
                               act(BRANCH), param(LN2W), param(LN2B), rows, C, stream);
    expand(model, l, rows);
    matmul_forward(act(BRANCH), act(FCH_GELU), param(FCPROJW), param(FCPROJB), rows, 4 * C, C, stream);
}

// Layers first to end-1, from the residual stream that the first of them reads to the branch of the
// last. The addition that ends a layer is fused with the layer norm that opens the next.
// fills_cache: keys and values of the one sequence are also written to the cache of generation.
void forward_layers(GPT2& model, int64_t first, int64_t end, int64_t B, int64_t T, bool fills_cache = false) {
    const int64_t C = model.layout.config.C, NH = model.layout.config.NH, rows = B * T;
    const cudaStream_t stream = model.stream;
    for (int64_t l = first; l < end; l++) {
        const auto [param, act, act32] = of_layer(model, l);
        floatX* input = layer_input(model, l);
        if (l == first)
            layernorm_forward(act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), input, param(LN1W), param(LN1B), rows, C,
                              stream);
        else
            residual_layernorm_forward(input, act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), model.act(RESIDUAL2, l - 1),
                                       act(BRANCH), param(LN1W), param(LN1B), rows, C, stream);
        layer_forward(model, l, B, T);
        if (fills_cache)
            fill_cache(model.act(KEYS, l), model.act(VALUES, l), act(QKV), T, model.sizes.cache_T, C, NH, stream);
    }
}

// inputs (B,T), on the device, to lnf (B,T,C).
void forward(GPT2& model, int64_t B, int64_t T, bool fills_cache = false) {
    const Range range("forward");
    const int64_t C = model.layout.config.C, L = model.layout.config.L;
    const auto [param, act, act32] = of_layer(model, L - 1);
    const cudaStream_t stream = model.stream;
    encoder_forward(act(ENCODED), model.ints(INPUTS), param(WTE), param(WPE), B, T, C, 0, stream);
    forward_layers(model, 0, L, B, T, fills_cache);
    residual_layernorm_forward(act(RESIDUAL3), act(LNF), act32(LNF_MEAN), act32(LNF_RSTD), act(RESIDUAL2), act(BRANCH),
                               param(LNFW), param(LNFB), B * T, C, stream);
}

// The pinned memory of micro-step `micro`: room for inputs, targets, the order of the tokens, and
// the tiles of documents.
int64_t host_tokens_per_micro_step(const Sizes& s) { return 4 * s.rows() + 1 + s.tiles_elems(); }

int64_t host_tokens_bytes(const Sizes& s) {
    return s.micro_steps * host_tokens_per_micro_step(s) * (int64_t)sizeof(int);
}

// x and y (B,T) to the GPU by way of pinned memory, which belongs to micro-step `micro` until the
// step ends. With a document mask also the tiles of documents, for a backward pass the order of the
// tokens.
void upload_tokens(GPT2& model, const int* x, const int* y, int64_t B, int64_t T, int64_t micro, bool training) {
    const int64_t n = B * T;
    int* inputs = model.host_tokens + micro * host_tokens_per_micro_step(model.sizes);
    int *targets = inputs + n, *order = targets + n, *begins = order + n, *tiles = begins + n + 1;
    const auto send = [&](int a, const int* from, int64_t count) {
        const size_t bytes = count * sizeof(int);
        check_cuda(cudaMemcpyAsync(model.ints(a), from, bytes, cudaMemcpyHostToDevice, model.stream), "copying tokens");
    };
    memcpy(inputs, x, n * sizeof(int));
    memcpy(targets, y, n * sizeof(int));
    send(INPUTS, inputs, n), send(TARGETS, targets, n);
    if (model.sizes.end_of_text >= 0) {
        std::vector<int> starts(n);
        find_documents(starts.data(), x, B, T, model.sizes.end_of_text);
        const int64_t rows = attention_tile_rows<floatX>(model.layout.config.C / model.layout.config.NH);
        const int64_t count = cut_documents((DocumentTile*)tiles, starts.data(), B, T, rows);
        send(DOCUMENT_TILES, tiles, 3 * count);
        model.documents = {(DocumentTile*)model.ints(DOCUMENT_TILES), count};
    }
    if (!training) return;
    model.tokens = sort_by_token(order, begins, x, n, encoder_segment_positions(n));
    send(TOKEN_ORDER, order, n + model.tokens.segments + 1);
}

// Losses of all positions of x, y (B,T), without gradients.
void evaluate(GPT2& model, const int* x, const int* y, int64_t B, int64_t T, float* losses) {
    const Range range("evaluate");
    const GPT2Config& c = model.layout.config;
    float* device_losses = model.act32(LOSSES);
    floatX* const none = nullptr;
    upload_tokens(model, x, y, B, T, 0, false);
    forward(model, B, T);
    classifier(device_losses, none, nullptr, model.act(LOGITS), model.act(LNF), model.param(WTE), model.ints(TARGETS),
               B * T, model.sizes.logit_rows, c.C, c.V, c.Vp, 0.0f, false, model.stream);
    memcpy(losses, to_host(model, device_losses, B * T), B * T * sizeof(float));
}

// -------------------------------------------------------------------------------------------------
// backward

// Before the backward pass of layer l: recomputes what the recompute level did not keep. From level
// 3 on that is a whole segment of layers, at its last layer (Sizes::recomputed_before()).
void layer_recompute(GPT2& model, int64_t l, int64_t B, int64_t T) {
    const Range range("layer_recompute", l);
    const int64_t C = model.layout.config.C, rows = B * T;
    const int64_t level = model.sizes.recompute, layers = model.sizes.recomputed_before(l);
    const cudaStream_t stream = model.stream;
    if (layers == 0) return;
    if (level >= 3) return forward_layers(model, l + 1 - layers, l + 1, B, T);
    const auto [param, act, act32] = of_layer(model, l);
    if (level >= 2) {
        layernorm_forward(act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), layer_input(model, l), param(LN1W), param(LN1B),
                          rows, C, stream);
        layernorm_forward(act(LN2), act32(LN2_MEAN), act32(LN2_RSTD), act(RESIDUAL2), param(LN2W), param(LN2B), rows, C,
                          stream);
    }
    if (level < 1) return;
    // An epilogue has GELU's input before it is rounded: the same bits take the same product.
    if (model.gelu_fusion >= 1) expand(model, l, rows);
    else gelu_forward(act(FCH_GELU), act(FCH), rows * 4 * C, stream);
}

// Layer l, from the gradient of its output to that of its input. Which buffer holds what after each
// line, and why some outputs are added to: see train_gpt2_cpu.cpp. `sums`: what the kernel that
// wrote a gradient has left of its sums over rows, for the bias of the linear layer before it
// (column_sums.cuh); at first of dresidual, of which those for the next layer are returned.
ColumnSums layer_backward(GPT2& model, int64_t l, int64_t B, int64_t T, bool add, ColumnSums sums) {
    const Range range("layer_backward", l);
    const int64_t C = model.layout.config.C, NH = model.layout.config.NH, rows = B * T;
    const auto [param, act, act32] = of_layer(model, l);
    const auto grad = [&](int tensor) { return model.grad(tensor, l); };
    const cudaStream_t stream = model.stream;
    floatX *dresidual = act(DRESIDUAL), *dbranch = act(BRANCH), *dwide = act(DWIDE);
    float* partials = act32(PARTIALS);
    sums = matmul_backward(dwide, grad(FCPROJW), grad(FCPROJB), sums, dresidual, act(FCH_GELU), param(FCPROJW), rows,
                           4 * C, C, add, stream, act(FCH), model.gelu_fusion >= 2);
    matmul_backward(dbranch, grad(FCW), grad(FCB), sums, dwide, act(LN2), param(FCW), rows, C, 4 * C, add, stream);
    sums = layernorm_backward(dresidual, grad(LN2W), grad(LN2B), partials, dbranch, act(RESIDUAL2), param(LN2W),
                              act32(LN2_MEAN), act32(LN2_RSTD), rows, C, add, stream);
    matmul_backward(dbranch, grad(ATTPROJW), grad(ATTPROJB), sums, dresidual, act(ATTY), param(ATTPROJW), rows, C, C,
                    add, stream);
    sums = attention_backward(dwide, act32(ATT_D), dbranch, act(ATTY), act32(ATT_LSE), act(QKV), B, T, C, NH, stream,
                              model.documents, partials);
    matmul_backward(dbranch, grad(QKVW), grad(QKVB), sums, dwide, act(LN1), param(QKVW), rows, C, 3 * C, add, stream);
    return layernorm_backward(dresidual, grad(LN1W), grad(LN1B), partials, dbranch, layer_input(model, l), param(LN1W),
                              act32(LN1_MEAN), act32(LN1_RSTD), rows, C, add, stream);
}

// Where gradients are summed in fp32: adds to the sums what this micro-step has computed of one
// tensor outside the layers, or of a layer. The first micro-step overwrites the sums (!add).
void sum_tensor_gradients(GPT2& model, int tensor, bool add) {
    if (!model.sizes.sums_gradients()) return;
    const int64_t elems = tensor_elems(tensor, model.layout.config);
    add_gradients(model.grad_sums + model.layout.offset(tensor), model.grad(tensor), elems, add, model.stream);
}
void sum_layer_gradients(GPT2& model, int64_t l, bool add) {
    if (!model.sizes.sums_gradients()) return;
    const std::vector<int64_t>& begin = model.layout.bucket_begin;
    add_gradients(model.grad_sums + begin[l], model.grads, begin[1], add, model.stream);
}

// The gradients of a bucket are complete. The noise scale needs the norm that they have after the
// first micro-step (noise_scale.h).
void note_first_gradients(GPT2& model, int64_t bucket) {
    if (!model.noise_scale) return;
    const int64_t begin = model.layout.bucket_begin[bucket], elems = model.layout.bucket_elems(bucket);
    const bool add = bucket != model.layout.config.L - 1;  // the last layer is the first to be complete
    double* partials = (double*)model.act32(NORM_PARTIALS);
    if (model.sizes.sums_gradients())
        sum_small_squares(model.results(), partials, model.grad_sums + begin, elems, add, model.stream);
    else sum_small_squares(model.results(), partials, model.grads + begin, elems, add, model.stream);
}

// Starts the sum of a bucket's gradients over the processes.
void reduce_gradients(GPT2& model, int64_t bucket) {
    const int64_t begin = model.layout.bucket_begin[bucket], elems = model.layout.slice_elems(bucket);
    if (model.sizes.sums_gradients()) gpu_reduce_scatter(model.grad_sums + begin, elems, bucket, model.stream);
    else gpu_reduce_scatter(model.grads + begin, elems, bucket, model.stream);
}

// Losses of all positions, and the gradients of all parameters, where dloss is the gradient of each
// loss. wte has two uses, as the classifier's matrix and as the embedding: the classifier writes
// its gradient, and encoder_backward adds to it. The last micro-step starts the sum of each layer's
// gradients over the processes as soon as they are complete.
void backward(GPT2& model, int64_t B, int64_t T, float dloss, bool add, bool last_micro) {
    const Range range("backward");
    const GPT2Config& c = model.layout.config;
    const int64_t rows = B * T, last = c.L - 1;
    const bool add_in_place = add && IS_FP32;  // 16-bit gradients are written, and added to sums elsewhere
    const auto [param, act, act32] = of_layer(model, last);
    const cudaStream_t stream = model.stream;
    floatX* dresidual = act(DRESIDUAL);
    classifier(act32(LOSSES), act(BRANCH), model.dwte(), act(LOGITS), act(LNF), param(WTE), model.ints(TARGETS), rows,
               model.sizes.logit_rows, c.C, c.V, c.Vp, dloss, add, stream);
    check_cuda(cudaMemsetAsync(dresidual, 0, rows * c.C * sizeof(floatX), stream), "clearing a gradient");
    ColumnSums sums =
        layernorm_backward(dresidual, model.grad(LNFW), model.grad(LNFB), act32(PARTIALS), act(BRANCH), act(RESIDUAL3),
                           param(LNFW), act32(LNF_MEAN), act32(LNF_RSTD), rows, c.C, add_in_place, stream);
    sum_tensor_gradients(model, LNFW, add), sum_tensor_gradients(model, LNFB, add);
    for (int64_t l = last; l >= 0; l--) {
        layer_recompute(model, l, B, T);
        sums = layer_backward(model, l, B, T, add_in_place, sums);
        sum_layer_gradients(model, l, add);
        if (!add) note_first_gradients(model, l);
        if (last_micro) reduce_gradients(model, l);
    }
    const int *order = model.ints(TOKEN_ORDER), *begins = order + rows;
    encoder_backward(model.dwte(), model.grad(WPE), act32(PARTIALS), dresidual, model.ints(INPUTS), order, begins,
                     model.tokens, B, T, c.C, c.maxT, add_in_place, stream);
    sum_tensor_gradients(model, WPE, add);
    if (model.sizes.has_dwte_sums()) round_gradients(model.grad(WTE), model.dwte(), c.Vp * c.C, stream);
    if (!add) note_first_gradients(model, c.L);
    if (last_micro) reduce_gradients(model, c.L);
}

// Forward and backward pass of micro-batch number `micro` of a step.
void micro_step(GPT2& model, const int* x, const int* y, int64_t B, int64_t T, float dloss, int64_t micro) {
    const Range range("micro_step", micro);
    const bool add = micro > 0, last_micro = micro + 1 == model.micro_steps;
    if (micro == 0) gpu_comm_wait("the weights of the other processes");
    model.parts.enter(PART_FORWARD);
    upload_tokens(model, x, y, B, T, micro, true);
    forward(model, B, T);
    model.parts.enter(PART_BACKWARD);
    backward(model, B, T, dloss, add, last_micro);
    loss_sum(&model.results()->loss_sum, model.act32(LOSSES), B * T, add, model.stream);
}

// -------------------------------------------------------------------------------------------------
// update

// The optimizer; grads are complete in the slices that this process updates.
template <class floatG>
void update_weights(GPT2& model, floatG* grads, const UpdateRule& rule) {
    const UpdateConstants& k = rule.constants;
    if (model.sizes.directions && model.gradients_complete) model.gradients_complete();
    if constexpr (sizeof(floatG) == 4)
        if (model.sizes.directions)
            return directions_update(model.optimizer, model.directions, model.params, model.master, (float*)model.m,
                                     (float*)model.v, model.factors, grads, model.slice, k, model.results(),
                                     rule.rounding_seed, model.stream, [&] {
                                         if (model.sizes.orthogonalizes) orthogonalize_directions(model, grads);
                                     });
    const SliceMap mine = slice_map(model.layout, model.slice);
    if (OPTIMIZERS[model.optimizer].keeps.m == KEEP_8BIT)
        return blocks_update(model.optimizer, model.params, model.master, (StateBlock*)model.m, (StateBlock*)model.v,
                             grads, mine, block_map(model.layout, model.slice), k, model.decayed, model.results(),
                             rule.rounding_seed, model.stream);
    optimizer_update(model.optimizer, model.params, model.master, model.m, model.v, grads, mine, k, model.decayed,
                     model.results(), rule.rounding_seed, model.stream);
}

// Norm, decision and optimizer follow each other on the device; here the host waits, the only time
// in a step. ZeRO stage 0: every process gets the whole gradient, and all make the same update.
// Stage 1: each process updates its slices of the weights, and every process gets them all.
template <class floatG>
void update_from(GPT2& model, floatG* grads, const UpdateRule& rule) {
    const ParameterLayout& layout = model.layout;
    const cudaStream_t stream = model.stream;
    DeviceResults* results = model.results();
    const bool updates_slices = model.slice.parts > 1;
    const auto gather = [&](auto* elems, int64_t b) {
        gpu_all_gather(elems + layout.bucket_begin[b], layout.slice_elems(b), b, stream);
    };
    model.parts.enter(PART_COMMUNICATION);
    gpu_comm_join(stream);  // the sums of the gradients
    model.parts.enter(PART_UPDATE);
    const SliceMap own_slices = slice_map(layout, {comm.processes, comm.rank});
    sum_squares(results, (double*)model.act32(NORM_PARTIALS), grads, own_slices, comm.rank, stream);
    gpu_all_gather((double*)rank_sums(results), 2, -1, stream);
    for (int64_t b = 0; b < layout.buckets() && !updates_slices; b++) gather(grads, b);
    model.parts.enter(PART_COMMUNICATION);
    gpu_comm_join(stream);
    model.parts.enter(PART_UPDATE);
    finish_norm(results, comm.processes, rule, stream);
    update_weights(model, grads, rule);
    check_cuda(cudaMemcpyAsync(model.host_results, results, sizeof(DeviceResults), cudaMemcpyDeviceToHost, stream),
               "copying results");
    model.parts.enter(NO_PART);
    for (int64_t b = 0; b < layout.buckets() && updates_slices; b++) gather(model.params, b);
}
StepResult update(GPT2& model, const UpdateRule& rule, const std::function<void()>& meanwhile = {}) {
    const Range range("update");
    if (model.sizes.sums_gradients()) update_from(model, model.grad_sums, rule);
    else update_from(model, model.grads, rule);
    if (model.parts.on) model.reading = gpu_reading();
    if (meanwhile) meanwhile();
    wait_for_stream(model.stream, "waiting for the step");
    gpu_comm_join(model.stream);  // what comes next needs the weights
    const DeviceResults& results = *model.host_results;
    return {results.loss, results.norm, results.wanted != 0,
            model.noise_scale ? results.small_squares / (rule.loss_scale * rule.loss_scale) : 0};
}

// -------------------------------------------------------------------------------------------------
// generation

// The scores of all tokens (V) of what follows a position, from its row of lnf.
const float* logits_of(GPT2& model, const floatX* lnf) {
    const GPT2Config& c = model.layout.config;
    const floatX* const no_bias = nullptr;
    matmul_forward(model.act(LOGITS), lnf, model.param(WTE), no_bias, 1, c.C, c.Vp, model.stream);
    return to_host(model, model.act(LOGITS), c.V);
}

// The logits (V) of what follows n tokens, at most T of Sizes, which are positions 0 to n - 1. One
// forward pass; their keys and values go to the cache.
const float* prefill(GPT2& model, const int* tokens, int64_t n) {
    const Range range("prefill");
    upload_tokens(model, tokens, tokens, 1, n, 0, false);
    forward(model, 1, n, true);
    return logits_of(model, model.act(LNF) + (n - 1) * model.layout.config.C);
}

// The logits (V) of what follows `token` at `position`. The cache has the keys and values of the
// positions before it; those of this one are added to it.
const float* decode(GPT2& model, int token, int64_t position) {
    const Range range("decode");
    const GPT2Config& c = model.layout.config;
    const int64_t C = c.C;
    const cudaStream_t stream = model.stream;
    floatX *residual = model.act(ENCODED), *branch = model.act(BRANCH);
    int* input = model.ints(INPUTS);
    check_cuda(cudaMemcpyAsync(input, &token, sizeof(int), cudaMemcpyHostToDevice, stream), "copying a token");
    encoder_forward(residual, input, model.param(WTE), model.param(WPE), 1, 1, C, position, stream);
    for (int64_t l = 0; l < c.L; l++) {
        const auto [param, act, act32] = of_layer(model, l);
        layernorm_forward(act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), residual, param(LN1W), param(LN1B), 1, C, stream);
        matmul_forward(act(QKV), act(LN1), param(QKVW), param(QKVB), 1, C, 3 * C, stream);
        attention_decode(act(ATTY), act(KEYS), act(VALUES), act(QKV), act32(SCORES), position, model.sizes.cache_T, C,
                         c.NH, stream);
        matmul_forward(branch, act(ATTY), param(ATTPROJW), param(ATTPROJB), 1, C, C, stream);
        residual_layernorm_forward(residual, act(LN2), act32(LN2_MEAN), act32(LN2_RSTD), residual, branch, param(LN2W),
                                   param(LN2B), 1, C, stream);
        matmul_forward(act(FCH), act(LN2), param(FCW), param(FCB), 1, C, 4 * C, stream, act(FCH_GELU),
                       model.gelu_fusion >= 1);
        matmul_forward(branch, act(FCH_GELU), param(FCPROJW), param(FCPROJB), 1, 4 * C, C, stream);
        residual_forward(residual, residual, branch, C, stream);
    }
    const auto [param, act, act32] = of_layer(model, c.L - 1);
    layernorm_forward(act(LNF), act32(LNF_MEAN), act32(LNF_RSTD), residual, param(LNFW), param(LNFB), 1, C, stream);
    return logits_of(model, act(LNF));
}

// -------------------------------------------------------------------------------------------------
// memory and device

static_assert(partials_elems(1) >=
                  std::max({LAYERNORM_PARTS * 3, COLUMN_SUM_PARTS * 4, ATTENTION_PARTS * 3, ENCODER_PARTS}),
              "the activation table has room for all sums over rows");

// Elements of GPT2::grads: where gradients are summed, those of one layer and of the tensors
// outside the layers but wte.
int64_t grads_elems(const ParameterLayout& layout, const Sizes& s) {
    if (!s.sums_gradients()) return layout.total_elems();
    return layout.bucket_begin[1] + layout.bucket_elems(layout.config.L) - layout.offset_in_bucket[WPE];
}

// Refuses what this program cannot compute (exit 2).
void check_supported(const Sizes& s, const Options& o) {
    const GPT2Config& c = s.config;
#ifdef CUSIM
    const char* program = "train_gpt2sim";
#else
    const char* program = "train_gpt2cu";
#endif
    std::string upper = o.precision;
    for (char& letter : upper) letter = (char)toupper(letter);
    if (!o.precision.empty() && o.precision != type_name<floatX>())
        usage_error("--precision %s: this program is built for %s; `make %s PRECISION=%s` builds it for %s",
                    o.precision.c_str(), type_name<floatX>(), program, upper.c_str(), o.precision.c_str());
    if (!attention_supports(c.C / c.NH))
        usage_error("-e %s has heads of %lld channels; on a GPU multiples of 8 from 16 to 256 are accepted",
                    o.model.c_str(), (long long)(c.C / c.NH));
    if (c.C > layernorm_most_channels<floatX>())
        usage_error("-e %s has %lld channels; on a GPU up to %lld are accepted", o.model.c_str(), (long long)c.C,
                    (long long)layernorm_most_channels<floatX>());
}

// All sizes that depend on the device; before anything is allocated.
void settle_device(GPT2& model, Sizes& sizes, const Options& o) {
    check_supported(sizes, o);
    sizes.gpu = true, sizes.floatX_bytes = sizeof(floatX);
    sizes.fp16 = is_fp16<floatX>();
    model.optimizer = find_optimizer(o.optimizer.c_str());
    sizes.directions = OPTIMIZERS[model.optimizer].direction, sizes.orthogonalizes = model.optimizer == MUON;
    sizes.blas_workspace_bytes = BLAS_WORKSPACE_BYTES, sizes.guard_bytes = GUARD_BYTES;
    // the plan of a card that --device names, made in the simulator
    if (!o.device.empty()) sizes.blas_workspace_bytes = CARD_BLAS_WORKSPACE_BYTES, sizes.guard_bytes = 0;
    sizes.logit_rows = classifier_chunk_rows(sizes.rows());
    model.sizes = sizes, model.micro_steps = sizes.micro_steps;
    model.noise_scale = o.noise_scale;
    model.activations = activation_layout(sizes);
    model.decayed = decay_ranges(model.layout);
    if (o.zero_stage) model.slice = {comm.processes, comm.rank};
    if (sizes.directions) model.directions = cut_into_pieces(model.optimizer, model.layout, model.slice);
}

// Device memory, row by row, without what the driver takes for itself.
std::vector<PlanRow> plan_rows(const Sizes& s, const Options& o, GPT2* model) {
    std::vector<PlanRow> rows;
    const ParameterLayout& layout = model->layout;
    plan_tensors(rows, s, layout);
    if (s.training) {
        const char* shape = s.sums_gradients() ? "one layer, rest" : "as parameters";
        const int64_t bytes = grads_elems(layout, s) * sizeof(floatX);
        rows.push_back({"gradients", "of a micro-step", shape, bytes});
        if (s.sums_gradients()) rows.push_back({"gradients", "sums, fp32", "as parameters", layout.total_elems() * 4});
        plan_optimizer(rows, OPTIMIZERS[model->optimizer], layout, model->slice, has_master<floatX>(o));
        if (s.directions) rows.push_back({"scratch", "pieces, sums", "of tensors", model->directions.bytes()});
    }
    plan_activations(rows, s);
    return rows;
}

// What the process takes of the host's memory, without what the driver takes. Program and tensor
// are estimates.
std::vector<PlanRow> host_plan_rows(const Sizes& s, const Options& o, GPT2* model) {
    int64_t largest = 0;
    for (int i = 0; i < NUM_TENSORS; i++) largest = std::max(largest, tensor_elems(i, s.config));
    std::vector<PlanRow> rows = {{"host", "tokens, pinned", "of all micro-steps", host_tokens_bytes(s)},
                                 {"host", "results, pinned", "", (int64_t)sizeof(DeviceResults)},
                                 {"host", "weights on load", "one tensor", largest * (4 + s.floatX_bytes)},
                                 {"host", "code, stacks", "", 12 << 20}};
    const int64_t before = weights_before_bytes(*model, o);
    if (before > 0) rows.push_back({"host", "weights before", "of logged steps", before});
    return rows;
}
// The first GPU of this machine, if there is one.
PlanDevice this_device(GPT2&, const Options& o) {
    int driver = 0, devices = 0;
    cudaDeviceProp gpu;
    const bool there = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0 &&
                       cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 &&
                       cudaGetDeviceProperties(&gpu, 0) == cudaSuccess;
    const GpuPeak* known = there ? find_gpu(gpu.name) : nullptr;
    return known ? device_of(*known, gpu.name, !IS_FP32, o.tf32) : PlanDevice{};
}

// Exit 1 if the GPU has not enough free memory for these rows.
void check_free_memory(const std::vector<PlanRow>& rows) {
    size_t free_bytes = 0, total_bytes = 0;
    check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for memory");
    if (plan_bytes(rows) <= (int64_t)free_bytes) return;
    print_plan_rows(stderr, rows);
    runtime_failure(
        "out of memory: the run needs %.0f MiB as above, the GPU has %.0f of %.0f MiB free; a smaller -b, -t or "
        "-e, a higher -r, or -w 0 lowers it",
        plan_bytes(rows) / 1048576.0, free_bytes / 1048576.0, total_bytes / 1048576.0);
}

void allocate(GPT2& model, const Sizes& s, const Options& o) {
    const cudaDeviceProp gpu = choose_gpu(comm.rank % o.gpus_per_node);
    model.gelu_fusion = (int)gelu_fusion(o, gpu.major == 9, !IS_FP32);
    gpu_comm_start();
    check_free_memory(plan_rows(s, o, &model));  // NCCL has taken its own
    model.allocated_bytes = plan_bytes(plan_rows(s, o, &model));
    check_cuda(cudaStreamCreateWithFlags(&model.stream, cudaStreamNonBlocking), "making a stream");
    model.parts.stream = model.stream;
    auto take = [&](auto*& p, int64_t bytes) {
        check_cuda(cudaMalloc(&p, bytes), "allocating");
        check_cuda(cudaMemsetAsync(p, 0, bytes, model.stream), "clearing memory");
    };
    const int64_t elems = model.layout.total_elems();
    take(model.params, elems * sizeof(floatX));
    if (s.training) {
        take(model.grads, grads_elems(model.layout, s) * sizeof(floatX));
        if (s.sums_gradients()) take(model.grad_sums, elems * 4);
        const auto take_state = [&](auto*& p, OptimizerState state) {
            const int64_t bytes = state_layout(model, state).held_bytes(model.slice);
            if (bytes > 0) take(p, bytes);
        };
        take_state(model.m, STATE_M), take_state(model.v, STATE_V), take_state(model.factors, STATE_FACTORS);
        if (has_master<floatX>(o)) take_state(model.master, STATE_MASTER);
        if (s.directions)
            take(model.directions.memory, model.directions.bytes()), model.directions.upload(model.stream);
    }
    check_cuda(cudaMalloc(&model.acts, model.activations.total_bytes), "allocating");
    for (int a = 0; a < NUM_ACTIVATIONS; a++)
        for (int64_t copy = 0; copy < activation_copies(a, s) && activation_bytes(a, s) > 0; copy++)
            guard_memory(ACTIVATIONS[a].name,
                         model.acts + model.activations.copy_offset(a, copy) + activation_bytes(a, s) - GUARD_BYTES);
    check_cuda(cudaMallocHost(&model.host_tokens, host_tokens_bytes(s)), "allocating host memory");
    check_cuda(cudaMallocHost(&model.host_results, sizeof(DeviceResults)), "allocating host memory");
    wait_for_stream(model.stream, "clearing memory");
    start_blas(gpu.name, model.acts + model.activations.offset(BLAS_WORKSPACE, 0));
    blas.tf32 = o.tf32;
    model.peak = gpu_peak_flops(gpu.name, !IS_FP32, o.tf32);
}

void free_model(GPT2& model) {
    for (void* p : {(void*)model.params, (void*)model.grads, (void*)model.grad_sums, (void*)model.master, model.m,
                    model.v, (void*)model.factors, (void*)model.directions.memory, (void*)model.acts})
        check_cuda(cudaFree(p), "freeing memory");
    check_cuda(cudaFreeHost(model.host_tokens), "freeing memory");
    check_cuda(cudaFreeHost(model.host_results), "freeing memory");
    model.parts.free();
    check_cuda(cudaStreamDestroy(model.stream), "freeing a stream");
}

template <class T>
const float* to_host(GPT2& model, const T* from, int64_t n) {
    const auto copy = [&](std::vector<T>& to) {
        to.resize(n);
        copy_to_host(to.data(), from, n * sizeof(T), model.stream);
    };
    if constexpr (sizeof(T) == 4) copy(model.host_values);
    else {
        std::vector<T> raw;
        copy(raw);
        model.host_values.assign(raw.begin(), raw.end());
    }
    return model.host_values.data();
}
template <class T>
void to_device(GPT2& model, T* to, const float* values, int64_t n) {
    const std::vector<T> raw(values, values + n);
    copy_to_device(to, raw.data(), n * sizeof(T), model.stream);
}

void copy_out(GPT2& model, void* to, const void* from, int64_t bytes) { copy_to_host(to, from, bytes, model.stream); }
void copy_in(GPT2& model, void* to, const void* from, int64_t bytes) { copy_to_device(to, from, bytes, model.stream); }

// Elements first to first + n of the gradient of a tensor.
const float* gradient_data(GPT2& model, int tensor, int64_t layer, int64_t first, int64_t n) {
    const int64_t at = model.layout.offset(tensor, layer) + first;
    return model.sizes.sums_gradients() ? to_host(model, model.grad_sums + at, n) : to_host(model, model.grads + at, n);
}

double peak_flops(GPT2& model, double reached) { return model.peak >= reached ? model.peak : 0; }
void trace_device(GPT2& model) {
    std::vector<std::pair<const char*, cudaStream_t>> streams = {{"GPU, computing", model.stream}};
    if (gpu_comm.stream) streams.push_back({"GPU, communicating", gpu_comm.stream});
    trace_streams(streams);
}
#ifdef CUSIM
const char* kernels_name(GPT2&) { return "simulated GPU"; }
const char* products_name() { return "the simulator"; }
#else
const char* kernels_name(GPT2&) { return "GPU"; }
const char* products_name() { return IS_FP32 && blas.tf32 ? "cuBLASLt in TF32" : "cuBLASLt"; }
#endif
DetectedDevice detected(GPT2&) {
    int number = 0, devices = 0;
    cudaDeviceProp gpu;
    check_cuda(cudaGetDevice(&number), "asking for the GPU");
    check_cuda(cudaGetDeviceCount(&devices), "asking for the GPUs");
    check_cuda(cudaGetDeviceProperties(&gpu, number), "asking for the GPU's properties");
    const char* attention = IS_FP32 ? "flash attention on CUDA cores" : "flash attention on tensor cores";
    return {format("%s (compute capability %d.%d), GPU %d of %d, %s: %s, products by %s, %s", gpu.name, gpu.major,
                   gpu.minor, number, devices, memory_text((double)gpu.totalGlobalMem).c_str(), type_name<floatX>(),
                   products_name(), attention),
            ""};
}
std::string device_status(GPT2&) { return gpu_status(); }
int64_t peak_bytes(GPT2& model) { return model.allocated_bytes; }
DeviceReading device_reading(GPT2& model) { return model.reading; }

#ifndef TRAINER_WITHOUT_MAIN
int main(int argc, char** argv) {
    return run_program([&] { return run_main<GPT2>(options_of_run(argc, argv)); });
}
#endif
