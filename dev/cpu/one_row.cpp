// A row times a matrix: out (OC) = inp (C) weight (OC, C)^T. That is what a generated token needs
// of each weight. The main shape has as many weights as GPT-2 124M, so they come from memory.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/reference.h"

enum Fetch { BY_THE_CPU, ONCE, TWICE };  // what asks for a line of the weight before it is read

// Columns `begin` to `end` - 1 of out, in STREAMS streams of equally many rows of the weight.
// Returns the first column that is left.
template <int STREAMS, Fetch FETCH>
static int64_t in_streams(bf16* out, const bf16* inp, const bf16* weight, int64_t C, int64_t begin, int64_t end) {
    constexpr size_t LINE = CACHE_LINE / sizeof(bf16);
    const int64_t columns = (end - begin) / STREAMS;
    for (int64_t o = begin; o < begin + columns; o++) {
        vfloat total[STREAMS] = {};
        for_each_vector(C, [&](size_t c, size_t count) {
            const vfloat x = load_some(inp + c, count);
            for (int s = 0; s < STREAMS; s++) {
                const bf16* w = weight + (o + s * columns) * C + c;
                if (FETCH == ONCE && c % LINE == 0) __builtin_prefetch((const char*)w + DOT_FAR);
                if (FETCH == TWICE && c % LINE == 0) fetch_stream(w, DOT_FAR);
                total[s] += x * load_some(w, count);
            }
        });
        for (int s = 0; s < STREAMS; s++) out[o + s * columns] = sum(total[s]);
    }
    return begin + columns * STREAMS;
}
// All of out, by all threads, in the ranges of matmul_forward().
template <int STREAMS, Fetch FETCH>
static void one_row(bf16* out, const bf16* inp, const bf16* weight, int64_t C, int64_t OC) {
    parallel_streams(OC, C * sizeof(bf16), [&](int64_t begin, int64_t end) {
        begin = in_streams<STREAMS, FETCH>(out, inp, weight, C, begin, end);
        in_streams<1, BY_THE_CPU>(out, inp, weight, C, begin, end);
    });
}

BENCH("one_row", dims("C", "OC"), shapes({{768, 161280}, {80, 49}})) {
    const int64_t C = shape[0], OC = shape[1];
    const float *inp = random_floats(C), *weight = random_floats(OC * C), *no_bias = nullptr;
    const bf16 *inp16 = as_bf16(inp, C), *weight16 = as_bf16(weight, OC * C);
    float* out = buffer<float>(OC);
    bf16* out16 = buffer<bf16>(OC);
    output("out", out, OC, sum_tolerance(C));
    output("out", out16, OC, bf16_tolerance(1, C));
    expected([=] { reference::matmul_forward(out, inp, weight, no_bias, 1, C, OC); });
    flops(2.0 * C * OC);
    bytes(2.0 * (C + OC * C + OC));
    variant(
        "one-stream", "each thread reads the weight from front to back, and the CPU guesses what comes next",
        [=] { one_row<1, BY_THE_CPU>(out16, inp16, weight16, C, OC); }, IN_BF16);
    variant(
        "four-streams", "four rows at a time, far apart: the CPU follows several streams side by side",
        [=] { one_row<4, BY_THE_CPU>(out16, inp16, weight16, C, OC); }, IN_BF16);
    variant(
        "fetched-once", "and asks for each line 2 KiB before it is read",
        [=] { one_row<4, ONCE>(out16, inp16, weight16, C, OC); }, IN_BF16);
    variant(
        "fetched-twice",
        "2 KiB ahead to the second-level cache, which has more reads under way, and 1 KiB ahead to the first",
        [=] { one_row<4, TWICE>(out16, inp16, weight16, C, OC); }, IN_BF16);
    variant(
        "shipped", "bf16 widened by a shift and a mask, a register of pairs at a time (llmc/cpu/dot_products.h)",
        [=] { matmul_forward(out16, inp16, weight16, (const bf16*)nullptr, 1, C, OC); }, IN_BF16);
    bytes(4.0 * (C + OC * C + OC));
    variant("fp32-shipped", "the same in fp32: twice the bytes",
            [=] { matmul_forward(out, inp, weight, no_bias, 1, C, OC); });
}
