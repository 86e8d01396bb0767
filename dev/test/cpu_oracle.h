// The CPU trainer behind a few functions, for tests of the CUDA trainer. Kernels of both have the
// same names, so the CPU trainer is compiled by itself, in cpu_oracle.cpp.
#pragma once
#include <vector>
#include "llmc/adapt/weight_codes.h"
#include "llmc/gpt2/config.h"
#include "llmc/optim/optimizers.h"
#include "llmc/optim/update_settings.h"

struct CpuOracle;
CpuOracle* cpu_oracle_start(const GPT2Config& config, int64_t B, int64_t T, int64_t micro_steps, uint64_t seed,
                            int64_t end_of_text, Optimizer optimizer);
void cpu_oracle_micro_step(CpuOracle* oracle, const int* x, const int* y, int64_t micro);
StepResult cpu_oracle_update(CpuOracle* oracle, const UpdateSettings& settings);
void cpu_oracle_end(CpuOracle* oracle);
// Writes the codes of weights by the naive loops, and returns the numbers that they stand for.
std::vector<float> cpu_oracle_codes(const CodeMatrix& m, const float* weights);
