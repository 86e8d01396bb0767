// How the processes of a run meet: by MPI, at an address or by a file in a shared folder.
#pragma once
#include "llmc/comm/agree.h"
#include "llmc/comm/comm_mpi.h"
#include "llmc/comm/meeting_place.h"
#include "llmc/comm/mesh.h"
#include "llmc/comm/tcp.h"

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
    comm.timeout_s = timeout_s;
    if (processes == 1) return;
    const Member me{processes, rank, program_name(program), flags};
    const bool has_no_mpi = !started_by_mpi() && getenv("MASTER_ADDR");
    std::vector<int> met;
    if (how == "tcp" || (how == "mpi" && has_no_mpi)) met = meet_by_tcp(server_ip, me, timeout_s);
    else if (how == "mpi") rank = start_mpi(processes, launched, timeout_s);
    else if (fs_path.empty()) usage_error("--dist-init fs needs -pf, a folder that all processes share");
    else met = meet_by_file(fs_path, me, timeout_s);
    comm.started = processes;
    comm_count(processes, rank);
    if (!met.empty()) tcp_begin(connect_all(met, me, timeout_s));
    if (!tcp.active()) comm_check_same(program, "version, precision and kernels");
}
