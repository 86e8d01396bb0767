// ----- task
// A parameter server whose gradients come late (chapter 25). It has n weights and makes `steps`
// updates. The gradient of update s, from 0, was computed with the weights of `late` updates ago,
// or with the first ones where there were not so many yet, and is
//
//     g(w) = curvature (w - optimum)      element by element
//
// It is subtracted, times the rate, from the weights of now.
//
// all (steps + 1, n): row 0 holds the first weights; row s + 1 gets those after update s.
void late_gradients(float* all, const float* curvature, const float* optimum, float rate, int late, int steps, int n) {
    // your code
}

// ----- solution
void late_gradients(float* all, const float* curvature, const float* optimum, float rate, int late, int steps, int n) {
    for (int s = 0; s < steps; s++) {
        const float* seen = all + (int64_t)std::max(0, s - late) * n;
        float *now = all + (int64_t)s * n, *next = now + n;
        for (int i = 0; i < n; i++) next[i] = now[i] - rate * curvature[i] * (seen[i] - optimum[i]);
    }
}

// ----- mistakes
//     not-late: std::max(0, s - late) ==> (s + 0 * late)
//     one-more: std::max(0, s - late) ==> std::max(0, s - late - 1)
//     waits: next[i] = now[i] - rate ==> next[i] = now[i] - (s < late ? 0 : rate)
//     goes-back: next[i] = now[i] - ==> next[i] = seen[i] -
//     sum: (seen[i] - optimum[i]) ==> (seen[i] + optimum[i])

// ----- judge
#include "dev/course/exercises/judge.h"
static Arrays weights_of(const std::vector<float>& first, const std::vector<float>& curvature,
                         const std::vector<float>& optimum, float rate, int late, int steps, const Key& wrong) {
    const int n = (int)first.size();
    std::vector<double> all(first.begin(), first.end());
    for (int s = 0; s < steps; s++) {
        const int delay = wrong == "not-late" ? 0 : wrong == "one-more" ? late + 1 : late;
        const double step = wrong == "waits" && s < late ? 0 : rate;
        for (int i = 0; i < n; i++) {
            const double seen = all[std::max(0, s - delay) * n + i], now = wrong == "goes-back" ? seen : all[s * n + i];
            all.push_back(now - step * curvature[i] * (seen + (wrong == "sum" ? 1 : -1) * optimum[i]));
        }
    }
    return {all};
}

void judge(Judge& j, decltype(task::late_gradients)* late_gradients) {
    j.hints = {{"not-late", "the gradient is of the weights of `late` updates ago, not of those of now."},
               {"one-more", "one update too late: with late = 0 it is plain gradient descent."},
               {"waits", "the first updates are made, too, with gradients of the first weights."},
               {"goes-back", "the gradient is of old weights, but is subtracted from those of now."},
               {"sum", "the gradient is 0 at the optimum: the difference from it, not the sum."}};
    for (auto [late, steps] : {std::pair<int, int>{0, 5}, {1, 6}, {3, 9}, {8, 4}}) {
        const int n = 4;
        j.sizes("%d late, %d updates", late, steps);
        const std::vector<float> first = j.random(n), optimum = j.random(n);
        std::vector<float> curvature = j.random(n), all = begins((steps + 1) * n);
        for (float& c : curvature) c = 1 + std::fabs(c);
        std::copy(first.begin(), first.end(), all.begin());
        const std::vector<float> before = all;
        late_gradients(all.data(), curvature.data(), optimum.data(), 0.25f, late, steps, n);
        j.check({{"all", {steps + 1, n}, all, before}}, [&, late = late, steps = steps](const Key& wrong) -> Arrays {
            return weights_of(first, curvature, optimum, 0.25f, late, steps, wrong);
        });
    }
}
