// The directions of a part of a tensor (llmc/optim/whole_tensors.h), from its gradients, m and v;
// factors.h has those of optimizers that keep factors instead.
#pragma once
#include <vector>
#include "llmc/cpu/optimizer_passes.h"
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

// The pass of a rule over n elements: gradients, times grad_scale, become directions, and m and v
// are updated, null if the optimizer does not keep them. Squares of the weights p and of directions
// are added to the sums of each lane.
typedef void DirectionPass(float* grads, const float* p, float* m, float* v, size_t n, float grad_scale,
                           const RuleConstants& k, vfloat& weights, vfloat& directions);
template <class Rule>
void direction_pass(float* grads, const float* p, float* m, float* v, size_t n, float grad_scale,
                    const RuleConstants& k, vfloat& weights, vfloat& directions) {
    for_each_vector(n, [&](size_t i, size_t count) {
        const vfloat g = load_some(grads + i, count) * grad_scale, pi = load_some(p + i, count);
        vfloat mi = m ? load_some(m + i, count) : vfloat{}, vi = v ? load_some(v + i, count) : vfloat{};
        const vfloat d = Rule::direction(pi, mi, vi, g, k);
        if (m) store_some(m + i, mi, count);
        if (v) store_some(v + i, vi, count);
        store_some(grads + i, d, count);
        weights += pi * pi, directions += d * d;
    });
}

// Turns grads (n_elems), a part of a tensor, into directions by the rule of an optimizer, and
// updates m and v; these and master are as in optimizer_update(). Returns the sums of squares of
// weights and directions.
inline SquareSums directions_by(DirectionPass* pass, float* grads, NumbersAt params, float* m, float* v,
                                int64_t n_elems, const UpdateConstants& constants) {
    const RuleConstants k = rule_constants(constants, true);
    return sum_pieces(n_elems, [&](int64_t begin, int64_t end, vfloat& weights, vfloat& directions) {
        for (int64_t i = begin; i < end; i += STATE_BLOCK_ELEMS) {
            const int64_t n = std::min<int64_t>(STATE_BLOCK_ELEMS, end - i);
            BlockValues converted;
            const float* const p = values_of(params.from(i), converted, n);
            pass(grads + i, p, m ? m + i : nullptr, v ? v + i : nullptr, n, constants.grad_scale, k, weights,
                 directions);
        }
    });
}
template <class floatX>
SquareSums directions_from_state(Optimizer optimizer, float* grads, const floatX* params, const float* master, float* m,
                                 float* v, int64_t n_elems, const UpdateConstants& constants) {
    const Range range(work::directions(OPTIMIZERS[optimizer], n_elems, v ? n_elems : 0, master ? 4 : sizeof(floatX)));
    DirectionPass* pass = nullptr;
    with_direction(optimizer, [&](auto constant) { pass = direction_pass<RuleOf<constant.value>>; });
    const NumbersAt weights = master ? NumbersAt(master) : NumbersAt(params);
    return directions_by(pass, grads, weights, m, v, n_elems, constants);
}
