// A test is a block with a name; expect() lines inside it count as one result. Comparisons are
// written so that NaN fails.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
#include "llmc/check.h"

inline int tests_passed = 0, tests_failed = 0, tests_skipped = 0;
inline bool test_good = true;
inline std::string test_name;

inline void finish_test() {
    if (test_name.empty()) return;
    test_good ? tests_passed++ : tests_failed++;
    if (!test_good) printf("FAILED %s\n", test_name.c_str());
    fflush(stdout);
}
// A test's random values follow from its name, not from what ran before it: on another machine that
// is less, or more.
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
// What this machine cannot test, and what would let it.
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
    printf("%d passed, %d failed, %d skipped\n", tests_passed, tests_failed, tests_skipped);
    return tests_failed > 0;
}

// Largest difference over largest magnitude of b; infinity if anything is not finite, or sizes
// differ.
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

// Rounding of a sum of n products in fp32, as random walks go: unit roundoff 2^-24 times sqrt(n),
// with a factor for the tail of the distribution.
inline double sum_tolerance(double n) { return 8 * std::ldexp(1.0, -24) * std::sqrt(n + 4); }

// The same, of `roundings` roundings to bf16 on the way.
inline double bf16_tolerance(double roundings, double n) {
    return 2 * std::ldexp(1.0, -9) * std::sqrt(roundings) + sum_tolerance(n);
}

// What bf16 may change in a model of L layers, relative to the largest value. Rounding errors of
// many operations in sequence add up like a random walk: u sqrt(operations), u = 2^-9 the unit
// roundoff; a layer has about 20 on the way forward and back. 4: the tail of the distribution. The
// loss is a mean over positions, whose errors cancel.
inline double bf16_model_tolerance(double L) { return 4 * std::ldexp(1.0, -9) * std::sqrt(20 * L + 6); }
inline double bf16_loss_tolerance() { return std::ldexp(1.0, -9); }

inline std::vector<float> random_values(size_t n, double scale = 1) {
    std::vector<float> values(n);
    for (float& v : values) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        v = (float)(scale * ((double)(random_state >> 40) / (1 << 23) - 1));
    }
    return values;
}
