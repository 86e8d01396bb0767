// What the services of a run need of a CPU (model/model.h): threads, memory, and what it is called.
#pragma once
#include <unistd.h>
#include "llmc/base/resident.h"
#include "llmc/comm/shared_memory.h"
#include "llmc/cpu/average.h"
#include "llmc/cpu/kernels.h"
#include "llmc/cpu/meet.h"
#include "llmc/cpu/offload.h"
#include "llmc/cpu/peak_file.h"
#include "llmc/cpu/prune.h"
#include "llmc/cpu/wte_pieces.h"
#include "llmc/data/text_data.h"
#include "llmc/model/kept_codes.h"
#include "llmc/model/rank_memory.h"
#include "llmc/options/core_share.h"
#include "llmc/plan/device_reading.h"
#include "llmc/plan/plan_memory.h"

// Whether --precision asks for bf16; exit 2 if it is none that these kernels have.
inline bool computes_in_bf16(const Options& o) {
    if (o.precision == "fp16") usage_error("--precision fp16 is for GPUs; on a CPU fp32, fp32x3 and bf16 are accepted");
#ifdef KERNELS_REFERENCE
    if (!o.precision.empty() && o.precision != "fp32")
        usage_error("--precision %s: the kernels of KERNELS=reference compute in fp32; fp32 is accepted", o.precision);
#endif
    return o.precision == "bf16";
}

// Threads, and all sizes that depend on the device; before anything is allocated.
template <class floatX>
void settle_cpu(GPT2& model, Sizes& sizes, const Options& o) {
    const GPT2Config& c = sizes.config;
    device.threads = threads_of(o);
    device.splits_fp32 = o.precision == "fp32x3";
    if (sizeof(floatX) == 2 || device.splits_fp32) device.unit = best_matrix_unit();
    sizes.floatX_bytes = sizeof(floatX);
    model.format = format_of<floatX>();
    model.optimizer = find_optimizer(o.optimizer.c_str());
    sizes.whole_tensors = OPTIMIZERS[model.optimizer].whole_tensors, sizes.orthogonalizes = model.optimizer == MUON;
    sizes.logit_rows = kernels::classifier_chunk_rows(sizes.rows());
    device.scratch_elems = thread_scratch_elems<floatX>(sizes.T, c.C / c.NH);
    device.transposed_elems = sizes.training ? backward_transposed_elems<floatX>(sizes.rows(), c.C, c.Vp)
                                             : matmul_forward_split_elems<floatX>(sizes.rows(), 4 * c.C);
    if (sizes.training && sizes.orthogonalizes)
        device.transposed_elems =
            std::max(device.transposed_elems, (size_t)orthogonalize_transposed_elems<floatX>(c.C));
    model.codes = {weight_format(o.weights), c};
    settle_stage(model, sizes, o.zero_stage);
    settle_messages(model, o);
    model.noise_scale = o.noise_scale;
    settle_wte_pieces(model, sizes);
    check_offload(o, sizes.training, sizes.recompute);
    model.offloads_state = sizes.training && offloads(o, "optimizer");
    model.sizes = sizes, model.micro_steps = sizes.micro_steps;
    model.activations = activation_layout(sizes);
    if (!model.teacher) return;
    settle_teacher(model);
    const GPT2Config& teacher = model.teacher->layout.config;
    device.scratch_elems =
        std::max(device.scratch_elems, thread_scratch_elems<floatX>(sizes.T, teacher.C / teacher.NH));
    device.transposed_elems =
        std::max<size_t>(device.transposed_elems, matmul_forward_split_elems<floatX>(sizes.rows(), 4 * teacher.C));
}

// What a process takes beside the other rows of its plan: estimates, rounded up. test_runs compares
// the peak memory of runs with the sum of all rows.
constexpr int64_t PROGRAM_BYTES = 12 << 20;    // code, libraries, stacks and small buffers
constexpr int64_t MPI_BYTES = 5 << 20;         // its libraries, and buffers for small messages
constexpr int64_t TOKENIZER_BYTES = 24 << 20;  // tables that encode() builds from the tokenizer's file

// Elements of the slices that are on their way at once (comm_mpi.h).
inline int64_t received_elems(const ParameterLayout& layout) {
    int64_t most = 0;
    for (int64_t b = 0; b < layout.buckets(); b++) most = std::max(most, layout.slice_elems(b));
    return 2 * (comm.shards.processes - 1) * most;
}

// Of the activations in a file, or their codes, two copies are in use at once.
inline void plan_offloaded(std::vector<PlanRow>& rows, const ActivationLayout& layout) {
    const Activation a = offloaded_activation(layout);
    const ActivationBytes in_file = offloaded_activations(layout);
    const int64_t bytes = in_file.end - in_file.begin, in_use = 2 * layout.bytes[a];
    if (bytes <= in_use) return;
    rows.push_back({"activations", "in a file", format("of %s", ACTIVATIONS[a].name), in_use - bytes});
}

// All memory of the process, row by row.
inline std::vector<PlanRow> cpu_plan_rows(const GPT2& model, const Sizes& s, const Options& o) {
    std::vector<PlanRow> rows;
    const ParameterLayout& layout = model.layout;
    plan_weights(rows, model, s);
    if (s.training) {
        plan_buckets(rows, "gradients", s.sums_gradients() ? "sums, fp32" : "all", model.gradient_places, layout,
                     s.gradient_bytes());
        const bool master = has_master(model.format, o);
        plan_optimizer(rows, OPTIMIZERS[model.optimizer], layout, model.slice, master,
                       model.offloads_state ? "a file" : nullptr);
        if (model.offloads_state)
            rows.push_back({"scratch", "state in use", "of a bucket", most_offloaded_bytes(model, master)});
        plan_messages(rows, model);
        if (const int64_t collected = collected_elems(layout, model.optimizer))
            rows.push_back({"scratch", "rows, columns", "of a bucket", collected * 4});
        // A plan cannot know whether all will be on one machine, unless it is told how many are.
        const bool to_be_shared =
            o.shared_memory && o.given.count("--gpus-per-node") > 0 && comm.processes <= o.gpus_per_node;
        const int64_t most = std::max(comm.shards.processes, comm.replicas.processes);  // in a sum
        if (comm.processes > 1 && (o.plan ? to_be_shared : shared_memory.on))
            rows.push_back({"scratch", "shared memory", "a page", SHARED_PAGE_BYTES});
        else if (comm.processes > 1 && (tcp.active() || (o.plan && o.dist_init != "mpi")))
            rows.push_back({"scratch", "pieces received", "of two sums", 2 * most * TCP_PIECE_BYTES});
        else if (comm.processes > 1)
            rows.push_back({"scratch", "slices received", "of two sums", received_elems(layout) * 4});
    }
    plan_activations(rows, s);
    if (model.teacher) {
        plan_teacher(rows, *model.teacher);
        const int64_t largest = largest_tensor_elems(model.teacher->layout.config);
        rows.push_back({"teacher", "weights on load", "one tensor", largest * 4});
    }
    if (s.training && offloads(o, "activations")) plan_offloaded(rows, activation_layout(s));
    const bool split = device.splits_fp32;
    if (transposed_bytes() > 0)
        rows.push_back(
            {"scratch", split ? "split" : "transposed", split ? "one operand" : "one dout", transposed_bytes()});
    rows.push_back({"scratch", "threads", format("%d threads", device.threads), thread_scratch_bytes()});
    // Weights are read one tensor at a time, as fp32. A run that trains has room for that in its
    // gradients, whose memory is untouched until the first backward pass; or beside codes in its
    // activations, if they are enough.
    int64_t largest = !s.training || model.codes ? largest_tensor_elems(s.config) * 4 : 0;
    for (const PlanRow& row : rows)
        if (s.training && (row.category == "gradients" || row.category == "activations" || row.category == "scratch"))
            largest -= row.bytes;
    if (largest > 0) rows.push_back({"program", "weights on load", "one tensor", largest});
    const int64_t before = s.training ? weights_before_bytes(model, o) : 0;
    if (before > 0) rows.push_back({"program", "weights before", "of logged steps", before});
    if (encodes(o)) rows.push_back({"program", "tokenizer", "to encode text", TOKENIZER_BYTES});
    if (validates_on_text(o)) rows.push_back({"program", "tokens of -j", "at most", text_tokens_bytes(o.val_data)});
    if (comm.processes > 1 && o.dist_init == "mpi") rows.push_back({"program", "MPI", "", MPI_BYTES});
    rows.push_back({"program", "code, stacks", "", PROGRAM_BYTES});
    return rows;
}

// Whether the matrix unit multiplies, and how many products of it are one of the model's.
inline bool unit_multiplies(const GPT2& model) { return model.format == FORMAT_BF16 || device.splits_fp32; }
inline double unit_products() { return device.splits_fp32 ? 3 : 1; }

inline int64_t machine_bytes() { return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE); }
inline PlanDevice this_cpu(const GPT2& model, const Options&) {
    const PeakRange peak = find_peak_range(unit_multiplies(model));
    PlanDevice machine{"this machine", peak.most / unit_products(), find_memory_peak(), (double)machine_bytes()};
    machine.least_flops_s = peak.least / unit_products();
    return machine;
}

inline void allocate_on_cpu(GPT2& model, const Sizes& s, const Options& o) {
    if (o.shared_memory && s.training && comm.processes > 1)
        share_memory({device.threads, [](int64_t n, const auto& f) { parallel_for(n, f); }, copy_past_caches});
    const int64_t needed = plan_bytes(cpu_plan_rows(model, s, o)), present = machine_bytes();
    if (needed > present)
        runtime_failure(
            "out of memory: the run needs %.0f MiB, the machine has %.0f MiB; --plan shows what for, a smaller -e, -b "
            "or -t or a higher -r lowers it",
            needed / MIB, present / MIB);
    const int64_t weights_bytes =
        (model.weight_places.elems(model.layout) + model.layout.frozen_elems) * s.floatX_bytes;
    const int64_t gradient_bytes = s.training ? model.gradient_places.elems(model.layout) * s.gradient_bytes() : 0;
    // What lies in the places of both finds gradients, at a multiple of 64 bytes, behind weights.
    const bool together = model.weight_places.borrows_both;
    const auto map = [](size_t bytes) {  // what processes exchange, each reads in the others' memory if it can
        void* const shared = map_shared(bytes);
        return shared ? shared : map_memory(bytes);
    };
    const int64_t begin = together ? round_up(weights_bytes, 64) - weights_bytes : 0;
    model.params = (char*)map(begin + weights_bytes + (together ? gradient_bytes : 0)) + begin;
    spread_pages(model.params, weights_bytes);  // one thread reads the weights from a file
    if (model.codes) {
        model.codes.memory = (uint8_t*)map_memory(model.codes.bytes());
        model.decoded_strip = map_memory(decoded_elems(model, s) * s.floatX_bytes);
    }
    if (s.training) {
        model.grads = together ? (char*)model.params + weights_bytes : map(gradient_bytes);
        if (s.sums_gradients()) model.grad_sums = (float*)model.grads;
        borrow_place(model);
        const auto map_state = model.apart ? +map : map_memory;  // apart: meet_on_cpu() averages it
        const auto take = [&](auto*& memory, OptimizerState state) {
            const int64_t bytes = state_layout(model, state).held_bytes(model.slice);
            if (bytes == 0 || (state == STATE_MASTER && !has_master(model.format, o))) return;
            const bool in_file = model.offloads_state && state != STATE_FACTORS;
            void* const taken = in_file ? map_file(offload_folder(o), bytes, STATE_NAMES[state]) : map_state(bytes);
            memory = (std::remove_reference_t<decltype(memory)>)taken;
            if (!in_file) spread_pages(memory, bytes);
        };
        take(model.m, STATE_M), take(model.v, STATE_V), take(model.factors, STATE_FACTORS);
        take(model.master, STATE_MASTER);
        model.collected = (float*)map(collected_elems(model.layout, model.optimizer) * 4);
        allocate_messages(model, map);
    }
    model.acts = (char*)map_memory(model.activations.total_bytes);
    if (GPT2* const teacher = model.teacher.get()) {
        teacher->params = map_memory(teacher_weight_bytes(*teacher));
        teacher->acts = (char*)map_memory(teacher->activations.total_bytes);
    }
    const ActivationBytes in_file = offloaded_activations(model.activations);
    if (s.training && offloads(o, "activations") && in_file.end > in_file.begin) {
        model.offloaded_acts = model.acts + in_file.begin, model.offloaded_acts_end = model.acts + in_file.end;
        map_file(offload_folder(o), in_file.end - in_file.begin, "activations", model.offloaded_acts);
    }
    if (!s.training) {  // what a prompt needs: all but the scores of evaluation
        const ActivationLayout& acts = model.activations;
        fetch_pages(model.acts, acts.first[LOGITS]);
        fetch_pages(model.acts + acts.first[KEYS], acts.total_bytes - acts.first[KEYS]);
    }
    allocate_scratch();
}

inline void copy_on_cpu(GPT2&, void* to, const void* from, int64_t bytes) { memcpy(to, from, bytes); }

// A peak that is unknown, or below the FLOP/s that a step has reached, is measured again, up to 4
// times in a run: other programs were running while it was measured.
inline double cpu_peak_flops(GPT2& model, double reached) {
    static int measurements = 0;
    for (; model.peak < reached && measurements < 4; measurements++)
        model.peak = std::max(model.peak, find_peak(unit_multiplies(model)) / unit_products());
    return model.peak >= reached ? model.peak : 0;
}

inline DetectedDevice detected_cpu(const GPT2& model) {
#ifdef KERNELS_REFERENCE
    const std::string kernels = "in naive loops";
#else
    const bool has_unit = unit_multiplies(model) && device.unit != UNIT_PORTABLE;
    const std::string unit = has_unit ? format("%s and ", MATRIX_UNIT_NAMES[device.unit]) : "";
    const std::string kernels = "on " + unit + vector_name(VEC_BYTES);
#endif
    return {format("%s, %s: %s %s, %d thread%s", cpu_text(), memory_text((double)machine_bytes()),
                   device.splits_fp32 ? "fp32x3" : NUMBER_FORMAT_NAMES[model.format], kernels, device.threads,
                   device.threads == 1 ? "" : "s"),
            unused_vectors()};
}

inline void name_threads(const GPT2&) {
    for (int i = 0; i < device.threads; i++) trace.tracks.push_back({format("thread %d", i), {}});
    if (!comm.transport.wait || shared_memory.on) return;  // what travels does so while the program waits
    trace.communication = (int64_t)trace.tracks.size();
    trace.tracks.push_back({"communication", {}});
}

#ifdef KERNELS_REFERENCE
constexpr const char* CPU_KERNELS = "reference";
#else
constexpr const char* CPU_KERNELS = "fast";
#endif
template <class floatX>
const Backend& cpu_backend() {
    static const Backend backend = {
        CPU_KERNELS,
        settle_cpu<floatX>,
        cpu_plan_rows,
        [](const GPT2&, const Sizes&, const Options&) { return std::vector<PlanRow>(); },
        allocate_on_cpu,
        copy_on_cpu,
        copy_on_cpu,
        meet_on_cpu<floatX>,
        average_on_cpu<floatX>,
        clear_pruned_on_cpu<floatX>,
        this_cpu,
        detected_cpu,
        cpu_peak_flops,
        [](const GPT2&) { return most_resident_bytes() - resident_of_others(); },
        [](const GPT2&) { return std::string(); },
        [](const GPT2&) { return DeviceReading(); },
        name_threads,
    };
    return backend;
}
