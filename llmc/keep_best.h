// --keep-best 1: model_best.bin in the out dir, the model with the lowest validation loss of those
// in evals.jsonl. It is a model file as those of checkpoints are, written beside the last one and
// renamed.
#pragma once
#include "llmc/json_text.h"
#include "llmc/run.h"
#include "llmc/start.h"

inline std::string best_path(const Options& o) { return o.out_dir + "/model_best.bin"; }

// The validation loss that a line of evals.jsonl tells; infinity if it tells none.
inline double val_loss_of(const std::string& line) {
    const std::string name = "\"val_loss\": ";
    const size_t at = line.find(name);
    const bool tells = line.find("\"sample\": ") == line.npos && at != line.npos && isdigit(line[at + name.size()]);
    return tells ? strtod(line.c_str() + at + name.size(), nullptr) : INFINITY;
}

// Keeps the model if its loss is lower than that of all before it. The loss counts as it is
// recorded, so that a resumed run decides as one that was not stopped. Untrained weights are not
// kept.
template <class Model>
inline void keep_if_best(Run<Model>& run, int64_t step, double loss) {
    const Options& o = run.options;
    const double recorded = std::isfinite(loss) ? strtod(json_number_text(loss).c_str(), nullptr) : INFINITY;
    if (comm.rank > 0 || recorded >= run.best_loss) return;
    run.best_loss = recorded, run.best_step = step;
    if (!o.keep_best || !writes_out_dir(o) || (step == 0 && run.random_weights)) return;
    FileWriter file(best_path(o));
    write_weights(file, run.model);
    file.commit();
    run.logger.note("saved %s: the lowest validation loss so far", file.path.c_str());
}
