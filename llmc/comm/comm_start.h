// How the processes of a run meet, by MPI, at an address or by a file in a shared folder, and how
// they part.
#pragma once
#include <csignal>
#include <exception>
#include "llmc/comm/comm.h"
#include "llmc/comm/meeting_place.h"

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
    return rank;
#else
    (void)launched, (void)timeout_s;
    usage_error(
        "--num-processes %d (from -pn or the launcher): this build has no MPI (apt-get install libopenmpi-dev, "
        "then make again); 1 is accepted, and more with -pi tcp or -pi fs",
        processes);
#endif
}

// Meets the other processes of the run. processes and rank are those of the flags, -1 where not
// given: then the launcher's. Exit 2 if they do not fit the launcher's or this build. how: mpi, tcp
// or fs; torchrun's processes meet by TCP without being told. program: what must be the same in all
// processes, as flags must be.
inline void comm_start(int64_t processes, int64_t rank, const std::string& how, const std::string& server_ip,
                       const std::string& fs_path, int64_t timeout_s, const std::string& program = "",
                       const std::vector<std::string>& flags = {}) {
    const int64_t launched = launcher_value(LAUNCHER_SIZES), launched_rank = launcher_value(LAUNCHER_RANKS);
    if (processes < 0) processes = launched < 0 ? 1 : launched;
    if (rank < 0) rank = processes == 1 || launched_rank < 0 ? 0 : launched_rank;
    if (rank >= processes)
        usage_error("--process-rank %d is not below --num-processes %d; 0 to %d are accepted", rank, processes,
                    processes - 1);
    comm.timeout_s = tcp.timeout_s = timeout_s;
    if (processes == 1) return;
    const Member me{processes, rank, program_name(program), flags};
    const bool has_no_mpi = !started_by_mpi() && getenv("MASTER_ADDR");
    if (how == "tcp" || (how == "mpi" && has_no_mpi)) tcp.peers = meet_by_tcp(server_ip, me, timeout_s);
    else if (how == "mpi") rank = start_mpi(processes, launched, timeout_s);
    else if (fs_path.empty()) usage_error("--dist-init fs needs -pf, a folder that all processes share");
    else tcp.peers = meet_by_file(fs_path, me, timeout_s);
    comm.processes = processes, comm.rank = rank;
    if (!tcp.active()) comm_check_same(program, "version, precision and kernels");
}

// Ends all communication; MPI waits here for all processes.
inline void comm_end() {
    if (comm.at_end) comm.at_end();
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
// Calls comm_end() when a run ends (run.h). A process that ends in another way, such as by an
// exception, closes its connections without that, and so ends the others.
struct CommSession {
    ~CommSession() {
        if (std::uncaught_exceptions() == 0) comm_end();
    }
};
