// The memory of this process.
#pragma once
#include <sys/resource.h>
#include <cstdint>

// The most bytes that were resident at once so far.
inline int64_t most_resident_bytes() {
    struct rusage usage {};
    getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
    return usage.ru_maxrss;
#else
    return usage.ru_maxrss * 1024ll;
#endif
}
