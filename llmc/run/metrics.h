// metrics.csv in the out dir: a header, then one line per step. Its columns are the rows of this
// table; what a machine or a step does not have is empty (the loss and norm of a step of whose
// tokens none counts), and a number that is not finite is nan or inf.
//
// The file is cut back like main.log when a run is resumed (run_files.h). Columns marked `measured`
// differ between two runs with the same results.
//
//     seconds     goes on from the last line that is kept: neither the time between two programs nor that of steps
//                 that are done again counts
//     mfu         model FLOPs utilisation (mfu.h), 1 = 100%; FLOPs are counted as --plan does
//     peak_bytes  resident memory on a CPU, without other processes' that this one reads; what is allocated on a GPU
//     gpu_*       NVML is read at most ten times per second
#pragma once
#include <array>
#include <optional>
#include <string>
#include "llmc/base/logger.h"

struct MetricInfo {
    const char* column;
    const char* fmt;
    bool measured;
    const char* meaning;
};

// clang-format off
//  constant             column              printf   measured? meaning
#define METRIC_TABLE(X) \
  X(METRIC_STEP,         "step",             "%.0f",  false, "counted from 0, as in main.log") \
  X(METRIC_TOKENS,       "tokens",           "%.0f",  false, "trained on so far, this step included") \
  X(METRIC_SECONDS,      "seconds",          "%.3f",  true,  "since the run began") \
  X(METRIC_LOSS,         "loss",             "%.9g",  false, "mean over the tokens of the step, before its update") \
  X(METRIC_NORM,         "grad_norm",        "%.9g",  false, "of the gradient of that mean, before clipping") \
  X(METRIC_RATE,         "learning_rate",    "%.9g",  false, "") \
  X(METRIC_STEP_MS,      "step_ms",          "%.3f",  true,  "by the host's clock") \
  X(METRIC_DATA,         "data_ms",          "%.3f",  true,  "the phases of the step (step_phases.h)") \
  X(METRIC_FORWARD,      "forward_ms",       "%.3f",  true,  "") \
  X(METRIC_BACKWARD,     "backward_ms",      "%.3f",  true,  "") \
  X(METRIC_COMM,         "communication_ms", "%.3f",  true,  "") \
  X(METRIC_UPDATE,       "update_ms",        "%.3f",  true,  "") \
  X(METRIC_VALIDATION,   "validation_ms",    "%.3f",  true,  "validation, HellaSwag, samples: before the step") \
  X(METRIC_TOKEN_RATE,   "tokens_per_s",     "%.9g",  true,  "of all processes") \
  X(METRIC_FLOPS,        "flops_per_s",      "%.9g",  true,  "of all processes") \
  X(METRIC_MFU,          "mfu",              "%.6f",  true,  "flops_per_s relative to the peak of the devices") \
  X(METRIC_PEAK,         "peak_bytes",       "%.0f",  true,  "memory of the process that takes most") \
  X(METRIC_SLOWEST,      "slowest_rank",     "%.0f",  true,  "whose phases but communication took longest,") \
  X(METRIC_SLOWER_BY,    "slower_by_ms",     "%.3f",  true,  "and how much longer than the fastest rank's") \
  X(METRIC_CLOCK,        "gpu_mhz",          "%.0f",  true,  "rank 0's GPU in the middle of the step") \
  X(METRIC_POWER,        "gpu_watts",        "%.3f",  true,  "") \
  X(METRIC_CELSIUS,      "gpu_celsius",      "%.0f",  true,  "") \
  X(METRIC_JOULES,       "gpu_joules",       "%.3f",  true,  "energy since the last line that has a value") \
  X(METRIC_NOISE,        "noise",            "%.17g", false, "--noise-scale 1 (noise_scale.h)") \
  X(METRIC_SIGNAL,       "signal",           "%.17g", false, "") \
  X(METRIC_NOISE_SCALE,  "noise_scale",      "%.9g",  false, "in tokens") \
  X(METRIC_LOSS_SCALE,   "loss_scale",       "%.9g",  false, "of the step, in fp16 (loss_scale.h)")
// clang-format on
#define CONSTANT_OF_ROW(constant, ...) constant,
#define INFO_OF_ROW(constant, ...) {__VA_ARGS__},
enum Metric { METRIC_TABLE(CONSTANT_OF_ROW) NUM_METRICS };
constexpr MetricInfo METRICS[] = {METRIC_TABLE(INFO_OF_ROW)};
#undef CONSTANT_OF_ROW
#undef INFO_OF_ROW

inline std::string metrics_header() {
    std::string header;
    for (const MetricInfo& info : METRICS) header += (header.empty() ? "" : ",") + std::string(info.column);
    return header + "\n";
}

// The values of one line; those that are not set are empty.
typedef std::array<std::optional<double>, NUM_METRICS> MetricsLine;

inline std::string metrics_text(const MetricsLine& line) {
    std::string text;
    for (int i = 0; i < NUM_METRICS; i++) {
        if (i > 0) text += ",";
        if (line[i]) text += loss_text(METRICS[i].fmt, *line[i]);
    }
    return text;
}

// A column of a line of the file; none if it is empty.
inline std::optional<double> metric_of(const std::string& line, Metric metric) {
    size_t at = 0;
    for (int i = 0; i < metric; i++) {
        const size_t comma = line.find(',', at);
        if (comma == line.npos) return std::nullopt;
        at = comma + 1;
    }
    const char* const begin = line.c_str() + at;
    char* end;
    const double value = strtod(begin, &end);
    return end > begin ? std::optional<double>(value) : std::nullopt;
}
