// The best peaks ever measured on a machine. Beside other work a measurement is too low, never too
// high, so the best one is kept from run to run (llmc/base/kept_values.h), in the file `peaks`: one
// line for each kind of CPU, number of threads and arithmetic.
#pragma once
#include <cmath>
#include "llmc/cpu/features.h"
#include "llmc/cpu/peak.h"
#include "llmc/base/resident.h"
#include "llmc/base/kept_values.h"

inline std::string peak_file() { return kept_file("peaks"); }

// The FLOP/s kept under `key`; 0 if there are none, or no file.
inline double kept_peak(const std::string& path, const std::string& key) {
    const double peak = atof(kept_value(path, key).c_str());
    return std::isfinite(peak) && peak > 0 && peak < 1e18 ? peak : 0;
}
inline void keep_peak(const std::string& path, const std::string& key, double peak) {
    keep_value(path, key, format("%.6g", peak));
}

// The key under which a peak of `what` is kept.
inline std::string peak_key(const char* what) {
    return format("%s, %d threads, %s, vectors of %d bytes", cpu_name(), device.threads, what, VEC_BYTES);
}

// The larger of the peak kept under `key` and the one measured now, which is kept in its place.
inline double best_peak(const std::string& path, const std::string& key, double now) {
    const double kept = kept_peak(path, key);
    if (now > kept && !path.empty()) keep_peak(path, key, now);
    return std::max(kept, now);
}
inline std::string flops_key(bool in_bf16) { return peak_key(in_bf16 ? MATRIX_UNIT_NAMES[device.unit] : "fp32"); }
inline Peak measure_flops(bool in_bf16, bool known) {
    const double patience_s = known ? ONE_ROUND : PATIENCE_SECONDS;
    return in_bf16 ? measure_peak_bf16(patience_s) : measure_peak_fp32(patience_s);
}
// The machine's peak FLOP/s; 0 if none is kept and the machine is too busy for a measurement.
inline double find_peak(bool in_bf16, const std::string& path = peak_file()) {
    const std::string key = flops_key(in_bf16);
    const bool known = kept_peak(path, key) > 0;
    const Peak now = measure_flops(in_bf16, known);
    return known || now.steady ? best_peak(path, key, now.flops_s) : 0;
}
// The peak as the best of several measurements, even if the machine is busy, and the least of them.
struct PeakRange {
    double most, least;
};
inline PeakRange find_peak_range(bool in_bf16, const std::string& path = peak_file()) {
    constexpr int MEASUREMENTS = 5;
    const std::string key = flops_key(in_bf16);
    PeakRange range{kept_peak(path, key), INFINITY};
    const bool known = range.most > 0;
    bool steady = known;
    for (int i = 0; i < MEASUREMENTS; i++) {
        const Peak now = measure_flops(in_bf16, known);
        steady = steady || now.steady;
        range = {std::max(range.most, now.flops_s), std::min(range.least, now.flops_s)};
    }
    return {steady ? best_peak(path, key, range.most) : range.most, range.least};
}
// The peak bytes per second of the memory. The measurement takes 512 MiB at most. To be called
// before the memory of a run is touched: those bytes do not count as the most that the run has
// taken.
inline double find_memory_peak(const std::string& path = peak_file()) {
    const std::string key = peak_key("memory");
    const double now = measure_memory_peak(kept_peak(path, key) > 0);
    forget_most_resident();
    return best_peak(path, key, now);
}
