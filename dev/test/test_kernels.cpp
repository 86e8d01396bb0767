// Kernels: reference.h against finite differences, the fast ones against reference.h at awkward sizes, thread counts bitwise.
#include <functional>
#include "dev/test/test.h"
#include "llmc/cpu/attention.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/reference.h"

using Floats = std::vector<float>;

static void use_threads(int threads) {
    static std::vector<float> scratch;
    device.threads = threads;
    device.scratch_elems = std::max(GEMM_SCRATCH_ELEMS, attention_scratch_elems(300, 256)) / 16 * 16 + 16;
    scratch.assign(threads * device.scratch_elems, NAN);  // what a kernel has not written it may not read
    device.scratch = scratch.data();
}

// d(sum of out * weights)/d(input) by central differences must be what backward says.
static double difference_error(Floats& input, const Floats& gradient, std::function<double()> objective) {
    double worst = 0, magnitude = 1e-12;
    for (size_t i = 0; i < input.size(); i += std::max<size_t>(1, input.size() / 40)) {
        const float keep = input[i], h = 1e-2f;
        input[i] = keep + h;
        const double high = objective();
        input[i] = keep - h;
        const double low = objective();
        input[i] = keep;
        const double d = (high - low) / (2.0 * h) - gradient[i];
        if (!std::isfinite(d)) return INFINITY;
        worst = std::fmax(worst, std::fabs(d)), magnitude = std::fmax(magnitude, std::fabs(gradient[i]));
    }
    return worst / magnitude;
}
static double dot(const Floats& a, const Floats& b) {
    double total = 0;
    for (size_t i = 0; i < a.size(); i++) total += (double)a[i] * b[i];
    return total;
}
constexpr double DIFFERENCE_TOLERANCE = 2e-3;  // h^2 = 1e-4 of curvature, fp32 rounding 1e-7 / h, each times small factors

static void reference_against_differences() {
    const int B = 2, T = 5, C = 12, NH = 3, OC = 7, rows = B * T, V = 9, Vp = 16;
    start_test("reference layernorm: gradients are those of finite differences");
    Floats x = random_values(rows * C), w = random_values(C), b = random_values(C), g = random_values(rows * C), out(rows * C), mean(rows), rstd(rows), dx(rows * C), dw(C), db(C);
    auto layernorm = [&] { reference::layernorm_forward(out.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(), rows, C); return dot(out, g); };
    layernorm();
    reference::layernorm_backward(dx.data(), dw.data(), db.data(), g.data(), x.data(), w.data(), mean.data(), rstd.data(), rows, C, false);
    EXPECT(difference_error(x, dx, layernorm) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(w, dw, layernorm) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(b, db, layernorm) < DIFFERENCE_TOLERANCE);
    Floats wrong = dx;
    wrong[0] += 0.1f;
    EXPECT(!(difference_error(x, wrong, layernorm) < DIFFERENCE_TOLERANCE));  // planted error
    wrong[0] = NAN;
    EXPECT(!(difference_error(x, wrong, layernorm) < DIFFERENCE_TOLERANCE));

    start_test("reference matmul: gradients are those of finite differences");
    Floats weight = random_values(OC * C), bias = random_values(OC), y(rows * OC), gy = random_values(rows * OC), dweight(OC * C), dbias(OC);
    auto matmul = [&] { reference::matmul_forward(y.data(), x.data(), weight.data(), bias.data(), rows, C, OC); return dot(y, gy); };
    reference::matmul_backward(dx.data(), dweight.data(), dbias.data(), gy.data(), x.data(), weight.data(), rows, C, OC, false);
    EXPECT(difference_error(x, dx, matmul) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(weight, dweight, matmul) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(bias, dbias, matmul) < DIFFERENCE_TOLERANCE);

    start_test("reference gelu: gradient is that of finite differences");
    auto gelu = [&] { reference::gelu_forward(out.data(), x.data(), x.size()); return dot(out, g); };
    reference::gelu_backward(dx.data(), g.data(), x.data(), x.size());
    EXPECT(difference_error(x, dx, gelu) < DIFFERENCE_TOLERANCE);

    start_test("reference attention: gradients are those of finite differences");
    Floats qkv = random_values(rows * 3 * C), lse(B * NH * T), dqkv(rows * 3 * C);
    auto attention = [&] { reference::attention_forward(out.data(), lse.data(), qkv.data(), B, T, C, NH); return dot(out, g); };
    attention();
    reference::attention_backward(dqkv.data(), g.data(), out.data(), lse.data(), qkv.data(), B, T, C, NH);
    EXPECT(difference_error(qkv, dqkv, attention) < DIFFERENCE_TOLERANCE);

    start_test("reference classifier: gradients are those of finite differences");
    Floats wte = random_values(Vp * C), losses(rows), logits(rows * Vp), dwte(Vp * C);
    std::vector<int> targets(rows), tokens(rows);
    for (int i = 0; i < rows; i++) targets[i] = (i * 5) % V, tokens[i] = (i * 3) % V;
    auto classifier = [&](float* dinp) {
        reference::classifier(losses.data(), dinp, dwte.data(), logits.data(), x.data(), wte.data(), targets.data(), rows, C, V, Vp, 0.5f, false);
        double total = 0;
        for (float l : losses) total += 0.5 * l;
        return total;
    };
    classifier(dx.data());
    const Floats dx_kept = dx, dwte_kept = dwte;
    EXPECT(difference_error(x, dx_kept, [&] { return classifier(nullptr); }) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(wte, dwte_kept, [&] { return classifier(nullptr); }) < DIFFERENCE_TOLERANCE);

    start_test("reference encoder: gradients are those of finite differences");
    Floats wpe = random_values((T + 2) * C), dwpe((T + 2) * C, 5.0f);
    auto encoder = [&] { reference::encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C); return dot(out, g); };
    std::fill(dwte.begin(), dwte.end(), 0.0f);
    reference::encoder_backward(dwte.data(), dwpe.data(), g.data(), tokens.data(), B, T, C, T + 2, false);
    EXPECT(difference_error(wte, dwte, encoder) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(wpe, dwpe, encoder) < DIFFERENCE_TOLERANCE);
}

struct Shape { int B, T, C, NH, OC, V; };

// Everything the fast kernels compute at one shape, one result after another.
struct Results { std::vector<std::string> names; std::vector<Floats> values; std::vector<double> terms; };

template <class Add>
static void collect(Results& r, Add compute) { compute([&](const char* name, const Floats& values, double terms) { r.names.push_back(name), r.values.push_back(values), r.terms.push_back(terms); }); }

#define COMPUTE_ALL(KERNELS)                                                                                                                                                               \
    [&](auto add) {                                                                                                                                                                        \
        Floats out(rows * C), mean(rows), rstd(rows), residual(rows * C), y(rows * OC), gelu_y(rows * OC), lse(B * NH * T), dqkv(rows * 3 * C), losses(rows), logits(rows * Vp);            \
        KERNELS residual_layernorm_forward(residual.data(), out.data(), mean.data(), rstd.data(), x.data(), x2.data(), w.data(), b.data(), rows, C);                                       \
        add("layernorm out", out, C), add("rstd", rstd, C);                                                                                                                                \
        Floats dx = x2, dw = w, db = b;                                                                                                                                                    \
        KERNELS layernorm_backward(dx.data(), dw.data(), db.data(), x.data(), residual.data(), w.data(), mean.data(), rstd.data(), rows, C, true);                                         \
        add("layernorm dinp", dx, C), add("layernorm dweight", dw, rows), add("layernorm dbias", db, rows);                                                                                \
        KERNELS matmul_forward(y.data(), x.data(), weight.data(), bias.data(), rows, C, OC, gelu_y.data());                                                                                \
        add("matmul out", y, C), add("matmul gelu", gelu_y, C);                                                                                                                            \
        Floats dinp(rows * C, NAN), dweight = weight, dbias = bias, fresh(OC * C, NAN), fresh_bias(OC, NAN);                                                                               \
        KERNELS matmul_backward(dinp.data(), dweight.data(), dbias.data(), gy.data(), x.data(), weight.data(), rows, C, OC, true, x2.data());                                              \
        add("matmul dinp", dinp, OC), add("matmul dweight", dweight, rows), add("matmul dbias", dbias, rows);                                                                              \
        KERNELS matmul_backward((float*)nullptr, fresh.data(), fresh_bias.data(), gy.data(), x.data(), weight.data(), rows, C, OC, false);                                                 \
        add("matmul dweight written", fresh, rows), add("matmul dbias written", fresh_bias, rows);                                                                                         \
        KERNELS attention_forward(out.data(), lse.data(), qkv.data(), B, T, C, NH);                                                                                                        \
        KERNELS attention_backward(dqkv.data(), x.data(), out.data(), lse.data(), qkv.data(), B, T, C, NH);                                                                                \
        add("attention out", out, C + T), add("attention lse", lse, C + T), add("attention dqkv", dqkv, 4 * (C + T));                                                                      \
        Floats dwte = wte, dlast(rows * C, NAN), dwpe((T + 3) * C, NAN);                                                                                                                   \
        KERNELS classifier(losses.data(), (float*)nullptr, (float*)nullptr, logits.data(), x.data(), wte.data(), targets.data(), rows, C, V, Vp, 0.0f, false);                             \
        add("classifier losses alone", losses, C + V);                                                                                                                                     \
        KERNELS classifier(losses.data(), dlast.data(), dwte.data(), logits.data(), x.data(), wte.data(), targets.data(), rows, C, V, Vp, 0.25f, true);                                    \
        add("classifier losses", losses, C + V), add("classifier dinp", dlast, 4 * (C + V)), add("classifier dwte", dwte, 4 * (C + rows));                                                 \
        KERNELS encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C);                                                                                               \
        KERNELS encoder_backward(dwte.data(), dwpe.data(), x.data(), tokens.data(), B, T, C, T + 3, false);                                                                                \
        add("encoder out", out, 1), add("encoder dwte", dwte, rows + C), add("encoder dwpe", dwpe, B);                                                                                     \
        Floats p = x, m = x2, v = gy2, keys(4 * C), values(4 * C), scores(NH * 4), one(C);                                                                                                 \
        KERNELS adamw_update(p.data(), m.data(), v.data(), x2.data(), p.size(), adamw_constants(1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 3));                                                \
        add("adamw params", p, 4), add("adamw m", m, 4), add("adamw v", v, 4);                                                                                                             \
        for (int t = 0; t < std::min(T, 4); t++) KERNELS attention_decode(one.data(), keys.data(), values.data(), qkv.data() + t * 3 * C, scores.data(), t, 4, C, NH);                     \
        add("attention decode", one, C + T);                                                                                                                                               \
        add("norm", Floats(1, (float)KERNELS global_norm_squared(x.data(), x.size())), rows);                                                                                              \
    }

static void fast_against_reference(const Shape& s) {
    const int B = s.B, T = s.T, C = s.C, NH = s.NH, OC = s.OC, V = s.V, Vp = (V + 127) / 128 * 128, rows = B * T;
    Floats x = random_values(rows * C), x2 = random_values(rows * C), w = random_values(C), b = random_values(C), weight = random_values(OC * C), bias = random_values(OC);
    Floats gy = random_values(rows * OC), qkv = random_values(rows * 3 * C, 2), wte = random_values(Vp * C), wpe = random_values((T + 3) * C), gy2 = random_values(rows * C);
    for (float& v : gy2) v = std::fabs(v);
    std::vector<int> targets(rows), tokens(rows);
    for (int i = 0; i < rows; i++) targets[i] = (i * 31 + V - 1) % V, tokens[i] = (i * 17) % V;
    use_threads(1);
    Results slow, fast, threaded;
    collect(slow, COMPUTE_ALL(reference::));
    collect(fast, COMPUTE_ALL(::));
    use_threads(3);
    collect(threaded, COMPUTE_ALL(::));
    for (size_t i = 0; i < slow.names.size(); i++) {
        start_test(format("%s, B %d T %d C %d NH %d OC %d V %d", slow.names[i].c_str(), B, T, C, NH, OC, V));
        const double error = relative_error(fast.values[i], slow.values[i]), tolerance = sum_tolerance(slow.terms[i]);
        if (!EXPECT(error <= tolerance)) printf("    error %.3g, tolerance %.3g\n", error, tolerance);
        EXPECT(memcmp(fast.values[i].data(), threaded.values[i].data(), fast.values[i].size() * sizeof(float)) == 0);  // same bits whatever the threads
    }
}

static void gelu_edges() {
    start_test("gelu at the edges: zeros, subnormals, +-100, NaN, in place, every length");
    use_threads(2);
    Floats special = {0.0f, -0.0f, 1e-40f, -1e-40f, 100.0f, -100.0f, 10.0f, -10.0f, 1e-3f, 3e4f, -3e4f}, slow(special.size()), fast = special, ones(special.size(), 1.0f), dslow = ones, dfast = ones;
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
    for (size_t n : {1, 31, 33, 4095, 3 * 1600}) {
        Floats x = random_values(n, 4), a(n), b(n);
        reference::gelu_forward(a.data(), x.data(), n);
        gelu_forward(b.data(), x.data(), n);
        EXPECT(relative_error(b, a) < 1e-6);
    }
    start_test("planted error: gelu with 0.044 for 0.044715 fails the comparison");
    Floats x = random_values(1000, 3), a(1000), wrong(1000);
    reference::gelu_forward(a.data(), x.data(), 1000);
    for (int i = 0; i < 1000; i++) wrong[i] = 0.5f * x[i] * (1 + std::tanh(0.7978845608f * (x[i] + 0.044f * x[i] * x[i] * x[i])));
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
    EXPECT(exp(broadcast(-200.0f))[0] == 0.0f && exp(broadcast(-INFINITY))[0] == 0.0f && std::isnan(exp(broadcast(NAN))[0]));
}

int main() {
    reference_against_differences();
    for (const Shape& s : {Shape{2, 1, 48, 3, 7, 3}, Shape{1, 33, 48, 1, 201, 97}, Shape{3, 33, 80, 1, 80, 130}, Shape{1, 67, 160, 2, 33, 257}, Shape{2, 65, 128, 1, 129, 50}, Shape{1, 130, 64, 4, 300, 1000},
                           Shape{1, 1, 16, 1, 16, 1}, Shape{5, 7, 31, 1, 17, 129}, Shape{1, 70, 256, 1, 100, 100}, Shape{1, 300, 96, 6, 40, 500}, Shape{1, 5, 1600, 25, 48, 40}})
        fast_against_reference(s);
    gelu_edges();
    nan_travels();
    exp_accuracy();
    return report_tests();
}
