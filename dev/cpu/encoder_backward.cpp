// The backward pass of the embedding: dwte[token] += dout, where several positions hold the same
// token; dwpe likewise.
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/reference.h"

BENCH("encoder_backward", dims("B", "T", "C", "V"), shapes({{16, 1024, 768, 50257}, {3, 33, 80, 11}})) {
    const int64_t B = shape[0], T = shape[1], C = shape[2], V = shape[3], rows = B * T;
    float *dout = random_floats(rows * C), *dwte = buffer<float>(V * C), *dwpe = buffer<float>(T * C);
    bf16 *dout16 = as_bf16(dout, rows * C), *dwte16 = buffer<bf16>(V * C), *dwpe16 = buffer<bf16>(T * C);
    int* tokens = buffer<int>(rows);
    // a few tokens often, most seldom, as in text
    for (int64_t i = 0; i < rows; i++)
        tokens[i] = (int)(std::pow((double)(i * 7919 % rows) / (double)rows, 4) * (double)V);
    // dout read; a row of dwte read and written, at most once a position; dwpe written
    bytes(4.0 * rows * C * 3 + 4.0 * T * C);
    output("dwte", dwte, V * C, sum_tolerance(rows)), output("dwpe", dwpe, T * C, sum_tolerance(B)),
        output("dwte", dwte16, V * C, bf16_tolerance(1, rows)), output("dwpe", dwpe16, T * C, bf16_tolerance(1, B));
    setup([=] { memset(dwte, 0, V * C * sizeof(float)), memset((void*)dwte16, 0, V * C * sizeof(bf16)); });
    expected([=] { reference::encoder_backward(dwte, dwpe, dout, tokens, B, T, C, T, false); });
    variant("naive", "position by position into the rows of both tables",
            [=] { reference::encoder_backward(dwte, dwpe, dout, tokens, B, T, C, T, false); });
    // Threads must not add to the same row at once, and the order of additions must not depend on
    // them: each takes some columns of all rows.
    variant("by-columns",
            "each thread adds some columns of all positions, in order: no races, the same bits; but every thread walks "
            "through all rows, a few lines of each",
            [=] {
                parallel_ranges(C, 4 * VEC_FLOATS, [&](int64_t begin, int64_t end) {
                    for (int64_t row = 0; row < rows; row++)
                        for_each_vector(end - begin, [&](size_t i, size_t count) {
                            store_some(dwte + tokens[row] * C + begin + i,
                                       load_some(dwte + tokens[row] * C + begin + i, count) +
                                           load_some(dout + row * C + begin + i, count),
                                       count);
                        });
                });
                parallel_ranges(T, 16, [&](int64_t begin, int64_t end) {
                    for (int64_t t = begin; t < end; t++)
                        for_each_vector(C, [&](size_t i, size_t count) {
                            vfloat total{};
                            for (int64_t b = 0; b < B; b++) total += load_some(dout + (b * T + t) * C + i, count);
                            store_some(dwpe + t * C + i, total, count);
                        });
                });
            });
    variant(
        "shipped",
        "positions sorted by token: the sum of a token is made in registers by one thread, and its row touched once",
        [=] { encoder_backward(dwte, dwpe, dout, tokens, B, T, C, T, false); });
    bytes(2.0 * rows * C * 3 + 2.0 * T * C);
    variant(
        "bf16-shipped", "half the bytes, and still one rounding a sum",
        [=] { encoder_backward(dwte16, dwpe16, dout16, tokens, B, T, C, T, false); }, IN_BF16);
}
