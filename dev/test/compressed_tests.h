// --compress-activations 1: gradients, and what is not finite, of both trainers in each precision.
// A part of model_tests.h.
#pragma once
#include "dev/test/not_finite_tests.h"
#include "llmc/cpu/reference.h"

#ifdef CUSIM
constexpr bool IN_SIMULATOR = true;  // which takes its time
#else
constexpr bool IN_SIMULATOR = false;
#endif

// The model of 5 layers that PlantedRun makes; its gradients after one micro-step.
static std::vector<float> gradients_of(
    PlantedRun& run, std::function<void()> between = [] {}) {
    std::vector<int> x(34), y(34);
    for (int i = 0; i < 34; i++) x[i] = (i * i + 7 * i) % 97, y[i] = 5 * i % 97;
    micro_step(run.model, {x.data(), y.data(), 2, 17, run.dloss * (float)LOSS_SCALE}, between);
    return all_gradients(run.model);
}

// Rounds what a model without codes has kept of the forward pass as one with codes would have.
static void round_kept(Model& model, float coarser = 1) {
    Sizes s = model.sizes;
    s.compressed_activations = true;
    for (int a = 0; a < NUM_ACTIVATIONS; a++) {
        if (!is_coded(a, s)) continue;
        const int64_t n = ACTIVATIONS[a].elems(s);
        const bool stream = ACTIVATIONS[a].copies == ActivationInfo::SEGMENTS;
        for (int64_t l = 0; l < s.recomputed_layers(); l++) {
            if (stream && (l + 1) % s.segment_layers() != 0) continue;
            const float* kept = activation_data(model, a, l, 0, n);
            const std::vector<floatX> values(kept, kept + n);
            std::vector<floatX> rounded(n);
            std::vector<char> memory(codes_bytes(n));
            const ActivationCodes codes = codes_at(memory.data(), n);
            reference::encode_activations(codes, values.data(), n);
            for (int64_t i = 0; i < n; i++) codes.codes[i] = (int8_t)(std::trunc(codes.codes[i] / coarser) * coarser);
            reference::decode_activations(rounded.data(), codes, n);
            const std::vector<float> wanted(rounded.begin(), rounded.end());
            to_device(model, model.format, model.act<floatX>(a, l), wanted.data(), n);
        }
    }
}

// What rounding explains, relative to the norm of the gradients. In a block these errors are s /
// sqrt(12) in rms, and the largest value, 127 s, is some 3 times the rms of the block: so rounding
// changes an activation by a share of 3 / (127 sqrt(12)) of it. The gradient of a weight is a
// product of two operands: the activation, and a gradient that has come through activations of
// later layers, of which the residual stream passes most on as it is. Their errors are independent,
// so the squares of two such shares add up; a factor of 2 for blocks whose largest value is larger.
static const double CODE_TOLERANCE = 2 * 3 / (127 * std::sqrt(12.0)) * std::sqrt(2.0);

static void gradients_with_codes(const Recomputation& r) {
    start_test(format("codes: the gradients are those of rounded activations, to the bit, recompute level %d, every %d",
                      (int)r.level, (int)r.every));
    std::vector<float> with_codes, again, exact, rounded, coarse;
    double loss, exact_loss;
    {
        PlantedRun run(r, true);
        with_codes = gradients_of(run), again = gradients_of(run), loss = loss_sum(run.model);
    }
    {
        PlantedRun run(r);
        exact = gradients_of(run), exact_loss = loss_sum(run.model);
        rounded = gradients_of(run, [&] { round_kept(run.model); });
        coarse = gradients_of(run, [&] { round_kept(run.model, 16); });
    }
    EXPECT(loss == exact_loss && with_codes == again);
    EXPECT(with_codes == rounded);
    start_test(format("codes: gradients change by no more than rounding explains, recompute level %d, every %d",
                      (int)r.level, (int)r.every));
    const bool any = r.every < 5;  // one segment needs no codes
    EXPECT((with_codes != exact) == any);
    const double error = norm_error(with_codes, exact);
    if (!EXPECT(error <= CODE_TOLERANCE)) printf("    error %.3g\n", error);
    // Codes of 4 bits change them by more, but where segments are 3 layers: there one layer norm
    // alone reads codes.
    EXPECT(r.every > 2 || !(norm_error(coarse, exact) <= CODE_TOLERANCE));
}

static void codes_hide_nothing() {
    start_test("codes: a value that is not finite after a layer's forward pass is not finite in the gradients");
    PlantedRun run({0, 1}, true);
    for (float planted : {NAN, INFINITY, -INFINITY}) {
        bool done = false;
        trace.at_end = [&](const KernelWork& work) {
            if (std::string(work.name.text) != "layer_forward" || work.name.size != 1 || done) return;
            set_activation(run.model, FCH_GELU, 1, 100, planted), done = true;  // what read it has been computed
        };
        const std::vector<float> gradients = gradients_of(run);
        trace.at_end = nullptr;
        EXPECT(done && !std::all_of(gradients.begin(), gradients.end(), [](float g) { return std::isfinite(g); }));
        EXPECT(std::isfinite(loss_sum(run.model)));
    }
}

static void compressed_activations() {
    for (const Recomputation& r : LEVELS_OF_5_LAYERS)
        if (!IN_SIMULATOR || r.level == 0 || r.every == 2) gradients_with_codes(r);
    codes_hide_nothing();
}
