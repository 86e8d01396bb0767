// Choosing the next token from the logits: softmax at a temperature, restricted to the k likeliest
// tokens (top-k; Fan et al. 2018, arXiv:1805.04833) and to the smallest set of likeliest ones that
// holds at least p of the probability (top-p; Holtzman et al. 2020, arXiv:1904.09751), in this
// order. Temperature 0 always chooses the likeliest token (greedy), the limit of low temperatures.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

// e^x for x <= 0, to 1e-15 of it; 0 below -700. With x = n log 2 + f, |f| <= log(2) / 2, it is 2^n
// e^f: n goes into the bits of the exponent, e^f is a Taylor polynomial. Unlike std::exp, it has no
// branch, so compilers compute several at once: with 50257 of them per token that is felt.
inline double exp_nonpositive(double x) {
    const double ROUND = 6755399441055744.0;  // 1.5 * 2^52: what is added to it is rounded to a whole number
    const double within = x < -700.0 ? -700.0 : x, rounded = within * 1.4426950408889634 + ROUND, n = rounded - ROUND;
    const double f = (within - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
    double power = 1.0;
    for (int k = 12; k > 0; k--) power = 1.0 + power * f * (1.0 / k);
    uint64_t bits;
    memcpy(&bits, &rounded, 8);
    const uint64_t exponent = (bits + 1023) << 52;
    double scale;
    memcpy(&scale, &exponent, 8);
    return x < -700.0 ? 0.0 : power * scale;
}

// The largest of n logits. 16 maxima side by side: one would wait for each comparison.
inline float largest(const float* logits, int64_t n) {
    constexpr int64_t LANES = 16;
    float lanes[LANES];
    std::fill(lanes, lanes + LANES, logits[0]);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int64_t j = 0; j < LANES; j++) lanes[j] = std::max(lanes[j], logits[i + j]);
    for (; i < n; i++) lanes[0] = std::max(lanes[0], logits[i]);
    return *std::max_element(lanes, lanes + LANES);
}

// Writes the probabilities of V tokens to probs (V). top_k 0 and top_p 1 are off. Among equal
// logits the lowest id counts as the likeliest.
inline void sampling_probabilities(std::vector<double>& probs, const float* logits, int64_t V, double temperature,
                                   int64_t top_k, double top_p) {
    if (temperature == 0) {
        probs.assign(V, 0.0);
        probs[std::max_element(logits, logits + V) - logits] = 1.0;
        return;
    }
    const float highest = largest(logits, V);
    probs.resize(V);
    for (int64_t i = 0; i < V; i++) probs[i] = exp_nonpositive(((double)logits[i] - highest) / temperature);
    double sums[8] = {};  // side by side: one sum would wait for each addition
    const int64_t whole = V / 8 * 8;
    for (int64_t i = 0; i < whole; i += 8)
        for (int64_t j = 0; j < 8; j++) sums[j] += probs[i + j];
    const double total = std::accumulate(sums, sums + 8, std::accumulate(probs.begin() + whole, probs.end(), 0.0));
    for (double& p : probs) p /= total;
    if ((top_k == 0 || top_k >= V) && top_p >= 1.0) return;
    // The order is needed only as far as tokens are kept: sorted piece by piece.
    const int64_t most = top_k > 0 ? std::min(top_k, V) : V;
    const auto likelier = [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    std::vector<int> order(V);
    std::iota(order.begin(), order.end(), 0);
    int64_t sorted = 0, kept = 0;
    const auto sort_first = [&](int64_t n) {
        std::partial_sort(order.begin() + sorted, order.begin() + n, order.end(), likelier);
        sorted = n;
    };
    double mass = 0, among_k = 1;
    if (most < V) {
        sort_first(most);
        among_k = 0;
        for (int64_t i = 0; i < most; i++) among_k += probs[order[i]];
    }
    while (kept < most && (top_p >= 1.0 || mass < top_p * among_k)) {
        if (kept == sorted) sort_first(std::min(most, std::max<int64_t>(64, 4 * sorted)));
        mass += probs[order[kept++]];
    }
    for (int64_t i = 0; i < kept; i++) probs[order[i]] /= mass;
    for (int64_t i = kept; i < V; i++) probs[order[i]] = 0.0;
}

// The token at which the running sum of probs passes coin, a uniform number in [0, 1).
inline int pick_token(const std::vector<double>& probs, double coin) {
    double running = 0;
    int last = 0;
    for (size_t i = 0; i < probs.size(); i++) {
        if (probs[i] <= 0) continue;
        running += probs[i];
        last = (int)i;
        if (coin < running) return last;
    }
    return last;  // by rounding, the sum may end just below 1
}
