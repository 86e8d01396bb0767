// ----- task
// One update of a matrix by Muon (Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982). Its
// gradient g has a momentum, and the direction d looks one gradient ahead (Nesterov):
//
//     m = 0.95 m + 0.05 g
//     d = 0.95 m + 0.05 g                 with the new m
//
// orthogonalize(d, rows, cols), of exercise newton-schulz, replaces d by about U V^T. Then the
// weights shrink, and move along d, so far that their elements change by about 0.2 rate:
//
//     p = (1 - rate decay) p - rate 0.2 sqrt(max(rows, cols)) d
//
// p, m and g are (rows, cols); p and m are updated in place.
using Orthogonalize = std::function<void(float* d, int64_t rows, int64_t cols)>;
void muon(float* p, float* m, const float* g, int64_t rows, int64_t cols, float rate, float decay,
          const Orthogonalize& orthogonalize) {
    // your code
}

// ----- solution
#include <vector>
using Orthogonalize = std::function<void(float* d, int64_t rows, int64_t cols)>;
void muon(float* p, float* m, const float* g, int64_t rows, int64_t cols, float rate, float decay,
          const Orthogonalize& orthogonalize) {
    const int64_t n = rows * cols;
    std::vector<float> d(n);
    for (int64_t i = 0; i < n; i++) {
        m[i] = 0.95f * m[i] + 0.05f * g[i];
        d[i] = 0.95f * m[i] + 0.05f * g[i];
    }
    orthogonalize(d.data(), rows, cols);
    const float scale = 0.2f * std::sqrt((float)std::max(rows, cols));
    for (int64_t i = 0; i < n; i++) p[i] = (1 - rate * decay) * p[i] - rate * scale * d[i];
}

// ----- mistakes
//     ahead: d[i] = 0.95f * m[i] + 0.05f * g[i] ==> d[i] = m[i]
//     momentum: d[i] = 0.95f * m[i] + 0.05f * g[i] ==> d[i] = g[i]
//     orthogonal: orthogonalize(d.data(), rows, cols); ==> ;
//     m: orthogonalize(d.data(), rows, cols); ==> orthogonalize(d.data(), rows, cols);
//         std::copy(d.begin(), d.end(), m);
//     shorter: std::max(rows, cols) ==> std::min(rows, cols)
//     scale: const float scale = 0.2f * ==> const float scale =
//     decay: (1 - rate * decay) * p[i] ==> (1 - decay) * p[i]
//     no-decay: (1 - rate * decay) * p[i] ==> p[i]

// ----- judge
// A stand-in for the iteration, which is judged elsewhere: the sign of each element, over the root
// of the longer side.
static double stand_in(double d, int64_t rows, int64_t cols) {
    return (d > 0 ? 1 : -1) / std::sqrt((double)std::max(rows, cols));
}
void judge(Judge& j, decltype(task::muon)* muon) {
    j.hints = {{"ahead", "d is m, or made with the m that was there before: the gradient has to count once more."},
               {"momentum", "d is the gradient of this step alone: the momentum is missing."},
               {"orthogonal", "d is not orthogonalised before the weights move along it."},
               {"m", "m is replaced by the orthogonal direction; it is a mean of gradients, and d a copy."},
               {"shorter", "the factor has the shorter side of the matrix; it is the longer one."},
               {"scale", "the factor 0.2 is missing: a step would be five times as long."},
               {"decay", "the decay is to be multiplied by the rate."},
               {"no-decay", "the weights do not shrink: the decay is missing."}};
    struct Case {
        int64_t rows, cols;
        float rate, decay;
    };
    for (const Case& c : {Case{1, 1, 0.1f, 0}, {2, 3, 0.05f, 0.5f}, {9, 4, 0.02f, 0.3f}}) {
        j.sizes("%d x %d, rate %g, decay %g", (int)c.rows, (int)c.cols, c.rate, c.decay);
        const int64_t n = c.rows * c.cols;
        const std::vector<float> g = j.random(n), m_before = j.random(n, 0.06);
        std::vector<float> p = begins(n), m = m_before;
        muon(p.data(), m.data(), g.data(), c.rows, c.cols, c.rate, c.decay, [](float* d, int64_t rows, int64_t cols) {
            for (int64_t i = 0; i < rows * cols; i++) d[i] = (float)stand_in(d[i], rows, cols);
        });
        j.check({{"p", {c.rows, c.cols}, p}, {"m", {c.rows, c.cols}, m, m_before}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> P, M;
            const int64_t side = wrong == "shorter" ? std::min(c.rows, c.cols) : std::max(c.rows, c.cols);
            const double step = c.rate * (wrong == "scale" ? 1 : 0.2) * std::sqrt((double)side);
            const double shrink = wrong == "no-decay" ? 0 : wrong == "decay" ? c.decay : c.rate * c.decay;
            for (int64_t i = 0; i < n; i++) {
                const double mean = 0.95 * m_before[i] + 0.05 * g[i];
                const double ahead = 0.95 * mean + 0.05 * g[i];
                const double before = wrong == "ahead" ? mean : wrong == "momentum" ? g[i] : ahead;
                const double d = wrong == "orthogonal" ? before : stand_in(before, c.rows, c.cols);
                M.push_back(wrong == "m" ? d : mean);
                P.push_back((1 - shrink) * begin_value(i) - step * d);
            }
            return {P, M};
        });
    }
}
