// The optimizers of --optimizer.
//
//     test_optimizers rules     one update: the fixture's numbers, reference_optimizers.h, sizes, threads, formats
//     test_optimizers runs      whole runs on the CPU and in the simulator: stages, resuming, refusals
#include <set>
#include <sstream>
#include "dev/test/several.h"
#include "dev/test/small_state.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/cpu/directions.h"
#include "llmc/cpu/factors.h"
#include "llmc/cpu/orthogonalize.h"
#include "llmc/cpu/reference_optimizers.h"
#include "llmc/cpu/scratch.h"
#include "llmc/plan/plan_time.h"

// One update of a whole tensor whose m and v are in fewer than 32 bits. m and v are the values that
// these stand for.
template <class floatX>
static void update_small(bool fast, Optimizer o, std::vector<floatX>& p, float* master, float* m, float* v,
                         const std::vector<floatX>& g, const UpdateConstants& k, uint64_t seed) {
    const int64_t n = (int64_t)p.size();
    const Keeps keeps = OPTIMIZERS[o].keeps;
    StoredState ms(keeps.m, true, Floats(m, m + n)), vs(keeps.v, false, Floats(v, v + n));
    if (keeps.m == KEEP_8BIT) {
        const auto update = fast ? ::blocks_update<floatX, floatX> : reference::blocks_update<floatX>;
        update(o, p.data(), master, ms.blocks.data(), vs.blocks.data(), g.data(), n, {{0, n, true}}, k, seed, 0);
    } else {
        const auto update = fast ? ::optimizer_update<floatX, floatX> : reference::optimizer_update<floatX>;
        update(o, p.data(), master, ms.data(), vs.data(), g.data(), n, k, seed, 0);
    }
    const Floats new_m = ms.values(n), new_v = vs.values(n);
    std::copy(new_m.begin(), new_m.end(), m), std::copy(new_v.begin(), new_v.end(), v);
}

// What Muon does with the directions of a matrix. fast: with the products of the CPU trainer.
template <class floatX>
static void orthogonalize_matrix(bool fast, Floats& d, int64_t rows, int64_t cols) {
    if (!fast) return reference::orthogonalize(d.data(), rows, cols);
    const int64_t n = std::min(rows, cols);
    std::vector<floatX> x(rows * cols), gram(n * n), polynomial(n * n);
    device.scratch_elems = thread_scratch_elems<floatX>(1, 16);
    device.transposed_elems = rows > cols ? gemm_transposed_elems(cols, rows) : 0;
    allocate_scratch();
    orthogonalize(d.data(), rows, cols, OrthogonalScratch<floatX>{x.data(), gram.data(), polynomial.data()});
    free_scratch();
}

// Turns d, the gradients of a whole matrix, or of a vector, into directions, as several processes
// do that have slices of it; renews the factors.
template <class floatX>
static SquareSums directions_by_factors(bool fast, Optimizer o, Floats& d, const std::vector<floatX>& p, float* master,
                                        float* factors, int64_t rows, const UpdateConstants& k, int processes = 1) {
    const int64_t n = (int64_t)p.size(), cols = n / rows;
    const MatrixPart whole{rows, cols, 0, n, rows > 1 ? rows : 0};
    Floats collected(processes * whole.factors()), tiles(FACTOR_TILES * cols);
    const auto slice = [&](int r) {
        return MatrixPart{rows, cols, n * r / processes, n * (r + 1) / processes, whole.row_factors};
    };
    for (int r = 0; r < processes; r++) {
        const auto collect = fast ? ::collect_factors : reference::collect_factors;
        collect(o, &collected[r * whole.factors()], &d[slice(r).first], factors, slice(r), k, tiles.data());
    }
    Floats old(factors, factors + whole.factors());
    const auto renew = fast ? ::renew_factors : reference::renew_factors;
    renew(o, factors, collected.data(), processes, whole.factors(), whole, k.t);
    if (!needs_old_factors(o)) old.assign(factors, factors + whole.factors());
    SquareSums sums{};
    const auto direct = fast ? ::directions_from_factors<floatX> : reference::directions_from_factors<floatX>;
    for (int r = 0; r < processes; r++) {
        const int64_t at = slice(r).first;
        sums.add(direct(o, &d[at], &p[at], master ? master + at : nullptr, old.data(), slice(r), k));
    }
    return sums;
}

// One update of a whole tensor, with its directions if the optimizer has them. m, v and factors are
// null where it does not keep them. A tensor with several rows is a matrix of a layer.
template <class floatX>
static void update_tensor(bool fast, Optimizer o, std::vector<floatX>& p, float* master, float* m, float* v,
                          float* factors, int64_t rows, const std::vector<floatX>& g, UpdateConstants k,
                          uint64_t seed = 0) {
    const int64_t n = (int64_t)p.size();
    const auto call = [&](const auto* grads) {
        if (fast) ::optimizer_update(o, p.data(), master, m, v, grads, n, k, seed, 0);
        else if constexpr (sizeof(*grads) == sizeof(floatX))
            reference::optimizer_update(o, p.data(), master, m, v, grads, n, k, seed, 0);
    };
    if (is_small(OPTIMIZERS[o].keeps.m)) return update_small(fast, o, p, master, m, v, g, k, seed);
    if (!OPTIMIZERS[o].whole_tensors) return call(g.data());
    Floats d(g.begin(), g.end());
    const auto kernel = fast ? ::directions_from_state<floatX> : reference::directions_from_state<floatX>;
    k.matrix = rows > 1;
    if (o == MUON && k.matrix) v = nullptr;
    const SquareSums sums = factors ? directions_by_factors(fast, o, d, p, master, factors, rows, k)
                                    : kernel(o, d.data(), p.data(), master, m, v, n, k);
    if (o == MUON && k.matrix) orthogonalize_matrix<floatX>(fast, d, rows, n / rows);
    k = along_directions(k, direction_scale(o, sums, rows, n / rows, k)), m = v = nullptr;
    call(d.data());
}

// Parameters and their state, as an optimizer keeps them; null where it does not.
struct Parameters {
    Optimizer optimizer;
    int64_t rows;
    Floats p, m, v, factors;

    Parameters(Optimizer o, const Floats& values, int64_t n_rows = 1)
        : optimizer(o), rows(n_rows), p(values), m(p.size()), v(p.size()), factors(rows + p.size() / rows) {}
    float* m_or_null() { return OPTIMIZERS[optimizer].keeps.m ? m.data() : nullptr; }
    float* v_or_null() { return OPTIMIZERS[optimizer].keeps.v ? v.data() : nullptr; }
    float* factors_or_null() { return OPTIMIZERS[optimizer].keeps.factors == KEEP_FACTORED ? factors.data() : nullptr; }
    void update(bool fast, const Floats& g, const UpdateConstants& k, uint64_t seed = 0) {
        update_tensor(fast, optimizer, p, nullptr, m_or_null(), v_or_null(), factors_or_null(), rows, g, k, seed);
    }
};
// The rows of a tensor in tests of one update: what Muon does with matrices has its own.
static int64_t rows_for(int o, int64_t rows) { return OPTIMIZERS[o].keeps.factors == KEEP_FACTORED ? rows : 1; }
static UpdateConstants constants_of(Optimizer o, float rate, float decay, int64_t t, bool nesterov = false) {
    const OptimizerInfo& info = OPTIMIZERS[o];
    UpdateConstants k = update_constants(rate, (float)info.beta1, (float)info.beta2, (float)info.eps, decay, 1.0f, t);
    k.nesterov = nesterov;
    return k;
}

// A line of the fixture: what is updated how, and the result of ten steps.
struct TenSteps {
    Optimizer optimizer;
    int nesterov;
    std::string source;  // what computed them: PyTorch, or a formula in dev/data/fixtures.py
    int64_t rows, cols;
    float rate, decay;
    float weights, gradients;  // what the first weights and the gradients are multiplied by
    Floats after;
};
static std::vector<TenSteps> ten_steps() {
    std::vector<TenSteps> all;
    std::istringstream lines(read_whole("dev/test/fixtures/optimizers.txt"));
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string name;
        TenSteps s;
        words >> name >> s.nesterov >> s.source >> s.rows >> s.cols >> s.rate >> s.decay >> s.weights >> s.gradients;
        s.optimizer = find_optimizer(name.c_str());
        for (float x; words >> x;) s.after.push_back(x);
        all.push_back(s);
    }
    return all;
}
// The gradient of parameter i. Where m and v have few values it differs a little more between
// parameters, so that no quotient lies in the middle between two of them.
static float gradient_at(const TenSteps& s, int i, int step) {
    const float uneven = is_small(OPTIMIZERS[s.optimizer].keeps.m) ? 1 + (float)i / 1000 : 1.0f;
    return s.gradients * uneven * (float)((i * 29 + step * 53 + i * step * 7) % 128 - 64) / 256;
}
static Floats after_ten_steps(const TenSteps& s, bool fast, float rate) {
    const int n = (int)s.after.size();
    Floats p(n), g(n);
    for (int i = 0; i < n; i++) p[i] = s.weights * (float)((i * 37) % 64 - 32) / 32;
    Parameters parameters(s.optimizer, p, s.rows);
    for (int step = 0; step < 10; step++) {
        for (int i = 0; i < n; i++) g[i] = gradient_at(s, i, step);
        parameters.update(fast, g, constants_of(s.optimizer, rate, s.decay, step + 1, s.nesterov), step + 1);
    }
    return parameters.p;
}
static void against_fixtures() {
    std::set<int> seen;
    for (const TenSteps& s : ten_steps()) {
        const char* name = OPTIMIZERS[s.optimizer].name;
        seen.insert(s.optimizer);
        start_test(format("%s%s, %d x %d: ten steps are those of %s", name, s.nesterov ? ", Nesterov" : "", s.rows,
                          s.cols, s.source));
        EXPECT(s.after.size() == 24 && s.rows * s.cols == 24);
        for (bool fast : {false, true}) EXPECT(relative_error(after_ten_steps(s, fast, s.rate), s.after) < 1e-6);
        EXPECT(!(relative_error(after_ten_steps(s, true, s.rate * 1.001f), s.after) < 1e-6));
    }
    start_test("every optimizer has its ten steps");
    EXPECT((int)seen.size() == NUM_OPTIMIZERS);
}

// Whether `after`, ten steps with m and v in fewer than 32 bits, is where rounding can have moved
// it: the interval of each parameter from the intervals of m and v, which grow by what rounding
// does once per step, times `share`. In 8 bits that is 0.9 / 128 of the largest element for m and
// half of it for v; in bf16 the distance to the next number, 1/128 of the element.
static bool is_within_rounding(const TenSteps& s, const Floats& after, double share) {
    const int n = (int)s.after.size();
    const bool in_8_bits = OPTIMIZERS[s.optimizer].keeps.m == KEEP_8BIT;
    std::vector<double> low(n), high(n), m(n), v(n), m_error(n), v_error(n);
    for (int i = 0; i < n; i++) low[i] = high[i] = ((i * 37) % 64 - 32) / 32.0;
    for (int step = 0; step < 10; step++) {
        const UpdateConstants k = constants_of(s.optimizer, s.rate, s.decay, step + 1);
        double m_most = 0, v_most = 0;
        for (int i = 0; i < n; i++) {
            const double g = gradient_at(s, i, step);
            m[i] = k.beta1 * m[i] + (1 - k.beta1) * g, m_error[i] *= k.beta1;
            v[i] = k.beta2 * v[i] + (1 - k.beta2) * g * g, v_error[i] *= k.beta2;
            const auto root = [&](double x) { return std::sqrt(x / k.correction2) + k.eps; };
            const double small_v = root(std::max(v[i] - v_error[i], (1 - k.beta2) * g * g)),
                         large_v = root(v[i] + v_error[i]);
            const auto move = [&](double p, double m, double direction) {
                m /= k.correction1;
                return p - k.learning_rate * (m / (m * direction > 0 ? small_v : large_v) + k.weight_decay * p);
            };
            low[i] = move(low[i], m[i] + m_error[i], 1), high[i] = move(high[i], m[i] - m_error[i], -1);
            m_most = std::max(m_most, std::fabs(m[i]) + m_error[i]), v_most = std::max(v_most, v[i] + v_error[i]);
        }
        for (int i = 0; i < n; i++) {
            m_error[i] += share * (in_8_bits ? 0.9 / 128 * m_most : (std::fabs(m[i]) + m_error[i]) / 128);
            v_error[i] += share * (in_8_bits ? 0.45 / 128 * v_most : (v[i] + v_error[i]) / 128);
        }
    }
    bool within = true;
    for (int i = 0; i < n; i++) within = within && after[i] >= low[i] - 1e-6 && after[i] <= high[i] + 1e-6;
    return within;
}
static void within_rounding() {
    for (TenSteps s : ten_steps()) {
        if (s.optimizer != ADAMW) continue;
        start_test("PyTorch's adamw is where exact m and v lead");
        EXPECT(is_within_rounding(s, s.after, 0));
        for (Optimizer o : {ADAMW8BIT, ADAMW16BIT}) {
            start_test(
                format("%s: ten steps are as far from PyTorch's adamw as rounding explains", OPTIMIZERS[o].name));
            s.optimizer = o;
            const Floats after = after_ten_steps(s, true, s.rate);
            EXPECT(is_within_rounding(s, after, 1) && !is_within_rounding(s, after, 0.01));
        }
    }
}

// Whether two m, or two v, are equal to rounding. Where they have few values, one element in 10,000
// may have the next value: 0.9 / 64 of the largest away in 8 bits, less in bf16.
static bool equal_states(Kept kept, const Floats& a, const Floats& b) {
    if (!is_small(kept)) return relative_error(a, b) < 1e-6;
    size_t different = 0;
    for (size_t i = 0; i < a.size(); i++) different += !(std::fabs(a[i] - b[i]) <= 1e-6 * std::fabs(b[i]));
    return different <= 1 + a.size() / 10000 && relative_error(a, b) < 0.9 / 64 * (1 + 1e-5);
}

// Sizes with and without a last, partial vector; clipped; with the state of earlier steps.
static void against_reference() {
    for (int o = 0; o < NUM_OPTIMIZERS; o++) {
        start_test(std::string(OPTIMIZERS[o].name) + ": one update is that of the plain loop");
        for (auto [matrix_rows, n] : {std::pair<int64_t, int64_t>{1, 1},
                                      {1, 15},
                                      {16, 16},
                                      {1, 33},
                                      {11, 33},
                                      {1, 1000},
                                      {40, 1000},
                                      {301, 301 * 257}}) {
            const int64_t rows = rows_for(o, matrix_rows);
            Parameters fast((Optimizer)o, random_values(n), rows);
            fast.m = random_values(n, 0.1), fast.v = random_values(n, 0.1);
            fast.factors = random_values(rows + n / rows, 0.1);
            for (Floats* squares : {&fast.v, &fast.factors})
                for (float& x : *squares) x = std::fabs(x);
            Parameters plain = fast;
            UpdateConstants k = constants_of((Optimizer)o, 0.01f, 0.1f, 3);
            k.grad_scale = 0.3f;
            const Floats g = random_values(n), v = fast.v;
            fast.update(true, g, k), plain.update(false, g, k);
            EXPECT(relative_error(fast.p, plain.p) < 1e-6);
            const Kept kept = OPTIMIZERS[o].keeps.m;
            EXPECT(equal_states(kept, fast.m, plain.m) && equal_states(kept, fast.v, plain.v));
            EXPECT(relative_error(fast.factors, plain.factors) < 1e-6);
            EXPECT(OPTIMIZERS[o].keeps.v || fast.v == v);
        }
    }
}

static void nothing_to_do() {
    const Floats start = random_values(24);
    for (int o = 0; o < NUM_OPTIMIZERS; o++) {
        start_test(std::string(OPTIMIZERS[o].name) + ": gradients of 0 without decay leave the weights as they are");
        for (bool fast : {false, true}) {
            Parameters parameters((Optimizer)o, start, rows_for(o, 4));
            for (int64_t t = 1; t <= 2; t++)
                parameters.update(fast, Floats(24), constants_of((Optimizer)o, 0.01f, 0, t));
            EXPECT(parameters.p == start);
        }
    }
}

// bf16 weights: the rounding of a master that is updated as fp32 weights are; or one of the two
// neighbours of that.
static void bf16_weights() {
    const int64_t n = 333;
    for (int o = 0; o < NUM_OPTIMIZERS; o++) {
        const int64_t rows = rows_for(o, 9);
        start_test(std::string(OPTIMIZERS[o].name) + ": bf16 weights follow their fp32 master, or are its neighbours");
        std::vector<bf16> p16(n), g16(n);
        Floats g(n), p(n);
        const Floats start = random_values(n), slope = random_values(n);
        for (int i = 0; i < n; i++) p16[i] = start[i], p[i] = p16[i], g16[i] = slope[i], g[i] = g16[i];
        const UpdateConstants k = constants_of((Optimizer)o, 0.01f, 0.1f, 1);
        Parameters exact((Optimizer)o, p, rows), mastered((Optimizer)o, p, rows), rounded((Optimizer)o, p, rows);
        exact.update(true, g, k, 7);
        Floats master = p;
        std::vector<bf16> with_master = p16, without = p16;
        update_tensor(true, (Optimizer)o, with_master, master.data(), mastered.m_or_null(), mastered.v_or_null(),
                      mastered.factors_or_null(), rows, g16, k, 7);
        update_tensor(true, (Optimizer)o, without, nullptr, rounded.m_or_null(), rounded.v_or_null(),
                      rounded.factors_or_null(), rows, g16, k, 7);
        EXPECT(master == exact.p && mastered.m == exact.m && rounded.v == exact.v && rounded.factors == exact.factors);
        int up = 0;
        for (int i = 0; i < n; i++) {
            const float nearest = bf16(exact.p[i]), stored = without[i];
            EXPECT((float)with_master[i] == nearest);
            EXPECT(std::fabs(stored - exact.p[i]) < std::fabs(exact.p[i]) / 128);
            up += stored > exact.p[i];
        }
        EXPECT(up > n / 4 && up < 3 * n / 4);
    }
}

static void threads() {
    start_test("any number of threads gives the same bits");
    const int64_t n = (1 << 16) + 77;
    const Floats p = random_values(n), g = random_values(n);
    for (int o = 0; o < NUM_OPTIMIZERS; o++) {
        Floats first;
        for (int t : {1, 2, 3}) {
            device.threads = t;
            Parameters parameters((Optimizer)o, p, rows_for(o, 3));
            for (int64_t step = 1; step <= 2; step++)
                parameters.update(true, g, constants_of((Optimizer)o, 0.01f, 0.1f, step));
            if (t == 1) first = parameters.p;
            EXPECT(parameters.p == first && first != p);
        }
    }
}

// A matrix in the slices of several processes, which begin within rows; zeros among the gradients,
// and whole rows and columns of them. Maxima are exact.
static void factors_of_slices() {
    const int64_t rows = 43, cols = 770, n = rows * cols;
    const UpdateConstants k = constants_of(ADAFACTOR, 0.01f, 0, 2);
    const Floats p = random_values(n);
    Floats g = random_values(n), start = random_values(rows + cols);
    for (float& x : start) x = std::fabs(x);
    for (int64_t i = 0; i < n; i++)
        if (i / cols == 5 || i % cols == 7 || i % 11 == 0) g[i] = 0;
    for (Optimizer o : {ADAFACTOR, SM3}) {
        start_test(std::string(OPTIMIZERS[o].name) + ": slices of a matrix together give what the whole gives");
        Floats whole = g, factors = start;
        if (o == SM3) start[5] = factors[5] = 0;
        directions_by_factors(true, o, whole, p, nullptr, factors.data(), rows, k);
        for (int processes : {2, 3, 8, 100}) {
            Floats parts = g, of_parts = start;
            directions_by_factors(true, o, parts, p, nullptr, of_parts.data(), rows, k, processes);
            EXPECT(relative_error(of_parts, factors) < 1e-6 && relative_error(parts, whole) < 1e-6);
            EXPECT(o == ADAFACTOR || (of_parts == factors && parts == whole));
        }
        for (int64_t i = 0; i < n; i++) EXPECT((g[i] == 0) == (whole[i] == 0));
    }
}

// -------------------------------------------------------------------------------------------------
// Muon's matrices

// A matrix of these singular values: the sum of s u v^T, where u and v are rows of orthogonal
// matrices, those of the discrete cosine transform.
static Floats matrix_of(const std::vector<double>& s, int64_t rows, int64_t cols) {
    const auto cosine = [](int64_t k, int64_t i, int64_t n) {
        return std::sqrt((k ? 2.0 : 1.0) / (double)n) * std::cos(M_PI * ((double)i + 0.5) * (double)k / (double)n);
    };
    Floats matrix(rows * cols);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = 0;
            for (size_t k = 0; k < s.size(); k++) sum += s[k] * cosine(k, i, rows) * cosine(k, j, cols);
            matrix[i * cols + j] = (float)sum;
        }
    return matrix;
}
template <class floatX>
static Floats orthogonalized(Floats d, int64_t rows, int64_t cols) {
    orthogonalize_matrix<floatX>(true, d, rows, cols);
    return d;
}

static void newton_schulz() {
    start_test("orthogonalisation: singular values become those of the polynomial, the vectors stay");
    for (auto [rows, cols] : {std::pair<int, int>{12, 40}, {40, 12}, {12, 12}}) {
        std::vector<double> s, after;
        double squares = 0;
        for (int k = 0; k < 12; k++) s.push_back(std::pow(0.6, k)), squares += s[k] * s[k];
        for (double x : s) {
            x /= std::sqrt(squares);
            for (int step = 0; step < 5; step++) x = 3.4445 * x - 4.7750 * std::pow(x, 3) + 2.0315 * std::pow(x, 5);
            after.push_back(x);
            EXPECT(x > 0.68 && x < 1.21);
        }
        const Floats expected = matrix_of(after, rows, cols);
        Floats plain = matrix_of(s, rows, cols);
        reference::orthogonalize(plain.data(), rows, cols);
        EXPECT(relative_error(plain, expected) < 1e-5);
        EXPECT(relative_error(orthogonalized<float>(matrix_of(s, rows, cols), rows, cols), expected) < 1e-5);
        after[3] *= 1.001;
        EXPECT(!(relative_error(plain, matrix_of(after, rows, cols)) < 1e-5));
    }
}
// bf16: X, A and P are rounded in each of the 5 steps.
static void orthogonal_matrices() {
    start_test(
        "orthogonalisation: any shape is that of the plain loops, whatever its norm, with any number of threads");
    device.unit = best_matrix_unit();
    for (auto [rows, cols] : {std::pair<int, int>{1, 5}, {5, 1}, {33, 7}, {7, 65}, {48, 144}, {144, 48}, {64, 64}})
        for (double norm : {1.0, 1e-5, 1e5}) {
            const Floats d = random_values(rows * cols, norm);
            Floats plain = d, first32, first16;
            reference::orthogonalize(plain.data(), rows, cols);
            for (int t : {1, 2, 3}) {
                device.threads = t;
                const Floats in32 = orthogonalized<float>(d, rows, cols), in16 = orthogonalized<bf16>(d, rows, cols);
                if (t == 1) first32 = in32, first16 = in16;
                EXPECT(relative_error(in32, plain) < 1e-5 &&
                       norm_error(in16, plain) < 15 * BF16_ROUNDOFF / std::sqrt(3.0));
                EXPECT(in32 == first32 && in16 == first16);
            }
        }
    start_test("orthogonalisation: zero stays zero");
    EXPECT(orthogonalized<float>(Floats(48), 6, 8) == Floats(48) &&
           orthogonalized<bf16>(Floats(48), 8, 6) == Floats(48));
}

// -------------------------------------------------------------------------------------------------
// runs

const std::string STEPS = "-l 1e-2 -k constant -c 0.1 -n 2 --overwrite 1 ";

static std::string with(int o) { return std::string("--optimizer ") + OPTIMIZERS[o].name + " "; }
static bool same_checkpoints(const std::string& a, const std::string& b, int64_t step, int processes) {
    bool same = same_files(model_path(dir(a), step), model_path(dir(b), step));
    for (int r = 0; r < processes; r++)
        same = same && same_files(state_path(dir(a), step, r), state_path(dir(b), step, r));
    return same;
}

// Whether an optimizer has kernels that others have not, but for the rule: of the others runs on
// the CPU are enough.
static bool has_own_kernels(int o) {
    return o == ADAMW || o == LION || OPTIMIZERS[o].whole_tensors || is_small(OPTIMIZERS[o].keeps.m);
}
// Several processes, of which some have padding of the vocabulary, and with 3 that of the buckets:
// stage 1 has the bits of stage 0, and a run that was stopped those of one that was not.
static void stages_and_resuming(const std::string& program, const std::string& name, int first = 0) {
    for (int o = first; o < NUM_OPTIMIZERS; o++) {
        if (program == SIM16 && !has_own_kernels(o)) continue;
        const int processes = 2 + (o + 1) % 3;
        start_test(format("%s: %s: %d processes: stages 0 and 1, and a resumed run, agree to the bit", name,
                          OPTIMIZERS[o].name, processes));
        const std::string shape = format("-e L2C32H2T16V300 -d %d ", 2 * 16 * processes);  // two micro-steps
        const std::string flags = STEPS + shape + with(o);
        EXPECT(passed(run(several(program, processes, flags + "-x 4 -z 0 -o " + dir("stage0")))));
        EXPECT(passed(run(several(program, processes, flags + "-x 2 -z 1 -o " + dir("stage1")))));
        EXPECT(passed(run(several(program, processes, shape + "-y 1 -x 4 -z 1 -o " + dir("stage1")))));
        EXPECT(same_checkpoints("stage0", "stage1", 4, processes));
    }
}
static void same_losses() {
    for (int o = 0; o < NUM_OPTIMIZERS; o++) {
        start_test(std::string(OPTIMIZERS[o].name) + ": in the simulator, of one and of two processes, as on the CPU");
        // rmsprop begins with steps of 10 times the learning rate, whatever the size of the
        // gradient
        const std::string rate = o == RMSPROP ? "-l 1e-3 " : "-l 1e-2 ";
        const std::string flags = "-d 64 -x 4 -k constant -c 0.1 " + rate + with(o);
        const Outcome cpu = run(several(CPU, 1, flags));
        // in 8 bits the slices of two processes have other blocks, and near ties go either way
        const double norm = o == ADAMW8BIT ? 1e-3 : 1e-4;
        EXPECT(agree(run(several(CPU, 2, flags)), cpu, 4, 1e-4, norm));
        EXPECT(agree(run(several(SIM32, 1, flags)), cpu, 4, 1e-4, norm));
        EXPECT(agree(run(several(SIM16, 1, flags)), cpu, 4, LOSS16, NORM16));
        if (has_own_kernels(o)) EXPECT(agree(run(several(SIM16, 1, flags + "-w 0 ")), cpu, 4, LOSS16, NORM16));
    }
}

// State that every process holds whole is saved in slices: factors. Muon's v is in two places: that
// of the last bucket in slices, that of the vectors as factors.
static void other_processes() {
    for (Optimizer o : {MUON, ADAFACTOR, SM3}) {
        start_test(std::string(OPTIMIZERS[o].name) +
                   ": a run goes on with another number of processes, another stage, on CPU and GPU alike");
        const std::string name = format("moving%d", o), out = "-o " + dir(name) + " -y 1 ";
        const std::string flags = "-c 0.1 -l 1e-2 -k constant " + with(o);
        const Outcome whole = run(several(CPU, 1, flags + "-x 8"));
        EXPECT(passed(run(several(CPU, 2, flags + out + "-z 1 -x 2"))));
        EXPECT(passed(run(several(CPU, 3, flags + out + "-z 0 -x 4"))));
        EXPECT(passed(run(several(SIM32, 3, flags + out + "-z 1 -x 6"))));
        const Outcome last = run(several(CPU, 1, flags + out + "-x 8"));
        Steps late = steps_of(whole);
        late.losses.erase(late.losses.begin(), late.losses.begin() + std::min<size_t>(6, late.losses.size()));
        EXPECT(contains(last.out, "resumed at step 6") && apart(steps_of(last).losses, late.losses, 2) < 1e-4);
    }
}

static void state_files() {
    const ParameterLayout layout = parameter_layout({16, 256, 256, 2, 2, 32}, 1);
    for (int o = 0; o < NUM_OPTIMIZERS; o++) {
        const OptimizerInfo& info = OPTIMIZERS[o];
        start_test(std::string(info.name) + ": the state file has its name and its states, which --plan counts");
        EXPECT(passed(run(tiny_run(CPU, STEPS + with(o) + "-x 2 -o " + dir("state")))));
        StateHeader h;
        EXPECT(newest_checkpoint(dir("state"), h) == 2 && h.states == (int64_t)states_of(info, false).size() &&
               h.version == (o ? 3 : 2));
        EXPECT(std::string(h.optimizer) == info.name);
        const int64_t bytes = file_bytes(state_path(dir("state"), 2, 0));
        EXPECT(bytes == state_file_bytes(layout, h, (Optimizer)o, false));
        const Outcome plan = run(tiny_run(CPU, with(o) + "--plan"));
        int64_t planned = 0;
        for (int state : states_of(info, false)) planned += state_layout(layout, info, state).held_bytes({});
        if (!is_small(info.keeps.m)) EXPECT(planned == state_values(layout, info, false) * 4);
        const std::string all = format("%-14s %-16s %-18s %16d", "optimizer", "= all", "", planned);
        EXPECT(planned == 0 ? !contains(plan.out, "\noptimizer ") : contains(plan.out, all));
    }
    start_test("a run takes as much less memory as its plan says");
    const std::string large = "-e L2C256H4T16V8192 -x 2 -b 1 -v 0 -s 0 --threads 1 ";
    const auto peak = [&](int o) { return run(tiny_run(CPU, large + with(o))).peak_mib; };
    const double state = parameter_layout({16, 8192, 8192, 2, 4, 256}, 1).total_elems() * 4 / MIB;
    const double adamw = peak(ADAMW);
    EXPECT(std::fabs(adamw - peak(LION) - state) < 2 && std::fabs(peak(LION) - peak(SGD) - state) < 2);
    EXPECT(std::fabs(adamw - peak(ADAMW16BIT) - state) < 2);
    EXPECT(std::fabs(adamw - peak(ADAMW8BIT) - state * (2 - 2 * 260.0 / 1024)) < 2);
}

// The weights of a checkpoint.
static Floats weights_of(const std::string& name, int64_t step) {
    const std::string bytes = read_whole(model_path(dir(name), step));
    Floats weights((bytes.size() - sizeof(Header)) / 4);
    memcpy(weights.data(), bytes.data() + sizeof(Header), weights.size() * 4);
    return weights;
}
static double distance(const Floats& a, const Floats& b) {
    double squares = 0;
    for (size_t i = 0; i < a.size(); i++) squares += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return std::sqrt(squares);
}
// Other slices have other blocks, so m and v are rounded once more.
static void other_blocks() {
    for (int o : {ADAMW8BIT, ADAMW16BIT}) {
        start_test(std::string(OPTIMIZERS[o].name) + ": other processes resume a run, to rounding");
        EXPECT(passed(run(several(CPU, 2, STEPS + with(o) + "-x 3 -n 1 -o " + dir("two")))));
        const Floats before = weights_of("two", 2), after = weights_of("two", 3);
        for (int processes : {1, 3})
            for (const char* stage : {"-z 0 ", "-z 1 "}) {
                EXPECT(passed(run(several(CPU, 2, STEPS + with(o) + "-x 2 -o " + dir("other")))));
                EXPECT(passed(run(several(CPU, processes, std::string("-y 1 -x 3 ") + stage + "-o " + dir("other")))));
                EXPECT(distance(weights_of("other", 3), after) < 0.02 * distance(before, after));
            }
    }
}

static void refusals() {
    start_test("another optimizer on resume, and constants that an optimizer has not: one sentence, exit 2");
    EXPECT(passed(run(tiny_run(CPU, STEPS + with(LION) + "--beta2 0.98 -x 2 -o " + dir("lion")))));
    for (int o : {ADAMW, MOMENTUM})
        EXPECT(refused(run(tiny_run(CPU, "-y 1 -x 4 -o " + dir("lion") + " " + with(o))), 2, "whose state is that of"));
    EXPECT(contains(read_whole(dir("lion/run.json")), "\"--beta2\": 0.97999999999999998"));
    EXPECT(passed(run(tiny_run(CPU, "-y 1 -x 4 -o " + dir("lion")))));
    EXPECT(contains(read_whole(dir("lion/run.json")), "\"--beta2\": 0.97999999999999998"));
    EXPECT(refused(run(tiny_run(CPU, with(SGD) + "--beta1 0.5")), 2, "--beta1"));
    EXPECT(passed(run(tiny_run(CPU, with(SGD) + "--beta1 0 --rounding stochastic --plan"))));  // as in run.json
    EXPECT(refused(run(tiny_run(CPU, with(LION) + "--eps 0.5")), 2, "--eps"));
    for (Optimizer o : {ADAFACTOR, SM3})
        for (const char* flag : {"--beta1", "--beta2", "--eps"})
            EXPECT(refused(run(tiny_run(CPU, with(o) + flag + " 0.5")), 2, flag));
    EXPECT(refused(run(tiny_run(CPU, with(LION) + "--nesterov 1")), 2, "--nesterov"));
    EXPECT(refused(run(tiny_run(CPU, "--optimizer addamw")), 2, "rmsprop"));

    start_test("a state file of an optimizer that this version does not know is passed over");
    const std::string path = state_path(dir("lion"), 4, 0);
    std::string bytes = read_whole(path);
    bytes.replace(bytes.find("lion"), 4, "loin");
    write_whole(path, bytes);
    const Outcome r = run(tiny_run(CPU, "-y 1 -x 4 -o " + dir("lion")));
    EXPECT(r.status == 0 && contains(r.err, "no state file of this version") && contains(r.out, "resumed at step 2"));
}

// tensors.csv: the update is the difference of two checkpoints. Directions replace the gradients
// only after these were measured.
static void updates_are_logged() {
    for (int o : {SGD, LION, LAMB}) {
        start_test(std::string(OPTIMIZERS[o].name) + ": --log-tensors has the norm of the update");
        EXPECT(passed(run(tiny_run(CPU, STEPS + with(o) + "-n 1 -x 3 --log-tensors 2 -o " + dir("logged")))));
        const std::string log = read_whole(dir("logged/tensors.csv"));
        const size_t line = log.find("\n2,update,lnfw,,32,");
        double norm = 0, squares = 0;
        EXPECT(line != log.npos && sscanf(log.c_str() + line, "\n2,update,lnfw,,32,%lf", &norm) == 1);
        const std::string before = read_whole(model_path(dir("logged"), 2)),
                          after = read_whole(model_path(dir("logged"), 3));
        for (int i = 1; i <= 32; i++) {  // lnfw is before the 32 of lnfb, which end the file
            float a, b;
            memcpy(&a, &before[before.size() - 4 * (32 + i)], 4), memcpy(&b, &after[after.size() - 4 * (32 + i)], 4);
            squares += (double)(b - a) * (b - a);
        }
        EXPECT(squares > 0 && std::fabs(norm - std::sqrt(squares)) <= 1e-6 * norm);
    }
    const auto gradients = [](const std::string& program, int o) {
        EXPECT(
            passed(run(several(program, 2, with(o) + "-z 1 -x 1 --overwrite 1 --log-tensors 1 -o " + dir("logged")))));
        std::istringstream log(read_whole(dir("logged/tensors.csv")));
        std::string all;
        for (std::string line; std::getline(log, line);)
            if (contains(line, "0,gradient,")) all += line + "\n";
        return all;
    };
    start_test("lamb: --log-tensors has the gradients that adamw has in the first step");
    for (const std::string& program : {CPU, SIM32}) {
        const std::string adamw = gradients(program, ADAMW);
        EXPECT(!adamw.empty() && gradients(program, LAMB) == adamw);
    }
}

static void planned_work() {
    const GPT2Config c{8, 300, 384, 3, 1, 64};
    const auto matrices = [&](int64_t processes) {
        const auto all = orthogonalized_matrices(c, processes, 4);
        return std::vector<int64_t>{all[QKVW], all[ATTPROJW], all[FCW], all[FCPROJW]};
    };
    start_test("Muon's plan has the matrices of the process with most FLOPs, and v where it is kept");
    EXPECT(matrices(1) == (std::vector<int64_t>{3, 3, 3, 3}) && matrices(2) == (std::vector<int64_t>{3, 0, 3, 0}));
    EXPECT(matrices(3) == (std::vector<int64_t>{1, 1, 1, 1}) && matrices(8) == (std::vector<int64_t>{0, 0, 2, 0}));
    const ParameterLayout layout = parameter_layout(c, 2);
    const int64_t all = layout.total_elems(), with_v = layout.bucket_elems(c.L) + c.L * round_up(13 * c.C, 32);
    EXPECT(elems_with_v(layout, MUON, all) == with_v && elems_with_v(layout, MUON, all / 2) == with_v / 2);
    EXPECT(elems_with_v(layout, LAMB, all) == all && elems_with_v(layout, LARS, all) == 0);
}

int main(int argc, char** argv) {
    const std::string part = argc > 1 ? argv[1] : "";
    make_test_folder();
    if (part != "runs")
        against_fixtures(), within_rounding(), against_reference(), nothing_to_do(), bf16_weights(), threads(),
            small_state(), factors_of_slices(), newton_schulz(), orthogonal_matrices(), planned_work();
    if (part == "rules") return report_and_clean();
    state_files();
    other_blocks();
    refusals();
    updates_are_logged();
    stages_and_resuming(CPU, "CPU");
    stages_and_resuming(CPU + " --precision bf16 -w 0", "CPU, bf16 rounded stochastically", LION);
    stages_and_resuming(SIM16, "simulator, bf16");
    same_losses();
    other_processes();
    return report_and_clean();
}
