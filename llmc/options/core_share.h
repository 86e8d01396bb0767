// How many threads a process of a run computes with, unless --threads says. The processes on one
// machine share its cores: a core that k of them may use counts 1/k for each. So processes that a
// launcher has bound to cores of their own use those, and others split what they have in common.
#pragma once
#include "llmc/comm/comm.h"
#include "llmc/base/cores.h"
#include "llmc/options/option_table.h"

// What one process may use of its machine.
struct CoreClaim {
    uint64_t machine;
    CpuQuota quota;
    int64_t threads;  // available_threads()
    Cores cores;      // physical ones; none if the system does not name them
};
inline CoreClaim own_claim() {
    return {machine_id(), process_quota(), available_threads(), physical_cores(bound_cores())};
}

// The share of claims[rank].
inline int64_t share_of_cores(const std::vector<CoreClaim>& claims, size_t rank) {
    const CoreClaim& mine = claims[rank];
    std::vector<int64_t> users(mine.cores.size());
    double on_machine = 0, in_group = 0, share = 0;
    for (const CoreClaim& claim : claims) {
        if (claim.machine != mine.machine) continue;
        on_machine++, in_group += claim.quota.group == mine.quota.group;
        for (size_t i = 0; i < users.size(); i++) users[i] += claim.cores[i];
    }
    for (size_t i = 0; i < users.size(); i++)
        if (mine.cores[i]) share += 1.0 / (double)users[i];
    if (mine.cores.none()) share = (double)mine.threads / on_machine;
    share = std::min(std::floor(share + 1e-6), std::ceil(mine.quota.cores / in_group));
    return std::max<int64_t>(1, (int64_t)share);
}

// All processes call it, once they have met.
inline void claim_cores(Options& o) {
    if (comm.processes > 1)
        o.core_share = share_of_cores(comm_gather(own_claim(), "the cores of the processes"), comm.rank);
}
inline int threads_of(const Options& o) {
    return o.threads > 0 ? (int)o.threads : o.core_share > 0 ? (int)o.core_share : available_threads();
}
