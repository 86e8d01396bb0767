// What surrounds the steps of a run: the plan, data, validation, the log, checkpoints.
#pragma once
#include "dev/modern/files.h"
#include "dev/modern/sample.h"
#include "llmc/base/clock.h"
#include "llmc/base/cores.h"
#include "llmc/base/logger.h"
#include "llmc/base/program.h"
#include "llmc/data/dataloader.h"
#include "llmc/optim/update_settings.h"

namespace modern {

struct Run {
    Settings settings;
    Model model;
    DataLoader data, val_data;
    Logger logger;
    FolderLock lock;
    Prompt prompt;          // of -g
    std::vector<int> x, y;  // (B,T)
    int64_t step = 0, micro_steps = 1, saved = -1;
    double started = now_seconds();
};

// ---- the beginning

// The switch that a flag names, which must be one of `count`; unchanged where it is not given.
inline void choose(int64_t& to, const char* flag, const std::string& text, const char* const* names, int count) {
    std::string accepted;
    for (int i = 0; i < count && !text.empty(); i++) {
        if (text == names[i]) return (void)(to = i);
        accepted += (i ? ", " : "") + std::string(names[i]);
    }
    if (!text.empty()) usage_error("%s \"%s\": %s are accepted", flag, text, accepted);
}
// The config of a new model.
inline Config new_config(const Settings& s) {
    Config c = config_of(s.model);
    choose(c.mlp, "--mlp", s.mlp, MLP_NAMES, MLPS);
    choose(c.norm, "--norm", s.norm, NORM_NAMES, NORMS);
    choose(c.positions, "--positions", s.positions, POSITION_NAMES, POSITIONS);
    if (s.qk_norm >= 0) c.qk_norm = s.qk_norm;
    if (s.tied >= 0) c.tied = s.tied;
    if (s.value_residual >= 0) c.value_residual = s.value_residual;
    if (s.softcap >= 0) c.softcap = (float)s.softcap;
    if (s.theta >= 0) c.theta = (float)s.theta;
    settle_hidden(c);
    const std::string problem = problem_of(c);
    if (!problem.empty()) usage_error("-e %s: %s", s.model, problem);
    return c;
}
inline bool has_switches(const Settings& s) {
    return !(s.mlp + s.norm + s.positions).empty() || s.qk_norm >= 0 || s.tied >= 0 || s.softcap >= 0 || s.theta >= 0 ||
           s.value_residual >= 0;
}
// Prints what each part takes, and the sum.
template <class floatX>
void print_plan(Run& run) {
    int64_t sum = settle_scratch<floatX>(run.model);
    run.logger.line("plan: %-12s %16d bytes", "scratch", sum);
    for (const PlanRow& row : plan_rows(run.model)) {
        run.logger.line("plan: %-12s %16d bytes", row.name, row.bytes);
        sum += row.bytes;
    }
    run.logger.line("plan: %-12s %16d bytes", "all", sum);
}
inline Place place_of(const Run& run) {
    const Settings& s = run.settings;
    const Model& model = run.model;
    return {run.step,        model.updates, model.weights, model.in_bf16,          model.B, model.T,
            run.micro_steps, s.seed,        s.shuffle,     run.data.ends_identity, 0,       model.optimizer};
}
// Loads the weights and, of a checkpoint, the state.
template <class floatX>
void load(Run& run, FileReader& file, bool file_in_bf16) {
    const Settings& s = run.settings;
    load_weights<floatX>(run.model, file, file_in_bf16);
    if (!s.resume) return;
    FileReader state(checkpoint_of(s.out_dir, run.step).state);
    const Place was = read_place(state), now = place_of(run);
    const auto same = [&](const char* what, int64_t then, int64_t here) {
        if (then != here)
            usage_error("-y 1: the run had %s %d, and now it is %d; what it had is accepted", what, then, here);
    };
    same("a step", was.step, now.step), same("weights in bf16", was.in_bf16, now.in_bf16), same("-b", was.B, now.B);
    same("-t", was.T, now.T), same("micro-steps", was.micro_steps, now.micro_steps), same("--seed", was.seed, now.seed);
    same("--shuffle", was.shuffle, now.shuffle), same("weights", was.weights, now.weights);
    if (was.optimizer != now.optimizer)
        usage_error("-y 1: the run had --optimizer %s, which is accepted", OPTIMIZERS[was.optimizer].name);
    if (was.data != now.data) usage_error("-y 1: the run had other data than -i %s", s.data);
    load_state(run.model, state, was, file);
}
// Settles sizes, memory, data and weights. False if the plan was all that was asked for.
template <class floatX>
bool begin_run(Run& run) {
    Settings& s = run.settings;
    run.logger.terminal = stdout_is_terminal();
    if (s.resume && (run.step = newest_checkpoint(s.out_dir)) < 0)
        usage_error("-y 1: %s has no complete checkpoint", s.out_dir);
    const std::string path = s.resume ? checkpoint_of(s.out_dir, run.step).model : s.model;
    const bool from_file = ends_with(path, ".bin");
    bool file_in_bf16 = false;
    std::unique_ptr<FileReader> file(from_file ? new FileReader(path) : nullptr);
    if (from_file && has_switches(s))
        usage_error("--mlp and the other switches are for new models; %s has its own", path);
    const Config c = from_file ? read_model_header(*file, file_in_bf16) : new_config(s);
    if (s.T == 0) s.T = c.maxT;
    if (s.T > c.maxT) usage_error("-t %d: the model's context is %d", s.T, c.maxT);
    if (s.tokens == 0) s.tokens = s.B * s.T;
    if (s.tokens % (s.B * s.T) != 0) usage_error("-d %d is no multiple of -b times -t, %d", s.tokens, s.B * s.T);
    run.micro_steps = s.tokens / (s.B * s.T);
    device.threads = s.threads > 0 ? (int)s.threads : available_threads();
    run.model = model_of(c, s.B, s.T, sizeof(floatX) == 2, find_optimizer(s.optimizer.c_str()));
    if (s.sample_tokens > 0) run.model.cache_T = s.T;
    run.logger.line("model: %s: %s parameters, %s, %d threads", describe(c), grouped_text(run.model.weights),
                    s.precision, device.threads);
    if (s.plan) return print_plan<floatX>(run), false;
    if (s.sample_tokens > 0) run.prompt = prompt_of(s, c.V);
    dataloader_open(run.data, "-i", s.data, s.T, c.V, s.seed, s.shuffle);
    if (s.val_every > 0) dataloader_open(run.val_data, "-j", s.val_data, s.T, c.V, s.seed, false);
    if (s.val_every > 0 && run.val_data.total_windows < s.B)
        usage_error("-j %s has %d windows, fewer than -b %d", s.val_data, run.val_data.total_windows, s.B);
    if (!s.out_dir.empty()) make_folder(s.out_dir);
    if (!s.out_dir.empty() && !run.lock.take(s.out_dir)) usage_error("-o %s: another run is writing to it", s.out_dir);
    if (!s.out_dir.empty() && !s.resume && newest_checkpoint(s.out_dir) >= 0)
        usage_error("-o %s has checkpoints of another run; -y 1 goes on with it, another folder is accepted",
                    s.out_dir);
    allocate<floatX>(run.model);
    if (from_file) load<floatX>(run, *file, file_in_bf16);
    else draw_weights<floatX>(run.model, s.seed);
    run.x.resize(s.B * s.T), run.y.resize(s.B * s.T), run.saved = s.resume ? run.step : -1;
    run.logger.line("memory: %d bytes allocated", run.model.allocated_bytes);
    return true;
}

// ---- data and validation

inline void load_batch(Run& run, DataLoader& from, int64_t first_window) {
    for (int64_t b = 0; b < run.model.B; b++) {
        const int64_t at = b * run.model.T;
        const std::string problem = try_load_window(from, first_window + b, &run.x[at], &run.y[at]);
        if (!problem.empty()) runtime_failure("%s", problem);
    }
}
inline void next_batch(Run& run, int64_t micro) {
    load_batch(run, run.data, (run.step * run.micro_steps + micro) * run.model.B);
}
// --window-warmup N: step s = 0, 1, ... sees T (s + 1) / N positions, rounded up to a multiple of
// 16; 0, all of them, from there on where that is T.
inline int64_t window_of_step(const Run& run) {
    const Settings& s = run.settings;
    if (run.step + 1 >= s.window_warmup) return 0;
    const int64_t window = round_up(ceil_div(s.T * (run.step + 1), s.window_warmup), (int64_t)16);
    return window < s.T ? window : 0;
}
// evaluate(x, y): the sum of the losses of a batch.
template <class Evaluate>
void validate_when_due(Run& run, bool at_end, Evaluate evaluate) {
    const Settings& s = run.settings;
    if (s.val_every == 0 || (run.step % s.val_every != 0 && !at_end)) return;
    const int64_t batches = std::min(s.val_batches, run.val_data.total_windows / s.B);
    double sum = 0;
    for (int64_t i = 0; i < batches; i++) {
        load_batch(run, run.val_data, i * s.B);
        sum += evaluate(run.x.data(), run.y.data());
    }
    run.logger.line("val loss %.6f", sum / (double)(batches * s.B * s.T));
}

// ---- after a step

inline UpdateSettings update_settings(const Run& run) {
    const Settings& s = run.settings;
    const double rate = learning_rate_at(s.schedule, run.step, s.max_steps, s.warmup, s.rate, s.final_frac);
    UpdateSettings settings{};
    const OptimizerInfo& o = OPTIMIZERS[run.model.optimizer];
    settings.constants = update_constants((float)rate, (float)o.beta1, (float)o.beta2, (float)o.eps, (float)s.decay, 1,
                                          run.model.updates + 1);
    settings.tokens = (double)s.tokens, settings.grad_clip = s.clip;
    settings.loss_limit = settings.norm_limit = INFINITY, settings.models = settings.loss_scale = 1;
    return settings;
}
inline void log_step(Run& run, const UpdateSettings& settings, const StepResult& result, double seconds) {
    const Settings& s = run.settings;
    run.logger.line("step %4d/%d | loss %.6f | norm %.4f | lr %.2e | %.2f ms | %.0f tok/s%s", run.step + 1, s.max_steps,
                    result.loss, result.norm, (double)settings.constants.learning_rate, seconds * 1e3,
                    (double)s.tokens / seconds, result.wanted ? "" : " | no update");
    if (!std::isfinite(result.loss) || !std::isfinite(result.norm))
        runtime_failure("the loss or its gradient is not finite in step %d; a smaller -l is accepted", run.step + 1);
}
inline bool run_is_over(const Run& run) {
    const Settings& s = run.settings;
    return run.step >= s.max_steps || (s.minutes > 0 && now_seconds() - run.started > 60 * s.minutes);
}
template <class floatX>
void save_when_due(Run& run, bool at_end) {
    const Settings& s = run.settings;
    const bool due = s.save_every > 0 && run.step > 0 && run.step % s.save_every == 0;
    if (s.out_dir.empty() || run.saved == run.step || !(due || at_end)) return;
    save_checkpoint<floatX>(run.model, s.out_dir, place_of(run));
    run.saved = run.step;
    run.logger.line("saved step %d to %s", run.step, s.out_dir);
}

}  // namespace modern
