// Values that are not finite, planted at random places of a model, are named
// (llmc/run/not_finite.h). A part of model_tests.h.
#pragma once
#include "dev/test/test.h"
#include "llmc/run/not_finite.h"

static int64_t random_below(int64_t n) { return (int64_t)((random_values(1)[0] + 1) / 2 * (float)n) % n; }
static float random_not_finite() {
    const float values[] = {NAN, INFINITY, -INFINITY};
    return values[random_below(3)];
}

// A model of 5 layers, and the two micro-steps of a step.
struct PlantedRun {
    Model model;
    float dloss = 0.01f;

    explicit PlantedRun(const Recomputation& r, bool compressed = false) : model(made(r, compressed)) {
        initialize_weights(model, 1);
    }
    ~PlantedRun() { free_model(model); }
    static Model made(const Recomputation& r, bool compressed) {
        Options o;
        o.recompute_every = r.every, o.compress_activations = compressed;
        return make_model({17, 97, 128, 5, 2, 32}, 2, 17, r.level, 2, 2, o);
    }
    void micro(int64_t number) {
        std::vector<int> x(34), y(34);
        for (int64_t i = 0; i < 34; i++)
            x[i] = (int)((i * i + 7 * i + 13 * number) % 97), y[i] = (int)((5 * i + number) % 97);
        micro_step(model, {x.data(), y.data(), 2, 17, dloss, number, number == 1});
    }
    // What is found if plant() is called at the end of a range of a micro-step, before what the
    // range has computed is looked at.
    std::string found(int64_t in_micro, const std::string& range, int64_t layer, std::function<void()> plant) {
        bool planted = false;
        const auto first = first_not_finite(model, [&](int64_t number) {
            const auto look = trace.at_end;
            trace.at_end = [&](const KernelWork& work) {
                const KernelName& name = work.name;
                const bool here = number == in_micro && name.text == range && (layer < 0 || name.size == (double)layer);
                if (here && !planted) plant(), planted = true;
                look(work);
            };
            micro(number);
            trace.at_end = look;
        });
        EXPECT(planted || range.empty());
        return first.found;
    }
    std::string found() {
        return found(-1, "", -1, [] {});
    }
};

static bool names(const std::string& found, const std::string& expected) {
    if (found != expected) printf("    named \"%s\", planted \"%s\"\n", found.c_str(), expected.c_str());
    return found == expected;
}

static void set_weight(Model& model, int tensor, int64_t l, int64_t i, float value) {
    to_device(model, model.format, weight_at(model, tensor, l, i), &value, 1);
}
static void set_activation(Model& model, int a, int64_t l, int64_t i, float value) {
    const NumberFormat format = ACTIVATIONS[a].type == FP32 ? FORMAT_FP32 : model.format;
    to_device(model, format, model.acts + model.activations.offset(a, l) + i * format_bytes(format), &value, 1);
}

static void planted_weight(PlantedRun& run) {
    const GPT2Config& c = run.model.layout.config;
    const int tensor = (int)random_below(NUM_TENSORS);
    const int64_t l = random_below(tensor_layers(tensor, c)), i = random_below(tensor_elems(tensor, c));
    const float whole = *tensor_data(run.model, tensor, l, i, 1);
    set_weight(run.model, tensor, l, i, random_not_finite());
    EXPECT(names(run.found(), "the weights " + tensor_text(tensor, l) + ", before the step"));
    set_weight(run.model, tensor, l, i, whole);
}

static void planted_activation(PlantedRun& run) {
    Model& model = run.model;
    const int64_t last = model.layout.config.L - 1;
    int a;
    do a = (int)random_below(LOSSES + 1);
    while (a == LNF_MEAN || a == LNF_RSTD || a == CODES);
    const bool one = ACTIVATIONS[a].copies == ActivationInfo::ONE;
    const int64_t l = one ? 0 : random_below(last + 1), micro = random_below(2);
    const int64_t i = random_below(ACTIVATIONS[a].elems(model.sizes));
    const auto plant = [&] { set_activation(model, a, l, i, random_not_finite()); };
    const bool at_end = a == LNF || (a == RESIDUAL3 && l == last);
    const std::string range = a == LOSSES ? "layer_recompute" : at_end ? "forward" : "layer_forward";
    const int64_t layer = a == LOSSES ? last : at_end ? -1 : a == RESIDUAL3 ? l + 1 : l;
    const std::string of_layer = one ? "" : format(" of layer %d", (int)l);
    EXPECT(
        names(run.found(micro, range, layer, plant), format("the activation %s%s, in the forward pass of micro-step %d",
                                                            ACTIVATIONS[a].name, of_layer, (int)micro + 1)));
}

static void planted_gradient(PlantedRun& run) {
    const GPT2Config& c = run.model.layout.config;
    const int tensor = (int)random_below(NUM_TENSORS);
    const int64_t l = random_below(tensor_layers(tensor, c)), micro = random_below(2);
    const int64_t i = random_below(tensor_elems(tensor, c));
    const bool last_norm = tensor == LNFW || tensor == LNFB, in_layer = TENSORS[tensor].per_layer;
    const std::string range = in_layer ? "layer_backward" : last_norm ? "layer_recompute" : "backward";
    const int64_t layer = in_layer ? l : last_norm ? c.L - 1 : -1;
    const auto plant = [&] { set_gradient(run.model, tensor, l, i, random_not_finite()); };
    EXPECT(names(run.found(micro, range, layer, plant),
                 "the gradient of " + tensor_text(tensor, l) +
                     format(", in the backward pass of micro-step %d", (int)micro + 1)));
}

static void planted_stream_gradient(PlantedRun& run) {
    const int64_t l = random_below(5), i = random_below(34 * 32);
    const auto plant = [&] { set_activation(run.model, DRESIDUAL, 0, i, random_not_finite()); };
    const std::string stream = l == 0 ? "encoded" : format("residual3 of layer %d", (int)l - 1);
    EXPECT(names(run.found(1, "layer_backward", l, plant),
                 "the gradient of " + stream + ", in the backward pass of micro-step 2"));
}

// What computes itself into the infinite.
static void overflows() {
    start_test("not finite: scores that overflow are named by the attention of their layer");
    {
        PlantedRun run({1, 1});
        for (int64_t i = 0; i < 2 * 32; i++) set_weight(run.model, QKVB, 2, i, 1e20f);
        EXPECT(names(run.found(), "the activation atty of layer 2, in the forward pass of micro-step 1"));
    }
    start_test("not finite: a gradient that overflows where the forward pass is finite");
    {
        PlantedRun run({3, 1});
        run.dloss = 1e6f;
        set_weight(run.model, FCB, 3, 5, -1e3f);  // GELU of it is 0, whatever it is multiplied by
        for (int64_t c = 0; c < 32; c++) set_weight(run.model, FCPROJW, 3, c * 128 + 5, 3e38f);
        EXPECT(names(run.found(), "the gradient of fcb of layer 3, in the backward pass of micro-step 1"));
    }
    start_test("not finite: where only the sum of squares overflows, the largest gradient is known");
    {
        PlantedRun run({1, 1});
        run.dloss = 1e25f;
        const auto first = first_not_finite(run.model, [&](int64_t number) { run.micro(number); });
        float largest = 0;
        for (float g : all_gradients(run.model)) largest = std::fmax(largest, std::fabs(g));
        EXPECT(first.found.empty() && first.largest_gradient == largest && largest > 1e20f && !first.largest.empty());
    }
}

static void not_finite() {
    start_test("not finite: nothing is named where all is finite, and no gradient changes");
    {
        PlantedRun run({1, 1});
        for (int64_t micro : {0, 1}) run.micro(micro);
        const std::vector<float> gradients = all_gradients(run.model);
        EXPECT(run.found().empty() && all_gradients(run.model) == gradients);
    }
    for (const Recomputation& r : LEVELS_OF_5_LAYERS) {
        start_test(
            format("not finite: planted values are named, recompute level %d, every %d", (int)r.level, (int)r.every));
        PlantedRun run(r, &r - LEVELS_OF_5_LAYERS >= 5 || r.level == 1);  // with codes, and without
        for (int i = 0; i < (run.model.sizes.gpu ? 2 : 12); i++) {
            planted_weight(run);
            planted_activation(run);
            planted_gradient(run);
            planted_stream_gradient(run);
        }
    }
    overflows();
}
