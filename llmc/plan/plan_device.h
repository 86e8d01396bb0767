// The device that --plan estimates times and costs for: this machine, or what --device says.
#pragma once
#include "llmc/base/text.h"
#include "llmc/options/options.h"
#include "llmc/plan/mfu.h"

// A device to plan for. 0: that is not known.
struct PlanDevice {
    std::string name;
    double flops_s = 0, bytes_s = 0, memory_bytes = 0;
    double least_flops_s = 0;  // of several measurements, the best of which is flops_s; 0: not measured

    // Whether the measurements differ by more than a tenth: then all times are rough.
    bool varies() const { return least_flops_s > 0 && least_flops_s < 0.9 * flops_s; }
};

constexpr double DRIVER_BYTES = GIB;  // of a GPU's memory, left to its driver

inline PlanDevice device_of(const GpuPeak& gpu, const std::string& name, bool bf16, bool tf32) {
    return {name, peak_flops_of(gpu, bf16, tf32), 1e9 * gpu.memory_gb_s, GIB * gpu.memory_gib};
}

// "312,2039,80": three numbers above 0, separated by commas. False if the text is anything else.
inline bool parse_peaks(const std::string& text, PlanDevice& device) {
    double values[3] = {};
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        const size_t comma = i < 2 ? text.find(',', at) : text.size();
        if (comma == text.npos || !parse_real(text.substr(at, comma - at), values[i])) return false;
        if (!(values[i] > 0 && values[i] <= 1e9)) return false;
        at = comma + 1;
    }
    device = {"a device of these peaks", 1e12 * values[0], 1e9 * values[1], GIB * values[2]};
    return true;
}

// What --device says; exit 2 if that is neither in the table nor three numbers, or a GPU for the
// CPU trainer, whose plan is none for a GPU.
inline PlanDevice stated_device(const Options& o, bool on_gpu, bool bf16) {
    PlanDevice device;
    if (parse_peaks(o.device, device)) return device;
    const GpuPeak* gpu = find_gpu(o.device.c_str());
    if (!gpu && o.device.find(',') != o.device.npos)
        usage_error(
            "--device %s: peaks are three numbers above 0, TFLOP/s, GB/s and GiB of memory; 312,2039,80 is accepted",
            o.device);
    if (!gpu) {
        std::string names;
        for (const GpuPeak& row : GPU_PEAKS) names += std::string(names.empty() ? "" : ", ") + row.name;
        usage_error(
            "--device %s is not in the table; accepted: %s; or peaks as TFLOP/s,GB/s,GiB, for example 312,2039,80",
            o.device, names);
    }
    if (!on_gpu)
        usage_error(
            "--device %s is a GPU, and this program computes on the CPU: train_gpt2cu and train_gpt2sim plan for "
            "GPUs; here peaks are accepted, as TFLOP/s,GB/s,GiB",
            o.device);
    return device_of(*gpu, gpu->name, bf16, o.tf32);
}

// Exit 2 if a flag is given that only --plan uses.
inline void check_plan_flags(const Options& o) {
    for (const char* flag : {"--device", "--price"})
        if (!o.plan && o.given.count(flag)) usage_error("%s is for --plan; it is accepted with that alone", flag);
}
