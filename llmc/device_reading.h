// What a device tells about itself while it computes a step; nothing on a CPU.
#pragma once
#include <optional>

struct DeviceReading {
    std::optional<double> mhz, watts, celsius, joules;  // joules: since the reading before
};
