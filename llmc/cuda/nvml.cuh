// Clocks, power and temperature of the GPU, from NVML, the library that comes with the driver. It
// is loaded at run time, when it is first used: neither building nor starting the program needs it.
#pragma once
#include <dlfcn.h>
#include "llmc/cuda/common.cuh"

inline std::string gpu_status() {
    typedef void* Device;
    static void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    static bool ready = library && [] {
        auto init = (int (*)())dlsym(library, "nvmlInit_v2");
        return init && init() == 0;
    }();
    size_t free_bytes = 0, total_bytes = 0;
    check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    std::string text =
        format("gpu: memory %.0f of %.0f MiB", (total_bytes - free_bytes) / 1048576.0, total_bytes / 1048576.0);
    auto by_bus = ready ? (int (*)(const char*, Device*))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2") : nullptr;
    char bus[64] = "";
    int number = 0;
    Device device = nullptr;
#ifndef CUSIM
    cudaGetDevice(&number);
    cudaDeviceGetPCIBusId(bus, sizeof(bus), number);
#else
    (void)number;
#endif
    if (!by_bus || by_bus(bus, &device) != 0) return text + " (no NVML: nothing on clocks, power and temperature)";
    auto ask = [&](const char* name, auto... arguments) {
        auto function = (int (*)(Device, decltype(arguments)...))dlsym(library, name);
        return function && function(device, arguments...) == 0;
    };
    unsigned sm_mhz = 0, memory_mhz = 0, milliwatts = 0, celsius = 0;
    struct {
        unsigned gpu, memory;
    } load{};
    constexpr int CLOCK_SM = 1, CLOCK_MEMORY = 2, SENSOR_GPU = 0;
    if (ask("nvmlDeviceGetClockInfo", CLOCK_SM, &sm_mhz)) text += format(", clock %u MHz", sm_mhz);
    if (ask("nvmlDeviceGetClockInfo", CLOCK_MEMORY, &memory_mhz)) text += format(", memory clock %u MHz", memory_mhz);
    if (ask("nvmlDeviceGetPowerUsage", &milliwatts)) text += format(", power %.1f W", milliwatts / 1e3);
    if (ask("nvmlDeviceGetTemperature", SENSOR_GPU, &celsius)) text += format(", %u C", celsius);
    if (ask("nvmlDeviceGetUtilizationRates", &load)) text += format(", busy %u%%", load.gpu);
    return text;
}
