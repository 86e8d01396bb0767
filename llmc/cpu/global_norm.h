// The global norm of the gradient, sqrt(sum over all parameters of g^2), which clipping compares
// with its limit (Pascanu et al. 2013, arXiv:1211.5063).
//
// Memory-bound: reads each value once. Each piece is read at four positions in turn, because
// several streams get more bandwidth out of the memory than one. Pieces have a fixed size; each is
// summed in fp32 lanes, and the sums of the pieces are added in order in fp64. So the result does
// not depend on the number of threads.
#pragma once
#include <vector>
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"

// The sum of the squares of grads (n_elems).
template <class floatX>
double global_norm_squared(const floatX* grads, size_t n_elems) {
    const Range range(work::gradient_norm(n_elems, sizeof(floatX)));
    constexpr int64_t ELEMS_AHEAD = 1024;
    const int64_t grain = 1 << 16;
    std::vector<double> pieces(ceil_div(n_elems, grain));
    parallel_ranges(n_elems, grain, [&](int64_t begin, int64_t end) {
        vfloat total[4] = {};
        const int64_t quarter = (end - begin) / (4 * VEC_FLOATS) * VEC_FLOATS;
        for (int64_t i = begin; i < begin + quarter; i += VEC_FLOATS)
            for (int j = 0; j < 4; j++) {
                const floatX* at = grads + i + j * quarter;
                __builtin_prefetch(at + ELEMS_AHEAD);
                total[j] += load(at) * load(at);
            }
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
