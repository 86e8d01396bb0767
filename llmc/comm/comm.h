// The processes of a run, and how they exchange data: by MPI, where the build found it, or by TCP
// (tcp.h). With one process, nothing happens. comm_start.h brings them together, and parts them.
//
// Every process trains on its own part of each batch. Then the gradients are summed: a
// reduce-scatter leaves on rank r the sum of slice r of a bucket (tensors.h), and an all-gather
// collects the slices of all ranks. Collectives on buckets are started, and waited for later, so
// that data travels while the next layer computes; by TCP they are complete when the start returns.
// Small collectives (numbers that all processes must agree on) wait at once; their sums are added
// in the order of ranks, so that all ranks get the same bits.
//
// No process waits forever: after comm.timeout_s it says what it waits for, and ends the run.
#pragma once
#include <sched.h>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/checksum.h"
#include "llmc/comm/flag_sums.h"
#include "llmc/comm/tcp.h"
#include "llmc/trace/trace.h"
#ifdef USE_MPI
#define OMPI_SKIP_MPICXX
#include <mpi.h>
#endif

struct Comm {
    int64_t processes = 1, rank = 0;
    int64_t timeout_s = 600;
    // Called before comm_gather(), if it is set: it makes a simulated GPU, which runs only while
    // its host waits for it, finish the collectives that were started before.
    void (*before_gather)() = nullptr;
    void (*at_end)() = nullptr;  // called by comm_end(), while all processes are still there
#ifdef USE_MPI
    struct Pending {
        MPI_Request request;
        std::vector<char> received;  // copied to `to` when the request is complete, if `to` is not null
        char* to;
    };
    std::vector<Pending> pending;
#endif
};
inline Comm comm;

// While an Alone exists, its process acts as if it were the only one: collectives do nothing.
struct Alone {
    const int64_t processes = std::exchange(comm.processes, 1);
    ~Alone() { comm.processes = processes; }
};

#ifdef USE_MPI
// Waits for an MPI request; exit 1 after comm.timeout_s. `what` is for the message, here and below.
inline void comm_poll(MPI_Request* request, const char* what) {
    const double begin = now_seconds();
    for (int done = 0;;) {
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done) return;
        sched_yield();
        if (now_seconds() - begin > (double)comm.timeout_s)
            runtime_failure(
                "waited %d s in %s for the other processes: one of them hangs, or has ended (--comm-timeout sets how "
                "long)",
                comm.timeout_s, what);
    }
}
#endif

// out (processes * bytes) = every rank's mine (bytes), in the order of ranks.
inline void comm_gather(void* out, const void* mine, int64_t bytes, const char* what) {
    if (comm.processes == 1) {
        memcpy(out, mine, bytes);
        return;
    }
    const Range range("gather");
    if (comm.before_gather) comm.before_gather();
    if (tcp.active()) return tcp_gather((char*)out, (const char*)mine, bytes, comm.processes, comm.rank, what);
#ifdef USE_MPI
    MPI_Request request;
    MPI_Iallgather(mine, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
    comm_poll(&request, what);
#else
    (void)what;
#endif
}
template <class T>
inline std::vector<T> comm_gather(const T& mine, const char* what) {
    std::vector<T> all(comm.processes);
    comm_gather(all.data(), &mine, sizeof(T), what);
    return all;
}
// The sum of `mine` over all ranks, added in their order.
inline double comm_sum(double mine, const char* what) {
    double total = 0;
    for (double value : comm_gather(mine, what)) total += value;
    return total;
}
// True if `mine` is true on any rank.
inline bool comm_any(bool mine, const char* what) { return comm.processes > 1 ? comm_sum(mine, what) > 0 : mine; }
// Returns once all ranks have called it.
inline void comm_barrier(const char* what) { comm_gather((char)0, what); }

// values (n) = their elementwise sum over all ranks. At most one rank has a value other than 0 for
// each element, so the sum is exact.
inline void comm_merge(double* values, int64_t n, const char* what) {
    if (comm.processes == 1 || n == 0) return;
    std::vector<double> all(comm.processes * n);
    comm_gather(all.data(), values, n * sizeof(double), what);
    for (int64_t i = 0; i < n; i++) {
        values[i] = 0;
        for (int64_t r = 0; r < comm.processes; r++) values[i] += all[r * n + i];
    }
}

// Starts summing data (processes * n_elems) over all processes. After comm_wait(), slice `rank` of
// data holds its sum; the other slices are undefined.
inline void comm_sum_slices_start(float* data, int64_t n_elems, const char* what) {
    if (tcp.active()) return tcp_reduce_scatter(data, n_elems, comm.processes, comm.rank, what);
#ifdef USE_MPI
    comm.pending.push_back(
        {MPI_REQUEST_NULL, std::vector<char>(n_elems * sizeof(float)), (char*)(data + comm.rank * n_elems)});
    Comm::Pending& p = comm.pending.back();
    MPI_Ireduce_scatter_block(data, p.received.data(), (int)n_elems, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &p.request);
#else
    (void)data;
#endif
}
// Starts summing a bucket of gradients over all processes; `bucket` is for the trace.
inline void comm_reduce_scatter_start(float* data, int64_t n_elems, int64_t bucket) {
    if (comm.processes == 1) return;
    const int64_t bytes = n_elems * (int64_t)sizeof(float);
    const Range range(work::collective("reduce_scatter", bucket, (comm.processes - 1) * bytes));
    comm_sum_slices_start(data, n_elems, "the sum of the gradients");
}
// Starts collecting the slices of data (processes * n_elems), of which this process has slice
// `rank`.
template <class T>
inline void comm_all_gather_start(T* data, int64_t n_elems, int64_t bucket) {
    if (comm.processes == 1) return;
    const int64_t bytes = n_elems * (int64_t)sizeof(T);
    const Range range(work::collective("all_gather", bucket, (comm.processes - 1) * bytes));
    if (tcp.active())
        return tcp_gather((char*)data, (const char*)(data + comm.rank * n_elems), bytes, comm.processes, comm.rank,
                          "the collection of the slices");
#ifdef USE_MPI
    comm.pending.push_back({MPI_REQUEST_NULL, {}, nullptr});
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, (int)bytes, MPI_BYTE, MPI_COMM_WORLD,
                   &comm.pending.back().request);
#endif
}
// Lets MPI advance what was started, which it does only while it is called.
inline void comm_progress() {
#ifdef USE_MPI
    for (Comm::Pending& p : comm.pending) {
        int done;
        MPI_Test(&p.request, &done, MPI_STATUS_IGNORE);
    }
#endif
}
// Waits until everything that was started is complete.
inline void comm_wait(const char* what) {
    const Range range("wait for processes");
#ifdef USE_MPI
    for (Comm::Pending& p : comm.pending) {
        comm_poll(&p.request, what);
        if (p.to) memcpy(p.to, p.received.data(), p.received.size());
    }
    comm.pending.clear();
#else
    (void)what;
#endif
}

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
