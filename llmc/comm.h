// The processes of a run. This build knows one; the collective operations of several come behind this interface, and whatever asks
// for more than one process is told so here.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <string>
#include "llmc/check.h"

struct Comm {
    int64_t processes = 1, rank = 0;
};
inline Comm comm;

// What the launcher says in its environment, -1 if nothing.
inline int64_t launcher_value(std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (const char* text = getenv(name)) {
            char* end;
            long long value = strtoll(text, &end, 10);
            if (end != text && *end == '\0' && value >= 0) return value;
        }
    return -1;
}

// processes and rank as given by flags, -1 where not given. Exit 2 if that is not one process.
inline void comm_start(int64_t processes, int64_t rank) {
    if (processes < 0) processes = launcher_value({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE"});
    if (processes < 0) processes = 1;
    if (processes != 1) usage_error("--num-processes %lld (from -pn or the launcher): this build runs as one process; 1 is accepted, with more --threads to use more cores", (long long)processes);
    if (rank > 0) usage_error("--process-rank %lld is not below --num-processes %lld; 0 is accepted", (long long)rank, (long long)processes);
}
