// What the CPU's and the GPU's orthogonalisation share (cpu/orthogonalize.h).
#pragma once

constexpr int NEWTON_SCHULZ_STEPS = 5;
constexpr float NEWTON_SCHULZ_A = 3.4445f, NEWTON_SCHULZ_B = -4.7750f, NEWTON_SCHULZ_C = 2.0315f;
constexpr double NEWTON_SCHULZ_EPS = 1e-7;  // the least norm by which a matrix is divided
static_assert(NEWTON_SCHULZ_STEPS % 2 == 1, "the last product writes to where the matrix was, from scratch memory");

// Scratch memory for a matrix rows x cols, n the smaller of the two.
template <class floatX>
struct OrthogonalScratch {
    floatX *x, *gram, *polynomial;  // rows * cols, n * n, n * n
};
