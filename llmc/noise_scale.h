// The gradient noise scale: the batch size, in tokens, up to which larger batches pay off
// (McCandlish et al. 2018, arXiv:1812.06162, section 2.2 and appendix A.1). With the gradient of
// one micro-batch of b tokens, G_b, and of the whole step of B tokens, G_B, the estimates
//
//     signal = (B |G_B|^2 - b |G_b|^2) / (B - b)      of |G|^2, the true gradient's
//     noise  = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)      of tr(S), the variance per token
//
// have no bias, but one step's are far off. Their running means over steps give
//
//     noise scale = mean noise / mean signal          in tokens
//
// |G_b|^2 is that of the first micro-batch, averaged over the processes. A mask of tokens is not
// taken into account: micro-batches count as equally large.
#pragma once
#include <cmath>
#include <cstdint>

struct NoiseEstimate {
    double noise, signal;
};

// small_squares: the squared norm of the gradient of `small` tokens, divided by `big`, not `small`:
// as it is summed over micro-steps. big_squares: that of the mean over all `big` tokens.
inline NoiseEstimate noise_estimate(double small_squares, double big_squares, double small, double big) {
    const double small_mean = small_squares * (big / small) * (big / small);
    return {(small_mean - big_squares) / (1 / small - 1 / big),
            (big * big_squares - small * small_mean) / (big - small)};
}

// Running means of both estimates, over about 1 / (1 - NOISE_DECAY) steps. They begin at 0; what
// that takes off cancels in their ratio.
constexpr double NOISE_DECAY = 0.99;
struct NoiseMeans {
    double noise = 0, signal = 0;

    void add(const NoiseEstimate& e) {
        noise = NOISE_DECAY * noise + (1 - NOISE_DECAY) * e.noise;
        signal = NOISE_DECAY * signal + (1 - NOISE_DECAY) * e.signal;
    }
    // NAN while one of the means is not positive: too few steps for an estimate.
    double scale() const { return noise > 0 && signal > 0 ? noise / signal : NAN; }
};
