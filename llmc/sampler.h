// Choosing the next token from the logits: softmax at a temperature, restricted to the k likeliest
// tokens (top-k; Fan et al. 2018, arXiv:1805.04833) and to the smallest set of likeliest ones that
// holds at least p of the probability (top-p; Holtzman et al. 2020, arXiv:1904.09751), in this
// order. Temperature 0 always chooses the likeliest token (greedy), the limit of low temperatures.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

// Writes the probabilities of V tokens to probs (V). top_k 0 and top_p 1 are off. Among equal
// logits the lowest id counts as the likeliest.
inline void sampling_probabilities(std::vector<double>& probs, const float* logits, int64_t V, double temperature,
                                   int64_t top_k, double top_p) {
    const float* likeliest = std::max_element(logits, logits + V);
    const float highest = *likeliest;
    probs.assign(V, 0.0);
    if (temperature == 0) {
        probs[likeliest - logits] = 1.0;
        return;
    }
    double total = 0;
    for (int64_t i = 0; i < V; i++) total += probs[i] = std::exp(((double)logits[i] - highest) / temperature);
    for (double& p : probs) p /= total;
    if ((top_k == 0 || top_k >= V) && top_p >= 1.0) return;
    std::vector<int> order(V);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    int64_t kept = top_k > 0 ? std::min(top_k, V) : V;
    double mass = 0, among_k = 0;
    for (int64_t i = 0; i < kept; i++) among_k += probs[order[i]];
    for (int64_t i = 0; i < kept && top_p < 1.0; i++) {
        mass += probs[order[i]];
        if (mass >= top_p * among_k) kept = i + 1;
    }
    mass = 0;
    for (int64_t i = 0; i < kept; i++) mass += probs[order[i]];
    for (int64_t i = 0; i < V; i++) probs[order[i]] = i < kept ? probs[order[i]] / mass : 0.0;
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
