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
// |G_b|^2 is that of the first micro-batch, averaged over the processes. With a loss mask, b and B
// are the tokens that count. With a mask or during a batch warmup (warmup.h), b may differ between
// processes, and 1/b is averaged as well: the mean of |G_b|^2 is expected to be |G|^2 + tr(S) times
// the mean of 1/b.
#pragma once
#include <cmath>
#include <vector>

struct NoiseEstimate {
    double noise, signal;
};

// The first micro-batch of a process: how many of its tokens count, and the squared norm of its
// gradient as micro-steps add it up: the sum over its tokens, divided by all tokens of the step.
struct FirstGradient {
    double tokens, squares;
};

// Estimates noise and signal from one step. big_squares: the squared norm of the gradient of the
// mean over all `big` tokens of the step. The estimates are not finite if there is nothing to
// compare: no tokens, or all in one micro-batch.
inline NoiseEstimate noise_estimate(const std::vector<FirstGradient>& firsts, double big_squares, double big) {
    double squares = 0, inverses = 0, n = 0;
    for (const FirstGradient& first : firsts) {
        if (first.tokens == 0) continue;
        const double scale = big / first.tokens;
        squares += first.squares * scale * scale, inverses += 1 / first.tokens, n++;
    }
    const double small_squares = squares / n, per_small = inverses / n, per_big = 1 / big;
    return {(small_squares - big_squares) / (per_small - per_big),
            (per_small * big_squares - per_big * small_squares) / (per_small - per_big)};
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
