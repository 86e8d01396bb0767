// Fills in a line of metrics.csv (metrics.h) for the step that has just ended.
#pragma once
#include "llmc/plan/device_reading.h"
#include "llmc/run/metrics.h"
#include "llmc/plan/plan.h"
#include "llmc/run/run.h"
#include "llmc/run/start.h"
#include "llmc/trace/step_phases.h"

// What there is to say about a step. The z-scores are NAN until the windows are full (outlier.h).
struct StepReport {
    double rate, loss_z, norm_z, seconds;
    std::optional<double> loss, norm;  // none if no token counts
    double tokens;                     // that count
    FirstGradient first;               // of this process; its squares are 0 without --noise-scale 1
    double loss_scale;
};

// How fast a step was: FLOP/s of one process, and the peak of its device, 0 if that is not known.
struct Throughput {
    double flops_per_s, peak;
};
inline Throughput throughput(Run& run, double seconds) {
    const double token_flops =
        flops_per_token(run.model.layout.config, run.T / run.cuts) + run.model.sizes.teacher_flops;
    const double flops = token_flops * (double)(run.step_windows * run.T);
    const double reached = flops / seconds / (double)comm.processes;
    return {reached, run.model.backend->peak_flops(run.model, reached)};
}

// What one process tells the others about its step.
struct RankStep {
    double own_work_s, peak_bytes;
    FirstGradient first;
};

// The estimates of the noise scale. Rank 0 only.
inline void set_noise(Run& run, MetricsLine& line, const std::vector<RankStep>& ranks, const StepReport& r) {
    if (!run.options.noise_scale || !r.norm) return;
    std::vector<FirstGradient> firsts;
    for (const RankStep& rank : ranks) firsts.push_back(rank.first);
    const NoiseEstimate estimate = noise_estimate(firsts, *r.norm * *r.norm, r.tokens);
    if (!std::isfinite(estimate.noise) || !std::isfinite(estimate.signal)) return;
    run.noise_means.add(estimate);
    line[METRIC_NOISE] = estimate.noise, line[METRIC_SIGNAL] = estimate.signal;
    if (run.noise_means.scale() > 0) line[METRIC_NOISE_SCALE] = run.noise_means.scale();
}

// Records the metrics of the step. All processes call it: of several, each tells the others how
// long its own work took.
inline void record_metrics(Run& run, const StepReport& r, const Throughput& t) {
    if (!writes_out_dir(run.options)) return;
    const PhaseSeconds phases = run.model.phases.end_step();
    const double own_work_s =
        phases[PHASE_DATA] + phases[PHASE_FORWARD] + phases[PHASE_BACKWARD] + phases[PHASE_UPDATE];
    const RankStep mine{own_work_s, (double)run.model.backend->peak_bytes(run.model), r.first};
    const std::vector<RankStep> ranks = comm_gather(mine, "the times of the step");
    if (comm.rank > 0) return;
    const auto slower = [](const RankStep& a, const RankStep& b) { return a.own_work_s < b.own_work_s; };
    const auto larger = [](const RankStep& a, const RankStep& b) { return a.peak_bytes < b.peak_bytes; };
    const auto [fastest, slowest] = std::minmax_element(ranks.begin(), ranks.end(), slower);
    const double step_tokens = (double)(run.step_windows * run.T);
    MetricsLine line;
    line[METRIC_STEP] = (double)run.state.step;
    line[METRIC_TOKENS] = (double)(run.state.position_windows * run.T) + step_tokens;
    line[METRIC_SECONDS] = run.seconds_before + now_seconds() - run.started;
    line[METRIC_LOSS] = r.loss, line[METRIC_NORM] = r.norm, line[METRIC_RATE] = r.rate;
    line[METRIC_STEP_MS] = r.seconds * 1e3;
    for (int phase = 0; phase < NO_PHASE; phase++) line[METRIC_DATA + phase] = phases[phase] * 1e3;
    line[METRIC_VALIDATION] = run.evaluation_seconds * 1e3;
    line[METRIC_TOKEN_RATE] = step_tokens / r.seconds;
    line[METRIC_FLOPS] = t.flops_per_s * (double)comm.processes;
    if (t.peak > 0) line[METRIC_MFU] = t.flops_per_s / t.peak;
    line[METRIC_PEAK] = std::max_element(ranks.begin(), ranks.end(), larger)->peak_bytes;
    if (comm.processes > 1) {
        line[METRIC_SLOWEST] = (double)(slowest - ranks.begin());
        line[METRIC_SLOWER_BY] = (slowest->own_work_s - fastest->own_work_s) * 1e3;
    }
    const DeviceReading device = run.model.backend->reading(run.model);
    line[METRIC_CLOCK] = device.mhz, line[METRIC_POWER] = device.watts;
    line[METRIC_CELSIUS] = device.celsius, line[METRIC_JOULES] = device.joules;
    set_noise(run, line, ranks, r);
    if (run.model.sizes.fp16) line[METRIC_LOSS_SCALE] = r.loss_scale;
    run.files.metrics.record(metrics_text(line));
}
