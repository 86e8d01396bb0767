// See cpu_oracle.h.
#include "dev/test/cpu_oracle.h"
#define TRAINER_WITHOUT_MAIN
#include "train_gpt2_cpu.cpp"
#include "llmc/model/initial_weights.h"

struct CpuOracle {
    GPT2 model;
};

CpuOracle* cpu_oracle_start(const GPT2Config& config, int64_t B, int64_t T, int64_t micro_steps, uint64_t seed,
                            int64_t end_of_text, Optimizer optimizer) {
    CpuOracle* oracle = new CpuOracle;
    Options o;
    o.optimizer = OPTIMIZERS[optimizer].name;
    Sizes sizes{config, B, T, 0, 0, 0, true, micro_steps};
    sizes.end_of_text = end_of_text;
    oracle->model.backend = &cpu_backend<float>();
    oracle->model.layout = parameter_layout(config, 1);
    oracle->model.backend->settle(oracle->model, sizes, o);
    oracle->model.backend->allocate(oracle->model, sizes, o);
    initialize_weights(oracle->model, seed);
    return oracle;
}
void cpu_oracle_micro_step(CpuOracle* oracle, const int* x, const int* y, int64_t micro) {
    const Sizes& s = oracle->model.sizes;
    const float dloss = 1.0f / (float)(s.B * s.T * s.micro_steps);
    const Batch batch{x, y, s.B, s.T, dloss, micro, micro + 1 == s.micro_steps};
    forward<float>(oracle->model, batch);
    backward<float>(oracle->model, batch);
}
StepResult cpu_oracle_update(CpuOracle* oracle, const UpdateSettings& settings) {
    const StepResult result = loss_and_norm<float>(oracle->model, settings);
    if (result.wanted) update<float>(oracle->model, settings, result);
    return result;
}
void cpu_oracle_end(CpuOracle* oracle) { delete oracle; }  // the rest of its memory is freed when the program ends
std::vector<float> cpu_oracle_codes(const CodeMatrix& m, const float* weights) {
    reference::encode_weights(m, weights);
    return reference::decoded<float>(m);
}
