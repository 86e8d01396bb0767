// The factors of a part of a tensor, and the directions that follow from them
// (llmc/optim/factors.h).
#pragma once
#include "llmc/cpu/directions.h"
#include "llmc/optim/factors.h"

// A matrix is cut into tiles of whole rows, at most so many, whose number follows from its shape
// alone: threads collect from one tile each, then the columns' results of the tiles are put
// together in order.
constexpr int64_t FACTOR_TILES = 64;
inline int64_t factor_tile_rows(const MatrixPart& part) {
    return std::max(ceil_div(1 << 15, part.cols), ceil_div(part.rows, FACTOR_TILES));
}
// Elements of scratch memory: of the largest bucket what each process has collected; and a row of
// columns for each tile. 0 where the optimizer's state is not factored.
inline int64_t collected_elems(const ParameterLayout& layout, Optimizer optimizer) {
    const StateLayout factors = factor_layout(optimizer, layout);
    if (factors.kept != KEEP_FACTORED) return 0;
    return layout.processes * most_factors(factors) + FACTOR_TILES * 4 * layout.config.C;
}

template <class Rule, class V>
VEC_INLINE V together(V a, V b) {
    if constexpr (Rule::SUMS) return a + b;
    else return Lanes<V>::larger(a, b);
}
template <class Rule>
VEC_INLINE float together(vfloat v) {
    if constexpr (Rule::SUMS) return sum(v);
    else return max(v);
}

// Collects from n elements of a row, whose factor is `row`: into of_cols (n), and returns what the
// row has.
template <class Rule>
float collect_row(float* of_cols, const float* grads, float row, const float* cols, int64_t n, float grad_scale) {
    vfloat of_row{};
    for_each_vector(n, [&](size_t i, size_t count) {
        const vfloat g = load_some(grads + i, count) * grad_scale;
        const vfloat x = Rule::contribution(g, broadcast(row), load_some(cols + i, count));
        store_some(of_cols + i, together<Rule>(load_some(of_cols + i, count), x), count);
        of_row = together<Rule>(of_row, x);
    });
    return together<Rule>(of_row);
}
// collected (part.factors()) = the sums or maxima over rows and columns of grads, which are the
// part's elements. factors are the tensor's; tiles is scratch memory, FACTOR_TILES * part.cols.
template <class Rule>
void collect_by(float* collected, const float* grads, const float* factors, const MatrixPart& part, float grad_scale,
                float* tiles) {
    std::fill(collected, collected + part.factors(), 0.0f);
    if (part.first == part.end) return;
    float* const of_cols = collected + part.row_factors;
    const float* const cols = factors + part.row_factors;
    const int64_t tile_elems = factor_tile_rows(part) * part.cols;
    const int64_t first_tile = part.first / tile_elems, n_tiles = ceil_div(part.end, tile_elems) - first_tile;
    parallel_for(n_tiles, [&](int64_t t) {
        float* const of_tile = tiles + t * part.cols;
        std::fill(of_tile, of_tile + part.cols, 0.0f);
        const int64_t end = std::min((first_tile + t + 1) * tile_elems, part.end);
        for (int64_t i = std::max((first_tile + t) * tile_elems, part.first); i < end;) {
            const int64_t row = i / part.cols, col = i % part.cols, n = std::min(part.cols - col, end - i);
            const float factor = part.row_factors ? factors[row] : Rule::NO_ROW;
            const float of_row =
                collect_row<Rule>(of_tile + col, grads + i - part.first, factor, cols + col, n, grad_scale);
            if (part.row_factors) collected[row] = of_row;
            i += n;
        }
    });
    parallel_ranges(part.cols, 1 << 10, [&](int64_t begin, int64_t end) {
        for (int64_t t = 0; t < n_tiles; t++)
            for_each_vector(end - begin, [&](size_t i, size_t count) {
                const vfloat x = together<Rule>(load_some(of_cols + begin + i, count),
                                                load_some(tiles + t * part.cols + begin + i, count));
                store_some(of_cols + begin + i, x, count);
            });
    });
}
inline void collect_factors(Optimizer optimizer, float* collected, const float* grads, const float* factors,
                            const MatrixPart& part, const UpdateConstants& k, float* tiles) {
    const Range range(work::collect_factors(part.end - part.first));
    with_factored(optimizer, [&](auto constant) {
        collect_by<RuleOf<constant.value>>(collected, grads, factors, part, k.grad_scale, tiles);
    });
}

// The new factors of a tensor, from what each of the processes has collected, `stride` elements
// apart.
template <class Rule>
void renew_by(float* factors, const float* collected, int64_t processes, int64_t stride, const MatrixPart& tensor,
              int64_t t) {
    const float share = Rule::newest_share(t);
    for (int64_t i = 0; i < tensor.factors(); i++) {
        float all = collected[i];
        for (int64_t r = 1; r < processes; r++) all = together<Rule>(all, collected[r * stride + i]);
        const int64_t count = i < tensor.row_factors ? tensor.cols : tensor.rows;
        factors[i] = Rule::renewed(factors[i], all, (float)count, share);
    }
}
inline void renew_factors(Optimizer optimizer, float* factors, const float* collected, int64_t processes,
                          int64_t stride, const MatrixPart& tensor, int64_t t) {
    with_factored(optimizer, [&](auto constant) {
        renew_by<RuleOf<constant.value>>(factors, collected, processes, stride, tensor, t);
    });
}

// As directions() of directions.h, for a part of a tensor with these factors.
template <class Rule, class floatX>
SquareSums directions_from_factors_by(float* grads, const floatX* params, const float* master, const float* factors,
                                      const MatrixPart& part, const UpdateConstants& constants) {
    const RuleConstants k = rule_constants(constants, true);
    const auto factor = [&](size_t i, size_t count) { return load_some(factors + i, count); };
    const float scale = part.row_factors ? Rule::row_scale(row_sum(part.rows, factor) / (float)part.rows) : 1;
    const auto directions_of_row = [&](int64_t at, int64_t row, int64_t col, int64_t n, vfloat& weights,
                                       vfloat& directions) {
        vfloat of_row = broadcast(part.row_factors ? factors[row] * scale : Rule::NO_ROW);
        for_each_vector(n, [&](size_t i, size_t count) {
            vfloat of_col = load_some(factors + part.row_factors + col + i, count);
            const vfloat g = load_some(grads + at + i, count) * constants.grad_scale;
            const vfloat p = master ? load_some(master + at + i, count) : load_some(params + at + i, count);
            const vfloat d = Rule::direction(p, of_row, of_col, g, k);
            store_some(grads + at + i, d, count);
            weights += p * p, directions += d * d;
        });
    };
    return sum_pieces(part.end - part.first, [&](int64_t begin, int64_t end, vfloat& weights, vfloat& directions) {
        for (int64_t at = begin; at < end;) {
            const int64_t row = (part.first + at) / part.cols, col = (part.first + at) % part.cols;
            const int64_t n = std::min(part.cols - col, end - at);
            directions_of_row(at, row, col, n, weights, directions);
            at += n;
        }
    });
}
template <class floatX>
SquareSums directions_from_factors(Optimizer optimizer, float* grads, const floatX* params, const float* master,
                                   const float* factors, const MatrixPart& part, const UpdateConstants& k) {
    const Range range(work::directions(OPTIMIZERS[optimizer], part.end - part.first, 0, master ? 4 : sizeof(floatX)));
    SquareSums sums{};
    with_factored(optimizer, [&](auto constant) {
        sums = directions_from_factors_by<RuleOf<constant.value>>(grads, params, master, factors, part, k);
    });
    return sums;
}
