// Attention with a window on the CPU: reference.h against finite differences, the fast kernels in
// fp32 and bf16 against reference.h, with documents and without, and keys that no query sees.
// test_gpt2.cu does the same for the CUDA kernels, model_tests.h for whole models.
#include "dev/test/document_layouts.h"
#include "llmc/cpu/reference.h"
#include "llmc/cpu/scratch.h"
#include "llmc/cpu/compiled_once.h"

using Floats = std::vector<float>;
constexpr int64_t MOST_T = 200, MOST_HS = 64, WINDOWS[] = {1, 7, 16, 63, 64, 65, 130, 1000};

static void use_threads(int threads, MatrixUnit unit) {
    static Floats scratch;
    device.threads = threads, device.unit = unit;
    device.scratch_elems =
        std::max(thread_scratch_elems<float>(MOST_T, MOST_HS), thread_scratch_elems<bf16>(MOST_T, MOST_HS));
    scratch.assign(threads * device.scratch_elems + 16, NAN);  // a kernel may only read what it has written
    device.scratch = (float*)round_up((uintptr_t)scratch.data(), (uintptr_t)64);
}

template <class floatX>
static Floats floats(const std::vector<floatX>& values) {
    return Floats(values.begin(), values.end());
}
template <class floatX>
static double tolerance(double roundings, double terms) {
    return sizeof(floatX) == 2 ? bf16_tolerance(roundings, terms) : sum_tolerance(4 * terms);
}

// What both passes compute, and from what.
template <class floatX>
struct Attention {
    int64_t B, T, C, NH;
    std::vector<floatX> qkv, dout, out, dqkv;
    Floats lse;
    Attention(int64_t B, int64_t T, int64_t C, int64_t NH)
        : B(B), T(T), C(C), NH(NH), out(B * T * C, floatX(NAN)), dqkv(B * T * 3 * C, floatX(NAN)), lse(B * NH * T) {
        for (float v : random_values(B * T * 3 * C, 1.5)) qkv.push_back(floatX(v));
        for (float v : random_values(B * T * C)) dout.push_back(floatX(v));
    }
    void run(const int* starts, int64_t window) {
        attention_forward(out.data(), lse.data(), qkv.data(), B, T, C, NH, starts, window);
        attention_backward(dqkv.data(), dout.data(), out.data(), lse.data(), qkv.data(), B, T, C, NH, starts, window);
    }
    bool same_bits(const Attention& o) const {
        return memcmp(out.data(), o.out.data(), out.size() * sizeof(floatX)) == 0 &&
               memcmp(dqkv.data(), o.dqkv.data(), dqkv.size() * sizeof(floatX)) == 0 && lse == o.lse;
    }
};

static double reference_objective(Attention<float>& a, int64_t window) {
    reference::attention_forward(a.out.data(), a.lse.data(), a.qkv.data(), a.B, a.T, a.C, a.NH, nullptr, window);
    double total = 0;
    for (size_t i = 0; i < a.out.size(); i++) total += (double)a.out[i] * a.dout[i];
    return total;
}
static void reference_against_differences() {
    start_test("reference attention with a window: gradients are those of finite differences");
    Attention<float> a(1, 9, 12, 3);
    const int64_t window = 4;
    reference_objective(a, window);
    reference::attention_backward(a.dqkv.data(), a.dout.data(), a.out.data(), a.lse.data(), a.qkv.data(), a.B, a.T, a.C,
                                  a.NH, nullptr, window);
    double worst = 0, largest = 0;
    for (size_t i = 0; i < a.qkv.size(); i++) {
        const float keep = a.qkv[i], h = 1e-2f;
        a.qkv[i] = keep + h;
        const double high = reference_objective(a, window);
        a.qkv[i] = keep - h;
        const double low = reference_objective(a, window);
        a.qkv[i] = keep;
        const double difference = std::fabs((high - low) / (2.0 * h) - a.dqkv[i]);
        worst = difference <= worst ? worst : difference;  // NaN stays
        largest = std::fmax(largest, std::fabs(a.dqkv[i]));
    }
    EXPECT(worst < 2e-3 * largest);
    start_test("reference attention: with a window one longer the gradient is another");
    const Floats of_4 = a.dqkv;
    reference_objective(a, window + 1);
    reference::attention_backward(a.dqkv.data(), a.dout.data(), a.out.data(), a.lse.data(), a.qkv.data(), a.B, a.T, a.C,
                                  a.NH, nullptr, window + 1);
    EXPECT(!(relative_error(a.dqkv, of_4) < 0.01));
    start_test("reference attention: documents in a window begin where the later of both does");
    const int starts[] = {0, 0, 0, 3, 3, 3, 3, 3, 8};
    const int64_t want[] = {0, 0, 0, 3, 3, 3, 3, 4, 8};
    for (int64_t t = 0; t < 9; t++) EXPECT(reference::first_seen(starts, window, 0, t, 9) == want[t]);
}

template <class floatX>
static void against_reference(Attention<floatX> a, int64_t window, const int* starts, const std::string& name) {
    start_test(name);
    const double terms = (double)(a.C / a.NH + 2 * a.T);
    Floats out(a.out.size()), lse(a.lse.size()), dqkv(a.dqkv.size());
    a.run(starts, window);
    const Floats qkv = floats(a.qkv), dout = floats(a.dout), kept = floats(a.out);
    reference::attention_forward(out.data(), lse.data(), qkv.data(), a.B, a.T, a.C, a.NH, starts, window);
    reference::attention_backward(dqkv.data(), dout.data(), kept.data(), lse.data(), qkv.data(), a.B, a.T, a.C, a.NH,
                                  starts, window);
    EXPECT(relative_error(kept, out) <= tolerance<floatX>(2, terms));
    EXPECT(relative_error(a.lse, lse) <= sum_tolerance(4 * terms));
    EXPECT(relative_error(floats(a.dqkv), dqkv) <= tolerance<floatX>(3, terms));
    if (!starts && window < a.T) {
        Attention<floatX> wider = a;
        wider.run(starts, window + 1);
        EXPECT(!wider.same_bits(a));
    }
}

// Keys and values of positions that the second half of the queries does not see are infinite: where
// a block is not left out, infinity times 0 becomes NaN.
template <class floatX>
static void blocks_are_left_out(const std::string& who) {
    start_test("blocks of keys outside the window are not read, " + who);
    const int64_t T = 200, C = 32, window = 9, far = 64;  // queries from 128 on see keys from 120 on
    Attention<floatX> a(1, T, C, 1), whole = a;
    for (int64_t t = 0; t < far; t++)
        for (int64_t c = C; c < 3 * C; c++) a.qkv[t * 3 * C + c] = floatX(INFINITY);
    Attention<floatX> unmasked = a;
    a.run(nullptr, window), unmasked.run(nullptr, 0), whole.run(nullptr, window);
    EXPECT(std::equal(a.out.begin() + 128 * C, a.out.end(), whole.out.begin() + 128 * C));
    EXPECT(std::equal(a.dqkv.begin() + 128 * 3 * C, a.dqkv.end(), whole.dqkv.begin() + 128 * 3 * C));
    EXPECT(!std::isfinite((float)unmasked.out[128 * C]));
}

// One position at a time through the cache is the forward pass.
template <class floatX>
static void decoding(Attention<floatX> a, int64_t window, const std::string& name) {
    start_test("decoding, " + name);
    const int64_t HS = a.C / a.NH, maxT = a.T + 3;
    std::vector<floatX> keys(maxT * a.C, floatX(NAN)), values(maxT * a.C, floatX(NAN)), row(a.C), out;
    Floats scores(maxT * a.NH), naive_keys(maxT * a.C), naive_values(maxT * a.C), naive(a.C), wanted;
    const Floats qkv = floats(a.qkv);
    a.run(nullptr, window);
    for (int64_t t = 0; t < a.T; t++) {
        attention_decode(row.data(), keys.data(), values.data(), a.qkv.data() + t * 3 * a.C, scores.data(), t, maxT,
                         a.C, a.NH, window);
        reference::attention_decode(naive.data(), naive_keys.data(), naive_values.data(), qkv.data() + t * 3 * a.C,
                                    scores.data(), t, maxT, a.C, a.NH, window);
        out.insert(out.end(), row.begin(), row.end()), wanted.insert(wanted.end(), naive.begin(), naive.end());
    }
    const std::vector<floatX> forward(a.out.begin(), a.out.begin() + a.T * a.C);
    EXPECT(relative_error(floats(out), wanted) <= tolerance<floatX>(2, (double)(HS + a.T)));
    EXPECT(relative_error(floats(forward), wanted) <= tolerance<floatX>(2, (double)(HS + 2 * a.T)));
}

template <class floatX>
static void all_tests(const std::string& who, MatrixUnit unit) {
    const struct {
        int64_t B, T, C, NH;
    } shapes[] = {{1, 1, 16, 1}, {2, 33, 48, 3}, {1, 100, 40, 1}, {2, 130, 128, 2}, {1, 200, 31, 1}};
    use_threads(1, unit);
    for (const auto& s : shapes) {
        const std::string shape = format("B %d T %d C %d NH %d, %s", (int)s.B, (int)s.T, (int)s.C, (int)s.NH, who);
        seed_random_values(shape);
        const Attention<floatX> given(s.B, s.T, s.C, s.NH);
        for (int64_t window : WINDOWS) {
            const std::string name = format("window %d, ", (int)window) + shape;
            against_reference(given, window, nullptr, name);
            for (int layout : {2, 4, 5})
                against_reference(given, window, document_starts(DOCUMENT_LAYOUTS[layout], s.B, s.T).data(),
                                  name + ", documents " + DOCUMENT_LAYOUTS[layout].name);
            if (s.B == 1) decoding(given, window, name);
        }
        start_test("a window as long as the sequence has the bits of none, " + shape);
        Attention<floatX> with = given, without = given;
        with.run(nullptr, s.T), without.run(nullptr, 0);
        EXPECT(with.same_bits(without));
    }
    blocks_are_left_out<floatX>(who);
    start_test("with a window, the same bits with 1 and 3 threads, " + who);
    Attention<floatX> one(2, 130, 96, 3), three = one;
    one.run(nullptr, 20);
    use_threads(3, unit);
    three.run(nullptr, 20);
    EXPECT(one.same_bits(three));
}

static void flops() {
    start_test("twice_seen() is twice the mean number of keys, less what the diagonal adds");
    for (int64_t T : {1, 10, 100})
        for (int64_t window : {0, 1, 7, 50, 100, 101}) {
            double keys = 0;
            for (int64_t t = 0; t < T; t++) keys += (double)(window > 0 ? std::min(t + 1, window) : t + 1);
            const double diagonal = window > 0 && window < T ? (double)window / (double)T : 1;
            EXPECT(std::fabs(2 * keys / (double)T - diagonal - twice_seen((double)T, (double)window)) < 1e-9);
        }
    const AttentionWindow all{16}, every_other{16, true};
    EXPECT(all.of_layer(0) == 16 && every_other.of_layer(0) == 0 && every_other.of_layer(1) == 16);
}

int main() {
    flops();
    reference_against_differences();
    all_tests<float>("fp32", UNIT_PORTABLE);
    for (MatrixUnit unit : MATRIX_UNITS) {
        const std::string who = format("bf16 on %s", MATRIX_UNIT_NAMES[unit]);
        if (has_matrix_unit(unit)) all_tests<bf16>(who, unit);
        else skip_test(who + " with a window: this CPU has none (a CPU with it tests it)");
    }
    return report_tests();
}
