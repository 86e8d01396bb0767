// --keep-best 1: model_best.bin in the out dir, the model with the lowest validation loss of those
// in evals.jsonl. It is a model file as those of checkpoints are, written beside the last one and
// renamed. Where --from-step discards the step that it is of, it is kept as model_best.bin.old.
#pragma once
#include "llmc/base/json_text.h"
#include "llmc/run/run.h"
#include "llmc/run/start.h"

inline std::string best_path(const Options& o) { return o.out_dir + "/model_best.bin"; }

// The validation loss that a line of evals.jsonl tells; infinity if it tells none.
inline double val_loss_of(const std::string& line) {
    const std::string name = "\"val_loss\": ";
    const size_t at = line.find(name);
    const bool tells = line.find("\"sample\": ") == line.npos && at != line.npos && isdigit(line[at + name.size()]);
    return tells ? strtod(line.c_str() + at + name.size(), nullptr) : INFINITY;
}

// For --from-step: moves model_best.bin out of the way if it is of a step that is discarded, one
// after `step`. To be called before lines of evals.jsonl are dropped.
inline void set_best_aside(Run& run, int64_t step) {
    const std::string path = best_path(run.options), old = path + ".old";
    const RunFile evals{run.options.out_dir + "/evals.jsonl", RunFiles().evals.before_step};
    double lowest = INFINITY;
    int64_t best_step = -1;
    for (const std::string& line : evals.lines())
        if (val_loss_of(line) < lowest) lowest = val_loss_of(line), best_step = evals.step_of(line);
    if (best_step <= step || !name_exists(path)) return;
    if (rename(path.c_str(), old.c_str()) != 0) runtime_failure("cannot rename %s: %s", path, strerror(errno));
    run.logger.line(
        "%s is of step %d, after step %d: it is kept as %s; a loss below those of the steps kept makes "
        "the next",
        path, best_step, step, old);
}

// Keeps the model if its loss, as it is recorded, is lower than that of all before it: so a resumed
// run decides as one that was not stopped. Untrained weights are not kept.
inline void keep_if_best(Run& run, int64_t step, double loss) {
    const Options& o = run.options;
    if (comm.rank > 0) return;
    run.validations_since_best++;
    if (!std::isfinite(loss) || loss >= run.best_loss) return;
    run.best_loss = loss, run.best_step = step, run.validations_since_best = 0;
    if (!o.keep_best || !writes_out_dir(o) || (step == 0 && run.random_weights)) return;
    FileWriter file(best_path(o));
    write_weights(file, run.model);
    file.commit();
    run.logger.note("saved %s: the lowest validation loss so far", file.path);
}

// --patience: the run is to stop once so many validations in a row were not better than the best.
inline void stop_if_no_better(Run& run) {
    const int64_t patience = run.options.patience;
    if (patience == 0 || run.validations_since_best < patience || run.state.step >= run.max_steps) return;
    if (stop.signal != 0) return;
    stop.signal = SIGUSR1;
    run.logger.line("--patience %d: none of the last %s was better than %f, of step %d", patience,
                    count_text(patience, "validation"), run.best_loss, run.best_step);
}
