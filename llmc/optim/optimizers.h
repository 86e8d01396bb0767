// The optimizers that --optimizer names: a table of what each keeps and of its constants, and the
// rule of each, written once for CPU and GPU.
//
// A rule gets one element p of the weights, or on a CPU a vector of them; its gradient g, times the
// scale that clipping sets; and m and v, which the optimizer keeps of every parameter, as far as it
// does. It changes p, m and v in place. The passes over memory are in cpu/adamw.h,
// cpu/optimizer_passes.h and cuda/adamw.cuh.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include "llmc/optim/update_constants.h"

// What rules do with a value beside + - * /; cpu/adamw.h has the same for vectors.
template <class V>
struct Lanes;
template <>
struct Lanes<float> {
    HOST_DEVICE static float root(float x) { return sqrtf(x); }
    HOST_DEVICE static float sign(float x) { return (float)(x > 0) - (float)(x < 0); }
    HOST_DEVICE static float larger(float a, float b) { return a > b ? a : b; }
    HOST_DEVICE static float smaller(float a, float b) { return a < b ? a : b; }
    HOST_DEVICE static float quotient(float a, float b) { return b > 0 ? a / b : 0; }  // 0 where b is 0
};

struct AdamWRule {
    template <class V>
    HOST_DEVICE static void update(V& p, V& m, V& v, V g, const RuleConstants& k) {
        m = k.beta1 * m + (1.0f - k.beta1) * g;
        v = k.beta2 * v + (1.0f - k.beta2) * (g * g);
        p = k.keep * p - k.step * (m / (Lanes<V>::root(v) * k.root + k.eps));
    }
};
// Adam and the four rules after it make weight decay part of the gradient, and so of m and v.
struct AdamRule {
    template <class V>
    HOST_DEVICE static void update(V& p, V& m, V& v, V g, const RuleConstants& k) {
        g = g + k.decay * p;
        m = k.beta1 * m + (1.0f - k.beta1) * g;
        v = k.beta2 * v + (1.0f - k.beta2) * (g * g);
        p = p - k.step * (m / (Lanes<V>::root(v) * k.root + k.eps));
    }
};
struct SgdRule {
    template <class V>
    HOST_DEVICE static void update(V& p, V&, V&, V g, const RuleConstants& k) {
        p = p - k.rate * (g + k.decay * p);
    }
};
struct MomentumRule {
    template <class V>
    HOST_DEVICE static void update(V& p, V& m, V&, V g, const RuleConstants& k) {
        g = g + k.decay * p;
        m = k.beta1 * m + g;
        p = p - k.rate * (k.nesterov ? g + k.beta1 * m : m);
    }
};
struct AdagradRule {
    template <class V>
    HOST_DEVICE static void update(V& p, V&, V& v, V g, const RuleConstants& k) {
        g = g + k.decay * p;
        v = v + g * g;
        p = p - k.rate * (g / (Lanes<V>::root(v) + k.eps));
    }
};
struct RmspropRule {
    template <class V>
    HOST_DEVICE static void update(V& p, V&, V& v, V g, const RuleConstants& k) {
        g = g + k.decay * p;
        v = k.beta2 * v + (1.0f - k.beta2) * (g * g);
        p = p - k.rate * (g / (Lanes<V>::root(v) + k.eps));
    }
};
// The gradients decide only on the direction: every element moves by the learning rate.
struct LionRule {
    template <class V>
    HOST_DEVICE static void update(V& p, V& m, V&, V g, const RuleConstants& k) {
        p = k.keep * p - k.rate * Lanes<V>::sign(k.beta1 * m + (1.0f - k.beta1) * g);
        m = k.beta2 * m + (1.0f - k.beta2) * g;
    }
};

// The rules of optimizers that look at whole tensors have two parts. direction() turns the gradient
// into a direction, and updates m and v. The direction replaces the gradient in memory; when that
// of the whole tensor is there, update() moves the weights along it, as far as `along` says
// (cpu/whole_tensors.h, cuda/whole_tensors.cuh).
struct WithDirection {
    template <class V>
    HOST_DEVICE static void update(V& p, V&, V&, V d, const RuleConstants& k) {
        p = k.keep * p - k.along * d;
    }
};
struct SquareSums {
    double weights, directions;  // sums of squares over a tensor, or over a part of it
    HOST_DEVICE void add(const SquareSums& other) { weights += other.weights, directions += other.directions; }
};

// Adam's step without the learning rate.
template <class V>
HOST_DEVICE inline V adam_direction(V& m, V& v, V g, const RuleConstants& k) {
    m = k.beta1 * m + (1.0f - k.beta1) * g;
    v = k.beta2 * v + (1.0f - k.beta2) * (g * g);
    return k.mean * m / (Lanes<V>::root(v) * k.root + k.eps);
}

// LARS and LAMB (algorithms 1 and 2 of their paper): every tensor moves by rate |p| in all,
// whatever the size of its gradient: along = rate |p| / |d|. A tensor that is zero, as biases are
// at first, moves by rate d.
struct LarsRule : WithDirection {
    template <class V>
    HOST_DEVICE static V direction(V p, V& m, V&, V g, const RuleConstants& k) {
        m = k.beta1 * m + (1.0f - k.beta1) * (g + k.decay * p);
        return m;
    }
    template <class V>
    HOST_DEVICE static void update(V& p, V&, V&, V d, const RuleConstants& k) {
        p = p - k.along * d;
    }
    HOST_DEVICE static double scale(const SquareSums& s, double, double, const UpdateConstants&) {
        return s.weights > 0 && s.directions > 0 ? sqrt(s.weights / s.directions) : 1;
    }
};
struct LambRule : LarsRule {
    template <class V>
    HOST_DEVICE static V direction(V p, V& m, V& v, V g, const RuleConstants& k) {
        return adam_direction(m, v, g, k) + k.decay * p;
    }
};

// The matrices of the layers have Nesterov's momentum, which is orthogonalised before update();
// all else has AdamW (muon.h).
struct MuonRule : WithDirection {
    template <class V>
    HOST_DEVICE static V direction(V, V& m, V& v, V g, const RuleConstants& k) {
        if (!k.matrix) return adam_direction(m, v, g, k);
        m = k.beta1 * m + (1.0f - k.beta1) * g;
        return k.beta1 * m + (1.0f - k.beta1) * g;
    }
    HOST_DEVICE static double scale(const SquareSums&, double rows, double cols, const UpdateConstants& k) {
        return k.matrix ? 0.2 * sqrt(rows > cols ? rows : cols) : 1;
    }
};

// The rules of optimizers whose state is factored (factors.h). An element has no m and v, but row
// and col, the factors of its row and its column. In direction() row is multiplied by row_scale()
// of the mean over all rows; of a vector it is NO_ROW. The next factor of a row comes from the sum
// or the maximum of contribution() over its elements; so does that of a column.
struct AdafactorRule : WithDirection {
    static constexpr bool SUMS = true;  // of contributions; else maxima
    static constexpr float NO_ROW = 1;
    static constexpr float EPS1 = 1.1920929e-7f;  // 2^-23, the epsilon of fp32
    static constexpr double EPS2 = 1e-3, BETA2_DECAY = -0.8, MOST_RMS = 1;

    template <class V>
    HOST_DEVICE static V contribution(V g, V, V) {
        return g * g;
    }
    // The share of the newest gradient in the factors, which are running means.
    static float newest_share(int64_t t) { return (float)std::pow((double)t, BETA2_DECAY); }
    HOST_DEVICE static float renewed(float factor, float sum, float count, float share) {
        return factor + share * (sum / count - factor);
    }
    HOST_DEVICE static float row_scale(float mean) { return 1.0f / Lanes<float>::larger(mean, EPS1); }
    template <class V>
    HOST_DEVICE static V direction(V, V& row, V& col, V g, const RuleConstants&) {
        return g / Lanes<V>::root(Lanes<V>::larger(row * col, V{} + EPS1 * EPS1));
    }
    // The rate is relative to the root mean square of the weights, and at most 1 / sqrt(t); that of
    // the directions is clipped.
    HOST_DEVICE static double scale(const SquareSums& s, double rows, double cols, const UpdateConstants& k) {
        const double n = rows * cols, weights = sqrt(s.weights / n), directions = sqrt(s.directions / n) / MOST_RMS;
        const double most_rate = 1 / sqrt((double)k.t), rate = k.learning_rate;
        return (weights > EPS2 ? weights : EPS2) / (directions > 1 ? directions : 1) *
               (rate > most_rate ? most_rate / rate : 1);
    }
};
// Adagrad, whose sum of squares of an element is at most what its row and its column have.
struct Sm3Rule : WithDirection {
    static constexpr bool SUMS = false;
    static constexpr float NO_ROW = INFINITY;

    template <class V>
    HOST_DEVICE static V contribution(V g, V row, V col) {
        return Lanes<V>::smaller(row, col) + g * g;
    }
    static float newest_share(int64_t) { return 1; }
    HOST_DEVICE static float renewed(float, float maximum, float, float) { return maximum; }
    HOST_DEVICE static float row_scale(float) { return 1; }
    template <class V>
    HOST_DEVICE static V direction(V, V& row, V& col, V g, const RuleConstants&) {
        return Lanes<V>::quotient(g, Lanes<V>::root(contribution(g, row, col)));
    }
    HOST_DEVICE static double scale(const SquareSums&, double, double, const UpdateConstants&) { return 1; }
};

// Which values an optimizer keeps as m, v or factors. They are fp32, but for the last two.
enum Kept {
    KEEP_NONE,
    KEEP_ALL,       // one for every parameter
    KEEP_OUTSIDE,   // one for every parameter outside the layers
    KEEP_VECTORS,   // one for every element of the vectors in the layers
    KEEP_FACTORED,  // one for each row and each column of a matrix, one for every element of a vector
    KEEP_BF16,      // one for every parameter, in bf16 (small_state.h)
    KEEP_8BIT,      // one for every parameter, in 8 bits (small_state.h)
};
struct Keeps {
    Kept m = KEEP_NONE, v = KEEP_NONE, factors = KEEP_NONE;
};
constexpr Keeps NOTHING{}, ONLY_M{KEEP_ALL}, ONLY_V{KEEP_NONE, KEEP_ALL}, M_V{KEEP_ALL, KEEP_ALL};
constexpr Keeps FEWER_V{KEEP_ALL, KEEP_OUTSIDE, KEEP_VECTORS}, FACTORS{KEEP_NONE, KEEP_NONE, KEEP_FACTORED};
constexpr Keeps M_V_8BIT{KEEP_8BIT, KEEP_8BIT}, M_V_BF16{KEEP_BF16, KEEP_BF16};

// One line makes the enum's constant, the table's row, and what --optimizer accepts. The constants
// are the defaults of -l, --beta1, --beta2 and --eps; 0: the rule has none. Rates are those of the
// papers for language models, or else about the best of dev/course/18-optimizers.md. The source is
// for readers; those that end with such a number are of arXiv.
// clang-format off
//  constant    rule           name          keeps     rate  beta1 beta2 eps    source
#define OPTIMIZER_TABLE(X) \
  X(ADAMW,      AdamWRule,     "adamw",      M_V,      3e-4, 0.9,  0.95, 1e-8,  "Loshchilov, Hutter 2019, 1711.05101") \
  X(ADAM,       AdamRule,      "adam",       M_V,      1e-3, 0.9,  0.95, 1e-8,  "Kingma & Ba 2015, 1412.6980") \
  X(SGD,        SgdRule,       "sgd",        NOTHING,  0.3,  0,    0,    0,     "Robbins & Monro 1951") \
  X(MOMENTUM,   MomentumRule,  "momentum",   ONLY_M,   0.1,  0.9,  0,    0,     "Sutskever et al. 2013, ICML") \
  X(ADAGRAD,    AdagradRule,   "adagrad",    ONLY_V,   0.03, 0,    0,    1e-10, "Duchi et al. 2011, JMLR 12") \
  X(RMSPROP,    RmspropRule,   "rmsprop",    ONLY_V,   1e-3, 0,    0.99, 1e-8,  "Tieleman, Hinton 2012, Coursera 6.5") \
  X(LION,       LionRule,      "lion",       ONLY_M,   1e-4, 0.9,  0.99, 0,     "Chen et al. 2023, 2302.06675") \
  X(LARS,       LarsRule,      "lars",       ONLY_M,   0.01, 0.9,  0,    0,     "You et al. 2020, 1904.00962") \
  X(LAMB,       LambRule,      "lamb",       M_V,      0.03, 0.9,  0.95, 1e-8,  "You et al. 2020, 1904.00962") \
  X(MUON,       MuonRule,      "muon",       FEWER_V,  0.01, 0.95, 0.95, 1e-8,  "kellerjordan.github.io/posts/muon") \
  X(ADAFACTOR,  AdafactorRule, "adafactor",  FACTORS,  0.01, 0,    0,    0,     "Shazeer & Stern 2018, 1804.04235") \
  X(SM3,        Sm3Rule,       "sm3",        FACTORS,  0.03, 0,    0,    0,     "Anil et al. 2019, 1901.11150") \
  X(ADAMW8BIT,  AdamWRule,     "adamw8bit",  M_V_8BIT, 3e-4, 0.9,  0.95, 1e-8,  "Dettmers et al. 2022, 2110.02861") \
  X(ADAMW16BIT, AdamWRule,     "adamw16bit", M_V_BF16, 3e-4, 0.9,  0.95, 1e-8,  "Gupta et al. 2015, 1502.02551")
// clang-format on

struct OptimizerInfo {
    const char* name;
    Keeps keeps;
    double rate, beta1, beta2, eps;
    bool whole_tensors;  // it looks at whole tensors: its rule has a direction()

    // Whether it keeps nothing that several elements share, as factors and blocks of 8 bits do.
    constexpr bool keeps_by_element() const { return keeps.factors == KEEP_NONE && keeps.m != KEEP_8BIT; }
};
#define CONSTANT_OF_ROW(constant, ...) constant,
#define INFO_OF_ROW(constant, rule, name, keeps, rate, beta1, beta2, eps, source) \
    {name, keeps, rate, beta1, beta2, eps, std::is_base_of<WithDirection, rule>::value},
#define NAME_OF_ROW(constant, rule, name, ...) ", " name
enum Optimizer { OPTIMIZER_TABLE(CONSTANT_OF_ROW) NUM_OPTIMIZERS };
constexpr OptimizerInfo OPTIMIZERS[] = {OPTIMIZER_TABLE(INFO_OF_ROW)};
constexpr const char* OPTIMIZER_NAMES = &OPTIMIZER_TABLE(NAME_OF_ROW)[2];
#undef CONSTANT_OF_ROW
#undef INFO_OF_ROW
#undef NAME_OF_ROW

// The optimizer of a name; NUM_OPTIMIZERS if there is none.
inline Optimizer find_optimizer(const char* name) {
    int i = 0;
    while (i < NUM_OPTIMIZERS && strcmp(OPTIMIZERS[i].name, name) != 0) i++;
    return (Optimizer)i;
}

template <Optimizer optimizer>
struct RuleOf;
#define RULE_OF_ROW(constant, rule, ...) \
    template <> \
    struct RuleOf<constant> : rule {};
OPTIMIZER_TABLE(RULE_OF_ROW)
#undef RULE_OF_ROW

// Calls f with the optimizer as a std::integral_constant.
template <class F>
void with_optimizer(Optimizer optimizer, F f) {
    switch (optimizer) {
#define CALL_OF_ROW(constant, ...) \
    case constant: return f(std::integral_constant<Optimizer, constant>());
        OPTIMIZER_TABLE(CALL_OF_ROW)
#undef CALL_OF_ROW
        case NUM_OPTIMIZERS: return;
    }
}
