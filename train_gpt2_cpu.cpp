// GPT-2 on the CPU: the model, its forward and backward pass, its update, and main. Lesson one.
//
// The network (Radford et al. 2019): a residual stream of C channels for each position, which starts as the embedding of the token and of
// its place, and to which each of L layers adds twice, once from attention and once from a two-layer network. A last layer norm, and the
// scores of all words are the products of the stream with their embeddings. Each line of forward() is one layer of llmc/cpu, and
// backward() is the same lines in reverse. What surrounds the model (flags, data, loop, checkpoints) is in llmc/train.h.
//
//     make train_gpt2_cpu && ./train_gpt2_cpu -e L6C384H6 -b 4 -t 128
//     make train_gpt2_cpu KERNELS=reference          the same with the naive loops of llmc/cpu/reference.h
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/attention.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/peak.h"
#include "llmc/cpu/reference.h"
#include "llmc/train.h"

#ifdef KERNELS_REFERENCE
namespace kernels = reference;
#else
namespace kernels {
using ::adamw_update, ::attention_backward, ::attention_decode, ::attention_forward, ::classifier, ::classifier_chunk_rows, ::encoder_backward, ::encoder_forward, ::gelu_forward,
    ::global_norm_squared, ::layernorm_backward, ::layernorm_forward, ::matmul_backward, ::matmul_forward, ::residual_forward, ::residual_layernorm_forward;
}
#endif

typedef float floatX;  // type of weights, gradients and activations

struct GPT2 {
    ParameterLayout layout;
    Sizes sizes;
    ActivationLayout activations;
    floatX *params = nullptr, *grads = nullptr;                   // layout.total_elems() each
    char* acts = nullptr;                                         // activations.total_bytes
    float *m = nullptr, *v = nullptr;                             // AdamW, shard.elems() each
    ZeroShard shard;                                                  // what this process updates
    double loss_sum = 0;                                          // over the tokens of this step so far
    double peak = 0;                                              // FLOP/s, measured

    floatX* param(int tensor, int64_t layer = 0) { return params + layout.offset(tensor, layer); }
    floatX* grad(int tensor, int64_t layer = 0) { return grads + layout.offset(tensor, layer); }
    floatX* act(int a, int64_t layer = 0) { return (floatX*)(acts + activations.offset[a] + layer * activations.layer_stride[a]); }
};

// ---------------------------------------------------------------------------------------------------------------------------------
// memory

// Threads and sizes that depend on the device; before anything is allocated.
void settle_device(GPT2& model, Sizes& sizes, const Options& o) {
    if (!o.precision.empty() && o.precision != "fp32") usage_error("--precision %s: this trainer computes in fp32; fp32 is accepted", o.precision.c_str());
    device.threads = o.threads > 0 ? (int)o.threads : available_threads();
#ifndef _OPENMP
    device.threads = 1;
#endif
    device.scratch_elems = round_up(std::max(GEMM_SCRATCH_ELEMS, attention_scratch_elems(sizes.T, sizes.config.C / sizes.config.NH)), 16);
    sizes.logit_rows = kernels::classifier_chunk_rows(sizes.B * sizes.T);
    if (o.zero_stage) model.shard = {comm.processes, comm.rank};
    model.sizes = sizes;
    model.activations = activation_layout(sizes);
}

std::vector<PlanRow> plan_rows(const Sizes& s, const Options& o, GPT2* model) {
    std::vector<PlanRow> rows;
    const ParameterLayout& layout = model->layout;
    plan_tensors(rows, s, layout);
    if (s.training) {
        rows.push_back({"gradients", "all", "as parameters", layout.total_elems() * (int64_t)sizeof(floatX)});
        plan_optimizer(rows, layout, model->shard, false);
        if (comm.processes > 1) rows.push_back({"scratch", "slices received", "1/P of gradients", layout.total_elems() / comm.processes * 4});
    }
    plan_activations(rows, s);
    rows.push_back({"scratch", "threads", format("%d threads", device.threads), device.threads * (int64_t)device.scratch_elems * 4});
    int64_t largest = 0;  // filled while the gradients are still untouched, so a run that trains has room for it anyway
    for (int i = 0; i < NUM_TENSORS && !s.training; i++) largest = std::max(largest, tensor_elems(i, s.config) * 4);
    if (largest > 0) rows.push_back({"program", "weights on load", "one tensor", largest});
    if (!o.prompt.empty()) rows.push_back({"program", "tokenizer", "to encode the prompt", 24 << 20});
    rows.push_back({"program", "code, stacks", "", 12 << 20});
    return rows;
}

void allocate(GPT2& model, const Sizes& s, const Options& o) {
    const int64_t needed = plan_bytes(plan_rows(s, o, &model)), present = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    if (needed > present)
        runtime_failure("out of memory: the run needs %.0f MiB, the machine has %.0f MiB; --plan shows what for, a smaller -e, -b or -t or a higher -r lowers it", needed / 1048576.0, present / 1048576.0);
    const size_t param_bytes = model.layout.total_elems() * sizeof(floatX), moment_bytes = model.shard.elems(model.layout) * sizeof(float);
    model.params = (floatX*)map_memory(param_bytes);
    if (s.training) model.grads = (floatX*)map_memory(param_bytes), model.m = (float*)map_memory(moment_bytes), model.v = (float*)map_memory(moment_bytes);
    model.acts = (char*)map_memory(model.activations.total_bytes);
    device.scratch = (float*)map_memory(device.threads * device.scratch_elems * sizeof(float));
    model.peak = measure_peak_flops();
}

void set_tensor(GPT2& model, int tensor, int64_t layer, const float* values) { memcpy(model.param(tensor, layer), values, tensor_elems(tensor, model.layout.config) * sizeof(float)); }
const float* tensor_data(GPT2& model, int tensor, int64_t layer) { return model.param(tensor, layer); }
int64_t optimizer_slices(GPT2&) { return 2; }
float* slice_memory(GPT2& model, int slice) { return slice == 0 ? model.m : slice == 1 ? model.v : model.params; }
const float* to_host(GPT2&, const float* from, int64_t) { return from; }
void to_device(GPT2&, float* to, const float* values, int64_t n) { memcpy(to, values, n * sizeof(float)); }
int64_t wire_bytes_a_step(GPT2& model) { return plan_wire_bytes(model.layout, comm.processes, sizeof(floatX), sizeof(floatX)); }
double peak_flops(GPT2& model) { return model.peak; }
const char* precision_name(GPT2&) { return "fp32"; }
std::string device_status(GPT2&) { return ""; }

// ---------------------------------------------------------------------------------------------------------------------------------
// forward

// What layer l reads from the residual stream.
floatX* layer_input(GPT2& model, int64_t l) { return l == 0 ? model.act(ENCODED) : model.act(RESIDUAL3, l - 1); }

// Layer l, from ln1 (already there) to the branch that its MLP adds to the stream; the sum itself is fused with the next layer norm.
void layer_forward(GPT2& g, int64_t l, int64_t B, int64_t T) {
    const int64_t C = g.layout.config.C, NH = g.layout.config.NH, rows = B * T;
    kernels::matmul_forward(g.act(QKV, l), g.act(LN1, l), g.param(QKVW, l), g.param(QKVB, l), rows, C, 3 * C);
    kernels::attention_forward(g.act(ATTY, l), g.act(ATT_LSE, l), g.act(QKV, l), B, T, C, NH);
    kernels::matmul_forward(g.act(BRANCH), g.act(ATTY, l), g.param(ATTPROJW, l), g.param(ATTPROJB, l), rows, C, C);
    kernels::residual_layernorm_forward(g.act(RESIDUAL2, l), g.act(LN2, l), g.act(LN2_MEAN, l), g.act(LN2_RSTD, l), layer_input(g, l), g.act(BRANCH), g.param(LN2W, l), g.param(LN2B, l), rows, C);
    kernels::matmul_forward(g.act(FCH, l), g.act(LN2, l), g.param(FCW, l), g.param(FCB, l), rows, C, 4 * C, g.act(FCH_GELU, l));
    kernels::matmul_forward(g.act(BRANCH), g.act(FCH_GELU, l), g.param(FCPROJW, l), g.param(FCPROJB, l), rows, 4 * C, C);
}

// x (B,T) to lnf (B,T,C).
void forward(GPT2& g, const int* x, int64_t B, int64_t T) {
    const int64_t C = g.layout.config.C, L = g.layout.config.L, rows = B * T;
    kernels::encoder_forward(g.act(ENCODED), x, g.param(WTE), g.param(WPE), B, T, C);
    kernels::layernorm_forward(g.act(LN1), g.act(LN1_MEAN), g.act(LN1_RSTD), g.act(ENCODED), g.param(LN1W), g.param(LN1B), rows, C);
    for (int64_t l = 0; l < L; l++) {
        layer_forward(g, l, B, T);
        const bool last = l + 1 == L;
        floatX *out = last ? g.act(LNF) : g.act(LN1, l + 1), *weight = last ? g.param(LNFW) : g.param(LN1W, l + 1), *bias = last ? g.param(LNFB) : g.param(LN1B, l + 1);
        float *mean = last ? g.act(LNF_MEAN) : g.act(LN1_MEAN, l + 1), *rstd = last ? g.act(LNF_RSTD) : g.act(LN1_RSTD, l + 1);
        kernels::residual_layernorm_forward(g.act(RESIDUAL3, l), out, mean, rstd, g.act(RESIDUAL2, l), g.act(BRANCH), weight, bias, rows, C);
    }
}

// Loss of every position of x, y (B,T), without gradients.
void evaluate(GPT2& g, const int* x, const int* y, int64_t B, int64_t T, float* losses) {
    const GPT2Config& c = g.layout.config;
    forward(g, x, B, T);
    kernels::classifier(losses, (floatX*)nullptr, (floatX*)nullptr, g.act(LOGITS), g.act(LNF), g.param(WTE), y, B * T, c.C, c.V, c.Vp, 0.0f, false);
}

// ---------------------------------------------------------------------------------------------------------------------------------
// backward

// Makes again what the recompute level did not keep of layer l.
void layer_recompute(GPT2& g, int64_t l, int64_t B, int64_t T) {
    const int64_t C = g.layout.config.C, rows = B * T, level = g.sizes.recompute;
    if (level >= 2) kernels::layernorm_forward(g.act(LN1, l), g.act(LN1_MEAN, l), g.act(LN1_RSTD, l), layer_input(g, l), g.param(LN1W, l), g.param(LN1B, l), rows, C);
    if (level >= 3) return layer_forward(g, l, B, T);
    if (level >= 2) kernels::layernorm_forward(g.act(LN2, l), g.act(LN2_MEAN, l), g.act(LN2_RSTD, l), g.act(RESIDUAL2, l), g.param(LN2W, l), g.param(LN2B, l), rows, C);
    if (level >= 1) kernels::gelu_forward(g.act(FCH_GELU, l), g.act(FCH, l), rows * 4 * C);
}

// Layer l: dresidual holds the gradient of its output, then that of its input.
void layer_backward(GPT2& g, int64_t l, int64_t B, int64_t T, bool add) {
    const int64_t C = g.layout.config.C, NH = g.layout.config.NH, rows = B * T;
    floatX *dresidual = g.act(DRESIDUAL), *dbranch = g.act(BRANCH), *dwide = g.act(DWIDE);
    kernels::matmul_backward(dwide, g.grad(FCPROJW, l), g.grad(FCPROJB, l), dresidual, g.act(FCH_GELU, l), g.param(FCPROJW, l), rows, 4 * C, C, add, g.act(FCH, l));
    kernels::matmul_backward(dbranch, g.grad(FCW, l), g.grad(FCB, l), dwide, g.act(LN2, l), g.param(FCW, l), rows, C, 4 * C, add);
    kernels::layernorm_backward(dresidual, g.grad(LN2W, l), g.grad(LN2B, l), dbranch, g.act(RESIDUAL2, l), g.param(LN2W, l), g.act(LN2_MEAN, l), g.act(LN2_RSTD, l), rows, C, add);
    kernels::matmul_backward(dbranch, g.grad(ATTPROJW, l), g.grad(ATTPROJB, l), dresidual, g.act(ATTY, l), g.param(ATTPROJW, l), rows, C, C, add);
    kernels::attention_backward(dwide, dbranch, g.act(ATTY, l), g.act(ATT_LSE, l), g.act(QKV, l), B, T, C, NH);
    kernels::matmul_backward(dbranch, g.grad(QKVW, l), g.grad(QKVB, l), dwide, g.act(LN1, l), g.param(QKVW, l), rows, C, 3 * C, add);
    kernels::layernorm_backward(dresidual, g.grad(LN1W, l), g.grad(LN1B, l), dbranch, layer_input(g, l), g.param(LN1W, l), g.act(LN1_MEAN, l), g.act(LN1_RSTD, l), rows, C, add);
}

// Gradients of all parameters for losses that count dloss each; losses on the way. The last micro-step of a step sends each layer's gradients off
// as soon as they are there.
void backward(GPT2& g, const int* x, const int* y, int64_t B, int64_t T, float dloss, bool add, bool last_micro) {
    const GPT2Config& c = g.layout.config;
    const int64_t rows = B * T, last = c.L - 1;
    kernels::classifier(g.act(LOSSES), g.act(BRANCH), g.grad(WTE), g.act(LOGITS), g.act(LNF), g.param(WTE), y, rows, c.C, c.V, c.Vp, dloss, add);
    memset(g.act(DRESIDUAL), 0, rows * c.C * sizeof(floatX));
    kernels::layernorm_backward(g.act(DRESIDUAL), g.grad(LNFW), g.grad(LNFB), g.act(BRANCH), g.act(RESIDUAL3, last), g.param(LNFW), g.act(LNF_MEAN), g.act(LNF_RSTD), rows, c.C, add);
    for (int64_t l = last; l >= 0; l--) {
        comm_note("backward", l);
        layer_recompute(g, l, B, T);
        layer_backward(g, l, B, T, add);
        if (last_micro) comm_reduce_scatter_start(g.grads + g.layout.bucket_begin[l], g.layout.shard_elems(l), l);
        comm_progress();
    }
    kernels::encoder_backward(g.grad(WTE), g.grad(WPE), g.act(DRESIDUAL), x, B, T, c.C, c.maxT, add);
    if (last_micro) comm_reduce_scatter_start(g.grads + g.layout.bucket_begin[c.L], g.layout.shard_elems(c.L), c.L);
}

void micro_step(GPT2& g, const int* x, const int* y, int64_t B, int64_t T, float dloss, int64_t micro) {
    forward(g, x, B, T);
    backward(g, x, y, B, T, dloss, micro > 0, micro + 1 == g.sizes.micro_steps);
    if (micro == 0) g.loss_sum = 0;
    double total = 0;
    for (int64_t i = 0; i < B * T; i++) total += g.act(LOSSES)[i];
    g.loss_sum += total;
}

// ---------------------------------------------------------------------------------------------------------------------------------
// update

// Sum of squares of the gradient. Several processes: each of its slices of the buckets, then all in the order of ranks.
double gradient_norm_squared(GPT2& g) {
    if (comm.processes == 1) return kernels::global_norm_squared(g.grads, g.layout.total_elems());
    double mine = 0;
    for (int64_t b = 0; b < g.layout.buckets(); b++) mine += kernels::global_norm_squared(g.grads + g.layout.bucket_begin[b] + comm.rank * g.layout.shard_elems(b), g.layout.shard_elems(b));
    return comm_sum(mine, "the sum of the gradient's norm");
}

// AdamW on this process's part of a bucket; weight decay on the tensors that the table marks.
void update_bucket(GPT2& g, int64_t bucket, AdamW constants, float weight_decay) {
    const int64_t begin = g.layout.bucket_begin[bucket], first = g.shard.first(g.layout, bucket), end = g.shard.end(g.layout, bucket), state = g.shard.state_begin(g.layout, bucket) - first;
    for (int i = 0; i < NUM_TENSORS; i++) {
        if (TENSORS[i].per_layer != (bucket < g.layout.config.L)) continue;
        const int64_t at = g.layout.offset_in_bucket[i], low = std::max(at, first), high = std::min(at + tensor_elems(i, g.layout.config), end);
        constants.weight_decay = TENSORS[i].decayed ? weight_decay : 0.0f;
        if (low < high) kernels::adamw_update(g.params + begin + low, g.m + state + low, g.v + state + low, g.grads + begin + low, high - low, constants);
    }
}

// The end of a step. Stage 0: all processes get the whole gradient and make the same update. Stage 1: each updates its part, and all get the weights.
StepResult update(GPT2& g, const UpdateRule& rule) {
    comm_wait("the sum of the gradients");
    const double loss = comm_sum(g.loss_sum, "the sum of the losses") / rule.tokens, norm = std::sqrt(gradient_norm_squared(g));
    if (!update_wanted(loss, norm, rule)) return {loss, norm, false};
    AdamW constants = rule.adamw;
    constants.grad_scale = clipping_scale(norm, rule);
    const bool sharded = g.shard.parts > 1;
    for (int64_t b = 0; b < g.layout.buckets() && !sharded; b++) comm_all_gather_start(g.grads + g.layout.bucket_begin[b], g.layout.shard_elems(b), b);
    comm_wait("the collection of the gradients");
    for (int64_t b = 0; b < g.layout.buckets(); b++) {
        update_bucket(g, b, constants, rule.adamw.weight_decay);
        if (sharded) comm_all_gather_start(g.params + g.layout.bucket_begin[b], g.layout.shard_elems(b), b);
        comm_progress();
    }
    comm_wait("the collection of the weights");
    return {loss, norm, true};
}

// ---------------------------------------------------------------------------------------------------------------------------------
// generation

// The logits (V) of what follows `token` at `position`, given the positions before it, whose keys and values are in the cache.
const float* decode(GPT2& g, int token, int64_t position) {
    const GPT2Config& c = g.layout.config;
    const int64_t C = c.C;
    floatX *residual = g.act(ENCODED), *branch = g.act(BRANCH);
    kernels::encoder_forward(residual, &token, g.param(WTE), g.param(WPE), 1, 1, C, position);
    for (int64_t l = 0; l < c.L; l++) {
        kernels::layernorm_forward(g.act(LN1), g.act(LN1_MEAN), g.act(LN1_RSTD), residual, g.param(LN1W, l), g.param(LN1B, l), 1, C);
        kernels::matmul_forward(g.act(QKV), g.act(LN1), g.param(QKVW, l), g.param(QKVB, l), 1, C, 3 * C);
        kernels::attention_decode(g.act(ATTY), g.act(KEYS, l), g.act(VALUES, l), g.act(QKV), g.act(SCORES), position, g.sizes.cache_T, C, c.NH);
        kernels::matmul_forward(branch, g.act(ATTY), g.param(ATTPROJW, l), g.param(ATTPROJB, l), 1, C, C);
        kernels::residual_layernorm_forward(residual, g.act(LN2), g.act(LN2_MEAN), g.act(LN2_RSTD), residual, branch, g.param(LN2W, l), g.param(LN2B, l), 1, C);
        kernels::matmul_forward(g.act(FCH), g.act(LN2), g.param(FCW, l), g.param(FCB, l), 1, C, 4 * C, g.act(FCH_GELU));
        kernels::matmul_forward(branch, g.act(FCH_GELU), g.param(FCPROJW, l), g.param(FCPROJB, l), 1, 4 * C, C);
        kernels::residual_forward(residual, residual, branch, C);
    }
    kernels::layernorm_forward(g.act(LNF), g.act(LNF_MEAN), g.act(LNF_RSTD), residual, g.param(LNFW), g.param(LNFB), 1, C);
    kernels::matmul_forward(g.act(LOGITS), g.act(LNF), g.param(WTE), (const floatX*)nullptr, 1, C, c.Vp);
    return g.act(LOGITS);
}

#ifndef TRAINER_WITHOUT_MAIN
int main(int argc, char** argv) { return run_main<GPT2>(argc, argv); }
#endif
