// Weights in 8 and 4 bits (llmc/adapt/weight_codes.h): codes and scales beside those of NumPy,
// ggml and bitsandbytes (dev/data/fixtures.py), and codes, numbers and products beside the naive
// loops, at shapes that fill no whole group, vector or strip.
#include "dev/test/test.h"
#include "llmc/base/file.h"
#include "llmc/cpu/reference_weight_codes.h"
#include "llmc/cpu/scratch.h"
#include "llmc/cpu/compiled_once.h"

// A matrix in codes, with the numbers that it was made of.
struct Coded {
    std::vector<float> weights;
    std::vector<uint8_t> memory;
    CodeMatrix m;
    std::vector<float> strip;

    Coded(WeightFormat weight_format, int64_t rows, int64_t C, const std::vector<float>& values) : weights(values) {
        m = {weight_format, rows, C, nullptr};
        memory.assign(m.bytes() + 64, 0xA5);
        m.memory = (uint8_t*)round_up((int64_t)memory.data(), 64);
        strip.assign(std::max({WeightCodes::strip_rows(m) * C, WeightCodes::strip_columns(m) * rows, m.padded_C()}),
                     NAN);
        encode_weights(m, weights.data());
    }
};
static std::string text_of(const char* what, const CodeMatrix& m) {
    return format("%s of %s, %d x %d", what, WEIGHT_FORMAT_NAMES[m.format], m.rows, m.C);
}

// Codes and scales as in the naive loop. Codes may differ where two levels are equally near but for
// rounding.
static bool same_codes(const Coded& a, const Coded& b) {
    bool good = true;
    int64_t different = 0;
    for (int64_t row = 0; row < a.m.rows; row++)
        for (int64_t i = 0; i < a.m.padded_C(); i++) {
            const float scale = reference::get_scale(a.m, row, i);
            const double w = i < a.m.C ? a.weights[row * a.m.C + i] : 0.0;
            const double error = std::fabs(reference::decode_weight(a.m, row, i) - w),
                         least = std::fabs(reference::decode_weight(b.m, row, i) - w);
            different += reference::get_code(a.m, row, i) != reference::get_code(b.m, row, i);
            // Codes of nf4 are the nearest by the scale before it became a code.
            const double rounding = a.m.format == WEIGHTS_NF4 ? 0.02 : 1e-3;
            good = good && scale == reference::get_scale(b.m, row, i) && error <= least + rounding * std::fabs(scale);
        }
    return good && different <= a.m.rows * a.m.padded_C() / 1000;
}

static std::vector<float> weights_at(int64_t rows, int64_t C) {
    std::vector<float> weights = random_values(rows * C, 0.05);
    for (float& w : weights) w = w * w * w * 400;  // many small, few large
    if (rows > 2) std::fill_n(weights.begin() + C, C, 0.0f), weights[2 * C] = 1;
    return weights;
}

static void codes(WeightFormat weight_format, int64_t rows, int64_t C) {
    const Coded fast(weight_format, rows, C, weights_at(rows, C));
    start_test(text_of("codes", fast.m));
    Coded naive(fast);
    naive.m.memory = (uint8_t*)round_up((int64_t)naive.memory.data(), 64);
    reference::encode_weights(naive.m, naive.weights.data());
    EXPECT(same_codes(fast, naive));
    std::vector<float> numbers(C);
    std::vector<bf16> halves(C);
    bool equal = true;
    for (int64_t row = 0; row < rows; row++) {
        decode_row(numbers.data(), fast.m, row, 0, C), decode_row(halves.data(), fast.m, row, 0, C);
        for (int64_t i = 0; i < C; i++) {
            const float number = reference::decode_weight(fast.m, row, i);
            equal = equal && numbers[i] == number && (float)halves[i] == (float)bf16(number);
        }
    }
    EXPECT(equal);
    // The test of codes fails if one is another.
    const int64_t at = C / 2;
    reference::set_code(fast.m, 0, at, reference::get_code(fast.m, 0, at) ^ 3);
    EXPECT(!same_codes(fast, naive));
}

static void scales_without_a_table() {
    start_test("scales of scales, computed, are the table's");
    for (int code = 0; code < 256; code += VEC_FLOATS) {
        const vfloat computed = scale_values(lane_numbers() + code);
        EXPECT(memcmp(&computed, &SCALE_VALUES[code], VEC_BYTES) == 0);
    }
}

// How far a product may be from the naive one, relative to the largest: inputs and nf4's levels are
// rounded to 14 bits.
template <class floatX>
double tolerance(int64_t C, int64_t rows) {
    const double whole = rows <= MATMUL_FEW_ROWS ? 4e-4 : 0;
    return whole + (sizeof(floatX) == 2 ? bf16_tolerance(rows <= MATMUL_FEW_ROWS ? 1 : 4, (double)C)
                                        : sum_tolerance((double)C));
}

template <class floatX>
static void products(WeightFormat weight_format, int64_t OC, int64_t C, int64_t rows, bool with_bias, bool with_gelu) {
    Coded coded(weight_format, OC, C, weights_at(OC, C));
    start_test(text_of("products", coded.m) + format(", %d rows, %d bits", rows, 8 * sizeof(floatX)));
    const std::vector<float> x = random_values(rows * C), b = random_values(OC);
    const std::vector<floatX> inp(x.begin(), x.end()), bias(b.begin(), b.end());
    const std::vector<float> exact_inp(inp.begin(), inp.end()), exact_bias(bias.begin(), bias.end());
    std::vector<floatX> out(rows * OC, floatX(NAN)), gelu_out(rows * OC, floatX(NAN));
    std::vector<float> exact(rows * OC), exact_gelu(rows * OC);
    const auto run = [&] {
        coded_matmul(out.data(), inp.data(), coded.m, with_bias ? bias.data() : nullptr, rows,
                     with_gelu ? gelu_out.data() : nullptr, (void*)coded.strip.data());
        return relative_error(out.data(), exact.data(), out.size());
    };
    reference::coded_matmul(exact.data(), exact_inp.data(), coded.m, with_bias ? exact_bias.data() : nullptr, rows,
                            exact_gelu.data());
    EXPECT(run() < tolerance<floatX>(C, rows));
    if (with_gelu)
        EXPECT(relative_error(gelu_out.data(), exact_gelu.data(), out.size()) < 2 * tolerance<floatX>(C, rows));
    const std::vector<floatX> first = out;
    device.threads = 1, run(), device.threads = 2;
    EXPECT(memcmp(first.data(), out.data(), out.size() * sizeof(floatX)) == 0);
    // The comparison fails if the codes of a row are another row's.
    std::swap_ranges(coded.m.codes(0), coded.m.codes(1), coded.m.codes(OC - 1));
    EXPECT(!(run() < tolerance<floatX>(C, rows)));
}

// Of a layer (OC, C) in codes: the gradient of its inputs; then with an adapter of rank R its
// outputs, these after GELU, and the gradients of inputs, A and B. In T, which is fp32 if they are
// naive.
template <class T, class floatX>
static std::vector<std::vector<float>> layer(const Coded& coded, const std::vector<floatX>& values, int64_t rows,
                                             bool with_gelu, bool naive) {
    const int64_t R = 3, C = coded.m.C, OC = coded.m.rows;
    const std::vector<T> all(values.begin(), values.end());
    const T *dout = all.data(), *inp = dout + rows * OC, *pre_gelu = with_gelu ? inp + rows * C : nullptr,
            *A = inp + 2 * rows * C, *B = A + R * C, *bias = B + R * OC;
    std::vector<T> alone(rows * C, T(NAN)), dinp(alone), out(rows * OC, T(NAN)), gelu_out(out),
        low(2 * round_up(rows * R, 16));
    std::vector<float> dA(R * C, NAN), dB(R * OC, NAN);
    void* const strip = (void*)coded.strip.data();
    const InStrips<T> matrix{coded.m, (T*)strip};
    const auto pass = [&](auto coded_backward, auto forward, auto backward) {
        coded_backward(alone.data(), dout, coded.m, rows, strip, pre_gelu);
        forward(out.data(), inp, matrix, bias, A, B, low.data(), rows, C, OC, R, 0.5f, gelu_out.data());
        backward(dinp.data(), dA.data(), dB.data(), dout, inp, matrix, A, B, low.data(), rows, C, OC, R, 0.5f, false,
                 pre_gelu);
    };
    if constexpr (sizeof(T) == 4)
        if (naive)
            pass([](auto... of) { reference::coded_backward(of...); },
                 [](auto... of) { reference::low_rank_forward(of...); },
                 [](auto... of) { reference::low_rank_backward(of...); });
    if (!naive)
        pass([](auto... of) { coded_backward(of...); }, [](auto... of) { low_rank_forward(of...); },
             [](auto... of) { low_rank_backward(of...); });
    std::vector<std::vector<float>> found;
    for (const auto& result : {alone, out, gelu_out, dinp}) found.emplace_back(result.begin(), result.end());
    found.push_back(dA), found.push_back(dB);
    return found;
}
template <class floatX>
static void layers(WeightFormat weight_format, int64_t OC, int64_t C, int64_t rows, bool with_gelu) {
    Coded coded(weight_format, OC, C, weights_at(OC, C));
    start_test(text_of("layers", coded.m) + format(", %d rows, %d bits", rows, 8 * sizeof(floatX)));
    const std::vector<float> random = random_values(rows * (OC + 2 * C) + 3 * (C + OC) + OC);
    const std::vector<floatX> values(random.begin(), random.end());
    const auto fast = [&] { return layer<floatX>(coded, values, rows, with_gelu, false); };
    const auto naive = layer<float>(coded, values, rows, with_gelu, true), first = fast();
    const double bound = 4 * tolerance<floatX>((double)std::max(C, OC), 99);
    for (size_t i = 0; i < naive.size(); i++) EXPECT(relative_error(first[i], naive[i]) < bound);
    device.threads = 1;
    EXPECT(fast() == first);
    device.threads = 2;
    // The comparisons fail if the codes of a row are another row's.
    std::swap_ranges(coded.m.codes(2), coded.m.codes(3), coded.m.codes(OC - 1));
    for (size_t i = 0; i < 4; i++) EXPECT(!(relative_error(fast()[i], naive[i]) < bound));
}

template <class floatX>
static void ends_of_model(WeightFormat weight_format, int64_t V, int64_t C) {
    const int64_t Vp = round_up(V, 128), B = 2, T = 9, first = 3;
    Coded wte(weight_format, Vp, C, weights_at(Vp, C));
    start_test(text_of("embedding and losses", wte.m) + format(", %d bits", 8 * sizeof(floatX)));
    const std::vector<float> x = random_values(B * T * C), w = random_values((first + T) * C);
    const std::vector<floatX> lnf(x.begin(), x.end()), wpe(w.begin(), w.end());
    const std::vector<float> exact_lnf(lnf.begin(), lnf.end()), exact_wpe(wpe.begin(), wpe.end());
    std::vector<int> tokens(B * T);
    for (int64_t i = 0; i < B * T; i++) tokens[i] = (int)(i * 7919 % V);
    tokens[1] = (int)V - 1;
    std::vector<floatX> out(B * T * C), logits(B * T * Vp);
    std::vector<float> exact(B * T * C), exact_logits(B * T * Vp), losses(B * T), exact_losses(B * T);
    coded_encoder(out.data(), tokens.data(), wte.m, wpe.data(), B, T, first);
    reference::coded_encoder(exact.data(), tokens.data(), wte.m, exact_wpe.data(), B, T, first);
    EXPECT(relative_error(out.data(), exact.data(), out.size()) < (sizeof(floatX) == 2 ? BF16_ROUNDOFF : 1e-7));
    std::vector<floatX> dlnf(B * T * C);
    std::vector<float> exact_dlnf(B * T * C);
    for (bool gradients : {false, true}) {
        coded_classifier(losses.data(), gradients ? dlnf.data() : nullptr, logits.data(), lnf.data(), wte.m,
                         tokens.data(), B * T, V, 0.1f, (void*)wte.strip.data());
        reference::coded_classifier(exact_losses.data(), gradients ? exact_dlnf.data() : nullptr, exact_logits.data(),
                                    exact_lnf.data(), wte.m, tokens.data(), B * T, V, 0.1f);
        EXPECT(relative_error(losses, exact_losses) < tolerance<floatX>(C, B * T));
    }
    EXPECT(relative_error(dlnf.data(), exact_dlnf.data(), dlnf.size()) < 8 * tolerance<floatX>(C, B * T));
}

// The mean of a matrix's scales and the scales of their groups, to the rounding of sums.
static void same_means(FileReader& file, const CodeMatrix& m) {
    std::vector<float> others(1 + ceil_div(m.rows * m.row_groups(), NF4_GROUP));
    file.read(others.data(), others.size() * 4, "mean and groups");
    EXPECT(relative_error(m.mean(), others.data(), others.size()) < 3e-7);
}
// The file has weights, and for each format codes, one a byte, and scales; of nf4 then the mean of
// the scales and those of their groups.
static void same_as_others() {
    FileReader file("dev/test/fixtures/weight_codes.bin");
    int32_t shape[2];
    file.read(shape, sizeof(shape), "shape");
    const int64_t rows = shape[0], C = shape[1];
    std::vector<float> weights(rows * C);
    file.read(weights.data(), weights.size() * 4, "weights");
    for (WeightFormat weight_format : {WEIGHTS_INT8, WEIGHTS_INT4, WEIGHTS_NF4}) {
        const Coded coded(weight_format, rows, C, weights);
        start_test(text_of("codes and scales by others", coded.m));
        std::vector<int8_t> others(rows * C);
        std::vector<char> scales(rows * coded.m.row_scale_bytes());
        file.read(others.data(), others.size(), "codes");
        file.read(scales.data(), scales.size(), "scales");
        int64_t different = 0;
        for (int64_t i = 0; i < rows * C; i++) different += reference::get_code(coded.m, i / C, i % C) != others[i];
        EXPECT(different == 0);
        EXPECT(memcmp(coded.m.scale_codes(0), scales.data(), scales.size()) == 0);
        if (weight_format == WEIGHTS_NF4) same_means(file, coded.m);
    }
    // More scales than those of one group: a weight in each block, of a matrix (300, 64).
    std::vector<float> sparse(300 * 64);
    for (int64_t i = 0; i < 300; i++) file.read(&sparse[i * 64], 4, "weights");
    Coded coded(WEIGHTS_NF4, 300, 64, sparse);
    start_test("two groups of scales of nf4, by bitsandbytes");
    std::vector<uint8_t> others(300);
    file.read(others.data(), others.size(), "codes of scales");
    EXPECT(memcmp(coded.m.scale_codes(0), others.data(), others.size()) == 0);
    same_means(file, coded.m);
}

int main() {
    device.threads = 2;
    device.scratch_elems = thread_scratch_elems<bf16>(1, 64) + thread_scratch_elems<float>(1, 64);
    device.transposed_elems = backward_transposed_elems<bf16>(33, 1600, 128);
    allocate_scratch();
    same_as_others();
    scales_without_a_table();
    for (WeightFormat weight_format : {WEIGHTS_INT8, WEIGHTS_INT4, WEIGHTS_NF4}) {
        for (int64_t C : {1, 31, 48, 64, 100, 1600}) codes(weight_format, 7, C);
        for (int64_t C : {48, 100, 1600, 6400})
            for (int64_t rows : {1, 3, 33}) {
                products<float>(weight_format, 7 + C % 50, C, rows, true, rows > 1);
                products<bf16>(weight_format, 7 + C % 50, C, rows, rows == 1, rows == 33);
            }
        for (int64_t C : {48, 100, 1600}) {
            layers<float>(weight_format, 7 + C % 50, C, C == 48 ? 1 : 33, C == 100);
            layers<bf16>(weight_format, 7 + C % 50, C, 33, C == 48);
        }
        layers<float>(weight_format, 5000, 160, 7, true);  // two strips
        products<float>(weight_format, 50304, 48, 1, false, false);
        products<float>(weight_format, 23000, 48, 6, true, false);  // several strips
        products<bf16>(weight_format, 23000, 48, 6, true, true);
        ends_of_model<float>(weight_format, 50257, 48);
        ends_of_model<bf16>(weight_format, 300, 100);
    }
    return report_tests();
}
