// What loss to expect of a model with N parameters after S tokens, from runs on the bytes of
// Shakespeare (dev/scaling.py, which writes the table; dev/course/34-scaling.md).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

// L(N, S) = E + A / N^alpha + B / S^beta in nats a byte (Hoffmann et al. 2022, equation 2)
struct LossFit {
    double E, A, alpha, B, beta;
    double at(double N, double S) const { return E + A / std::pow(N, alpha) + B / std::pow(S, beta); }
};

// fits begin
// 12 runs of 2026-11-25 by dev/scaling.py, the first of all, the others of runs drawn again.
constexpr LossFit LOSS_FITS[] = {
    {1.264, 13.463, 0.33589, 697.93, 0.50909},       {1.5345, 172.37, 0.60868, 1.2998e+05, 0.90543},
    {0.16154, 3.1942, 0.076544, 396.49, 0.4586},     {0.37142, 2.7659, 0.0624, 7.577e+06, 1.1809},
    {1.5015, 51.482, 0.48121, 3.596e+05, 0.97538},   {1.6058, 4581.9, 0.91956, 1.7325e+06, 1.097},
    {0.049787, 2.9791, 0.062254, 721.04, 0.50025},   {0.049827, 3.2581, 0.065908, 20296, 0.73552},
    {1.3154, 60.047, 0.482, 685.62, 0.50717},        {1.5447, 147.49, 0.59179, 4.2177e+05, 0.99239},
    {1.4073, 12.245, 0.3148, 4.8517e+08, 1.4636},    {0.98023, 4.4211, 0.18798, 435.86, 0.46506},
    {0.18755, 3.3079, 0.067345, 3.5564e+06, 1.1188}, {0.049787, 3.2638, 0.067272, 5509.8, 0.645},
    {1.3159, 7.5992, 0.25379, 1.0278e+07, 1.2021},   {1.5848, 154.14, 0.5923, 4.8517e+08, 1.4935},
    {1.3703, 4514.3, 0.96136, 82.586, 0.35015},
};
constexpr double LOSS_FIT_SPREAD = 0.0191;  // of runs around the fit, relative
constexpr int LOSS_FIT_RUNS = 12;
constexpr double LOSS_FIT_MOST_N = 2.48e+06;  // near the runs
constexpr double LOSS_FIT_MOST_S = 6.1e+07;
constexpr double LOSS_FIT_LEAST_S = 1.25e+06;
constexpr const char* LOSS_FIT_DATE = "2026-11-25";
// fits end
constexpr int64_t LOSS_FIT_VOCABULARY = 257;  // bytes and the end of a text

// The loss by the fit of all runs; lowest and highest of the fits, with the spread of runs around
// theirs.
struct ExpectedLoss {
    double loss, low, high;
};
inline ExpectedLoss expected_loss(double N, double S) {
    ExpectedLoss e{LOSS_FITS[0].at(N, S), INFINITY, 0};
    for (const LossFit& fit : LOSS_FITS) e.low = std::min(e.low, fit.at(N, S)), e.high = std::max(e.high, fit.at(N, S));
    return {e.loss, e.low * (1 - LOSS_FIT_SPREAD), e.high * (1 + LOSS_FIT_SPREAD)};
}
