// What a run says about its steps: the line in work, the step's line, outliers, and the sentence
// with which a run ends whose loss is not finite.
#pragma once
#include "llmc/run/step_metrics.h"
#include "llmc/optim/update_settings.h"

// The line in work: the step and its micro-step, the time that the run has taken, and an estimate
// of what is left. The pace is taken from the second step on; the first one touches its memory for
// the first time.
inline void show_time_left(Run& run, int64_t micro) {
    const int64_t step = run.state.step;
    const int64_t micro_steps = run.model.micro_steps;
    const double now = now_seconds(), at = (double)step + (double)micro / (double)micro_steps;
    if (micro == 0 && step <= run.first_step + 1) run.pace_step = step, run.pace_time = now;
    const auto work = [&](double steps) { return full_steps(steps, run.options.batch_warmup); };
    const double done = work(at) - work((double)run.pace_step), left = work((double)run.max_steps) - work(at);
    std::string text = format("working on step %d/%d", step + 1, run.max_steps);
    if (micro_steps > 1) text += format(", micro-step %d/%d", micro + 1, micro_steps);
    text += ": " + duration_text(now - run.started) + " gone";
    if (done > 0) text += ", " + duration_text((now - run.pace_time) / done * left) + " left";
    run.logger.progress(text);
}

inline std::string z_text(double z) { return std::isnan(z) ? "" : format("(%+.2fz)", z); }

// Model FLOPs utilisation: the FLOP/s of this process relative to the peak of its device.
inline std::string mfu_text(const Run& run, const Throughput& t) {
    if (t.peak == 0) return "n/a MFU";
    return format("%.1f%% %s MFU", 100 * t.flops_per_s / t.peak, NUMBER_FORMAT_NAMES[run.model.format]);
}

// A number of the step's line; a dash, which no reader takes for a number, where there is none.
inline std::string number_or_dash(const char* fmt, const std::optional<double>& value) {
    return value ? loss_text(fmt, *value) : "-";
}

// Whether the step that has just ended has a line: --log-every; also the first and the last step,
// and one with which the run ends because its loss is not finite.
inline bool has_line(const Run& run, const StepReport& r) {
    const int64_t step = run.state.step;
    const bool due = (step + 1) % run.options.log_every == 0 || step == run.first_step || step + 1 == run.max_steps;
    return due || (r.loss && !(std::isfinite(*r.loss) && std::isfinite(*r.norm)));
}
// The line of a step, on stdout and in main.log. A step without a loss has none in main.log:
// readers of that file want a number behind each key.
inline void log_line(Run& run, const StepReport& r, const Throughput& speed) {
    const long long step = run.state.step, max_steps = run.max_steps;
    run.logger.line("step %4d/%d | loss %s %s| norm %s %s| lr %.2e | %.2f ms | %s | %.0f tok/s", step + 1, max_steps,
                    number_or_dash("%7.6f", r.loss), z_text(r.loss_z), number_or_dash("%6.4f", r.norm),
                    z_text(r.norm_z), r.rate, r.seconds * 1e3, mfu_text(run, speed),
                    (double)(run.step_windows * run.T) / r.seconds);
    if (!r.loss) return;
    const std::string loss = loss_text("%.4f", *r.loss), norm = loss_text("%.2f", *r.norm);
    run.files.log.record(format("s:%d trl:%s lr:%.6f norm:%s", step, loss, r.rate, norm));
}
// What is logged of the step that has just ended.
inline void log_step(Run& run, const StepReport& r) {
    const Options& o = run.options;
    const Throughput speed = throughput(run, r.seconds);
    if (has_line(run, r)) log_line(run, r, speed);
    record_metrics(run, r, speed);
    run.step_seconds += r.seconds;
    if (o.log_gpu_every <= 0 || (run.state.step + 1) % o.log_gpu_every != 0) return;
    const std::string status = run.model.backend->status(run.model);
    if (!status.empty()) run.logger.line("%s", status);
}

inline bool gradients_overflowed(const StepResult& result) {
    return std::isfinite(result.loss) && !std::isfinite(result.norm);
}
inline bool is_finite(const StepResult& result) { return std::isfinite(result.loss) && std::isfinite(result.norm); }

// Ends the run (exit 1) if the loss or the gradient norm of its last step is not finite.
inline void stop_if_not_finite(Run& run, const StepResult& result) {
    if (is_finite(result)) return;
    const std::string path = model_path(run.options.out_dir, run.saved_step);
    const std::string last_good = run.saved_step >= 0 ? "the last good checkpoint is " + path + ", -y 1 goes on from it"
                                                      : "no checkpoint was saved";
    runtime_failure("the %s of step %d is not finite; the run stops before this update, %s (%s may help)",
                    std::isfinite(result.loss) ? "gradient norm" : "loss", run.state.step + 1, last_good,
                    gradients_overflowed(result) && run.state.loss_scale.scale > LEAST_SCALE
                        ? "a lower --loss-scale, or dynamic,"
                        : "a lower -l or a longer -u");
}

// Says that the last step did not update the weights. `next` is the loss scale of the next step.
inline void log_skipped_update(Run& run, const StepResult& result, const UpdateSettings& settings, double next) {
    const char* outlier =
        result.loss > settings.loss_limit ? "its loss is an outlier" : "its gradient norm is an outlier";
    const std::string overflow =
        format("a gradient overflowed at loss scale %g, which is %g from here on", settings.loss_scale, next);
    run.logger.line("step %d: update skipped, %s", run.state.step + 1,
                    settings.tokens == 0         ? "the loss mask counts none of its tokens"
                    : std::isfinite(result.norm) ? outlier
                                                 : overflow.c_str());
}
