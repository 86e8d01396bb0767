// The kernels of models after GPT-2: the naive ones against finite differences in fp64, the fast
// ones in fp32 and bf16 against the naive, and bit for bit on several numbers of threads; attention
// with grouped heads likewise.
#include <functional>
#include "dev/modern/kernels.h"
#include "dev/test/test.h"

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
constexpr float EPS = 1e-5f;

static void use_threads(int threads) {
    if (device.scratch) free_scratch();
    device.threads = threads;
    device.scratch_elems = std::max(thread_scratch_elems<float>(200, 128), thread_scratch_elems<bf16>(200, 128));
    device.transposed_elems = 1 << 21;
    allocate_scratch();  // a kernel may only read what it has written
    std::fill_n(device.transposed, device.transposed_elems, bf16(NAN));
    std::fill_n(device.scratch, threads * device.scratch_elems, NAN);
}
template <class floatX>
static std::vector<floatX> random_of(int64_t n, double scale = 1) {
    const Floats values = random_values(n, scale);
    return std::vector<floatX>(values.begin(), values.end());
}
template <class floatX>
static Floats floats(const std::vector<floatX>& values) {
    return Floats(values.begin(), values.end());
}

// ---- the naive kernels against the formulas, which are differentiated numerically in fp64

// The largest difference between a gradient and central differences of the objective, which reads
// input, over the largest gradient.
static double difference_error(Doubles& input, const Floats& gradient, const std::function<double()>& objective) {
    double worst = 0, magnitude = 1e-12;
    for (size_t i = 0; i < input.size(); i++) {
        const double keep = input[i], h = 1e-5;
        input[i] = keep + h;
        const double high = objective();
        input[i] = keep - h;
        const double low = objective();
        input[i] = keep;
        const double difference = (high - low) / (2 * h) - gradient[i];
        if (!std::isfinite(difference)) return INFINITY;
        worst = std::fmax(worst, std::fabs(difference)), magnitude = std::fmax(magnitude, std::fabs(gradient[i]));
    }
    return worst / magnitude;
}
constexpr double TOLERANCE = 3e-6;  // of fp32 gradients

static void rmsnorm_against_differences() {
    start_test("rmsnorm: gradients are those of finite differences");
    const int64_t rows = 7, C = 11;
    const Floats x = random_values(rows * C, 2), w = random_values(C), dout = random_values(rows * C);
    Floats out(rows * C), rstd(rows), dx(rows * C), dw(C);
    reference::rmsnorm_forward(out.data(), rstd.data(), x.data(), w.data(), rows, C, EPS);
    reference::rmsnorm_backward(dx.data(), dw.data(), dout.data(), x.data(), w.data(), rstd.data(), rows, C, false);
    Doubles x64(x.begin(), x.end()), w64(w.begin(), w.end());
    const auto objective = [&] {
        double total = 0;
        for (int64_t r = 0; r < rows; r++) {
            double squares = 0;
            for (int64_t c = 0; c < C; c++) squares += x64[r * C + c] * x64[r * C + c];
            for (int64_t c = 0; c < C; c++)
                total += x64[r * C + c] / std::sqrt(squares / C + EPS) * w64[c] * dout[r * C + c];
        }
        return total;
    };
    EXPECT(difference_error(x64, dx, objective) < TOLERANCE);
    EXPECT(difference_error(w64, dw, objective) < TOLERANCE);

    start_test("rmsnorm: a planted error is found: a wrong value, NaN, a gradient without the mean");
    Floats wrong = dx;
    wrong[3] += 1e-3f;
    EXPECT(!(difference_error(x64, wrong, objective) < TOLERANCE));
    wrong[3] = NAN;
    EXPECT(!(difference_error(x64, wrong, objective) < TOLERANCE));
    for (int64_t i = 0; i < rows * C; i++) wrong[i] = dout[i] * w[i % C] * rstd[i / C];
    EXPECT(!(difference_error(x64, wrong, objective) < TOLERANCE));
}

static void swiglu_against_differences() {
    start_test("swiglu and relu squared: gradients are those of finite differences");
    const int64_t rows = 5, F = 9;
    const Floats x = random_values(rows * 2 * F, 3), dout = random_values(rows * F);
    Floats dx(rows * 2 * F);
    reference::swiglu_backward(dx.data(), dout.data(), x.data(), rows, F);
    Doubles x64(x.begin(), x.end());
    EXPECT(difference_error(x64, dx, [&] {
               double total = 0;
               for (int64_t i = 0; i < rows * F; i++) {
                   const double gate = x64[i / F * 2 * F + i % F], up = x64[i / F * 2 * F + F + i % F];
                   total += gate / (1 + std::exp(-gate)) * up * dout[i];
               }
               return total;
           }) < TOLERANCE);
    Doubles y64(x.begin(), x.begin() + rows * F);
    reference::relu2_backward(dx.data(), dout.data(), x.data(), rows * F);
    dx.resize(rows * F);
    EXPECT(difference_error(y64, dx, [&] {
               double total = 0;
               for (int64_t i = 0; i < rows * F; i++) total += std::pow(std::fmax(y64[i], 0), 2) * dout[i];
               return total;
           }) < TOLERANCE);
}

static void rope_is_a_rotation() {
    start_test("rope: lengths stay, the score depends on the distance alone, backward is the inverse");
    const int64_t T = 40, HS = 10;
    const Heads heads{2, 1, HS};
    Floats table(T * HS), x(T * heads.qkv_row());
    rope_table(table.data(), T, HS, 100);
    const Floats q = random_values(HS), k = random_values(HS);
    for (int64_t t = 0; t < T; t++)
        for (int64_t c = 0; c < HS; c++) {
            x[t * heads.qkv_row() + c] = q[c], x[t * heads.qkv_row() + HS + c] = q[c];
            x[t * heads.qkv_row() + 2 * HS + c] = x[t * heads.qkv_row() + 3 * HS + c] = k[c];
        }
    const Floats before = x;
    reference::rope(x.data(), table.data(), T, T, heads, false);
    const auto score = [&](int64_t t, int64_t s) {
        double total = 0;
        for (int64_t c = 0; c < HS; c++) total += x[t * heads.qkv_row() + HS + c] * x[s * heads.qkv_row() + 2 * HS + c];
        return total;
    };
    for (int64_t t = 5; t < T; t++) {
        EXPECT(std::fabs(score(t, t - 5) - score(5, 0)) < 1e-5);
        double length = 0, was = 0;
        for (int64_t c = 0; c < HS; c++) length += std::pow(x[t * heads.qkv_row() + c], 2), was += q[c] * q[c];
        EXPECT(std::fabs(length - was) < 1e-5);
    }
    EXPECT(std::fabs(score(7, 0) - score(5, 0)) > 1e-3);
    EXPECT(std::equal(before.begin() + 3 * HS, before.begin() + 4 * HS, x.begin() + 3 * HS));  // values stay
    reference::rope(x.data(), table.data(), T, T, heads, true);
    EXPECT(relative_error(x, before) < 1e-6);
}

static void qk_norm_and_softcap_against_differences() {
    start_test("qk norm: gradients are those of finite differences");
    const int64_t rows = 4;
    const Heads heads{4, 2, 6};
    const int64_t row = heads.qkv_row(), HS = heads.HS, turned = heads.NH + heads.NKV;
    const Floats x = random_values(rows * row, 2), qw = random_values(HS), kw = random_values(HS),
                 dout = random_values(rows * row);
    Floats qkv = x, raw(rows * turned * HS), rstd(rows * turned), d = dout, dqw(HS), dkw(HS);
    reference::qk_norm_forward(qkv.data(), raw.data(), rstd.data(), qw.data(), kw.data(), rows, heads, EPS);
    reference::qk_norm_backward(d.data(), dqw.data(), dkw.data(), raw.data(), rstd.data(), qw.data(), kw.data(), rows,
                                heads, false);
    Doubles x64(x.begin(), x.end()), q64(qw.begin(), qw.end()), k64(kw.begin(), kw.end());
    const auto objective = [&] {
        double total = 0;
        for (int64_t i = 0; i < rows * row; i += HS) {
            const int64_t h = i % row / HS;
            double squares = 0;
            for (int64_t c = 0; c < HS; c++) squares += x64[i + c] * x64[i + c];
            for (int64_t c = 0; c < HS; c++) {
                const double weight = h < heads.NH ? q64[c] : k64[c], norm = std::sqrt(squares / (double)HS + EPS);
                total += (h < turned ? x64[i + c] / norm * weight : x64[i + c]) * dout[i + c];
            }
        }
        return total;
    };
    EXPECT(difference_error(x64, d, objective) < TOLERANCE);
    EXPECT(difference_error(q64, dqw, objective) < TOLERANCE);
    EXPECT(difference_error(k64, dkw, objective) < TOLERANCE);

    start_test("the classifier with a soft cap: gradients are those of finite differences");
    const int64_t C = 5, V = 9, Vp = 16;
    const int targets[] = {3, 0, IGNORED_TARGET, 8};
    const Floats inp = random_values(rows * C, 2), head = random_values(Vp * C, 2);
    Floats losses(rows), dinp(rows * C), dhead(Vp * C), logits(rows * Vp), capped(rows * Vp);
    reference::capped_classifier(losses.data(), dinp.data(), dhead.data(), logits.data(), capped.data(), inp.data(),
                                 head.data(), targets, rows, C, V, Vp, 0.5f, false, 2.0f);
    Doubles i64(inp.begin(), inp.end()), h64(head.begin(), head.end());
    const auto loss = [&] {
        double total = 0;
        for (int64_t r = 0; r < rows; r++) {
            double sum = 0, own = 0;
            for (int64_t v = 0; v < V; v++) {
                double x = 0;
                for (int64_t c = 0; c < C; c++) x += i64[r * C + c] * h64[v * C + c];
                x = 2 * std::tanh(x / 2), sum += std::exp(x), own = v == targets[r] ? x : own;
            }
            if (targets[r] != IGNORED_TARGET) total += 0.5 * (std::log(sum) - own);
        }
        return total;
    };
    EXPECT(std::fabs(losses[0] + losses[1] + losses[2] + losses[3] - 2 * loss()) < 1e-5);
    EXPECT(difference_error(i64, dinp, loss) < TOLERANCE);
    EXPECT(difference_error(h64, dhead, loss) < TOLERANCE);
}

// The score of query i and key j of the head at h, softmax and sum, in fp64.
static double attention_objective(const Doubles& qkv, const Floats& dout, int64_t T, const Heads& s) {
    double total = 0;
    for (int64_t h = 0; h < s.NH; h++)
        for (int64_t i = 0; i < T; i++) {
            const int64_t kv = s.NH + h / s.group();
            double sum = 0, out = 0;
            for (int64_t j = 0; j <= i; j++) {
                double score = 0, value = 0;
                for (int64_t c = 0; c < s.HS; c++) {
                    const double* at_j = &qkv[j * s.qkv_row() + c];
                    score += qkv[i * s.qkv_row() + h * s.HS + c] * at_j[kv * s.HS];
                    value += at_j[(kv + s.NKV) * s.HS] * dout[i * s.out_row() + h * s.HS + c];
                }
                const double e = std::exp(score / std::sqrt((double)s.HS));
                sum += e, out += e * value;
            }
            total += out / sum;
        }
    return total;
}
static void grouped_attention_against_differences() {
    start_test("attention with grouped heads: gradients are those of finite differences");
    const int64_t T = 6;
    const Heads s{6, 2, 4};
    const Floats qkv = random_values(T * s.qkv_row()), dout = random_values(T * s.out_row());
    Floats out(T * s.out_row()), lse(s.NH * T), dqkv(T * s.qkv_row());
    reference::attention_forward(out.data(), lse.data(), qkv.data(), 1, T, s.out_row(), s.NH, nullptr, 0, s.NKV);
    reference::attention_backward(dqkv.data(), dout.data(), out.data(), lse.data(), qkv.data(), 1, T, s.out_row(), s.NH,
                                  nullptr, 0, s.NKV);
    Doubles q64(qkv.begin(), qkv.end());
    double total = 0;
    for (size_t i = 0; i < out.size(); i++) total += (double)out[i] * dout[i];
    EXPECT(std::fabs(total - attention_objective(q64, dout, T, s)) < 1e-5);
    EXPECT(difference_error(q64, dqkv, [&] { return attention_objective(q64, dout, T, s); }) < TOLERANCE);
}

// ---- the fast kernels against the naive ones, at awkward sizes

template <class floatX>
static double tolerance(double roundings, double terms) {
    return sizeof(floatX) == 2 ? bf16_tolerance(roundings, terms) : sum_tolerance(4 * terms);
}
// What all kernels compute of the same inputs; those of reference from what the fast ones read.
template <class floatX>
struct Results {
    std::vector<std::vector<floatX>> values;
    std::vector<Floats> sums;
    bool operator==(const Results& o) const {
        bool same = sums == o.sums && values.size() == o.values.size();
        for (size_t i = 0; i < values.size() && same; i++)
            same = memcmp(values[i].data(), o.values[i].data(), values[i].size() * sizeof(floatX)) == 0;
        return same;
    }
};
struct Shape {
    int64_t B, T, C, F;
    Heads heads;
};
// floatR: that of what is computed with; floatX: that of the inputs, which are then exact in
// floatR.
template <class floatX, class floatR, class Kernels>
static Results<floatR> results_of(const Shape& s, Kernels k) {
    seed_random_values("inputs");
    const int64_t rows = s.B * s.T, row = s.heads.qkv_row(), turned = s.heads.NH + s.heads.NKV, HS = s.heads.HS;
    const auto random = [](int64_t n, double scale = 1) {
        const std::vector<floatX> values = random_of<floatX>(n, scale);
        return std::vector<floatR>(values.begin(), values.end());
    };
    const auto x = random(rows * s.C, 2), branch = random(rows * s.C), w = random(s.C), dout = random(rows * s.C);
    const auto qw = random(HS), kw = random(HS), qkv = random(rows * row), dqkv = random(rows * row);
    const auto fc = random(rows * 2 * s.F, 4), dhidden = random(rows * s.F), first = random(rows * row);
    const floatR share[] = {floatR(0.375f)};
    std::vector<floatR> sum = x, out = x, dx = random(rows * s.C), q = qkv, raw(rows * turned * HS), d = dqkv,
                        turn = qkv;
    Floats rstd(rows), dw(s.C, 1.0f), qk_rstd(rows * turned), dqw(HS, 1.0f), dkw(HS, 1.0f), table(s.T * HS);
    k.residual_rmsnorm_forward(sum.data(), out.data(), rstd.data(), x.data(), branch.data(), w.data(), rows, s.C, EPS);
    std::vector<floatR> alone = x;
    k.rmsnorm_forward(alone.data(), rstd.data(), x.data(), w.data(), rows, s.C, EPS);
    k.rmsnorm_backward(dx.data(), dw.data(), dout.data(), x.data(), w.data(), rstd.data(), rows, s.C, true);
    k.qk_norm_forward(q.data(), raw.data(), qk_rstd.data(), qw.data(), kw.data(), rows, s.heads, EPS);
    k.qk_norm_backward(d.data(), dqw.data(), dkw.data(), raw.data(), qk_rstd.data(), qw.data(), kw.data(), rows,
                       s.heads, true);
    rope_table(table.data(), s.T, HS, 10000);
    k.rope(turn.data(), table.data(), rows, s.T, s.heads, true);
    std::vector<floatR> mixed = qkv, raw_values(rows * s.heads.NKV * HS), dmixed = dqkv, dvalues = dqkv;
    Floats dfirst(raw_values.size(), 0.5f), dshare(1, 1.0f);
    k.mix_values_forward(mixed.data(), raw_values.data(), first.data(), share, rows, s.heads);
    k.mix_values_backward(dmixed.data(), dfirst.data(), dshare.data(), raw_values.data(), first.data(), share, rows,
                          s.heads, true);
    k.add_to_values(dvalues.data(), dfirst.data(), rows, s.heads);
    std::vector<floatR> hidden(rows * s.F), dfc = fc, squares(rows * s.F), dsquares(rows * s.F);
    k.swiglu_forward(hidden.data(), fc.data(), rows, s.F),
        k.swiglu_backward(dfc.data(), dhidden.data(), dfc.data(), rows, s.F);
    k.relu2_forward(squares.data(), fc.data(), rows * s.F);
    k.relu2_backward(dsquares.data(), dhidden.data(), fc.data(), rows * s.F);
    return {{sum, out, alone, dx, q, raw, d, turn, hidden, dfc, squares, dsquares, mixed, raw_values, dmixed, dvalues},
            {rstd, dw, qk_rstd, dqw, dkw, dfirst, dshare}};
}
// clang-format off
#define FORWARD_TO(space, name) template <class... A> void name(A... a) const { space::name(a...); }
#define KERNELS_OF(Name, space) \
  struct Name { \
    FORWARD_TO(space, rmsnorm_forward) \
    FORWARD_TO(space, residual_rmsnorm_forward) \
    FORWARD_TO(space, rmsnorm_backward) \
    FORWARD_TO(space, qk_norm_forward) \
    FORWARD_TO(space, qk_norm_backward) \
    FORWARD_TO(space, rope) \
    FORWARD_TO(space, swiglu_forward) \
    FORWARD_TO(space, swiglu_backward) \
    FORWARD_TO(space, relu2_forward) \
    FORWARD_TO(space, relu2_backward) \
    FORWARD_TO(space, mix_values_forward) \
    FORWARD_TO(space, mix_values_backward) \
    FORWARD_TO(space, add_to_values) \
  };
// clang-format on
KERNELS_OF(Fast, kernels)
KERNELS_OF(Naive, reference)

template <class floatX>
static void fast_against_naive(const Shape& s) {
    const std::string where = format(" (%d x %d, C %d, heads %d of %d, %d, F %d, %s)", s.B, s.T, s.C, s.heads.NH,
                                     s.heads.HS, s.heads.NKV, s.F, sizeof(floatX) == 2 ? "bf16" : "fp32");
    start_test("norms, rotations and the MLP's middle are those of the naive loops" + where);
    const auto fast = results_of<floatX, floatX>(s, Fast());
    const auto naive = results_of<floatX, float>(s, Naive());
    for (size_t i = 0; i < naive.values.size(); i++)
        EXPECT(relative_error(floats(fast.values[i]), naive.values[i]) <= tolerance<floatX>(3, (double)s.C));
    for (size_t i = 0; i < naive.sums.size(); i++)
        EXPECT(relative_error(fast.sums[i], naive.sums[i]) <= tolerance<floatX>(2, (double)(s.B * s.T * s.heads.NH)));
    for (int threads : {2, 3}) {
        use_threads(threads);
        EXPECT((results_of<floatX, floatX>(s, Fast())) == fast);
    }
    use_threads(1);
}

// ---- attention

template <class floatX>
struct Attention {
    std::vector<floatX> out, dqkv;
    Floats lse;
    bool operator==(const Attention& o) const {
        return memcmp(out.data(), o.out.data(), out.size() * sizeof(floatX)) == 0 && lse == o.lse &&
               memcmp(dqkv.data(), o.dqkv.data(), dqkv.size() * sizeof(floatX)) == 0;
    }
};
template <class floatX>
static Attention<floatX> attention_of(const Shape& s, const std::vector<floatX>& qkv, const std::vector<floatX>& dout,
                                      const int* starts, int64_t window, int64_t NKV) {
    const int64_t rows = s.B * s.T, C = s.heads.out_row(), NH = s.heads.NH;
    Attention<floatX> a{std::vector<floatX>(rows * C, floatX(NAN)), std::vector<floatX>(qkv.size(), floatX(NAN)),
                        Floats(rows * NH)};
    attention_forward(a.out.data(), a.lse.data(), qkv.data(), s.B, s.T, C, NH, starts, window, NKV);
    attention_backward(a.dqkv.data(), dout.data(), a.out.data(), a.lse.data(), qkv.data(), s.B, s.T, C, NH, starts,
                       window, NKV);
    return a;
}
template <class floatX>
static void grouped_attention(const Shape& s, int64_t window, bool documents) {
    const Heads& h = s.heads;
    start_test(format("attention, %d heads that share %d of keys: %d x %d, heads of %d, window %d%s, %s", h.NH, h.NKV,
                      s.B, s.T, h.HS, window, documents ? ", documents" : "", sizeof(floatX) == 2 ? "bf16" : "fp32"));
    const int64_t rows = s.B * s.T, C = h.out_row();
    const auto qkv = random_of<floatX>(rows * h.qkv_row(), 1.5), dout = random_of<floatX>(rows * C);
    std::vector<int> starts(rows);
    for (int64_t r = 0; r < rows; r++) starts[r] = r % s.T < s.T / 3 ? 0 : (int)(s.T / 3);
    const int* const begins = documents ? starts.data() : nullptr;
    const auto a = attention_of(s, qkv, dout, begins, window, h.NKV);
    const Floats wide = floats(qkv), wide_dout = floats(dout), kept = floats(a.out);
    Floats out(rows * C), lse(rows * h.NH), dqkv(rows * h.qkv_row());
    reference::attention_forward(out.data(), lse.data(), wide.data(), s.B, s.T, C, h.NH, begins, window, h.NKV);
    reference::attention_backward(dqkv.data(), wide_dout.data(), kept.data(), lse.data(), wide.data(), s.B, s.T, C,
                                  h.NH, begins, window, h.NKV);
    const double terms = (double)(h.HS + 2 * s.T * h.group());
    EXPECT(relative_error(kept, out) <= tolerance<floatX>(2, terms));
    EXPECT(relative_error(a.lse, lse) <= sum_tolerance(4 * terms));
    EXPECT(relative_error(floats(a.dqkv), dqkv) <= tolerance<floatX>(3, terms));
    for (int threads : {2, 3}) {
        use_threads(threads);
        EXPECT(attention_of(s, qkv, dout, begins, window, h.NKV) == a);
    }
    use_threads(1);
    if (h.NKV == h.NH) EXPECT(attention_of(s, qkv, dout, begins, window, 0) == a);
}
// A position after the other, the first half of them through fill_cache().
template <class floatX>
static void grouped_decode(const Shape& s, int64_t window) {
    const Heads& h = s.heads;
    start_test(
        format("attention in generation, %d heads that share %d of keys: %d positions, heads of %d, window %d, %s",
               h.NH, h.NKV, s.T, h.HS, window, sizeof(floatX) == 2 ? "bf16" : "fp32"));
    const int64_t T = s.T, C = h.out_row(), cached = T + 3, half = T / 2;
    const auto qkv = random_of<floatX>(T * h.qkv_row(), 1.5);
    std::vector<floatX> keys(h.NKV * cached * h.HS, floatX(NAN)), values = keys, out(C);
    Floats want(T * C), lse(T * h.NH), scores(h.NH * cached, NAN), naive_keys(keys.size()), naive_values(keys.size());
    Floats naive(C);
    reference::attention_forward(want.data(), lse.data(), floats(qkv).data(), 1, T, C, h.NH, nullptr, window, h.NKV);
    fill_cache(keys.data(), values.data(), qkv.data(), half, cached, C, h.NH, h.NKV);
    for (int64_t t = 0; t < T; t++) {
        const Floats row(qkv.begin() + t * h.qkv_row(), qkv.begin() + (t + 1) * h.qkv_row());
        const Floats expected(want.begin() + t * C, want.begin() + (t + 1) * C);
        reference::attention_decode(naive.data(), naive_keys.data(), naive_values.data(), row.data(), scores.data(), t,
                                    cached, C, h.NH, window, h.NKV);
        EXPECT(relative_error(naive, expected) <= sum_tolerance(h.HS + T));
        if (t < half) continue;
        for (int threads : {1, 3}) {
            use_threads(threads);
            attention_decode(out.data(), keys.data(), values.data(), &qkv[t * h.qkv_row()], scores.data(), t, cached, C,
                             h.NH, window, h.NKV);
            EXPECT(relative_error(floats(out), expected) <= tolerance<floatX>(1, (double)(h.HS + T)));
        }
    }
    use_threads(1);
}
template <class floatX>
static void soft_cap(int64_t rows, int64_t C, int64_t V) {
    start_test(format("the classifier with a soft cap is the naive one: %d x %d, V %d, %s", rows, C, V,
                      sizeof(floatX) == 2 ? "bf16" : "fp32"));
    const int64_t Vp = round_up(V, (int64_t)128), chunk = classifier_chunk_rows(rows);
    const auto inp = random_of<floatX>(rows * C), head = random_of<floatX>(Vp * C);
    std::vector<int> targets(rows);
    for (int64_t r = 0; r < rows; r++) targets[r] = r % 5 == 3 ? IGNORED_TARGET : (int)(r * 7 % V);
    std::vector<floatX> dinp(rows * C), logits(chunk * Vp), capped(chunk * Vp);
    Floats losses(rows), dhead(Vp * C, 0.1f), want_losses(rows), want_dinp(rows * C), want_dhead = dhead;
    Floats all(rows * Vp), all_capped(rows * Vp);
    capped_classifier(losses.data(), dinp.data(), dhead.data(), logits.data(), capped.data(), inp.data(), head.data(),
                      targets.data(), rows, C, V, Vp, 0.25f, true, 5.0f);
    reference::capped_classifier(want_losses.data(), want_dinp.data(), want_dhead.data(), all.data(), all_capped.data(),
                                 floats(inp).data(), floats(head).data(), targets.data(), rows, C, V, Vp, 0.25f, true,
                                 5.0f);
    EXPECT(relative_error(losses, want_losses) <= tolerance<floatX>(2, (double)(C + V)));
    EXPECT(relative_error(floats(dinp), want_dinp) <= tolerance<floatX>(4, (double)V));
    EXPECT(relative_error(dhead, want_dhead) <= tolerance<floatX>(4, (double)rows));
}

int main() {
    const DenormalsAreZero mode;
    use_threads(1);
    rmsnorm_against_differences();
    swiglu_against_differences();
    rope_is_a_rotation();
    qk_norm_and_softcap_against_differences();
    grouped_attention_against_differences();
    device.unit = best_matrix_unit();
    const Shape shapes[] = {{1, 1, 48, 33, {3, 1, 16}},
                            {2, 33, 50, 81, {10, 5, 6}},
                            {3, 67, 96, 40, {4, 4, 24}},
                            {1, 150, 7, 130, {7, 1, 64}},
                            {2, 64, 64, 64, {8, 2, 18}}};
    for (const Shape& s : shapes) {
        fast_against_naive<float>(s), fast_against_naive<bf16>(s);
        for (int64_t window : {0, 20}) {
            grouped_attention<float>(s, window, false), grouped_attention<bf16>(s, window, false);
            grouped_attention<float>(s, window, true), grouped_attention<bf16>(s, window, true);
            grouped_decode<float>(s, window), grouped_decode<bf16>(s, window);
        }
    }
    soft_cap<float>(7, 20, 130), soft_cap<bf16>(7, 20, 130), soft_cap<float>(530, 12, 65), soft_cap<bf16>(530, 12, 65);
    return report_tests();
}
