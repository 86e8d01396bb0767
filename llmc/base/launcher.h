// What a launcher of several processes (mpirun, srun, torchrun) tells each of them by environment
// variables.
#pragma once
#include <cstddef>
#include <cstdlib>

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
