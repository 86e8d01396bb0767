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
        strip.assign(std::max(WeightCodes::strip_rows(m) * C, m.padded_C()), NAN);
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
            good = good && scale == reference::get_scale(b.m, row, i) && error <= least + 1e-3 * std::fabs(scale);
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
        decode_row(numbers.data(), fast.m, row), decode_row(halves.data(), fast.m, row);
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
    coded_classifier(losses.data(), logits.data(), lnf.data(), wte.m, tokens.data(), B * T, V, (void*)wte.strip.data());
    reference::coded_classifier(exact_losses.data(), exact_logits.data(), exact_lnf.data(), wte.m, tokens.data(), B * T,
                                V);
    EXPECT(relative_error(losses, exact_losses) < tolerance<floatX>(C, B * T));
}

// The file has weights, and for each format codes, one a byte, and scales.
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
        EXPECT(memcmp(coded.m.scales(0), scales.data(), scales.size()) == 0);
    }
}

int main() {
    device.threads = 2;
    device.scratch_elems = thread_scratch_elems<bf16>(1, 64) + thread_scratch_elems<float>(1, 64);
    allocate_scratch();
    same_as_others();
    for (WeightFormat weight_format : {WEIGHTS_INT8, WEIGHTS_INT4, WEIGHTS_NF4}) {
        for (int64_t C : {1, 31, 48, 64, 100, 1600}) codes(weight_format, 7, C);
        for (int64_t C : {48, 100, 1600, 6400})
            for (int64_t rows : {1, 3, 33}) {
                products<float>(weight_format, 7 + C % 50, C, rows, true, rows > 1);
                products<bf16>(weight_format, 7 + C % 50, C, rows, rows == 1, rows == 33);
            }
        products<float>(weight_format, 50304, 48, 1, false, false);
        products<float>(weight_format, 23000, 48, 6, true, false);  // several strips
        products<bf16>(weight_format, 23000, 48, 6, true, true);
        ends_of_model<float>(weight_format, 50257, 48);
        ends_of_model<bf16>(weight_format, 300, 100);
    }
    return report_tests();
}
