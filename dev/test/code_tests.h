// Compressed activations on a CPU (gpt2/activation_codes.h): the fast functions against the plain
// loops, what rounding may change, and what is not finite. A part of test_kernels.cpp.
#pragma once
#include "dev/test/test.h"
#include "llmc/cpu/activation_codes.h"
#include "llmc/cpu/reference.h"

// The memory of the codes of n values, and bytes behind it that nobody may write.
struct CodeMemory {
    std::vector<char> bytes;
    int64_t n;
    explicit CodeMemory(int64_t n) : bytes(codes_bytes(n) + 64, 0x55), n(n) {}
    ActivationCodes codes() { return codes_at(bytes.data(), n); }
    bool guard_is_whole() const {
        return std::all_of(bytes.end() - 64, bytes.end(), [](char byte) { return byte == 0x55; });
    }
};

// Values of which each block has another size, one only zeros.
template <class floatX>
static std::vector<floatX> values_of_many_sizes(size_t n) {
    const std::vector<float> drawn = random_values(n);
    std::vector<floatX> values(n);
    for (size_t i = 0; i < n; i++) {
        const int block = (int)(i / CODE_BLOCK % 9);
        values[i] = floatX(block == 8 ? 0 : drawn[i] * std::pow(10.0f, (float)block - 4));
    }
    return values;
}
// The most by which a value may change, which is the scale of its block times this, and where it is
// stored in fewer bits their roundoff: half a scale, and rounding of the inverse and of the product
// (127 times 2^-23 of a scale), of the scale itself (127 times 2^-24).
constexpr double MOST_OF_A_SCALE = 0.5 + 127 * 1.5 / (1 << 23);
template <class floatX>
static bool within_bound(const std::vector<floatX>& decoded, const std::vector<floatX>& x) {
    for (size_t i = 0; i < x.size(); i++) {
        double largest = 0;
        const size_t first = i / CODE_BLOCK * CODE_BLOCK;
        for (size_t k = first; k < std::min(x.size(), first + CODE_BLOCK); k++)
            largest = std::fmax(largest, std::fabs((double)x[k]));
        const double roundoff = (sizeof(floatX) == 2 ? BF16_ROUNDOFF : FP32_ROUNDOFF) * std::fabs((double)decoded[i]);
        if (!(std::fabs((double)decoded[i] - (double)x[i]) <= largest / 127 * MOST_OF_A_SCALE + roundoff)) return false;
    }
    return true;
}

template <class floatX>
static void codes_as_reference(size_t n) {
    start_test(format("codes of %d values of %d bits: those of the plain loops, on 1 and 3 threads", (int)n,
                      8 * (int)sizeof(floatX)));
    const std::vector<floatX> x = values_of_many_sizes<floatX>(n);
    CodeMemory want((int64_t)n);
    std::vector<floatX> decoded(n);
    reference::encode_activations(want.codes(), x.data(), n);
    reference::decode_activations(decoded.data(), want.codes(), n);
    for (int threads : {1, 3}) {
        use_threads(threads);
        CodeMemory got((int64_t)n);
        std::vector<floatX> values(n);
        encode_activations(got.codes(), x.data(), n);
        decode_activations(values.data(), got.codes(), n);
        EXPECT(got.bytes == want.bytes && got.guard_is_whole());
        EXPECT(memcmp(values.data(), decoded.data(), n * sizeof(floatX)) == 0);
    }
    start_test(format("codes of %d values of %d bits: a value changes by half a scale at most", (int)n,
                      8 * (int)sizeof(floatX)));
    EXPECT(within_bound(decoded, x));
    int8_t& code = want.codes().codes[n / 2];  // planted: a code that is two nearer to 0, or beyond it
    code = (int8_t)(code + (code < 0 ? 2 : -2));
    reference::decode_activations(decoded.data(), want.codes(), n);
    EXPECT(!within_bound(decoded, x) || want.codes().scales[n / 2 / CODE_BLOCK] == 0);
}

template <class floatX>
static void codes_of_special_values() {
    start_test(format("codes of %d bits: a block with a value that is not finite becomes NaN, the others stay",
                      8 * (int)sizeof(floatX)));
    for (float planted : {NAN, INFINITY, -INFINITY})
        for (size_t at : {64, 100, 127, 199}) {
            std::vector<floatX> x(200, floatX(1.0f)), fast(200), slow(200);
            x[at] = floatX(planted);
            CodeMemory a(200), b(200);
            encode_activations(a.codes(), x.data(), 200), decode_activations(fast.data(), a.codes(), 200);
            reference::encode_activations(b.codes(), x.data(), 200);
            reference::decode_activations(slow.data(), b.codes(), 200);
            for (size_t i = 0; i < 200; i++) {
                const bool same_block = i / CODE_BLOCK == at / CODE_BLOCK;
                for (float value : {(float)fast[i], (float)slow[i]})
                    EXPECT(same_block ? std::isnan(value) : value == 1);
            }
        }
    start_test(
        format("codes of %d bits: the largest numbers stay finite, the smallest become 0", 8 * (int)sizeof(floatX)));
    for (float size : {3e38f, 1e30f, 1e-25f, 1e-31f, 1e-37f, 1e-40f, 0.0f}) {
        std::vector<floatX> x(64), decoded(64, floatX(NAN));
        for (int i = 0; i < 64; i++) x[i] = floatX(size * ((float)(i - 32) / 32));
        CodeMemory codes(64);
        encode_activations(codes.codes(), x.data(), 64), decode_activations(decoded.data(), codes.codes(), 64);
        if (size > 1e-28f) EXPECT(within_bound(decoded, x));
        else EXPECT(std::all_of(decoded.begin(), decoded.end(), [](floatX v) { return (float)v == 0; }));
    }
}

// dweight = dout^T inp is a sum over rows, so that what codes change of it is at most
//
//     |change of dweight[o,c]| <= sum over rows of |dout[r,o]| MOST_OF_A_SCALE scale(r,c)
static void gradients_from_codes() {
    start_test("codes: the gradient of a weight changes by no more than the rounding of what it is a sum of");
    const int64_t rows = 5, C = 96, OC = 40, n = rows * C;
    const std::vector<float> x = random_values(n, 2), dout = random_values(rows * OC), weight = random_values(OC * C);
    CodeMemory codes(n);
    encode_activations(codes.codes(), x.data(), n);
    std::vector<float> decoded(n), dinp(n), exact(OC * C), changed(OC * C), bias(OC);
    const auto gradient = [&](std::vector<float>& dweight, const std::vector<float>& inp) {
        reference::matmul_backward(dinp.data(), dweight.data(), bias.data(), dout.data(), inp.data(), weight.data(),
                                   rows, C, OC, false);
    };
    const auto most_of_bound = [&] {
        decode_activations(decoded.data(), codes.codes(), n);
        gradient(exact, x), gradient(changed, decoded);
        double most = 0;
        for (int64_t o = 0; o < OC; o++)
            for (int64_t c = 0; c < C; c++) {
                double bound = 0;
                for (int64_t r = 0; r < rows; r++)
                    bound += std::fabs(dout[r * OC + o]) * codes.codes().scales[(r * C + c) / CODE_BLOCK];
                bound = bound * MOST_OF_A_SCALE + 1e-6;  // the products' own rounding
                most = std::fmax(most, std::fabs((double)changed[o * C + c] - exact[o * C + c]) / bound);
            }
        return most;
    };
    const double most = most_of_bound();
    EXPECT(most > 0.5 && most <= 1);  // some rows agree in sign, so that the bound is nearly reached
    for (int64_t i = 0; i < n; i++) codes.codes().codes[i] &= ~3;  // planted: codes of 6 bits
    EXPECT(most_of_bound() > 1);
}

static void activation_codes() {
    for (size_t n : {1, 15, 63, 64, 65, 200, 40001}) codes_as_reference<float>(n), codes_as_reference<bf16>(n);
    codes_of_special_values<float>();
    codes_of_special_values<bf16>();
    gradients_from_codes();
}
