// How many cores this process may use: the physical ones among those it is bound to (taskset,
// mpirun, SLURM), but no more than the CPU time that its control group allows (docker run --cpus,
// Kubernetes). The hardware threads of a core share its multipliers, so a second one adds no speed
// to matrix products.
#pragma once
#include <sys/stat.h>
#include <set>
#include <thread>
#include "llmc/base/check.h"
#include "llmc/base/system_state.h"
#ifdef __APPLE__
#include <sys/sysctl.h>
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
// The smallest limit of the control groups of this process, and a number of the group that has it,
// which is the same in all processes of that group.
struct CpuQuota {
    double cores = INFINITY;
    uint64_t group = 0;
};
inline CpuQuota process_quota(const std::vector<std::string>& folders = control_groups("cpu")) {
    CpuQuota least;
    for (const std::string& folder : folders) {
        struct stat st;
        const double cores = quota_cores(folder);
        if (cores < least.cores && stat(folder.c_str(), &st) == 0) least = {cores, (uint64_t)st.st_ino};
    }
    return least;
}

// The physical cores of these hardware threads. A core has the bit of its first hardware thread.
inline Cores physical_cores(const Cores& hardware_threads, const std::string& root = system_root()) {
    Cores physical;
    for (size_t i = 0; i < hardware_threads.size(); i++) {
        if (!hardware_threads[i]) continue;
        const std::string topology = format("%s/sys/devices/system/cpu/cpu%d/topology", root, i);
        double first;  // of a list such as "3,67" or "6-7"
        const bool known = read_numbers(topology + "/core_cpus_list", &first, 1) ||
                           read_numbers(topology + "/thread_siblings_list", &first, 1);
        physical[known && first >= 0 && first < (double)physical.size() ? (size_t)first : i] = true;
    }
    return physical;
}

inline int available_threads() {
    int cores = (int)physical_cores(bound_cores()).count();
#ifdef __APPLE__
    size_t bytes = sizeof(cores);
    if (sysctlbyname("hw.physicalcpu", &cores, &bytes, nullptr, 0) != 0) cores = 0;
#endif
    if (cores == 0) cores = (int)std::thread::hardware_concurrency();
    return std::max(1, (int)std::min((double)cores, std::ceil(process_quota().cores)));
}
