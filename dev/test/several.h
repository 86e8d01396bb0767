// What the tests of runs of several processes share: the programs, and how to start and watch them.
#pragma once
#include <csignal>
#include "dev/test/run_program.h"

const std::string CPU = "./train_gpt2_cpu", SIM32 = "build/FP32/train_gpt2sim", SIM16 = "build/BF16/train_gpt2sim";
const char* const MPIRUN = "mpirun --oversubscribe --allow-run-as-root ";

// A tiny run of 12 windows a step, as n processes with B 1: 12 / n micro-steps.
inline std::string several(const std::string& program, int n, const std::string& more) {
    return MPIRUN + format("-np %d ", n) + tiny_run(program, "-b 1 -d 192 -f 0 --threads 1 " + more);
}

// Waits until a run has done a step, as its log says; false after 10 s.
inline bool wait_for_step(const std::string& name, int step) {
    for (int tries = 0; tries < 200; tries++, usleep(50000))
        if (contains(read_whole(dir(name) + "/main.log"), format("s:%d trl", step))) return true;
    return false;
}

// The process ids of the ranks of a run that is under way, by rank.
inline std::vector<pid_t> ranks_of(const std::string& mark, int n) {
    std::vector<pid_t> pids(n, 0);
    for (int tries = 0; tries < 100; tries++) {
        for (const std::string& path : glob_files("/proc/[0-9]*/cmdline")) {
            const std::string command = read_whole(path);
            if (!contains(command, mark) || contains(command, "mpirun") || contains(command.substr(0, 3), "sh"))
                continue;
            const pid_t pid = (pid_t)atoi(path.c_str() + 6);
            const std::string environment = read_whole(format("/proc/%d/environ", (int)pid));
            const size_t at = environment.find("OMPI_COMM_WORLD_RANK=");
            if (at < environment.size()) pids[atoi(environment.c_str() + at + 21) % n] = pid;
        }
        if (std::count(pids.begin(), pids.end(), 0) == 0) return pids;
        usleep(100000);
    }
    return pids;
}

// Kills rank 1 of 3: all end within 30 s, say which it was, and 2 go on. command(n, flags) runs n
// processes.
template <class Command>
void kill_a_rank(const Command& command) {
    const std::string out = " -o " + dir("killed");
    const pid_t all = start(command(3, "-x 100000 -n 5 -nk 3" + out));
    EXPECT(wait_for_step("killed", 7));
    kill(ranks_of(dir("killed"), 3)[1], SIGKILL);
    const double begin = now_seconds();
    const Outcome r = finish(all);
    EXPECT(r.status != 0 && now_seconds() - begin < 30 && contains(r.out + r.err, "rank 1"));
    EXPECT(contains(run(command(2, "-x 1 -y 1" + out)).out, "the run in"));  // it is found, and past step 1
}
