// A stand-in for macOS's header (dev/test/apple/apple.h).
#pragma once
#include <unistd.h>
#include <cstdint>

inline int _NSGetExecutablePath(char* path, uint32_t* bytes) {
    const ssize_t n = readlink("/proc/self/exe", path, *bytes - 1);
    if (n > 0) path[n] = '\0';
    return n > 0 ? 0 : -1;
}
