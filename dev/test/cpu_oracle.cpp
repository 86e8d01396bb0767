// See cpu_oracle.h. The headers are included first, in the global namespace; then the trainer alone
// is put into a namespace of its own.
#include "dev/test/cpu_oracle.h"
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/attention_decode.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/peak.h"
#include "llmc/cpu/reference_optimizers.h"
#include "llmc/cpu/scratch.h"
#include "llmc/cpu/whole_tensors.h"
#include "llmc/run/train.h"
#define TRAINER_WITHOUT_MAIN
namespace cpu_trainer {
#include "train_gpt2_cpu.cpp"
}

struct CpuOracle {
    cpu_trainer::GPT2<float> model;
};

CpuOracle* cpu_oracle_start(const GPT2Config& config, int64_t B, int64_t T, int64_t micro_steps, uint64_t seed,
                            int64_t end_of_text, Optimizer optimizer) {
    CpuOracle* oracle = new CpuOracle;
    Options o;
    o.optimizer = OPTIMIZERS[optimizer].name;
    Sizes sizes{config, B, T, 0, 0, 0, true, micro_steps};
    sizes.end_of_text = end_of_text;
    oracle->model.layout = parameter_layout(config, 1);
    settle_device(oracle->model, sizes, o);
    allocate(oracle->model, sizes, o);
    initialize_weights(oracle->model, seed);
    return oracle;
}
void cpu_oracle_micro_step(CpuOracle* oracle, const int* x, const int* y, int64_t micro) {
    const Sizes& s = oracle->model.sizes;
    micro_step(oracle->model, x, y, s.B, s.T, 1.0f / (float)(s.B * s.T * s.micro_steps), micro);
}
StepResult cpu_oracle_update(CpuOracle* oracle, const UpdateRule& rule) { return update(oracle->model, rule); }
void cpu_oracle_end(CpuOracle* oracle) { delete oracle; }  // the rest of its memory is freed when the program ends
