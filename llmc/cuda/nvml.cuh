// Clocks, power and temperature of the GPU, from NVML, the library that comes with the driver. It
// is loaded at run time, when it is first used: neither building nor starting the program needs it.
#pragma once
#include <dlfcn.h>
#include "llmc/base/clock.h"
#include "llmc/base/text.h"
#include "llmc/cuda/common.cuh"
#include "llmc/plan/device_reading.h"

// What tells the GPU that this thread uses from the others of this machine.
inline std::string gpu_bus() {
    char bus[64] = "";
    int number = 0;
    cudaGetDevice(&number);
    cudaDeviceGetPCIBusId(bus, sizeof(bus), number);
    return bus;
}

constexpr int NVML_SUCCESS = 0, NVML_NO_FUNCTION = -1;

struct Nvml {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    void* device = nullptr;  // null if there is no NVML

    // Finds the GPU that this thread uses.
    Nvml() {
        auto init = library ? (int (*)())dlsym(library, "nvmlInit_v2") : nullptr;
        auto by_bus =
            library ? (int (*)(const char*, void**))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2") : nullptr;
        if (!init || !by_bus || init() != 0 || by_bus(gpu_bus().c_str(), &device) != 0) device = nullptr;
    }
    // Calls a function of NVML on the GPU.
    template <class... Arguments>
    int call(const char* name, Arguments... arguments) const {
        auto function = device ? (int (*)(void*, Arguments...))dlsym(library, name) : nullptr;
        return function ? function(device, arguments...) : NVML_NO_FUNCTION;
    }
    template <class... Arguments>
    bool ask(const char* name, Arguments... arguments) const {
        return call(name, arguments...) == NVML_SUCCESS;
    }
};
inline const Nvml& nvml() {
    static const Nvml loaded;
    return loaded;
}
constexpr int NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2, NVML_SENSOR_GPU = 0;

// The line of -lg.
inline std::string gpu_status() {
    size_t free_bytes = 0, total_bytes = 0;
    check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    std::string text = format("gpu: memory %.0f of %.0f MiB", (total_bytes - free_bytes) / MIB, total_bytes / MIB);
    const Nvml& gpu = nvml();
    if (!gpu.device) return text + " (no NVML: nothing on clocks, power and temperature)";
    unsigned sm_mhz = 0, memory_mhz = 0, milliwatts = 0, celsius = 0;
    struct {
        unsigned gpu, memory;
    } load{};
    if (gpu.ask("nvmlDeviceGetClockInfo", NVML_CLOCK_SM, &sm_mhz)) text += format(", clock %u MHz", sm_mhz);
    if (gpu.ask("nvmlDeviceGetClockInfo", NVML_CLOCK_MEMORY, &memory_mhz))
        text += format(", memory clock %u MHz", memory_mhz);
    if (gpu.ask("nvmlDeviceGetPowerUsage", &milliwatts)) text += format(", power %.1f W", milliwatts / 1e3);
    if (gpu.ask("nvmlDeviceGetTemperature", NVML_SENSOR_GPU, &celsius)) text += format(", %u C", celsius);
    if (gpu.ask("nvmlDeviceGetUtilizationRates", &load)) text += format(", busy %u%%", load.gpu);
    return text;
}

// What metrics.csv says of the GPU. To be called while the GPU computes and the host has nothing to
// do; it asks NVML, which may take milliseconds, at most ten times per second, and returns nothing
// in between.
inline DeviceReading gpu_reading() {
    constexpr double EVERY_S = 0.1;
    static double read_at = -INFINITY, joules_before = NAN;
    DeviceReading reading;
    const Nvml& gpu = nvml();
    if (!gpu.device || now_seconds() - read_at < EVERY_S) return reading;
    read_at = now_seconds();
    unsigned mhz = 0, milliwatts = 0, celsius = 0;
    unsigned long long millijoules = 0;
    if (gpu.ask("nvmlDeviceGetClockInfo", NVML_CLOCK_SM, &mhz)) reading.mhz = mhz;
    if (gpu.ask("nvmlDeviceGetPowerUsage", &milliwatts)) reading.watts = milliwatts / 1e3;
    if (gpu.ask("nvmlDeviceGetTemperature", NVML_SENSOR_GPU, &celsius)) reading.celsius = celsius;
    if (!gpu.ask("nvmlDeviceGetTotalEnergyConsumption", &millijoules)) return reading;
    const double joules = (double)millijoules / 1e3;
    if (!std::isnan(joules_before)) reading.joules = joules - joules_before;
    joules_before = joules;
    return reading;
}
