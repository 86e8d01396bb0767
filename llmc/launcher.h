// What a launcher of several processes (mpirun, srun, torchrun) tells each of them by environment
// variables; and how processes that all fail with the same message print it once.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include "llmc/siphash.h"

// The variables that hold the number of processes, and the rank.
constexpr const char* LAUNCHER_SIZES[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"};
constexpr const char* LAUNCHER_RANKS[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"};
// The value of the first of these variables that is set to a number; -1 if there is none.
template <size_t N>
inline long long launcher_value(const char* const (&names)[N]) {
    for (const char* name : names)
        if (const char* text = getenv(name)) {
            char* end;
            const long long value = strtoll(text, &end, 10);
            if (end != text && *end == '\0' && value >= 0) return value;
        }
    return -1;
}

// True if MPI's launcher started this process: mpirun, or srun --mpi=pmix.
inline bool started_by_mpi() { return launcher_value({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) >= 0; }

// A name that the processes of one launch on one machine have in common.
inline std::string launch_name() {
    std::string name = std::to_string(getsid(0));
    for (const char* variable : {"PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"})
        if (const char* value = getenv(variable)) name += std::string("/") + value;
    return name;
}

// True in one of the processes of a launch that call it with the same sentence: the one that gets a
// socket name made from both, which it keeps until it ends.
inline bool claim_sentence(const std::string& sentence) {
#ifdef __linux__
    const std::string text = launch_name() + "/" + sentence;
    sockaddr_un address{};  // a name that begins with '\0' is not in the file system
    address.sun_family = AF_UNIX;
    const unsigned long long hash = siphash({0, 0}, text.data(), text.size());
    const int length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "gpt2-%016llx", hash);
    const socklen_t bytes = (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + length);
    return bind(socket(AF_UNIX, SOCK_STREAM, 0), (sockaddr*)&address, bytes) == 0 || errno != EADDRINUSE;
#else
    return (void)sentence, true;
#endif
}

// Prints on stderr why this process ends. If others of its launch are about to end with the same
// sentence, only one prints it: rank 0 or, if rank 0 does not end so, the first that claims it. The
// others wait half a second before they claim, in which a launcher that sees rank 0 end has ended
// them. All then stay for a second, so that the claim holds until every process has seen it.
inline void say_last_sentence(const std::string& sentence) {
    const long long rank = launcher_value(LAUNCHER_RANKS);
    const bool several = launcher_value(LAUNCHER_SIZES) > 1 && rank >= 0;
    if (several && rank > 0) usleep(500000);
    const std::string who = several && rank > 0 ? "rank " + std::to_string(rank) + ": " : "";
    if (!several || claim_sentence(sentence) || rank == 0)
        fprintf(stderr, "error: %s%s\n", who.c_str(), sentence.c_str());
    if (several) usleep(1000000);
}
