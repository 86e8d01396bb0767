// What tests read in the files that a run records in its out dir.
#pragma once
#include "dev/test/run_program.h"
#include "llmc/run/run_files.h"

inline std::vector<std::string> lines_of(const std::string& path, const std::string& before_step = "") {
    std::vector<std::string> lines;
    const RunFile file{path, before_step};
    for (const std::string& line : file.lines())
        if (file.step_of(line) >= 0) lines.push_back(line);
    return lines;
}
inline std::vector<std::string> metrics(const std::string& name) { return lines_of(dir(name) + "/metrics.csv"); }
inline double at(const std::string& name, int64_t step, Metric metric) {
    for (const std::string& line : metrics(name))
        if (atoll(line.c_str()) == step) return metric_of(line, metric).value_or(NAN);
    return NAN;
}
inline bool near(double a, double b, double relative) { return std::fabs(a - b) <= relative * std::fabs(b); }
