// GPT-2 on the CPU: the model, its forward and backward pass, its update, and main. Lesson one.
//
// The network (Radford et al. 2019): a residual stream of C channels for each position, which
// starts as the embedding of the token and of its place, and to which each of L layers adds twice,
// once from attention and once from a two-layer network. A last layer norm, and the scores of all
// words are the products of the stream with their embeddings. Each line of forward() is one layer
// of llmc/cpu, and backward() is the same lines in reverse. What surrounds the model (flags, data,
// loop, checkpoints) is in llmc/train.h.
//
// Everything is written for an element type floatX, fp32 or bf16; --precision chooses. In bf16
// weights and activations are 16 bits wide and the matrix unit multiplies them
// (llmc/cpu/matrix_unit.h), while sums, softmax, norms, losses and the optimizer stay in fp32.
//
//     make train_gpt2_cpu data && ./train_gpt2_cpu -e L6C384H6 -b 4 -t 128
//     make train_gpt2_cpu KERNELS=reference               the same with the naive loops of llmc/cpu/reference.h
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/peak_file.h"
#include "llmc/cpu/reference.h"
#include "llmc/cpu/scratch.h"
#include "llmc/train.h"

#if defined(KERNELS_REFERENCE)
namespace kernels = reference;
#elif defined(KERNELS_TIMED)
namespace kernels = timed;  // dev/cpu/roofline.cpp
#else
namespace kernels {
using ::adamw_update, ::attention_backward, ::attention_decode, ::attention_forward, ::classifier,
    ::classifier_chunk_rows, ::encoder_backward, ::encoder_forward, ::gelu_forward, ::global_norm_squared,
    ::layernorm_backward, ::layernorm_forward, ::matmul_backward, ::matmul_forward, ::residual_forward,
    ::residual_layernorm_forward;
}
#endif

template <class floatX>
struct GPT2 {
    ParameterLayout layout;
    Sizes sizes;
    ActivationLayout activations;
    floatX* params = nullptr;  // layout.total_elems()
    // as many, floatX, or fp32 where they are summed (Sizes)
    char* grads = nullptr;
    char* acts = nullptr;  // activations.total_bytes
    // AdamW, and fp32 weights where those are bf16: shard.elems() each
    float *m = nullptr, *v = nullptr, *master = nullptr;
    ZeroShard shard;      // what this process updates
    double loss_sum = 0;  // over the tokens of this step so far
    double peak = 0;      // FLOP/s, measured (llmc/cpu/peak_file.h)
    int peak_measurements = 0;
    std::vector<float> host_values;  // weights as fp32

    floatX* param(int tensor, int64_t layer = 0) { return params + layout.offset(tensor, layer); }
    template <class floatG>
    floatG* grad(int tensor, int64_t layer = 0) {
        return (floatG*)grads + layout.offset(tensor, layer);
    }
    char* place(int a, int64_t layer) { return acts + activations.offset[a] + layer * activations.layer_stride[a]; }
    floatX* act(int a, int64_t layer = 0) { return (floatX*)place(a, layer); }
    float* act32(int a, int64_t layer = 0) { return (float*)place(a, layer); }
    float* dwte_sums() {
        return !sizes.dwte_has_sums() ? nullptr : sizes.dwte_sums_in_layers() ? (float*)grads : act32(DWTE);
    }
};

// -------------------------------------------------------------------------------------------------
// memory

template <class floatX>
constexpr bool is_bf16() {
    return sizeof(floatX) == 2;
}
template <class floatX>
bool has_master(const Options& o) {
    return is_bf16<floatX>() && o.master_weights;
}
template <class floatX>
int64_t gradient_bytes(const Sizes& s) {
    return s.sums_gradients() ? sizeof(float) : sizeof(floatX);
}

// Threads and sizes that depend on the device; before anything is allocated.
template <class floatX>
void settle_device(GPT2<floatX>& model, Sizes& sizes, const Options& o) {
    device.threads = o.threads > 0 ? (int)o.threads : available_threads();
    if (is_bf16<floatX>()) device.unit = best_matrix_unit();
    sizes.floatX_bytes = sizeof(floatX);
    sizes.logit_rows = kernels::classifier_chunk_rows(sizes.B * sizes.T);
    const int64_t HS = sizes.config.C / sizes.config.NH;
    device.scratch_elems = thread_scratch_elems<floatX>(sizes.T, HS);
    device.transposed_elems =
        sizes.training ? backward_transposed_elems<floatX>(sizes.B * sizes.T, sizes.config.C, sizes.config.Vp) : 0;
    if (o.zero_stage) model.shard = {comm.processes, comm.rank};
    model.sizes = sizes;
    model.activations = activation_layout(sizes);
}

template <class floatX>
std::vector<PlanRow> plan_rows(const Sizes& s, const Options& o, GPT2<floatX>* model) {
    std::vector<PlanRow> rows;
    const ParameterLayout& layout = model->layout;
    plan_tensors(rows, s, layout);
    if (s.training) {
        rows.push_back({"gradients", s.sums_gradients() ? "sums, fp32" : "all", "as parameters",
                        layout.total_elems() * gradient_bytes<floatX>(s)});
        plan_optimizer(rows, layout, model->shard, has_master<floatX>(o));
        if (comm.processes > 1)
            rows.push_back(
                {"scratch", "slices received", "1/P of gradients", layout.total_elems() / comm.processes * 4});
    }
    plan_activations(rows, s);
    if (device.transposed_elems > 0) rows.push_back({"scratch", "transposed", "one dout", transposed_bytes()});
    rows.push_back({"scratch", "threads", format("%d threads", device.threads), thread_scratch_bytes()});
    int64_t largest = 0;  // filled while the gradients are still untouched, so a run that trains has room for it anyway
    for (int i = 0; i < NUM_TENSORS && !s.training; i++) largest = std::max(largest, tensor_elems(i, s.config) * 4);
    if (largest > 0) rows.push_back({"program", "weights on load", "one tensor", largest});
    if (!o.prompt.empty()) rows.push_back({"program", "tokenizer", "to encode the prompt", 24 << 20});
    rows.push_back({"program", "code, stacks", "", 12 << 20});
    return rows;
}

template <class floatX>
void allocate(GPT2<floatX>& model, const Sizes& s, const Options& o) {
    const int64_t needed = plan_bytes(plan_rows(s, o, &model)),
                  present = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    if (needed > present)
        runtime_failure(
            "out of memory: the run needs %.0f MiB, the machine has %.0f MiB; --plan shows what for, a smaller -e, -b "
            "or -t or a higher -r lowers it",
            needed / 1048576.0, present / 1048576.0);
    const size_t elems = model.layout.total_elems(), state_bytes = model.shard.elems(model.layout) * sizeof(float);
    model.params = (floatX*)map_memory(elems * sizeof(floatX));
    if (s.training) {
        model.grads = (char*)map_memory(elems * gradient_bytes<floatX>(s));
        model.m = (float*)map_memory(state_bytes), model.v = (float*)map_memory(state_bytes);
        if (has_master<floatX>(o)) model.master = (float*)map_memory(state_bytes);
    }
    model.acts = (char*)map_memory(model.activations.total_bytes);
    allocate_scratch();
}

template <class floatX>
int64_t optimizer_slices(GPT2<floatX>& model) {
    return model.master ? 3 : 2;
}
template <class floatX>
float* slice_memory(GPT2<floatX>& model, int slice) {
    return slice == 0 ? model.m : slice == 1 ? model.v : is_bf16<floatX>() ? model.master : (float*)model.params;
}
template <class floatX>
const float* to_host(GPT2<floatX>&, const float* from, int64_t) {
    return from;
}
template <class floatX>
void to_device(GPT2<floatX>&, float* to, const float* values, int64_t n) {
    memcpy(to, values, n * sizeof(float));
}
template <class floatX>
void set_tensor(GPT2<floatX>& model, int tensor, int64_t layer, const float* values) {
    const int64_t elems = tensor_elems(tensor, model.layout.config);
    std::copy(values, values + elems, model.param(tensor, layer));
    if (model.master)
        set_optimizer_slice(model, 2, model.layout.bucket_of(tensor, layer), model.layout.offset_in_bucket[tensor],
                            elems, values);
}
template <class floatX>
const float* tensor_data(GPT2<floatX>& model, int tensor, int64_t layer, int64_t first, int64_t elems) {
    const floatX* values = model.param(tensor, layer) + first;
    model.host_values.assign(values, values + elems);
    return model.host_values.data();
}
template <class floatX>
int64_t wire_bytes_a_step(GPT2<floatX>& model) {
    const int64_t summed = gradient_bytes<floatX>(model.sizes);
    return plan_wire_bytes(model.layout, comm.processes, summed, model.shard.parts > 1 ? sizeof(floatX) : summed);
}
// A peak that is not known, or below what a step has reached, was measured beside other work: it is
// measured again, a few times in a run.
template <class floatX>
double peak_flops(GPT2<floatX>& model, double reached) {
    for (; model.peak < reached && model.peak_measurements < 4; model.peak_measurements++)
        model.peak = std::max(model.peak, find_peak(is_bf16<floatX>()));
    return model.peak >= reached ? model.peak : 0;
}
template <class floatX>
const char* precision_name(GPT2<floatX>&) {
    return is_bf16<floatX>() ? "bf16" : "fp32";
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
std::string arithmetic(GPT2<floatX>&) {
    const std::string precision = is_bf16<floatX>() ? format("bf16 on %s", MATRIX_UNIT_NAMES[device.unit]) : "fp32";
    return format("%s, %d thread%s", precision.c_str(), device.threads, device.threads == 1 ? "" : "s");
}
template <class floatX>
std::string device_status(GPT2<floatX>&) {
    return "";
}

// -------------------------------------------------------------------------------------------------
// forward

// What layer l reads from the residual stream.
template <class floatX>
floatX* layer_input(GPT2<floatX>& model, int64_t l) {
    return l == 0 ? model.act(ENCODED) : model.act(RESIDUAL3, l - 1);
}

// Layer l, from ln1 (already there) to the branch that its MLP adds to the stream; the sum itself
// is fused with the next layer norm.
template <class floatX>
void layer_forward(GPT2<floatX>& g, int64_t l, int64_t B, int64_t T) {
    const int64_t C = g.layout.config.C, NH = g.layout.config.NH, rows = B * T;
    kernels::matmul_forward(g.act(QKV, l), g.act(LN1, l), g.param(QKVW, l), g.param(QKVB, l), rows, C, 3 * C);
    kernels::attention_forward(g.act(ATTY, l), g.act32(ATT_LSE, l), g.act(QKV, l), B, T, C, NH);
    kernels::matmul_forward(g.act(BRANCH), g.act(ATTY, l), g.param(ATTPROJW, l), g.param(ATTPROJB, l), rows, C, C);
    kernels::residual_layernorm_forward(g.act(RESIDUAL2, l), g.act(LN2, l), g.act32(LN2_MEAN, l), g.act32(LN2_RSTD, l),
                                        layer_input(g, l), g.act(BRANCH), g.param(LN2W, l), g.param(LN2B, l), rows, C);
    kernels::matmul_forward(g.act(FCH, l), g.act(LN2, l), g.param(FCW, l), g.param(FCB, l), rows, C, 4 * C,
                            g.act(FCH_GELU, l));
    kernels::matmul_forward(g.act(BRANCH), g.act(FCH_GELU, l), g.param(FCPROJW, l), g.param(FCPROJB, l), rows, 4 * C,
                            C);
}

// x (B,T) to lnf (B,T,C).
template <class floatX>
void forward(GPT2<floatX>& g, const int* x, int64_t B, int64_t T) {
    const int64_t C = g.layout.config.C, L = g.layout.config.L, rows = B * T;
    kernels::encoder_forward(g.act(ENCODED), x, g.param(WTE), g.param(WPE), B, T, C);
    kernels::layernorm_forward(g.act(LN1), g.act32(LN1_MEAN), g.act32(LN1_RSTD), g.act(ENCODED), g.param(LN1W),
                               g.param(LN1B), rows, C);
    for (int64_t l = 0; l < L; l++) {
        layer_forward(g, l, B, T);
        const bool last = l + 1 == L;
        floatX *out = last ? g.act(LNF) : g.act(LN1, l + 1), *weight = last ? g.param(LNFW) : g.param(LN1W, l + 1),
               *bias = last ? g.param(LNFB) : g.param(LN1B, l + 1);
        float *mean = last ? g.act32(LNF_MEAN) : g.act32(LN1_MEAN, l + 1),
              *rstd = last ? g.act32(LNF_RSTD) : g.act32(LN1_RSTD, l + 1);
        kernels::residual_layernorm_forward(g.act(RESIDUAL3, l), out, mean, rstd, g.act(RESIDUAL2, l), g.act(BRANCH),
                                            weight, bias, rows, C);
    }
}

// Loss of every position of x, y (B,T), without gradients.
template <class floatX>
void evaluate(GPT2<floatX>& g, const int* x, const int* y, int64_t B, int64_t T, float* losses) {
    const GPT2Config& c = g.layout.config;
    forward(g, x, B, T);
    kernels::classifier(losses, (floatX*)nullptr, (floatX*)nullptr, g.act(LOGITS), g.act(LNF), g.param(WTE), y, B * T,
                        c.C, c.V, c.Vp, 0.0f, false);
}

// -------------------------------------------------------------------------------------------------
// backward

// Makes again what the recompute level did not keep of layer l.
template <class floatX>
void layer_recompute(GPT2<floatX>& g, int64_t l, int64_t B, int64_t T) {
    const int64_t C = g.layout.config.C, rows = B * T, level = g.sizes.recompute;
    if (level >= 2)
        kernels::layernorm_forward(g.act(LN1, l), g.act32(LN1_MEAN, l), g.act32(LN1_RSTD, l), layer_input(g, l),
                                   g.param(LN1W, l), g.param(LN1B, l), rows, C);
    if (level >= 3) return layer_forward(g, l, B, T);
    if (level >= 2)
        kernels::layernorm_forward(g.act(LN2, l), g.act32(LN2_MEAN, l), g.act32(LN2_RSTD, l), g.act(RESIDUAL2, l),
                                   g.param(LN2W, l), g.param(LN2B, l), rows, C);
    if (level >= 1) kernels::gelu_forward(g.act(FCH_GELU, l), g.act(FCH, l), rows * 4 * C);
}

// Layer l: dresidual holds the gradient of its output, then that of its input.
template <class floatG, class floatX>
void layer_backward(GPT2<floatX>& g, int64_t l, int64_t B, int64_t T, bool add) {
    const int64_t C = g.layout.config.C, NH = g.layout.config.NH, rows = B * T;
    floatX *dresidual = g.act(DRESIDUAL), *dbranch = g.act(BRANCH), *dwide = g.act(DWIDE);
    kernels::matmul_backward(dwide, g.template grad<floatG>(FCPROJW, l), g.template grad<floatG>(FCPROJB, l), dresidual,
                             g.act(FCH_GELU, l), g.param(FCPROJW, l), rows, 4 * C, C, add, g.act(FCH, l));
    kernels::matmul_backward(dbranch, g.template grad<floatG>(FCW, l), g.template grad<floatG>(FCB, l), dwide,
                             g.act(LN2, l), g.param(FCW, l), rows, C, 4 * C, add);
    kernels::layernorm_backward(dresidual, g.template grad<floatG>(LN2W, l), g.template grad<floatG>(LN2B, l), dbranch,
                                g.act(RESIDUAL2, l), g.param(LN2W, l), g.act32(LN2_MEAN, l), g.act32(LN2_RSTD, l), rows,
                                C, add);
    kernels::matmul_backward(dbranch, g.template grad<floatG>(ATTPROJW, l), g.template grad<floatG>(ATTPROJB, l),
                             dresidual, g.act(ATTY, l), g.param(ATTPROJW, l), rows, C, C, add);
    kernels::attention_backward(dwide, dbranch, g.act(ATTY, l), g.act32(ATT_LSE, l), g.act(QKV, l), B, T, C, NH);
    kernels::matmul_backward(dbranch, g.template grad<floatG>(QKVW, l), g.template grad<floatG>(QKVB, l), dwide,
                             g.act(LN1, l), g.param(QKVW, l), rows, C, 3 * C, add);
    kernels::layernorm_backward(dresidual, g.template grad<floatG>(LN1W, l), g.template grad<floatG>(LN1B, l), dbranch,
                                layer_input(g, l), g.param(LN1W, l), g.act32(LN1_MEAN, l), g.act32(LN1_RSTD, l), rows,
                                C, add);
}

// Sends a bucket's gradients off to be summed over the processes, in fp32.
template <class floatG, class floatX>
void reduce_gradients(GPT2<floatX>& g, int64_t bucket) {
    if constexpr (sizeof(floatG) == 4)
        comm_reduce_scatter_start((float*)g.grads + g.layout.bucket_begin[bucket], g.layout.shard_elems(bucket),
                                  bucket);
}

// Gradients of all parameters for losses that count dloss each; losses on the way. The last
// micro-step of a step sends each layer's gradients off as soon as they are there.
template <class floatG, class floatX>
void backward(GPT2<floatX>& g, const int* x, const int* y, int64_t B, int64_t T, float dloss, bool add,
              bool last_micro) {
    const GPT2Config& c = g.layout.config;
    const int64_t rows = B * T, last = c.L - 1;
    kernels::classifier(g.act32(LOSSES), g.act(BRANCH), g.template grad<floatG>(WTE), g.act(LOGITS), g.act(LNF),
                        g.param(WTE), y, rows, c.C, c.V, c.Vp, dloss, add, g.dwte_sums());
    memset((void*)g.act(DRESIDUAL), 0, rows * c.C * sizeof(floatX));
    kernels::layernorm_backward(g.act(DRESIDUAL), g.template grad<floatG>(LNFW), g.template grad<floatG>(LNFB),
                                g.act(BRANCH), g.act(RESIDUAL3, last), g.param(LNFW), g.act32(LNF_MEAN),
                                g.act32(LNF_RSTD), rows, c.C, add);
    for (int64_t l = last; l >= 0; l--) {
        comm_note("backward", l);
        layer_recompute(g, l, B, T);
        layer_backward<floatG>(g, l, B, T, add);
        if (last_micro) reduce_gradients<floatG>(g, l);
        comm_progress();
    }
    kernels::encoder_backward(g.template grad<floatG>(WTE), g.template grad<floatG>(WPE), g.act(DRESIDUAL), x, B, T,
                              c.C, c.maxT, add);
    if (last_micro) reduce_gradients<floatG>(g, c.L);
}

template <class floatX>
void micro_step(GPT2<floatX>& g, const int* x, const int* y, int64_t B, int64_t T, float dloss, int64_t micro) {
    forward(g, x, B, T);
    const bool add = micro > 0, last_micro = micro + 1 == g.sizes.micro_steps;
    if (g.sizes.sums_gradients()) backward<float>(g, x, y, B, T, dloss, add, last_micro);
    else backward<floatX>(g, x, y, B, T, dloss, add, last_micro);
    if (micro == 0) g.loss_sum = 0;
    double total = 0;
    for (int64_t i = 0; i < B * T; i++) total += g.act32(LOSSES)[i];
    g.loss_sum += total;
}

// -------------------------------------------------------------------------------------------------
// update

// Sum of squares of the gradient. Several processes: each of its slices of the buckets, then all in
// the order of ranks.
template <class floatG, class floatX>
double gradient_norm_squared(GPT2<floatX>& g) {
    const floatG* grads = (floatG*)g.grads;
    if (comm.processes == 1) return kernels::global_norm_squared(grads, g.layout.total_elems());
    double mine = 0;
    for (int64_t b = 0; b < g.layout.buckets(); b++)
        mine += kernels::global_norm_squared(grads + g.layout.bucket_begin[b] + comm.rank * g.layout.shard_elems(b),
                                             g.layout.shard_elems(b));
    return comm_sum(mine, "the sum of the gradient's norm");
}

// AdamW on this process's part of a bucket; weight decay on the tensors that the table marks.
template <class floatG, class floatX>
void update_bucket(GPT2<floatX>& g, int64_t bucket, AdamW constants, const UpdateRule& rule) {
    const int64_t begin = g.layout.bucket_begin[bucket], first = g.shard.first(g.layout, bucket),
                  end = g.shard.end(g.layout, bucket), state = g.shard.state_begin(g.layout, bucket) - first;
    for (int i = 0; i < NUM_TENSORS; i++) {
        if (TENSORS[i].per_layer != (bucket < g.layout.config.L)) continue;
        const int64_t at = g.layout.offset_in_bucket[i], low = std::max(at, first),
                      high = std::min(at + tensor_elems(i, g.layout.config), end);
        constants.weight_decay = TENSORS[i].decayed ? rule.adamw.weight_decay : 0.0f;
        if (low >= high) continue;
        const int64_t place = begin + low, kept = state + low;
        kernels::adamw_update(g.params + place, g.master ? g.master + kept : nullptr, g.m + kept, g.v + kept,
                              (floatG*)g.grads + place, high - low, constants, rule.rounding_seed, place);
    }
}

// The end of a step. Stage 0: all processes get the whole gradient and make the same update. Stage
// 1: each updates its part, and all get the weights.
template <class floatG, class floatX>
StepResult update_from(GPT2<floatX>& g, const UpdateRule& rule) {
    comm_wait("the sum of the gradients");
    const double loss = comm_sum(g.loss_sum, "the sum of the losses") / rule.tokens,
                 norm = std::sqrt(gradient_norm_squared<floatG>(g));
    if (!update_wanted(loss, norm, rule)) return {loss, norm, false};
    AdamW constants = rule.adamw;
    constants.grad_scale = clipping_scale(norm, rule);
    const bool sharded = g.shard.parts > 1;
    for (int64_t b = 0; b < g.layout.buckets() && !sharded; b++)
        comm_all_gather_start((floatG*)g.grads + g.layout.bucket_begin[b], g.layout.shard_elems(b), b);
    comm_wait("the collection of the gradients");
    for (int64_t b = 0; b < g.layout.buckets(); b++) {
        update_bucket<floatG>(g, b, constants, rule);
        if (sharded) comm_all_gather_start(g.params + g.layout.bucket_begin[b], g.layout.shard_elems(b), b);
        comm_progress();
    }
    comm_wait("the collection of the weights");
    return {loss, norm, true};
}
template <class floatX>
StepResult update(GPT2<floatX>& g, const UpdateRule& rule) {
    return g.sizes.sums_gradients() ? update_from<float>(g, rule) : update_from<floatX>(g, rule);
}

// -------------------------------------------------------------------------------------------------
// generation

// The logits (V) of what follows `token` at `position`, given the positions before it, whose keys
// and values are in the cache.
template <class floatX>
const float* decode(GPT2<floatX>& g, int token, int64_t position) {
    const GPT2Config& c = g.layout.config;
    const int64_t C = c.C;
    floatX *residual = g.act(ENCODED), *branch = g.act(BRANCH);
    kernels::encoder_forward(residual, &token, g.param(WTE), g.param(WPE), 1, 1, C, position);
    for (int64_t l = 0; l < c.L; l++) {
        kernels::layernorm_forward(g.act(LN1), g.act32(LN1_MEAN), g.act32(LN1_RSTD), residual, g.param(LN1W, l),
                                   g.param(LN1B, l), 1, C);
        kernels::matmul_forward(g.act(QKV), g.act(LN1), g.param(QKVW, l), g.param(QKVB, l), 1, C, 3 * C);
        kernels::attention_decode(g.act(ATTY), g.act(KEYS, l), g.act(VALUES, l), g.act(QKV), g.act32(SCORES), position,
                                  g.sizes.cache_T, C, c.NH);
        kernels::matmul_forward(branch, g.act(ATTY), g.param(ATTPROJW, l), g.param(ATTPROJB, l), 1, C, C);
        kernels::residual_layernorm_forward(residual, g.act(LN2), g.act32(LN2_MEAN), g.act32(LN2_RSTD), residual,
                                            branch, g.param(LN2W, l), g.param(LN2B, l), 1, C);
        kernels::matmul_forward(g.act(FCH), g.act(LN2), g.param(FCW, l), g.param(FCB, l), 1, C, 4 * C, g.act(FCH_GELU));
        kernels::matmul_forward(branch, g.act(FCH_GELU), g.param(FCPROJW, l), g.param(FCPROJB, l), 1, 4 * C, C);
        kernels::residual_forward(residual, residual, branch, C);
    }
    kernels::layernorm_forward(g.act(LNF), g.act32(LNF_MEAN), g.act32(LNF_RSTD), residual, g.param(LNFW), g.param(LNFB),
                               1, C);
    kernels::matmul_forward(g.act(LOGITS), g.act(LNF), g.param(WTE), (const floatX*)nullptr, 1, C, c.Vp);
    if constexpr (!is_bf16<floatX>()) return g.act(LOGITS);
    g.host_values.assign(g.act(LOGITS), g.act(LOGITS) + c.V);
    return g.host_values.data();
}

#ifndef TRAINER_WITHOUT_MAIN
static int train(const Options& options) {
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
