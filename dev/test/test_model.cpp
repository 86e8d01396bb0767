// The CPU model: the tests of model_tests.h, and its plan.
#define TRAINER_WITHOUT_MAIN
#include "train_gpt2_cpu.cpp"

static GPT2 make_model(const GPT2Config& config, int64_t B, int64_t T, int64_t recompute, int64_t threads, int64_t micro_steps) {
    GPT2 g;
    Options o;
    o.threads = threads;
    Sizes sizes{config, B, T, recompute, config.maxT, 0, true, micro_steps};
    g.layout = parameter_layout(config, 1);
    settle_device(g, sizes, o);
    allocate(g, sizes, o);
    return g;
}
static void free_model(GPT2& g) {
    for (floatX* p : {g.params, g.grads, g.m, g.v})
        if (p) unmap_memory(p, g.layout.total_elems() * sizeof(floatX));
    unmap_memory(g.acts, g.activations.total_bytes);
    unmap_memory(device.scratch, device.threads * device.scratch_elems * sizeof(float));
}
static double loss_sum(GPT2& g) { return g.loss_sum; }
static std::vector<float> all_gradients(GPT2& g) { return std::vector<float>(g.grads, g.grads + g.layout.total_elems()); }
static std::vector<float> all_weights(GPT2& g) { return std::vector<float>(g.params, g.params + g.layout.total_elems()); }

#include "dev/test/model_tests.h"

static void plan_is_exact() {
    start_test("the plan adds up to what is allocated, at every recompute level");
    for (int64_t level = 0; level <= 3; level++) {
        GPT2 g = make_model(GPT2Config{40, 97, 128, 3, 3, 48}, 3, 33, level, 2, 1);
        Options o;
        int64_t params = 0, activations = 0, optimizer = 0;
        for (const PlanRow& row : plan_rows(g.sizes, o, &g)) {
            if (row.category == "parameters") params += row.bytes;
            if (row.category == "activations") activations += row.bytes;
            if (row.category == "optimizer") optimizer += row.bytes;
        }
        EXPECT(params == g.layout.total_elems() * 4 && optimizer == g.layout.total_elems() * 8 && activations == g.activations.total_bytes);
        free_model(g);
    }
}

int main() {
    model_tests();
    plan_is_exact();
    return report_tests();
}
