// Scores so large, or so far below zero, that a softmax which does not subtract their maximum
// overflows or divides by zero: for tests of every softmax. The scores are products in which one
// channel is not zero, so that kernels which multiply first get exactly these scores.
#pragma once
#include <algorithm>
#include "dev/test/test.h"

constexpr double LARGE_SCORES[] = {100, -100, 1e30, -1e30};  // e^88.8 is infinite in fp32

// n scores around `level`. At 100 they spread over 10, so many of them count. At 1e30, neighbours
// in fp32 are 8e22 apart, so the largest score has probability 1.
inline std::vector<float> scores_around(double level, size_t n) {
    std::vector<float> scores = random_values(n);
    for (float& s : scores) s = (float)(level + (std::fabs(level) == 100 ? 5 : 0.4 * std::fabs(level)) * s);
    return scores;
}

// The softmax of the first n scores, in double.
inline std::vector<double> exact_softmax(const std::vector<double>& scores, size_t n) {
    const double highest = *std::max_element(scores.begin(), scores.begin() + n);
    std::vector<double> p(n);
    double total = 0;
    for (size_t i = 0; i < n; i++) total += p[i] = std::exp(scores[i] - highest);
    for (double& x : p) x /= total;
    return p;
}
inline double exact_loss(const std::vector<double>& scores, size_t n, size_t target) {
    const double highest = *std::max_element(scores.begin(), scores.begin() + n);
    double total = 0;
    for (size_t i = 0; i < n; i++) total += std::exp(scores[i] - highest);
    return std::log(total) - (scores[target] - highest);
}

// Inputs of a classifier with C channels and V tokens, one row. x is 1 and then zeros, the rows of
// wte are a score and then zeros. `scores` are the values after rounding to floatX.
template <class floatX>
struct LargeLogits {
    std::vector<floatX> x, wte;
    std::vector<double> scores;
    LargeLogits(double level, int64_t C, int64_t V, int64_t Vp)
        : x(C, floatX(0.0f)), wte(Vp * C, floatX(0.0f)), scores(V) {
        const std::vector<float> wanted = scores_around(level, V);
        x[0] = floatX(1.0f);
        for (int64_t v = 0; v < V; v++) wte[v * C] = floatX(wanted[v]), scores[v] = (double)(float)wte[v * C];
    }
    // With dloss 1, what the classifier adds to the first channel of dwte is the gradient of the
    // logits.
    void check(int target, float loss, const std::vector<float>& dwte, double tolerance) const {
        const double want = exact_loss(scores, scores.size(), target);
        EXPECT(std::fabs(loss - want) <= tolerance * (1 + std::fabs(want)));
        const std::vector<double> p = exact_softmax(scores, scores.size());
        const size_t C = x.size();
        for (size_t v = 0; v < p.size(); v++) EXPECT(std::fabs(dwte[v * C] - (p[v] - ((int)v == target))) <= tolerance);
    }
};

// qkv (T, 3 HS) of one head. All queries are the same; the keys are such that q.k / sqrt(HS) are
// the scores.
template <class floatX>
struct LargeAttention {
    std::vector<floatX> qkv;
    std::vector<double> scores;
    int64_t T, HS;
    LargeAttention(double level, int64_t T, int64_t HS) : qkv(T * 3 * HS), scores(T), T(T), HS(HS) {
        const std::vector<float> wanted = scores_around(std::fabs(level), T), values = random_values(T * HS);
        const float q = (float)((level < 0 ? -1 : 1) * std::sqrt(std::fabs(level)));
        for (int64_t t = 0; t < T; t++) {
            floatX *query = &qkv[t * 3 * HS], *key = query + HS, *value = key + HS;
            for (int64_t c = 0; c < HS; c++) query[c] = key[c] = floatX(0.0f), value[c] = floatX(values[t * HS + c]);
            query[0] = floatX(q);
            key[0] = floatX((float)(wanted[t] / std::fabs(q) * std::sqrt((double)HS)));
            scores[t] = (double)(float)query[0] * (double)(float)key[0] / std::sqrt((double)HS);
        }
    }
    // out (HS) of position t.
    void check(const float* out, int64_t t, double tolerance) const {
        const std::vector<double> p = exact_softmax(scores, t + 1);
        for (int64_t c = 0; c < HS; c++) {
            double want = 0;
            for (int64_t i = 0; i <= t; i++) want += p[i] * (double)(float)qkv[i * 3 * HS + 2 * HS + c];
            EXPECT(std::fabs(out[c] - want) <= tolerance);
        }
    }
};
