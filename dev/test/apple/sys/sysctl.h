// A stand-in for macOS's header (dev/test/apple/apple.h): every Mac has the same CPU.
#pragma once
#include <cstddef>
#include <cstring>

inline int sysctlbyname(const char* name, void* value, size_t* bytes, void*, size_t) {
    const int cores = 3;
    if (strcmp(name, "hw.physicalcpu") == 0 && *bytes == sizeof(cores)) return memcpy(value, &cores, sizeof(cores)), 0;
    if (strcmp(name, "machdep.cpu.brand_string") == 0 && *bytes >= 8)
        return memcpy(value, "Apple T1", 9), *bytes = 9, 0;
    return -1;
}
