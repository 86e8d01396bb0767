// Every optimizer as a plain loop, from its paper: the oracle of the rules in
// llmc/optim/optimizers.h. AdamW is in reference.h.
//
// In the formulas g is the gradient: grad_scale grads (clipping sets the scale); t = 1, 2, ... is
// the number of the update. m and v begin as 0. Where weight decay is added to the gradient, a line
// says g = g + weight_decay p.
#pragma once
#include <algorithm>
#include "llmc/optim/factors.h"
#include "llmc/cpu/reference.h"
#include "llmc/cpu/reference_small_state.h"

namespace reference {

// Adam (Kingma & Ba 2015, arXiv:1412.6980, algorithm 1), with L2 regularisation:
//
//     g = g + weight_decay p
//     m = beta1 m + (1 - beta1) g          m_hat = m / (1 - beta1^t)
//     v = beta2 v + (1 - beta2) g^2        v_hat = v / (1 - beta2^t)
//     p = p - learning_rate m_hat / (sqrt(v_hat) + eps)
inline float adam(float p, float& m, float& v, float g, const UpdateConstants& k) {
    g += k.weight_decay * p;
    m = k.beta1 * m + (1 - k.beta1) * g;
    v = k.beta2 * v + (1 - k.beta2) * g * g;
    const float m_hat = m / k.correction1, v_hat = v / k.correction2;
    return p - k.learning_rate * m_hat / (std::sqrt(v_hat) + k.eps);
}

// Stochastic gradient descent (Robbins & Monro 1951):
//
//     g = g + weight_decay p
//     p = p - learning_rate g
inline float sgd(float p, float g, const UpdateConstants& k) { return p - k.learning_rate * (g + k.weight_decay * p); }

// Momentum (Polyak 1964; Sutskever et al. 2013), in the form of torch.optim.SGD, whose m is a sum
// and not a mean:
//
//     g = g + weight_decay p
//     m = beta1 m + g
//     p = p - learning_rate m               Nesterov: p - learning_rate (g + beta1 m)
inline float momentum(float p, float& m, float g, const UpdateConstants& k) {
    g += k.weight_decay * p;
    m = k.beta1 * m + g;
    const float direction = k.nesterov ? g + k.beta1 * m : m;
    return p - k.learning_rate * direction;
}

// Adagrad (Duchi et al. 2011), the diagonal form:
//
//     g = g + weight_decay p
//     v = v + g^2
//     p = p - learning_rate g / (sqrt(v) + eps)
inline float adagrad(float p, float& v, float g, const UpdateConstants& k) {
    g += k.weight_decay * p;
    v += g * g;
    return p - k.learning_rate * g / (std::sqrt(v) + k.eps);
}

// RMSprop (Tieleman & Hinton 2012):
//
//     g = g + weight_decay p
//     v = beta2 v + (1 - beta2) g^2
//     p = p - learning_rate g / (sqrt(v) + eps)
inline float rmsprop(float p, float& v, float g, const UpdateConstants& k) {
    g += k.weight_decay * p;
    v = k.beta2 * v + (1 - k.beta2) * g * g;
    return p - k.learning_rate * g / (std::sqrt(v) + k.eps);
}

// Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2), sign(0) = 0:
//
//     c = beta1 m + (1 - beta1) g
//     p = p - learning_rate (sign(c) + weight_decay p)
//     m = beta2 m + (1 - beta2) g
inline float lion(float p, float& m, float g, const UpdateConstants& k) {
    const float c = k.beta1 * m + (1 - k.beta1) * g;
    const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f;
    m = k.beta2 * m + (1 - k.beta2) * g;
    return p - k.learning_rate * (sign + k.weight_decay * p);
}

// Muon's orthogonalisation (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon), the
// Newton-Schulz iteration in double. X (rows, cols) is d / |d|, transposed if it has more rows than
// columns; then 5 times
//
//     A = X X^T
//     X = a X + (b A + c A A) X                         a = 3.4445, b = -4.7750, c = 2.0315
inline void orthogonalize(float* d, int64_t rows, int64_t cols) {
    typedef std::vector<double> Matrix;
    const auto product = [](const Matrix& x, const Matrix& y, int64_t n, int64_t k, int64_t m) {
        Matrix out(n * m);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < k; j++)
                for (int64_t l = 0; l < m; l++) out[i * m + l] += x[i * k + j] * y[j * m + l];
        return out;
    };
    const auto transpose = [](const Matrix& x, int64_t n, int64_t m) {
        Matrix out(n * m);
        for (int64_t i = 0; i < n * m; i++) out[i % m * n + i / m] = x[i];
        return out;
    };
    const int64_t n = std::min(rows, cols), m = std::max(rows, cols);
    Matrix X(d, d + rows * cols);
    if (rows > cols) X = transpose(X, rows, cols);
    double squares = 0;
    for (double x : X) squares += x * x;
    for (double& x : X) x /= std::max(1e-7, std::sqrt(squares));
    for (int step = 0; step < 5; step++) {
        const Matrix A = product(X, transpose(X, n, m), n, m, n), AA = product(A, A, n, n, n);
        Matrix B(n * n);
        for (int64_t i = 0; i < n * n; i++) B[i] = -4.7750 * A[i] + 2.0315 * AA[i];
        const Matrix BX = product(B, X, n, n, m);
        for (int64_t i = 0; i < n * m; i++) X[i] = 3.4445 * X[i] + BX[i];
    }
    if (rows > cols) X = transpose(X, n, m);
    for (int64_t i = 0; i < rows * cols; i++) d[i] = (float)X[i];
}

// LARS and LAMB (You et al. 2020, arXiv:1904.00962, algorithms 1 and 2), the directions:
//
//     LARS    m = beta1 m + (1 - beta1) (g + weight_decay p)     d = m
//     LAMB    m, v, m_hat and v_hat as Adam's, of g as it is     d = m_hat / (sqrt(v_hat) + eps) + weight_decay p
//
// and then for every tensor, |x| being the root of the sum of its squares:
//
//     p = p - learning_rate |p| / |d| d                                    |p| / |d| = 1 where |p| = 0 or |d| = 0
inline float lars(float p, float& m, float g, const UpdateConstants& k) {
    m = k.beta1 * m + (1 - k.beta1) * (g + k.weight_decay * p);
    return m;
}
inline float lamb(float p, float& m, float& v, float g, const UpdateConstants& k) {
    m = k.beta1 * m + (1 - k.beta1) * g;
    v = k.beta2 * v + (1 - k.beta2) * g * g;
    const float m_hat = m / k.correction1, v_hat = v / k.correction2;
    return m_hat / (std::sqrt(v_hat) + k.eps) + k.weight_decay * p;
}

// Muon: of a matrix of a layer the momentum that orthogonalize() gets, of all else AdamW's step:
//
//     m = beta1 m + (1 - beta1) g
//     d = beta1 m + (1 - beta1) g                            of a matrix; then d = orthogonalize(d)
//     d = m_hat / (sqrt(v_hat) + eps)                        of all else; v, m_hat and v_hat as Adam's
//     p = p - learning_rate (scale d + weight_decay p)       scale = 0.2 sqrt(max(rows, cols)) of a matrix, else 1
inline float muon(float& m, float* v, float g, const UpdateConstants& k) {
    m = k.beta1 * m + (1 - k.beta1) * g;
    if (k.matrix) return k.beta1 * m + (1 - k.beta1) * g;
    *v = k.beta2 * *v + (1 - k.beta2) * g * g;
    return m / k.correction1 / (std::sqrt(*v / k.correction2) + k.eps);
}
// orthogonalize() as llmc/cpu/orthogonalize.h has it, but without use for its scratch memory.
template <class Scratch>
void orthogonalize(float* d, int64_t rows, int64_t cols, const Scratch&) {
    orthogonalize(d, rows, cols);
}

// Turns grads, of a part of a tensor, into directions, as the function of this name in directions.h
// does.
template <class floatX>
SquareSums directions_from_state(Optimizer optimizer, float* grads, const floatX* params, const float* master, float* m,
                                 float* v, int64_t n_elems, const UpdateConstants& k) {
    SquareSums sums{};
    for (int64_t i = 0; i < n_elems; i++) {
        const float g = grads[i] * k.grad_scale, p = master ? master[i] : (float)params[i];
        if (optimizer == LARS) grads[i] = lars(p, m[i], g, k);
        if (optimizer == LAMB) grads[i] = lamb(p, m[i], v[i], g, k);
        if (optimizer == MUON) grads[i] = muon(m[i], v ? v + i : nullptr, g, k);
        sums.add({(double)p * p, (double)grads[i] * grads[i]});
    }
    return sums;
}

// Adafactor and SM3: llmc/optim/factors.h has their formulas. The functions are as those of the
// same names in factors.h.
inline double factored_contribution(Optimizer optimizer, double g, const float* factors, const MatrixPart& part,
                                    int64_t row, int64_t col) {
    if (optimizer == ADAFACTOR) return g * g;
    const float of_col = factors[part.row_factors + col];
    return (part.row_factors ? std::min(factors[row], of_col) : of_col) + g * g;
}
inline void collect_factors(Optimizer optimizer, float* collected, const float* grads, const float* factors,
                            const MatrixPart& part, const UpdateConstants& k, float*) {
    std::vector<double> all(part.factors());
    const auto add = [&](double& to, double x) { to = optimizer == SM3 ? std::max(to, x) : to + x; };
    for (int64_t i = part.first; i < part.end; i++) {
        const int64_t row = i / part.cols, col = i % part.cols;
        const double x =
            factored_contribution(optimizer, grads[i - part.first] * k.grad_scale, factors, part, row, col);
        if (part.row_factors) add(all[row], x);
        add(all[part.row_factors + col], x);
    }
    std::copy(all.begin(), all.end(), collected);
}
inline void renew_factors(Optimizer optimizer, float* factors, const float* collected, int64_t processes,
                          int64_t stride, const MatrixPart& tensor, int64_t t) {
    for (int64_t i = 0; i < tensor.factors(); i++) {
        double sum = 0, most = 0;
        for (int64_t r = 0; r < processes; r++)
            sum += collected[r * stride + i], most = std::max<double>(most, collected[r * stride + i]);
        const double beta2 = 1 - std::pow((double)t, -0.8);
        const double mean = sum / (double)(i < tensor.row_factors ? tensor.cols : tensor.rows);
        factors[i] = (float)(optimizer == SM3 ? most : beta2 * factors[i] + (1 - beta2) * mean);
    }
}
template <class floatX>
SquareSums directions_from_factors(Optimizer optimizer, float* grads, const floatX* params, const float* master,
                                   const float* factors, const MatrixPart& part, const UpdateConstants& k) {
    const double eps1 = 1.1920929e-7;
    double mean = 0;
    for (int64_t i = 0; part.row_factors && i < part.rows; i++) mean += factors[i] / (double)part.rows;
    SquareSums sums{};
    for (int64_t i = 0; i < part.end - part.first; i++) {
        const int64_t row = (part.first + i) / part.cols, col = (part.first + i) % part.cols;
        const double g = grads[i] * k.grad_scale, p = master ? master[i] : (float)params[i];
        double v = factors[part.row_factors + col];
        if (optimizer == SM3) v = factored_contribution(optimizer, g, factors, part, row, col);
        else v = std::max(part.row_factors ? factors[row] * v / std::max(mean, eps1) : v, eps1 * eps1);
        grads[i] = v > 0 ? (float)(g / std::sqrt(v)) : 0.0f;
        sums.add({p * p, (double)grads[i] * grads[i]});
    }
    return sums;
}

// Updates params (n_elems), and master if it is not null, as adamw_update does. m and v are in the
// optimizer's format, or null where it does not keep them. grads are directions where the optimizer
// has them.
template <class floatX>
void optimizer_update(Optimizer optimizer, floatX* params, float* master, void* m_state, void* v_state,
                      const floatX* grads, size_t n_elems, const UpdateConstants& k, uint64_t seed = 0,
                      int64_t index = 0) {
    float *m = (float*)m_state, *v = (float*)v_state;
    if (optimizer == ADAMW) return adamw_update(params, master, m, v, grads, n_elems, k, seed, index);
    if (optimizer == ADAMW16BIT)
        return adamw_16bit(params, master, (bf16*)m_state, (bf16*)v_state, grads, n_elems, k, seed, index);
    for (size_t i = 0; i < n_elems; i++) {
        const float g = grads[i] * k.grad_scale;
        float p = master ? master[i] : (float)params[i];
        if (optimizer == ADAM) p = adam(p, m[i], v[i], g, k);
        if (optimizer == SGD) p = sgd(p, g, k);
        if (optimizer == MOMENTUM) p = momentum(p, m[i], g, k);
        if (optimizer == ADAGRAD) p = adagrad(p, v[i], g, k);
        if (optimizer == RMSPROP) p = rmsprop(p, v[i], g, k);
        if (optimizer == LION) p = lion(p, m[i], g, k);
        if (optimizer == LARS || optimizer == LAMB) p -= k.learning_rate * k.scale * g;
        if (optimizer == MUON || optimizer == ADAFACTOR || optimizer == SM3)
            p -= k.learning_rate * (k.scale * g + k.weight_decay * p);
        if (master) master[i] = p;
        params[i] = p;
    }
}

}  // namespace reference
