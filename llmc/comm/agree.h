// Whether the processes of a run were started alike.
#pragma once
#include "llmc/comm/comm.h"
#include "llmc/comm/flag_sums.h"

// Exit 1 unless all ranks pass the same text; names the ranks whose text differs from rank 0's.
inline void comm_check_same(const std::string& mine, const char* what) {
    Checksum sum;
    sum.add(mine.data(), mine.size());
    const std::vector<uint64_t> all = comm_gather(sum.value(), what);
    std::string others;
    for (int64_t r = 0; r < comm.processes; r++)
        if (all[r] != all[0]) others += format("%s%d", others.empty() ? "" : ", ", r);
    if (others.empty()) return;
    if (comm.rank == 0)
        runtime_failure(
            "the %s of rank %s are not those of rank 0: all processes must be started alike, on the same files", what,
            others);
    comm_barrier("the end");  // rank 0 says so, and ends all
}

// Exit 1 unless all ranks have the same flags, texts such as "--batch-size 4"; names the first that
// differs, and the lowest rank on which it does.
inline void comm_check_flags(const std::vector<std::string>& flags) {
    const std::vector<FlagSums> all = comm_gather(sums_of(flags), "the flags");
    for (int64_t r = 0; r < comm.processes; r++) {
        if (same_flags(all[r], all[0])) continue;
        if (comm.rank == 0)
            runtime_failure("on rank 0, %s; all processes of a run must have the same flags",
                            other_flag_text(flags, all[r], format("rank %d", r).c_str()));
        comm_barrier("the end");  // rank 0 says so, and ends all
    }
}
