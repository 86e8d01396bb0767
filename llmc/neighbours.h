// Who else computes on the cores and on the GPU of a run. Its first ten seconds of steps are
// watched; then each thing that makes them slower is said in one sentence, once.
//
//     other programs = busy time of the run's cores - CPU time of the run's processes on that machine
#pragma once
#include <map>
#include "llmc/core_share.h"
#include "llmc/device_reading.h"
#include "llmc/plan_memory.h"
#include "llmc/run.h"

constexpr double WATCHED_SECONDS = 10;
constexpr double LEAST_TAKEN = 0.1;     // of the run's cores, by other programs
constexpr double LEAST_SWAPPED = 0.05;  // of what a process has in memory and in swap

// What one process has seen of its machine.
struct MachineUse {
    uint64_t machine = 0;            // machine_id()
    double busy_s = 0, own_s = 0;    // how long the run's cores on this machine, and this process, have computed
    int64_t cores = 0, threads = 0;  // of the run on this machine; of this process, 0 if a GPU computes
    double swapped = 0, resident = 0;
    char gpu[32] = "";         // empty: a CPU computes
    int64_t gpu_programs = 0;  // that compute on this GPU, this process among them; 0: unknown
};

// The processes of one machine.
inline void advise_on_cores(std::vector<std::string>& advice, const std::vector<MachineUse>& processes,
                            double seconds) {
    double others = processes[0].busy_s / seconds;
    int64_t threads = 0;
    bool several_threads = false;
    for (const MachineUse& use : processes) {
        others -= use.own_s / seconds, threads += use.threads;
        several_threads |= use.threads > 1;
    }
    const int64_t cores = processes[0].cores;
    if (cores == 0 || threads == 0) return;
    const double taken = std::min(others, others + (double)(threads - cores));  // cores that the run has no use for
    if (taken > LEAST_TAKEN * (double)std::min(threads, cores))
        advice.push_back(
            format("other programs take %.1f of the %lld core%s of this run, and its steps take longer: `top` shows "
                   "which; end them, or bind them to other cores (taskset)",
                   others, (long long)cores, cores == 1 ? "" : "s"));
    if (threads > cores && several_threads)
        advice.push_back(
            format("the %lld threads of this run have %lld core%s, and wait for each other: --threads %lld",
                   (long long)threads, (long long)cores, cores == 1 ? "" : "s",
                   (long long)std::max<int64_t>(1, cores / (int64_t)processes.size())));
}

inline void advise_on_swap(std::vector<std::string>& advice, const std::vector<MachineUse>& processes) {
    double swapped = 0, resident = 0;
    for (const MachineUse& use : processes) swapped += use.swapped, resident += use.resident;
    if (swapped > LEAST_SWAPPED * (swapped + resident))
        advice.push_back(
            format("%s of this run's memory is in swap, and its steps wait for the disk: end other programs, or lower "
                   "what the run needs (--plan says which flags do)",
                   memory_text(swapped).c_str()));
}

inline void advise_on_gpus(std::vector<std::string>& advice, const std::vector<MachineUse>& processes) {
    std::map<std::string, int64_t> others;  // programs on each GPU
    for (const MachineUse& use : processes) others[use.gpu] = use.gpu_programs;
    for (const MachineUse& use : processes) others[use.gpu]--;
    for (const auto& [gpu, programs] : others)
        if (!gpu.empty() && programs > 0)
            advice.push_back(
                format("%s on the GPU %s of this run, and take%s its time and memory: nvidia-smi lists them, "
                       "CUDA_VISIBLE_DEVICES chooses another GPU",
                       programs == 1 ? "another program computes"
                                     : format("%lld other programs compute", (long long)programs).c_str(),
                       gpu.c_str(), programs == 1 ? "s" : ""));
}

// The sentences about all machines, without "warning: ".
inline std::vector<std::string> advice_on_machines(const std::vector<MachineUse>& ranks, double seconds) {
    std::map<uint64_t, std::vector<MachineUse>> machines;
    std::vector<std::string> advice;
    for (const MachineUse& use : ranks) machines[use.machine].push_back(use);
    for (size_t r = 0; r < ranks.size(); r++) {
        const std::vector<MachineUse> processes = std::exchange(machines[ranks[r].machine], {});
        if (processes.empty()) continue;
        const size_t said = advice.size();
        advise_on_cores(advice, processes, seconds);
        advise_on_swap(advice, processes);
        advise_on_gpus(advice, processes);
        for (size_t i = said; i < advice.size() && processes.size() < ranks.size(); i++)
            advice[i] = format("machine of rank %zu: %s", r, advice[i].c_str());
    }
    return advice;
}

// The cores of all processes of this run on this machine. All processes call it.
inline Cores cores_of_run() {
    struct Process {
        uint64_t machine;
        Cores cores;
    };
    const Process mine{machine_id(), bound_cores()};
    Cores cores;
    for (const Process& process : comm_gather(mine, "the cores of the processes"))
        if (process.machine == mine.machine) cores |= process.cores;
    return cores;
}

// Before each step.
template <class Model>
inline void watch_neighbours(Run<Model>& run) {
    Watch& watch = run.watch;
    if (watch.over) return;
    if (watch.begin == 0) {
        watch.cores = cores_of_run();
        watch.begin = now_seconds(), watch.busy_s = busy_seconds(watch.cores), watch.own_s = own_cpu_seconds();
        return;
    }
    const double seconds = now_seconds() - watch.begin;
    watch.over = comm_any(seconds >= WATCHED_SECONDS, "the end of the watch on other programs");
    if (!watch.over) return;
    const bool on_gpu = run.model.sizes.gpu;
    const DetectedDevice found = detected(run.model);
    MachineUse mine{machine_id(), busy_seconds(watch.cores) - watch.busy_s, own_cpu_seconds() - watch.own_s};
    mine.cores = (int64_t)watch.cores.count();
    mine.threads = on_gpu ? 0 : threads_of(run.options);
    mine.swapped = swapped_bytes(), mine.resident = bytes_in_file(system_root() + "/proc/self/status", "VmRSS");
    snprintf(mine.gpu, sizeof(mine.gpu), "%s", found.gpu.c_str());
    mine.gpu_programs = found.programs;
    const std::vector<MachineUse> all = comm_gather(mine, "what the machines do");
    if (comm.rank > 0) return;
    for (const std::string& sentence : advice_on_machines(all, seconds)) warning("%s", sentence.c_str());
}
