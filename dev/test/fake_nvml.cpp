// A stand-in for NVML, found through LD_LIBRARY_PATH: made-up readings of the simulator's GPUs. The
// energy counter is at 7 + n * n J at its reading number n, so the differences are 1, 3, 5... J.
// The function that FAKE_NVML_FAILS names fails.
#include <cstdio>
#include <cstdlib>
#include <cstring>

constexpr int SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3;
static int device_number;

static bool fails(const char* function) {
    const char* name = getenv("FAKE_NVML_FAILS");
    return name && strcmp(name, function) == 0;
}
// What a function returns once it has been asked for a value of this device.
template <class Value>
static int answer(const char* function, const void* device, Value* to, Value value) {
    if (device != &device_number) return INVALID_ARGUMENT;
    if (fails(function)) return NOT_SUPPORTED;
    return *to = value, SUCCESS;
}

extern "C" {
struct Utilization {
    unsigned gpu, memory;
};
int nvmlInit_v2() { return fails("nvmlInit_v2") ? NOT_SUPPORTED : SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
    if (sscanf(bus, "0000:%x:00.0", (unsigned*)&device_number) != 1) return INVALID_ARGUMENT;
    return *device = &device_number, SUCCESS;
}
int nvmlDeviceGetClockInfo(void* device, int clock, unsigned* mhz) {
    if (clock != 1 && clock != 2) return INVALID_ARGUMENT;  // of the SMs, of the memory
    return answer("nvmlDeviceGetClockInfo", device, mhz, clock == 1 ? 1410u : 1215u);
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
    return answer("nvmlDeviceGetPowerUsage", device, milliwatts, 212500u);
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
    if (sensor != 0) return INVALID_ARGUMENT;
    return answer("nvmlDeviceGetTemperature", device, celsius, 40u + (unsigned)device_number);
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* load) {
    return answer("nvmlDeviceGetUtilizationRates", device, load, {87, 20});
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
    static unsigned long long n = 0;
    const int status = answer("nvmlDeviceGetTotalEnergyConsumption", device, millijoules, 7000 + 1000 * n * n);
    return n++, status;
}
}
