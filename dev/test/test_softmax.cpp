// Every softmax of the CPU at scores where only a softmax that subtracts the maximum works: those
// of reference.h, of the fast kernels in fp32 and bf16, and of the sampler. test_gpt2.cu does the
// same for the CUDA kernels.
#include "dev/test/large_scores.h"
#include "dev/test/poisoned_scratch.h"
#include "llmc/cpu/attention_bf16.h"
#include "llmc/cpu/attention_decode.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/reference.h"
#include "llmc/run/sampler.h"
#include "llmc/cpu/compiled_once.h"

static void prepare(int threads, MatrixUnit unit) {
    device.unit = unit;
    poisoned_scratch(threads, 100, 64, 1 << 20);
}
template <class floatX>
static std::vector<float> floats(const std::vector<floatX>& values) {
    return std::vector<float>(values.begin(), values.end());
}

// A score near 100 is rounded to fp32, which changes it by up to 100 * 2^-24, and its exponential
// relatively by as much.
template <class floatX>
constexpr double tolerance() {
    return sizeof(floatX) == 2 ? 0.02 : 1e-4;
}

template <class floatX, class Classifier>
static void classifier_at(double level, const std::string& who, Classifier run) {
    const int64_t C = 8, V = 297, Vp = 384;
    for (int target : {0, 150, 296}) {
        start_test(format("classifier at logits around %g, target %d, %s", level, target, who));
        const LargeLogits<floatX> inputs(level, C, V, Vp);
        std::vector<floatX> logits(Vp), dx(C), dwte(Vp * C);
        float loss = NAN, loss_alone = NAN;
        run(&loss, dx.data(), dwte.data(), logits.data(), inputs.x.data(), inputs.wte.data(), &target, (int64_t)1, C, V,
            Vp, 1.0f, false);
        inputs.check(target, loss, floats(dwte), tolerance<floatX>());
        for (floatX d : dx) EXPECT(std::isfinite((float)d));
        run(&loss_alone, (floatX*)nullptr, (floatX*)nullptr, logits.data(), inputs.x.data(), inputs.wte.data(), &target,
            (int64_t)1, C, V, Vp, 0.0f, false);
        EXPECT(loss_alone == loss);
    }
}

template <class floatX, class Forward, class Backward, class Decode>
static void attention_at(double level, const std::string& who, Forward forward, Backward backward, Decode decode) {
    const int64_t T = 70, HS = 16;
    start_test(format("attention at scores around %g, %s", level, who));
    const LargeAttention<floatX> inputs(level, T, HS);
    std::vector<floatX> out(T * HS), dqkv(T * 3 * HS), keys(T * HS), values(T * HS), one(HS);
    std::vector<float> lse(T), scores(T);
    forward(out.data(), lse.data(), inputs.qkv.data(), (int64_t)1, T, HS, (int64_t)1);
    for (int64_t t = 0; t < T; t++) inputs.check(floats(out).data() + t * HS, t, tolerance<floatX>());
    for (int64_t t = 0; t < T; t++) {
        decode(one.data(), keys.data(), values.data(), inputs.qkv.data() + t * 3 * HS, scores.data(), t, T, HS,
               (int64_t)1);
        inputs.check(floats(one).data(), t, tolerance<floatX>());
    }
    // At 1e30 neighbouring numbers in fp32 are 8e22 apart, so e^(s - lse) of a rounded score is
    // noise.
    if (std::fabs(level) > 100) return;
    std::vector<float> want(T * 3 * HS), want_lse(T), want_out(T * HS);
    const std::vector<float> qkv = floats(inputs.qkv), dout = random_values(T * HS);
    const std::vector<floatX> d(dout.begin(), dout.end());
    reference::attention_forward(want_out.data(), want_lse.data(), qkv.data(), 1, T, HS, 1);
    reference::attention_backward(want.data(), floats(d).data(), want_out.data(), want_lse.data(), qkv.data(), 1, T, HS,
                                  1);
    backward(dqkv.data(), d.data(), out.data(), lse.data(), inputs.qkv.data(), (int64_t)1, T, HS, (int64_t)1);
    EXPECT(relative_error(floats(dqkv), want) <= tolerance<floatX>());
}

#define ALL_ARGUMENTS(FUNCTION) [](auto... arguments) { FUNCTION(arguments...); }
template <class floatX>
static void fast_kernels(double level, const std::string& who) {
    classifier_at<floatX>(level, who, ALL_ARGUMENTS(classifier));
    attention_at<floatX>(level, who, ALL_ARGUMENTS(attention_forward), ALL_ARGUMENTS(attention_backward),
                         ALL_ARGUMENTS(attention_decode));
}

// The sampler computes in double, where e^709.8 is infinite.
static void sampler_at(double level) {
    start_test(format("sampling at logits around %g", level));
    const size_t V = 300;
    const std::vector<float> logits = scores_around(level, V);
    std::vector<double> got;
    for (double temperature : {1.0, 0.5}) {
        std::vector<double> scores(logits.begin(), logits.end());
        for (double& s : scores) s /= temperature;
        sampling_probabilities(got, logits.data(), V, temperature, 0, 1.0);
        EXPECT(relative_error(got.data(), exact_softmax(scores, V).data(), V) < 1e-6);
    }
}

int main() {
    for (double level : LARGE_SCORES) {
        prepare(1, UNIT_PORTABLE);
        classifier_at<float>(level, "reference", ALL_ARGUMENTS(reference::classifier));
        attention_at<float>(level, "reference", ALL_ARGUMENTS(reference::attention_forward),
                            ALL_ARGUMENTS(reference::attention_backward), ALL_ARGUMENTS(reference::attention_decode));
        prepare(2, UNIT_PORTABLE);
        fast_kernels<float>(level, "fp32");
        for (MatrixUnit unit : MATRIX_UNITS) {
            const std::string who = format("bf16 on %s", MATRIX_UNIT_NAMES[unit]);
            prepare(2, unit);
            if (has_matrix_unit(unit)) fast_kernels<bf16>(level, who);
            else skip_test(who + ": this CPU has none (a CPU with it tests it)");
        }
    }
    for (double level : {1000.0, -1000.0, 1e30, -1e30}) sampler_at(level);
    return report_tests();
}
