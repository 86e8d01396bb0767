// ----- task
// One update of AdamW (Kingma & Ba 2015, arXiv:1412.6980; Loshchilov & Hutter 2019,
// arXiv:1711.05101, algorithm 2). For each number p of the model, with g its gradient and
// t = 1, 2, ... the number of the update:
//
//     m = beta1 m + (1 - beta1) g                  mhat = m / (1 - beta1^t)
//     v = beta2 v + (1 - beta2) g^2                vhat = v / (1 - beta2^t)
//     p = p - rate (mhat / (sqrt(vhat) + eps) + decay p)
//
// with beta1 = 0.9, beta2 = 0.95, eps = 1e-8. p, m and v (n each) are updated in place, from g (n).
void adamw(float* p, float* m, float* v, const float* g, int64_t n, float rate, float decay, int64_t t) {
    // your code
}

// ----- solution
void adamw(float* p, float* m, float* v, const float* g, int64_t n, float rate, float decay, int64_t t) {
    const float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    const float correction1 = (float)(1 - std::pow(0.9, t)), correction2 = (float)(1 - std::pow(0.95, t));
    for (int64_t i = 0; i < n; i++) {
        m[i] = beta1 * m[i] + (1 - beta1) * g[i];
        v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
        const float mhat = m[i] / correction1, vhat = v[i] / correction2;
        p[i] -= rate * (mhat / (std::sqrt(vhat) + eps) + decay * p[i]);
    }
}

// ----- shipped
#include "llmc/cpu/reference.h"
void adamw(float* p, float* m, float* v, const float* g, int64_t n, float rate, float decay, int64_t t) {
    reference::adamw_update(p, (float*)nullptr, m, v, g, n, update_constants(rate, 0.9f, 0.95f, 1e-8f, decay, 1, t));
}

// ----- mistakes
//     correction: mhat = m[i] / correction1, vhat = v[i] / correction2 ==> mhat = m[i], vhat = v[i]
//     t: std::pow(0.9, t) ==> std::pow(0.9, t - 1) ;; std::pow(0.95, t) ==> std::pow(0.95, t - 1)
//     l2: + decay * p[i]); ==> ); ;; * g[i] ==> * (g[i] + decay * p[i])
//     eps: (std::sqrt(vhat) + eps) ==> std::sqrt(vhat + eps)
//     no-eps: (std::sqrt(vhat) + eps) ==> std::sqrt(vhat)
//     root: (std::sqrt(vhat) + eps) ==> (vhat + eps)
//     square: (1 - beta2) * g[i] * g[i] ==> (1 - beta2) * g[i]
//     unscaled: rate * (mhat / (std::sqrt(vhat) + eps) + decay * p[i]) ==>
//               rate * mhat / (std::sqrt(vhat) + eps) + decay * p[i]

// ----- judge
void judge(Judge& j, decltype(task::adamw)* adamw) {
    j.hints = {
        {"correction", "m and v are not corrected: divide by 1 - beta^t. They begin at 0 and are too small at first."},
        {"t", "the corrections are those of the update before: t begins at 1, and beta^t is subtracted from 1."},
        {"l2",
         "the decay is added to the gradient, so it goes through m and v. That is Adam with L2; AdamW applies it "
         "to p directly."},
        {"eps", "eps is inside of the root; it belongs outside: sqrt(vhat) + eps."},
        {"no-eps", "eps is missing: where no gradient has come yet, m and v are 0, and 0 / 0 is no number."},
        {"root", "the root of vhat is missing."},
        {"square", "v is the average of g^2, not of g."},
        {"unscaled", "the decay is to be multiplied by the rate as well."}};
    struct Case {
        int64_t n, t;
        float rate, decay;
    };
    for (const Case& c : {Case{1, 1, 0.1f, 0}, {5, 1, 0.01f, 0.1f}, {100, 2, 0.02f, 0.5f}, {33, 100, 0.003f, 0.3f}}) {
        j.sizes("n %d, update %d, rate %g, decay %g", (int)c.n, (int)c.t, c.rate, c.decay);
        std::vector<float> g = j.random(c.n, 1e-3), p = begins(c.n), m = begins(c.n), v = begins(c.n);
        for (float& x : m) x *= 1e-4f;
        for (float& x : v) x = std::fabs(x) * 1e-6f;
        for (int64_t i = 3; i < c.n; i += 7) g[i] = m[i] = v[i] = 0;
        const std::vector<float> m_before = m, v_before = v;
        adamw(p.data(), m.data(), v.data(), g.data(), c.n, c.rate, c.decay, c.t);
        j.check(
            {{"p", {c.n}, p}, {"m", {c.n}, m, m_before}, {"v", {c.n}, v, v_before}}, [&](const Key& wrong) -> Arrays {
                std::vector<double> P, M, V;
                for (int64_t i = 0; i < c.n; i++) {
                    const double before = begin_value(i), grad = g[i] + (wrong == "l2" ? c.decay * before : 0);
                    const double a = 0.9 * m_before[i] + 0.1 * grad;
                    const double b = 0.95 * v_before[i] + 0.05 * grad * (wrong == "square" ? 1 : grad);
                    const double t = wrong == "t" ? c.t - 1 : c.t;
                    const double mhat = wrong == "correction" ? a : a / (1 - std::pow(0.9, t));
                    const double vhat = wrong == "correction" ? b : b / (1 - std::pow(0.95, t));
                    const double root = wrong == "no-eps" ? std::sqrt(vhat)
                                        : wrong == "eps"  ? std::sqrt(vhat + 1e-8)
                                        : wrong == "root" ? vhat + 1e-8
                                                          : std::sqrt(vhat) + 1e-8;
                    const double decay = wrong == "l2" ? 0 : c.decay * before * (wrong == "unscaled" ? 1 / c.rate : 1);
                    P.push_back(before - c.rate * (mhat / root + decay)), M.push_back(a), V.push_back(b);
                }
                return {P, M, V};
            });
    }
}
