// What a run writes: its out dir, its checkpoints, and how it ends when a signal stops it.
#pragma once
#include "llmc/inputs.h"

// Opens the out dir. A new run begins a new main.log; a resumed one cuts main.log back to its
// checkpoint. A folder that did not exist when the program started is locked here.
template <class Model>
inline void open_out_dir(Run<Model>& run, bool resumed) {
    const std::string& dir = run.options.out_dir;
    if (dir.empty() || run.options.max_steps == 0) return;
    make_folder(dir);
    run.logger.path = dir + "/main.log";
    if (comm.rank == 0 && run.lock.fd < 0) {
        take_out_dir(run.lock, run.options);
        if (!finished_steps(dir).empty()) runtime_failure("another run began in %s, and ended, just now", dir.c_str());
    }
    if (!resumed && comm.rank == 0) {
        const std::vector<int64_t> earlier = finished_steps(dir);
        for (const CheckpointFile& file : checkpoint_files(dir))
            if (run.options.overwrite && file.kind != CheckpointFile::MODEL) run.replaced.insert(file.step);
        for (int64_t step : earlier)
            if (!remove_file(done_path(dir, step)))
                runtime_failure("cannot remove %s: %s", done_path(dir, step).c_str(), strerror(errno));
        flush_folder(dir);
        if (!earlier.empty())
            run.logger.line(
                "%s holds an earlier run: starting again, its %zu checkpoints are marked incomplete, and "
                "removed once this run has saved one",
                dir.c_str(), earlier.size());
    }
    run.logger.rewind(resumed ? run.state.step : 0);
    if (comm.rank != 0) return;
    write_run_json(run.options);
    remember_checksums(dir, all_data_files(run));
}

// Whether a resumed run has nothing left to do. A run that was killed after its last checkpoint
// still has to evaluate: main.log lacks the lines of the end.
template <class Model>
inline bool is_finished(Run<Model>& run) {
    if (run.options.max_steps == 0 || run.state.step < run.max_steps) return false;
    bool lacks = false;
    if (comm.rank == 0 && run.state.step == run.max_steps && run.options.val_every > 0) {
        Logger log;
        log.path = run.options.out_dir + "/main.log";
        bool validated = false, asked = false;
        const std::string step = format("s:%lld ", (long long)run.state.step);
        for (const std::string& line : log.recorded()) {
            validated |= line.rfind(step + "tel:", 0) == 0;
            asked |= line.rfind(step + "eval:", 0) == 0;
        }
        lacks = !validated || (!asked && !run.hellaswag.empty());
    }
    return !comm_any(lacks, "whether anything is left to do");
}

// Ends the run (exit 1) if another run has taken its out dir, which can happen after somebody
// removed run.lock. If none has, the lock is taken again.
template <class Model>
inline void expect_own_folder(Run<Model>& run) {
    if (comm.rank > 0 || run.lock.fd < 0 || run.lock.keep()) return;
    runtime_failure(
        "%s was removed, and another run has begun in %s: this one ends at step %lld and leaves the folder "
        "to it; steps since the last checkpoint are not saved",
        run.lock.path.c_str(), run.options.out_dir.c_str(), (long long)run.state.step);
}

// Writes a checkpoint of the current step, and removes those that -nk does not keep.
template <class Model>
inline void save(Run<Model>& run) {
    if (run.options.out_dir.empty() || run.saved_step == run.state.step) return;
    const ParameterLayout& layout = run.model.layout;
    const int64_t model_bytes = model_file_bytes(layout.config, run.model.sizes.floatX_bytes);
    const int64_t state_bytes = state_file_bytes(layout, optimizer_states(run.model));
    const int64_t all_bytes = model_bytes + comm.processes * state_bytes;
    const std::string step = format("step %lld", (long long)run.state.step);
    Progress progress(run.logger, "saving " + step, model_bytes + state_bytes, "MB", 1000000);
    expect_own_folder(run);
    save_checkpoint(run.options.out_dir, run.state, run.model, &progress);
    run.saved_step = run.state.step;
    run.logger.note("saved %s to %s (%s MB, %.1f s)", step.c_str(), run.options.out_dir.c_str(),
                    grouped_text(all_bytes / 1000000).c_str(), now_seconds() - progress.begin);
    run.whole[run.saved_step] = true;
    const Options& o = run.options;
    for (int64_t replaced : run.replaced)
        if (replaced != run.saved_step) remove_checkpoint(o.out_dir, replaced);
    run.replaced.clear();
    prune_checkpoints(o.out_dir, run.saved_step, o.keep_checkpoints, o.major_every, run.whole);
}

// The command that continues a run.
inline std::string how_to_go_on(const Options& o) {
    if (comm.processes > 1 && !started_by_mpi()) return "the same commands with -y 1 go on from there";
    const std::string launcher = comm.processes > 1 ? format("mpirun -np %lld ", (long long)comm.processes) : "";
    return "to go on: " + launcher + o.program + " -o " + shell_word(o.out_dir) + " -y 1";
}

// The end of a run that a signal has stopped; its exit status.
template <class Model>
inline int end_early(Run<Model>& run) {
    const Options& o = run.options;
    if (o.max_steps != 0) save(run);
    run.logger.line("stopped at step %lld", (long long)run.state.step);
    if (o.max_steps != 0 && o.out_dir.empty()) run.logger.line("nothing is kept: there was no -o");
    else if (o.max_steps != 0) run.logger.line("saved in %s; %s", o.out_dir.c_str(), how_to_go_on(o).c_str());
    comm_barrier("the end of the run");  // no process ends before all that was to be written is there
    return stop_status(stop.agreed);
}
