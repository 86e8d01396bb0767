// ----- task
// One update of Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2). For each number p of the
// model, with g its gradient:
//
//     c = beta1 m + (1 - beta1) g
//     p = p - rate (sign(c) + decay p)                  sign(0) = 0
//     m = beta2 m + (1 - beta2) g
//
// with beta1 = 0.9, beta2 = 0.99. p and m (n each) are updated in place, from g (n).
void lion(float* p, float* m, const float* g, int64_t n, float rate, float decay) {
    // your code
}

// ----- solution
void lion(float* p, float* m, const float* g, int64_t n, float rate, float decay) {
    const float beta1 = 0.9f, beta2 = 0.99f;
    for (int64_t i = 0; i < n; i++) {
        const float c = beta1 * m[i] + (1 - beta1) * g[i];
        const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f;
        p[i] -= rate * (sign + decay * p[i]);
        m[i] = beta2 * m[i] + (1 - beta2) * g[i];
    }
}

// ----- shipped
#include "llmc/optim/optimizers.h"
void lion(float* p, float* m, const float* g, int64_t n, float rate, float decay) {
    const RuleConstants k = rule_constants(update_constants(rate, 0.9f, 0.99f, 0, decay, 1, 1), true);
    float none = 0;
    for (int64_t i = 0; i < n; i++) LionRule::update(p[i], m[i], none, g[i], k);
}

// ----- mistakes
//     order: const float c = ==> m[i] = beta2 * m[i] + (1 - beta2) * g[i];\n        const float c = ;;
//            p[i]);\n        m[i] = beta2 * m[i] + (1 - beta2) * g[i]; ==> p[i]);
//     betas: beta1 = 0.9f, beta2 = 0.99f ==> beta1 = 0.99f, beta2 = 0.9f
//     one-beta: beta2 = 0.99f ==> beta2 = 0.9f
//     gradient: c = beta1 * m[i] + (1 - beta1) * g[i] ==> c = g[i]
//     zero: c < 0 ? -1.0f : 0.0f ==> -1.0f
//     sign: (sign + decay ==> (c + decay
//     l2: + decay * p[i]) ==> ) ;; * g[i] ==> * (g[i] + decay * before) ;; const float c ==>
//         const float before = p[i];\n        const float c
//     unscaled: rate * (sign + decay * p[i]) ==> rate * sign + decay * p[i]

// ----- judge
void judge(Judge& j, decltype(task::lion)* lion) {
    j.hints = {
        {"order", "m is updated before c is computed; c needs the m that was there before."},
        {"betas", "beta1 and beta2 are exchanged: 0.9 belongs to the direction c, 0.99 to m."},
        {"one-beta", "m has beta1; it remembers longer, with beta2 = 0.99."},
        {"gradient", "the step follows the sign of the gradient alone, not that of its mean with m."},
        {"zero", "sign(0) is 0: where m and g are 0, only the decay moves p."},
        {"sign", "the step is proportional to c; Lion takes its sign alone."},
        {"l2", "the decay is added to the gradient, so it goes through the sign and m; Lion applies it to p directly."},
        {"unscaled", "the decay is to be multiplied by the rate as well."}};
    struct Case {
        int64_t n;
        float rate, decay;
    };
    for (const Case& c : {Case{1, 0.1f, 0}, {6, 0.01f, 0.5f}, {1000, 0.02f, 0.3f}, {333, 0.003f, 0.7f}}) {
        j.sizes("n %d, rate %g, decay %g", (int)c.n, c.rate, c.decay);
        std::vector<float> g = j.random(c.n), p = begins(c.n), m = j.random(c.n, 0.1);
        for (int64_t i = 5; i < c.n; i += 7) g[i] = m[i] = 0;
        const std::vector<float> before = m;
        lion(p.data(), m.data(), g.data(), c.n, c.rate, c.decay);
        j.check({{"p", {c.n}, p}, {"m", {c.n}, m, before}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> P, M;
            const double beta1 = wrong == "betas" ? 0.99 : 0.9;
            const double beta2 = wrong == "betas" || wrong == "one-beta" ? 0.9 : 0.99;
            for (int64_t i = 0; i < c.n; i++) {
                const double old = begin_value(i), grad = g[i] + (wrong == "l2" ? c.decay * old : 0);
                M.push_back(beta2 * before[i] + (1 - beta2) * grad);
                const double mean = wrong == "order" ? M.back() : before[i];
                const double d = wrong == "gradient" ? grad : beta1 * mean + (1 - beta1) * grad;
                const double sign = wrong == "sign" ? d : d > 0 ? 1 : d < 0 || wrong == "zero" ? -1 : 0;
                const double decay = wrong == "l2" ? 0 : c.decay * old * (wrong == "unscaled" ? 1 / c.rate : 1);
                P.push_back(old - c.rate * (sign + decay));
            }
            return {P, M};
        });
    }
}
