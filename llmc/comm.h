// The processes of a run and what they say to each other. One process: nothing happens. Several:
// MPI, where the build found it, or TCP (tcp.h).
//
// Every process trains on its own part of each batch. Gradients are then summed: a reduce-scatter
// leaves on rank r the sum of slice r of a bucket (tensors.h), an all-gather brings slices together
// again. Collectives on buckets are started, and waited for later, so that they travel while the
// next layer computes; the small ones (numbers that all must agree on) wait at once. Sums of those
// are taken in the order of ranks, so that all ranks get the same bits.
//
// Nobody waits for ever: after comm.timeout_s a process says what it waits for, and ends the run.
#pragma once
#include <sched.h>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>
#include "llmc/tcp.h"
#ifdef USE_MPI
#define OMPI_SKIP_MPICXX
#include <mpi.h>
#endif

struct Comm {
    int64_t processes = 1, rank = 0;
    int64_t timeout_s = 600;
    int64_t wire_bytes = 0;          // what this process has sent in collectives on buckets
    std::vector<std::string> trace;  // their order, if traced
    bool traced = false;
    // the simulator's GPU moves only when its host asks, and its collectives come first
    void (*before_waiting)() = nullptr;
#ifdef USE_MPI
    struct Pending {
        MPI_Request request;
        std::vector<char> received;
        char* to;
    };
    std::vector<Pending> pending;
#endif
};
inline Comm comm;

#ifdef USE_MPI
// While one lives: MPI_Init and MPI_Finalize, which wait for all processes and know no limit, end
// the run after timeout_s.
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
#endif

inline bool started_by_mpi() { return launcher_value({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) >= 0; }
inline void comm_check_same(const std::string& mine, const char* what);

// processes and rank as given by flags, -1 where not given. Exit 2 if they do not fit the
// launcher's, or this build. program: its version and the like; that of all processes must be the
// same.
inline void comm_start(int64_t processes, int64_t rank, const std::string& how, const std::string& server_ip,
                       const std::string& fs_path, int64_t timeout_s, const std::string& program = "") {
    const int64_t launched = launcher_value(LAUNCHER_SIZES), launched_rank = launcher_value(LAUNCHER_RANKS);
    if (processes < 0) processes = launched < 0 ? 1 : launched;
    if (rank < 0) rank = processes == 1 || launched_rank < 0 ? 0 : launched_rank;
    if (rank >= processes)
        usage_error("--process-rank %lld is not below --num-processes %lld; 0 to %lld are accepted", (long long)rank,
                    (long long)processes, (long long)processes - 1);
    comm.timeout_s = tcp.timeout_s = timeout_s;
    comm.traced = getenv("COMM_TRACE") != nullptr;
    if (processes == 1) return;
    // torchrun and its like say where rank 0 is, and know nothing of MPI
    const char* master = getenv("MASTER_ADDR");
    const bool by_mpi = started_by_mpi();
    const Member me{processes, rank, program_name(program)};
    if (how == "tcp" || (how == "mpi" && !by_mpi && master)) {
        if (server_ip.empty() && !master)
            usage_error("--dist-init tcp needs -ps, the address of rank 0 (or MASTER_ADDR)");
        // torchrun names this machine even if all its processes are on it, and nobody else need
        // reach them
        const bool all_here = launcher_value({"LOCAL_WORLD_SIZE"}) == processes;
        if (!server_ip.empty()) tcp.peers = meet_at("--server-ip", server_ip, me, timeout_s);
        else tcp.peers = meet_at("MASTER_ADDR", all_here ? "127.0.0.1" : master, me, timeout_s);
    } else if (how == "fs") {
        if (fs_path.empty()) usage_error("--dist-init fs needs -pf, a folder that all processes share");
        tcp.peers = meet_by_file(fs_path, me, timeout_s);
    } else {
#ifdef USE_MPI
        int level, size, mpi_rank;
        if (launched != processes)
            usage_error(
                "--num-processes %lld, but %s; mpirun -np %lld starts as many (-pi tcp and -pi fs need no launcher)",
                (long long)processes,
                launched < 0 ? "no launcher started this program" : "the launcher started another number",
                (long long)processes);
        {
            MpiPatience patience(timeout_s, "for MPI to start");
            MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
        }
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
        if (size != processes)
            usage_error(
                "--num-processes %lld, but MPI knows of %d; mpirun -np %lld starts as many (srun: --mpi=pmix, or -pi "
                "tcp)",
                (long long)processes, size, (long long)processes);
        rank = mpi_rank;
#else
        usage_error(
            "--num-processes %lld (from -pn or the launcher): this build has no MPI (apt-get install libopenmpi-dev, "
            "then make again); 1 is accepted, and more with -pi tcp or -pi fs",
            (long long)processes);
#endif
    }
    comm.processes = processes, comm.rank = rank;
    if (!tcp.active()) comm_check_same(program, "version, precision and kernels");
}

// COMM_TRACE=file: rank 0 leaves there the order of backward passes and collectives, and the bytes
// it has sent.
inline void comm_write_trace() {
    FILE* file = comm.traced && comm.rank == 0 ? fopen(getenv("COMM_TRACE"), "w") : nullptr;
    if (!file) return;
    for (const std::string& line : comm.trace) fprintf(file, "%s\n", line.c_str());
    fprintf(file, "wire_bytes %lld\n", (long long)comm.wire_bytes);
    fclose(file);
}

inline void comm_end() {
    comm_write_trace();
#ifdef USE_MPI
    int started = 0;
    MPI_Initialized(&started);
    if (started) {
        MpiPatience patience(comm.timeout_s, "for all to end");
        MPI_Finalize();
    }
#endif
    tcp_end();
    comm.processes = 1, comm.rank = 0;
}
// Ends the processes' talk when run_main returns; a program that ends otherwise, by an exception
// too, takes the others with it.
struct CommSession {
    ~CommSession() {
        if (std::uncaught_exceptions() == 0) comm_end();
    }
};

#ifdef USE_MPI
inline void comm_poll(MPI_Request* request, const char* what) {
    const double begin = now_seconds();
    for (int done = 0;;) {
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done) return;
        sched_yield();
        if (now_seconds() - begin > (double)comm.timeout_s)
            runtime_failure(
                "waited %lld s in %s for the other processes: one of them hangs, or has ended (--comm-timeout sets how "
                "long)",
                (long long)comm.timeout_s, what);
    }
}
#endif

// out (processes * bytes) = every rank's mine (bytes), in the order of ranks.
inline void comm_gather(void* out, const void* mine, int64_t bytes, const char* what) {
    if (comm.processes == 1) {
        memcpy(out, mine, bytes);
        return;
    }
    if (comm.before_waiting) comm.before_waiting();
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
// The sum over ranks, in their order.
inline double comm_sum(double mine, const char* what) {
    double total = 0;
    for (double value : comm_gather(mine, what)) total += value;
    return total;
}
inline bool comm_any(bool mine, const char* what) { return comm.processes > 1 ? comm_sum(mine, what) > 0 : mine; }
inline void comm_barrier(const char* what) { comm_gather((char)0, what); }

// Elementwise sums of values (n) where at most one rank has something other than 0: exact, whoever
// it is.
inline void comm_merge(double* values, int64_t n, const char* what) {
    if (comm.processes == 1 || n == 0) return;
    std::vector<double> all(comm.processes * n);
    comm_gather(all.data(), values, n * sizeof(double), what);
    for (int64_t i = 0; i < n; i++) {
        values[i] = 0;
        for (int64_t r = 0; r < comm.processes; r++) values[i] += all[r * n + i];
    }
}

inline void comm_note(const char* what, int64_t bucket) {
    if (comm.traced) comm.trace.push_back(format("%s %lld", what, (long long)bucket));
}
// A collective on a bucket begins, whose slices have so many bytes.
inline void comm_note_collective(const char* what, int64_t bucket, int64_t slice_bytes) {
    comm_note(what, bucket);
    comm.wire_bytes += (comm.processes - 1) * slice_bytes;
}

// Starts summing data (processes * n_elems) over the processes; after comm_wait slice `rank` holds
// the sum, the others nothing of use.
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
// The same for a bucket of gradients.
inline void comm_reduce_scatter_start(float* data, int64_t n_elems, int64_t bucket) {
    if (comm.processes == 1) return;
    comm_note_collective("reduce_scatter", bucket, n_elems * sizeof(float));
    comm_sum_slices_start(data, n_elems, "the sum of the gradients");
}
// Starts collecting data (processes * n_elems), of which this process has slice `rank`.
template <class T>
inline void comm_all_gather_start(T* data, int64_t n_elems, int64_t bucket) {
    if (comm.processes == 1) return;
    const int64_t bytes = n_elems * (int64_t)sizeof(T);
    comm_note_collective("all_gather", bucket, bytes);
    if (tcp.active())
        return tcp_gather((char*)data, (const char*)(data + comm.rank * n_elems), bytes, comm.processes, comm.rank,
                          "the collection of the slices");
#ifdef USE_MPI
    comm.pending.push_back({MPI_REQUEST_NULL, {}, nullptr});
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, (int)bytes, MPI_BYTE, MPI_COMM_WORLD,
                   &comm.pending.back().request);
#endif
}
// Gives what was started a chance to move; MPI needs to be called for that.
inline void comm_progress() {
#ifdef USE_MPI
    for (Comm::Pending& p : comm.pending) {
        int done;
        MPI_Test(&p.request, &done, MPI_STATUS_IGNORE);
    }
#endif
}
// Until everything that was started is done.
inline void comm_wait(const char* what) {
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

// The same, waited for: the simulator's NCCL.
inline void comm_reduce_scatter(float* data, int64_t n_elems, const char* what) {
    comm_sum_slices_start(data, n_elems, what);
    comm_wait(what);
}

// Ends the run unless all ranks have the same text; says which have another.
inline void comm_check_same(const std::string& mine, const char* what) {
    Checksum sum;
    sum.add(mine.data(), mine.size());
    const std::vector<uint64_t> all = comm_gather(sum.value(), what);
    std::string others;
    for (int64_t r = 0; r < comm.processes; r++)
        if (all[r] != all[0]) others += format("%s%lld", others.empty() ? "" : ", ", (long long)r);
    if (others.empty()) return;
    if (comm.rank == 0)
        runtime_failure(
            "the %s of rank %s are not those of rank 0: all processes must be started alike, on the same files", what,
            others.c_str());
    comm_barrier("the end");  // rank 0 speaks, and ends all
}
