// The processes of a run, and how they exchange data: by MPI, where the build found it, or by TCP
// (tcp.h). With one process, nothing happens.
//
// Every process trains on its own part of each batch. Then the gradients are summed: a
// reduce-scatter leaves on rank r the sum of slice r of a bucket (tensors.h), and an all-gather
// collects the slices of all ranks. Collectives on buckets are started, and waited for later, so
// that data travels while the next layer computes. Small collectives (numbers that all processes
// must agree on) wait at once; their sums are added in the order of ranks, so that all ranks get
// the same bits.
//
// No process waits forever: after comm.timeout_s it says what it waits for, and ends the run.
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
    std::vector<std::string> trace;  // the order of backward passes and collectives, if traced
    bool traced = false;
    // Called before comm_gather(). A simulated GPU runs only while its host waits for it: this
    // makes it finish the collectives that were started before.
    void (*before_waiting)() = nullptr;
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

#ifdef USE_MPI
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
#endif

inline bool started_by_mpi() { return launcher_value({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) >= 0; }
inline void comm_check_same(const std::string& mine, const char* what);

// Meets the other processes by TCP. torchrun and its like say where rank 0 is (MASTER_ADDR).
inline std::vector<int> meet_by_tcp(const std::string& server_ip, const Member& me, int64_t timeout_s) {
    if (!server_ip.empty()) return meet_at("--server-ip", server_ip, me, timeout_s);
    const char* master = getenv("MASTER_ADDR");
    if (!master) usage_error("--dist-init tcp needs -ps, the address of rank 0 (or MASTER_ADDR)");
    // torchrun gives the name of this machine even if all its processes are on it; then no other
    // machine need reach them
    const bool all_here = launcher_value({"LOCAL_WORLD_SIZE"}) == me.processes;
    return meet_at("MASTER_ADDR", all_here ? "127.0.0.1" : master, me, timeout_s);
}

// Starts MPI and returns this process's rank. Exit 2 if the build has no MPI, or the launcher
// started another number of processes. launched: that number, -1 without a launcher.
inline int64_t start_mpi(int64_t processes, int64_t launched, int64_t timeout_s) {
#ifdef USE_MPI
    if (launched != processes)
        usage_error(
            "--num-processes %lld, but %s; mpirun -np %lld starts as many (-pi tcp and -pi fs need no launcher)",
            (long long)processes,
            launched < 0 ? "no launcher started this program" : "the launcher started another number",
            (long long)processes);
    int level, size, rank;
    {
        MpiPatience patience(timeout_s, "for MPI to start");
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    }
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (size != processes)
        usage_error(
            "--num-processes %lld, but MPI knows of %d; mpirun -np %lld starts as many (srun: --mpi=pmix, or -pi "
            "tcp)",
            (long long)processes, size, (long long)processes);
    return rank;
#else
    (void)launched, (void)timeout_s;
    usage_error(
        "--num-processes %lld (from -pn or the launcher): this build has no MPI (apt-get install libopenmpi-dev, "
        "then make again); 1 is accepted, and more with -pi tcp or -pi fs",
        (long long)processes);
#endif
}

// Meets the other processes of the run. processes and rank are those of the flags, -1 where not
// given: then the launcher's. Exit 2 if they do not fit the launcher's or this build. how: mpi, tcp
// or fs; torchrun's processes meet by TCP without being told. program: what must be the same in all
// processes.
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
    const Member me{processes, rank, program_name(program)};
    const bool has_no_mpi = !started_by_mpi() && getenv("MASTER_ADDR");
    if (how == "tcp" || (how == "mpi" && has_no_mpi)) tcp.peers = meet_by_tcp(server_ip, me, timeout_s);
    else if (how == "mpi") rank = start_mpi(processes, launched, timeout_s);
    else if (fs_path.empty()) usage_error("--dist-init fs needs -pf, a folder that all processes share");
    else tcp.peers = meet_by_file(fs_path, me, timeout_s);
    comm.processes = processes, comm.rank = rank;
    if (!tcp.active()) comm_check_same(program, "version, precision and kernels");
}

// With COMM_TRACE=file, rank 0 writes to that file the order of backward passes and collectives,
// and the bytes it has sent.
inline void comm_write_trace() {
    FILE* file = comm.traced && comm.rank == 0 ? fopen(getenv("COMM_TRACE"), "w") : nullptr;
    if (!file) return;
    for (const std::string& line : comm.trace) fprintf(file, "%s\n", line.c_str());
    fprintf(file, "wire_bytes %lld\n", (long long)comm.wire_bytes);
    fclose(file);
}

// Ends all communication; MPI waits here for all processes.
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
// Calls comm_end() when run_main() returns. A process that ends in another way, such as by an
// exception, closes its connections without that, and so ends the others.
struct CommSession {
    ~CommSession() {
        if (std::uncaught_exceptions() == 0) comm_end();
    }
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

// Adds a line to the trace.
inline void comm_note(const char* what, int64_t bucket) {
    if (comm.traced) comm.trace.push_back(format("%s %lld", what, (long long)bucket));
}
// The same for a collective on a bucket with slices of slice_bytes; counts what this process sends.
inline void comm_note_collective(const char* what, int64_t bucket, int64_t slice_bytes) {
    comm_note(what, bucket);
    comm.wire_bytes += (comm.processes - 1) * slice_bytes;
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
// The same for a bucket of gradients.
inline void comm_reduce_scatter_start(float* data, int64_t n_elems, int64_t bucket) {
    if (comm.processes == 1) return;
    comm_note_collective("reduce_scatter", bucket, n_elems * sizeof(float));
    comm_sum_slices_start(data, n_elems, "the sum of the gradients");
}
// Starts collecting the slices of data (processes * n_elems), of which this process has slice
// `rank`.
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

// Sums data over all processes as comm_sum_slices_start() does, and waits: for the simulator's
// NCCL.
inline void comm_reduce_scatter(float* data, int64_t n_elems, const char* what) {
    comm_sum_slices_start(data, n_elems, what);
    comm_wait(what);
}

// Exit 1 unless all ranks pass the same text; names the ranks whose text differs from rank 0's.
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
    comm_barrier("the end");  // rank 0 says so, and ends all
}
