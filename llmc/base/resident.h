// The memory of this process, as the system counts it.
#pragma once
#include <sys/resource.h>
#include <cstdint>
#include <cstdio>

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
// Makes most_resident_bytes() begin again with what is resident now. Linux alone; elsewhere nothing
// changes.
inline void forget_most_resident() {
    FILE* file = fopen("/proc/self/clear_refs", "w");
    if (!file) return;
    fputs("5", file);
    fclose(file);
}
