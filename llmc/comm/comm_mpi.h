// How processes that MPI has brought together exchange data (comm.h). Open MPI, or another MPI 3,
// where the build found it.
//
// Slices to be summed go straight to the process that adds them, in the order of ranks. MPI has a
// collective for that, which may add in another order; Open MPI's sends all to rank 0, which needs
// memory for them, and adds alone.
#pragma once
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>
#include "llmc/comm/add_in_order.h"
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

// Asks is_complete() until it is so; exit 1 after comm.timeout_s.
template <class IsComplete>
void mpi_poll(IsComplete is_complete, const char* what) {
    const double begin = now_seconds();
    while (!is_complete()) {
        sched_yield();
        if (while_polling) while_polling();
        if (now_seconds() - begin > (double)comm.timeout_s)
            runtime_failure(
                "waited %d s in %s for the other processes: one of them hangs, or has ended (--comm-timeout sets how "
                "long)",
                comm.timeout_s, what);
    }
}

// MPI's communicators, by the number of a kind of groups.
inline std::vector<MPI_Comm> mpi_groups{MPI_COMM_WORLD};
inline void mpi_make_group(const CommGroup& group) {
    mpi_groups.push_back(MPI_COMM_NULL);
    MPI_Comm_split(MPI_COMM_WORLD, (int)group.first, (int)group.rank, &mpi_groups.back());
}

inline void mpi_gather(const CommGroup& group, void* out, const void* mine, int64_t bytes, const char* what) {
    MPI_Request request;
    MPI_Iallgather(mine, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, mpi_groups[group.number], &request);
    const auto is_complete = [&] {
        int done = 0;
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        return done != 0;
    };
    mpi_poll(is_complete, what);
}

enum { MESSAGE_TAG, SLICE_TAG };

// A collective that was started.
struct MpiPending {
    Started is;
    std::vector<MPI_Request> requests;
    float* sum = nullptr;  // what is received is added to this slice (n_elems), if not null
    int64_t n_elems = 0;
    const float* received = nullptr;  // slices of the others, in the order of ranks
    double begin = now_seconds();
    bool complete = false;
};
inline std::vector<MpiPending> mpi_pending;
// Room for what is received of a sum; it stays for the next ones. Straight from the system, which
// gets it back when it must grow.
struct MpiBuffer {
    float* values = nullptr;
    int64_t elems = 0;

    void grow(int64_t n_elems) {
        if (n_elems <= elems) return;
        if (values) munmap(values, elems * sizeof(float));
        void* const p =
            mmap(nullptr, n_elems * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) runtime_failure("out of memory: no room for the slices of %d ranks", comm.processes);
        values = (float*)p, elems = n_elems;
    }
};
inline MpiBuffer mpi_received[2];
// Adds one with one request, which is returned.
inline MPI_Request* mpi_begin(const Started& c) {
    mpi_pending.push_back({c, {MPI_REQUEST_NULL}});
    return &mpi_pending.back().requests[0];
}
inline void mpi_exchange_start(const Started& c, void* out, const void* data, int64_t bytes) {
    MPI_Ialltoall(data, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, mpi_groups[c.group.number], mpi_begin(c));
}
inline void mpi_all_gather_start(const Started& c, void* data, int64_t bytes) {
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, (int)bytes, MPI_BYTE, mpi_groups[c.group.number],
                   mpi_begin(c));
}
inline void mpi_send_start(const Started& c, const void* data, int64_t bytes, int64_t to) {
    MPI_Isend(data, (int)bytes, MPI_BYTE, (int)to, MESSAGE_TAG, MPI_COMM_WORLD, mpi_begin(c));
}
inline void mpi_receive_start(const Started& c, void* data, int64_t bytes, int64_t from) {
    MPI_Irecv(data, (int)bytes, MPI_BYTE, (int)from, MESSAGE_TAG, MPI_COMM_WORLD, mpi_begin(c));
}
inline void add_received(MpiPending& p) {
    std::vector<const float*> sources;
    for (int64_t i = 0, other = 0; i < p.is.group.processes; i++)
        sources.push_back(i == p.is.group.rank ? p.sum : p.received + p.n_elems * other++);
    add_in_order(p.sum, sources, p.n_elems);
}
// Asks whether a collective is complete, which also lets MPI work on it.
inline void mpi_ask(MpiPending& p) {
    if (p.complete) return;
    int done = 0;
    MPI_Testall((int)p.requests.size(), p.requests.data(), &done, MPI_STATUSES_IGNORE);
    if (!done) return;
    if (p.sum) add_received(p);
    p.complete = true;
    trace.add_communication({p.is.work, p.begin, now_seconds()});
}
inline void mpi_progress() {
    for (MpiPending& p : mpi_pending) mpi_ask(p);
}
inline bool mpi_is_complete(Collective number) {
    for (MpiPending& p : mpi_pending)
        if (p.is.number == number) return mpi_ask(p), p.complete;
    return true;
}
inline void mpi_wait(Collective number, const char* what) {
    const auto waited_for = [=](const MpiPending& p) { return number == ALL_COLLECTIVES || p.is.number == number; };
    for (MpiPending& p : mpi_pending)
        if (waited_for(p)) mpi_poll([&] { return mpi_ask(p), p.complete; }, what);
    mpi_pending.erase(std::remove_if(mpi_pending.begin(), mpi_pending.end(), waited_for), mpi_pending.end());
}
// Two sums are on their way at once: each waits for the one before the last, whose buffer it takes.
inline void mpi_sum_slices_start(const Started& c, float* data, int64_t n_elems) {
    static int64_t sums = 0;
    MpiBuffer& buffer = mpi_received[sums++ % 2];
    for (MpiPending& p : mpi_pending)
        if (p.sum && p.received == buffer.values)
            mpi_poll([&] { return mpi_ask(p), p.complete; }, "an earlier sum of slices");
    const CommGroup& group = c.group;
    buffer.grow(std::max<int64_t>(1, (group.processes - 1) * n_elems));
    float* to = buffer.values;
    mpi_pending.push_back({c, {}, data + group.rank * n_elems, n_elems, to});
    MpiPending& p = mpi_pending.back();
    const MPI_Comm members = mpi_groups[group.number];
    for (int64_t i = 0; i < group.processes; i++) {
        if (i == group.rank) continue;
        MPI_Request both[2];
        MPI_Irecv(to, (int)n_elems, MPI_FLOAT, (int)i, SLICE_TAG, members, &both[0]);
        MPI_Isend(data + i * n_elems, (int)n_elems, MPI_FLOAT, (int)i, SLICE_TAG, members, &both[1]);
        p.requests.insert(p.requests.end(), both, both + 2), to += n_elems;
    }
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
        mpi_gather, mpi_exchange_start, mpi_sum_slices_start, mpi_all_gather_start, mpi_progress,   mpi_wait,
        mpi_end,    mpi_make_group,     mpi_send_start,       mpi_receive_start,    mpi_is_complete};
    return rank;
#else
    (void)launched, (void)timeout_s;
    usage_error(
        "--num-processes %d (from -pn or the launcher): this build has no MPI (apt-get install libopenmpi-dev, "
        "then make again); 1 is accepted, and more with -pi tcp or -pi fs",
        processes);
#endif
}
