// The global norm of the gradient, sqrt(sum over all parameters of g^2), which clipping compares
// with its limit (Pascanu et al. 2013, arXiv:1211.5063). Memory-bound: reads each value once, from
// four places in turn, since a core gets more out of the memory in several streams than in one.
// Pieces of fixed size are summed in fp32 lanes, the pieces in fp64 in order, so neither threads
// nor the size of the model move the result.
#pragma once
#include <vector>
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

// Sum of squares of grads (n_elems).
template <class floatX>
double global_norm_squared(const floatX* grads, size_t n_elems) {
    const int64_t grain = 1 << 14;
    std::vector<double> pieces(ceil_div(n_elems, grain));
    parallel_ranges(n_elems, grain, [&](int64_t begin, int64_t end) {
        vfloat total[4] = {};
        const int64_t quarter = (end - begin) / (4 * VEC_FLOATS) * VEC_FLOATS;
        for (int64_t i = begin; i < begin + quarter; i += VEC_FLOATS)
            for (int j = 0; j < 4; j++) total[j] += load(grads + i + j * quarter) * load(grads + i + j * quarter);
        const floatX* rest = grads + begin + 4 * quarter;
        for_each_vector(end - begin - 4 * quarter, [&](size_t k, size_t count) {
            total[0] += load_some(rest + k, count) * load_some(rest + k, count);
        });
        pieces[begin / grain] = (double)sum((total[0] + total[1]) + (total[2] + total[3]));
    });
    double total = 0;
    for (double piece : pieces) total += piece;
    return total;
}
