// What loss to expect of a model with N parameters after D tokens, from runs on the bytes of Shakespeare
// (dev/scaling.py, which writes the table; dev/course/35-scaling.md).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

// L(N, D) = E + A / N^alpha + B / D^beta in nats a byte (Hoffmann et al. 2022, equation 2)
struct LossFit {
    double E, A, alpha, B, beta;
    double at(double N, double D) const { return E + A / std::pow(N, alpha) + B / std::pow(D, beta); }
};

// fits begin
constexpr LossFit LOSS_FITS[] = {
    {1, 1, 1, 1, 1},
};
constexpr double LOSS_FIT_SPREAD = 0;
constexpr int LOSS_FIT_RUNS = 0;
constexpr double LOSS_FIT_MOST_N = 0, LOSS_FIT_MOST_D = 0;
constexpr double LOSS_FIT_LEAST_D = 0;
constexpr const char* LOSS_FIT_DATE = "";
// fits end
constexpr int64_t LOSS_FIT_VOCABULARY = 257;  // bytes and the end of a text

// The loss by the fit of all runs; lowest and highest of the fits, with the spread of runs around theirs.
struct ExpectedLoss {
    double loss, low, high;
};
inline ExpectedLoss expected_loss(double N, double D) {
    ExpectedLoss e{LOSS_FITS[0].at(N, D), INFINITY, 0};
    for (const LossFit& fit : LOSS_FITS)
        e.low = std::min(e.low, fit.at(N, D)), e.high = std::max(e.high, fit.at(N, D));
    return {e.loss, e.low * (1 - LOSS_FIT_SPREAD), e.high * (1 + LOSS_FIT_SPREAD)};
}
