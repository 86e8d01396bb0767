// The gradients of dev/course/gpt2.cpp, number by number, beside finite differences of its loss. It
// is compiled here with double for float: (loss(p + h) - loss(p - h)) / 2h is then exact to about
// ten digits. And what the judges of the exercises say of times, by a clock that does not run.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>
#include "dev/course/exercises/judge.h"
#include "dev/test/test.h"

namespace lesson {
#define float double
#define main lesson_main
#include "dev/course/gpt2.cpp"
#undef main
#undef float
}  // namespace lesson

static double loss_of(lesson::Model& model, lesson::Activations& act, const lesson::Batch& batch) {
    lesson::forward(model, act, batch.inputs);
    return lesson::cross_entropy_forward(act.logits, act.probs, batch.targets, model.config.V);
}

// The largest difference between a parameter's gradient and finite differences, divided by the
// largest gradient that both of them have. Infinity if a value is not finite.
static double gradient_error(lesson::Model& model, lesson::Activations& act, const lesson::Batch& batch,
                             lesson::Parameter& p, double smallest) {
    const double h = 1e-4;
    std::vector<double> found(p.value.size());
    for (size_t i = 0; i < found.size(); i++) {
        const double before = p.value[i];
        p.value[i] = before + h;
        const double above = loss_of(model, act, batch);
        p.value[i] = before - h;
        const double below = loss_of(model, act, batch);
        p.value[i] = before;
        found[i] = (above - below) / (2 * h);
    }
    double magnitude = smallest, worst = 0;
    for (size_t i = 0; i < found.size(); i++) {
        const double apart = std::fabs(found[i] - p.grad[i]);
        if (!std::isfinite(apart)) return INFINITY;
        magnitude = std::max(magnitude, std::fabs(found[i]));
        worst = std::max(worst, apart);
    }
    return worst / magnitude;
}

static void test_gradients(int64_t L, int64_t NH, int64_t C, int64_t V, int64_t B, int64_t T) {
    const std::string shape = "L" + std::to_string(L) + " NH" + std::to_string(NH) + " C" + std::to_string(C) + " V" +
                              std::to_string(V) + " B" + std::to_string(B) + " T" + std::to_string(T);
    lesson::Model model(lesson::Config{T + 2, V, L, NH, C, V + 3});  // unused positions and padding have gradient 0
    lesson::Activations act(model.config, B, T);
    std::mt19937 rng(7);
    std::normal_distribution<double> normal(0, 0.4);
    for (lesson::Parameter* p : model.parameters())
        for (double& x : p->value) x = normal(rng);
    lesson::Batch batch;
    for (int64_t i = 0; i < B * T; i++) batch.inputs.push_back(rng() % V), batch.targets.push_back(rng() % V);
    loss_of(model, act, batch);
    for (int again = 0; again < 2; again++)  // the second pass must not add to the gradients of the first
        lesson::backward(model, act, batch.inputs, batch.targets);
    int64_t number = 0;
    for (lesson::Parameter* p : model.parameters()) {
        start_test("gradient of parameter " + std::to_string(number++) + " of the lesson, " + shape);
        const double error = gradient_error(model, act, batch, *p, 1e-3);
        if (!EXPECT(error < 1e-6)) printf("relative error %g\n", error);
    }
}

// A target whose probability is 0 to the last bit has a loss all the same.
static void test_improbable_target() {
    start_test("the loss of a token of probability e^-1000");
    lesson::Tensor logits(1, 4), probs(1, 4);
    logits.value = {3, -997, -997, 5};  // the last one is padding
    const double loss = lesson::cross_entropy_forward(logits, probs, {1}, 3);
    if (!EXPECT(std::fabs(loss - 1000) < 1e-9)) printf("loss %g\n", loss);
}

static double scripted_seconds = 0;
static bool fast_enough(double naive_seconds, double mine_seconds, double asked) {
    Judge j;
    j.hints = {{"slow", "too slow"}};
    j.clock = [] { return scripted_seconds; };
    j.faster(
        "the other", [&] { scripted_seconds += naive_seconds; }, [&] { scripted_seconds += mine_seconds; }, asked);
    return !j.failed;
}
static void test_times() {
    start_test("an exercise on speed passes from the ratio of times that is asked");
    EXPECT(fast_enough(3, 1, 2));
    EXPECT(fast_enough(2, 1, 2));
    EXPECT(!fast_enough(1.75, 1, 2));
    EXPECT(!fast_enough(1, 1, 1.5));
}

int main() {
    test_improbable_target();
    test_times();
    test_gradients(2, 3, 6, 7, 2, 5);
    test_gradients(1, 1, 5, 4, 3, 1);
    return report_tests();
}
