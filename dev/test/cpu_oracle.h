// The CPU trainer behind five functions, for tests of the CUDA one: both have a struct GPT2, so
// they live in different programs' parts.
#pragma once
#include "llmc/config.h"
#include "llmc/update_rule.h"

struct CpuOracle;
CpuOracle* cpu_oracle_start(const GPT2Config& config, int64_t B, int64_t T, int64_t micro_steps, uint64_t seed);
void cpu_oracle_micro_step(CpuOracle* oracle, const int* x, const int* y, int64_t micro);
StepResult cpu_oracle_update(CpuOracle* oracle, const UpdateRule& rule);
void cpu_oracle_end(CpuOracle* oracle);
