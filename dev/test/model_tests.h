// A model against PyTorch's numbers: logits, loss, every gradient, ten steps of AdamW, initial
// weights. Then its invariants, bit for bit. The same tests run for both trainers and each
// precision. A test program includes one trainer, and defines before it includes this header:
//
//     types Model (GPT2), floatX
//     Model make_model(config, B, T, recompute, variant, micro_steps)
//                  variant: something that must not change a bit; on the CPU the number of threads
//     void free_model(Model&)
//     void micro_step(Model&, const Batch&, between)   its gradients; between() is called after the forward pass
//     StepResult update(Model&, const UpdateSettings&)
//     double loss_sum(Model&)
//     void set_gradient(Model&, tensor, layer, i, float)
//                  an element of what the backward pass has just written
//     std::vector<float> all_gradients(Model&), all_weights(Model&)
//                  in the order of memory; of the weights the most exact copy
#pragma once
#include <unistd.h>
#include <set>
#include "dev/test/test.h"
#include "dev/test/token_files.h"

static const std::string FIXTURES = "dev/test/fixtures/";

// How far from exact a result may be, relative to its largest value. In fp32 the errors come from
// sums of many terms.
static const bool HALF = sizeof(floatX) == 2, FP16 = is_fp16<floatX>();
static const double HALF_ROUNDOFF = FP16 ? FP16_ROUNDOFF : BF16_ROUNDOFF;
static double model_tolerance(int64_t L) { return HALF ? bf16_model_tolerance((double)L, HALF_ROUNDOFF) : 1e-5; }
static double loss_tolerance() { return HALF ? bf16_loss_tolerance(HALF_ROUNDOFF) : 2e-6; }
// The loss scale of the steps of a run, as in fixtures.py.
static const double LOSS_SCALE = FP16 ? 1024 : 1;

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
    const int64_t rows = d.B * d.T, header_bytes = 1024, before_grads = header_bytes + rows * 8 + rows * c.V * 4 + 4;
    d.x.resize(rows);
    d.y.resize(rows);
    d.logits.resize(rows * c.V);
    d.grads.resize((file.size_bytes - before_grads) / 4);
    file.read(d.x.data(), rows * 4, "x");
    file.read(d.y.data(), rows * 4, "y");
    file.read(d.logits.data(), rows * c.V * 4, "logits");
    file.read(&d.loss, 4, "loss");
    file.read(d.grads.data(), d.grads.size() * 4, "gradients");
    return d;
}

// Elements whose gradient is zero in exact arithmetic, so that the computed one is noise, and Adam
// makes full steps of it. One is the key third of qkvb: it adds a constant to all scores of a
// query, which the softmax cancels. In sequences of one token a query has one key, whose
// probability is 1 whatever its score, so all parameters of queries and keys are such elements.
static bool has_no_gradient(int tensor, int64_t i, int64_t C, int64_t T) {
    if (tensor == QKVW) return T == 1 && i < 2 * C * C;
    return tensor == QKVB && i < 2 * C && (i >= C || T == 1);
}

// The fixture has the errors of PyTorch's own 16-bit run of the same model. Its largest error must
// be within our tolerance, so that the tolerance is not too tight. Ours must on average be at most
// 1.5 times as large as PyTorch's.
static void half_errors_as_pytorchs(const std::string& name, const std::vector<double>& errors, double tolerance) {
    start_test(name + ": errors of " + type_name<floatX>() + " are of the size of PyTorch's");
    FILE* file = fopen((FIXTURES + name + "_" + type_name<floatX>() + ".txt").c_str(), "r");
    double theirs = 0, ours = 0, error = 0;
    EXPECT(file && fscanf(file, "%lf", &error) == 1 && error < loss_tolerance());
    for (double e : errors) {
        EXPECT(file && fscanf(file, "%lf", &error) == 1 && error < tolerance);
        theirs += error, ours += e;
    }
    EXPECT(ours <= 1.5 * theirs);
    if (file) fclose(file);
}

// Forward and backward pass over the batch of a fixture. Compares loss and gradients; returns the
// errors of the gradients, tensor by tensor.
static std::vector<double> step_as_pytorchs(Model& model, const DebugState& d) {
    const GPT2Config& c = model.layout.config;
    micro_step(model, {d.x.data(), d.y.data(), d.B, d.T, 1.0f / (float)(d.B * d.T)});
    const double loss = loss_sum(model) / (double)(d.B * d.T), tolerance = model_tolerance(c.L);
    EXPECT(std::fabs(loss - d.loss) <= loss_tolerance() * d.loss);
    const std::vector<float> grads = all_gradients(model);
    std::vector<double> errors;
    size_t at = 0;
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0; l < tensor_layers(i, c); l++, at += tensor_elems(i, c)) {
            errors.push_back(
                relative_error(grads.data() + model.layout.offset(i, l), d.grads.data() + at, tensor_elems(i, c)));
            // In sequences of one token these gradients are mostly zero in exact arithmetic.
            const bool noise = HALF && d.T == 1 && (i == QKVW || i == QKVB) && errors.back() < 1;
            if (!noise && !EXPECT(errors.back() < tolerance))
                printf("    %s layer %d: error %.3g\n", TENSORS[i].name, (int)l, errors.back());
        }
    EXPECT(at == d.grads.size());
    return errors;
}
static void losses_alone(Model& model, const DebugState& d) {
    std::vector<float> losses(d.B * d.T);
    model.evaluate(model, d.x.data(), d.y.data(), d.B, d.T, losses.data());
    double total = 0;
    for (float l : losses) total += l;
    EXPECT(std::fabs(total - loss_sum(model)) < 1e-6 * total);
}

// Logits through the cache of generation: one position at a time, and after prompts.
static void generation_as_pytorchs(const std::string& name, Model& model, const DebugState& d) {
    const GPT2Config& c = model.layout.config;
    const double tolerance = model_tolerance(c.L);
    start_test(name + ": logits, one position at a time through the key/value cache, are PyTorch's");
    for (int64_t b = 0; b < d.B; b++)
        for (int64_t t = 0; t < d.T; t++)
            EXPECT(relative_error(model.decode(model, d.x[b * d.T + t], t), d.logits.data() + (b * d.T + t) * c.V,
                                  c.V) < tolerance);
    start_test(name + ": logits after a prompt in one forward pass, and of the position after it, are PyTorch's");
    std::set<int64_t> lengths;
    for (int64_t n : {(int64_t)1, (int64_t)2, (int64_t)17, d.T - 1, d.T})
        if (n >= 1 && n <= d.T) lengths.insert(n);
    for (int64_t b = 0; b < d.B; b++)
        for (int64_t n : lengths) {
            const float* theirs = d.logits.data() + (b * d.T + n - 1) * c.V;
            EXPECT(relative_error(model.prefill(model, &d.x[b * d.T], n), theirs, c.V) < tolerance);
            if (n < d.T)
                EXPECT(relative_error(model.decode(model, d.x[b * d.T + n], n), theirs + c.V, c.V) < tolerance);
        }
}

static void against_pytorch(const std::string& name, const std::string& folder = FIXTURES) {
    const GPT2Config c = load_config(folder + name + ".bin");
    const DebugState d = load_debug_state(folder + name + "_debug_state.bin", c);
    const double tolerance = model_tolerance(c.L);
    Model model = make_model(c, d.B, d.T, 0, 2, 1);
    load_model(model, folder + name + ".bin");
    start_test(name + ": loss and gradients are PyTorch's");
    const std::vector<double> errors = step_as_pytorchs(model, d);
    if (HALF) half_errors_as_pytorchs(name, errors, tolerance);
    generation_as_pytorchs(name, model, d);
    start_test(name + ": losses without gradients are those with");
    losses_alone(model, d);
    free_model(model);
}

// The gradients of a batch with token `end_of_text` as the beginning of documents; -1: no mask.
static std::vector<float> gradients_with_documents(const DebugState& d, int64_t end_of_text) {
    Options o;
    o.end_of_text = end_of_text;
    Model model = make_model(load_config(FIXTURES + "b.bin"), d.B, d.T, 0, 2, 1, o);
    load_model(model, FIXTURES + "b.bin");
    micro_step(model, {d.x.data(), d.y.data(), d.B, d.T, 1.0f / (float)(d.B * d.T)});
    const std::vector<float> grads = all_gradients(model);
    free_model(model);
    return grads;
}
static void documents() {
    start_test("documents: loss and gradients are those of PyTorch with a block mask");
    const GPT2Config c = load_config(FIXTURES + "b.bin");
    DebugState d = load_debug_state(FIXTURES + "b_documents_debug_state.bin", c);
    Options o;
    o.end_of_text = 0;
    Model model = make_model(c, d.B, d.T, 0, 2, 1, o);
    load_model(model, FIXTURES + "b.bin");
    step_as_pytorchs(model, d);
    start_test("documents: losses without gradients are those with");
    losses_alone(model, d);
    free_model(model);
    start_test("documents: without the mask the gradients are others; without end of text the same bits");
    EXPECT(!(relative_error(gradients_with_documents(d, -1), gradients_with_documents(d, 0)) < model_tolerance(c.L)));
    for (int& token : d.x) token = std::max(token, 1);
    EXPECT(gradients_with_documents(d, -1) == gradients_with_documents(d, 0));
}

// Windows of attention: the gradients at a recompute level.
static std::vector<float> gradients_with_window(const std::string& name, const DebugState& d, AttentionWindow window,
                                                int end_of_text, int64_t recompute) {
    Options o;
    o.end_of_text = end_of_text, o.recompute_every = 2;
    GPT2Config c = load_config(FIXTURES + name + ".bin");
    c.window = window;
    Model model = make_model(c, d.B, d.T, recompute, 2, 1, o);
    load_model(model, FIXTURES + name + ".bin");
    micro_step(model, {d.x.data(), d.y.data(), d.B, d.T, 1.0f / (float)(d.B * d.T)});
    const std::vector<float> grads = all_gradients(model);
    free_model(model);
    return grads;
}
static void window(const std::string& name, AttentionWindow window, int end_of_text) {
    GPT2Config c = load_config(FIXTURES + name + ".bin");
    c.window = window;
    const DebugState d = load_debug_state(FIXTURES + name + "_window_debug_state.bin", c);
    Options o;
    o.end_of_text = end_of_text;
    Model model = make_model(c, d.B, d.T, 0, 2, 1, o);
    load_model(model, FIXTURES + name + ".bin");
    const std::string text = name + format(" with a window of %d", (int)window.positions);
    start_test(text + ": loss and gradients are PyTorch's");
    step_as_pytorchs(model, d);
    if (end_of_text < 0) generation_as_pytorchs(text, model, d);
    start_test(text + ": losses without gradients are those with");
    losses_alone(model, d);
    free_model(model);
    const auto gradients = [&](AttentionWindow w, int64_t recompute = 0) {
        return gradients_with_window(name, d, w, end_of_text, recompute);
    };
    start_test(text + ": others than without, and without if it is as long as the sequence; -r changes no bit");
    EXPECT(!(relative_error(gradients(window), gradients({})) < model_tolerance(c.L)));
    EXPECT(gradients({d.T}) == gradients({}));
    for (int64_t level : {1, 2, 3, 4}) EXPECT(gradients(window, level) == gradients(window));
}

// --seq-warmup: the rows of a batch (B,T) are cut, and computed as (2B,T/2), after a step on (B,T).
static void cut_sequences() {
    start_test("sequences cut into two: loss and gradients are those of PyTorch on the cut batch");
    const GPT2Config c = load_config(FIXTURES + "b.bin");
    const DebugState d = load_debug_state(FIXTURES + "b_cut_debug_state.bin", c);
    EXPECT(d.B == 4 && d.T == 35);
    for (int64_t recompute : {0, 3}) {
        Model model = make_model(c, 2, 70, recompute, 2, 1);
        load_model(model, FIXTURES + "b.bin");
        micro_step(model, {d.x.data(), d.y.data(), 2, 70, 1.0f / 140});
        const std::vector<float> whole = all_gradients(model);
        step_as_pytorchs(model, d);
        EXPECT(!(relative_error(whole, all_gradients(model)) < model_tolerance(c.L)));
        losses_alone(model, d);
        free_model(model);
    }
}

struct TenSteps {
    std::vector<double> losses, norms;
    std::vector<float> weights;
};

// Ten steps with accumulation, clipping and a schedule, over the tokens of the fixture in order.
struct TenStepRun {
    GPT2Config config;
    int64_t B, T;
    std::string schedule;
    DataLoader data;
    static constexpr int64_t micro_steps = 2;
    double scale = LOSS_SCALE;

    TenStepRun(const std::string& name, const std::string& schedule)
        : config(load_config(FIXTURES + name + ".bin")), schedule(schedule) {
        const DebugState d = load_debug_state(FIXTURES + name + "_debug_state.bin", config);
        B = d.B, T = d.T;
        dataloader_open(data, "-i", FIXTURES + name + "_tokens.bin", T, config.V, 1, false);
    }
    double rate(int64_t step) const { return learning_rate_at(schedule, step, 10, 2, 3e-3, 0.1); }
    StepResult run_step(Model& model, int64_t step) {
        std::vector<int> x(B * T), y(B * T);
        for (int64_t micro = 0; micro < micro_steps; micro++) {
            for (int64_t b = 0; b < B; b++)
                load_window(data, (step * micro_steps + micro) * B + b, &x[b * T], &y[b * T]);
            micro_step(model, {x.data(), y.data(), B, T, (float)scale / (float)(B * T * micro_steps), micro,
                               micro + 1 == micro_steps});
        }
        UpdateSettings settings;
        settings.loss_scale = scale;
        settings.constants = update_constants((float)rate(step), 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, step + 1);
        settings.tokens = (double)(B * T * micro_steps), settings.grad_clip = 0.7, settings.rounding_seed = step;
        return update(model, settings);
    }
};

static TenSteps run_ten_steps(const std::string& name, const std::string& schedule, int64_t recompute, int64_t variant,
                              double scale = LOSS_SCALE) {
    TenStepRun run(name, schedule);
    run.scale = scale;
    Model model = make_model(run.config, run.B, run.T, recompute, variant, run.micro_steps);
    load_model(model, FIXTURES + name + ".bin");
    TenSteps result;
    for (int64_t step = 0; step < 10; step++) {
        const StepResult r = run.run_step(model, step);
        result.losses.push_back(r.loss), result.norms.push_back(r.norm);
    }
    result.weights = all_weights(model);
    free_model(model);
    return result;
}

// Compares with the same ten steps of PyTorch in 16 bits with fp32 master weights, which are lines
// 2 to 11 of the fixture.
static void ten_steps_as_pytorchs_half(const std::string& name, const TenSteps& ours, int64_t L) {
    start_test(name + ": ten steps in " + type_name<floatX>() + " are PyTorch's in that format");
    FILE* file = fopen((FIXTURES + name + "_" + type_name<floatX>() + ".txt").c_str(), "r");
    double loss = NAN, norm = NAN;
    for (int c = file ? fgetc(file) : EOF; c != '\n' && c != EOF; c = fgetc(file)) {}
    for (int step = 0; step < 10; step++) {
        EXPECT(file && fscanf(file, "%lf %lf", &loss, &norm) == 2);
        EXPECT(std::fabs(ours.losses[step] - loss) <= loss_tolerance() * loss &&
               std::fabs(ours.norms[step] - norm) <= model_tolerance(L) * norm);
    }
    EXPECT(file && fscanf(file, "%lf", &loss) == EOF);
    if (file) fclose(file);
}

static void ten_steps_against_pytorch(const std::string& name, const std::string& schedule) {
    start_test(name + ": ten steps of AdamW with clipping, accumulation and " + schedule + " are PyTorch's");
    const GPT2Config c = load_config(FIXTURES + name + ".bin");
    const TenSteps ours = run_ten_steps(name, schedule, 1, 2);
    const TenStepRun run(name, schedule);
    FILE* file = fopen((FIXTURES + name + "_run.txt").c_str(), "r");
    double loss, norm, rate;
    int steps = 0;
    for (; file && fscanf(file, "%lf %lf %lf", &loss, &norm, &rate) == 3; steps++) {
        EXPECT(std::fabs(ours.losses[steps] - loss) <= (HALF ? loss_tolerance() : 1e-5) * loss);
        EXPECT(std::fabs(ours.norms[steps] - norm) <= (HALF ? model_tolerance(c.L) : 1e-4) * norm);
        EXPECT(std::fabs(run.rate(steps) - rate) <= 1e-9);
    }
    if (file) fclose(file);
    EXPECT(steps == 10);
    // Weights are compared in fp32 only: where a gradient is small, Adam turns its rounding into
    // full steps.
    if (HALF) return ten_steps_as_pytorchs_half(name, ours, c.L);
    Model after = make_model(c, 1, 1, 0, 1, 1);
    load_model(after, FIXTURES + name + "_after.bin");
    const std::vector<float> theirs = all_weights(after);
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0; l < tensor_layers(i, c); l++) {
            const int64_t offset = after.layout.offset(i, l);
            double worst = 0;
            for (int64_t k = 0; k < tensor_elems(i, c); k++) {
                if (has_no_gradient(i, k, c.C, run.T)) continue;
                const double difference = std::fabs(ours.weights[offset + k] - theirs[offset + k]);
                worst = difference <= worst ? worst : difference;  // NaN stays
            }
            // A step is at most about lr = 3e-3. Where a gradient is no larger than its rounding
            // error, Adam's ratio m/sqrt(v) is undetermined.
            if (!EXPECT(worst < 2e-4)) printf("    %s layer %d: %.3g\n", TENSORS[i].name, (int)l, worst);
        }
    free_model(after);
}

static bool same_bits(const TenSteps& a, const TenSteps& b) {
    return a.losses == b.losses && a.norms == b.norms && a.weights == b.weights;
}

static void invariants(const std::string& name) {
    const TenSteps base = run_ten_steps(name, "cosine", 0, 1);
    start_test(name + ": the same bits on a second run, and as variants 2 and 3");
    for (int64_t variant : {1, 2, 3}) EXPECT(same_bits(base, run_ten_steps(name, "cosine", 0, variant)));
    for (int64_t level = 1; level <= 3; level++) {
        start_test(name + format(": the same bits at recompute level %d", (int)level));
        EXPECT(same_bits(base, run_ten_steps(name, "cosine", level, 2)));
    }
    start_test(name + ": a power of two as loss scale changes no bit where nothing under- or overflows");
    if (!FP16) EXPECT(same_bits(base, run_ten_steps(name, "cosine", 0, 1, 4096)));
    EXPECT(!same_bits(base, run_ten_steps(name, "cosine", 0, 1, 3 * LOSS_SCALE)));

    start_test(name + ": the comparison sees one bit");
    TenSteps changed = base;
    changed.weights[3] = std::nextafter(changed.weights[3], 1e9f);
    EXPECT(!same_bits(base, changed));

    start_test(name + ": the same bits through a checkpoint");
    const std::string dir = format("/tmp/gpt2_test_%d", (int)getpid());
    make_folder(dir);
    TenStepRun run(name, "cosine");
    Model first = make_model(run.config, run.B, run.T, 1, 1, run.micro_steps);
    load_model(first, FIXTURES + name + ".bin");
    for (int64_t step = 0; step < 4; step++) run.run_step(first, step);
    StateHeader header;
    header.step = 4, header.loss_scale.scale = LOSS_SCALE;
    save_checkpoint(dir, header, first);
    free_model(first);
    Model second = make_model(run.config, run.B, run.T, 1, 1, run.micro_steps);
    std::unique_ptr<FileReader> model_file;
    EXPECT(newest_checkpoint(dir, header, &model_file) == 4);
    load_checkpoint(dir, header, *model_file, second);
    for (int64_t step = 4; step < 10; step++) run.run_step(second, step);
    EXPECT(all_weights(second) == base.weights);
    free_model(second);
    remove_checkpoint(dir, 4);
    rmdir(dir.c_str());
}

// Recompute levels, and layers that level 4 recomputes at a time, of a model of 5 layers.
struct Recomputation {
    int64_t level, every;
};
constexpr Recomputation LEVELS_OF_5_LAYERS[] = {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {4, 2}, {4, 3}, {4, 5}};

// Losses, norm and weights of two steps of two micro-steps each, with drawn weights. end_of_text:
// -1 without a document mask. dropout: 0 without.
static TenSteps two_steps_of_5_layers(const Recomputation& r, int64_t end_of_text, double dropout = 0,
                                      int64_t threads = 2) {
    const GPT2Config config{17, 97, 128, 5, 2, 32};
    const int64_t B = 2, T = 17;
    Options o;
    o.recompute_every = r.every, o.end_of_text = end_of_text;
    Model model = make_model(config, B, T, r.level, threads, 2, o);
    initialize_weights(model, 1);
    std::vector<int> x(B * T), y(B * T);
    TenSteps result;
    for (int64_t step = 0; step < 2; step++) {
        for (int64_t micro = 0; micro < 2; micro++) {
            for (int64_t i = 0; i < B * T; i++)
                x[i] = (int)((i * i + 7 * i + 13 * micro + step) % 97), y[i] = (int)((5 * i + micro) % 97);
            const Dropout of_micro_step{dropout, 42, step, micro * B * T};
            micro_step(model, {x.data(), y.data(), B, T, 1.0f / (float)(2 * B * T), micro, micro == 1, of_micro_step});
        }
        UpdateSettings settings;
        settings.constants = update_constants(1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, step + 1);
        settings.tokens = (double)(2 * B * T);
        const StepResult updated = update(model, settings);
        result.losses.push_back(updated.loss), result.norms.push_back(updated.norm);
    }
    result.weights = all_weights(model);
    free_model(model);
    return result;
}
static void recomputation() {
    const TenSteps base = two_steps_of_5_layers(LEVELS_OF_5_LAYERS[0], -1);
    for (const Recomputation& r : LEVELS_OF_5_LAYERS) {
        start_test(format("5 layers: the same bits at recompute level %d, every %d", (int)r.level, (int)r.every));
        EXPECT(std::isfinite(base.losses[1]) && same_bits(base, two_steps_of_5_layers(r, -1)));
    }
    start_test("5 layers with documents: the same bits at recompute levels 3 and 4, others than without");
    const TenSteps masked = two_steps_of_5_layers({0, 1}, 8);
    EXPECT(std::isfinite(masked.losses[1]) && !same_bits(base, masked));
    EXPECT(same_bits(masked, two_steps_of_5_layers({3, 1}, 8)) && same_bits(masked, two_steps_of_5_layers({4, 2}, 8)));
    start_test(
        "5 layers with dropout: the same bits at every recompute level, on 1 and 3 threads; others than without");
    const TenSteps dropped = two_steps_of_5_layers(LEVELS_OF_5_LAYERS[0], -1, 0.2);
    EXPECT(std::isfinite(dropped.losses[1]) && !same_bits(base, dropped));
    for (const Recomputation& r : LEVELS_OF_5_LAYERS) EXPECT(same_bits(dropped, two_steps_of_5_layers(r, -1, 0.2)));
    for (int64_t threads : {1, 3}) EXPECT(same_bits(dropped, two_steps_of_5_layers({1, 1}, -1, 0.2, threads)));
}

static void initial_weights() {
    start_test("initial weights are the numbers that PyTorch draws");
    const GPT2Config c = load_config(FIXTURES + "init_42.bin");
    Model ours = make_model(c, 1, 1, 0, 1, 1), theirs = make_model(c, 1, 1, 0, 1, 1);
    auto difference = [&] {
        const std::vector<float> a = all_weights(ours), b = all_weights(theirs);
        double worst = 0;
        for (size_t i = 0; i < a.size(); i++) worst = std::fmax(worst, std::fabs(a[i] - b[i]));
        return worst;
    };
    initialize_weights(ours, 42);
    load_model(theirs, FIXTURES + "init_42.bin");
    EXPECT(difference() < 1e-6);
    initialize_weights(ours, 43);
    EXPECT(!(difference() < 1e-6));
    start_test("a model goes to the order of the file and back, byte for byte");
    const std::string path = format("/tmp/gpt2_test_%d.bin", (int)getpid());
    FileWriter file(path);
    write_model(file, c, model_version(format_of<floatX>()),
                [&](int tensor, int64_t layer, int64_t first, int64_t elems) {
                    return tensor_data(ours, tensor, layer, first, elems);
                });
    file.commit();
    load_model(theirs, path);
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0; l < tensor_layers(i, c); l++) {
            const int64_t elems = tensor_elems(i, c);
            const std::vector<float> written(tensor_data(ours, i, l, 0, elems),
                                             tensor_data(ours, i, l, 0, elems) + elems);
            EXPECT(memcmp(written.data(), tensor_data(theirs, i, l, 0, elems), elems * 4) == 0);
        }
    unlink(path.c_str());
    free_model(ours);
    free_model(theirs);
}

// One batch, for a model that takes it whole, and for one that takes it a row at a time.
struct SplitBatch {
    GPT2Config c = load_config(FIXTURES + "a.bin");
    DebugState d = load_debug_state(FIXTURES + "a_debug_state.bin", c);
    // The larger model is made last: both use its scratch memory.
    Model by_rows = make_model(c, 1, d.T, 1, 2, d.B), whole = make_model(c, d.B, d.T, 1, 2, 1);
    double tolerance = HALF ? model_tolerance(c.L) : 1e-6;

    SplitBatch() {
        for (Model* model : {&by_rows, &whole}) load_model(*model, FIXTURES + "a.bin");
    }
    ~SplitBatch() {
        free_model(whole);
        free_model(by_rows);
    }
    void step_whole(double dropout) {
        micro_step(whole, {d.x.data(), d.y.data(), d.B, d.T, 0.01f, 0, true, {dropout, 42, 3, 0}});
    }
    // Row b draws the masks of position b * apart of the step.
    void step_by_rows(double dropout, int64_t apart) {
        for (int64_t b = 0; b < d.B; b++)
            micro_step(by_rows,
                       {&d.x[b * d.T], &d.y[b * d.T], 1, d.T, 0.01f, b, b + 1 == d.B, {dropout, 42, 3, b * apart}});
    }
    bool same_gradients() { return relative_error(all_gradients(by_rows), all_gradients(whole)) < tolerance; }
    std::vector<float> evaluated() {
        std::vector<float> losses(d.B * d.T);
        whole.evaluate(whole, d.x.data(), d.y.data(), d.B, d.T, losses.data());
        return losses;
    }
};
static void accumulation() {
    start_test("a batch in one micro-step or in several: the same gradient to rounding");
    SplitBatch batch;
    batch.step_whole(0);
    batch.step_by_rows(0, batch.d.T);
    EXPECT(batch.same_gradients());
}

// One tensor moved along its gradient changes the loss by the gradient's norm; in 16 bits, where
// most weights cannot be moved as little, only biases, which are 0.
static void dropout_gradients() {
    start_test("dropout: gradients are those of finite differences under the same masks");
    const GPT2Config c = load_config(FIXTURES + "a.bin");
    const DebugState d = load_debug_state(FIXTURES + "a_debug_state.bin", c);
    const int64_t rows = d.B * d.T, elems = parameter_layout(c, 1).total_elems();
    const Batch batch{d.x.data(), d.y.data(), d.B, d.T, (float)LOSS_SCALE / (float)rows, 0, true, {0.5, 42, 3, 1000}};
    Model model = make_model(c, d.B, d.T, 1, 2, 1);
    load_model(model, FIXTURES + "a.bin");
    const float* on_host = to_host(model, format_of<floatX>(), model.params, elems);
    const std::vector<float> weights(on_host, on_host + elems);
    micro_step(model, batch);
    const std::vector<float> gradients = all_gradients(model);
    const auto loss_along = [&](int64_t begin, int64_t n, double step) {
        std::vector<float> moved(weights.begin() + begin, weights.begin() + begin + n);
        for (int64_t i = 0; i < n; i++) moved[i] += (float)(step * gradients[begin + i]);
        to_device(model, format_of<floatX>(), (floatX*)model.params + begin, moved.data(), n);
        micro_step(model, batch);
        to_device(model, format_of<floatX>(), (floatX*)model.params + begin, &weights[begin], n);
        return loss_sum(model) / (double)rows;
    };
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0; l < tensor_layers(i, c); l++) {
            if (HALF && i != ATTPROJB && i != FCPROJB && i != FCB) continue;
            const int64_t begin = model.layout.offset(i, l), n = tensor_elems(i, c);
            double squares = 0;
            for (int64_t k = begin; k < begin + n; k++) squares += (double)gradients[k] * gradients[k];
            const double norm = std::sqrt(squares) / LOSS_SCALE, change = HALF ? 0.05 : 0.005;
            const double step = change / norm / norm / LOSS_SCALE;  // that changes the loss by so much
            const double moved = (loss_along(begin, n, step) - loss_along(begin, n, -step)) / 2;
            if (!EXPECT(std::fabs(moved - change) < (HALF ? 0.1 : 0.01) * change))
                printf("    %s of layer %d: the loss changes by %.5f, not %.5f\n", TENSORS[i].name, (int)l, moved,
                       change);
        }
    free_model(model);
}
static void dropout_batches() {
    start_test("dropout: a batch in one micro-step or in several has the same loss, and to rounding the same gradient");
    SplitBatch batch;
    batch.step_whole(0.3);
    batch.step_by_rows(0.3, batch.d.T);
    EXPECT(batch.same_gradients() && std::fabs(loss_sum(batch.by_rows) / loss_sum(batch.whole) - 1) < batch.tolerance);
    batch.step_by_rows(0.3, 0);
    EXPECT(!batch.same_gradients());
    start_test("dropout: evaluation drops nothing");
    batch.step_whole(0);
    const std::vector<float> losses = batch.evaluated();
    const double without = loss_sum(batch.whole);
    batch.step_whole(0.3);
    EXPECT(batch.evaluated() == losses && loss_sum(batch.whole) != without);
}

static void ignored_targets() {
    start_test("targets that are ignored have no loss; gradients of some targets and of the others add up");
    const GPT2Config c = load_config(FIXTURES + "a.bin");
    const DebugState d = load_debug_state(FIXTURES + "a_debug_state.bin", c);
    Model model = make_model(c, d.B, d.T, 1, 2, 2);
    load_model(model, FIXTURES + "a.bin");
    std::vector<int> some = d.y, others = d.y;
    for (size_t i = 0; i < d.y.size(); i++) (i * i % 7 < 3 ? some : others)[i] = IGNORED_TARGET;
    const auto gradients = [&](const std::vector<int>& first, const std::vector<int>& second) {
        micro_step(model, {d.x.data(), first.data(), d.B, d.T, 0.01f, 0, false});
        micro_step(model, {d.x.data(), second.data(), d.B, d.T, 0.01f, 1});
        return all_gradients(model);
    };
    const std::vector<int> none(d.y.size(), IGNORED_TARGET);
    const std::vector<float> whole = gradients(d.y, none);
    const double loss = loss_sum(model);
    EXPECT(relative_error(gradients(some, others), whole) < (HALF ? model_tolerance(c.L) : 1e-6));
    EXPECT(std::fabs(loss_sum(model) - loss) < 1e-6 * loss);
    EXPECT(!(relative_error(gradients(some, none), whole) < model_tolerance(c.L)));
    for (float gradient : gradients(none, none)) EXPECT(gradient == 0);
    EXPECT(loss_sum(model) == 0);
    std::vector<float> all(d.y.size()), losses(d.y.size());
    model.evaluate(model, d.x.data(), d.y.data(), d.B, d.T, all.data());
    model.evaluate(model, d.x.data(), some.data(), d.B, d.T, losses.data());
    for (size_t i = 0; i < losses.size(); i++) EXPECT(losses[i] == (some[i] == IGNORED_TARGET ? 0 : all[i]));
    free_model(model);
}

#include "dev/test/not_finite_tests.h"
#include "dev/test/compressed_tests.h"

static void model_tests() {
    for (const char* name : {"a", "b", "c"}) against_pytorch(name);
    ten_steps_against_pytorch("a", "cosine");
    ten_steps_against_pytorch("b", "wsd");
    ten_steps_against_pytorch("c", "cosine");
    invariants("a");
    invariants("b");
    recomputation();
    documents();
    window("a", {7, true}, -1);
    window("b", {16}, 0);
    cut_sequences();
    initial_weights();
    accumulation();
    dropout_gradients();
    dropout_batches();
    ignored_targets();
    compressed_activations();
    if (!FP16) not_finite();  // it plants numbers that fp16 does not have
}
