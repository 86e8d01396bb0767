// The backward pass of the embedding: dwte[token] += dout, where several positions hold the same
// token; dwpe likewise.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/reference.h"

struct Dims {
    int64_t B, T, C, V;
};

// Threads must not add to the same row at the same time, and the order of additions must not depend
// on them. So each thread takes some columns of all rows.
static void by_columns(float* dwte, float* dwpe, const float* dout, const int* tokens, Dims d) {
    parallel_ranges(d.C, 4 * VEC_FLOATS, [&](int64_t begin, int64_t end) {
        for (int64_t row = 0; row < d.B * d.T; row++) {
            float* sum = dwte + tokens[row] * d.C + begin;
            const float* from = dout + row * d.C + begin;
            for_each_vector(end - begin, [&](size_t i, size_t count) {
                store_some(sum + i, load_some(sum + i, count) + load_some(from + i, count), count);
            });
        }
    });
    parallel_ranges(d.T, 16, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++)
            for_each_vector(d.C, [&](size_t i, size_t count) {
                vfloat total{};
                for (int64_t b = 0; b < d.B; b++) total += load_some(dout + (b * d.T + t) * d.C + i, count);
                store_some(dwpe + t * d.C + i, total, count);
            });
    });
}

BENCH("encoder_backward", dims("B", "T", "C", "V"), shapes({{16, 1024, 768, 50257}, {3, 33, 80, 11}})) {
    const Dims d{shape[0], shape[1], shape[2], shape[3]};
    const int64_t B = d.B, T = d.T, C = d.C, V = d.V, rows = B * T;
    const float* dout = random_floats(rows * C);
    float *dwte = buffer<float>(V * C), *dwpe = buffer<float>(T * C);
    const bf16* dout16 = as_bf16(dout, rows * C);
    bf16 *dwte16 = buffer<bf16>(V * C), *dwpe16 = buffer<bf16>(T * C);
    int* tokens = buffer<int>(rows);
    // as in text: a few tokens are frequent, most are rare
    for (int64_t i = 0; i < rows; i++)
        tokens[i] = (int)(std::pow((double)(i * 7919 % rows) / (double)rows, 4) * (double)V);
    output("dwte", dwte, V * C, sum_tolerance(rows));
    output("dwpe", dwpe, T * C, sum_tolerance(B));
    output("dwte", dwte16, V * C, bf16_tolerance(1, rows));
    output("dwpe", dwpe16, T * C, bf16_tolerance(1, B));
    setup([=] {
        memset(dwte, 0, V * C * sizeof(float));
        memset((void*)dwte16, 0, V * C * sizeof(bf16));
    });

    auto naive = [=] { reference::encoder_backward(dwte, dwpe, dout, tokens, B, T, C, T, false); };
    auto sorted = [=] { encoder_backward(dwte, dwpe, dout, tokens, B, T, C, T, false); };
    auto sorted_bf16 = [=] { encoder_backward(dwte16, dwpe16, dout16, tokens, B, T, C, T, false); };
    expected(naive);
    // dout read; a row of dwte read and written, at most once per position; dwpe written
    bytes(4.0 * rows * C * 3 + 4.0 * T * C);
    variant("naive", "position by position, added to the rows of both tables", naive);
    variant("by-columns",
            "each thread adds some columns of all positions, in order: no races and always the same bits, but every "
            "thread reads a few cache lines of every row",
            [=] { by_columns(dwte, dwpe, dout, tokens, d); });
    variant("shipped",
            "positions sorted by token: one thread sums all gradients of a token in its scratch memory, and adds "
            "them to the token's row once",
            sorted);
    bytes(2.0 * rows * C * 3 + 2.0 * T * C);
    variant("bf16-shipped", "half the bytes; each sum is still in fp32 and rounded once", sorted_bf16, IN_BF16);
}
