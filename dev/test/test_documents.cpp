// Attention with a document mask on the CPU: reference.h against finite differences, the fast
// kernels in fp32 and bf16 against reference.h, and a document among others against the same one
// alone. test_gpt2.cu does the same for the CUDA kernels, model_tests.h for whole models.
#include "dev/test/document_layouts.h"
#include "dev/test/large_scores.h"
#include "llmc/cpu/reference.h"
#include "llmc/cpu/scratch.h"
#include "llmc/cpu/compiled_once.h"

using Floats = std::vector<float>;
constexpr int64_t MOST_T = 200, MOST_HS = 256;

static void use_threads(int threads, MatrixUnit unit) {
    static Floats scratch;
    device.threads = threads, device.unit = unit;
    device.scratch_elems =
        std::max(thread_scratch_elems<float>(MOST_T, MOST_HS), thread_scratch_elems<bf16>(MOST_T, MOST_HS));
    scratch.assign(threads * device.scratch_elems + 16, NAN);  // a kernel may only read what it has written
    device.scratch = (float*)round_up((uintptr_t)scratch.data(), (uintptr_t)64);
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
    void run(const int* starts) {
        attention_forward(out.data(), lse.data(), qkv.data(), B, T, C, NH, starts);
        attention_backward(dqkv.data(), dout.data(), out.data(), lse.data(), qkv.data(), B, T, C, NH, starts);
    }
    bool same_bits(const Attention& o) const {
        return memcmp(out.data(), o.out.data(), out.size() * sizeof(floatX)) == 0 &&
               memcmp(dqkv.data(), o.dqkv.data(), dqkv.size() * sizeof(floatX)) == 0 && lse == o.lse;
    }
};
template <class floatX>
static Floats floats(const std::vector<floatX>& values) {
    return Floats(values.begin(), values.end());
}
template <class floatX>
static double tolerance(double roundings, double terms) {
    return sizeof(floatX) == 2 ? bf16_tolerance(roundings, terms) : sum_tolerance(4 * terms);
}

static void starts_of_tokens() {
    start_test("documents begin at end-of-text tokens, and where a sequence begins");
    const std::vector<int> tokens = {3, 4, 9, 1, 2, 9, 9, 5, 6, 7, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9},
                           want = {0, 0, 2, 2, 2, 5, 6, 6, 6, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
    std::vector<int> starts(20, -1);
    find_documents(starts.data(), tokens.data(), 2, 10, 9);
    EXPECT(starts == want);
    std::vector<int64_t> parts;
    const auto note = [&](int64_t first, int64_t length) { parts.insert(parts.end(), {first, length}); };
    for_each_document(starts.data(), 10, note);
    EXPECT(parts == (std::vector<int64_t>{0, 2, 2, 3, 5, 1, 6, 4}));
    parts.clear();
    for_each_document(nullptr, 10, note);
    EXPECT(parts == (std::vector<int64_t>{0, 10}));
}

static double reference_objective(Attention<float>& a, const int* starts) {
    reference::attention_forward(a.out.data(), a.lse.data(), a.qkv.data(), a.B, a.T, a.C, a.NH, starts);
    double total = 0;
    for (size_t i = 0; i < a.out.size(); i++) total += (double)a.out[i] * a.dout[i];
    return total;
}
static void reference_against_differences() {
    start_test("reference attention with documents: gradients are those of finite differences");
    Attention<float> a(2, 9, 12, 3);
    const std::vector<int> starts = {0, 0, 0, 3, 3, 3, 6, 7, 7, 0, 1, 1, 1, 1, 1, 1, 1, 8};
    reference_objective(a, starts.data());
    reference::attention_backward(a.dqkv.data(), a.dout.data(), a.out.data(), a.lse.data(), a.qkv.data(), a.B, a.T, a.C,
                                  a.NH, starts.data());
    double worst = 0, largest = 0;
    for (size_t i = 0; i < a.qkv.size(); i++) {
        const float keep = a.qkv[i], h = 1e-2f;
        a.qkv[i] = keep + h;
        const double high = reference_objective(a, starts.data());
        a.qkv[i] = keep - h;
        const double low = reference_objective(a, starts.data());
        a.qkv[i] = keep;
        const double difference = std::fabs((high - low) / (2.0 * h) - a.dqkv[i]);
        worst = difference <= worst ? worst : difference;  // NaN stays
        largest = std::fmax(largest, std::fabs(a.dqkv[i]));
    }
    EXPECT(worst < 2e-3 * largest);
    start_test("reference attention: without a mask the gradient is another");
    const Floats masked = a.dqkv;
    reference::attention_backward(a.dqkv.data(), a.dout.data(), a.out.data(), a.lse.data(), a.qkv.data(), a.B, a.T, a.C,
                                  a.NH);
    EXPECT(!(relative_error(a.dqkv, masked) < 0.1));
}

template <class floatX>
static void against_reference(const DocumentLayout& layout, Attention<floatX> a, const std::string& shape) {
    start_test("documents " + shape);
    const std::vector<int> starts = document_starts(layout, a.B, a.T);
    const double terms = (double)(a.C / a.NH + 2 * a.T);
    Floats out(a.out.size()), lse(a.lse.size()), dqkv(a.dqkv.size());
    a.run(starts.data());
    const Floats qkv = floats(a.qkv), dout = floats(a.dout), kept = floats(a.out);
    reference::attention_forward(out.data(), lse.data(), qkv.data(), a.B, a.T, a.C, a.NH, starts.data());
    reference::attention_backward(dqkv.data(), dout.data(), kept.data(), lse.data(), qkv.data(), a.B, a.T, a.C, a.NH,
                                  starts.data());
    EXPECT(relative_error(kept, out) <= tolerance<floatX>(2, terms));
    EXPECT(relative_error(a.lse, lse) <= sum_tolerance(4 * terms));
    EXPECT(relative_error(floats(a.dqkv), dqkv) <= tolerance<floatX>(3, terms));
}

// The rows of a document, of `width` values each.
template <class floatX>
static std::vector<floatX> cut(const std::vector<floatX>& rows, int64_t first, int64_t length, int64_t width) {
    return std::vector<floatX>(rows.begin() + first * width, rows.begin() + (first + length) * width);
}

// Each document is computed among others whose every value is NaN, and alone in a sequence of its
// length: the same bits. So no value of another document is read, or it would be multiplied by 0,
// which does not remove a NaN.
template <class floatX>
static void as_if_alone(const DocumentLayout& layout, const Attention<floatX>& given, const std::string& shape) {
    start_test("as if alone, others NaN, documents " + shape);
    const std::vector<int> starts = document_starts(layout, given.B, given.T);
    const int64_t C = given.C, T = given.T, b = given.B - 1;
    int64_t document = 0;
    for_each_document(&starts[b * T], T, [&](int64_t first, int64_t length) {
        if (document++ % 5 > 0) return;
        const int64_t row = b * T + first;
        Attention<floatX> among = given, alone(1, length, C, given.NH);
        alone.qkv = cut(given.qkv, row, length, 3 * C), alone.dout = cut(given.dout, row, length, C);
        among.qkv.assign(among.qkv.size(), floatX(NAN)), among.dout.assign(among.dout.size(), floatX(NAN));
        std::copy(alone.qkv.begin(), alone.qkv.end(), among.qkv.begin() + row * 3 * C);
        std::copy(alone.dout.begin(), alone.dout.end(), among.dout.begin() + row * C);
        among.run(starts.data()), alone.run(nullptr);
        EXPECT(floats(cut(among.out, row, length, C)) == floats(alone.out));
        EXPECT(floats(cut(among.dqkv, row, length, 3 * C)) == floats(alone.dqkv));
        for (int64_t h = 0; h < given.NH; h++)
            EXPECT(cut(among.lse, (b * given.NH + h) * T + first, length, 1) == cut(alone.lse, h * length, length, 1));
    });
    EXPECT(document > 0);
}

template <class floatX>
static void no_document_mask(const Attention<floatX>& given, const std::string& shape) {
    start_test("one document in each sequence: the bits of no mask; two documents: not, " + shape);
    Attention<floatX> with = given, without = given, two = given;
    std::vector<int> starts(given.B * given.T, 0);
    with.run(starts.data()), without.run(nullptr);
    EXPECT(with.same_bits(without));
    if (given.T == 1) return;
    starts.back() = (int)given.T - 1;
    two.run(starts.data());
    EXPECT(!two.same_bits(without));
}

// Documents with large scores, one after the other in one sequence.
template <class floatX>
static void large_scores(const std::string& who) {
    start_test("documents with scores around 100, -100, 1e30 and -1e30 in one sequence, " + who);
    const int64_t HS = 16, lengths[] = {70, 1, 64, 49};
    std::vector<LargeAttention<floatX>> parts;
    std::vector<floatX> qkv;
    std::vector<int> starts;
    for (int i = 0; i < 4; i++) {
        parts.emplace_back(LARGE_SCORES[i], lengths[i], HS);
        starts.insert(starts.end(), lengths[i], (int)starts.size());
        qkv.insert(qkv.end(), parts[i].qkv.begin(), parts[i].qkv.end());
    }
    Attention<floatX> all(1, (int64_t)starts.size(), HS, 1);
    all.qkv = qkv;
    all.run(starts.data());
    const Floats out = floats(all.out);
    for (int64_t t = 0, part = 0; t < all.T; t++) {
        if (t == starts[t] && t > 0) part++;
        parts[part].check(&out[t * HS], t - starts[t], sizeof(floatX) == 2 ? 0.02 : 1e-4);
    }
}

template <class floatX>
static void all_tests(const std::string& who) {
    const struct {
        int64_t B, T, C, NH;
    } shapes[] = {{1, 1, 16, 1}, {2, 33, 48, 3}, {3, 67, 40, 1}, {2, 130, 128, 2}, {1, 200, 31, 1}, {1, 70, 256, 1}};
    for (const auto& s : shapes) {
        const std::string shape = format("B %d T %d C %d NH %d, %s", (int)s.B, (int)s.T, (int)s.C, (int)s.NH, who);
        seed_random_values(shape);
        const Attention<floatX> given(s.B, s.T, s.C, s.NH);
        no_document_mask(given, shape);
        for (const DocumentLayout& layout : DOCUMENT_LAYOUTS) {
            const std::string name = format("%s, %s", layout.name, shape);
            against_reference(layout, given, name);
            as_if_alone(layout, given, name);
        }
    }
    large_scores<floatX>(who);
}

template <class floatX>
static void same_bits_with_threads(const std::string& who, MatrixUnit unit) {
    start_test("with documents, the same bits with 1 and 3 threads, " + who);
    Attention<floatX> one(2, 130, 96, 3), three = one;
    const std::vector<int> starts = document_starts(DOCUMENT_LAYOUTS[5], 2, 130);
    use_threads(1, unit);
    one.run(starts.data());
    use_threads(3, unit);
    three.run(starts.data());
    EXPECT(one.same_bits(three));
}

int main() {
    starts_of_tokens();
    reference_against_differences();
    use_threads(1, UNIT_PORTABLE);
    all_tests<float>("fp32");
    same_bits_with_threads<float>("fp32", UNIT_PORTABLE);
    for (MatrixUnit unit : MATRIX_UNITS) {
        const std::string who = format("bf16 on %s", MATRIX_UNIT_NAMES[unit]);
        if (!has_matrix_unit(unit)) {
            skip_test(who + " with documents: this CPU has none (a CPU with it tests it)");
            continue;
        }
        use_threads(1, unit);
        all_tests<bf16>(who);
        same_bits_with_threads<bf16>(who, unit);
    }
    return report_tests();
}
