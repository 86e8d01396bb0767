// The control groups of this process on Linux (containers, batch jobs, services), which limit what
// all programs in them take together.
// https://docs.kernel.org/admin-guide/cgroup-v2.html
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

// The folders of the groups that /proc/self/cgroup names for a controller ("cpu", "memory"), and of
// the groups above them. A line there is "0::/a/b" in version 2, "4:cpu,cpuacct:/a/b" in version 1.
inline std::vector<std::string> control_groups(const std::string& controller,
                                               const std::string& groups = "/proc/self/cgroup",
                                               const std::string& root = "/sys/fs/cgroup") {
    std::vector<std::string> folders;
    FILE* file = fopen(groups.c_str(), "r");
    char line[4096];
    while (file && fgets(line, sizeof(line), file)) {
        const std::string text = std::string(line, std::string(line).find('\n'));
        const size_t first = text.find(':'), second = text.find(':', first + 1);
        if (second == text.npos || text[second + 1] != '/') continue;
        const std::string controllers = "," + text.substr(first + 1, second - first - 1) + ",";
        if (controllers != ",," && controllers.find("," + controller + ",") == controllers.npos) continue;
        const std::string base = root + (controllers == ",," ? "" : "/" + controller);
        for (std::string path = text.substr(second + 1); !path.empty(); path.resize(path.rfind('/')))
            folders.push_back(base + path);
        folders.push_back(base);
    }
    if (file) fclose(file);
    return folders;
}

// Reads the n numbers that a file begins with; false if it has fewer, or is not there.
inline bool read_numbers(const std::string& path, double* values, int n) {
    FILE* file = fopen(path.c_str(), "r");
    if (!file) return false;
    int got = 0;
    while (got < n && fscanf(file, "%lf", values + got) == 1) got++;
    fclose(file);
    return got == n;
}

// The least that any of the files of these names in these folders says; infinity where none has a
// number.
inline double least_limit(const std::vector<std::string>& folders, const std::vector<std::string>& names) {
    double least = INFINITY, limit;
    for (const std::string& folder : folders)
        for (const std::string& name : names)
            if (read_numbers(folder + "/" + name, &limit, 1)) least = std::min(least, limit);
    return least;
}
