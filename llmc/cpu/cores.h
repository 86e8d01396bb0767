// How many cores this process may use: those it is bound to (taskset, mpirun, SLURM), but no more
// than the CPU time that its control group allows (docker run --cpus, Kubernetes).
// https://docs.kernel.org/admin-guide/cgroup-v2.html
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#ifdef __linux__
#include <sched.h>
#endif

// The limit in a control group's folder, in seconds of CPU time per second; infinity if there is
// none.
inline double quota_cores(const std::string& folder) {
    auto read_numbers = [&](const char* name, double* values, int n) {
        FILE* file = fopen((folder + "/" + name).c_str(), "r");
        if (!file) return false;
        int got = 0;
        while (got < n && fscanf(file, "%lf", values + got) == 1) got++;
        fclose(file);
        return got == n;
    };
    double v[2];  // microseconds of CPU time, and the period they are for; "max", or -1, means no limit
    const bool found = read_numbers("cpu.max", v, 2) ||
                       (read_numbers("cpu.cfs_quota_us", v, 1) && read_numbers("cpu.cfs_period_us", v + 1, 1));
    return found && v[0] > 0 && v[1] > 0 ? v[0] / v[1] : INFINITY;
}

// The smallest limit of the control groups named in /proc/self/cgroup and of the groups above them.
// A line there is "0::/a/b" in version 2, "4:cpu,cpuacct:/a/b" in version 1.
inline double process_quota_cores(const std::string& groups = "/proc/self/cgroup",
                                  const std::string& root = "/sys/fs/cgroup") {
    double least = INFINITY;
    FILE* file = fopen(groups.c_str(), "r");
    char line[4096];
    while (file && fgets(line, sizeof(line), file)) {
        const std::string text = std::string(line, std::string(line).find('\n'));
        const size_t first = text.find(':'), second = text.find(':', first + 1);
        if (second == text.npos || text[second + 1] != '/') continue;
        const std::string controllers = "," + text.substr(first + 1, second - first - 1) + ",";
        if (controllers != ",," && controllers.find(",cpu,") == controllers.npos) continue;
        const std::string base = root + (controllers == ",," ? "" : "/cpu");
        for (std::string path = text.substr(second + 1); !path.empty(); path.resize(path.rfind('/')))
            least = std::min(least, quota_cores(base + path));
        least = std::min(least, quota_cores(base));
    }
    if (file) fclose(file);
    return least;
}

inline int available_threads() {
    int cores = (int)std::thread::hardware_concurrency();
#ifdef __linux__
    cpu_set_t* bound = CPU_ALLOC(1 << 16);
    const size_t bytes = CPU_ALLOC_SIZE(1 << 16);
    if (bound && sched_getaffinity(0, bytes, bound) == 0) cores = CPU_COUNT_S(bytes, bound);
    CPU_FREE(bound);
    cores = (int)std::min((double)cores, std::ceil(process_quota_cores()));
#endif
    return std::max(cores, 1);
}
