// What the system says about this machine, and what it lets this process take: memory, cores, and
// the limits of control groups (containers, batch jobs, services), which hold for all programs in
// them together (https://docs.kernel.org/admin-guide/cgroup-v2.html). Linux says it in files. Where
// there is none, the answer is that nothing is known: NAN, infinity, or no cores.
#pragma once
#include <unistd.h>
#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>
#include "llmc/base/checksum.h"
#ifdef __linux__
#include <sched.h>
#endif

// The folder that stands for / in the paths of /proc and /sys: tests put files of their own there,
// and name it in this variable.
inline std::string system_root() {
    const char* root = getenv("TEST_SYSTEM_ROOT");
    return root ? root : "";
}

// ---- control groups

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

// The smallest number that a file of one of these names, in one of these folders, begins with;
// infinity if there is none.
inline double least_limit(const std::vector<std::string>& folders, const std::vector<std::string>& names) {
    double least = INFINITY, limit;
    for (const std::string& folder : folders)
        for (const std::string& name : names)
            if (read_numbers(folder + "/" + name, &limit, 1)) least = std::min(least, limit);
    return least;
}

// ---- memory

// The bytes that a file says for a field, in a line such as "MemAvailable:   2048 kB"; NAN if there
// is no such line.
inline double bytes_in_file(const std::string& path, const std::string& field) {
    FILE* file = fopen(path.c_str(), "r");
    char line[256];
    double kib = NAN;
    while (file && fgets(line, sizeof(line), file))
        if (std::string(line).compare(0, field.size() + 1, field + ":") == 0)
            sscanf(line + field.size() + 1, "%lf", &kib);
    if (file) fclose(file);
    return 1024 * kib;
}
// The memory that programs can have before the system swaps; infinity if that is not known.
inline double available_bytes(const std::string& root = system_root()) {
    const double bytes = bytes_in_file(root + "/proc/meminfo", "MemAvailable");
    return std::isnan(bytes) ? INFINITY : bytes;
}
// The memory that the control groups of this process allow; infinity if there is no limit.
inline double allowed_bytes(const std::string& root = system_root()) {
    const auto groups = control_groups("memory", root + "/proc/self/cgroup", root + "/sys/fs/cgroup");
    return least_limit(groups, {"memory.max", "memory.high", "memory.limit_in_bytes"});
}

// ---- cores

typedef std::bitset<8192> Cores;  // as many as Linux can have

// The hardware threads that this process is bound to.
inline Cores bound_cores() {
    Cores cores;
#ifdef __linux__
    const size_t bytes = CPU_ALLOC_SIZE(cores.size());
    cpu_set_t* bound = CPU_ALLOC(cores.size());
    if (bound && sched_getaffinity(0, bytes, bound) == 0)
        for (size_t i = 0; i < cores.size(); i++) cores[i] = CPU_ISSET_S(i, bytes, bound);
    CPU_FREE(bound);
#endif
    return cores;
}
// A number that all processes on this machine compute alike, and those of other machines do not: a
// checksum of the id that Linux draws when it starts, or else of the machine's name.
inline uint64_t machine_id() {
    Checksum sum;
    char id[64];
    FILE* file = fopen("/proc/sys/kernel/random/boot_id", "r");
    const bool named = file ? fgets(id, sizeof(id), file) != nullptr : gethostname(id, sizeof(id)) == 0;
    id[sizeof(id) - 1] = '\0';
    if (named) sum.add(id, strlen(id));
    if (file) fclose(file);
    return sum.value();
}
