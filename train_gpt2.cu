// GPT-2 on a GPU: the same story as train_gpt2_cpu.cpp, section by section; read that one first.
// What a GPU changes: memory is the device's, and every line of forward() and backward() only puts
// work into a stream. The host runs ahead and waits once a step, for loss and norm.
//
//     make train_gpt2cu data && ./train_gpt2cu -e d12 -b 16 -t 1024   bf16 mixed precision
//     make train_gpt2cu PRECISION=FP32                               fp32, TF32 products unless -f 0
//     make train_gpt2sim data && ./train_gpt2sim -e L2C64H2T64 -t 64  the same source on a CPU (dev/cusim)
//
// Mixed precision (Micikevicius et al. 2018, arXiv:1710.03740): weights, activations and gradients
// are bf16; sums, softmax, norms, losses and AdamW's state are fp32, and so is the copy of the
// weights that AdamW updates (-w 1), or its result is rounded stochastically (-w 0). The gradient
// of one micro-step is bf16; over several it is summed in fp32: then a layer's bf16 gradients need
// only live until they are added, and share one layer's memory. The gradient of the tied embedding
// is fp32 throughout.
#include "llmc/cuda/adamw.cuh"
#include "llmc/cuda/attention.cuh"
#include "llmc/cuda/classifier.cuh"
#include "llmc/cuda/comm.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/encoder.cuh"
#include "llmc/cuda/nvml.cuh"
#include "llmc/mfu.h"
#include "llmc/train.h"

#ifdef PRECISION_FP32
typedef float floatX;  // type of weights, gradients and activations
constexpr const char *PRECISION = "fp32", *OTHER_PRECISION = "bf16";
#else
typedef __nv_bfloat16 floatX;
constexpr const char *PRECISION = "bf16", *OTHER_PRECISION = "fp32";
#endif
constexpr bool IS_FP32 = sizeof(floatX) == 4;

struct GPT2 {
    ParameterLayout layout;
    Sizes sizes;
    ActivationLayout activations;
    DecayRanges decayed;
    ZeroShard shard;  // what this process updates
    cudaStream_t stream = nullptr;
    floatX *params = nullptr, *grads = nullptr;  // layout.total_elems(); grads: see grads_elems
    // fp32: gradients over micro-steps, weights; null if not needed
    float *grad_sums = nullptr, *master = nullptr;
    float *m = nullptr, *v = nullptr;  // AdamW; these and master: shard.elems()
    char* acts = nullptr;
    // pinned: inputs, targets and their order, of each micro-step
    int* host_tokens = nullptr;
    DeviceResults* host_results = nullptr;  // pinned
    std::vector<float> host_values;         // what the host asked for last
    TokenOrder tokens{};
    int gelu_fusion = 0;
    double peak = 0;  // FLOP/s, from the table in llmc/mfu.h

    floatX* param(int tensor, int64_t layer = 0) { return params + layout.offset(tensor, layer); }
    // Where backward() writes: the gradient itself, or memory that every layer uses in turn, and
    // after it what is outside the layers.
    floatX* grad(int tensor, int64_t layer = 0) {
        if (!sizes.sums_gradients()) return grads + layout.offset(tensor, layer);
        return grads + layout.offset_in_bucket[tensor] +
               (TENSORS[tensor].per_layer ? 0 : layout.bucket_begin[1] - layout.offset_in_bucket[WPE]);
    }
    float* dwte() {
        return sizes.sums_gradients() ? grad_sums + layout.offset(WTE) : IS_FP32 ? (float*)grad(WTE) : act32(DWTE);
    }
    char* place(int a, int64_t layer) { return acts + activations.offset[a] + layer * activations.layer_stride[a]; }
    floatX* act(int a, int64_t layer = 0) { return (floatX*)place(a, layer); }
    float* act32(int a, int64_t layer = 0) { return (float*)place(a, layer); }
    int* ints(int a) { return (int*)place(a, 0); }
    DeviceResults* results() { return (DeviceResults*)place(RESULTS, 0); }
    int64_t micro_tokens() const { return sizes.B * sizes.T; }
};

// -------------------------------------------------------------------------------------------------
// memory

int64_t grads_elems(const ParameterLayout& layout, const Sizes& s) {
    const int64_t last = layout.config.L;
    return s.sums_gradients() ? layout.bucket_begin[1] + layout.bucket_begin[last + 1] - layout.bucket_begin[last] -
                                    layout.offset_in_bucket[WPE]
                              : layout.total_elems();
}

// Sizes that depend on the device; before anything is allocated.
void settle_device(GPT2& model, Sizes& sizes, const Options& o) {
    const int64_t HS = sizes.config.C / sizes.config.NH;
    if (!o.precision.empty() && o.precision != PRECISION)
        usage_error("--precision %s: this program is built for %s; `make %s PRECISION=%s` builds it for %s",
                    o.precision.c_str(), PRECISION,
#ifdef CUSIM
                    "train_gpt2sim",
#else
                    "train_gpt2cu",
#endif
                    IS_FP32 ? "BF16" : "FP32", OTHER_PRECISION);
    if (!attention_supports(HS))
        usage_error("-e %s has heads of %lld channels; on a GPU multiples of 8 from 16 to 256 are accepted",
                    o.model.c_str(), (long long)HS);
    if (sizes.config.C > layernorm_most_channels<floatX>())
        usage_error("-e %s has %lld channels; on a GPU up to %lld are accepted", o.model.c_str(),
                    (long long)sizes.config.C, (long long)layernorm_most_channels<floatX>());
    sizes.gpu = true, sizes.floatX_bytes = sizeof(floatX), sizes.blas_workspace_bytes = BLAS_WORKSPACE_BYTES,
    sizes.guard_bytes = GUARD_BYTES;
    sizes.logit_rows = classifier_chunk_rows(sizes.B * sizes.T);
    model.sizes = sizes;
    model.gelu_fusion = (int)std::max<int64_t>(0, o.gelu_fusion);
    model.activations = activation_layout(sizes);
    model.decayed = decay_ranges(model.layout);
    if (o.zero_stage) model.shard = {comm.processes, comm.rank};
}

bool has_master(const Options& o) { return !IS_FP32 && o.master_weights; }

// Device memory, all of it but what the driver takes for itself.
std::vector<PlanRow> plan_rows(const Sizes& s, const Options& o, GPT2* model) {
    std::vector<PlanRow> rows;
    const ParameterLayout& layout = model->layout;
    plan_tensors(rows, s, layout);
    if (s.training) {
        rows.push_back({"gradients", "of a micro-step", s.sums_gradients() ? "one layer, rest" : "as parameters",
                        grads_elems(layout, s) * (int64_t)sizeof(floatX)});
        if (s.sums_gradients()) rows.push_back({"gradients", "sums, fp32", "as parameters", layout.total_elems() * 4});
        plan_optimizer(rows, layout, model->shard, has_master(o));
    }
    plan_activations(rows, s);
    return rows;
}

void allocate(GPT2& model, const Sizes& s, const Options& o) {
    const cudaDeviceProp gpu = choose_gpu(comm.rank % o.gpus_per_node);
    const std::vector<PlanRow> rows = plan_rows(s, o, &model);
    size_t free_bytes = 0, total_bytes = 0;
    check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for memory");
    if (plan_bytes(rows) > (int64_t)free_bytes) {
        print_plan_rows(stderr, rows);
        runtime_failure(
            "out of memory: the run needs %.0f MiB as above, the GPU has %.0f of %.0f MiB free; a smaller -b, -t or "
            "-e, a higher -r, or -w 0 lowers it",
            plan_bytes(rows) / 1048576.0, free_bytes / 1048576.0, total_bytes / 1048576.0);
    }
    gpu_comm_start();
    check_cuda(cudaStreamCreateWithFlags(&model.stream, cudaStreamNonBlocking), "making a stream");
    auto take = [&](auto*& p, int64_t bytes) {
        check_cuda(cudaMalloc(&p, bytes), "allocating");
        check_cuda(cudaMemsetAsync(p, 0, bytes, model.stream), "clearing memory");
    };
    const int64_t elems = model.layout.total_elems(), state_bytes = model.shard.elems(model.layout) * 4;
    take(model.params, elems * sizeof(floatX));
    if (s.training) {
        take(model.grads, grads_elems(model.layout, s) * sizeof(floatX));
        if (s.sums_gradients()) take(model.grad_sums, elems * 4);
        take(model.m, state_bytes), take(model.v, state_bytes);
        if (has_master(o)) take(model.master, state_bytes);
    }
    check_cuda(cudaMalloc(&model.acts, model.activations.total_bytes), "allocating");
    for (int a = 0; a < NUM_ACTIVATIONS; a++)
        for (int64_t copy = 1; copy <= activation_copies(a, s) && activation_bytes(a, s) > 0; copy++)
            guard_memory(ACTIVATIONS[a].name,
                         model.acts + model.activations.offset[a] + copy * activation_bytes(a, s) - GUARD_BYTES);
    check_cuda(cudaMallocHost(&model.host_tokens, s.micro_steps * (4 * model.micro_tokens() + 1) * sizeof(int)),
               "allocating host memory");
    check_cuda(cudaMallocHost(&model.host_results, sizeof(DeviceResults)), "allocating host memory");
    check_cuda(cudaStreamSynchronize(model.stream), "clearing memory");
    if (!blas.handle) check_blas(cublasLtCreate(&blas.handle), "starting");
    blas.workspace = model.place(BLAS_WORKSPACE, 0), blas.workspace_bytes = BLAS_WORKSPACE_BYTES, blas.tf32 = o.tf32;
    model.peak = gpu_peak_flops(gpu.name, !IS_FP32, o.tf32);
}

void free_model(GPT2& model) {
    for (void* p : {(void*)model.params, (void*)model.grads, (void*)model.grad_sums, (void*)model.master,
                    (void*)model.m, (void*)model.v, (void*)model.acts})
        check_cuda(cudaFree(p), "freeing memory");
    check_cuda(cudaFreeHost(model.host_tokens), "freeing memory");
    check_cuda(cudaFreeHost(model.host_results), "freeing memory");
    check_cuda(cudaStreamDestroy(model.stream), "freeing a stream");
}

// n elements from the device into model.host_values, as fp32.
template <class T>
const float* to_host(GPT2& model, const T* from, int64_t n) {
    check_cuda(cudaStreamSynchronize(model.stream), "waiting for the GPU");
    model.host_values.resize(n);
    if constexpr (sizeof(T) == 4)
        check_cuda(cudaMemcpy(model.host_values.data(), from, n * 4, cudaMemcpyDeviceToHost), "copying to the host");
    else {
        std::vector<T> raw(n);
        check_cuda(cudaMemcpy(raw.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost), "copying to the host");
        for (int64_t i = 0; i < n; i++) model.host_values[i] = (float)raw[i];
    }
    return model.host_values.data();
}
template <class T>
void to_device(GPT2& model, T* to, const float* values, int64_t n) {
    check_cuda(cudaStreamSynchronize(model.stream), "waiting for the GPU");
    std::vector<T> raw(values, values + n);
    check_cuda(cudaMemcpy(to, raw.data(), n * sizeof(T), cudaMemcpyHostToDevice), "copying to the GPU");
}

float* slice_memory(GPT2& model, int slice) {
    return slice == 0 ? model.m : slice == 1 ? model.v : IS_FP32 ? (float*)model.params : model.master;
}
int64_t optimizer_slices(GPT2& model) { return model.master ? 3 : 2; }
void set_tensor(GPT2& model, int tensor, int64_t layer, const float* values) {
    const int64_t elems = tensor_elems(tensor, model.layout.config);
    to_device(model, model.param(tensor, layer), values, elems);
    if (model.master)
        set_optimizer_slice(model, 2, model.layout.bucket_of(tensor, layer), model.layout.offset_in_bucket[tensor],
                            elems, values);
}
const float* tensor_data(GPT2& model, int tensor, int64_t layer, int64_t first, int64_t elems) {
    return to_host(model, model.param(tensor, layer) + first, elems);
}
int64_t wire_bytes_a_step(GPT2& model) {
    return plan_wire_bytes(model.layout, comm.processes, model.sizes.sums_gradients() ? 4 : sizeof(floatX),
                           model.shard.parts > 1 || !model.sizes.sums_gradients() ? sizeof(floatX) : 4);
}
double peak_flops(GPT2& model, double reached) { return model.peak >= reached ? model.peak : 0; }
const char* precision_name(GPT2&) { return PRECISION; }
std::string arithmetic(GPT2&) { return PRECISION; }
#ifdef CUSIM
const char* kernels_name(GPT2&) { return "simulated GPU"; }
#else
const char* kernels_name(GPT2&) { return "GPU"; }
#endif
std::string device_status(GPT2&) { return gpu_status(); }

// x and y (B,T) to the GPU by way of pinned memory, which belongs to micro-step `micro` until the
// step ends. For a backward pass also the order of the tokens.
void upload_tokens(GPT2& g, const int* x, const int* y, int64_t B, int64_t T, int64_t micro, bool training) {
    const int64_t n = B * T;
    int *inputs = g.host_tokens + micro * (4 * g.micro_tokens() + 1), *order = inputs + 2 * n;
    auto send = [&](int a, const int* from, int64_t count) {
        check_cuda(cudaMemcpyAsync(g.ints(a), from, count * sizeof(int), cudaMemcpyHostToDevice, g.stream),
                   "copying tokens");
    };
    memcpy(inputs, x, n * sizeof(int));
    memcpy(inputs + n, y, n * sizeof(int));
    send(INPUTS, inputs, n), send(TARGETS, inputs + n, n);
    if (!training) return;
    g.tokens = sort_by_token(order, order + n, x, n);
    send(TOKEN_ORDER, order, n + g.tokens.segments + 1);
}

// -------------------------------------------------------------------------------------------------
// forward

// What layer l reads from the residual stream.
floatX* layer_input(GPT2& model, int64_t l) { return l == 0 ? model.act(ENCODED) : model.act(RESIDUAL3, l - 1); }

// Layer l, from ln1 (already there) to the branch that its MLP adds to the stream; the sum itself
// is fused with the next layer norm.
void layer_forward(GPT2& g, int64_t l, int64_t B, int64_t T) {
    Range range("layer_forward");
    const int64_t C = g.layout.config.C, NH = g.layout.config.NH, rows = B * T;
    matmul_forward(g.act(QKV, l), g.act(LN1, l), g.param(QKVW, l), g.param(QKVB, l), rows, C, 3 * C, g.stream);
    attention_forward(g.act(ATTY, l), g.act32(ATT_LSE, l), g.act(QKV, l), B, T, C, NH, g.stream);
    matmul_forward(g.act(BRANCH), g.act(ATTY, l), g.param(ATTPROJW, l), g.param(ATTPROJB, l), rows, C, C, g.stream);
    residual_layernorm_forward(g.act(RESIDUAL2, l), g.act(LN2, l), g.act32(LN2_MEAN, l), g.act32(LN2_RSTD, l),
                               layer_input(g, l), g.act(BRANCH), g.param(LN2W, l), g.param(LN2B, l), rows, C, g.stream);
    matmul_forward(g.act(FCH, l), g.act(LN2, l), g.param(FCW, l), g.param(FCB, l), rows, C, 4 * C, g.stream,
                   g.act(FCH_GELU, l), g.gelu_fusion >= 1);
    matmul_forward(g.act(BRANCH), g.act(FCH_GELU, l), g.param(FCPROJW, l), g.param(FCPROJB, l), rows, 4 * C, C,
                   g.stream);
}

// inputs (B,T), on the device, to lnf (B,T,C).
void forward(GPT2& g, int64_t B, int64_t T) {
    Range range("forward");
    const int64_t C = g.layout.config.C, L = g.layout.config.L, rows = B * T;
    encoder_forward(g.act(ENCODED), g.ints(INPUTS), g.param(WTE), g.param(WPE), B, T, C, 0, g.stream);
    layernorm_forward(g.act(LN1), g.act32(LN1_MEAN), g.act32(LN1_RSTD), g.act(ENCODED), g.param(LN1W), g.param(LN1B),
                      rows, C, g.stream);
    for (int64_t l = 0; l < L; l++) {
        layer_forward(g, l, B, T);
        const bool last = l + 1 == L;
        floatX *out = last ? g.act(LNF) : g.act(LN1, l + 1), *weight = last ? g.param(LNFW) : g.param(LN1W, l + 1),
               *bias = last ? g.param(LNFB) : g.param(LN1B, l + 1);
        float *mean = last ? g.act32(LNF_MEAN) : g.act32(LN1_MEAN, l + 1),
              *rstd = last ? g.act32(LNF_RSTD) : g.act32(LN1_RSTD, l + 1);
        residual_layernorm_forward(g.act(RESIDUAL3, l), out, mean, rstd, g.act(RESIDUAL2, l), g.act(BRANCH), weight,
                                   bias, rows, C, g.stream);
    }
}

// Loss of every position of x, y (B,T), without gradients.
void evaluate(GPT2& g, const int* x, const int* y, int64_t B, int64_t T, float* losses) {
    Range range("evaluate");
    const GPT2Config& c = g.layout.config;
    upload_tokens(g, x, y, B, T, 0, false);
    forward(g, B, T);
    classifier(g.act32(LOSSES), (floatX*)nullptr, nullptr, g.act(LOGITS), g.act(LNF), g.param(WTE), g.ints(TARGETS),
               B * T, c.C, c.V, c.Vp, 0.0f, false, g.stream);
    memcpy(losses, to_host(g, g.act32(LOSSES), B * T), B * T * sizeof(float));
}

// -------------------------------------------------------------------------------------------------
// backward

// Makes again what the recompute level did not keep of layer l.
void layer_recompute(GPT2& g, int64_t l, int64_t B, int64_t T) {
    Range range("layer_recompute");
    const int64_t C = g.layout.config.C, rows = B * T, level = g.sizes.recompute;
    if (level >= 2)
        layernorm_forward(g.act(LN1, l), g.act32(LN1_MEAN, l), g.act32(LN1_RSTD, l), layer_input(g, l),
                          g.param(LN1W, l), g.param(LN1B, l), rows, C, g.stream);
    if (level >= 3) return layer_forward(g, l, B, T);
    if (level >= 2)
        layernorm_forward(g.act(LN2, l), g.act32(LN2_MEAN, l), g.act32(LN2_RSTD, l), g.act(RESIDUAL2, l),
                          g.param(LN2W, l), g.param(LN2B, l), rows, C, g.stream);
    if (level >= 1) gelu_forward(g.act(FCH_GELU, l), g.act(FCH, l), rows * 4 * C, g.stream);
}

// Layer l: dresidual holds the gradient of its output, then that of its input.
void layer_backward(GPT2& g, int64_t l, int64_t B, int64_t T, bool add) {
    Range range("layer_backward");
    const int64_t C = g.layout.config.C, NH = g.layout.config.NH, rows = B * T;
    floatX *dresidual = g.act(DRESIDUAL), *dbranch = g.act(BRANCH), *dwide = g.act(DWIDE);
    float* partials = g.act32(PARTIALS);
    matmul_backward(dwide, g.grad(FCPROJW, l), g.grad(FCPROJB, l), partials, dresidual, g.act(FCH_GELU, l),
                    g.param(FCPROJW, l), rows, 4 * C, C, add, g.stream, g.act(FCH, l), g.gelu_fusion >= 2);
    matmul_backward(dbranch, g.grad(FCW, l), g.grad(FCB, l), partials, dwide, g.act(LN2, l), g.param(FCW, l), rows, C,
                    4 * C, add, g.stream);
    layernorm_backward(dresidual, g.grad(LN2W, l), g.grad(LN2B, l), partials, dbranch, g.act(RESIDUAL2, l),
                       g.param(LN2W, l), g.act32(LN2_MEAN, l), g.act32(LN2_RSTD, l), rows, C, add, g.stream);
    matmul_backward(dbranch, g.grad(ATTPROJW, l), g.grad(ATTPROJB, l), partials, dresidual, g.act(ATTY, l),
                    g.param(ATTPROJW, l), rows, C, C, add, g.stream);
    attention_backward(dwide, g.act32(ATT_D), dbranch, g.act(ATTY, l), g.act32(ATT_LSE, l), g.act(QKV, l), B, T, C, NH,
                       g.stream);
    matmul_backward(dbranch, g.grad(QKVW, l), g.grad(QKVB, l), partials, dwide, g.act(LN1, l), g.param(QKVW, l), rows,
                    C, 3 * C, add, g.stream);
    layernorm_backward(dresidual, g.grad(LN1W, l), g.grad(LN1B, l), partials, dbranch, layer_input(g, l),
                       g.param(LN1W, l), g.act32(LN1_MEAN, l), g.act32(LN1_RSTD, l), rows, C, add, g.stream);
}

// Where gradients are summed in fp32: adds those of one tensor, or of a whole layer, which the pass
// has just made.
void add_tensor_gradients(GPT2& g, int tensor, bool add) {
    if (g.sizes.sums_gradients())
        add_gradients(g.grad_sums + g.layout.offset(tensor), g.grad(tensor), tensor_elems(tensor, g.layout.config), add,
                      g.stream);
}
void add_layer_gradients(GPT2& g, int64_t l, bool add) {
    if (g.sizes.sums_gradients())
        add_gradients(g.grad_sums + g.layout.bucket_begin[l], g.grads, g.layout.bucket_begin[1], add, g.stream);
}

// Sends a bucket's gradients off to be summed over the processes.
void reduce_gradients(GPT2& g, int64_t bucket) {
    const int64_t begin = g.layout.bucket_begin[bucket], elems = g.layout.shard_elems(bucket);
    if (g.sizes.sums_gradients()) gpu_reduce_scatter(g.grad_sums + begin, elems, bucket, g.stream);
    else gpu_reduce_scatter(g.grads + begin, elems, bucket, g.stream);
}

// Gradients of all parameters for losses that count dloss each; losses on the way. The last
// micro-step of a step sends each layer's gradients off as soon as they are there.
void backward(GPT2& g, int64_t B, int64_t T, float dloss, bool add, bool last_micro) {
    Range range("backward");
    const GPT2Config& c = g.layout.config;
    const int64_t rows = B * T, last = c.L - 1;
    const bool write_add = add && IS_FP32;  // fp32 gradients grow in place
    classifier(g.act32(LOSSES), g.act(BRANCH), g.dwte(), g.act(LOGITS), g.act(LNF), g.param(WTE), g.ints(TARGETS), rows,
               c.C, c.V, c.Vp, dloss, add, g.stream);
    check_cuda(cudaMemsetAsync(g.act(DRESIDUAL), 0, rows * c.C * sizeof(floatX), g.stream), "clearing a gradient");
    layernorm_backward(g.act(DRESIDUAL), g.grad(LNFW), g.grad(LNFB), g.act32(PARTIALS), g.act(BRANCH),
                       g.act(RESIDUAL3, last), g.param(LNFW), g.act32(LNF_MEAN), g.act32(LNF_RSTD), rows, c.C,
                       write_add, g.stream);
    add_tensor_gradients(g, LNFW, add), add_tensor_gradients(g, LNFB, add);
    for (int64_t l = last; l >= 0; l--) {
        comm_note("backward", l);
        layer_recompute(g, l, B, T);
        layer_backward(g, l, B, T, write_add);
        add_layer_gradients(g, l, add);
        if (last_micro) reduce_gradients(g, l);
    }
    encoder_backward(g.dwte(), g.grad(WPE), g.act(DRESIDUAL), g.ints(INPUTS), g.ints(TOKEN_ORDER),
                     g.ints(TOKEN_ORDER) + rows, g.tokens, B, T, c.C, c.maxT, write_add, g.stream);
    add_tensor_gradients(g, WPE, add);
    if (!IS_FP32 && !g.sizes.sums_gradients()) round_gradients(g.grad(WTE), g.dwte(), c.Vp * c.C, g.stream);
    if (last_micro) reduce_gradients(g, c.L);
}

void micro_step(GPT2& g, const int* x, const int* y, int64_t B, int64_t T, float dloss, int64_t micro) {
    Range range("micro_step");
    upload_tokens(g, x, y, B, T, micro, true);
    forward(g, B, T);
    backward(g, B, T, dloss, micro > 0, micro + 1 == g.sizes.micro_steps);
    loss_sum(&g.results()->loss_sum, g.act32(LOSSES), B * T, micro > 0, g.stream);
}

// -------------------------------------------------------------------------------------------------
// update

// Norm, decision and AdamW follow each other on the device; the host waits here, the only time in a
// step. Stage 0: all processes get the whole gradient and make the same update. Stage 1: each
// updates its part, and all get the weights, while the host goes on.
StepResult update(GPT2& g, const UpdateRule& rule) {
    Range range("update");
    const bool sharded = g.shard.parts > 1;
    auto step = [&](auto* grads) {
        gpu_comm_join(g.stream);  // the sums of the gradients
        sum_squares(g.results(), (double*)g.act32(PARTIALS), grads, shard_map(g.layout, {comm.processes, comm.rank}),
                    comm.rank, g.stream);
        gpu_all_gather((double*)rank_sums(g.results()), 2, -1, g.stream);
        for (int64_t b = 0; b < g.layout.buckets() && !sharded; b++)
            gpu_all_gather(grads + g.layout.bucket_begin[b], g.layout.shard_elems(b), b, g.stream);
        gpu_comm_join(g.stream);
        finish_norm(g.results(), comm.processes, rule, g.stream);
        adamw_update(g.params, g.master, g.m, g.v, grads, shard_map(g.layout, g.shard), rule.adamw, g.decayed,
                     g.results(), rule.rounding_seed, g.stream);
    };
    if (g.sizes.sums_gradients()) step(g.grad_sums);
    else step(g.grads);
    check_cuda(cudaMemcpyAsync(g.host_results, g.results(), sizeof(DeviceResults), cudaMemcpyDeviceToHost, g.stream),
               "copying results");
    for (int64_t b = 0; b < g.layout.buckets() && sharded; b++)
        gpu_all_gather(g.params + g.layout.bucket_begin[b], g.layout.shard_elems(b), b, g.stream);
    wait_for_stream(g.stream, "waiting for the step");
    gpu_comm_join(g.stream);  // what comes next needs the weights
    return {g.host_results->loss, g.host_results->norm, g.host_results->wanted != 0};
}

// -------------------------------------------------------------------------------------------------
// generation

// The logits (V) of what follows `token` at `position`, given the positions before it, whose keys
// and values are in the cache.
const float* decode(GPT2& g, int token, int64_t position) {
    Range range("decode");
    const GPT2Config& c = g.layout.config;
    const int64_t C = c.C;
    floatX *residual = g.act(ENCODED), *branch = g.act(BRANCH);
    check_cuda(cudaMemcpyAsync(g.ints(INPUTS), &token, sizeof(int), cudaMemcpyHostToDevice, g.stream),
               "copying a token");
    encoder_forward(residual, g.ints(INPUTS), g.param(WTE), g.param(WPE), 1, 1, C, position, g.stream);
    for (int64_t l = 0; l < c.L; l++) {
        layernorm_forward(g.act(LN1), g.act32(LN1_MEAN), g.act32(LN1_RSTD), residual, g.param(LN1W, l),
                          g.param(LN1B, l), 1, C, g.stream);
        matmul_forward(g.act(QKV), g.act(LN1), g.param(QKVW, l), g.param(QKVB, l), 1, C, 3 * C, g.stream);
        attention_decode(g.act(ATTY), g.act(KEYS, l), g.act(VALUES, l), g.act(QKV), g.act32(SCORES), position,
                         g.sizes.cache_T, C, c.NH, g.stream);
        matmul_forward(branch, g.act(ATTY), g.param(ATTPROJW, l), g.param(ATTPROJB, l), 1, C, C, g.stream);
        residual_layernorm_forward(residual, g.act(LN2), g.act32(LN2_MEAN), g.act32(LN2_RSTD), residual, branch,
                                   g.param(LN2W, l), g.param(LN2B, l), 1, C, g.stream);
        matmul_forward(g.act(FCH), g.act(LN2), g.param(FCW, l), g.param(FCB, l), 1, C, 4 * C, g.stream, g.act(FCH_GELU),
                       g.gelu_fusion >= 1);
        matmul_forward(branch, g.act(FCH_GELU), g.param(FCPROJW, l), g.param(FCPROJB, l), 1, 4 * C, C, g.stream);
        residual_forward(residual, residual, branch, C, g.stream);
    }
    layernorm_forward(g.act(LNF), g.act32(LNF_MEAN), g.act32(LNF_RSTD), residual, g.param(LNFW), g.param(LNFB), 1, C,
                      g.stream);
    matmul_forward(g.act(LOGITS), g.act(LNF), g.param(WTE), (const floatX*)nullptr, 1, C, c.Vp, g.stream);
    return to_host(g, g.act(LOGITS), c.V);
}

#ifndef TRAINER_WITHOUT_MAIN
int main(int argc, char** argv) {
    return run_program([&] { return run_main<GPT2>(options_of_run(argc, argv)); });
}
#endif
