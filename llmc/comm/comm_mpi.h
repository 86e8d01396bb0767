// How processes that MPI has brought together exchange data (comm.h). Open MPI, or another MPI 3,
// where the build found it.
#pragma once
#include <sched.h>
#include <unistd.h>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>
#include "llmc/comm/comm.h"
#include "llmc/comm/meeting_place.h"
#ifdef USE_MPI
#define OMPI_SKIP_MPICXX
#include <mpi.h>

// Limits MPI_Init and MPI_Finalize, which wait for all processes without a limit of their own:
// while an MpiPatience exists, the run ends after timeout_s.
struct MpiPatience {
    explicit MpiPatience(int64_t timeout_s, const char* where) {
        static char text[200];
        snprintf(text, sizeof(text),
                 "error: rank %lld: waited %lld s %s: another process hangs, or knows no MPI (%s)\n",
                 launcher_value(LAUNCHER_RANKS), (long long)timeout_s, where, "--comm-timeout sets how long");
        signal(SIGALRM, [](int) {
            if (write(2, text, strlen(text)) < 0) _exit(1);
            _exit(1);
        });
        alarm((unsigned)timeout_s);
    }
    ~MpiPatience() {
        alarm(0);
        signal(SIGALRM, SIG_DFL);
    }
};

// Waits for an MPI request; exit 1 after comm.timeout_s.
inline void mpi_poll(MPI_Request* request, const char* what) {
    const double begin = now_seconds();
    for (int done = 0;;) {
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done) return;
        sched_yield();
        if (while_polling) while_polling();
        if (now_seconds() - begin > (double)comm.timeout_s)
            runtime_failure(
                "waited %d s in %s for the other processes: one of them hangs, or has ended (--comm-timeout sets how "
                "long)",
                comm.timeout_s, what);
    }
}
inline void mpi_gather(void* out, const void* mine, int64_t bytes, const char* what) {
    MPI_Request request;
    MPI_Iallgather(mine, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
    mpi_poll(&request, what);
}

// A collective that was started.
struct MpiPending {
    MPI_Request request;
    std::vector<char> received;  // copied to `to` when the request is complete, if `to` is not null
    char* to;
};
inline std::vector<MpiPending> mpi_pending;
inline void mpi_sum_slices_start(float* data, int64_t n_elems) {
    mpi_pending.push_back(
        {MPI_REQUEST_NULL, std::vector<char>(n_elems * sizeof(float)), (char*)(data + comm.rank * n_elems)});
    MpiPending& p = mpi_pending.back();
    MPI_Ireduce_scatter_block(data, p.received.data(), (int)n_elems, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &p.request);
}
inline void mpi_all_gather_start(void* data, int64_t bytes) {
    mpi_pending.push_back({MPI_REQUEST_NULL, {}, nullptr});
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, (int)bytes, MPI_BYTE, MPI_COMM_WORLD,
                   &mpi_pending.back().request);
}
inline void mpi_all_to_all_start(void* to, const void* from, int64_t bytes) {
    mpi_pending.push_back({MPI_REQUEST_NULL, {}, nullptr});
    MPI_Ialltoall(from, (int)bytes, MPI_BYTE, to, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &mpi_pending.back().request);
}
inline void mpi_progress() {
    for (MpiPending& p : mpi_pending) {
        int done;
        MPI_Test(&p.request, &done, MPI_STATUS_IGNORE);
    }
}
inline void mpi_wait(const char* what) {
    for (MpiPending& p : mpi_pending) {
        mpi_poll(&p.request, what);
        if (p.to) memcpy(p.to, p.received.data(), p.received.size());
    }
    mpi_pending.clear();
}
inline void mpi_end() {
    MpiPatience patience(comm.timeout_s, "for all to end");
    MPI_Finalize();
}
#endif

// Starts MPI and returns this process's rank. Exit 2 if the build has no MPI, or the launcher
// started another number of processes. launched: that number, -1 without a launcher.
inline int64_t start_mpi(int64_t processes, int64_t launched, int64_t timeout_s) {
#ifdef USE_MPI
    if (launched != processes)
        usage_error(
            "--num-processes %d, but %s; mpirun -np %d starts as many (-pi tcp and -pi fs need no launcher)", processes,
            launched < 0 ? "no launcher started this program" : "the launcher started another number", processes);
    int level, size, rank;
    {
        MpiPatience patience(timeout_s, "for MPI to start");
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    }
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (size != processes)
        usage_error(
            "--num-processes %d, but MPI knows of %d; mpirun -np %d starts as many (srun: --mpi=pmix, or -pi "
            "tcp)",
            processes, size, processes);
    comm.transport = {
        mpi_gather, mpi_sum_slices_start, mpi_all_gather_start, mpi_all_to_all_start, mpi_progress, mpi_wait, mpi_end};
    return rank;
#else
    (void)launched, (void)timeout_s;
    usage_error(
        "--num-processes %d (from -pn or the launcher): this build has no MPI (apt-get install libopenmpi-dev, "
        "then make again); 1 is accepted, and more with -pi tcp or -pi fs",
        processes);
#endif
}
