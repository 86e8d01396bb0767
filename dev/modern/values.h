// Value residuals (Zhou et al. 2024, arXiv:2410.17897; the learned share is modded-nanoGPT's): the
// values of every later layer are mixed with those of the first, which are nearest to the tokens.
// With the layer's own values v, those of the first layer f, and one learned share s of the layer:
//
//     out    = v + s (f - v)
//
// Backward:
//
//     Dv     = (1 - s) Dout
//     Df     = s Dout, summed over layers
//     Ds     = sum over all values of Dout (f - v)
//
// s begins at 1/2. Memory-bound.
#pragma once
#include "dev/modern/rmsnorm.h"

template <class floatX>
void mix_values_forward(floatX* qkv, floatX* raw, const floatX* first, const floatX* share, int64_t rows,
                        const Heads& heads) {
    const int64_t row = heads.qkv_row(), n = heads.NKV * heads.HS, at = row - n;
    const float s = (float)*share;
    const Range range(KernelWork{{"mix values"}, 0, 4.0 * rows * n * sizeof(floatX)});
    parallel_ranges(rows, RMSNORM_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            floatX *out = qkv + r * row + at, *kept = raw + r * n;
            const floatX* f = first + r * row + at;
            for_each_vector(n, [&](size_t i, size_t count) {
                const vfloat v = load_some(out + i, count);
                store_some(kept + i, v, count);
                store_some(out + i, v + s * (load_some(f + i, count) - v), count);
            });
        }
    });
}
template <class floatX>
void mix_values_backward(floatX* dqkv, float* dfirst, float* dshare, const floatX* raw, const floatX* first,
                         const floatX* share, int64_t rows, const Heads& heads, bool add) {
    const int64_t row = heads.qkv_row(), n = heads.NKV * heads.HS, at = row - n;
    const float s = (float)*share;
    const Range range(KernelWork{{"mix values backward"}, 0, rows * n * (4.0 * sizeof(floatX) + 8)});
    sum_in_pieces(dshare, 1, rows, add, [&](int64_t r, float* sums) {
        floatX* d = dqkv + r * row + at;
        const floatX *f = first + r * row + at, *kept = raw + r * n;
        float* to = dfirst + r * n;
        *sums += row_sum(n, [&](size_t i, size_t count) {
            const vfloat dout = load_some(d + i, count);
            store_some(to + i, load_some(to + i, count) + s * dout, count);
            store_some(d + i, (1 - s) * dout, count);
            return dout * (load_some(f + i, count) - load_some(kept + i, count));
        });
    });
}
template <class floatX>
void add_to_values(floatX* dqkv, const float* dfirst, int64_t rows, const Heads& heads) {
    const int64_t row = heads.qkv_row(), n = heads.NKV * heads.HS, at = row - n;
    parallel_ranges(rows, RMSNORM_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            floatX* d = dqkv + r * row + at;
            for_each_vector(n, [&](size_t i, size_t count) {
                store_some(d + i, load_some(d + i, count) + load_some(dfirst + r * n + i, count), count);
            });
        }
    });
}
