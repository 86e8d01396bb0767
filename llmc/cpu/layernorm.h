// Layer normalisation (Ba et al. 2016, arXiv:1607.06450), over the C channels of each row:
//
//     mean = sum(x)/C,   var = sum((x - mean)^2)/C,   rstd = 1/sqrt(var + 1e-5),   xhat = (x - mean) rstd,   out = xhat w + b
//
//     Dw = sum over rows of Dout xhat,   Db = sum over rows of Dout,   and with g = Dout w
//     Dx = rstd (g - sum(g)/C - xhat sum(g xhat)/C)
//
// Memory-bound. In GPT-2 a layer norm mostly follows the sum that joins a branch to the residual stream, so the two are one pass:
// the row is still in the first-level cache when it is normalised. Forward moves 2 values an element, 4 with the sum; backward 7.
#pragma once
#include <cmath>
#include "llmc/constants.h"
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

constexpr int64_t LAYERNORM_GRAIN = 8;  // rows a thread takes at a time

template <class floatX>
VEC_INLINE void layernorm_row(floatX* out, float* mean, float* rstd, const floatX* x, const floatX* weight, const floatX* bias, int64_t C) {
    vfloat total{}, squares{};
    for_each_vector(C, [&](size_t i, size_t count) { total += load_some(x + i, count); });
    const float m = sum(total) / C;
    for_each_vector(C, [&](size_t i, size_t count) {
        vfloat d = load_some(x + i, count) - m;
        if (count < VEC_FLOATS) { vfloat kept{}; memcpy(&kept, &d, count * sizeof(float)); d = kept; }
        squares += d * d;
    });
    const float r = 1.0f / std::sqrt(sum(squares) / C + LAYERNORM_EPS);
    for_each_vector(C, [&](size_t i, size_t count) { store_some(out + i, (load_some(x + i, count) - m) * r * load_some(weight + i, count) + load_some(bias + i, count), count); });
    *mean = m, *rstd = r;
}

// out (rows, C), mean (rows) and rstd (rows) are written, from inp (rows, C), weight (C), bias (C).
template <class floatX>
void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight, const floatX* bias, int64_t rows, int64_t C) {
    parallel_ranges(rows, LAYERNORM_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) layernorm_row(out + r * C, mean + r, rstd + r, inp + r * C, weight, bias, C);
    });
}

// residual (rows, C) = inp1 (rows, C) + inp2 (rows, C), then out, mean, rstd as above from residual. residual may be inp1 or inp2.
template <class floatX>
void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int64_t rows,
                                int64_t C) {
    parallel_ranges(rows, LAYERNORM_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            for_each_vector(C, [&](size_t i, size_t count) { store_some(residual + r * C + i, load_some(inp1 + r * C + i, count) + load_some(inp2 + r * C + i, count), count); });
            layernorm_row(out + r * C, mean + r, rstd + r, residual + r * C, weight, bias, C);
        }
    });
}

// out (n_elems) = inp1 + inp2: the sum alone, where no layer norm follows. out may be inp1 or inp2.
template <class floatX>
void residual_forward(floatX* out, const floatX* inp1, const floatX* inp2, size_t n_elems) {
    parallel_ranges(n_elems, 1 << 14, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) { store_some(out + begin + i, load_some(inp1 + begin + i, count) + load_some(inp2 + begin + i, count), count); });
    });
}

// dinp (rows, C) is added to: the gradient that came past the branch is already there. dweight (C) and dbias (C) are written, or added to
// if add. dout (rows, C); inp, mean, rstd as in the forward pass.
template <class floatX, class floatG>
void layernorm_backward(floatX* dinp, floatG* dweight, floatG* dbias, const floatX* dout, const floatX* inp, const floatX* weight, const float* mean, const float* rstd, int64_t rows, int64_t C,
                        bool add) {
    parallel_ranges(C, 4 * VEC_FLOATS, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            const size_t c = begin + i;
            vfloat dw{}, db{};
            for (int64_t r = 0; r < rows; r++) {
                vfloat d = load_some(dout + r * C + c, count);
                dw += d * ((load_some(inp + r * C + c, count) - mean[r]) * rstd[r]);
                db += d;
            }
            store_some(dweight + c, add ? load_some(dweight + c, count) + dw : dw, count);
            store_some(dbias + c, add ? load_some(dbias + c, count) + db : db, count);
        });
    });
    parallel_ranges(rows, LAYERNORM_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            const float m = mean[r], s = rstd[r];
            vfloat g_sum{}, gx_sum{};
            for_each_vector(C, [&](size_t i, size_t count) {
                vfloat g = load_some(dout + r * C + i, count) * load_some(weight + i, count);
                g_sum += g;
                gx_sum += g * ((load_some(inp + r * C + i, count) - m) * s);
            });
            const float g_mean = sum(g_sum) / C, gx_mean = sum(gx_sum) / C;
            for_each_vector(C, [&](size_t i, size_t count) {
                vfloat g = load_some(dout + r * C + i, count) * load_some(weight + i, count), xhat = (load_some(inp + r * C + i, count) - m) * s;
                store_some(dinp + r * C + i, load_some(dinp + r * C + i, count) + (g - g_mean - xhat * gx_mean) * s, count);
            });
        }
    });
}
