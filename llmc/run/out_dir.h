// What a run writes: its out dir, its checkpoints, and how it ends when a signal stops it.
#pragma once
#include "llmc/checkpoint/earlier_run.h"
#include "llmc/run/average.h"
#include "llmc/run/inputs.h"
#include "llmc/run/keep_best.h"
#include "llmc/run/metrics.h"
#include "llmc/run/tensor_log.h"

// Begins the files of a new run, or cuts those of a resumed one back to its checkpoint.
inline void open_run_files(Run& run) {
    const std::string& dir = run.options.out_dir;
    const int64_t step = run.state.step;  // 0 for a new run
    RunFiles& files = run.files;
    files.log.path = dir + "/main.log", files.metrics.path = dir + "/metrics.csv",
    files.evals.path = dir + "/evals.jsonl";
    files.metrics.header = metrics_header();
    // a run without --log-tensors leaves no lines of an earlier run in its folder
    const std::string tensors = dir + "/tensors.csv";
    if (run.options.log_tensors > 0 || file_exists(tensors)) files.tensors.path = tensors;
    files.tensors.header = tensor_log_header();
    files.tensors.rewind(step), files.log.rewind(step);
    run.best = best_before(step, files.evals, files.evals.rewind(step));
    for (const std::string& line : files.metrics.rewind(step)) {
        run.seconds_before = metric_of(line, METRIC_SECONDS).value_or(0);
        const auto noise = metric_of(line, METRIC_NOISE), signal = metric_of(line, METRIC_SIGNAL);
        if (noise && signal) run.noise_means.add({*noise, *signal});
    }
}

// For --from-step: marks the checkpoints of later steps incomplete. Their files are removed once
// this run has saved.
inline void discard_later_checkpoints(Run& run) {
    const std::string& dir = run.options.out_dir;
    size_t marked = 0;
    for (int64_t step : finished_steps(dir)) {
        if (step <= run.state.step) continue;
        if (!remove_file(done_path(dir, step)))
            runtime_failure("cannot remove %s: %s", done_path(dir, step), strerror(errno));
        marked++;
    }
    flush_folder(dir);
    if (marked > 0)
        run.logger.line(
            "%s holds later steps than %d, %d checkpoints are marked incomplete, and removed once this run "
            "has saved one",
            dir, run.state.step, marked);
}

// For --overwrite 1: makes room for a new run in a folder that holds one.
inline void replace_run(Run& run) {
    const std::string& dir = run.options.out_dir;
    const std::vector<int64_t> steps = finished_steps(dir);
    if (steps.empty()) return;
    set_run_aside(dir, kept_best(dir));
    run.logger.line(
        "%s holds an earlier run, up to step %d: starting again; it stays whole in %s until this run has "
        "saved a checkpoint, and -y 1 goes on with it until then",
        dir, steps.back(), earlier_run_path(dir));
}

// Opens the out dir. A folder that did not exist when the program started is locked here.
inline void open_out_dir(Run& run, bool resumed) {
    const std::string& dir = run.options.out_dir;
    if (dir.empty() || run.options.max_steps == 0) return;
    make_folder(dir);
    if (comm.rank == 0 && run.lock.fd < 0) {
        take_out_dir(run.lock, run.options);
        if (!finished_steps(dir).empty()) runtime_failure("another run began in %s, and ended, just now", dir);
    }
    if (comm.rank != 0) return;
    if (!resumed) replace_run(run);
    else if (run.options.from_step >= 0) discard_later_checkpoints(run);
    rewind_best(run);
    open_run_files(run);
    write_run_json(run.options);
    remember_checksums(dir, all_data_files(run));
}

// Whether the files of a run lack what the last step writes. Without an evals.jsonl, an earlier
// version wrote them.
inline bool lacks_last_lines(const Run& run) {
    const std::string& dir = run.options.out_dir;
    const long long step = run.state.step;
    const auto count = [](const RunFile& file, const std::string& begin) {
        int64_t n = 0;
        for (const std::string& line : file.lines()) n += line.rfind(begin, 0) == 0;
        return n;
    };
    const RunFile log{dir + "/main.log"}, evals{dir + "/evals.jsonl"};
    const bool validates = run.options.val_every > 0, samples = run.model.sizes.cache_T > 0;
    if (validates && count(log, format("s:%d tel:", step)) == 0) return true;
    if (validates && !run.hellaswag.empty() && count(log, format("s:%d eval:", step)) == 0) return true;
    const std::string sample = format("{\"step\": %d, \"sample\":", step);
    return samples && file_exists(evals.path) && count(evals, sample) < run.options.samples;
}

// Whether a resumed run has nothing left to do. A run that was killed after its last checkpoint
// still has to evaluate and to sample.
inline bool is_finished(Run& run) {
    if (run.options.max_steps == 0 || run.state.step < run.max_steps) return false;
    const bool lacks = comm.rank == 0 && run.state.step == run.max_steps && lacks_last_lines(run);
    return !comm_any(lacks, "whether anything is left to do");
}

// Ends the run (exit 1) if another run has taken its out dir, which can happen after somebody
// removed run.lock. If none has, the lock is taken again.
inline void expect_own_folder(Run& run) {
    if (comm.rank > 0 || run.lock.fd < 0 || run.lock.keep()) return;
    runtime_failure(
        "%s was removed, and another run has begun in %s: this one ends at step %d and leaves the folder "
        "to it; steps since the last checkpoint are not saved",
        run.lock.path, run.options.out_dir, run.state.step);
}

// Removes checkpoints that are not to be kept: those beyond -nk, and what is left of others.
inline void tidy_checkpoints(Run& run) {
    const Options& o = run.options;
    if (comm.rank > 0 || !writes_out_dir(o)) return;
    remove_unfinished(o.out_dir);
    prune_checkpoints(o.out_dir, run.state.step, o.keep_checkpoints, o.major_every, run.whole);
}

// Sets aside files of the user's own whose names the checkpoint of a step takes. The start of a run
// refuses those of steps that are sure to be saved; a signal saves any.
inline void make_way(const std::string& dir, int64_t step) {
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.step == step && !file.temporary && !is_of_a_run(dir, file))
            warning("%s is of no run, and in the way of a checkpoint: it is kept as %s", file.path,
                    set_aside(file.path));
}

// Writes a checkpoint of the current step, and removes those that -nk does not keep.
inline void save(Run& run) {
    if (run.options.out_dir.empty() || run.saved_step == run.state.step) return;
    if (run.model.apart) meet(run, run.state.step), run.model.backend->meet(run.model, MEET_STATES);
    const ParameterLayout& layout = run.model.layout;
    const int64_t model_bytes = saved_model_bytes(layout.config, run.model.sizes.file_bytes());
    StateHeader header;
    header.rank_states = kept_rank_states(run.model), header.trained = trained_identity(layout.config);
    header.set_version(run.model.optimizer, run.model.sizes.fp16);
    const int64_t state_bytes = state_file_bytes(layout, header, run.model.optimizer, run.model.master);
    const int64_t all_bytes = model_bytes + comm.shards.processes * state_bytes;
    const std::string step = format("step %d", run.state.step);
    Progress progress(run.logger, "saving " + step, model_bytes + state_bytes, "MB", 1000000);
    expect_own_folder(run);
    if (comm.rank == 0) make_way(run.options.out_dir, run.state.step);
    write_average(run);
    save_checkpoint(run.options.out_dir, run.state, run.model, &progress);
    run.saved_step = run.state.step;
    run.logger.note("saved %s to %s (%s MB, %.1f s)", step, run.options.out_dir, grouped_text(all_bytes / 1000000),
                    now_seconds() - progress.begin);
    run.whole[run.saved_step] = true;
    if (comm.rank > 0) return;
    if (run.options.keep_best) forget_earlier_bests(run);
    remove_earlier_run(run.options.out_dir);
    tidy_checkpoints(run);
}

// The command that continues a run, with more flags.
inline std::string how_to_go_on(const Options& o, const std::string& flags = "") {
    if (comm.processes > 1 && !started_by_mpi()) return "the same commands with -y 1" + flags + " go on from there";
    const std::string launcher = comm.processes > 1 ? format("mpirun -np %d ", comm.processes) : "";
    return "to go on: " + launcher + o.program + " -o " + shell_word(o.out_dir) + " -y 1" + flags;
}

// The end of a run that a signal has stopped; its exit status.
inline int end_early(Run& run) {
    const Options& o = run.options;
    if (o.max_steps != 0) save(run);
    if (now_seconds() >= stop.deadline) run.logger.line("--max-minutes %g is over", o.max_minutes);
    run.logger.line("stopped at step %d", run.state.step);
    if (o.max_steps != 0 && o.out_dir.empty()) run.logger.line("nothing is kept: there was no -o");
    else if (o.max_steps != 0) run.logger.line("saved in %s; %s", o.out_dir, how_to_go_on(o));
    return stop_status(stop.agreed);
}
