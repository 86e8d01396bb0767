// What Linux says about this machine, and what this process takes of it. Elsewhere, and where a
// file is missing, the answer is that nothing is known: NAN, infinity, or no cores.
#pragma once
#include <unistd.h>
#include <bitset>
#include <cstring>
#include "llmc/base/control_groups.h"
#include "llmc/base/file.h"
#ifdef __linux__
#include <sched.h>
#endif

// Tests put files of their own in place of those in /proc and /sys, in the folder that this
// variable names.
inline std::string system_root() {
    const char* root = getenv("TEST_SYSTEM_ROOT");
    return root ? root : "";
}

// ---- memory

// The bytes of a line such as "MemAvailable:   2048 kB". NAN if there is none.
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
// What programs can have before the system swaps.
inline double available_bytes(const std::string& root = system_root()) {
    const double bytes = bytes_in_file(root + "/proc/meminfo", "MemAvailable");
    return std::isnan(bytes) ? INFINITY : bytes;
}
// What the control groups of this process allow: those of a container, or of a batch job.
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
// The same in all processes on this machine: a sum over the id that Linux draws when it starts, or
// else over the machine's name.
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
