// Causal self-attention, forward and backward: out (B,T,C) from qkv (B,T,3C).
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/reference.h"

struct Dims {
    int64_t B, T, C, NH;
};

// With the T x T matrix in memory, as the formula is written: the scores of all pairs, a softmax
// over each row, then the weighted sums of values.
static void naive(float* out, float* lse, const float* qkv, Dims d, float* matrix) {
    const int64_t HS = d.C / d.NH, stride = 3 * d.C;
    for (int64_t b = 0; b < d.B; b++)
        for (int64_t h = 0; h < d.NH; h++) {
            const float *q = qkv + b * d.T * stride + h * HS, *k = q + d.C, *v = k + d.C;
            for (int64_t i = 0; i < d.T; i++)
                for (int64_t j = 0; j <= i; j++) {
                    float score = 0;
                    for (int64_t c = 0; c < HS; c++) score += q[i * stride + c] * k[j * stride + c];
                    matrix[i * d.T + j] = score / std::sqrt((float)HS);
                }
            for (int64_t i = 0; i < d.T; i++) {
                float top = -INFINITY, total = 0;
                for (int64_t j = 0; j <= i; j++) top = std::fmax(top, matrix[i * d.T + j]);
                for (int64_t j = 0; j <= i; j++) total += matrix[i * d.T + j] = std::exp(matrix[i * d.T + j] - top);
                lse[(b * d.NH + h) * d.T + i] = top + std::log(total);
                for (int64_t j = 0; j <= i; j++) matrix[i * d.T + j] /= total;
            }
            for (int64_t i = 0; i < d.T; i++) {
                float* o = out + (b * d.T + i) * d.C + h * HS;
                for (int64_t c = 0; c < HS; c++) o[c] = 0;
                for (int64_t j = 0; j <= i; j++)
                    for (int64_t c = 0; c < HS; c++) o[c] += matrix[i * d.T + j] * v[j * stride + c];
            }
        }
}

// Online softmax: one pass over the keys of a query, in vectors. When a higher score comes, the
// sums so far are scaled down. There is no matrix.
static void online(float* out, float* lse, const float* qkv, Dims d) {
    const int64_t HS = d.C / d.NH, stride = 3 * d.C;
    const float scale = 1.0f / std::sqrt((float)HS);
    for (int64_t b = 0; b < d.B; b++)
        for (int64_t h = 0; h < d.NH; h++)
            for (int64_t i = 0; i < d.T; i++) {
                const float* q = qkv + (b * d.T + i) * stride + h * HS;
                float *o = out + (b * d.T + i) * d.C + h * HS, top = -INFINITY, total = 0;
                memset(o, 0, HS * sizeof(float));
                for (int64_t j = 0; j <= i; j++) {
                    const float *k = qkv + (b * d.T + j) * stride + d.C + h * HS, *v = k + d.C;
                    vfloat dot{};
                    for_each_vector(
                        HS, [&](size_t c, size_t count) { dot += load_some(q + c, count) * load_some(k + c, count); });
                    const float score = sum(dot) * scale, higher = std::fmax(top, score),
                                shrink = std::exp(top - higher), p = std::exp(score - higher);
                    total = total * shrink + p, top = higher;
                    for_each_vector(HS, [&](size_t c, size_t count) {
                        store_some(o + c, load_some(o + c, count) * shrink + load_some(v + c, count) * p, count);
                    });
                }
                for (int64_t c = 0; c < HS; c++) o[c] /= total;
                lse[(b * d.NH + h) * d.T + i] = top + std::log(total);
            }
}

BENCH("attention_forward", dims("B", "T", "C", "NH"), shapes({{1, 1024, 768, 12}, {4, 64, 768, 12}, {2, 33, 48, 3}})) {
    const Dims d{shape[0], shape[1], shape[2], shape[3]};
    const int64_t rows = d.B * d.T, HS = d.C / d.NH;
    const float* qkv = random_floats(rows * 3 * d.C);
    float *out = buffer<float>(rows * d.C), *lse = buffer<float>(rows * d.NH), *matrix = buffer<float>(d.T * d.T);
    const bf16* qkv16 = as_bf16(qkv, rows * 3 * d.C);
    bf16* out16 = buffer<bf16>(rows * d.C);
    output("out", out, rows * d.C, sum_tolerance(HS + d.T));
    output("out", out16, rows * d.C, bf16_tolerance(2, HS + d.T));
    expected([=] { reference::attention_forward(out, lse, qkv, d.B, d.T, d.C, d.NH); });

    auto tiled = [=] { attention_forward(out, lse, qkv, d.B, d.T, d.C, d.NH); };
    auto tiled_bf16 = [=] { attention_forward(out16, lse, qkv16, d.B, d.T, d.C, d.NH); };
    flops(2.0 * d.B * d.T * d.T * d.C);  // two products over half of T x T
    bytes(4.0 * rows * 4 * d.C);
    variant("naive",
            "stores the matrix of all scores: one loop computes it, one makes probabilities of it, one multiplies "
            "them with the values",
            [=] { naive(out, lse, qkv, d, matrix); });
    variant("online",
            "one pass over the keys in vectors, the softmax corrected as it goes (Milakov & Gimelshein 2018, "
            "arXiv:1805.02867): no matrix, but exponentials one at a time, and the output rescaled for each key",
            [=] { online(out, lse, qkv, d); });
    variant("tiled",
            "flash attention: 64 queries meet 64 keys, two small matrix products in registers, exponentials in "
            "vectors, one rescaling per block (llmc/cpu/attention.h, one thread)",
            [=] { on_one_thread(tiled); });
    variant("shipped", "heads are split among the threads", tiled);
    bytes(2.0 * rows * 4 * d.C);
    variant("bf16-shipped",
            "both products on the matrix unit, with the probabilities rounded to bf16 for the second "
            "(llmc/cpu/attention_bf16.h)",
            tiled_bf16, IN_BF16);
}

BENCH("attention_backward", dims("B", "T", "C", "NH"), shapes({{1, 1024, 768, 12}, {4, 64, 768, 12}, {2, 33, 48, 3}})) {
    const Dims d{shape[0], shape[1], shape[2], shape[3]};
    const int64_t rows = d.B * d.T, HS = d.C / d.NH;
    const float *qkv = random_floats(rows * 3 * d.C), *dout = random_floats(rows * d.C);
    float *out = buffer<float>(rows * d.C), *lse = buffer<float>(rows * d.NH), *dqkv = buffer<float>(rows * 3 * d.C);
    if (!current->only_listed) attention_forward(out, lse, qkv, d.B, d.T, d.C, d.NH);
    for (int64_t i = 0; i < rows * d.C; i++) out[i] = (float)bf16(out[i]);
    const bf16* qkv16 = as_bf16(qkv, rows * 3 * d.C);
    const bf16 *out16 = as_bf16(out, rows * d.C), *dout16 = as_bf16(dout, rows * d.C);
    bf16* dqkv16 = buffer<bf16>(rows * 3 * d.C);
    output("dqkv", dqkv, rows * 3 * d.C, sum_tolerance(4 * (HS + 2 * d.T)));
    output("dqkv", dqkv16, rows * 3 * d.C, bf16_tolerance(3, HS + 2 * d.T));

    auto naive = [=] { reference::attention_backward(dqkv, dout, out, lse, qkv, d.B, d.T, d.C, d.NH); };
    auto tiled = [=] { attention_backward(dqkv, dout, out, lse, qkv, d.B, d.T, d.C, d.NH); };
    auto tiled_bf16 = [=] { attention_backward(dqkv16, dout16, out16, lse, qkv16, d.B, d.T, d.C, d.NH); };
    expected(naive);
    flops(5.0 * d.B * d.T * d.T * d.C);  // five products over half of T x T
    bytes(4.0 * rows * 8 * d.C);
    variant("naive",
            "for each query and key one dot product for the score, one for its gradient, and additions to three rows",
            naive);
    variant("tiled",
            "the probabilities recomputed from lse, block by block, and five small matrix products in registers (one "
            "thread)",
            [=] { on_one_thread(tiled); });
    variant("shipped", "heads are split among the threads", tiled);
    bytes(2.0 * rows * 8 * d.C);
    variant("bf16-shipped",
            "all five products on the matrix unit, on the transposes: so the softmax already writes the operands of "
            "the next products",
            tiled_bf16, IN_BF16);
}
