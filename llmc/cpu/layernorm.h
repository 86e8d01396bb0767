// Layer normalisation (Ba et al. 2016, arXiv:1607.06450), over the C channels of each row x:
//
//     mean = sum(x) / C
//     rstd = 1 / sqrt(sum((x - mean)^2) / C + 1e-5)
//     xhat = (x - mean) rstd
//     out  = xhat weight + bias
//
// Backward, with g = Dout weight:
//
//     Dweight = sum over rows of Dout xhat
//     Dbias   = sum over rows of Dout
//     Dx      = rstd (g - sum(g) / C - xhat sum(g xhat) / C)
//
// Memory-bound. In GPT-2 a layer norm mostly follows the sum that joins a branch to the residual
// stream. One pass does both: the row is normalised while it is still in the first-level cache.
// Forward moves 2 values per element, 4 with the sum; backward moves 4.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>
#include "llmc/gpt2/constants.h"
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

constexpr int64_t LAYERNORM_GRAIN = 8;    // rows that a thread takes at a time, forward
constexpr int64_t LAYERNORM_PIECES = 64;  // into which the rows are cut, backward

// The first `count` lanes of v; the others become 0.
VEC_INLINE vfloat first_lanes(vfloat v, size_t count) {
    if (count == VEC_FLOATS) return v;
    vfloat kept{};
    memcpy(&kept, &v, count * sizeof(float));
    return kept;
}

// Normalises the row x (C), whose sum is x_sum.
template <class floatX>
VEC_INLINE void layernorm_row(floatX* out, float* mean, float* rstd, const floatX* x, float x_sum, const floatX* weight,
                              const floatX* bias, int64_t C) {
    const float m = x_sum / C;
    const float squares = row_sum(C, [&](size_t i, size_t count) {
        const vfloat d = first_lanes(load_some(x + i, count) - m, count);
        return d * d;
    });
    const float r = 1.0f / std::sqrt(squares / C + LAYERNORM_EPS);
    for_each_vector(C, [&](size_t i, size_t count) {
        store_some(out + i,
                   (load_some(x + i, count) - m) * r * load_some(weight + i, count) + load_some(bias + i, count),
                   count);
    });
    *mean = m, *rstd = r;
}

// out (rows, C), mean (rows) and rstd (rows) are written, from inp (rows, C), weight (C), bias (C).
template <class floatX>
void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight,
                       const floatX* bias, int64_t rows, int64_t C) {
    const Range range(work::layernorm(rows, C, sizeof(floatX)));
    parallel_ranges(rows, LAYERNORM_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            const float total = row_sum(C, [&](size_t i, size_t count) { return load_some(inp + r * C + i, count); });
            layernorm_row(out + r * C, mean + r, rstd + r, inp + r * C, total, weight, bias, C);
        }
    });
}

// residual (rows, C) = inp1 (rows, C) + inp2 (rows, C), then out, mean and rstd from residual as
// above; all four are written. residual may be inp1 or inp2.
template <class floatX>
void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* inp1,
                                const floatX* inp2, const floatX* weight, const floatX* bias, int64_t rows, int64_t C) {
    const Range range(work::residual_layernorm(rows, C, sizeof(floatX)));
    parallel_ranges(rows, LAYERNORM_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            const float total = row_sum(C, [&](size_t i, size_t count) {
                const vfloat x =
                    as_stored<floatX>(load_some(inp1 + r * C + i, count) + load_some(inp2 + r * C + i, count));
                store_some(residual + r * C + i, x, count);
                return x;
            });
            layernorm_row(out + r * C, mean + r, rstd + r, residual + r * C, total, weight, bias, C);
        }
    });
}

// out (n_elems) = inp1 + inp2, written: the sum alone. out may be inp1 or inp2.
template <class floatX>
void residual_forward(floatX* out, const floatX* inp1, const floatX* inp2, size_t n_elems) {
    parallel_ranges(n_elems, 1 << 14, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            store_some(out + begin + i, load_some(inp1 + begin + i, count) + load_some(inp2 + begin + i, count), count);
        });
    });
}

// dinp (rows, C) is added to: it already holds the gradient that came past the branch. dweight (C)
// and dbias (C) are written, or added to if add. Each may be null if it is not wanted. dout (rows,
// C); inp, mean and rstd are those of the forward pass.
template <class floatX, class floatG>
void layernorm_backward(floatX* dinp, floatG* dweight, floatG* dbias, const floatX* dout, const floatX* inp,
                        const floatX* weight, const float* mean, const float* rstd, int64_t rows, int64_t C, bool add) {
    const Range range(work::layernorm_backward(rows, C, sizeof(floatX)));
    // The rows are cut into pieces, whose number does not depend on the number of threads. One
    // thread does all of a piece and sums its dweight and dbias; then the sums of the pieces are
    // added in order.
    const int64_t piece_rows = ceil_div(rows, LAYERNORM_PIECES), pieces = ceil_div(rows, piece_rows);
    const bool wanted = dweight || dbias;
    std::vector<float> sums(wanted ? pieces * 2 * C : 0);
    parallel_for(pieces, [&](int64_t piece) {
        float *dw = sums.data() + piece * 2 * C, *db = dw + C;
        for (int64_t r = piece * piece_rows; r < std::min(rows, (piece + 1) * piece_rows); r++) {
            const float m = mean[r], s = rstd[r];
            const floatX *x = inp + r * C, *d = dout + r * C;
            vfloat g_sum[2] = {}, gx_sum[2] = {};
            for_each_vector(C, [&](size_t i, size_t count) {
                const int half = i / VEC_FLOATS % 2;
                const vfloat di = load_some(d + i, count), xhat = (load_some(x + i, count) - m) * s,
                             g = di * load_some(weight + i, count);
                g_sum[half] += g, gx_sum[half] += g * xhat;
                if (!wanted) return;
                store_some(dw + i, load_some(dw + i, count) + di * xhat, count);
                store_some(db + i, load_some(db + i, count) + di, count);
            });
            const float g_mean = sum(g_sum[0] + g_sum[1]) / C, gx_mean = sum(gx_sum[0] + gx_sum[1]) / C;
            for_each_vector(C, [&](size_t i, size_t count) {
                const vfloat g = load_some(d + i, count) * load_some(weight + i, count),
                             xhat = (load_some(x + i, count) - m) * s;
                store_some(dinp + r * C + i, load_some(dinp + r * C + i, count) + (g - g_mean - xhat * gx_mean) * s,
                           count);
            });
        }
    });
    if (!wanted) return;
    parallel_ranges(C, 4 * VEC_FLOATS, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            const size_t c = begin + i;
            vfloat dw{}, db{};
            for (int64_t p = 0; p < pieces; p++)
                dw += load_some(sums.data() + p * 2 * C + c, count),
                    db += load_some(sums.data() + (p * 2 + 1) * C + c, count);
            if (dweight) store_some(dweight + c, add ? load_some(dweight + c, count) + dw : dw, count);
            if (dbias) store_some(dbias + c, add ? load_some(dbias + c, count) + db : db, count);
        });
    });
}
