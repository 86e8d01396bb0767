// What a run is and needs, in words: the first lines of the log.
#pragma once
#include "llmc/comm/shared_memory.h"
#include "llmc/plan/advice.h"
#include "llmc/base/system_state.h"
#include "llmc/options/learning_rate.h"
#include "llmc/plan/device_reading.h"
#include "llmc/plan/plan_disk.h"
#include "llmc/run/run.h"
#include "llmc/data/vocabulary.h"

// Warns of what makes the run slower or dearer than it need be. To be called before the host's
// memory is touched; a GPU's has been checked.
inline void advise(Run& run, const Sizes& sizes) {
    if (comm.rank > 0) return;
    const Options& o = run.options;
    AdviceInput in{sizes, (double)run.max_steps, (double)o.total_batch_size, !run.model_file};
    const Backend& backend = *run.model.backend;
    const auto host_rows = (sizes.gpu ? backend.host_plan_rows : backend.plan_rows)(run.model, sizes, o);
    in.planned_bytes = (double)plan_bytes(host_rows) * (double)std::min(comm.processes, o.gpus_per_node);
    in.free_bytes = available_bytes(), in.allowed_bytes = allowed_bytes();
    in.build = slow_build(), in.unused = backend.detected(run.model).unused;
    for (const std::string& sentence : advice_on(in)) warning("%s", sentence);
    for (const std::string& sentence : advice_on_rates(o, run.max_steps)) warning("%s", sentence);
}

// Warns of a learning rate that rises because a resumed run has more steps than it was to have. To
// be called before its run.json is written anew.
inline void advise_on_going_on(Run& run) {
    const Options& o = run.options;
    if (comm.rank > 0 || o.max_steps == 0 || !name_exists(run_json_path(o.out_dir))) return;
    Options before = options_of_folder(o.out_dir);
    before.seq_len = o.seq_len, before.total_batch_size = o.total_batch_size;
    const int64_t before_steps = steps_of(before, data_size(run));
    const std::string sentence = advice_on_rise(o, run.state.step, run.max_steps, before, before_steps);
    if (!sentence.empty()) warning("%s", sentence);
}

// A line for each of several sources: its share, and how often the run goes through it.
inline void describe_sources(Run& run) {
    const std::vector<DataSource>& sources = run.train_data.sources;
    const int64_t windows = windows_before(run, run.max_steps);
    for (size_t s = 0; s < sources.size() && sources.size() > 1; s++) {
        const double share = 100.0 * (double)sources[s].turns / (double)TURNS;
        const int64_t taken = windows_from(sources, run.train_data.turns, s, windows);
        run.logger.note("source %s: %.1f%% of the windows; of its %s, %s are taken, %.2f epochs", sources[s].pattern,
                        share, grouped_text(sources[s].windows), grouped_text(taken),
                        (double)taken / (double)sources[s].windows);
    }
}

// The lines of the log that say what the run is: what computes, the model, the data and how it is
// divided.
inline void describe_run(Run& run, const Sizes& sizes) {
    const Options& o = run.options;
    const GPT2Config& c = sizes.config;
    const std::vector<PlanRow> rows = run.model.backend->plan_rows(run.model, sizes, o);
    if (!only_generates(o))
        run.logger.note("device%s: %s", comm.processes > 1 ? " of rank 0" : "",
                        run.model.backend->detected(run.model).text);
    run.logger.note("model: L %d, C %d, NH %d, T %d of %d, V %d: %s parameters, %.1f MiB planned", c.L, c.C, c.NH,
                    run.T, c.maxT, c.V, grouped_text(parameter_count(c)), plan_bytes(rows) / MIB);
    if (o.vocabulary && !o.given.count("--tokenizer"))
        run.logger.note("vocabulary: %s tokens of %s", grouped_text(o.vocabulary), o.tokenizer);
    if (o.max_steps == 0) return;
    const long long processes = comm.processes, shards = run.train_data.shards.size();
    const std::string tokens = grouped_text(run.train_data.total_tokens),
                      step_tokens = grouped_text(o.total_batch_size);
    run.logger.note("data: %s, %s tokens, %s of %s tokens in %s%s", count_text(shards, "shard"), tokens,
                    count_text(run.max_steps, "step"), step_tokens, count_text(sizes.micro_steps, "micro-step"),
                    processes > 1
                        ? format(" on each of %d processes%s", processes, shared_memory.on ? " in shared memory" : "")
                        : "");
    describe_sources(run);
    if (const std::string text = steady_rate_text(o); !text.empty()) run.logger.note("%s", text);
    if (o.seq_warmup > 0) run.logger.note("sequence warmup: %s", sequence_warmup_text(o.seq_warmup, run.T));
    if (o.batch_warmup > 0)
        run.logger.note("batch warmup: %s tokens in step 1, %s from step %d on",
                        grouped_text(windows_of_step(run, 0) * run.T), step_tokens, o.batch_warmup);
    if (run.train_data.masked)
        run.logger.note("loss mask: %s of the tokens count", grouped_text(run.train_data.counted_tokens));
    const double tokens_seen = (double)(windows_before(run, run.max_steps) * run.T);
    const double epochs = tokens_seen / (double)run.train_data.total_tokens;
    if (epochs > 1) run.logger.note("the data is gone through %.1f times (epochs)", epochs);
    if (o.out_dir.empty()) run.logger.note("no -o: nothing of this run is kept");
    else if (comm.rank == 0)
        warn_of_full_disk(o, planned_checkpoint_bytes(sizes, run.model.optimizer, run.model.layout, rows),
                          average_file_bytes(o, sizes), run.max_steps);
}
