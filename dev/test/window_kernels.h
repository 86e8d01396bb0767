// The kernels of attention with a window on the GPU, beside reference.h; part of test_gpt2.cu.

static void attention_with_window(const Shape& s, int64_t window, const std::vector<int>& starts) {
    start_test(format("attention, window %d%s, ", (int)window, starts.empty() ? "" : " and documents") + shape_text(s));
    const int64_t rows = s.B * s.T, HS = s.C / s.NH;
    const int* documents = starts.empty() ? nullptr : starts.data();
    const Floats qkv = random_floatX(rows * 3 * s.C, 1.5), dout = random_floatX(rows * s.C);
    const AttentionRun run(s, qkv, dout, starts, window);
    Floats out(rows * s.C), lse(s.B * s.NH * s.T), dqkv(rows * 3 * s.C);
    reference::attention_forward(out.data(), lse.data(), qkv.data(), s.B, s.T, s.C, s.NH, documents, window);
    reference::attention_backward(dqkv.data(), dout.data(), run.out.data(), lse.data(), qkv.data(), s.B, s.T, s.C, s.NH,
                                  documents, window);
    EXPECT(relative_error(run.out, out) < kernel_tolerance(2, HS + s.T));
    EXPECT(relative_error(run.lse, lse) < sum_tolerance(HS + s.T));
    EXPECT(relative_error(run.dqkv, dqkv) < kernel_tolerance(3, HS + 2 * s.T));
    if (window >= s.T) EXPECT(run.same_bits(AttentionRun(s, qkv, dout, starts)));
    if (!documents && window < s.T) EXPECT(!run.same_bits(AttentionRun(s, qkv, dout, starts, window + 1)));
}

// One position at a time through the cache.
static void decoding_with_window(const Shape& s, int64_t window) {
    start_test(format("attention, one position at a time, window %d, ", (int)window) + shape_text(s));
    const int64_t maxT = s.T + 3;
    const Floats qkv = random_floatX(s.B * s.T * 3 * s.C, 1.5);
    Array d_qkv(qkv), d_keys(Floats(maxT * s.C, NAN)), d_values(Floats(maxT * s.C, NAN)), d_row(s.C);
    Array32 d_scores(s.NH * maxT);
    Floats out(s.B * s.T * s.C), lse(s.B * s.NH * s.T);
    reference::attention_forward(out.data(), lse.data(), qkv.data(), s.B, s.T, s.C, s.NH, nullptr, window);
    for (int64_t t = 0; t < s.T; t++) {
        attention_decode(d_row.data, d_keys.data, d_values.data, d_qkv.data + t * 3 * s.C, d_scores, t, maxT, s.C, s.NH,
                         stream, window);
        EXPECT(relative_error(d_row.values().data(), out.data() + t * s.C, s.C) < kernel_tolerance(2, s.C + s.T));
    }
}

static void attention_with_windows(const Shape& s, bool quick) {
    for (int64_t window : {1, 7, 16, 64, 100, 1000}) {
        if (quick && window != 16) continue;
        attention_with_window(s, window, {});
        attention_with_window(s, window, document_starts(DOCUMENT_LAYOUTS[4], s.B, s.T));
    }
    decoding_with_window(s, 7);
}
