// Optimizers that keep no m or v of every parameter, but of a matrix (rows, cols) one value for
// each row and one for each column: its factors. An estimate of the squares of an element's
// gradients is made from the two. Of a vector every element has a value of its own. With g the
// gradient times grad_scale, R and C the factors of element (i, j):
//
//     Adafactor   R_i = R_i + share (mean over j of g_ij^2 - R_i)             share = t^-0.8
//                 C_j = C_j + share (mean over i of g_ij^2 - C_j)
//                 v = R_i C_j / max(mean of R, eps1)                          of a vector: v = C_j
//                 d = g / sqrt(max(v, eps1^2))                                eps1 = 2^-23
//                 p = (1 - lr decay) p - scale d                              scale: see AdafactorRule
//
//     SM3         v = min(R_i, C_j) + g^2                                     of a vector: v = C_j + g^2
//                 R_i = max over j of v_ij,   C_j = max over i of v_ij
//                 d = g / sqrt(v), 0 where v is 0
//                 p = (1 - lr decay) p - lr d
//
// Adafactor: Shazeer & Stern 2018, arXiv:1804.04235, with the constants of torch.optim.Adafactor.
// SM3: Anil et al. 2019, arXiv:1901.11150, SM3-II.
//
// An update has the steps of whole_tensors.h and two more. Each process collects the sums or maxima
// over rows and columns of its slice of a bucket; from those of all processes, in the order of
// ranks, all compute the same new factors. In ZeRO stage 0 each process collects from its slice as
// well, though it has the whole gradient: so both stages have the same bits. Adafactor's directions
// need the new factors, those of SM3 the old ones.
//
// The padding of the vocabulary does not count as rows; its factors stay 0.
#pragma once
#include "llmc/optim/whole_tensors.h"

// Elements first to end of a tensor, as a matrix; a vector is one row.
struct MatrixPart {
    int64_t rows, cols;  // of the whole tensor
    int64_t first, end;
    int64_t row_factors;  // those of the rows, which those of the columns follow; 0 if it is a vector

    int64_t factors() const { return row_factors + cols; }
};
inline MatrixPart matrix_part(const TensorPart& part, const GPT2Config& c) {
    const int64_t cols = dimension(TENSORS[part.tensor].cols, c);
    return {real_rows(part.tensor, c), cols, part.first, part.end, factor_elems(KEEP_FACTORED, part.tensor, c) - cols};
}

// Calls f with the optimizer as a std::integral_constant, if its state is factored.
template <class F>
void with_factored(Optimizer optimizer, F f) {
    with_direction(optimizer, [&](auto constant) {
        if constexpr (OPTIMIZERS[constant.value].keeps.factors == KEEP_FACTORED) f(constant);
    });
}

// The most factors of one bucket.
inline int64_t most_factors(const StateLayout& factors) {
    return std::max(factors.bucket_elems(0), factors.bucket_elems(factors.parameters->config.L));
}
// Whether an optimizer's directions need the factors as they were before the update.
HOST_DEVICE constexpr bool needs_old_factors(Optimizer optimizer) { return optimizer == SM3; }
