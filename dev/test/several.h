// What the tests of runs of several processes share: the programs, and how to start and watch them.
#pragma once
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
