// What a run is and needs, in words: --plan, and the first lines of the log.
#pragma once
#include "llmc/plan_disk.h"
#include "llmc/run.h"

// What several GPUs would take for a step of so many FLOPs.
inline void print_scaling(double step_flops, int64_t wire_bytes, int64_t gpus_per_node, const Sizes& s) {
    const Cluster c;
    const ScalingEstimate e = estimate_scaling(c, step_flops, (double)wire_bytes, comm.processes, gpus_per_node,
                                               s.config.L + 1, s.micro_steps);
    printf(
        "on GPUs of %.0f TFLOP/s used to %.0f%%, %.0f GB/s between those of a node, %.0f GB/s a GPU between nodes of "
        "%lld, %.0f us a message:\n",
        c.flops / 1e12, 100 * c.utilisation, c.node_bytes_s / 1e9, c.network_bytes_s / 1e9, (long long)gpus_per_node,
        1e6 * c.message_s);
    printf(
        "a step computes for %.2f ms and communicates for %.2f ms, of which %.2f ms hide behind the backward pass: "
        "efficiency %.1f%%\n",
        1e3 * e.compute_s, 1e3 * e.communicate_s, 1e3 * e.hidden_s,
        100 * e.compute_s / (e.compute_s + e.communicate_s - e.hidden_s));
}

// What --plan prints.
template <class Model>
inline void print_plan(const Options& o, const Sizes& s, Model* model) {
    const GPT2Config& c = s.config;
    printf("model: L %lld, C %lld, NH %lld, context %lld, vocabulary %lld (padded to %lld): %lld parameters\n",
           (long long)c.L, (long long)c.C, (long long)c.NH, (long long)c.maxT, (long long)c.V, (long long)c.Vp,
           (long long)parameter_count(c));
    const std::vector<PlanRow> rows = plan_rows(s, o, model);
    print_plan_rows(stdout, rows);
    if (o.max_steps != 0) print_disk_plan(o, planned_checkpoint_bytes(s, model->layout, rows));
    const double step_flops = flops_per_token(c, s.T) * (double)o.total_batch_size;
    const int64_t wire_bytes = wire_bytes_per_step(*model);
    printf("FLOPs a step: %.4e (%lld tokens)\n", step_flops, (long long)o.total_batch_size);
    printf("bytes on the wire a step: %lld sent by each of %lld processes\n", (long long)wire_bytes,
           (long long)comm.processes);
    if (s.gpu) print_scaling(step_flops, wire_bytes, o.gpus_per_node, s);
}

// The lines of the log that say what the run is: the model and what computes it, the data and how
// it is divided.
template <class Model>
inline void describe_run(Run<Model>& run, const Sizes& sizes) {
    const Options& o = run.options;
    const GPT2Config& c = sizes.config;
    const std::vector<PlanRow> rows = plan_rows(sizes, o, &run.model);
    run.logger.note("model: L %lld, C %lld, NH %lld, T %lld of %lld, V %lld: %s parameters, %s, %.1f MiB planned",
                    (long long)c.L, (long long)c.C, (long long)c.NH, (long long)run.T, (long long)c.maxT,
                    (long long)c.V, grouped_text(parameter_count(c)).c_str(), arithmetic(run.model).c_str(),
                    plan_bytes(rows) / 1048576.0);
    if (o.vocabulary && !o.given.count("--tokenizer"))
        run.logger.note("vocabulary: %s tokens of %s", grouped_text(o.vocabulary).c_str(), o.tokenizer.c_str());
    if (o.max_steps == 0) return;
    const long long processes = comm.processes, shards = run.train_data.shards.size();
    const std::string tokens = grouped_text(run.train_data.total_tokens),
                      step_tokens = grouped_text(o.total_batch_size);
    run.logger.note("data: %lld shard%s, %s tokens, %lld steps of %s tokens in %lld micro-step%s%s", shards,
                    shards == 1 ? "" : "s", tokens.c_str(), (long long)run.max_steps, step_tokens.c_str(),
                    (long long)run.micro_steps, run.micro_steps == 1 ? "" : "s",
                    processes > 1 ? format(" on each of %lld processes", processes).c_str() : "");
    if (run.train_data.masked)
        run.logger.note("loss mask: %s of the tokens count", grouped_text(run.train_data.counted_tokens).c_str());
    const double epochs = (double)run.max_steps * (double)o.total_batch_size / (double)run.train_data.total_tokens;
    if (epochs > 1) run.logger.note("the data is gone through %.1f times (epochs)", epochs);
    if (o.out_dir.empty()) run.logger.note("no -o: nothing of this run is kept");
    else if (comm.rank == 0)
        warn_of_full_disk(o, planned_checkpoint_bytes(sizes, run.model.layout, rows), run.max_steps);
}
