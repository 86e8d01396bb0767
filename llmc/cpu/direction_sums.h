// The sums of squares of weights and directions of a part of a tensor (llmc/optim/directions.h).
#pragma once
#include <vector>
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"
#include "llmc/optim/directions.h"

// Calls piece(begin, end, weights, directions) on pieces of fixed size of n_elems elements; it adds
// squares to the latter two. The sums of the pieces are added in order in fp64, so that the number
// of threads changes no bit.
template <class Piece>
DirectionSums sum_pieces(int64_t n_elems, Piece piece) {
    const int64_t grain = 1 << 14;
    std::vector<DirectionSums> pieces(ceil_div(n_elems, grain));
    parallel_ranges(n_elems, grain, [&](int64_t begin, int64_t end) {
        vfloat weights{}, directions{};
        piece(begin, end, weights, directions);
        pieces[begin / grain] = {(double)sum(weights), (double)sum(directions)};
    });
    DirectionSums total{};
    for (const DirectionSums& sums : pieces) total.add(sums);
    return total;
}
