// The best peak ever measured. Beside other work a measurement is too low, never too high, so the
// best one is kept from run to run: in the file `peaks` in the folder `build` beside the program,
// if that folder exists. It has one line for each kind of CPU, number of threads and arithmetic.
#pragma once
#include <unistd.h>
#include <cmath>
#include "llmc/cpu/features.h"
#include "llmc/cpu/peak.h"
#include "llmc/cpu/resident.h"
#include "llmc/file.h"

constexpr int64_t MAX_PEAK_FILE_BYTES = 1 << 20;  // anything longer was not written by this program

// The path of that file. Empty if there is no such folder, or if the system does not say where the
// program is.
inline std::string peak_file() {
    char program[4096];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof(program));
    const std::string folder =
        n > 0 && n < (ssize_t)sizeof(program) ? folder_of(std::string(program, n)) + "/build" : "";
    return folder_exists(folder) ? folder + "/peaks" : "";
}

// The FLOP/s kept under `key`; 0 if there are none.
inline double kept_peak(const std::string& path, const std::string& key) {
    double peak = 0;
    for (const std::string& line : read_lines(path, MAX_PEAK_FILE_BYTES))
        if (line.compare(0, key.size() + 2, key + ": ") == 0) peak = atof(line.c_str() + key.size() + 2);
    return std::isfinite(peak) && peak > 0 && peak < 1e18 ? peak : 0;
}
// Keeps `peak` under `key`. The new file is written beside the old one and then renamed, so that
// other programs never read half of it. If that is not possible, nothing is kept.
inline void keep_peak(const std::string& path, const std::string& key, double peak) {
    std::string text = format("%s: %.6g\n", key.c_str(), peak);
    for (const std::string& line : read_lines(path, MAX_PEAK_FILE_BYTES))
        if (line.compare(0, key.size() + 2, key + ": ") != 0) text += line + "\n";
    const std::string temporary = path + format(".%d.tmp", (int)getpid());
    const int fd = create_file(temporary, 0666);
    if (fd < 0) return;
    const bool whole = write(fd, text.data(), text.size()) == (ssize_t)text.size();
    if (close(fd) != 0 || !whole || rename(temporary.c_str(), path.c_str()) != 0) unlink(temporary.c_str());
}

// What a peak of `what` is kept under.
inline std::string peak_key(const char* what) {
    return format("%s, %d threads, %s, vectors of %d bytes", cpu_name().c_str(), device.threads, what, VEC_BYTES);
}

// The larger of the peak kept under `key` and the one measured now, which is kept in its place.
inline double best_peak(const std::string& path, const std::string& key, double now) {
    const double kept = path.empty() ? 0 : kept_peak(path, key);
    if (now > kept && !path.empty()) keep_peak(path, key, now);
    return std::max(kept, now);
}
// FLOP/s. 0 if none were kept and the machine is too busy for a measurement.
inline double find_peak(bool in_bf16, const std::string& path = peak_file()) {
    const std::string key = peak_key(in_bf16 ? MATRIX_UNIT_NAMES[device.unit] : "fp32");
    const Peak now = in_bf16 ? measure_peak_bf16() : measure_peak_fp32();
    const bool none_kept = path.empty() || kept_peak(path, key) == 0;
    return none_kept && !now.steady ? 0 : best_peak(path, key, now.flops_s);
}
// Bytes per second of the memory. The measurement takes 512 MiB. To be called before the memory of
// a run is touched: those bytes do not count as the most that the run has taken.
inline double find_memory_peak(const std::string& path = peak_file()) {
    const double now = measure_memory_peak();
    forget_most_resident();
    return best_peak(path, peak_key("memory"), now);
}
