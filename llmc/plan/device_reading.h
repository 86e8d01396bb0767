// What a device tells about itself.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

// What a device is, as found when the run starts.
struct DetectedDevice {
    std::string text;    // name, size, precision, kernels: a line of the log
    std::string unused;  // a sentence on what it could do if the program was built for it, or empty
};

// What a device says while it computes a step; nothing on a CPU.
struct DeviceReading {
    std::optional<double> mhz, watts, celsius, joules;  // joules: since the reading before
};
