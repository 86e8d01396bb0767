// Kernels: reference.h against finite differences, the fast ones against reference.h at awkward
// sizes, thread counts bitwise.
#include <functional>
#include "dev/test/test.h"
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/attention_bf16.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/reference.h"
#include "llmc/cpu/scratch.h"

using Floats = std::vector<float>;

static void use_threads(int threads) {
    static std::vector<float> scratch;
    static std::vector<bf16> transposed;
    device.threads = threads;
    device.scratch_elems = std::max(thread_scratch_elems<float>(300, 256), thread_scratch_elems<bf16>(300, 256));
    transposed.assign(device.transposed_elems = 1 << 20, bf16(NAN));
    device.transposed = transposed.data();
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
// h^2 = 1e-4 of curvature, fp32 rounding 1e-7 / h, each times small factors
constexpr double DIFFERENCE_TOLERANCE = 2e-3;

static void reference_against_differences() {
    const int B = 2, T = 5, C = 12, NH = 3, OC = 7, rows = B * T, V = 9, Vp = 16;
    start_test("reference layernorm: gradients are those of finite differences");
    Floats x = random_values(rows * C), w = random_values(C), b = random_values(C), g = random_values(rows * C),
           out(rows * C), mean(rows), rstd(rows), dx(rows * C), dw(C), db(C);
    auto layernorm = [&] {
        reference::layernorm_forward(out.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(), rows, C);
        return dot(out, g);
    };
    layernorm();
    reference::layernorm_backward(dx.data(), dw.data(), db.data(), g.data(), x.data(), w.data(), mean.data(),
                                  rstd.data(), rows, C, false);
    EXPECT(difference_error(x, dx, layernorm) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(w, dw, layernorm) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(b, db, layernorm) < DIFFERENCE_TOLERANCE);
    Floats wrong = dx;
    wrong[0] += 0.1f;
    EXPECT(!(difference_error(x, wrong, layernorm) < DIFFERENCE_TOLERANCE));  // planted error
    wrong[0] = NAN;
    EXPECT(!(difference_error(x, wrong, layernorm) < DIFFERENCE_TOLERANCE));

    start_test("reference matmul: gradients are those of finite differences");
    Floats weight = random_values(OC * C), bias = random_values(OC), y(rows * OC), gy = random_values(rows * OC),
           dweight(OC * C), dbias(OC);
    auto matmul = [&] {
        reference::matmul_forward(y.data(), x.data(), weight.data(), bias.data(), rows, C, OC);
        return dot(y, gy);
    };
    reference::matmul_backward(dx.data(), dweight.data(), dbias.data(), gy.data(), x.data(), weight.data(), rows, C, OC,
                               false);
    EXPECT(difference_error(x, dx, matmul) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(weight, dweight, matmul) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(bias, dbias, matmul) < DIFFERENCE_TOLERANCE);

    start_test("reference gelu: gradient is that of finite differences");
    auto gelu = [&] {
        reference::gelu_forward(out.data(), x.data(), x.size());
        return dot(out, g);
    };
    reference::gelu_backward(dx.data(), g.data(), x.data(), x.size());
    EXPECT(difference_error(x, dx, gelu) < DIFFERENCE_TOLERANCE);

    start_test("reference attention: gradients are those of finite differences");
    Floats qkv = random_values(rows * 3 * C), lse(B * NH * T), dqkv(rows * 3 * C);
    auto attention = [&] {
        reference::attention_forward(out.data(), lse.data(), qkv.data(), B, T, C, NH);
        return dot(out, g);
    };
    attention();
    reference::attention_backward(dqkv.data(), g.data(), out.data(), lse.data(), qkv.data(), B, T, C, NH);
    EXPECT(difference_error(qkv, dqkv, attention) < DIFFERENCE_TOLERANCE);

    start_test("reference classifier: gradients are those of finite differences");
    Floats wte = random_values(Vp * C), losses(rows), logits(rows * Vp), dwte(Vp * C);
    std::vector<int> targets(rows), tokens(rows);
    for (int i = 0; i < rows; i++) targets[i] = (i * 5) % V, tokens[i] = (i * 3) % V;
    auto classifier = [&](float* dinp) {
        reference::classifier(losses.data(), dinp, dwte.data(), logits.data(), x.data(), wte.data(), targets.data(),
                              rows, C, V, Vp, 0.5f, false);
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
    auto encoder = [&] {
        reference::encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C);
        return dot(out, g);
    };
    std::fill(dwte.begin(), dwte.end(), 0.0f);
    reference::encoder_backward(dwte.data(), dwpe.data(), g.data(), tokens.data(), B, T, C, T + 2, false);
    EXPECT(difference_error(wte, dwte, encoder) < DIFFERENCE_TOLERANCE);
    EXPECT(difference_error(wpe, dwpe, encoder) < DIFFERENCE_TOLERANCE);
}

struct Shape {
    int B, T, C, NH, OC, V;
};

// Everything the fast kernels compute at one shape, one result after another.
struct Results {
    std::vector<std::string> names;
    std::vector<Floats> values;
    std::vector<double> terms;
};

template <class Add>
static void collect(Results& r, Add compute) {
    compute([&](const char* name, const Floats& values, double terms) {
        r.names.push_back(name), r.values.push_back(values), r.terms.push_back(terms);
    });
}

#define COMPUTE_ALL(KERNELS) \
    [&](auto add) { \
        Floats out(rows*C), mean(rows), rstd(rows), residual(rows*C), y(rows*OC), gelu_y(rows*OC), lse(B*NH*T), \
            dqkv(rows * 3 * C), losses(rows), logits(rows*Vp); \
        KERNELS residual_layernorm_forward(residual.data(), out.data(), mean.data(), rstd.data(), x.data(), x2.data(), \
                                           w.data(), b.data(), rows, C); \
        add("layernorm out", out, C), add("rstd", rstd, C); \
        Floats dx = x2, dw = w, db = b; \
        KERNELS layernorm_backward(dx.data(), dw.data(), db.data(), x.data(), residual.data(), w.data(), mean.data(), \
                                   rstd.data(), rows, C, true); \
        add("layernorm dinp", dx, C), add("layernorm dweight", dw, rows), add("layernorm dbias", db, rows); \
        KERNELS matmul_forward(y.data(), x.data(), weight.data(), bias.data(), rows, C, OC, gelu_y.data()); \
        add("matmul out", y, C), add("matmul gelu", gelu_y, C); \
        Floats dinp(rows*C, NAN), dweight = weight, dbias = bias, fresh(OC * C, NAN), fresh_bias(OC, NAN); \
        KERNELS matmul_backward(dinp.data(), dweight.data(), dbias.data(), gy.data(), x.data(), weight.data(), rows, \
                                C, OC, true, x2.data()); \
        add("matmul dinp", dinp, OC), add("matmul dweight", dweight, rows), add("matmul dbias", dbias, rows); \
        KERNELS matmul_backward((float*)nullptr, fresh.data(), fresh_bias.data(), gy.data(), x.data(), weight.data(), \
                                rows, C, OC, false); \
        add("matmul dweight written", fresh, rows), add("matmul dbias written", fresh_bias, rows); \
        KERNELS attention_forward(out.data(), lse.data(), qkv.data(), B, T, C, NH); \
        KERNELS attention_backward(dqkv.data(), x.data(), out.data(), lse.data(), qkv.data(), B, T, C, NH); \
        add("attention out", out, C + T), add("attention lse", lse, C + T), add("attention dqkv", dqkv, 4 * (C + T)); \
        Floats dwte = wte, dlast(rows * C, NAN), dwpe((T + 3) * C, NAN); \
        KERNELS classifier(losses.data(), (float*)nullptr, (float*)nullptr, logits.data(), x.data(), wte.data(), \
                           targets.data(), rows, C, V, Vp, 0.0f, false); \
        add("classifier losses alone", losses, C + V); \
        KERNELS classifier(losses.data(), dlast.data(), dwte.data(), logits.data(), x.data(), wte.data(), \
                           targets.data(), rows, C, V, Vp, 0.25f, true); \
        add("classifier losses", losses, C + V), add("classifier dinp", dlast, 4 * (C + V)), \
            add("classifier dwte", dwte, 4 * (C + rows)); \
        KERNELS encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C); \
        KERNELS encoder_backward(dwte.data(), dwpe.data(), x.data(), tokens.data(), B, T, C, T + 3, false); \
        add("encoder out", out, 1), add("encoder dwte", dwte, rows + C), add("encoder dwpe", dwpe, B); \
        Floats p = x, m = x2, v = gy2, keys(4 * C), values(4 * C), scores(NH * 4), one(C); \
        KERNELS adamw_update(p.data(), (float*)nullptr, m.data(), v.data(), x2.data(), p.size(), \
                             adamw_constants(1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 3)); \
        add("adamw params", p, 4), add("adamw m", m, 4), add("adamw v", v, 4); \
        for (int t = 0; t < std::min(T, 4); t++) \
            KERNELS attention_decode(one.data(), keys.data(), values.data(), qkv.data() + t * 3 * C, scores.data(), t, \
                                     4, C, NH); \
        add("attention decode", one, C + T); \
        add("norm", Floats(1, (float)KERNELS global_norm_squared(x.data(), x.size())), rows); \
    }

static void fast_against_reference(const Shape& s) {
    const int B = s.B, T = s.T, C = s.C, NH = s.NH, OC = s.OC, V = s.V, Vp = round_up(V, 128), rows = B * T;
    const std::string shape = format("B %d T %d C %d NH %d OC %d V %d", B, T, C, NH, OC, V);
    seed_random_values(shape);
    Floats x = random_values(rows * C), x2 = random_values(rows * C), w = random_values(C), b = random_values(C),
           weight = random_values(OC * C), bias = random_values(OC);
    Floats gy = random_values(rows * OC), qkv = random_values(rows * 3 * C, 2), wte = random_values(Vp * C),
           wpe = random_values((T + 3) * C), gy2 = random_values(rows * C);
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
        start_test(slow.names[i] + ", " + shape);
        const double error = relative_error(fast.values[i], slow.values[i]), tolerance = sum_tolerance(slow.terms[i]);
        if (!EXPECT(error <= tolerance)) printf("    error %.3g, tolerance %.3g\n", error, tolerance);
        // same bits whatever the threads
        EXPECT(memcmp(fast.values[i].data(), threaded.values[i].data(), fast.values[i].size() * sizeof(float)) == 0);
    }
}

// -------------------------------------------------------------------------------------------------
// bf16

typedef std::vector<bf16> Halves;
// Random values that bf16 holds exactly, so that both sides start from the same numbers.
static Floats random_bf16(size_t n, double scale = 1) {
    Floats values = random_values(n, scale);
    for (float& v : values) v = (float)bf16(v);
    return values;
}
static Halves halves(const Floats& values) { return Halves(values.begin(), values.end()); }
static Floats floats(const Halves& values) { return Floats(values.begin(), values.end()); }

// A result beside the reference's, whose inputs were the same numbers: so many roundings to bf16 on
// the way, a sum of so many terms.
static void compare(const char* name, const Floats& got, const Floats& want, double roundings, double terms) {
    const double error = relative_error(got, want),
                 tolerance = roundings > 0 ? bf16_tolerance(roundings, terms) : sum_tolerance(terms);
    if (!EXPECT(error <= tolerance)) printf("    %s: error %.3g, tolerance %.3g\n", name, error, tolerance);
}

static void bf16_products(const Shape& s, MatrixUnit unit) {
    const int C = s.C, OC = s.OC, rows = s.B * s.T;
    device.unit = unit;
    start_test(format("bf16 products on %s, rows %d C %d OC %d", MATRIX_UNIT_NAMES[unit], rows, C, OC));
    const Floats x = random_bf16(rows * C), w = random_bf16(OC * C), b = random_bf16(OC), dout = random_bf16(rows * OC),
                 pre = random_bf16(rows * C, 3);
    Floats y(rows * OC), gelu_y(rows * OC), dx(rows * C), dw(OC * C), db(OC);
    const Halves hx = halves(x), hw = halves(w), hb = halves(b), hdout = halves(dout), hpre = halves(pre);
    Halves out(rows * OC), gelu_out(rows * OC), dinp(rows * C), dweight(OC * C), dbias(OC);
    reference::matmul_forward(y.data(), x.data(), w.data(), b.data(), rows, C, OC, gelu_y.data());
    reference::matmul_backward(dx.data(), dw.data(), db.data(), dout.data(), x.data(), w.data(), rows, C, OC, false,
                               pre.data());
    matmul_forward(out.data(), hx.data(), hw.data(), hb.data(), rows, C, OC, gelu_out.data());
    matmul_backward(dinp.data(), dweight.data(), dbias.data(), hdout.data(), hx.data(), hw.data(), rows, C, OC, false,
                    hpre.data());
    compare("out", floats(out), y, 1, C), compare("gelu", floats(gelu_out), gelu_y, 2, C);
    compare("dinp", floats(dinp), dx, 1, OC), compare("dweight", floats(dweight), dw, 1, rows),
        compare("dbias", floats(dbias), db, 1, rows);
    Floats sums(OC * C, 0.5f), bias_sums(OC, 0.5f);  // fp32 gradients of bf16 operands round nothing
    for (float& v : dw) v += 0.5f;
    for (float& v : db) v += 0.5f;
    matmul_backward((bf16*)nullptr, sums.data(), bias_sums.data(), hdout.data(), hx.data(), hw.data(), rows, C, OC,
                    true);
    compare("dweight, fp32, added to", sums, dw, 0, rows), compare("dbias, fp32, added to", bias_sums, db, 0, rows);
}

static void bf16_attention(const Shape& s, MatrixUnit unit) {
    const int T = s.T, C = s.C, NH = s.NH, rows = s.B * T;
    device.unit = unit;
    start_test(format("bf16 attention on %s, B %d T %d C %d NH %d", MATRIX_UNIT_NAMES[unit], s.B, T, C, NH));
    const Floats qkv = random_bf16(rows * 3 * C, 1.5), dout = random_bf16(rows * C);
    Floats y(rows * C), log_sums(s.B * NH * T), dqkv(rows * 3 * C), lse(s.B * NH * T), scores(NH * T);
    Halves out(rows * C, bf16(NAN)), grads(rows * 3 * C, bf16(NAN)), keys(T * C), values(T * C), one(C);
    const Halves hqkv = halves(qkv), hdout = halves(dout);
    reference::attention_forward(y.data(), log_sums.data(), qkv.data(), s.B, T, C, NH);
    attention_forward(out.data(), lse.data(), hqkv.data(), s.B, T, C, NH);
    reference::attention_backward(dqkv.data(), dout.data(), floats(out).data(), log_sums.data(), qkv.data(), s.B, T, C,
                                  NH);
    attention_backward(grads.data(), hdout.data(), out.data(), lse.data(), hqkv.data(), s.B, T, C, NH);
    compare("out", floats(out), y, 2, C / NH + T), compare("lse", lse, log_sums, 0, C / NH + T),
        compare("dqkv", floats(grads), dqkv, 3, C / NH + 2 * T);
    for (int t = 0; t < std::min(T, 4); t++) {
        attention_decode(one.data(), keys.data(), values.data(), hqkv.data() + t * 3 * C, scores.data(), t, T, C, NH);
        compare("decode", floats(one), Floats(y.begin() + t * C, y.begin() + (t + 1) * C), 1, C / NH + T);
    }
}

static void bf16_others(const Shape& s) {
    const int T = s.T, C = s.C, V = s.V, Vp = round_up(V, 128), rows = s.B * T;
    start_test(format("bf16 layer norm, embedding, classifier, B %d T %d C %d V %d", s.B, T, C, V));
    device.unit = best_matrix_unit();
    const Floats x = random_bf16(rows * C), x2 = random_bf16(rows * C), w = random_bf16(C), b = random_bf16(C),
                 wte = random_bf16(Vp * C), wpe = random_bf16((T + 3) * C);
    const Halves hx = halves(x), hx2 = halves(x2), hw = halves(w), hb = halves(b), hwte = halves(wte),
                 hwpe = halves(wpe);
    Floats residual(rows * C), y(rows * C), mean(rows), rstd(rows), mean2(rows), rstd2(rows), dx = x2, dw(C), db(C);
    Halves hresidual(rows * C), out(rows * C), dinp = hx2, dweight(C), dbias(C);
    reference::residual_forward(residual.data(), x.data(), x2.data(), rows * C);
    for (float& v : residual) v = (float)bf16(v);  // the sum is stored, then normalised
    reference::layernorm_forward(y.data(), mean.data(), rstd.data(), residual.data(), w.data(), b.data(), rows, C);
    residual_layernorm_forward(hresidual.data(), out.data(), mean2.data(), rstd2.data(), hx.data(), hx2.data(),
                               hw.data(), hb.data(), rows, C);
    EXPECT(floats(hresidual) == residual);
    compare("layernorm out", floats(out), y, 1, C), compare("rstd", rstd2, rstd, 0, C);
    reference::layernorm_backward(dx.data(), dw.data(), db.data(), x.data(), residual.data(), w.data(), mean.data(),
                                  rstd.data(), rows, C, false);
    layernorm_backward(dinp.data(), dweight.data(), dbias.data(), hx.data(), hresidual.data(), hw.data(), mean2.data(),
                       rstd2.data(), rows, C, false);
    compare("layernorm dinp", floats(dinp), dx, 1, C), compare("layernorm dweight", floats(dweight), dw, 1, rows),
        compare("layernorm dbias", floats(dbias), db, 1, rows);

    std::vector<int> targets(rows), tokens(rows);
    for (int i = 0; i < rows; i++) targets[i] = (i * 31 + V - 1) % V, tokens[i] = i % 3 ? (i * 17) % V : 1 % V;
    Floats dwte(Vp * C, 0.25f), dwpe((T + 3) * C), losses(rows), losses2(rows), logits(rows * Vp), dlast(rows * C),
        dtable(Vp * C);
    Halves hdwte = halves(dwte), hdwpe((T + 3) * C), hlogits(rows * Vp), hdlast(rows * C), hdtable(Vp * C);
    reference::encoder_forward(y.data(), tokens.data(), wte.data(), wpe.data(), s.B, T, C);
    encoder_forward(out.data(), tokens.data(), hwte.data(), hwpe.data(), s.B, T, C);
    reference::encoder_backward(dwte.data(), dwpe.data(), x.data(), tokens.data(), s.B, T, C, T + 3, false);
    encoder_backward(hdwte.data(), hdwpe.data(), hx.data(), tokens.data(), s.B, T, C, T + 3, false);
    compare("encoder out", floats(out), y, 1, 1), compare("encoder dwte", floats(hdwte), dwte, 1, rows),
        compare("encoder dwpe", floats(hdwpe), dwpe, 1, s.B);

    reference::matmul_forward(logits.data(), x.data(), wte.data(), (const float*)nullptr, rows, C, Vp);
    const float largest =
        std::max(*std::max_element(logits.begin(), logits.end()), -*std::min_element(logits.begin(), logits.end()));
    // Logits are rounded to bf16. This is the absolute error of a logit, and so the relative error
    // of its exponential.
    const double logit_error = largest * BF16_ROUNDOFF;
    reference::classifier(losses.data(), dlast.data(), dtable.data(), logits.data(), x.data(), wte.data(),
                          targets.data(), rows, C, V, Vp, 0.25f, false);
    Floats sums(Vp * C, NAN);
    classifier(losses2.data(), hdlast.data(), hdtable.data(), hlogits.data(), hx.data(), hwte.data(), targets.data(),
               rows, C, V, Vp, 0.25f, false, sums.data());
    for (int i = 0; i < rows; i++) EXPECT(std::fabs(losses2[i] - losses[i]) <= logit_error + sum_tolerance(V));
    EXPECT(relative_error(floats(hdlast), dlast) <= logit_error + bf16_tolerance(2, Vp) &&
           relative_error(floats(hdtable), dtable) <= logit_error + bf16_tolerance(2, rows));
    const Halves once = hdtable;
    classifier(losses2.data(), hdlast.data(), hdtable.data(), hlogits.data(), hx.data(), hwte.data(), targets.data(),
               rows, C, V, Vp, 0.25f, false, sums.data());
    EXPECT(memcmp(once.data(), hdtable.data(), once.size() * 2) == 0);
    if (rows <= classifier_chunk_rows(rows)) {  // one chunk: sums of its own change nothing
        classifier(losses2.data(), hdlast.data(), hdtable.data(), hlogits.data(), hx.data(), hwte.data(),
                   targets.data(), rows, C, V, Vp, 0.25f, false);
        EXPECT(memcmp(once.data(), hdtable.data(), once.size() * 2) == 0);
    }
}

static void bf16_itself() {
    start_test("bf16: to nearest, ties to even, NaN and infinity stay, vectors as single values");
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
    start_test("planted errors in a bf16 product: a pair exchanged, a tile left out, NaN; the comparison sees each");
    const Floats a = random_bf16(32 * 64), b = random_bf16(64 * 48);
    const Halves ha = halves(a), hb = halves(b);
    Halves tiles(6 * TILE_ELEMS);
    Floats want(32 * 48), got(32 * 48);
    auto product = [&](int64_t k_tiles) {
        multiply_tiles({got.data(), 48, ha.data(), 64, 2, tiles.data(), 2 * TILE_ELEMS, 3, k_tiles, false});
        return relative_error(got, want) <= sum_tolerance(64);
    };
    for (int i = 0; i < 32; i++)
        for (int j = 0; j < 48; j++)
            for (int k = 0; k < 64; k++) want[i * 48 + j] += a[i * 64 + k] * b[k * 48 + j];
    pack_tiles(tiles.data(), {hb.data(), 48, 1}, 0, 64, 0, 48);
    EXPECT(product(2));
    EXPECT(!product(1));
    std::swap(tiles[100], tiles[101]);
    EXPECT(!product(2));
    std::swap(tiles[100], tiles[101]);
    tiles[7] = NAN;
    EXPECT(!product(2));
}

static void gelu_edges() {
    start_test("gelu at the edges: zeros, subnormals, +-100, NaN, in place, every length");
    use_threads(2);
    Floats special = {0.0f, -0.0f, 1e-40f, -1e-40f, 100.0f, -100.0f, 10.0f, -10.0f, 1e-3f, 3e4f, -3e4f},
           slow(special.size()), fast = special, ones(special.size(), 1.0f), dslow = ones, dfast = ones;
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
    // each for itself: beside larger values an error in the tail is not seen
    for (float x = -12; x < 12; x += 0.037f) {
        float a, b;
        reference::gelu_forward(&a, &x, 1);
        gelu_forward(&b, &x, 1);
        // its rounding is an error of e to its power
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

int main() {
    rounding_up();
    reference_against_differences();
    for (const Shape& s : {Shape{2, 1, 48, 3, 7, 3}, Shape{1, 33, 48, 1, 201, 97}, Shape{3, 33, 80, 1, 80, 130},
                           Shape{1, 67, 160, 2, 33, 257}, Shape{2, 65, 128, 1, 129, 50},
                           Shape{1, 130, 64, 4, 300, 1000}, Shape{1, 1, 16, 1, 16, 1}, Shape{5, 7, 31, 1, 17, 129},
                           Shape{1, 70, 256, 1, 100, 100}, Shape{1, 300, 96, 6, 40, 500}, Shape{1, 5, 1600, 25, 48, 40},
                           Shape{1, 20, 96, 2, 900, 1000}, Shape{2, 300, 32, 2, 24, 200}})
        fast_against_reference(s);
    for (MatrixUnit unit : {UNIT_PORTABLE, UNIT_AMX_TWIN, UNIT_AVX512_BF16, UNIT_AMX}) {
        if (!has_matrix_unit(unit)) {
            skip_test(format("bf16 on %s: this CPU has none (a CPU with it tests it)", MATRIX_UNIT_NAMES[unit]));
            continue;
        }
        for (int threads : {1, 3}) {
            use_threads(threads);
            for (const Shape& s : {Shape{1, 5, 48, 1, 17, 1}, Shape{3, 33, 80, 1, 80, 1}, Shape{1, 67, 160, 1, 33, 1},
                                   Shape{5, 7, 31, 1, 17, 1}, Shape{1, 300, 96, 1, 40, 1}, Shape{1, 9, 1600, 1, 48, 1},
                                   Shape{1, 1100, 33, 1, 200, 1}, Shape{1, 600, 1100, 1, 800, 1}})
                bf16_products(s, unit);
            for (const Shape& s : {Shape{1, 1, 16, 1, 0, 0}, Shape{2, 33, 48, 3, 0, 0}, Shape{3, 67, 40, 1, 0, 0},
                                   Shape{1, 130, 128, 2, 0, 0}, Shape{2, 65, 192, 2, 0, 0}, Shape{1, 300, 64, 1, 0, 0},
                                   Shape{1, 70, 256, 1, 0, 0}, Shape{1, 50, 31, 1, 0, 0}})
                bf16_attention(s, unit);
        }
        planted_bf16_errors();
    }
    for (const Shape& s : {Shape{1, 1, 16, 1, 16, 1}, Shape{2, 33, 48, 3, 7, 97}, Shape{1, 600, 80, 1, 80, 130},
                           Shape{3, 67, 31, 1, 17, 257}, Shape{1, 5, 1600, 25, 48, 40}})
        bf16_others(s);
    bf16_itself();
    gelu_edges();
    nan_travels();
    exp_accuracy();
    return report_tests();
}
