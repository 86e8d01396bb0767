// The CUDA kernels of models after GPT-2 beside the naive loops of their CPU headers, in fp32 and
// bf16, in the simulator; and the bytes that they move.
//
//     make build/BF16/test_modern_cuda && build/BF16/test_modern_cuda
//     dev/modern/counted.py build-count/BF16/test_modern_cuda          which runs it with `counted`
#include "dev/modern/rmsnorm.cuh"
#include "dev/modern/rope.cuh"
#include "dev/modern/softcap.cuh"
#include "dev/modern/swiglu.cuh"
#include "dev/modern/values.cuh"
#include "llmc/cuda/attention.cuh"
#include "llmc/cuda/gpu.cuh"
#ifdef PRECISION_FP32
typedef float floatX;
#else
typedef halfX floatX;
#endif
#include "dev/modern/reference.h"
#include "dev/test/test.h"
#include "dev/test/device_kernels.h"

constexpr float EPS = 1e-5f;
struct Shape {
    int64_t B, T, C, F;
    Heads heads;
    int64_t rows() const { return B * T; }
};
static std::string text_of(const Shape& s) {
    return format("%d x %d, C %d, F %d, %d heads of %d that share %d", s.B, s.T, s.C, s.F, s.heads.NH, s.heads.HS,
                  s.heads.NKV);
}

static void norms(const Shape& s) {
    start_test("rmsnorm, " + text_of(s));
    const int64_t rows = s.rows(), n = rows * s.C;
    const Floats x = random_floatX(n, 2), x2 = random_floatX(n), w = random_floatX(s.C), dout = random_floatX(n),
                 dinp = random_floatX(n), dw = random_floatX(s.C);
    Floats residual(n), out(n), rstd(rows), dx = dinp, dweight = dw;
    Array d_x(x), d_x2(x2), d_w(w), d_dout(dout), d_residual(n), d_out(n);
    Array32 d_rstd(rows), d_partials(RMSNORM_PARTS * s.C);
    residual_rmsnorm_forward(d_residual.data, d_out.data, d_rstd.data, d_x.data, d_x2.data, d_w.data, rows, s.C, EPS,
                             stream);
    for (int64_t i = 0; i < n; i++) residual[i] = (float)(floatX)(x[i] + x2[i]);
    reference::rmsnorm_forward(out.data(), rstd.data(), residual.data(), w.data(), rows, s.C, EPS);
    EXPECT(d_residual.values() == residual);
    EXPECT(relative_error(d_out.values(), out) <= kernel_tolerance(1, s.C));
    EXPECT(relative_error(d_rstd.values(), rstd) <= sum_tolerance(s.C));
    Array d_alone(n);
    rmsnorm_forward(d_alone.data, d_rstd.data, d_residual.data, d_w.data, rows, s.C, EPS, stream);
    EXPECT(d_alone.values() == d_out.values());
    reference::rmsnorm_backward(dx.data(), dweight.data(), dout.data(), residual.data(), w.data(), rstd.data(), rows,
                                s.C, true);
    Floats first;
    for (int time = 0; time < 2; time++) {
        Array d_dx(dinp);
        Array32 d_dw(dw);
        rmsnorm_backward(d_dx.data, d_dw.data, d_partials.data, d_dout.data, d_residual.data, d_w.data, d_rstd.data,
                         rows, s.C, true, stream);
        EXPECT(relative_error(d_dx.values(), dx) <= kernel_tolerance(2, 2 * s.C));
        EXPECT(relative_error(d_dw.values(), dweight) <= sum_tolerance(4 * rows));
        if (time == 0) first = d_dw.values();
        else EXPECT(d_dw.values() == first);
    }
}

static void heads_of_rows(const Shape& s) {
    start_test("qk norm, rotary positions and values, " + text_of(s));
    const Heads& h = s.heads;
    const int64_t rows = s.rows(), n = rows * h.qkv_row(), normed = h.NH + h.NKV, of_values = rows * h.NKV * h.HS;
    const Floats qkv = random_floatX(n), dqkv = random_floatX(n), first = random_floatX(n), qw = random_floatX(h.HS),
                 kw = random_floatX(h.HS), dfirst = random_values(of_values), share = random_floatX(1);
    Floats x = qkv, raw(rows * normed * h.HS), rstd(rows * normed), d = dqkv, dqw(h.HS), dkw(h.HS), table(s.T * h.HS);
    Array d_x(qkv), d_raw(raw.size()), d_d(dqkv), d_qw(qw), d_kw(kw), d_first(first), d_share(share);
    Array32 d_rstd(rstd.size()), d_dqw(h.HS), d_dkw(h.HS), d_partials(RMSNORM_PARTS * 2 * h.HS), d_dfirst(dfirst);
    qk_norm_forward(d_x.data, d_raw.data, d_rstd.data, d_qw.data, d_kw.data, rows, h, EPS, stream);
    reference::qk_norm_forward(x.data(), raw.data(), rstd.data(), qw.data(), kw.data(), rows, h, EPS);
    EXPECT(relative_error(d_x.values(), x) <= kernel_tolerance(1, h.HS) && d_raw.values() == raw);
    qk_norm_backward(d_d.data, d_dqw.data, d_dkw.data, d_partials.data, d_raw.data, d_rstd.data, d_qw.data, d_kw.data,
                     rows, h, false, stream);
    reference::qk_norm_backward(d.data(), dqw.data(), dkw.data(), raw.data(), rstd.data(), qw.data(), kw.data(), rows,
                                h, false);
    EXPECT(relative_error(d_d.values(), d) <= kernel_tolerance(2, 2 * h.HS));
    EXPECT(relative_error(d_dqw.values(), dqw) <= sum_tolerance(4 * rows * h.NH));
    EXPECT(relative_error(d_dkw.values(), dkw) <= sum_tolerance(4 * rows * h.NKV));

    rope_table(table.data(), s.T, h.HS, 10000);
    Array32 d_table(table);
    for (bool back : {false, true}) {
        Array d_turned(qkv);
        Floats turned = qkv;
        rope(d_turned.data, d_table.data, rows, s.T, h, back, stream);
        reference::rope(turned.data(), table.data(), rows, s.T, h, back);
        EXPECT(relative_error(d_turned.values(), turned) <= kernel_tolerance(1, 4));
    }

    Floats mixed = qkv, kept(of_values), dmixed = dqkv, to_first = dfirst, dshare(1);
    Array d_mixed(qkv), d_kept(of_values), d_dmixed(dqkv);
    Array32 d_dshare(1), d_value_partials(VALUES_PARTS);
    mix_values_forward(d_mixed.data, d_kept.data, d_first.data, d_share.data, rows, h, stream);
    reference::mix_values_forward(mixed.data(), kept.data(), first.data(), share.data(), rows, h);
    EXPECT(relative_error(d_mixed.values(), mixed) <= kernel_tolerance(1, 4) && d_kept.values() == kept);
    mix_values_backward(d_dmixed.data, d_dfirst.data, d_dshare.data, d_value_partials.data, d_kept.data, d_first.data,
                        d_share.data, rows, h, false, stream);
    reference::mix_values_backward(dmixed.data(), to_first.data(), dshare.data(), kept.data(), first.data(),
                                   share.data(), rows, h, false);
    EXPECT(relative_error(d_dmixed.values(), dmixed) <= kernel_tolerance(1, 4));
    EXPECT(relative_error(d_dfirst.values(), to_first) <= sum_tolerance(4));
    // The terms cancel: by their size, not by that of their sum.
    EXPECT(std::fabs(d_dshare.values()[0] - dshare[0]) <= sum_tolerance(of_values) * std::sqrt((double)of_values));
    add_to_values(d_dmixed.data, d_dfirst.data, rows, h, stream);
    Floats summed = dmixed;
    reference::add_to_values(summed.data(), to_first.data(), rows, h);
    EXPECT(relative_error(d_dmixed.values(), summed) <= kernel_tolerance(2, 4));
}

static void elementwise(const Shape& s) {
    start_test("swiglu, relu squared and the soft cap, " + text_of(s));
    const int64_t rows = s.rows(), n = rows * s.F;
    const Floats x = random_floatX(2 * n, 3), dout = random_floatX(n);
    Floats out(n), dx(2 * n), squared(n - 3), dsquared(n - 3), capped(n - 3);
    Array d_x(x), d_dout(dout), d_out(n);
    swiglu_forward(d_out.data, d_x.data, rows, s.F, stream);
    reference::swiglu_forward(out.data(), x.data(), rows, s.F);
    EXPECT(relative_error(d_out.values(), out) <= kernel_tolerance(1, 8));
    swiglu_backward(d_x.data, d_dout.data, d_x.data, rows, s.F, stream);  // in place
    reference::swiglu_backward(dx.data(), dout.data(), x.data(), rows, s.F);
    EXPECT(relative_error(d_x.values(), dx) <= kernel_tolerance(1, 8));
    const int64_t odd = n - 3;  // a last Pack in part
    Array d_y(x), d_squared(odd), d_copy(odd);
    relu2_forward(d_squared.data, d_y.data, odd, stream);
    reference::relu2_forward(squared.data(), x.data(), odd);
    EXPECT(relative_error(d_squared.values(), squared) <= kernel_tolerance(1, 1));
    relu2_backward(d_squared.data, d_dout.data, d_y.data, odd, stream);
    reference::relu2_backward(dsquared.data(), dout.data(), x.data(), odd);
    EXPECT(relative_error(d_squared.values(), dsquared) <= kernel_tolerance(1, 1));
    capped.assign(x.begin(), x.begin() + odd);
    Array d_logits(capped);
    softcap_forward(d_logits.data, d_copy.data, 2.0f, odd, stream);
    reference::softcap_forward(capped.data(), 2.0f, odd);
    EXPECT(relative_error(d_logits.values(), capped) <= kernel_tolerance(1, 8) && d_copy.values() == d_logits.values());
    const Floats stored = d_copy.values();
    softcap_backward(d_dout.data, d_copy.data, 2.0f, odd, stream);
    Floats want(dout);
    for (int64_t i = 0; i < odd; i++) want[i] *= 1 - (stored[i] / 2) * (stored[i] / 2);
    EXPECT(relative_error(d_dout.values(), want) <= kernel_tolerance(1, 4));
}

// Both passes of attention with heads that share keys.
static void grouped_attention(const Shape& s, int64_t window) {
    const Heads& h = s.heads;
    if (!attention_supports(h.HS) && sizeof(floatX) == 2) return;
    start_test(format("attention, window %d, ", window) + text_of(s));
    const int64_t rows = s.rows(), C = h.out_row(), n = rows * h.qkv_row();
    const Floats qkv = random_floatX(n, 1.5), dout = random_floatX(rows * C);
    Floats out(rows * C), lse(rows * h.NH), dqkv(n), first;
    Array d_qkv(qkv), d_dout(dout), d_out(rows * C);
    Array32 d_lse(rows * h.NH), d_delta(rows * h.NH);
    attention_forward<true>(d_out.data, d_lse.data, d_qkv.data, s.B, s.T, C, h.NH, stream, {}, window, h.NKV);
    reference::attention_forward(out.data(), lse.data(), qkv.data(), s.B, s.T, C, h.NH, nullptr, window, h.NKV);
    EXPECT(relative_error(d_out.values(), out) < kernel_tolerance(2, h.HS + s.T));
    EXPECT(relative_error(d_lse.values(), lse) < sum_tolerance(h.HS + s.T));
    const Floats kept = d_out.values();
    reference::attention_backward(dqkv.data(), dout.data(), kept.data(), lse.data(), qkv.data(), s.B, s.T, C, h.NH,
                                  nullptr, window, h.NKV);
    for (int time = 0; time < 2; time++) {
        Array d_dqkv(n);
        attention_backward<true>(d_dqkv.data, d_delta.data, d_dout.data, d_out.data, d_lse.data, d_qkv.data, s.B, s.T,
                                 C, h.NH, stream, {}, nullptr, window, h.NKV);
        EXPECT(relative_error(d_dqkv.values(), dqkv) < kernel_tolerance(3, h.HS + 2 * s.T * h.group()));
        if (time == 0) first = d_dqkv.values();
        else EXPECT(d_dqkv.values() == first);
    }
    if (h.group() > 1) return;
    Array d_dqkv(n);  // where none are shared: the bits of the kernels of GPT-2
    attention_backward(d_dqkv.data, d_delta.data, d_dout.data, d_out.data, d_lse.data, d_qkv.data, s.B, s.T, C, h.NH,
                       stream, {}, nullptr, window);
    EXPECT(d_dqkv.values() == first);
}

// Each kernel once, for counted.py.
static void each_once() {
    const Heads h{9, 3, 64};
    const int64_t rows = 64, T = 32, C = 576, F = 512, normed = rows * (h.NH + h.NKV), n = rows * h.qkv_row();
    Array x(random_floatX(rows * C)), x2(random_floatX(rows * C)), w(random_floatX(C)), out(rows * C), sum(rows * C),
        qkv(random_floatX(n)), first(random_floatX(n)), raw(normed * h.HS), kept(rows * h.NKV * h.HS),
        fc(random_floatX(rows * 2 * F)), hidden(random_floatX(rows * F)), copy(rows * F);
    Array32 rstd(normed), partials(RMSNORM_PARTS * C), dw(C), table(random_values(T * h.HS)),
        dfirst(random_values(rows * h.NKV * h.HS));
    rmsnorm_forward(out.data, rstd.data, x.data, w.data, rows, C, EPS, stream);
    residual_rmsnorm_forward(sum.data, out.data, rstd.data, x.data, x2.data, w.data, rows, C, EPS, stream);
    rmsnorm_backward(x2.data, dw.data, partials.data, out.data, x.data, w.data, rstd.data, rows, C, false, stream);
    qk_norm_forward(qkv.data, raw.data, rstd.data, w.data, w.data, rows, h, EPS, stream);
    qk_norm_backward(qkv.data, dw.data, dw.data + h.HS, partials.data, raw.data, rstd.data, w.data, w.data, rows, h,
                     false, stream);
    rope(qkv.data, table.data, rows, T, h, false, stream);
    swiglu_forward(hidden.data, fc.data, rows, F, stream);
    swiglu_backward(fc.data, hidden.data, fc.data, rows, F, stream);
    relu2_forward(copy.data, hidden.data, rows * F, stream);
    relu2_backward(copy.data, copy.data, hidden.data, rows * F, stream);
    softcap_forward(hidden.data, copy.data, 2.0f, rows * F, stream);
    softcap_backward(hidden.data, copy.data, 2.0f, rows * F, stream);
    mix_values_forward(qkv.data, kept.data, first.data, w.data, rows, h, stream);
    mix_values_backward(qkv.data, dfirst.data, dw.data, partials.data, kept.data, first.data, w.data, rows, h, false,
                        stream);
    add_to_values(qkv.data, dfirst.data, rows, h, stream);
}

int main(int argc, char** argv) {
    if (argc == 2 && std::string(argv[1]) == "counted") return each_once(), 0;
    const Shape shapes[] = {{1, 1, 48, 16, {3, 1, 16}},    {2, 33, 1600, 40, {10, 5, 32}},
                            {3, 67, 96, 64, {4, 4, 24}},   {1, 150, 24, 128, {4, 1, 64}},
                            {1, 40, 576, 48, {6, 2, 128}}, {2, 129, 64, 24, {9, 3, 48}}};
    for (const Shape& s : shapes) {
        norms(s), heads_of_rows(s), elementwise(s);
        for (int64_t window : {0, 20}) grouped_attention(s, window);
    }
    return report_tests();
}
