// How many cores this process may use: those it is bound to (taskset, mpirun, SLURM), but no more
// than the CPU time that its control group allows (docker run --cpus, Kubernetes).
#pragma once
#include <thread>
#include "llmc/control_groups.h"
#ifdef __linux__
#include <sched.h>
#endif

// The limit in a control group's folder, in seconds of CPU time per second; infinity if there is
// none.
inline double quota_cores(const std::string& folder) {
    double v[2];  // microseconds of CPU time, and the period they are for; "max", or -1, means no limit
    const bool found =
        read_numbers(folder + "/cpu.max", v, 2) ||
        (read_numbers(folder + "/cpu.cfs_quota_us", v, 1) && read_numbers(folder + "/cpu.cfs_period_us", v + 1, 1));
    return found && v[0] > 0 && v[1] > 0 ? v[0] / v[1] : INFINITY;
}
// The smallest limit of the control groups of this process.
inline double process_quota_cores(const std::vector<std::string>& folders = control_groups("cpu")) {
    double least = INFINITY;
    for (const std::string& folder : folders) least = std::min(least, quota_cores(folder));
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
