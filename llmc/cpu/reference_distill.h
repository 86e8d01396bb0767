// The loss of a row that learns from a teacher, in naive loops; formulas: adapt/distill.h.
#pragma once
#include <algorithm>
#include <cmath>
#include "llmc/adapt/distill.h"

namespace reference {

// log of the sum over V scores of e^(score / t).
template <class floatX>
double log_sum_exp(const floatX* scores, int64_t V, double t) {
    double highest = (float)scores[0], total = 0;
    for (int64_t v = 0; v < V; v++) highest = std::max(highest, (double)(float)scores[v]);
    for (int64_t v = 0; v < V; v++) total += std::exp(((float)scores[v] - highest) / t);
    return highest / t + std::log(total);
}
// The scores (Vp) are replaced by their gradients unless dloss is 0; theirs (Vp) stay.
template <class floatX>
float distilled_loss_row(floatX* scores, const floatX* theirs, int target, int64_t V, int64_t Vp, float dloss,
                         const Teacher<floatX>& teacher) {
    const double a = teacher.share, t = teacher.temperature;
    const double log_all = log_sum_exp(scores, V, 1), log_soft = log_sum_exp(scores, V, t),
                 log_theirs = log_sum_exp(theirs, V, t);
    double loss = (1 - a) * (log_all - (float)scores[target]);
    for (int64_t v = 0; v < Vp; v++) {
        if (v >= V) {
            if (dloss != 0) scores[v] = 0;
            continue;
        }
        const double z = (float)scores[v], log_q = (float)theirs[v] / t - log_theirs, log_p = z / t - log_soft;
        loss += a * t * t * std::exp(log_q) * (log_q - log_p);
        const double gradient =
            (1 - a) * (std::exp(z - log_all) - (v == target ? 1 : 0)) + a * t * (std::exp(log_p) - std::exp(log_q));
        if (dloss != 0) scores[v] = (float)(dloss * gradient);
    }
    return (float)loss;
}

}  // namespace reference
