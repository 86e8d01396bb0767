// What the services of a run need of a GPU (model/model.h): which one, its memory, and what it is
// called.
#pragma once
#include "llmc/cuda/activation_codes.cuh"
#include "llmc/cuda/average.cuh"
#include "llmc/cuda/blas.cuh"
#include "llmc/cuda/classifier.cuh"
#include "llmc/cuda/comm.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/encoder.cuh"
#include "llmc/cuda/free_memory.cuh"
#include "llmc/cuda/gpu.cuh"
#include "llmc/cuda/layernorm.cuh"
#include "llmc/cuda/messages.cuh"
#include "llmc/cuda/nvml.cuh"
#include "llmc/cuda/offload_memory.cuh"
#include "llmc/cuda/prune.cuh"
#include "llmc/cuda/teacher.cuh"
#include "llmc/model/kept_codes.h"
#include "llmc/plan/mfu.h"
#include "llmc/plan/plan_memory.h"

static_assert(partials_elems(1) >=
                  std::max({LAYERNORM_PARTS * 3, COLUMN_SUM_PARTS * 4, ATTENTION_PARTS * 3, ENCODER_PARTS}),
              "the activation table has room for all sums over rows");

// Elements of GPT2::grads: where gradients are summed, those of one layer and of the tensors
// outside the layers but wte.
inline int64_t grads_elems(const GPT2& model, const Sizes& s) {
    const ParameterLayout& layout = model.layout;
    if (!s.sums_gradients()) return model.gradient_places.elems(layout);
    return layout.most_layer_elems() + layout.bucket_elems(layout.config.L) - layout.wte_elems();
}

// Refuses what this program cannot compute (exit 2).
template <class floatX>
void check_supported(const Sizes& s, const Options& o) {
    const GPT2Config& c = s.config;
#ifdef CUSIM
    const char* program = "train_gpt2sim";
#else
    const char* program = "train_gpt2cu";
#endif
    if (o.precision == "fp32x3")
        usage_error("--precision fp32x3 is for CPUs; this program is built for %s", type_name<floatX>());
    std::string upper = o.precision;
    for (char& letter : upper) letter = (char)toupper(letter);
    if (!o.precision.empty() && o.precision != type_name<floatX>())
        usage_error("--precision %s: this program is built for %s; `make %s PRECISION=%s` builds it for %s",
                    o.precision, type_name<floatX>(), program, upper, o.precision);
    if (!attention_supports(c.C / c.NH))
        usage_error("-e %s has heads of %d channels; on a GPU multiples of 8 from 16 to 256 are accepted", o.model,
                    c.C / c.NH);
    if (!c.trained.empty() && comm.processes > 1 && !o.plan && !parameter_layout(c, 1).layers_alike())
        usage_error("--train %s: several GPUs train the same tensors in all layers; one accepts others", o.train);
    if (c.C > layernorm_most_channels<floatX>())
        usage_error("-e %s has %d channels; on a GPU up to %d are accepted", o.model, c.C,
                    layernorm_most_channels<floatX>());
}

// Device memory, row by row, without what the driver takes for itself.
inline std::vector<PlanRow> gpu_plan_rows(const GPT2& model, const Sizes& s, const Options& o) {
    std::vector<PlanRow> rows;
    const ParameterLayout& layout = model.layout;
    plan_weights(rows, model, s);
    if (s.training) {
        if (s.sums_gradients())
            rows.push_back({"gradients", "of a micro-step", "one layer, rest", grads_elems(model, s) * s.floatX_bytes});
        plan_buckets(rows, "gradients", s.sums_gradients() ? "sums, fp32" : "of a micro-step", model.gradient_places,
                     layout, s.gradient_bytes());
        plan_optimizer(rows, OPTIMIZERS[model.optimizer], layout, model.slice, has_master(model.format, o),
                       model.gpu->offload.states.empty() ? nullptr : "the host");
        plan_offload(rows, model);
        plan_messages(rows, model);
        if (s.whole_tensors)
            rows.push_back({"scratch", "pieces, sums", "of tensors", model.gpu->whole_tensors.bytes()});
    }
    plan_activations(rows, s);
    if (model.teacher) plan_teacher(rows, *model.teacher);
    return rows;
}

// The memory of the GPU that --device names, or that this machine has; 0 if there is none.
template <class floatX>
double gpu_memory_bytes(const Options& o) {
    if (!o.device.empty()) return stated_device(o, true, sizeof(floatX) == 2).memory_bytes;
    static const double of_this_machine = [] {
        int devices = 0;
        cudaDeviceProp gpu;
        const bool there = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 &&
                           cudaGetDeviceProperties(&gpu, 0) == cudaSuccess;
        return there ? (double)gpu.totalGlobalMem : 0.0;
    }();
    return of_this_machine;
}

// Without -r as little is recomputed as memory demands: level 1, or level 0 where its plan leaves
// 2 GiB of a GPU to driver and libraries. Levels have the same bits; with codes of activations each
// has its own: then it is 1.
inline void settle_recompute_level(const GPT2& model, Sizes& sizes, const Options& o, double memory_bytes) {
    if (o.given.count("--recompute") || sizes.recompute != 1 || !sizes.training || sizes.compressed_activations) return;
    Sizes keeps_all = sizes;
    keeps_all.recompute = 0;
    if ((double)plan_bytes(gpu_plan_rows(model, keeps_all, o)) <= memory_bytes - 2 * DRIVER_BYTES) sizes = keeps_all;
}

// All sizes that depend on the device; before anything is allocated.
template <class floatX>
void settle_gpu(GPT2& model, Sizes& sizes, const Options& o) {
    check_supported<floatX>(sizes, o);
    if (!model.gpu) model.gpu = std::make_shared<Gpu>();
    model.format = format_of<floatX>();
    sizes.gpu = true, sizes.floatX_bytes = sizeof(floatX);
    sizes.fp16 = is_fp16<floatX>();
    model.optimizer = find_optimizer(o.optimizer.c_str());
    sizes.whole_tensors = OPTIMIZERS[model.optimizer].whole_tensors, sizes.orthogonalizes = model.optimizer == MUON;
    sizes.blas_workspace_bytes = BLAS_WORKSPACE_BYTES, sizes.guard_bytes = GUARD_BYTES;
    // the plan of a card that --device names, made in the simulator
    if (!o.device.empty()) sizes.blas_workspace_bytes = CARD_BLAS_WORKSPACE_BYTES, sizes.guard_bytes = 0;
    model.noise_scale = o.noise_scale;
    model.codes = {weight_format(o.weights), sizes.config};
    model.gpu->decayed = decay_ranges(model.layout);
    settle_stage(model, sizes, o.zero_stage);
    settle_messages(model, o);
    if (sizes.whole_tensors)
        model.gpu->whole_tensors =
            cut_into_pieces(model.optimizer, model.layout, model.slice, model.weight_places, model.gradient_places);
    settle_offload(model, sizes, o);
    const double memory_bytes = gpu_memory_bytes<floatX>(o);
    sizes.logit_rows = classifier_chunk_rows(sizes.rows(), sizes.config.Vp * (int64_t)sizeof(floatX), memory_bytes);
    settle_teacher_on_gpu(model, sizes);
    settle_recompute_level(model, sizes, o, memory_bytes);
    model.sizes = sizes, model.micro_steps = sizes.micro_steps;
    model.activations = activation_layout(sizes);
}

// What the process takes of the host's memory, without what the driver takes. Program and tensor
// are estimates.
inline std::vector<PlanRow> gpu_host_plan_rows(const GPT2& model, const Sizes& s, const Options& o) {
    const int64_t teachers = model.teacher ? largest_tensor_elems(model.teacher->layout.config) : 0;
    const int64_t largest = std::max(largest_tensor_elems(s.config), teachers);
    std::vector<PlanRow> rows = {{"host", "tokens, pinned", "of all micro-steps", host_tokens_bytes(s)},
                                 {"host", "results, pinned", "", (int64_t)sizeof(DeviceResults)},
                                 {"host", "weights on load", "one tensor", largest * (4 + s.floatX_bytes)},
                                 {"host", "code, stacks", "", 12 << 20}};
    plan_offload_on_host(rows, model, s);
    const int64_t before = weights_before_bytes(model, o);
    if (before > 0) rows.push_back({"host", "weights before", "of logged steps", before});
    return rows;
}
// The first GPU of this machine, if there is one.
template <class floatX>
PlanDevice this_gpu(const GPT2&, const Options& o) {
    int driver = 0, devices = 0;
    cudaDeviceProp gpu;
    const bool there = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0 &&
                       cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 &&
                       cudaGetDeviceProperties(&gpu, 0) == cudaSuccess;
    const GpuPeak* known = there ? find_gpu(gpu.name) : nullptr;
    return known ? device_of(*known, gpu.name, sizeof(floatX) == 2, o.tf32) : PlanDevice{};
}

template <class floatX>
void allocate_on_gpu(GPT2& model, const Sizes& s, const Options& o) {
    Gpu& own = *model.gpu;
    name_ranges_for_profilers();
    const cudaDeviceProp gpu = choose_gpu(comm.rank % o.gpus_per_node);
    own.gelu_fusion = o.gelu_fusion;
    gpu_comm_start();
    check_free_memory(gpu_plan_rows(model, s, o));  // NCCL has taken its own
    own.allocated_bytes = plan_bytes(gpu_plan_rows(model, s, o));
    check_cuda(cudaStreamCreateWithFlags(&own.stream, cudaStreamNonBlocking), "making a stream");
    own.phases.stream = own.stream;
    own.graphs.on = o.cuda_graph && comm.processes == 1;
    model.phases.device_enter = [&own](StepPhase phase) { own.phases.enter(phase); };
    model.phases.device_end_step = [&own] { return own.phases.end_step(); };
    auto take = [&](auto*& p, int64_t bytes) {
        check_cuda(cudaMalloc(&p, bytes), "allocating");
        check_cuda(cudaMemsetAsync(p, 0, bytes, own.stream), "clearing memory");
    };
    const auto taken = [&](int64_t bytes) {
        char* p = nullptr;
        return take(p, bytes), p;
    };
    take(model.params, (model.weight_places.elems(model.layout) + model.layout.frozen_elems) * s.floatX_bytes);
    if (model.codes) take(model.codes.memory, model.codes.bytes());
    if (model.codes) take(model.decoded_strip, decoded_elems(model, s) * s.floatX_bytes);
    if (s.training) {
        take(model.grads, grads_elems(model, s) * s.floatX_bytes);
        if (s.sums_gradients()) take(model.grad_sums, model.gradient_places.elems(model.layout) * 4);
        borrow_place(model);
        const auto take_state = [&](auto*& p, OptimizerState state) {
            const int64_t bytes = state_layout(model, state).held_bytes(model.slice);
            if (void* const there = state_on_host(model, state, bytes)) p = (std::remove_reference_t<decltype(p)>)there;
            else if (bytes > 0) take(p, bytes);
        };
        take_state(model.m, STATE_M), take_state(model.v, STATE_V), take_state(model.factors, STATE_FACTORS);
        if (has_master(model.format, o)) take_state(model.master, STATE_MASTER);
        allocate_messages(model, taken), allocate_offload(model, taken);
        if (s.whole_tensors)
            take(own.whole_tensors.memory, own.whole_tensors.bytes()), own.whole_tensors.upload(own.stream);
    }
    check_cuda(cudaMalloc(&model.acts, model.activations.total_bytes), "allocating");
    allocate_teacher(model, taken);
    for (int a = 0; a < NUM_ACTIVATIONS; a++)
        for (int64_t copy = 0; copy < activation_copies(a, s) && activation_bytes(a, s) > 0; copy++)
            guard_memory(ACTIVATIONS[a].name,
                         model.acts + model.activations.copy_offset(a, copy) + activation_bytes(a, s) - GUARD_BYTES);
    check_cuda(cudaMallocHost(&own.host_tokens, host_tokens_bytes(s)), "allocating host memory");
    check_cuda(cudaMallocHost(&own.host_results, sizeof(DeviceResults)), "allocating host memory");
    wait_for_stream(own.stream, "clearing memory");
    start_blas(gpu.name, model.acts + model.activations.offset(BLAS_WORKSPACE, 0));
    blas.tf32 = o.tf32;
    model.peak = gpu_peak_flops(gpu.name, sizeof(floatX) == 2, o.tf32);
}

inline void free_model(GPT2& model) {
    const CompressedGradients& c = model.compressed;
    for (void* p :
         {(void*)c.residual, (void*)c.sum_residual, (void*)c.sent, (void*)c.received, (void*)c.sums,
          (void*)model.outer_weights, (void*)model.outer_momentum, (void*)model.codes.memory, model.decoded_strip})
        check_cuda(cudaFree(p), "freeing memory");
    for (void* p : {model.params, model.grads, (void*)model.grad_sums, (void*)model.factors,
                    (void*)model.gpu->whole_tensors.memory, (void*)model.acts})
        check_cuda(cudaFree(p), "freeing memory");
    free_teacher(model);
    free_offload(model);
    check_cuda(cudaFreeHost(model.gpu->host_tokens), "freeing memory");
    check_cuda(cudaFreeHost(model.gpu->host_results), "freeing memory");
    model.gpu->phases.free();
    model.gpu->graphs.free();
    check_cuda(cudaStreamDestroy(model.gpu->stream), "freeing a stream");
}

inline void copy_from_gpu(GPT2& model, void* to, const void* from, int64_t bytes) {
    gpu_comm_join(model.gpu->stream);  // weights may still be arriving
    if (lies_on_host(model, from)) memcpy(to, from, bytes);
    else copy_to_host(to, from, bytes, model.gpu->stream);
}
inline void copy_to_gpu(GPT2& model, void* to, const void* from, int64_t bytes) {
    if (lies_on_host(model, to)) memcpy(to, from, bytes);
    else copy_to_device(to, from, bytes, model.gpu->stream);
}

inline double known_peak_flops(GPT2& model, double reached) { return model.peak >= reached ? model.peak : 0; }
inline void name_streams(const GPT2& model) {
    std::vector<std::pair<const char*, cudaStream_t>> streams = {{"GPU, computing", model.gpu->stream}};
    if (gpu_comm.stream) streams.push_back({"GPU, communicating", gpu_comm.stream});
    const Offload& offload = model.gpu->offload;
    if (offload.up) streams.push_back({"host to GPU", offload.up}), streams.push_back({"GPU to host", offload.down});
    trace_streams(streams);
}
#ifdef CUSIM
constexpr const char* GPU_KERNELS = "simulated GPU";
#else
constexpr const char* GPU_KERNELS = "GPU";
#endif
template <class floatX>
const char* gpu_products() {
#ifdef CUSIM
    return "the simulator";
#else
    return sizeof(floatX) == 4 && blas.tf32 ? "cuBLASLt in TF32" : "cuBLASLt";
#endif
}
template <class floatX>
DetectedDevice detected_gpu(const GPT2&) {
    int number = 0, devices = 0;
    cudaDeviceProp gpu;
    check_cuda(cudaGetDevice(&number), "asking for the GPU");
    check_cuda(cudaGetDeviceCount(&devices), "asking for the GPUs");
    check_cuda(cudaGetDeviceProperties(&gpu, number), "asking for the GPU's properties");
    const char* attention = sizeof(floatX) == 4 ? "flash attention on CUDA cores" : "flash attention on tensor cores";
    return {format("%s (compute capability %d.%d), GPU %d of %d, %s: %s, products by %s, %s", gpu.name, gpu.major,
                   gpu.minor, number, devices, memory_text((double)gpu.totalGlobalMem), type_name<floatX>(),
                   gpu_products<floatX>(), attention),
            ""};
}

template <class floatX>
const Backend GPU_BACKEND = {
    GPU_KERNELS,
    settle_gpu<floatX>,
    gpu_plan_rows,
    gpu_host_plan_rows,
    allocate_on_gpu<floatX>,
    copy_from_gpu,
    copy_to_gpu,
    meet_on_gpu<floatX>,
    average_on_gpu<floatX>,
    clear_pruned_on_gpu<floatX>,
    this_gpu<floatX>,
    detected_gpu<floatX>,
    known_peak_flops,
    [](const GPT2& model) { return model.gpu->allocated_bytes; },
    [](const GPT2&) { return gpu_status(); },
    [](const GPT2& model) { return model.gpu->reading; },
    name_streams,
};
