// Muon for the matrices of the layers, by the rule and the kernels of the trainers
// (llmc/optim/muon.h): momentum, orthogonalised, then a step along it. A tensor of the table is one
// matrix: queries, keys and values together, gate and up together, as GPT-2's qkvw is.
#pragma once
#include "dev/modern/model.h"

namespace modern {

// Updates a matrix of layer l. Its gradients become directions.
template <class floatX>
void muon_update(Model& model, int tensor, int64_t l, UpdateConstants k, uint64_t seed) {
    const TensorShape shape = shape_of(tensor, model.config);
    const int64_t rows = shape.rows, cols = shape.cols, least = std::min(rows, cols), at = model.at(tensor, l);
    float *d = model.grads + at, *master = model.master ? model.master + at : nullptr, *no_v = nullptr;
    floatX* const weights = model.param<floatX>(tensor, l);
    floatX* const scratch = (floatX*)model.orthogonal;
    k.matrix = true;
    const SquareSums sums =
        kernels::directions_from_state(MUON, d, weights, master, model.m + at, no_v, shape.elems(), k);
    kernels::orthogonalize(
        d, rows, cols,
        OrthogonalScratch<floatX>{scratch, scratch + rows * cols, scratch + rows * cols + least * least});
    const UpdateConstants along = along_directions(k, direction_scale(MUON, sums, rows, cols, k));
    kernels::optimizer_update(MUON, weights, master, (void*)(model.m + at), (void*)no_v, d, shape.elems(), along, seed,
                              at);
}

}  // namespace modern
