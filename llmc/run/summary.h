// What a run prints when it has done all its steps: how much it trained and how fast, its best
// validation loss, where its files are, and the commands to go on with.
#pragma once
#include "llmc/run/out_dir.h"

// The flags with which the run's model samples as the run did.
inline std::string sampling_flags(const Options& o) {
    const Options defaults;
    std::string flags;
    for (const char* name :
         {"--tokenizer", "--precision", "--sample-tokens", "--stop", "--temperature", "--top-k", "--top-p"}) {
        const OptionRow& row = *find_option(name);
        const bool found_anyway = row.text == &Options::tokenizer && !o.given.count(name);
        const std::string value = option_text(o, row);
        if (found_anyway || value == option_text(defaults, row)) continue;
        flags += format(" %s %s", *row.short_name ? row.short_name : row.long_name, shell_word(value));
    }
    return flags;
}

// Whether the model's tokens are those of --tokenizer, without which it cannot be prompted.
inline bool can_be_prompted(const Options& o, int64_t V) {
    const int64_t tokens = o.vocabulary > 0 ? o.vocabulary : GPT2Config().V;
    return is_vocabulary_of(tokens, V) && file_exists(o.tokenizer);
}

// Nothing after -x 0, which does not train, nor after a signal for which nobody waits.
inline void summarize(Run& run) {
    const Options& o = run.options;
    if (o.max_steps == 0 || (stop.agreed && !stop.saved)) return;
    const long long step = run.state.step, steps_now = step - run.first_step;
    const double seconds = run.seconds_before + now_seconds() - run.started;
    std::string text = format("trained %s, %s tokens, in %s", count_text(step, "step"),
                              grouped_text(run.state.position_windows * run.T), duration_text(seconds));
    const int64_t windows_now = windows_before(run, step) - windows_before(run, run.first_step);
    const double tokens_s = (double)(windows_now * run.T) / run.step_seconds;
    if (steps_now > 0) text += format(" (%.0f tok/s in the steps)", tokens_s);
    if (std::isfinite(run.best.loss))
        text += format("; best validation loss %f, at step %d", run.best.loss, run.best.step);
    run.logger.note("%s", text);
    if (o.out_dir.empty() && stop.agreed) return;
    if (o.out_dir.empty()) return run.logger.note("nothing is kept: there was no -o, the folder for the model");
    const bool best = file_exists(best_path(o)), tensors = !run.files.tensors.path.empty();
    run.logger.note("in %s: model_%08d.bin%s, main.log, metrics.csv, evals.jsonl%s", o.out_dir, step,
                    best ? ", model_best.bin" : "", tensors ? ", tensors.csv" : "");
    if (can_be_prompted(o, run.model.layout.config.V))
        run.logger.note("to prompt it: %s -e %s -x 0 --prompt %s%s", o.program, shell_word(o.out_dir),
                        shell_word(o.prompt.empty() ? "To be" : o.prompt), sampling_flags(o));
    if (!stop.agreed) run.logger.note("%s", how_to_go_on(o, format(" -x %d", 2 * step)));
}
