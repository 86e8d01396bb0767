// A test begins with start_test(name) and ends where the next one begins. It passes if all its
// EXPECT lines hold. Comparisons are written so that NaN fails.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
#include "llmc/base/check.h"

inline int tests_passed = 0, tests_failed = 0, tests_skipped = 0;
inline bool test_good = true;
inline std::string test_name;

inline void finish_test() {
    if (test_name.empty()) return;
    test_good ? tests_passed++ : tests_failed++;
    if (!test_good) printf("FAILED %s\n", test_name.c_str());
    fflush(stdout);
}
// A test's random values follow from its name. They do not depend on the tests before it, some of
// which are skipped on some machines.
inline uint64_t random_state = 12345;
inline void seed_random_values(const std::string& name) {
    random_state = 14695981039346656037u;  // FNV-1a
    for (unsigned char c : name) random_state = (random_state ^ c) * 1099511628211u;
}
inline void start_test(const std::string& name) {
    finish_test();
    test_name = name, test_good = true;
    seed_random_values(name);
}
// Whether the groups of tests that the command line names, all if it names none, include this one.
inline bool wants_group(int argc, char** argv, const std::string& group) {
    return argc == 1 || std::find(argv + 1, argv + argc, group) != argv + argc;
}
// Reports a test that this machine cannot run; `why` also says what would make it possible.
inline void skip_test(const std::string& why) {
    finish_test();
    test_name.clear();
    printf("skipped: %s\n", why.c_str());
    tests_skipped++;
}
inline bool expect_that(bool good, const char* text, const char* file, int line) {
    if (!good) printf("%s:%d: %s: not so: %s\n", file, line, test_name.c_str(), text), test_good = false;
    return good;
}
#define EXPECT(condition) expect_that(condition, #condition, __FILE__, __LINE__)

inline int report_tests() {
    finish_test();
    const bool none = tests_passed + tests_failed + tests_skipped == 0;  // a group of another name was asked for
    if (none) printf("FAILED no test was run\n");
    printf("%d passed, %d failed, %d skipped\n", tests_passed, tests_failed, tests_skipped);
    return none || tests_failed > 0;
}

// The largest difference, divided by the largest magnitude in b. Infinity if a difference is not
// finite, or if the sizes differ.
template <class A, class B>
inline double relative_error(const A* a, const B* b, size_t n) {
    double worst = 0, magnitude = 1e-30;
    for (size_t i = 0; i < n; i++) {
        const double d = std::fabs((double)a[i] - (double)b[i]);
        if (!std::isfinite(d)) return INFINITY;
        worst = std::fmax(worst, d), magnitude = std::fmax(magnitude, std::fabs((double)b[i]));
    }
    return worst / magnitude;
}
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() ? relative_error(a.data(), b.data(), a.size()) : INFINITY;
}
// The norm of the difference, divided by that of b.
inline double norm_error(const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < b.size(); i++)
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), norm += (double)b[i] * b[i];
    return a.size() == b.size() ? std::sqrt(difference / norm) : INFINITY;
}

// The unit roundoff u of a type with p significant bits is 2^-p: rounding to nearest changes a
// value by at most u times its size, and by u / sqrt(3) or less in rms. Tolerances are made from
// the rms, since errors of many roundings add up like a random walk: n of them to u sqrt(n / 3) or
// less.
constexpr double FP32_ROUNDOFF = 1.0 / (1 << 24), BF16_ROUNDOFF = 1.0 / (1 << 8), FP16_ROUNDOFF = 1.0 / (1 << 11);

// The tolerance of sums of n products in fp32, relative to the largest sum. The factor 8 allows for
// the worst of many sums, and for terms that are larger than what remains of their sum.
inline double sum_tolerance(double n) { return 8 * FP32_ROUNDOFF * std::sqrt(n + 4); }

// Sums of n products with `roundings` roundings to bf16, or to a type of another roundoff, on the
// way to the result: sqrt(3) times the rms of their errors, which for a single rounding is the
// largest error there can be.
inline double bf16_tolerance(double roundings, double n, double roundoff = BF16_ROUNDOFF) {
    return roundoff * std::sqrt(roundings) + sum_tolerance(n);
}

// What bf16 may change in a model of L layers, relative to the largest value: 2 sqrt(3) times the
// rms of the errors of all roundings, about 20 in a layer on the way forward and back and 6 outside
// the layers. The loss is a mean over positions, whose errors cancel.
inline double bf16_model_tolerance(double L, double roundoff = BF16_ROUNDOFF) {
    return 2 * roundoff * std::sqrt(20 * L + 6);
}
inline double bf16_loss_tolerance(double roundoff = BF16_ROUNDOFF) { return roundoff / 2; }

inline std::vector<float> random_values(size_t n, double scale = 1) {
    std::vector<float> values(n);
    for (float& v : values) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        v = (float)(scale * ((double)(random_state >> 40) / (1 << 23) - 1));
    }
    return values;
}
