// --ema: the average of the weights in a run (llmc/optim/average.h): begun, validated beside the
// weights, and written as model_ema_%08d.bin, a model file, at the end.
#pragma once
#include "llmc/run/keep_best.h"

inline std::string average_path(const std::string& dir, int64_t step) {
    return format("%s/model_ema_%08d.bin", dir, step);
}

// Before the first step of this program; saved: the states that the run to resume has saved.
inline void begin_average(Run& run, bool resumed, int64_t saved) {
    if (!run.model.average || (resumed && saved >> AVERAGE & 1)) return;
    if (resumed && comm.rank == 0)
        warning("--ema %g: the run to resume has no average; it begins with the weights of step %d", run.options.ema,
                run.state.step);
    run.model.backend->average(run.model, BEGIN_AVERAGE, 1);
}

// Calls f() while the average is in the weights' place.
template <class F>
void with_average(Run& run, F f) {
    run.model.backend->average(run.model, USE_AVERAGE, 0);
    f();
    run.model.backend->average(run.model, USE_WEIGHTS, 0);
}

// Writes it at the end of a run, before the last checkpoint: so a run that is at its end has it.
inline void write_average(Run& run) {
    const Options& o = run.options;
    if (!run.model.average || o.out_dir.empty() || run.state.step < run.max_steps) return;
    with_average(run, [&] {
        if (comm.rank > 0) return give_weights(run.model);
        FileWriter file(average_path(o.out_dir, run.state.step));
        write_weights(file, run.model);
        file.flush();
        file.publish();
        flush_folder(o.out_dir);
        run.logger.note("saved %s: the average of the weights", file.path);
    });
}
