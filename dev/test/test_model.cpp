// The CPU model in fp32 (in bf16: test_model_bf16.cpp): the tests of model_tests.h, its plan, and
// stochastic rounding.
#define TRAINER_WITHOUT_MAIN
#include "train_gpt2_cpu.cpp"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/model/initial_weights.h"
#include "llmc/options/learning_rate.h"

#ifndef TEST_FLOATX
#define TEST_FLOATX float
#endif
typedef TEST_FLOATX floatX;
typedef GPT2 Model;

static Model make_model(const GPT2Config& config, int64_t B, int64_t T, int64_t recompute, int64_t threads,
                        int64_t micro_steps, const Options& options = {}) {
    Model model;
    model.backend = &cpu_backend<floatX>();
    model.evaluate = evaluate<floatX>, model.prefill = prefill<floatX>, model.decode = decode<floatX>;
    Options o = options;
    o.threads = threads;
    Sizes sizes{config, B, T, recompute, config.maxT, 0, true, micro_steps};
    sizes.recompute_every = o.recompute_every, sizes.end_of_text = o.end_of_text;
    sizes.compressed_activations = o.compress_activations;
    model.layout = parameter_layout(config, 1);
    model.backend->settle(model, sizes, o);
    model.backend->allocate(model, sizes, o);
    return model;
}
static void free_model(Model& model) {
    const int64_t elems = model.layout.total_elems();
    for (void* p : {model.m, model.v, (void*)model.master})
        if (p) unmap_memory(p, elems * sizeof(float));
    unmap_memory(model.params, elems * sizeof(floatX));
    unmap_memory(model.grads, elems * model.sizes.gradient_bytes());
    unmap_memory(model.acts, model.activations.total_bytes);
    free_scratch();
}
static void micro_step(
    Model& model, const Batch& batch, std::function<void()> between = [] {}) {
    forward<floatX>(model, batch);
    between();
    backward<floatX>(model, batch);
}
static StepResult update(Model& model, const UpdateSettings& settings) {
    const StepResult result = loss_and_norm<floatX>(model, settings);
    if (result.wanted) update<floatX>(model, settings, result);
    return result;
}
static double loss_sum(Model& model) { return model.loss_sum; }
static void set_gradient(Model& model, int tensor, int64_t layer, int64_t i, float value) {
    if (model.sizes.sums_gradients()) grad<float>(model, tensor, layer)[i] = value;
    else grad<floatX>(model, tensor, layer)[i] = value;
}
static std::vector<float> all_gradients(Model& model) {
    const int64_t elems = model.layout.total_elems();
    return model.sizes.sums_gradients() ? std::vector<float>((float*)model.grads, (float*)model.grads + elems)
                                        : std::vector<float>((floatX*)model.grads, (floatX*)model.grads + elems);
}
static std::vector<float> all_weights(Model& model) {
    const int64_t elems = model.layout.total_elems();
    return model.master ? std::vector<float>(model.master, model.master + elems)
                        : std::vector<float>((floatX*)model.params, (floatX*)model.params + elems);
}

#include "dev/test/model_tests.h"

static int64_t planned(Model& model, const Options& o, const std::string& category) {
    int64_t bytes = 0;
    for (const PlanRow& row : model.backend->plan_rows(model, model.sizes, o))
        if (row.category == category) bytes += row.bytes;
    return bytes;
}
static void plan_is_exact() {
    start_test("the plan adds up to what is allocated, at every recompute level");
    std::map<std::pair<int64_t, int64_t>, int64_t> activations;
    for (auto [level, every] : LEVELS_OF_5_LAYERS) {
        Options o;
        o.recompute_every = every, o.end_of_text = 0;
        Model model = make_model(GPT2Config{40, 97, 128, 5, 3, 48}, 3, 33, level, 2, 1, o);
        const int64_t elems = model.layout.total_elems();
        EXPECT(planned(model, o, "parameters") == elems * (int64_t)sizeof(floatX));
        EXPECT(planned(model, o, "optimizer") == elems * (HALF ? 12 : 8));
        EXPECT(planned(model, o, "activations") == model.activations.total_bytes);
        activations[{level, every}] = model.activations.total_bytes;
        free_model(model);
    }
    start_test("memory of level 4: one layer at a time is level 3, all at a time is level 0; more between them");
    EXPECT((activations[{4, 1}] == activations[{3, 1}] && activations[{4, 5}] == activations[{0, 1}]));
    EXPECT((activations[{4, 1}] < activations[{4, 2}] && activations[{4, 2}] < activations[{4, 3}] &&
            activations[{4, 3}] < activations[{4, 5}]));
}

struct PlannedBytes {
    double activations, all;
};
template <class X>
static PlannedBytes plan_of_124m(int64_t B, int64_t T, int64_t level, bool master_weights) {
    GPT2 model;
    model.backend = &cpu_backend<X>();
    Options options;
    options.master_weights = master_weights;
    model.layout = parameter_layout(config_from_descriptor("d12"), 1);
    Sizes sizes{model.layout.config, B, T, level, 0, 0, true};
    model.backend->settle(model, sizes, options);
    const std::vector<PlanRow> rows = model.backend->plan_rows(model, sizes, options);
    int64_t activations = 0;
    for (const PlanRow& row : rows) activations += row.category == "activations" ? row.bytes : 0;
    return {(double)activations, (double)plan_bytes(rows)};
}
static void bf16_takes_less_memory() {
    start_test(
        "GPT-2 124M in memory: bf16 activations at most 0.55 of fp32's, all of it no more, at most 0.85 without master "
        "weights");
    for (auto [B, T] : {std::pair<int64_t, int64_t>{4, 64}, {4, 256}, {1, 1024}})
        for (int64_t level : {0, 1}) {
            const PlannedBytes fp32 = plan_of_124m<float>(B, T, level, true);
            const PlannedBytes half = plan_of_124m<bf16>(B, T, level, true);
            const PlannedBytes rounded = plan_of_124m<bf16>(B, T, level, false);
            EXPECT(half.activations <= 0.55 * fp32.activations);
            EXPECT(half.all <= fp32.all);
            EXPECT(rounded.all <= 0.85 * fp32.all);
        }
}

static void stochastic_rounding() {
    start_test("without master weights: the same bits again, other bits with another seed");
    const GPT2Config c = load_config(FIXTURES + "a.bin");
    const DebugState d = load_debug_state(FIXTURES + "a_debug_state.bin", c);
    Options o;
    o.master_weights = 0;
    auto weights = [&](uint64_t seed, int64_t threads) {
        Model model = make_model(c, d.B, d.T, 0, threads, 1, o);
        load_model(model, FIXTURES + "a.bin");
        EXPECT(!model.master);
        micro_step(model, {d.x.data(), d.y.data(), d.B, d.T, 1.0f / (float)(d.B * d.T)});
        UpdateSettings settings;
        settings.constants = update_constants(1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1);
        settings.tokens = (double)(d.B * d.T), settings.rounding_seed = seed;
        update(model, settings);
        const std::vector<float> result = all_weights(model);
        free_model(model);
        return result;
    };
    const std::vector<float> first = weights(7, 1), other = weights(8, 3);
    EXPECT(first == weights(7, 3));
    EXPECT((first != other) == HALF);
}

static void mean_of_stochastic_rounding() {
    start_test("stochastic rounding: the mean of many updated weights is right");
    // Updates of 1e-4 downwards from 1, below which bf16 numbers are 2^-8 apart: rounding to
    // nearest would lose each of them.
    const double step = 1e-4, weight = 1, spacing = 1.0 / 256;
    const size_t n = 1 << 16;
    std::vector<bf16> params(n, bf16((float)weight));
    const std::vector<bf16> grads(n, bf16(1.0f));
    std::vector<float> m(n), v(n);
    const UpdateConstants constants = update_constants((float)step, 0.9f, 0.95f, 1e-8f, 0.0f, 1.0f, 1);
    adamw_update(params.data(), (float*)nullptr, m.data(), v.data(), grads.data(), n, constants, 3, 0);
    double mean = 0;
    for (bf16 p : params) mean += (float)p / (double)n;
    // Each weight goes down by `spacing` with probability step / spacing.
    const double deviation = spacing * std::sqrt(step / spacing / (double)n);
    EXPECT(std::fabs(mean - (weight - step)) < 4 * deviation);
}

// test_model FOLDER/ NAME...: instead of all tests, models that a script has made (hugging_face.py)
// against PyTorch's numbers.
int main(int argc, char** argv) {
    for (int i = 2; i < argc; i++) against_pytorch(argv[i], argv[1]);
    if (argc > 1) return report_tests();
    model_tests();
    plan_is_exact();
    bf16_takes_less_memory();
    stochastic_rounding();
    mean_of_stochastic_rounding();
    return report_tests();
}
