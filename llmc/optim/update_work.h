// What the update of a step computes and moves, by optimizer, in the manner of trace/work.h.
#pragma once
#include "llmc/optim/optimizers.h"
#include "llmc/trace/work.h"

namespace work {
// Bytes per parameter of reading and writing m or v, where every parameter has one. In 8 bits, 256
// values have a scale of 4 bytes.
inline double state_traffic(Kept kept) {
    return 2 * (kept == KEEP_ALL ? 4 : kept == KEEP_BF16 ? 2 : kept == KEEP_8BIT ? 260.0 / 256 : 0);
}
inline KernelWork update(const OptimizerInfo& o, double elems, bool master, double x, double g) {
    const double states = o.whole_tensors ? 0 : state_traffic(o.keeps.m) + state_traffic(o.keeps.v);
    return {{o.name}, 0, elems * (states + g + (master ? 8 + x : 2 * x))};
}
// Sums or maxima over rows and columns of fp32 gradients.
inline KernelWork collect_factors(double elems) { return {{"collect factors"}, 0, elems * 4}; }
// The first step of optimizers with directions: weights (p bytes each) are read, fp32 gradients, m,
// and v of v_elems elements, read and written.
inline KernelWork directions(const OptimizerInfo& o, double elems, double v_elems, double p) {
    return {{"directions"}, 0, elems * (state_traffic(o.keeps.m) + 8 + p) + v_elems * state_traffic(KEEP_ALL)};
}
}  // namespace work
