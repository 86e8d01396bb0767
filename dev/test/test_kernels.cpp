// The kernels of the CPU: those of reference.h against finite differences, the fast ones against
// reference.h at awkward sizes, and bit for bit at several numbers of threads.
#include <functional>
#include "dev/test/poisoned_scratch.h"
#include "dev/test/test.h"
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/attention_bf16.h"
#include "llmc/cpu/attention_decode.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/dropout.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/reference.h"
#include "llmc/cpu/compiled_once.h"

using Floats = std::vector<float>;

static void use_threads(int threads) { poisoned_scratch(threads, 300, 256, 1 << 21); }

// Every element of `gradient` (or 40 of them) against a central difference of the objective, which
// reads `input`: the largest difference over the largest gradient.
static double difference_error(Floats& input, const Floats& gradient, std::function<double()> objective) {
    double worst = 0, magnitude = 1e-12;
    for (size_t i = 0; i < input.size(); i += std::max<size_t>(1, input.size() / 40)) {
        const float keep = input[i], h = 1e-2f;
        input[i] = keep + h;
        const double high = objective();
        input[i] = keep - h;
        const double low = objective();
        input[i] = keep;
        const double difference = (high - low) / (2.0 * h) - gradient[i];
        if (!std::isfinite(difference)) return INFINITY;
        worst = std::fmax(worst, std::fabs(difference));
        magnitude = std::fmax(magnitude, std::fabs(gradient[i]));
    }
    return worst / magnitude;
}
static double dot(const Floats& a, const Floats& b) {
    double total = 0;
    for (size_t i = 0; i < a.size(); i++) total += (double)a[i] * b[i];
    return total;
}
// A central difference is off by h^2 = 1e-4 times a third derivative, and by the rounding of fp32,
// 1e-7 / h; both times small factors.
constexpr double DIFFERENCE_TOLERANCE = 2e-3;

// In each of these tests the objective is the sum of the outputs, weighted with dout.
static void layernorm_against_differences() {
    start_test("reference layernorm: gradients are those of finite differences");
    const int rows = 10, C = 12;
    Floats x = random_values(rows * C), w = random_values(C), b = random_values(C), out(rows * C), mean(rows),
           rstd(rows);
    Floats dx(rows * C), dw(C), db(C);
    const Floats dout = random_values(rows * C);
    auto objective = [&] {
        reference::layernorm_forward(out.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(), rows, C);
        return dot(out, dout);
    };
    objective();
    reference::layernorm_backward(dx.data(), dw.data(), db.data(), dout.data(), x.data(), w.data(), mean.data(),
                                  rstd.data(), rows, C, false);
    EXPECT(difference_error(x, dx, objective) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(w, dw, objective) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(b, db, objective) < DIFFERENCE_TOLERANCE);

    start_test("planted errors in a gradient: a wrong value, NaN; finite differences show each");
    Floats wrong = dx;
    wrong[0] += 0.1f;
    EXPECT(!(difference_error(x, wrong, objective) < DIFFERENCE_TOLERANCE));
    wrong[0] = NAN;
    EXPECT(!(difference_error(x, wrong, objective) < DIFFERENCE_TOLERANCE));
}

static void matmul_against_differences() {
    start_test("reference matmul: gradients are those of finite differences");
    const int rows = 10, C = 12, OC = 7;
    Floats x = random_values(rows * C), weight = random_values(OC * C), bias = random_values(OC), out(rows * OC);
    Floats dx(rows * C), dweight(OC * C), dbias(OC);
    const Floats dout = random_values(rows * OC);
    auto objective = [&] {
        reference::matmul_forward(out.data(), x.data(), weight.data(), bias.data(), rows, C, OC);
        return dot(out, dout);
    };
    reference::matmul_backward(dx.data(), dweight.data(), dbias.data(), dout.data(), x.data(), weight.data(), rows, C,
                               OC, false);
    EXPECT(difference_error(x, dx, objective) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(weight, dweight, objective) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(bias, dbias, objective) < DIFFERENCE_TOLERANCE);
}

static void gelu_against_differences() {
    start_test("reference gelu: gradient is that of finite differences");
    Floats x = random_values(120), out(120), dx(120);
    const Floats dout = random_values(120);
    auto objective = [&] {
        reference::gelu_forward(out.data(), x.data(), x.size());
        return dot(out, dout);
    };
    reference::gelu_backward(dx.data(), dout.data(), x.data(), x.size());
    EXPECT(difference_error(x, dx, objective) < DIFFERENCE_TOLERANCE);
}

static void attention_against_differences() {
    start_test("reference attention: gradients are those of finite differences");
    const int B = 2, T = 5, C = 12, NH = 3, rows = B * T;
    Floats qkv = random_values(rows * 3 * C), out(rows * C), lse(B * NH * T), dqkv(rows * 3 * C);
    const Floats dout = random_values(rows * C);
    auto objective = [&] {
        reference::attention_forward(out.data(), lse.data(), qkv.data(), B, T, C, NH);
        return dot(out, dout);
    };
    objective();
    reference::attention_backward(dqkv.data(), dout.data(), out.data(), lse.data(), qkv.data(), B, T, C, NH);
    EXPECT(difference_error(qkv, dqkv, objective) < DIFFERENCE_TOLERANCE);
}

static void classifier_against_differences() {
    start_test("reference classifier: gradients are those of finite differences");
    const int rows = 10, C = 12, V = 9, Vp = 16;
    const float dloss = 0.5f;
    Floats x = random_values(rows * C), wte = random_values(Vp * C), losses(rows), logits(rows * Vp);
    Floats dx(rows * C), dwte(Vp * C);
    std::vector<int> targets(rows);
    for (int i = 0; i < rows; i++) targets[i] = i % 4 == 2 ? IGNORED_TARGET : (i * 5) % V;
    auto run = [&](float* dinp) {
        reference::classifier(losses.data(), dinp, dwte.data(), logits.data(), x.data(), wte.data(), targets.data(),
                              rows, C, V, Vp, dloss, false);
    };
    auto objective = [&] {
        run(nullptr);
        double total = 0;
        for (float loss : losses) total += dloss * loss;
        return total;
    };
    run(dx.data());
    EXPECT(difference_error(x, dx, objective) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(wte, dwte, objective) < DIFFERENCE_TOLERANCE);
    for (int i = 0; i < rows; i++) EXPECT((losses[i] == 0) == (i % 4 == 2));
}

static void encoder_against_differences() {
    start_test("reference encoder: gradients are those of finite differences");
    const int B = 2, T = 5, C = 12, V = 9, maxT = T + 2, rows = B * T;
    Floats wte = random_values(V * C), wpe = random_values(maxT * C), out(rows * C);
    Floats dwte(V * C, 0.0f), dwpe(maxT * C, 5.0f);
    const Floats dout = random_values(rows * C);
    std::vector<int> tokens(rows);
    for (int i = 0; i < rows; i++) tokens[i] = (i * 3) % V;
    auto objective = [&] {
        reference::encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C);
        return dot(out, dout);
    };
    reference::encoder_backward(dwte.data(), dwpe.data(), dout.data(), tokens.data(), B, T, C, maxT, false);
    EXPECT(difference_error(wte, dwte, objective) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(wpe, dwpe, objective) < DIFFERENCE_TOLERANCE);
}

// -------------------------------------------------------------------------------------------------
// fp32: the fast kernels against the reference

struct Shape {
    int B, T, C, NH, OC, V;
};

// The kernels of reference.h and the fast ones as two types, so that one template calls either.
#define EVERY_KERNEL(KERNEL) \
    KERNEL(residual_layernorm_forward) \
    KERNEL(layernorm_backward) \
    KERNEL(matmul_forward) \
    KERNEL(matmul_backward) \
    KERNEL(attention_forward) \
    KERNEL(attention_backward) \
    KERNEL(attention_decode) \
    KERNEL(classifier) \
    KERNEL(encoder_forward) \
    KERNEL(encoder_backward) \
    KERNEL(adamw_update) \
    KERNEL(global_norm_squared)
#define REFERENCE_KERNEL(name) \
    template <class... Arguments> \
    static auto name(Arguments... arguments) { \
        return ::reference::name(arguments...); \
    }
#define FAST_KERNEL(name) \
    template <class... Arguments> \
    static auto name(Arguments... arguments) { \
        return ::name(arguments...); \
    }
struct Reference {
    EVERY_KERNEL(REFERENCE_KERNEL)
};
struct Fast {
    EVERY_KERNEL(FAST_KERNEL)
};

struct Inputs {
    Shape s;
    int rows, Vp, maxT;
    Floats x, x2, w, b, weight, bias, gy, qkv, wte, wpe, squares;
    std::vector<int> targets, tokens;

    explicit Inputs(const Shape& shape)
        : s(shape), rows(s.B * s.T), Vp(round_up(s.V, 128)), maxT(s.T + 3), targets(rows), tokens(rows) {
        x = random_values(rows * s.C), x2 = random_values(rows * s.C);
        w = random_values(s.C), b = random_values(s.C);
        weight = random_values(s.OC * s.C), bias = random_values(s.OC);
        gy = random_values(rows * s.OC), qkv = random_values(rows * 3 * s.C, 2);
        wte = random_values(Vp * s.C), wpe = random_values(maxT * s.C), squares = random_values(rows * s.C);
        for (float& v : squares) v = std::fabs(v);
        for (int i = 0; i < rows; i++) targets[i] = (i * 31 + s.V - 1) % s.V, tokens[i] = (i * 17) % s.V;
        for (int i = 3; i < rows; i += 5) targets[i] = IGNORED_TARGET;
    }
};

// What the kernels compute, and how many terms are summed for each value.
struct Results {
    std::vector<std::string> names;
    std::vector<Floats> values;
    std::vector<double> terms;
    void add(const std::string& name, const Floats& result, double n_terms) {
        names.push_back(name), values.push_back(result), terms.push_back(n_terms);
    }
};

template <class Kernels>
static void layernorm_results(Results& results, const Inputs& in) {
    const int rows = in.rows, C = in.s.C;
    Floats residual(rows * C), out(rows * C), mean(rows), rstd(rows);
    Kernels::residual_layernorm_forward(residual.data(), out.data(), mean.data(), rstd.data(), in.x.data(),
                                        in.x2.data(), in.w.data(), in.b.data(), rows, C);
    results.add("layernorm out", out, C);
    results.add("rstd", rstd, C);
    Floats dx = in.x2, dw = in.w, db = in.b;  // added to
    Kernels::layernorm_backward(dx.data(), dw.data(), db.data(), in.x.data(), residual.data(), in.w.data(), mean.data(),
                                rstd.data(), rows, C, true);
    results.add("layernorm dinp", dx, C);
    results.add("layernorm dweight", dw, rows);
    results.add("layernorm dbias", db, rows);
}

template <class Kernels>
static void matmul_results(Results& results, const Inputs& in) {
    const int rows = in.rows, C = in.s.C, OC = in.s.OC;
    Floats y(rows * OC), gelu_y(rows * OC);
    Kernels::matmul_forward(y.data(), in.x.data(), in.weight.data(), in.bias.data(), rows, C, OC, gelu_y.data());
    results.add("matmul out", y, C);
    results.add("matmul gelu", gelu_y, C);
    Floats dinp(rows * C, NAN), dweight = in.weight, dbias = in.bias;  // the last two are added to
    Kernels::matmul_backward(dinp.data(), dweight.data(), dbias.data(), in.gy.data(), in.x.data(), in.weight.data(),
                             rows, C, OC, true, in.x2.data());
    results.add("matmul dinp", dinp, OC);
    results.add("matmul dweight", dweight, rows);
    results.add("matmul dbias", dbias, rows);
    Floats written(OC * C, NAN), bias_written(OC, NAN);
    Kernels::matmul_backward((float*)nullptr, written.data(), bias_written.data(), in.gy.data(), in.x.data(),
                             in.weight.data(), rows, C, OC, false);
    results.add("matmul dweight written", written, rows);
    results.add("matmul dbias written", bias_written, rows);
    Floats alone(rows * C, NAN);
    Kernels::matmul_backward(alone.data(), (float*)nullptr, (float*)nullptr, in.gy.data(), in.x.data(),
                             in.weight.data(), rows, C, OC, true, in.x2.data());
    EXPECT(alone == dinp);
}

template <class Kernels>
static void attention_results(Results& results, const Inputs& in) {
    const int B = in.s.B, T = in.s.T, C = in.s.C, NH = in.s.NH, cached = T + 3;
    Floats out(in.rows * C), lse(B * NH * T), dqkv(in.rows * 3 * C);
    Kernels::attention_forward(out.data(), lse.data(), in.qkv.data(), B, T, C, NH);
    Kernels::attention_backward(dqkv.data(), in.x.data(), out.data(), lse.data(), in.qkv.data(), B, T, C, NH);
    results.add("attention out", out, C + T);
    results.add("attention lse", lse, C + T);
    results.add("attention dqkv", dqkv, 4 * (C + T));
    Floats keys(cached * C), values(cached * C), scores(NH * cached), last(C);
    for (int t = 0; t < T; t++) {
        Kernels::attention_decode(last.data(), keys.data(), values.data(), in.qkv.data() + t * 3 * C, scores.data(), t,
                                  cached, C, NH);
        if (t % 13 == 3 || t + 1 == T) results.add(format("attention decode at %d", t), last, C + T);
    }
}

template <class Kernels>
static void classifier_and_encoder_results(Results& results, const Inputs& in) {
    const int B = in.s.B, T = in.s.T, C = in.s.C, V = in.s.V, rows = in.rows;
    Floats losses(rows), logits(rows * in.Vp), dlast(rows * C, NAN), dwte = in.wte;  // dwte is added to
    Kernels::classifier(losses.data(), (float*)nullptr, (float*)nullptr, logits.data(), in.x.data(), in.wte.data(),
                        in.targets.data(), rows, C, V, in.Vp, 0.0f, false);
    results.add("classifier losses alone", losses, C + V);
    Kernels::classifier(losses.data(), dlast.data(), dwte.data(), logits.data(), in.x.data(), in.wte.data(),
                        in.targets.data(), rows, C, V, in.Vp, 0.25f, true);
    results.add("classifier losses", losses, C + V);
    results.add("classifier dinp", dlast, 4 * (C + V));
    results.add("classifier dwte", dwte, 4 * (C + rows));
    Floats out(rows * C), dwpe(in.maxT * C, NAN);
    Kernels::encoder_forward(out.data(), in.tokens.data(), in.wte.data(), in.wpe.data(), B, T, C);
    Kernels::encoder_backward(dwte.data(), dwpe.data(), in.x.data(), in.tokens.data(), B, T, C, in.maxT, false);
    results.add("encoder out", out, 1);
    results.add("encoder dwte", dwte, rows + C);
    results.add("encoder dwpe", dwpe, B);
}

template <class Kernels>
static void update_results(Results& results, const Inputs& in) {
    Floats p = in.x, m = in.x2, v = in.squares;
    const UpdateConstants constants = update_constants(1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 3);
    Kernels::adamw_update(p.data(), (float*)nullptr, m.data(), v.data(), in.x2.data(), p.size(), constants);
    results.add("adamw params", p, 4);
    results.add("adamw m", m, 4);
    results.add("adamw v", v, 4);
    const double squared = Kernels::global_norm_squared(in.x.data(), in.x.size());
    results.add("norm", Floats(1, (float)squared), in.rows);
}

template <class Kernels>
static Results all_results(const Inputs& in, int threads) {
    use_threads(threads);
    Results results;
    layernorm_results<Kernels>(results, in);
    matmul_results<Kernels>(results, in);
    attention_results<Kernels>(results, in);
    classifier_and_encoder_results<Kernels>(results, in);
    update_results<Kernels>(results, in);
    return results;
}

static void fast_against_reference(const Shape& s) {
    const std::string shape = format("B %d T %d C %d NH %d OC %d V %d", s.B, s.T, s.C, s.NH, s.OC, s.V);
    seed_random_values(shape);
    const Inputs in(s);
    const Results want = all_results<Reference>(in, 1);
    const Results fast = all_results<Fast>(in, 1), threaded = all_results<Fast>(in, 3);
    for (size_t i = 0; i < want.names.size(); i++) {
        start_test(want.names[i] + ", " + shape);
        const Floats &got = fast.values[i], &got_threaded = threaded.values[i];
        const double error = relative_error(got, want.values[i]), tolerance = sum_tolerance(want.terms[i]);
        if (!EXPECT(error <= tolerance)) printf("    error %.3g, tolerance %.3g\n", error, tolerance);
        // the number of threads changes no bit
        EXPECT(memcmp(got.data(), got_threaded.data(), got.size() * sizeof(float)) == 0);
    }
}

// -------------------------------------------------------------------------------------------------
// bf16

typedef std::vector<bf16> Halves;
// Random values that bf16 holds exactly, so that the reference in fp32 gets the same inputs.
static Floats random_bf16(size_t n, double scale = 1) {
    Floats values = random_values(n, scale);
    for (float& v : values) v = (float)bf16(v);
    return values;
}
static Floats random_fp32(size_t n, double scale) { return random_values(n, scale); }
static Halves halves(const Floats& values) { return Halves(values.begin(), values.end()); }
static Floats floats(const Halves& values) { return Floats(values.begin(), values.end()); }

// Compares a result with the reference's for the same inputs. Its values are sums of `terms` terms
// with `roundings` roundings to bf16 on the way.
static void compare(const char* name, const Floats& got, const Floats& want, double roundings, double terms,
                    double roundoff = BF16_ROUNDOFF) {
    const double error = relative_error(got, want), tolerance = bf16_tolerance(roundings, terms, roundoff);
    if (!EXPECT(error <= tolerance)) printf("    %s: error %.3g, tolerance %.3g\n", name, error, tolerance);
}

// Inputs of the products of one shape, of bf16 or of fp32, and the reference's results, with which
// all units compare.
struct Products {
    const int rows, C, OC;
    Floats x, w, b, dout, pre, y, gelu_y, dx, dw, db;

    Products(const Shape& s, Floats (*random)(size_t n, double scale)) : rows(s.B * s.T), C(s.C), OC(s.OC) {
        x = random(rows * C, 1), w = random(OC * C, 1), b = random(OC, 1);
        dout = random(rows * OC, 1), pre = random(rows * C, 3);
        y = gelu_y = Floats(rows * OC), dx = Floats(rows * C), dw = Floats(OC * C), db = Floats(OC);
        reference::matmul_forward(y.data(), x.data(), w.data(), b.data(), rows, C, OC, gelu_y.data());
        reference::matmul_backward(dx.data(), dw.data(), db.data(), dout.data(), x.data(), w.data(), rows, C, OC, false,
                                   pre.data());
    }
};

// Of bf16, or of fp32 as two bf16 (--precision fp32x3): the error of a product is 2^-15 of it at
// most (split_fp32.h), that of four roundings to 16 bits; results are not rounded.
template <class floatX>
static void products_on_unit(const Products& p, MatrixUnit unit) {
    constexpr bool SPLIT = sizeof(floatX) == 4;
    constexpr double SPLIT_ROUNDOFF = 1.0 / (1 << 16);
    const int rows = p.rows, C = p.C, OC = p.OC;
    device.unit = unit, device.splits_fp32 = SPLIT;
    start_test(format("%s products on %s, rows %d C %d OC %d", SPLIT ? "fp32x3" : "bf16", MATRIX_UNIT_NAMES[unit], rows,
                      C, OC));
    typedef std::vector<floatX> Values;
    const auto values = [](const Floats& of) { return Values(of.begin(), of.end()); };
    const auto check = [](const char* name, const auto& got, const Floats& want, double roundings, double terms) {
        compare(name, {got.begin(), got.end()}, want, SPLIT ? 4 : roundings, terms,
                SPLIT ? SPLIT_ROUNDOFF : BF16_ROUNDOFF);
    };
    const Values hx = values(p.x), hw = values(p.w), hb = values(p.b), hdout = values(p.dout), hpre = values(p.pre);
    Values out(rows * OC), gelu_out(rows * OC), dinp(rows * C), dweight(OC * C), dbias(OC);
    matmul_forward(out.data(), hx.data(), hw.data(), hb.data(), rows, C, OC, gelu_out.data());
    matmul_backward(dinp.data(), dweight.data(), dbias.data(), hdout.data(), hx.data(), hw.data(), rows, C, OC, false,
                    hpre.data());
    check("out", out, p.y, 1, C);
    check("gelu", gelu_out, p.gelu_y, 2, C);
    check("dinp", dinp, p.dx, 1, OC);
    check("dweight", dweight, p.dw, 1, rows);
    check("dbias", dbias, p.db, 1, rows);

    // gradients in fp32, which are not rounded
    Floats sums(OC * C, 0.5f), bias_sums(OC, 0.5f), dw = p.dw, db = p.db;
    for (float& v : dw) v += 0.5f;
    for (float& v : db) v += 0.5f;
    matmul_backward((floatX*)nullptr, sums.data(), bias_sums.data(), hdout.data(), hx.data(), hw.data(), rows, C, OC,
                    true);
    check("dweight, fp32, added to", sums, dw, 0, rows);
    check("dbias, fp32, added to", bias_sums, db, 0, rows);
    device.splits_fp32 = false;
}

// A few rows are multiplied by another kernel, in bf16 a few more as columns: against the
// reference, the same bits for any number of threads, the same GELU as that of a loop of its own,
// and nothing written behind the end.
template <class floatX>
static void few_rows(int rows, int C, int OC) {
    constexpr bool BF16 = sizeof(floatX) == 2;
    start_test(format("products of few rows, %s, rows %d C %d OC %d", BF16 ? MATRIX_UNIT_NAMES[device.unit] : "fp32",
                      rows, C, OC));
    const Floats x = random_bf16(rows * C), w = random_bf16(OC * C), b = random_bf16(OC);
    const std::vector<floatX> inp(x.begin(), x.end()), weight(w.begin(), w.end()), bias(b.begin(), b.end());
    Floats wanted[2] = {Floats(rows * OC), Floats(rows * OC)};
    std::vector<floatX> first[2];
    for (const bool biased : {true, false})
        reference::matmul_forward(wanted[biased].data(), x.data(), w.data(), biased ? b.data() : nullptr, rows, C, OC);
    for (int threads : {1, 2, 7}) {
        use_threads(threads);
        for (const bool biased : {true, false}) {
            std::vector<floatX> out(rows * OC + 1, floatX(7.0f)), activated = out, alone = out;
            matmul_forward(out.data(), inp.data(), weight.data(), biased ? bias.data() : nullptr, rows, C, OC,
                           threads == 2 ? nullptr : activated.data());
            gelu_forward(alone.data(), out.data(), rows * OC);
            EXPECT(threads == 2 || memcmp(activated.data(), alone.data(), alone.size() * sizeof(floatX)) == 0);
            EXPECT((float)out.back() == 7.0f);
            out.pop_back();
            if (threads == 1) first[biased] = out;
            EXPECT(memcmp(out.data(), first[biased].data(), out.size() * sizeof(floatX)) == 0);
            const Floats got(out.begin(), out.end());
            EXPECT(relative_error(got.data(), wanted[biased].data(), rows * OC) <
                   (BF16 ? bf16_tolerance(1, C) : sum_tolerance(C)));
        }
    }
}
// Whether a row of fp32 has the same bits among so many that the product is computed as itself, and
// among fewer, where it is computed as its transpose (gemm_of_rows()).
static void row_alone(int few, int C, int OC) {
    start_test(format("products of fp32: the bits of a row do not depend on the number of rows, C %d OC %d", C, OC));
    const Floats inp = random_values((few + 1) * C), weight = random_values(OC * C), bias = random_values(OC);
    Floats many((few + 1) * OC), fewer(many);
    matmul_forward(many.data(), inp.data(), weight.data(), bias.data(), few + 1, C, OC);
    for (int rows : {few, few / 2 + 1, 5}) {
        matmul_forward(fewer.data(), inp.data(), weight.data(), bias.data(), rows, C, OC);
        EXPECT(memcmp(fewer.data(), many.data(), rows * OC * sizeof(float)) == 0);
    }
}

static void bf16_attention(const Shape& s, MatrixUnit unit) {
    const int B = s.B, T = s.T, C = s.C, NH = s.NH, rows = B * T, HS = C / NH;
    device.unit = unit;
    start_test(format("bf16 attention on %s, B %d T %d C %d NH %d", MATRIX_UNIT_NAMES[unit], B, T, C, NH));
    const Floats qkv = random_bf16(rows * 3 * C, 1.5), dout = random_bf16(rows * C);
    const Halves hqkv = halves(qkv), hdout = halves(dout);

    Floats y(rows * C), log_sums(B * NH * T), lse(B * NH * T);
    Halves out(rows * C, bf16(NAN));
    reference::attention_forward(y.data(), log_sums.data(), qkv.data(), B, T, C, NH);
    attention_forward(out.data(), lse.data(), hqkv.data(), B, T, C, NH);
    compare("out", floats(out), y, 2, HS + T);
    compare("lse", lse, log_sums, 0, HS + T);

    Floats dqkv(rows * 3 * C);
    Halves grads(rows * 3 * C, bf16(NAN));
    reference::attention_backward(dqkv.data(), dout.data(), floats(out).data(), log_sums.data(), qkv.data(), B, T, C,
                                  NH);
    attention_backward(grads.data(), hdout.data(), out.data(), lse.data(), hqkv.data(), B, T, C, NH);
    compare("dqkv", floats(grads), dqkv, 3, HS + 2 * T);

    const int cached = T + 3;
    Floats scores(NH * cached);
    Halves keys(cached * C), values(cached * C), one(C);
    for (int t = 0; t < T; t++) {
        attention_decode(one.data(), keys.data(), values.data(), hqkv.data() + t * 3 * C, scores.data(), t, cached, C,
                         NH);
        compare("decode", floats(one), Floats(y.begin() + t * C, y.begin() + (t + 1) * C), 1, HS + T);
    }
}

static void bf16_layernorm(const Shape& s) {
    const int C = s.C, rows = s.B * s.T;
    start_test(format("bf16 layer norm, rows %d C %d", rows, C));
    const Floats x = random_bf16(rows * C), x2 = random_bf16(rows * C), w = random_bf16(C), b = random_bf16(C);
    const Halves hx = halves(x), hx2 = halves(x2), hw = halves(w), hb = halves(b);

    Floats residual(rows * C), y(rows * C), mean(rows), rstd(rows);
    reference::residual_forward(residual.data(), x.data(), x2.data(), rows * C);
    for (float& v : residual) v = (float)bf16(v);  // the sum is stored, then normalised
    reference::layernorm_forward(y.data(), mean.data(), rstd.data(), residual.data(), w.data(), b.data(), rows, C);
    Floats mean2(rows), rstd2(rows);
    Halves hresidual(rows * C), out(rows * C);
    residual_layernorm_forward(hresidual.data(), out.data(), mean2.data(), rstd2.data(), hx.data(), hx2.data(),
                               hw.data(), hb.data(), rows, C);
    EXPECT(floats(hresidual) == residual);
    compare("out", floats(out), y, 1, C);
    compare("rstd", rstd2, rstd, 0, C);

    Floats dx = x2, dw(C), db(C);
    Halves dinp = hx2, dweight(C), dbias(C);
    reference::layernorm_backward(dx.data(), dw.data(), db.data(), x.data(), residual.data(), w.data(), mean.data(),
                                  rstd.data(), rows, C, false);
    layernorm_backward(dinp.data(), dweight.data(), dbias.data(), hx.data(), hresidual.data(), hw.data(), mean2.data(),
                       rstd2.data(), rows, C, false);
    compare("dinp", floats(dinp), dx, 1, C);
    compare("dweight", floats(dweight), dw, 1, rows);
    compare("dbias", floats(dbias), db, 1, rows);
}

static void bf16_encoder(const Shape& s) {
    const int B = s.B, T = s.T, C = s.C, V = s.V, maxT = T + 3, rows = B * T;
    start_test(format("bf16 embedding, B %d T %d C %d V %d", B, T, C, V));
    const Floats wte = random_bf16(V * C), wpe = random_bf16(maxT * C), dout = random_bf16(rows * C);
    const Halves hwte = halves(wte), hwpe = halves(wpe), hdout = halves(dout);
    std::vector<int> tokens(rows);
    for (int i = 0; i < rows; i++) tokens[i] = i % 3 ? (i * 17) % V : 1 % V;

    Floats y(rows * C), dwte(V * C, 0.25f), dwpe(maxT * C);  // dwte is added to
    reference::encoder_forward(y.data(), tokens.data(), wte.data(), wpe.data(), B, T, C);
    reference::encoder_backward(dwte.data(), dwpe.data(), dout.data(), tokens.data(), B, T, C, maxT, false);
    Halves out(rows * C), hdwte(V * C, bf16(0.25f)), hdwpe(maxT * C);
    encoder_forward(out.data(), tokens.data(), hwte.data(), hwpe.data(), B, T, C);
    encoder_backward(hdwte.data(), hdwpe.data(), hdout.data(), tokens.data(), B, T, C, maxT, false);
    compare("out", floats(out), y, 1, 1);
    compare("dwte", floats(hdwte), dwte, 1, rows);
    compare("dwpe", floats(hdwpe), dwpe, 1, B);
}

static float largest_magnitude(const Floats& values) {
    float largest = 0;
    for (float v : values) largest = std::fmax(largest, std::fabs(v));
    return largest;
}

static void bf16_classifier(const Shape& s) {
    const int C = s.C, V = s.V, Vp = round_up(V, 128), rows = s.B * s.T;
    const float dloss = 0.25f;
    start_test(format("bf16 classifier, rows %d C %d V %d", rows, C, V));
    const Floats x = random_bf16(rows * C), wte = random_bf16(Vp * C);
    const Halves hx = halves(x), hwte = halves(wte);
    std::vector<int> targets(rows);
    for (int i = 0; i < rows; i++) targets[i] = i % 5 == 3 ? IGNORED_TARGET : (i * 31 + V - 1) % V;

    Floats want_losses(rows), logits(rows * Vp), want_dinp(rows * C), want_dwte(Vp * C);
    reference::matmul_forward(logits.data(), x.data(), wte.data(), (const float*)nullptr, rows, C, Vp);
    // Logits are rounded to bf16. This is the absolute error of a logit, and so the relative error
    // of its exponential.
    const double logit_error = largest_magnitude(logits) * BF16_ROUNDOFF;
    reference::classifier(want_losses.data(), want_dinp.data(), want_dwte.data(), logits.data(), x.data(), wte.data(),
                          targets.data(), rows, C, V, Vp, dloss, false);

    Floats losses(rows), sums(Vp * C, NAN);
    Halves hlogits(rows * Vp), dinp(rows * C), dwte(Vp * C);
    auto run = [&](float* dwte_sums) {
        classifier(losses.data(), dinp.data(), dwte.data(), hlogits.data(), hx.data(), hwte.data(), targets.data(),
                   rows, C, V, Vp, dloss, false, dwte_sums);
    };
    run(sums.data());
    for (int i = 0; i < rows; i++) EXPECT(std::fabs(losses[i] - want_losses[i]) <= logit_error + sum_tolerance(V));
    EXPECT(relative_error(floats(dinp), want_dinp) <= logit_error + bf16_tolerance(2, Vp));
    EXPECT(relative_error(floats(dwte), want_dwte) <= logit_error + bf16_tolerance(2, rows));
    const Halves first = dwte;
    run(sums.data());
    EXPECT(memcmp(first.data(), dwte.data(), first.size() * sizeof(bf16)) == 0);
    if (rows > classifier_chunk_rows(rows)) return;
    run(nullptr);  // in one chunk, the sums over chunks change nothing
    EXPECT(memcmp(first.data(), dwte.data(), first.size() * sizeof(bf16)) == 0);
}

static void bf16_itself() {
    start_test("bf16: to nearest, ties to even, NaN and infinity stay; vectors as single values");
    EXPECT(bf16(1.0f).bits == 0x3F80 && bf16(1.00390625f).bits == 0x3F80 && bf16(1.01171875f).bits == 0x3F82 &&
           bf16(3.4e38f).bits == 0x7F80 && std::isnan((float)bf16(NAN)));
    const Floats special = {0.0f, -0.0f, 1.0f, -1.00390625f, 1.01171875f, INFINITY, -INFINITY, 3.4e38f, NAN, 1e-30f};
    Floats values = random_values(256, 100);
    values.insert(values.end(), special.begin(), special.end());
    for (float v : values) {
        bf16 stored[VEC_FLOATS];
        store(stored, broadcast(1.0f) * v);
        EXPECT(stored[3].bits == bf16(v).bits || (std::isnan(v) && std::isnan((float)stored[3])));
        EXPECT((float)stored[3] == load(stored)[3] || std::isnan(v));
    }
}

static void planted_bf16_errors() {
    start_test("planted errors in a bf16 product: a tile left out, a pair exchanged, NaN; the comparison sees each");
    const int M = 2 * TILE_ROWS, N = 3 * TILE_COLS, K = 2 * TILE_K;
    const Floats a = random_bf16(M * K), b = random_bf16(K * N);
    const Halves ha = halves(a), hb = halves(b);
    Floats want(M * N), got(M * N);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < K; k++) want[i * N + j] += a[i * K + k] * b[k * N + j];
    Halves tiles(K * N);
    pack_tiles(tiles.data(), {hb.data(), N, 1}, 0, K, 0, N);
    auto product_is_right = [&](int64_t k_tiles) {
        const MatrixRegisters registers;
        multiply_tiles({got.data(), N, ha.data(), K, 2, tiles.data(), 2 * TILE_ELEMS, 3, k_tiles, false});
        return relative_error(got, want) <= sum_tolerance(K);
    };
    EXPECT(product_is_right(2));
    EXPECT(!product_is_right(1));
    std::swap(tiles[100], tiles[101]);
    EXPECT(!product_is_right(2));
    std::swap(tiles[100], tiles[101]);
    tiles[7] = NAN;
    EXPECT(!product_is_right(2));
}

// What is kept of n ones, which are elements `first` to first + n - 1 of the step.
template <class floatX = float>
static std::vector<floatX> dropped_ones(const Dropout& d, size_t n, DropoutPlace place = DROP_MLP, int64_t layer = 0) {
    std::vector<floatX> x(n, floatX(1.0f));
    dropout(x.data(), x.data(), n, d.mask(place, layer, 1));
    return x;
}
static void dropout_masks() {
    const size_t n = 1 << 18;
    for (double p : {0.1, 0.5, 0.9}) {
        start_test(format("dropout %g: the share that is dropped, the mean, neighbours", p));
        const Dropout d{p, 42, 7, 0};
        const Floats x = dropped_ones(d, n);
        double zeros = 0, sum = 0, pairs = 0;
        for (size_t i = 0; i < n; i++) {
            EXPECT(x[i] == 0 || x[i] == (float)(1 / (1 - p)));
            zeros += x[i] == 0, sum += x[i], pairs += i > 0 && x[i] == 0 && x[i - 1] == 0;
        }
        // within 5 standard deviations of so many draws; those of pairs are not independent
        const double deviation = std::sqrt(p * (1 - p) * n), of_pairs = 2 * std::sqrt(p * p * (1 - p * p) * n);
        EXPECT(std::fabs(zeros - p * n) < 5 * deviation && std::fabs(sum - n) < 5 * deviation / (1 - p));
        EXPECT(std::fabs(pairs - p * p * n) < 5 * of_pairs);
        start_test(format("dropout %g: another seed, step, place, layer: another mask, which is independent", p));
        for (const Floats& other :
             {dropped_ones({p, 43, 7, 0}, n), dropped_ones({p, 42, 8, 0}, n), dropped_ones(d, n, DROP_ATTENTION),
              dropped_ones(d, n, DROP_EMBEDDINGS), dropped_ones(d, n, DROP_MLP, 1), dropped_ones({p, 42, 7, 1}, n)}) {
            double both = 0;
            for (size_t i = 0; i < n; i++) both += x[i] == 0 && other[i] == 0;
            EXPECT(std::fabs(both - p * p * n) < 5 * of_pairs);
        }
        start_test(format("dropout %g: cut anywhere, on 1, 2 and 7 threads, in bf16: the same elements", p));
        for (int threads : {1, 2, 7}) {
            use_threads(threads);
            EXPECT(dropped_ones(d, n) == x);
            for (int64_t first : {1, 33, 100000}) {
                const Floats rest = dropped_ones({p, 42, 7, first}, n - first);
                EXPECT(memcmp(rest.data(), &x[first], rest.size() * sizeof(float)) == 0);
            }
            const Halves half = dropped_ones<bf16>(d, n);
            for (size_t i = 0; i < n; i++) EXPECT(half[i].bits == bf16(x[i]).bits);
        }
    }
    use_threads(2);
    start_test(
        "dropout: as the plain loop, to the bit, in place and not; the gradient has the same mask; 0 does nothing");
    for (size_t size : {1, 15, 17, 100, 40001}) {
        const DropoutMask mask = Dropout{0.3, 1, 2, 5}.mask(DROP_ATTENTION, 3, 48);
        const Floats x = random_values(size), dout = random_values(size);
        Floats want(size), got(size, NAN), in_place = x, gradient = dout;
        EXPECT(reference::dropout(want.data(), x.data(), size, mask) == want.data());
        EXPECT(dropout(got.data(), x.data(), size, mask) == got.data() && got == want);
        dropout(in_place.data(), in_place.data(), size, mask), dropout(gradient.data(), gradient.data(), size, mask);
        EXPECT(in_place == want);
        for (size_t i = 0; i < size; i++) EXPECT((gradient[i] == 0) == (want[i] == 0));
        Floats untouched(size, 7.0f);
        EXPECT(dropout(untouched.data(), x.data(), size, Dropout{}.mask(DROP_MLP, 0, 48)) == x.data());
        EXPECT(untouched == Floats(size, 7.0f));
    }
}

#include "dev/test/code_tests.h"

static void dropout_against_differences() {
    start_test("reference dropout: gradient is that of finite differences");
    Floats x = random_values(120), out(120), dx(120);
    const Floats dout = random_values(120);
    const DropoutMask mask = Dropout{0.4, 9, 0, 0}.mask(DROP_MLP, 0, 12);
    auto objective = [&] {
        reference::dropout(out.data(), x.data(), x.size(), mask);
        return dot(out, dout);
    };
    reference::dropout(dx.data(), dout.data(), x.size(), mask);
    EXPECT(difference_error(x, dx, objective) < DIFFERENCE_TOLERANCE);
}

static void gelu_edges() {
    start_test("gelu at the edges: zeros, subnormals, +-100, NaN, in place, several lengths");
    use_threads(2);
    const Floats special = {0.0f, -0.0f, 1e-40f, -1e-40f, 100.0f, -100.0f, 10.0f, -10.0f, 1e-3f, 3e4f, -3e4f};
    const Floats ones(special.size(), 1.0f);
    Floats slow(special.size()), fast = special, dslow = ones, dfast = ones;  // the fast ones in place
    reference::gelu_forward(slow.data(), special.data(), special.size());
    gelu_forward(fast.data(), fast.data(), fast.size());
    reference::gelu_backward(dslow.data(), ones.data(), special.data(), special.size());
    gelu_backward(dfast.data(), dfast.data(), special.data(), special.size());
    for (size_t i = 0; i < special.size(); i++) {
        EXPECT(std::fabs(fast[i] - slow[i]) <= 2e-6 * std::fabs(slow[i]) + 1e-30);
        EXPECT(std::fabs(dfast[i] - dslow[i]) <= 2e-6);
    }
    float nan = NAN, out = 0;
    gelu_forward(&out, &nan, 1);
    EXPECT(std::isnan(out));
    // One value at a time: beside larger values an error in the tail would not show.
    for (float x = -12; x < 12; x += 0.037f) {
        float a, b;
        reference::gelu_forward(&a, &x, 1);
        gelu_forward(&b, &x, 1);
        // The exponent is rounded, which changes its exponential relatively by as many units.
        const double exponent = 2 * GELU_SCALE * std::fabs(x) * (1 + GELU_CUBIC * x * x);
        EXPECT(std::fabs(b - a) <= (8 + exponent) * std::ldexp(1.0, -23) * std::fabs(a) + 1e-36);
    }
    for (size_t n : {1, 31, 33, 4095, 3 * 1600}) {
        Floats x = random_values(n, 4), a(n), b(n);
        reference::gelu_forward(a.data(), x.data(), n);
        gelu_forward(b.data(), x.data(), n);
        EXPECT(relative_error(b, a) < 1e-6);
    }
    start_test("planted error: gelu with 0.044 for 0.044715 fails the comparison");
    Floats x = random_values(1000, 3), a(1000), wrong(1000);
    reference::gelu_forward(a.data(), x.data(), 1000);
    for (int i = 0; i < 1000; i++)
        wrong[i] = 0.5f * x[i] * (1 + std::tanh(0.7978845608f * (x[i] + 0.044f * x[i] * x[i] * x[i])));
    EXPECT(!(relative_error(wrong, a) < 1e-6));
    wrong = a, wrong[500] = NAN;
    EXPECT(!(relative_error(wrong, a) < 1e-6));
}

static void nan_travels() {
    start_test("NaN in the logits or the gradient comes out as NaN");
    use_threads(1);
    Floats logits(128, 1.0f), grads(1000, 1.0f);
    logits[5] = NAN;
    EXPECT(std::isnan(softmax_loss_row(logits.data(), 3, 100, 128, 1.0f)));
    grads[999] = NAN;
    EXPECT(std::isnan(global_norm_squared(grads.data(), grads.size())));
}

static void exp_accuracy() {
    start_test("exp: within 3 units in the last place from -87 to 88, 0 below");
    double worst = 0;
    for (double x = -87; x < 88; x += 0.0137) {
        const double got = exp(broadcast((float)x))[0], want = std::exp((double)(float)x);
        worst = std::fmax(worst, std::fabs(got - want) / want);
    }
    EXPECT(worst < 3 * std::ldexp(1.0, -23));
    EXPECT(exp(broadcast(-200.0f))[0] == 0.0f && exp(broadcast(-INFINITY))[0] == 0.0f &&
           std::isnan(exp(broadcast(NAN))[0]));
}

static void rounding_up() {
    start_test("ceil_div and round_up: zero, one, just below, at and above a multiple, in the type of the arguments");
    static_assert(ceil_div(0, 32) == 0 && ceil_div(1, 32) == 1 && ceil_div(32, 32) == 1 && ceil_div(33, 32) == 2);
    static_assert(round_up(0, 16) == 0 && round_up(1, 16) == 16 && round_up(16, 16) == 16 && round_up(17, 16) == 32);
    static_assert(std::is_same_v<decltype(ceil_div(1, 2)), int>);
    EXPECT(round_up((int64_t)1 << 40, 3) == ((int64_t)1 << 40) + 2);
}

// Sizes that take longest are left out: "small" in emulators and under ThreadSanitizer, "medium"
// under AddressSanitizer. There each access to memory of the naive loops is a call.
static std::string sizes = "all";
static bool is_long(int rows, int C, int OC) { return sizes != "all" && (int64_t)rows * C * OC > 8000000; }
static bool left_out(const Shape& s) {
    return is_long(s.B * s.T, s.C, s.OC) || (sizes == "small" && (s.B * s.T > 100 || s.C > 800));
}

static bool skip_without(MatrixUnit unit) {
    if (has_matrix_unit(unit)) return false;
    skip_test(format("bf16 on %s: this CPU has none (a CPU with it tests it)", MATRIX_UNIT_NAMES[unit]));
    return true;
}

int main(int argc, char** argv) {
    if (argc > 1) sizes = argv[1];
    if (sizes != "all" && sizes != "medium" && sizes != "small") usage_error("all, medium and small are accepted");
    rounding_up();
    layernorm_against_differences();
    matmul_against_differences();
    gelu_against_differences();
    attention_against_differences();
    classifier_against_differences();
    encoder_against_differences();

    // B, T, C, NH, OC, V
    for (const Shape& s : {Shape{2, 1, 48, 3, 7, 3}, Shape{1, 33, 48, 1, 201, 97}, Shape{3, 33, 80, 1, 80, 130},
                           Shape{1, 67, 160, 2, 33, 257}, Shape{2, 65, 128, 1, 129, 50},
                           Shape{1, 130, 64, 4, 300, 1000}, Shape{1, 1, 16, 1, 16, 1}, Shape{5, 7, 31, 1, 17, 129},
                           Shape{1, 70, 256, 1, 100, 100}, Shape{1, 300, 96, 6, 40, 500}, Shape{1, 5, 1600, 25, 48, 40},
                           Shape{1, 20, 96, 2, 900, 1000}, Shape{2, 300, 32, 2, 24, 200}})
        if (!left_out(s)) fast_against_reference(s);

    for (int rows : {1, 2, 3, 4})
        for (const auto& [C, OC] :
             std::vector<std::pair<int, int>>{{1, 1}, {31, 5}, {33, 70}, {97, 130}, {768, 257}, {1600, 3001}}) {
            if (is_long(rows, C, OC)) continue;
            few_rows<float>(rows, C, OC);
            few_rows<bf16>(rows, C, OC);
        }
    for (int rows : {5, 17, 33, 96, 97})
        for (const auto& [C, OC] : std::vector<std::pair<int, int>>{{31, 5}, {97, 130}, {1600, 300}})
            if (!is_long(rows, C, OC)) few_rows<float>(rows, C, OC);
    row_alone(FP32_FEW_ROWS, 97, 130), row_alone(FP32_FEW_ROWS, 1600, 70);

    // products need B, T, C and OC; attention B, T, C and NH
    const Shape product_shapes[] = {{1, 5, 48, 1, 17, 1},     {3, 33, 80, 1, 80, 1},    {1, 67, 160, 1, 33, 1},
                                    {5, 7, 31, 1, 17, 1},     {1, 300, 96, 1, 40, 1},   {1, 9, 1600, 1, 48, 1},
                                    {1, 1100, 33, 1, 200, 1}, {1, 600, 1100, 1, 800, 1}};
    const Shape attention_shapes[] = {{1, 1, 16, 1, 0, 0},    {2, 33, 48, 3, 0, 0},  {3, 67, 40, 1, 0, 0},
                                      {1, 130, 128, 2, 0, 0}, {2, 65, 192, 2, 0, 0}, {1, 300, 64, 1, 0, 0},
                                      {1, 70, 256, 1, 0, 0},  {1, 50, 31, 1, 0, 0}};
    std::vector<MatrixUnit> units;
    for (MatrixUnit unit : MATRIX_UNITS)
        if (!skip_without(unit)) units.push_back(unit);
    auto on_each = [&](auto test) {
        for (MatrixUnit unit : units)
            for (int threads : {1, 3}) use_threads(threads), test(unit);
    };
    for (MatrixUnit unit : units)
        for (int rows : {5, 33, 100})
            for (const auto& [C, OC] : std::vector<std::pair<int, int>>{{31, 5}, {97, 130}, {800, 57}, {1024, 70}})
                device.unit = unit, few_rows<bf16>(rows, C, OC);
    for (const Shape& s : product_shapes)
        if (!left_out(s)) {
            const Products in_bf16(s, random_bf16), in_fp32(s, random_fp32);
            on_each([&](MatrixUnit unit) {
                products_on_unit<bf16>(in_bf16, unit), products_on_unit<float>(in_fp32, unit);
            });
        }
    for (const Shape& s : attention_shapes)
        if (!left_out(s)) on_each([&](MatrixUnit unit) { bf16_attention(s, unit); });
    for (MatrixUnit unit : units) device.unit = unit, planted_bf16_errors();
    device.unit = best_matrix_unit();
    for (const Shape& s : {Shape{1, 1, 16, 1, 16, 1}, Shape{2, 33, 48, 3, 7, 97}, Shape{1, 600, 80, 1, 80, 130},
                           Shape{3, 67, 31, 1, 17, 257}, Shape{1, 5, 1600, 25, 48, 40}}) {
        if (left_out(s)) continue;
        bf16_layernorm(s);
        bf16_encoder(s);
        bf16_classifier(s);
    }
    bf16_itself();
    dropout_masks();
    dropout_against_differences();
    activation_codes();
    gelu_edges();
    nan_travels();
    exp_accuracy();
    return report_tests();
}
