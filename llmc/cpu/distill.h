// The loss of a row that learns from a teacher, and the gradient of its scores; formulas and
// source: adapt/distill.h.
#pragma once
#include <cmath>
#include "llmc/adapt/distill.h"
#include "llmc/cpu/vec.h"

// The highest of a row of scores (V).
template <class floatX>
VEC_INLINE float highest_score(const floatX* scores, int64_t V) {
    vfloat highest = broadcast((float)scores[0]);
    const int64_t whole = V / VEC_FLOATS * VEC_FLOATS;
    for (int64_t i = 0; i < whole; i += VEC_FLOATS) {
        vfloat v = load(scores + i);
        highest = v > highest ? v : highest;
    }
    float top = max(highest);
    for (int64_t i = whole; i < V; i++) top = (float)scores[i] > top ? (float)scores[i] : top;
    return top;
}

// e^v, and 0 in the lanes from `count` on.
VEC_INLINE vfloat first_exps(vfloat v, size_t count) {
    const vfloat e = exp(v);
    return count == VEC_FLOATS ? e : load_first((const float*)&e, count);
}

// The loss of one row whose target is a token. Its scores (Vp) are replaced by their gradients;
// those of the teacher (Vp) stay. The exponentials are computed twice, and stored nowhere: the row
// has 16 bits where floatX has.
template <class floatX>
float distilled_loss_row(floatX* scores, const floatX* theirs, int target, int64_t V, int64_t Vp, float dloss,
                         const Teacher<floatX>& teacher) {
    const float a = teacher.share, t = teacher.temperature, rate = 1 / t;
    const float top = highest_score(scores, V), their_top = highest_score(theirs, V);
    vfloat total{}, soft_total{}, their_total{}, difference{};
    // difference: sum over v of theirs[v] (u[v] - z[v]), but for their denominator
    for_each_vector(V, [&](size_t i, size_t count) {
        const vfloat z = load_some(scores + i, count) - top, u = load_some(theirs + i, count) - their_top;
        const vfloat q = first_exps(u * rate, count);
        total += first_exps(z, count), soft_total += first_exps(z * rate, count);
        their_total += q, difference += q * (u - z);
    });
    const float all = sum(total), soft = sum(soft_total), of_theirs = sum(their_total);
    const float z = (float)scores[target] - top, u = (float)theirs[target] - their_top;
    const float divergence = sum(difference) / of_theirs * rate + std::log(soft / of_theirs);
    const float p_scale = dloss * (1 - a) / all, soft_scale = dloss * a * t / soft, q_scale = dloss * a * t / of_theirs;
    for_each_vector(V, [&](size_t i, size_t count) {
        const vfloat v = load_some(scores + i, count) - top, w = load_some(theirs + i, count) - their_top;
        store_some(scores + i, exp(v) * p_scale + exp(v * rate) * soft_scale - exp(w * rate) * q_scale, count);
    });
    for (int64_t i = V; i < Vp; i++) scores[i] = 0.0f;
    scores[target] =
        (std::exp(z) * p_scale - dloss * (1 - a)) + (std::exp(z * rate) * soft_scale - std::exp(u * rate) * q_scale);
    return (1 - a) * (std::log(all) - z) + a * t * t * divergence;
}
