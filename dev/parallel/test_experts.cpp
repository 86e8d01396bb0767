// The mixture of experts on one process: gradients of router, experts and input against differences
// of the loss, and who is chosen and who dropped.
#include "dev/parallel/experts.h"
#include "dev/test/test.h"

struct Layer {
    Experts x;
    Part part;
    std::vector<Part> own{};
    Floats inp, weights;  // weights: of the outputs in the loss

    Layer(int64_t E, int64_t k, double factor, float alpha)
        : x{1, 0, E, k, capacity_of(factor, k, E), alpha},
          part{small_model(1), {}, {}},
          inp(T * part.c.C),
          weights(inp.size()) {
        MersenneTwister rng(7);
        add_routers(x, part, 8);
        for (int64_t e = 0; e < E; e++) own.push_back(first_expert(x, part.c, 9, e));
        normal_fill(rng, inp.data(), (int64_t)inp.size(), 1.0f);
        normal_fill(rng, weights.data(), (int64_t)weights.size(), 1.0f);
        for (float& w : part.parameters.at({ROUTER, 0}).weight) w *= 10;
        for (Part& expert : own)
            for (auto& [name, p] : expert.parameters) normal_fill(rng, p.weight.data(), (int64_t)p.weight.size(), 0.2f);
    }
    // The sum of weights * out, and the auxiliary loss.
    double loss(ExpertsRecord& r) {
        Floats out(inp.size());
        experts_forward(x, part, own, 0, r, out.data(), inp.data(), inp.data());
        double sum = auxiliary_loss(x, r);
        for (size_t i = 0; i < out.size(); i++) sum += (double)weights[i] * out[i];
        return sum;
    }
    // d(loss) / d(inp), also by way of the residual; the other gradients are written to their
    // places.
    Floats backward(ExpertsRecord& r) {
        Floats dinp(inp.size());
        for (Part* p : parts())
            for (auto& [name, tensor] : p->parameters) std::fill(tensor.gradient.begin(), tensor.gradient.end(), 0.0f);
        experts_backward(x, part, own, 0, r, dinp.data(), weights.data(), inp.data(), 1);
        kernels::residual_forward(dinp.data(), dinp.data(), weights.data(), dinp.size());
        return dinp;
    }
    std::vector<Part*> parts() {
        std::vector<Part*> all{&part};
        for (Part& expert : own) all.push_back(&expert);
        return all;
    }
};

// How far the gradient of some values is from the loss's difference, at most, along three
// directions in which each moves by the same amount, up or down, as a share of the gradient's norm.
// Directions that change what is chosen are left out: there the loss jumps.
static double error_of(Layer& layer, Floats& values, const Floats& gradient, MersenneTwister& rng) {
    const float step = 3e-4f;
    const Floats before = values;
    double worst = 0;
    for (int tries = 0, directions = 0; directions < 3; tries++) {
        if (tries == 100) return NAN;
        double found[2], expected = 0, norm = 0;
        std::vector<int64_t> chosen[2];
        Floats direction(values.size());
        normal_fill(rng, direction.data(), (int64_t)direction.size(), 1.0f);
        for (const int side : {0, 1}) {
            ExpertsRecord r = experts_record(layer.x, layer.part.c);
            for (size_t i = 0; i < values.size(); i++)
                values[i] = before[i] + (side ? step : -step) * (direction[i] < 0 ? -1.0f : 1.0f);
            found[side] = layer.loss(r), chosen[side] = r.chosen;
        }
        values = before;
        if (chosen[0] != chosen[1]) continue;
        for (size_t i = 0; i < values.size(); i++) {
            expected += gradient[i] * (direction[i] < 0 ? -1.0 : 1.0);
            norm += (double)gradient[i] * gradient[i];
        }
        worst = std::max(worst, std::fabs((found[1] - found[0]) / (2 * step) - expected) / std::sqrt(norm));
        directions++;
    }
    return worst;
}
constexpr double MOST = 0.01;

static void check_gradients(int64_t k, double factor) {
    start_test(
        format("gradients of router, experts and input are differences of the loss: k = %d, capacity %g", k, factor));
    Layer layer(4, k, factor, 1000);  // aux is then as large as what comes by the gates
    MersenneTwister rng(11);
    ExpertsRecord r = experts_record(layer.x, layer.part.c);
    layer.loss(r);
    EXPECT((std::count(r.places.begin(), r.places.end(), -1) > 0) == (factor < 2));
    const Floats dinp = layer.backward(r);
    EXPECT(error_of(layer, layer.inp, dinp, rng) < MOST);
    for (Part* part : layer.parts())
        for (auto& [name, p] : part->parameters) EXPECT(error_of(layer, p.weight, p.gradient, rng) < MOST);

    start_test(format("a router without gradient by its gates, or by aux, is found: k = %d, capacity %g", k, factor));
    Parameter& router = layer.part.parameters.at({ROUTER, 0});
    ExpertsRecord broken = r;
    std::fill(broken.returned.begin(), broken.returned.end(), 0.0f);
    layer.backward(broken);
    EXPECT(error_of(layer, router.weight, router.gradient, rng) > 3 * MOST);
    layer.x.alpha = 0;
    layer.backward(r);
    layer.x.alpha = 1000;
    EXPECT(error_of(layer, router.weight, router.gradient, rng) > 3 * MOST);
}

static void check_choices() {
    start_test(
        "who is chosen and who is dropped: first choices before second ones, gates of two sum to 1, aux by hand");
    Experts x{1, 0, 4, 2, 24, 1};
    ExpertsRecord r = experts_record(x, small_model(1));
    const float p[] = {0.1f, 0.4f, 0.2f, 0.3f};
    for (int64_t i = 0; i < T * 4; i++) r.probabilities[i] = i < 8 ? p[3 - i % 4] : p[i % 4];  // two tokens reversed
    choose(x, r);
    EXPECT(r.chosen[0] == 2 && r.chosen[T] == 0 && r.chosen[2] == 1 && r.chosen[T + 2] == 3);
    EXPECT(r.places[0] == 2 * 24 && r.places[1] == 2 * 24 + 1 && r.places[2] == 24 && r.places[25] == 24 + 23);
    EXPECT(r.places[26] == -1 && r.places[T] == 0 && r.places[T + 2] == 3 * 24 && r.places[T + 26] == -1);
    EXPECT(std::fabs(r.gates[4] - 0.4f / 0.7f) < 1e-6f && std::fabs(r.gates[4] + r.gates[5] - 1) < 1e-6f);
    EXPECT(capacity_of(1.25, 2, 8) == 20 && capacity_of(1, 1, 1) == T && capacity_of(9, 2, 4) == T);

    x.k = 1, x.capacity = T;
    r = experts_record(x, small_model(1));
    for (int64_t i = 0; i < T * 4; i++) r.probabilities[i] = i % 4 == 1 ? 1.0f : 0.0f;
    choose(x, r);
    EXPECT(r.gates[5] == 1 && std::fabs(auxiliary_loss(x, r) - 4) < 1e-6);  // all to one: E
    for (int64_t i = 0; i < T * 4; i++) r.probabilities[i] = i / 4 % 4 == i % 4 ? 0.4f : 0.2f;
    choose(x, r);
    EXPECT(r.gates[5] == 0.4f && std::fabs(auxiliary_loss(x, r) - 1) < 1e-6);  // even: 1
}

int main() {
    device.scratch_elems = thread_scratch_elems<float>(T, 8);
    allocate_scratch();
    for (const int64_t k : {1, 2})
        for (const double factor : {0.75, 4.0}) check_gradients(k, factor);
    check_choices();
    return report_tests();
}
