// What --plan prints: memory, disk, FLOPs, bytes on the wire, time and cost.
#pragma once
#include "llmc/plan/expected_loss.h"
#include "llmc/plan/plan_disk.h"
#include "llmc/plan/plan_memory.h"
#include "llmc/plan/plan_shard.h"
#include "llmc/plan/plan_time.h"
#include "llmc/run/run.h"

// What several GPUs would take for a step that computes for so long.
inline void print_scaling(const Cluster& c, double compute_s, const WireBytes& bytes, const Options& o,
                          const Sizes& s) {
    const ScalingEstimate e = estimate_scaling(c, compute_s, bytes, s, o.gpus_per_node, o.zero_stage >= 3);
    printf(
        "on GPUs of %.0f TFLOP/s used to %.0f%%, %.0f GB/s between those of a node, %.0f GB/s a GPU between nodes of "
        "%lld, %.0f us a message:\n",
        c.flops / 1e12, 100 * c.utilisation, c.node_bytes_s / 1e9, c.network_bytes_s / 1e9, (long long)o.gpus_per_node,
        1e6 * c.message_s);
    printf(
        "a step computes for %s and communicates for %s, of which %s hide behind the %s: efficiency "
        "%.1f%%\n",
        time_text(e.compute_s, "%.2f").c_str(), time_text(e.communicate_s, "%.2f").c_str(),
        time_text(e.hidden_s, "%.2f").c_str(), o.zero_stage >= 3 ? "computation" : "backward pass",
        100 * e.compute_s / e.step_s());
}

// What a process takes, and what the processes of one machine take together.
inline void print_peaks(const Options& o, const Sizes& s, int64_t bytes, const std::vector<PlanRow>& host_rows) {
    const double host = (double)plan_bytes(host_rows), together = (double)std::min(s.processes, o.gpus_per_node);
    const auto text = [&](double processes) {
        if (!s.gpu) return memory_text((double)bytes * processes);
        return memory_text((double)bytes * processes) + " of GPUs, " + memory_text(host * processes) + " of the host";
    };
    for (const PlanRow& row : host_rows)
        printf("%-14s %-16s %-18s %16lld\n", row.category.c_str(), row.name.c_str(), row.shape.c_str(),
               (long long)row.bytes);
    printf("peak of a process: %s%s\n", text(1).c_str(), s.gpu ? ", without what the driver takes" : "");
    if (together > 1) printf("of the %.0f processes of a machine: %s\n", together, text(together).c_str());
}

// The training data by the sizes of its files; of no tokens if there are none.
inline DataSize planned_data(const Options& o) {
    DataSize data;
    for (const std::string& path : source_files(o.train_data)) {
        if (!file_exists(path)) continue;
        FileReader file(path);
        const int64_t tokens = (file.size_bytes - TOKENS_HEADER_BYTES) / layout_of_shard(file).token_bytes;
        data.tokens += std::max<int64_t>(0, tokens), data.windows += std::max<int64_t>(0, tokens - 1) / o.seq_len;
    }
    return data;
}

// The loss to expect where the model and its tokens are near those of the fit.
inline void print_expected_loss(const GPT2Config& c, double tokens) {
    const double N = (double)(parameter_count(c) - c.maxT * c.C);  // without positions
    if (c.V != LOSS_FIT_VOCABULARY || N > LOSS_FIT_MOST_N || tokens < LOSS_FIT_LEAST_S || tokens > LOSS_FIT_MOST_S)
        return;
    const ExpectedLoss e = expected_loss(N, tokens);
    printf("validation loss to expect on the bytes of Shakespeare: %.2f (%.2f to %.2f), by the fit to %d runs of %s\n",
           e.loss, e.low, e.high, LOSS_FIT_RUNS, LOSS_FIT_DATE);
}

// Steps, tokens and epochs of the run. Returns the steps; -1 if they depend on data that is not
// there.
inline int64_t print_run_length(const Options& o, const GPT2Config& config) {
    const DataSize data = planned_data(o);
    const int64_t T = o.seq_len, windows = o.total_batch_size / T;
    const int64_t steps = o.max_steps > 0 || data.tokens > 0 ? steps_of(o, data) : -1;
    const double tokens = (double)windows_before(steps, o.batch_warmup, windows) * (double)T;
    if (steps < 0) printf("steps: as many as the data has; -i %s matches no file\n", o.train_data.c_str());
    else if (data.tokens == 0)
        printf("the run: %s steps, %s tokens seen; epochs unknown, -i %s matches no file\n",
               grouped_text(steps).c_str(), grouped_text((int64_t)tokens).c_str(), o.train_data.c_str());
    else
        printf("the run: %s steps, %s tokens seen, %.2f epochs of %s tokens\n", grouped_text(steps).c_str(),
               grouped_text((int64_t)tokens).c_str(), tokens / (double)data.tokens, grouped_text(data.tokens).c_str());
    if (steps > 0) print_expected_loss(config, tokens);
    return steps;
}

// Seconds of a step that computes for so long. On GPUs the communication adds to it that the
// backward pass does not hide.
inline double with_communication(double compute_s, const Options& o, const Sizes& s, const WireBytes& bytes) {
    if (!s.gpu) return compute_s;
    return estimate_scaling({}, compute_s, bytes, s, o.gpus_per_node, o.zero_stage >= 3).step_s();
}

// Time and cost on a device: the least that the roofline allows, and at the share of the peak that
// is often reached, where a step computes for usual_compute_s.
inline void print_time(const Options& o, const Sizes& s, const PlanDevice& device, const TimeBound& bound,
                       double usual_compute_s, const WireBytes& bytes) {
    const int64_t steps = print_run_length(o, s.config);
    if (device.flops_s == 0) return;
    const double share = Cluster().utilisation, P = (double)s.processes;
    const double least_s = with_communication(bound.seconds, o, s, bytes);
    const double usual_s = with_communication(usual_compute_s, o, s, bytes);
    const bool counts_bytes = device.bytes_s > 0;
    printf("on %s (%.4g TFLOP/s, %s), a bound by the roofline of each kernel, not a promise:\n", device.name.c_str(),
           device.flops_s / 1e12,
           counts_bytes ? format("%.4g GB/s", device.bytes_s / 1e9).c_str() : "bytes not counted");
    if (device.varies())
        printf("its peak varies, beside other work or with its clock: measured just now, %.4g TFLOP/s and more\n",
               device.least_flops_s / 1e12);
    printf("a step takes at least %s", time_text(least_s).c_str());
    if (counts_bytes) printf(", %s of it in kernels that wait for memory", time_text(bound.of_bytes_s).c_str());
    if (s.processes > 1 && s.gpu) printf(", %s in communication", time_text(least_s - bound.seconds).c_str());
    printf("%s; %s at %.0f%% of the peak\n", s.processes > 1 && !s.gpu ? ", without communication" : "",
           time_text(usual_s).c_str(), 100 * share);
    if (steps <= 0) return;
    const double all = full_steps((double)steps, o.batch_warmup);
    const double least_hours = all * least_s / 3600, usual_hours = all * usual_s / 3600;
    printf("the run takes at least %s; %s at %.0f%% of the peak (h:mm:ss%s)\n", hours_text(3600 * least_hours).c_str(),
           hours_text(3600 * usual_hours).c_str(), 100 * share,
           usual_hours < 48 ? "" : format("; %.1f and %.1f days", least_hours / 24, usual_hours / 24).c_str());
    if (o.price > 0)
        printf("it costs at least %.2f; %.2f at %.0f%% of the peak (%.0f x %g per hour)\n", P * o.price * least_hours,
               P * o.price * usual_hours, 100 * share, P, o.price);
}

// FLOPs of the model in a step, which the MFU counts; and those of Newton-Schulz beside them.
inline void print_flops(double model_flops, const Options& o, const Sizes& s) {
    const double newton_schulz = orthogonalize_flops(s, 1);
    printf("FLOPs a step: %.4e (%lld tokens)", model_flops, (long long)o.total_batch_size);
    if (newton_schulz > 0)
        printf(" of the model alone, as the MFU counts them; Newton-Schulz (muon) takes %.4e more", newton_schulz);
    printf("\n");
}

// Bytes that this process sends when processes meet that train apart: weights in fp32.
inline int64_t meeting_bytes(const GPT2& model) {
    return 2 * model.layout.total_elems() / comm.processes * 4 * (comm.processes - 1);
}
// Bytes that this process sends in a step to those that have the same slices (--shard-within).
inline int64_t replica_bytes(const GPT2& model) {
    const int64_t groups = comm.replicas.processes;
    int64_t bytes = 0;
    for (int64_t b = 0; b < model.layout.buckets(); b++)
        bytes += 2 * (groups - 1) * (model.layout.slice_elems(b) / groups) * model.sizes.gradient_bytes();
    return bytes;
}
// Bytes that this process sends in a step: gradients to be summed (from stage 2 on in every
// micro-step), then gradients (stage 0) or updated weights (stages 1, 2) to all; in stage 3 weights
// whenever they are needed. In between Muon shares directions and factors in slices
// (muon.h); other factors are renewed from what every process has collected for all of them
// (factors.h). Single numbers count where the trace has them: on a GPU the sums of the step
// (global_norm.cuh) and, in stage 1, those of the tensors (cuda/whole_tensors.cuh). compressed:
// whether gradients travel as codes; every: steps between meetings.
inline int64_t wire_bytes_per_step(const GPT2& model, bool compressed, int64_t every) {
    const Sizes& s = model.sizes;
    const bool in_slices = model.slice.parts > 1;
    const StateLayout factors = state_layout(model, STATE_FACTORS);
    const int64_t summed = s.gradient_bytes(), sums_a_step = model.gradient_places.sharded ? s.micro_steps : 1;
    const int64_t gathered = in_slices ? s.floatX_bytes : summed;
    const int64_t all = model.layout.total_elems(), layers = model.layout.bucket_begin[s.config.L];
    const int64_t shared = s.orthogonalizes ? layers + (in_slices ? factors.total_elems() : 0) : 0;
    const int64_t collected = factors.kept == KEEP_FACTORED ? factors.total_elems() : 0;
    const int64_t N = comm.shards.processes, squares = sizeof(SquareSums);
    const int64_t sums = s.gpu && in_slices && s.whole_tensors ? all_tensors(s.config) : 0;
    const int64_t collected_elems = model.weight_places.sharded ? fetched_elems(model) : all;
    const int64_t others = shared * 8 / N + collected * 4 + sums * squares;
    int64_t slices = (all * summed * sums_a_step + collected_elems * gathered) / N;
    const int64_t codes = compressed ? slice_code_bytes(model.compressed.kind, model.layout) : 0;
    if (compressed) slices = codes + (in_slices ? all * gathered / N : codes);
    if (model.apart) slices = 0;
    const int64_t results = s.gpu ? squares * (comm.processes - 1) : 0;
    return (slices + others) * (N - 1) + results + replica_bytes(model) +
           (model.apart ? meeting_bytes(model) / every : 0);
}

// The optimizer's state that lies elsewhere.
inline int64_t offloaded_bytes(const std::vector<PlanRow>& rows) {
    int64_t bytes = 0;
    for (const PlanRow& row : rows) bytes += row.elsewhere ? row.bytes : 0;
    return bytes;
}
// The least that a step of training takes on a device.
inline TimeBound step_bound(const Options& o, const Sizes& s, const PlanDevice& device, const GPT2& model,
                            const std::vector<PlanRow>& rows) {
    if (!s.training) return {};
    const int64_t norm_elems = model.layout.total_elems() / s.slices();
    const int64_t update_elems = model.slice.state_elems(model.layout);
    const bool fuses_gelu = s.gpu && o.gelu_fusion >= 1;
    const auto kernels =
        step_kernels(s, model.optimizer, norm_elems, update_elems, has_master(model.format, o), fuses_gelu);
    TimeBound bound = time_bound(kernels, device);
    const double update_s = time_bound({kernels.back()}, device).seconds;
    if (s.gpu) bound.from_host_s = offloaded_update_seconds({}, (double)offloaded_bytes(rows), update_s);
    bound.seconds += bound.from_host_s;
    return bound;
}

inline void print_plan(const Options& o, const Sizes& s, const GPT2& model) {
    const GPT2Config& c = s.config;
    const bool in_16_bits = model.format != FORMAT_FP32;
    const PlanDevice device =
        o.device.empty() ? model.backend->this_device(model, o) : stated_device(o, s.gpu, in_16_bits);
    printf("model: L %lld, C %lld, NH %lld, context %lld, vocabulary %lld (padded to %lld): %lld parameters\n",
           (long long)c.L, (long long)c.C, (long long)c.NH, (long long)c.maxT, (long long)c.V, (long long)c.Vp,
           (long long)parameter_count(c));
    if (const Pruning pruning = pruning_of(o, c)) printf("%s\n", pruning_text(pruning, c).c_str());
    const std::vector<PlanRow> rows = model.backend->plan_rows(model, s, o);
    print_plan_rows(stdout, rows);
    if (s.training) print_recompute_levels(o, s, plan_bytes(rows));
    print_peaks(o, s, plan_bytes(rows), model.backend->host_plan_rows(model, s, o));
    print_fit(model, o, s, plan_bytes(rows), device);
    if (s.training)
        print_disk_plan(o, planned_checkpoint_bytes(s, model.optimizer, model.layout, rows), average_file_bytes(o, s));
    const double model_flops = flops_per_token(s) * (double)o.total_batch_size;
    const bool compressed = model.compressed.kind != NOT_COMPRESSED;
    const WireBytes bytes{wire_bytes_per_step(model, compressed, o.sync_every), replica_bytes(model)};
    print_flops(model_flops, o, s);
    printf("bytes on the wire a step: %lld sent by each of %lld processes\n", (long long)bytes.all,
           (long long)s.processes);
    if (comm.replicas.processes > 1)
        printf("of these between the %lld replicas of a slice: %lld\n", (long long)comm.replicas.processes,
               (long long)bytes.replicas);
    if (const int64_t offloaded = offloaded_bytes(rows); offloaded > 0 && s.gpu)
        printf("state from the host a step: %lld bytes, and back: %s each way at %.0f GB/s\n", (long long)offloaded,
               time_text((double)offloaded / Cluster().host_bytes_s).c_str(), Cluster().host_bytes_s / 1e9);
    if (compressed && o.compress_warmup > 0)
        printf("in the first %lld updates, which send fp32: %lld\n", (long long)o.compress_warmup,
               (long long)wire_bytes_per_step(model, false, 0));
    if (model.apart)
        printf("at a meeting, every %lld steps: %lld, a part of which counts in each\n", (long long)o.sync_every,
               (long long)meeting_bytes(model));
    Cluster cluster;
    if (device.flops_s > 0) cluster.flops = device.flops_s;
    const TimeBound bound = step_bound(o, s, device, model, rows);
    const double usual_compute_s = usual_seconds(cluster, model_flops, s, bound);
    if (s.gpu) print_scaling(cluster, usual_compute_s, bytes, o, s);
    if (s.training) print_time(o, s, device, bound, usual_compute_s, bytes);
}
