// The CPU model against PyTorch's numbers: logits, loss, every gradient, ten steps of AdamW, initial weights; then its invariants, bitwise.
#define TRAINER_WITHOUT_MAIN
#include "train_gpt2_cpu.cpp"
#include "dev/test/test.h"

static const std::string FIXTURES = "dev/test/fixtures/";

static void free_model(GPT2& g) {
    for (floatX* p : {g.params, g.grads, g.m, g.v})
        if (p) unmap_memory(p, g.layout.total_elems() * sizeof(floatX));
    unmap_memory(g.acts, g.activations.total_elems * sizeof(floatX));
    unmap_memory(device.scratch, device.threads * device.scratch_elems * sizeof(float));
}

static GPT2 make_model(const GPT2Config& config, int64_t B, int64_t T, int64_t recompute, int64_t threads) {
    GPT2 g;
    Options o;
    o.threads = threads;
    Sizes sizes{config, B, T, recompute, config.maxT, 0, true};
    g.layout = parameter_layout(config, 1);
    settle_device(g, sizes, o);
    allocate(g, sizes, o);
    return g;
}

static GPT2Config load_config(const std::string& path) {
    FileReader file(path);
    GPT2Config config;
    read_model_header(file, config);
    return config;
}

struct DebugState {
    int64_t B, T;
    std::vector<int> x, y;
    std::vector<float> logits, grads;
    float loss;
};
static DebugState load_debug_state(const std::string& path, const GPT2Config& c) {
    FileReader file(path);
    Header h;
    h.read(file, 20240327, "debug state");
    DebugState d;
    d.B = h.value[2], d.T = h.value[3];
    const int64_t rows = d.B * d.T;
    d.x.resize(rows), d.y.resize(rows), d.logits.resize(rows * c.V), d.grads.resize((file.size_bytes - 1024 - rows * 8 - rows * c.V * 4 - 4) / 4);
    file.read(d.x.data(), rows * 4, "x"), file.read(d.y.data(), rows * 4, "y"), file.read(d.logits.data(), rows * c.V * 4, "logits");
    file.read(&d.loss, 4, "loss"), file.read(d.grads.data(), d.grads.size() * 4, "gradients");
    return d;
}

// The third of qkvb that belongs to the keys: its gradient is zero in exact arithmetic (a constant added to all scores of a query), so what is
// left is noise, and Adam makes full steps of it. In sequences of one token a query has one key, whose probability is 1 whatever the score:
// then this holds for all that makes queries and keys.
static bool has_no_gradient(int tensor, int64_t i, int64_t C, int64_t T) {
    if (tensor == QKVW) return T == 1 && i < 2 * C * C;
    return tensor == QKVB && i < 2 * C && (i >= C || T == 1);
}

static void against_pytorch(const std::string& name) {
    const GPT2Config c = load_config(FIXTURES + name + ".bin");
    DebugState d = load_debug_state(FIXTURES + name + "_debug_state.bin", c);
    GPT2 g = make_model(c, d.B, d.T, 0, 2);
    load_model(g, FIXTURES + name + ".bin");
    start_test(name + ": loss and gradients are PyTorch's");
    const double loss = micro_step(g, d.x.data(), d.y.data(), d.B, d.T, 1.0f / (float)(d.B * d.T), false) / (double)(d.B * d.T);
    EXPECT(std::fabs(loss - d.loss) <= 2e-6 * d.loss);
    size_t at = 0;
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0; l < tensor_layers(i, c); l++, at += tensor_elems(i, c)) {
            const double error = relative_error(g.grad(i, l), d.grads.data() + at, tensor_elems(i, c));
            if (!EXPECT(error < 1e-5)) printf("    %s layer %d: error %.3g\n", TENSORS[i].name, (int)l, error);
        }
    EXPECT(at == d.grads.size());
    start_test(name + ": logits, one position at a time through the key/value cache, are PyTorch's");
    for (int64_t b = 0; b < d.B; b++)
        for (int64_t t = 0; t < d.T; t++) EXPECT(relative_error(decode(g, d.x[b * d.T + t], t), d.logits.data() + (b * d.T + t) * c.V, c.V) < 1e-5);
    start_test(name + ": losses without gradients are those with");
    std::vector<float> losses(d.B * d.T);
    evaluate(g, d.x.data(), d.y.data(), d.B, d.T, losses.data());
    double total = 0;
    for (float l : losses) total += l;
    EXPECT(std::fabs(total / (double)losses.size() - loss) < 1e-6);
    free_model(g);
}

struct TenSteps { std::vector<double> losses, norms; std::vector<float> weights; };

// Ten steps with accumulation, clipping and a schedule, over windows of the recorded tokens in order.
static TenSteps run_ten_steps(const std::string& name, const std::string& schedule, int64_t recompute, int64_t threads, std::vector<double>* rates) {
    const GPT2Config c = load_config(FIXTURES + name + ".bin");
    const DebugState d = load_debug_state(FIXTURES + name + "_debug_state.bin", c);
    const int64_t B = d.B, T = d.T, micro_steps = 2;
    GPT2 g = make_model(c, B, T, recompute, threads);
    load_model(g, FIXTURES + name + ".bin");
    DataLoader data;
    dataloader_open(data, "-i", FIXTURES + name + "_tokens.bin", T, c.V, 1, false);
    TenSteps result;
    std::vector<int> x(B * T), y(B * T);
    for (int64_t step = 0; step < 10; step++) {
        double loss = 0;
        for (int64_t micro = 0; micro < micro_steps; micro++) {
            for (int64_t b = 0; b < B; b++) load_window(data, (step * micro_steps + micro) * B + b, &x[b * T], &y[b * T]);
            loss += micro_step(g, x.data(), y.data(), B, T, 1.0f / (float)(B * T * micro_steps), micro > 0);
        }
        const double norm = gradient_norm(g), rate = learning_rate_at(schedule, step, 10, 2, 3e-3, 0.1);
        update(g, adamw_constants((float)rate, 0.9f, 0.95f, 1e-8f, 0.0f, norm > 0.7 ? (float)(0.7 / norm) : 1.0f, step + 1), 0.1f);
        result.losses.push_back(loss / (double)(B * T * micro_steps)), result.norms.push_back(norm);
        if (rates) rates->push_back(rate);
    }
    result.weights.assign(g.params, g.params + g.layout.total_elems());
    free_model(g);
    return result;
}

static void ten_steps_against_pytorch(const std::string& name, const std::string& schedule) {
    start_test(name + ": ten steps of AdamW with clipping, accumulation and " + schedule + " are PyTorch's");
    const GPT2Config c = load_config(FIXTURES + name + ".bin");
    std::vector<double> rates;
    const TenSteps ours = run_ten_steps(name, schedule, 1, 2, &rates);
    FILE* file = fopen((FIXTURES + name + "_run.txt").c_str(), "r");
    double loss, norm, rate;
    int steps = 0;
    for (; file && fscanf(file, "%lf %lf %lf", &loss, &norm, &rate) == 3; steps++) {
        EXPECT(std::fabs(ours.losses[steps] - loss) <= 1e-5 * loss);
        EXPECT(std::fabs(ours.norms[steps] - norm) <= 1e-4 * norm);
        EXPECT(std::fabs(rates[steps] - rate) <= 1e-9);
    }
    if (file) fclose(file);
    EXPECT(steps == 10);
    const int64_t T = load_debug_state(FIXTURES + name + "_debug_state.bin", c).T;
    GPT2 after = make_model(c, 1, 1, 0, 1);
    load_model(after, FIXTURES + name + "_after.bin");
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0; l < tensor_layers(i, c); l++) {
            double worst = 0;
            for (int64_t k = 0; k < tensor_elems(i, c); k++) {
                const double difference = std::fabs(ours.weights[after.layout.offset(i, l) + k] - after.param(i, l)[k]);
                if (!has_no_gradient(i, k, c.C, T)) worst = difference <= worst ? worst : difference;  // NaN stays
            }
            // a step is at most about lr = 3e-3; where the gradient itself is at the level of rounding, Adam's ratio m/sqrt(v) is not determined
            if (!EXPECT(worst < 2e-4)) printf("    %s layer %d: %.3g\n", TENSORS[i].name, (int)l, worst);
        }
    free_model(after);
}

static void invariants(const std::string& name) {
    const TenSteps base = run_ten_steps(name, "cosine", 0, 1, nullptr);
    auto same = [&](const TenSteps& other) { return base.losses == other.losses && base.norms == other.norms && base.weights == other.weights; };
    start_test(name + ": the same bits on a second run, on 2 and on 3 threads");
    EXPECT(same(run_ten_steps(name, "cosine", 0, 1, nullptr)) && same(run_ten_steps(name, "cosine", 0, 2, nullptr)) && same(run_ten_steps(name, "cosine", 0, 3, nullptr)));
    for (int64_t level = 1; level <= 3; level++) {
        start_test(name + format(": the same bits at recompute level %d", (int)level));
        EXPECT(same(run_ten_steps(name, "cosine", level, 2, nullptr)));
    }
    start_test(name + ": the comparison sees one bit");
    TenSteps changed = base;
    changed.weights[3] = std::nextafter(changed.weights[3], 1e9f);
    EXPECT(!same(changed));
}

static void initial_weights() {
    start_test("initial weights are the numbers that PyTorch draws");
    const GPT2Config c = load_config(FIXTURES + "init_42.bin");
    GPT2 ours = make_model(c, 1, 1, 0, 1), theirs = make_model(c, 1, 1, 0, 1);
    initialize_weights(ours, 42);
    load_model(theirs, FIXTURES + "init_42.bin");
    double worst = 0;
    for (int64_t i = 0; i < ours.layout.total_elems(); i++) worst = std::fmax(worst, std::fabs(ours.params[i] - theirs.params[i]));
    EXPECT(worst < 1e-6);
    initialize_weights(ours, 43);
    worst = 0;
    for (int64_t i = 0; i < ours.layout.total_elems(); i++) worst = std::fmax(worst, std::fabs(ours.params[i] - theirs.params[i]));
    EXPECT(!(worst < 1e-6));
    start_test("a model goes to the order of the file and back, byte for byte");
    const std::string path = format("/tmp/gpt2_test_%d.bin", (int)getpid());
    write_model(path, c, [&](int tensor, int64_t layer) { return tensor_data(ours, tensor, layer); });
    load_model(theirs, path);
    EXPECT(memcmp(ours.params, theirs.params, ours.layout.total_elems() * sizeof(float)) == 0);
    unlink(path.c_str());
}

static void accumulation() {
    start_test("a batch in one micro-step or in several: the same gradient to rounding");
    const GPT2Config c = load_config(FIXTURES + "a.bin");
    const DebugState d = load_debug_state(FIXTURES + "a_debug_state.bin", c);
    GPT2 g = make_model(c, d.B, d.T, 1, 2);
    load_model(g, FIXTURES + "a.bin");
    micro_step(g, d.x.data(), d.y.data(), d.B, d.T, 0.01f, false);
    const std::vector<float> whole(g.grads, g.grads + g.layout.total_elems());
    for (int64_t b = 0; b < d.B; b++) micro_step(g, d.x.data() + b * d.T, d.y.data() + b * d.T, 1, d.T, 0.01f, b > 0);
    EXPECT(relative_error(g.grads, whole.data(), whole.size()) < 1e-6);
    free_model(g);
}

static void plan_is_exact() {
    start_test("the plan adds up to what is allocated, at every recompute level");
    for (int64_t level = 0; level <= 3; level++) {
        GPT2 g = make_model(GPT2Config{40, 97, 128, 3, 3, 48}, 3, 33, level, 2);
        Options o;
        int64_t params = 0, activations = 0, optimizer = 0;
        for (const PlanRow& row : plan_rows(g.sizes, o, &g)) {
            if (row.category == "parameters") params += row.bytes;
            if (row.category == "activations") activations += row.bytes;
            if (row.category == "optimizer") optimizer += row.bytes;
        }
        EXPECT(params == g.layout.total_elems() * 4 && optimizer == g.layout.total_elems() * 8 && activations == g.activations.total_elems * 4);
        free_model(g);
    }
}

int main() {
    for (const char* name : {"a", "b", "c"}) against_pytorch(name);
    ten_steps_against_pytorch("a", "cosine");
    ten_steps_against_pytorch("b", "wsd");
    ten_steps_against_pytorch("c", "cosine");
    invariants("a");
    invariants("b");
    initial_weights();
    accumulation();
    plan_is_exact();
    return report_tests();
}
