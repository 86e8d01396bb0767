// --keep-best 1: model_best.bin in the out dir, the model with the lowest validation loss of those
// in evals.jsonl. It is a model file as those of checkpoints are, written beside the last one and
// renamed. A run that goes on keeps the best of the steps before its checkpoint. Where --from-step
// discards the step that model_best.bin is of, that is kept as model_best.bin.old.
#pragma once
#include "llmc/base/json_text.h"
#include "llmc/run/run.h"
#include "llmc/run/start.h"

inline std::string best_path(const Options& o) { return o.out_dir + "/model_best.bin"; }

// Where the validation loss begins in a line of evals.jsonl; npos if the line is of something else.
inline size_t val_loss_at(const std::string& line) {
    const std::string_view name = "\"val_loss\": ";
    const size_t at = line.find("\"sample\": ") == line.npos ? line.find(name) : line.npos;
    return at == line.npos ? at : at + name.size();
}
// The validation loss that a line of evals.jsonl tells; infinity if it tells none.
inline double val_loss_of(const std::string& line) {
    const size_t at = val_loss_at(line);
    return at != line.npos && isdigit(line[at]) ? strtod(line.c_str() + at, nullptr) : INFINITY;
}

// The best model of the steps before a checkpoint, while model_best.bin is of a later step, which a
// run that goes on from that checkpoint does not have.
inline std::string earlier_best_path(const Options& o, int64_t step) {
    return format("%s/model_best_before_%08d.bin", o.out_dir, step);
}
inline void forget_earlier_bests(const Run& run) {
    const std::string& dir = run.options.out_dir;
    for (const std::string& name : list_folder(dir))
        if (name.rfind("model_best_before_", 0) == 0) remove_file(dir + "/" + name);
}

// Whether the run in a folder kept its best model, so that model_best.bin there is its own.
inline bool kept_best(const std::string& dir) {
    return first_bytes(run_json_path(dir), 1 << 20).find("\"--keep-best\": 1") != std::string::npos;
}

// The lowest validation loss among those lines of evals.jsonl that are of steps before `end`.
inline BestLoss best_before(int64_t end, const RunFile& evals, const std::vector<std::string>& lines) {
    BestLoss best;
    for (const std::string& line : lines)
        if (val_loss_at(line) != line.npos && evals.step_of(line) < end)
            best.add(val_loss_of(line), evals.step_of(line));
    return best;
}

// Copies the model of a complete checkpoint to model_best.bin. False if it is not there.
inline bool copy_to_best(const Run& run, int64_t step) {
    const Options& o = run.options;
    FileReader model(model_path(o.out_dir, step), FileReader::TELL);
    if (!model.good() || !file_exists(done_path(o.out_dir, step))) return false;
    FileWriter file(best_path(o));
    std::vector<char> piece(1 << 20);
    while (model.position < model.size_bytes) {
        const size_t bytes = std::min<int64_t>(piece.size(), model.size_bytes - model.position);
        model.read(piece.data(), bytes, "its weights");
        file.write(piece.data(), bytes);
    }
    file.commit();
    return true;
}

// Makes model_best.bin the best of the steps that the run goes on from, those before
// run.state.step. To be called before lines of evals.jsonl are dropped, and before run.json is
// written anew.
inline void rewind_best(Run& run) {
    const Options& o = run.options;
    const int64_t step = run.state.step;
    const std::string path = best_path(o), earlier = earlier_best_path(o, step);
    const bool own = kept_best(o.out_dir);
    if (own) remove_file(path + ".tmp");  // of a program that was killed while it wrote
    if (!own && !o.keep_best) return;
    const RunFile evals{o.out_dir + "/evals.jsonl", RunFiles().evals.before_step};
    const std::vector<std::string> lines = evals.lines();
    const BestLoss all = best_before(INT64_MAX, evals, lines), kept = best_before(step, evals, lines);
    const bool untrained = kept.step == 0 && !is_model_file(o.model), has_earlier = name_exists(earlier);
    const bool right = own && !has_earlier && kept.step >= 0 && kept.step == all.step && !untrained;
    if (!right && name_exists(path)) {
        const bool discarded = o.from_step >= 0 && all.step > step;
        if (discarded || !own) {
            const std::string old = set_aside(path);
            if (!own) warning("%s is of no run, or of one that was not told to keep it: it is kept as %s", path, old);
            else run.logger.line("%s is of step %d, after step %d: it is kept as %s", path, all.step, step, old);
        } else remove_file(path);
    }
    if (has_earlier) rename_file(earlier, path);
    forget_earlier_bests(run);
    if (name_exists(path) || !o.keep_best || kept.step < 0 || untrained) return;
    const bool comes_again = all.step == step && o.val_every > 0 && step % o.val_every == 0;
    if (!copy_to_best(run, kept.step) && !comes_again)
        run.logger.line(
            "the lowest validation loss of the steps kept is that of step %d, whose model is not there: a lower "
            "one makes the next model_best.bin",
            kept.step);
}

// Keeps the model if its loss, as it is recorded, is lower than that of all before it: so a resumed
// run decides as one that was not stopped. Untrained weights are not kept.
inline void keep_if_best(Run& run, int64_t step, double loss) {
    const Options& o = run.options;
    const bool saved = run.best.step < run.saved_step;  // a checkpoint has the steps of the best so far
    const bool is_best = comm.rank == 0 && run.best.add(loss, step);
    char keeps = is_best && o.keep_best && writes_out_dir(o) && (step > 0 || !run.random_weights);
    if (run.model.weight_places.sharded) keeps = comm_gather(keeps, "whether the model is the best so far")[0];
    if (!keeps) return;
    if (comm.rank > 0) return give_weights(run.model);
    FileWriter file(best_path(o));
    write_weights(file, run.model);
    file.flush();
    if (saved && name_exists(best_path(o))) rename_file(best_path(o), earlier_best_path(o, run.saved_step));
    file.publish();
    flush_folder(o.out_dir);
    run.logger.note("saved %s: the lowest validation loss so far", file.path);
}

// --patience: the run is to stop once so many validations in a row were not better than the best.
inline void stop_if_no_better(Run& run) {
    const int64_t patience = run.options.patience;
    if (patience == 0 || run.best.validations_since < patience || run.state.step >= run.max_steps) return;
    if (stop.signal != 0) return;
    stop.signal = SIGUSR1;
    run.logger.line("--patience %d: none of the last %s was better than %f, of step %d", patience,
                    count_text(patience, "validation"), run.best.loss, run.best.step);
}

// At the end of a run: a run that goes on from there validates this step again, and so needs no
// earlier best model, unless the validation was an extra one.
inline void end_best(const Run& run) {
    const Options& o = run.options;
    const bool comes_again = o.val_every > 0 && run.state.step % o.val_every == 0;
    if (comm.rank == 0 && o.keep_best && writes_out_dir(o) && comes_again) forget_earlier_bests(run);
}
