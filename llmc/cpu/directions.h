// The directions of a part of a tensor (llmc/optim/whole_tensors.h), from its gradients, m and v;
// factors.h has those of optimizers that keep factors instead.
#pragma once
#include <vector>
#include "llmc/cpu/adamw.h"
#include "llmc/optim/whole_tensors.h"

// Calls piece(begin, end, weights, directions) on pieces of fixed size of n_elems elements; it adds
// squares to the latter two. The sums of the pieces are added in order in fp64, so that the number
// of threads changes no bit.
template <class Piece>
SquareSums sum_pieces(int64_t n_elems, Piece piece) {
    const int64_t grain = 1 << 14;
    std::vector<SquareSums> pieces(ceil_div(n_elems, grain));
    parallel_ranges(n_elems, grain, [&](int64_t begin, int64_t end) {
        vfloat weights{}, directions{};
        piece(begin, end, weights, directions);
        pieces[begin / grain] = {(double)sum(weights), (double)sum(directions)};
    });
    SquareSums total{};
    for (const SquareSums& sums : pieces) total.add(sums);
    return total;
}

// Turns grads (n_elems), a part of a tensor, into directions by the rule of an optimizer, and
// updates m and v; these and master are as in optimizer_update(). Returns the sums of squares of
// weights and directions.
template <class Rule, class floatX>
SquareSums directions_from_state_by(float* grads, const floatX* params, const float* master, float* m, float* v,
                                    int64_t n_elems, const UpdateConstants& constants) {
    const RuleConstants k = rule_constants(constants, true);
    return sum_pieces(n_elems, [&](int64_t begin, int64_t end, vfloat& weights, vfloat& directions) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            i += begin;
            const vfloat g = load_some(grads + i, count) * constants.grad_scale;
            const vfloat p = master ? load_some(master + i, count) : load_some(params + i, count);
            vfloat mi = m ? load_some(m + i, count) : vfloat{}, vi = v ? load_some(v + i, count) : vfloat{};
            const vfloat d = Rule::direction(p, mi, vi, g, k);
            if (m) store_some(m + i, mi, count);
            if (v) store_some(v + i, vi, count);
            store_some(grads + i, d, count);
            weights += p * p, directions += d * d;
        });
    });
}

template <class floatX>
SquareSums directions_from_state(Optimizer optimizer, float* grads, const floatX* params, const float* master, float* m,
                                 float* v, int64_t n_elems, const UpdateConstants& k) {
    const Range range(work::directions(OPTIMIZERS[optimizer], n_elems, v ? n_elems : 0, master ? 4 : sizeof(floatX)));
    SquareSums sums{};
    with_direction(optimizer, [&](auto constant) {
        sums = directions_from_state_by<RuleOf<constant.value>>(grads, params, master, m, v, n_elems, k);
    });
    return sums;
}
