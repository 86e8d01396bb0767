// RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467): a layer norm that neither subtracts the mean
// nor adds a bias. Each row x of C channels is divided by its root mean square:
//
//     rstd = 1 / sqrt(sum(x^2) / C + eps)
//     xhat = x rstd
//     out  = xhat weight
//
// Backward, with g = Dout weight:
//
//     Dweight = sum over rows of Dout xhat
//     Dx      = rstd (g - xhat sum(g xhat) / C)
//
// QK norm (Henry et al. 2020, arXiv:2010.04245; as in Qwen3) is the same for each head of queries
// and keys, whose scores then cannot grow with their lengths. Memory-bound, as layernorm.h, and in
// one pass with the sum that comes before it.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>
#include "dev/modern/reference.h"
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

constexpr int64_t RMSNORM_GRAIN = 8;    // rows that a thread takes at a time, forward
constexpr int64_t RMSNORM_PIECES = 64;  // into which the rows are cut, backward

// Normalises the row x (C), whose squares have this sum. Returns its rstd. out may be x.
template <class floatX>
VEC_INLINE float rmsnorm_row(floatX* out, const floatX* x, float squares, const floatX* weight, int64_t C, float eps) {
    const float rstd = 1.0f / std::sqrt(squares / C + eps);
    for_each_vector(C, [&](size_t i, size_t count) {
        store_some(out + i, load_some(x + i, count) * rstd * load_some(weight + i, count), count);
    });
    return rstd;
}
template <class floatX>
void rmsnorm_forward(floatX* out, float* rstd, const floatX* inp, const floatX* weight, int64_t rows, int64_t C,
                     float eps) {
    const Range range(KernelWork{{"rmsnorm"}, 0, 2.0 * rows * C * sizeof(floatX)});
    parallel_ranges(rows, RMSNORM_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            const floatX* x = inp + r * C;
            const float squares =
                row_sum(C, [&](size_t i, size_t count) { return load_some(x + i, count) * load_some(x + i, count); });
            rstd[r] = rmsnorm_row(out + r * C, x, squares, weight, C, eps);
        }
    });
}
template <class floatX>
void residual_rmsnorm_forward(floatX* residual, floatX* out, float* rstd, const floatX* inp1, const floatX* inp2,
                              const floatX* weight, int64_t rows, int64_t C, float eps) {
    const Range range(KernelWork{{"residual + rmsnorm"}, 0, 4.0 * rows * C * sizeof(floatX)});
    parallel_ranges(rows, RMSNORM_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            const int64_t at = r * C;
            const float squares = row_sum(C, [&](size_t i, size_t count) {
                const vfloat x = as_stored<floatX>(load_some(inp1 + at + i, count) + load_some(inp2 + at + i, count));
                store_some(residual + at + i, x, count);
                return x * x;
            });
            rstd[r] = rmsnorm_row(out + at, residual + at, squares, weight, C, eps);
        }
    });
}

// One row backward: dw (C) is added to, dinp (C) too if ADD, else written; it may be dout then.
template <bool ADD, class floatX>
VEC_INLINE void rmsnorm_backward_row(floatX* dinp, float* dw, const floatX* dout, const floatX* x, const floatX* weight,
                                     float rstd, int64_t C) {
    vfloat gx_sum[2] = {};
    for_each_vector(C, [&](size_t i, size_t count) {
        const vfloat dx = load_some(dout + i, count) * (load_some(x + i, count) * rstd);
        gx_sum[i / VEC_FLOATS % 2] += dx * load_some(weight + i, count);
        store_some(dw + i, load_some(dw + i, count) + dx, count);
    });
    const float gx_mean = sum(gx_sum[0] + gx_sum[1]) / C;
    for_each_vector(C, [&](size_t i, size_t count) {
        const vfloat g = load_some(dout + i, count) * load_some(weight + i, count);
        const vfloat dx = (g - load_some(x + i, count) * rstd * gx_mean) * rstd;
        store_some(dinp + i, ADD ? load_some(dinp + i, count) + dx : dx, count);
    });
}
// Calls row(r, sums) for each of n rows, in pieces whose number does not depend on the number of
// threads. Each piece has sums (C) of its own, from 0 on; dweight (C) = their sum, or += if add.
template <class Row>
void sum_in_pieces(float* dweight, int64_t C, int64_t n, bool add, Row row) {
    const int64_t piece_rows = ceil_div(n, RMSNORM_PIECES), pieces = ceil_div(n, piece_rows);
    std::vector<float> sums(pieces * C);
    parallel_for(pieces, [&](int64_t piece) {
        for (int64_t r = piece * piece_rows; r < std::min(n, (piece + 1) * piece_rows); r++)
            row(r, sums.data() + piece * C);
    });
    for_each_vector(C, [&](size_t i, size_t count) {
        vfloat total = add ? load_some(dweight + i, count) : vfloat{};
        for (int64_t p = 0; p < pieces; p++) total += load_some(sums.data() + p * C + i, count);
        store_some(dweight + i, total, count);
    });
}
template <class floatX>
void rmsnorm_backward(floatX* dinp, float* dweight, const floatX* dout, const floatX* inp, const floatX* weight,
                      const float* rstd, int64_t rows, int64_t C, bool add) {
    const Range range(KernelWork{{"rmsnorm backward"}, 0, 4.0 * rows * C * sizeof(floatX)});
    sum_in_pieces(dweight, C, rows, add, [&](int64_t r, float* sums) {
        rmsnorm_backward_row<true>(dinp + r * C, sums, dout + r * C, inp + r * C, weight, rstd[r], C);
    });
}

template <class floatX>
void qk_norm_forward(floatX* qkv, floatX* raw, float* rstd, const floatX* qw, const floatX* kw, int64_t rows,
                     const Heads& heads, float eps) {
    const int64_t n = heads.NH + heads.NKV, HS = heads.HS;
    const Range range(KernelWork{{"qk norm"}, 0, 3.0 * rows * n * HS * sizeof(floatX)});
    parallel_ranges(rows, RMSNORM_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * n; i < end * n; i++) {
            const int64_t h = i % n;
            floatX *x = qkv + i / n * heads.qkv_row() + h * HS, *kept = raw + i * HS;
            const float squares = row_sum(HS, [&](size_t c, size_t count) {
                const vfloat v = load_some(x + c, count);
                store_some(kept + c, v, count);
                return v * v;
            });
            rstd[i] = rmsnorm_row(x, kept, squares, h < heads.NH ? qw : kw, HS, eps);
        }
    });
}
template <class floatX>
void qk_norm_backward(floatX* dqkv, float* dqw, float* dkw, const floatX* raw, const float* rstd, const floatX* qw,
                      const floatX* kw, int64_t rows, const Heads& heads, bool add) {
    const int64_t n = heads.NH + heads.NKV, HS = heads.HS;
    const Range range(KernelWork{{"qk norm backward"}, 0, 3.0 * rows * n * HS * sizeof(floatX)});
    const auto heads_of_rows = [&](float* dweight, const floatX* weight, int64_t first, int64_t end) {
        sum_in_pieces(dweight, HS, rows, add, [&](int64_t r, float* sums) {
            for (int64_t h = first; h < end; h++) {
                floatX* d = dqkv + r * heads.qkv_row() + h * HS;
                rmsnorm_backward_row<false>(d, sums, d, raw + (r * n + h) * HS, weight, rstd[r * n + h], HS);
            }
        });
    };
    heads_of_rows(dqw, qw, 0, heads.NH);
    heads_of_rows(dkw, kw, heads.NH, n);
}
