// What the judges of the exercises share. A judge calls the student's function for several sizes
// and compares what it computed with an oracle, in double. If it is wrong, the judge also computes
// what typical mistakes would give: the one that agrees with the student's numbers for all sizes is
// named as the hint. So a mistake is recognised by what it does, however it is written.
//
//     void judge(Judge& j, decltype(task::scale)* scale) {
//         j.hints = {{"square", "each element is multiplied twice"}};
//         for (int64_t n : {1, 3, 1000}) {
//             j.sizes("n %d", n);
//             const std::vector<float> x = j.random(n);
//             std::vector<float> out = begins(n);
//             scale(out.data(), x.data(), n);
//             j.check({{"out", {n}, out}}, [&](const Key& wrong) -> Arrays { ... });
//         }
//     }
//
// The oracle is called with the key of a mistake, or with "" for what is right, and returns the
// arrays in the same order.
#pragma once
#include <time.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

extern std::atomic<long long> allocated_bytes;  // so far, by operator new (margins.cpp)

using Key = std::string;
using Arrays = std::vector<std::vector<double>>;
const double ANY = 1e301;  // in what an oracle returns: an element that may hold anything

// What an output holds before the call: arbitrary numbers, which bf16 holds too. They tell an
// element that is written from one that is added to, and from one that is left alone.
inline float begin_value(size_t i) { return (float)((int)(i * 37 % 191) - 95) / 32 + 1.0f / 64; }
inline std::vector<float> begins(int64_t n) {
    std::vector<float> values(n);
    for (int64_t i = 0; i < n; i++) values[i] = begin_value(i);
    return values;
}

// An array that the student's function computed. It began as begins(), if nothing else is given.
struct Output {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<double> value, began;

    template <class T>
    Output(const std::string& name, std::vector<int64_t> shape, const std::vector<T>& value,
           const std::vector<float>& start = {})
        : name(name), shape(shape), value(value.begin(), value.end()), began(start.begin(), start.end()) {
        for (size_t i = began.size(); i < value.size(); i++) began.push_back(begin_value(i));
    }
    // "p[2,3]" of element 2 * 5 + 3 of an array of shape {4, 5}.
    std::string element(size_t i) const {
        std::string index;
        for (size_t d = shape.size(); d-- > 0; i /= shape[d])
            index = std::to_string(i % shape[d]) + (index.empty() ? "" : ",") + index;
        return name + "[" + index + "]";
    }
};

struct Judge {
    struct Hint {
        Key key;
        std::string text;
    };
    std::vector<Hint> hints;  // the typical mistakes, the most specific first
    double tolerance = 2e-5;  // of the largest magnitude in an array
    bool failed = false;
    bool cuda = false;            // NaN may come from memory that no thread has written yet
    double (*clock)() = nullptr;  // in seconds; by default the processor's, of this thread

    // Names the case that begins. It is printed at once: if the program crashes, it is the last
    // line.
    void sizes(const char* format, ...) __attribute__((format(printf, 2, 3)));
    // Uniform random numbers between -scale and scale; each call gives others, each run the same.
    std::vector<float> random(int64_t n, double scale = 1);
    int64_t random_below(int64_t n) { return (int64_t)(generator() % n); }

    void check(const std::vector<Output>& got, const std::function<Arrays(const Key& wrong)>& oracle);
    // For what is not an array: if `good` does not hold, the exercise fails with this hint.
    void expect(bool good, const Key& key, const char* format, ...) __attribute__((format(printf, 4, 5)));
    // The time of naive() divided by the time of mine() must be at least `asked`. Each runs for
    // about `seconds`; the time is that of the processor, so other programs count little. They do
    // count in the caches, so with EXERCISE_TIMES=no, as in tests, each runs once and no time is
    // judged.
    void faster(const char* than, const std::function<void()>& naive, const std::function<void()>& mine, double asked,
                double seconds = 0.3);

    // f() may allocate so many bytes, else the exercise fails with this hint.
    void within(int64_t bytes, const Key& key, const std::function<void()>& f);

    int verdict() const;  // prints it; the exit status of the program

private:
    std::mt19937 generator{20240607};
    std::set<Key> refuted;              // mistakes that do not agree with what was computed
    std::string first_key, first_text;  // of the first case that failed, if no typical mistake agrees
    std::string factor_name;            // of the array, and the factors of the cases that are wrong
    std::vector<double> factors;
    int most_compared = 0;
    bool unwritten = true;                  // so far no output has changed
    uint64_t bits = 14695981039346656037u;  // a hash of all that was computed

    bool close(const std::vector<double>& a, const std::vector<double>& b, bool nan_is_nan = false) const;
    void diagnose(const std::vector<Output>& got, const Arrays& right);
    void add_factor(const std::vector<Output>& got, const Arrays& right);
    std::string factor_hint() const;  // "" if it is none
    std::string text_of(const Key& key) const;
};

inline std::string format_text(const char* format, va_list arguments) {
    char text[1000];
    vsnprintf(text, sizeof text, format, arguments);
    return text;
}
// The largest finite magnitude.
inline double largest(const std::vector<double>& values) {
    double magnitude = 0;
    for (double x : values)
        if (std::isfinite(x) && x != ANY) magnitude = std::fmax(magnitude, std::fabs(x));
    return magnitude;
}
inline void Judge::sizes(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("  %-46s ", format_text(format, arguments).c_str());
    va_end(arguments);
    fflush(stdout);
}
inline std::vector<float> Judge::random(int64_t n, double scale) {
    std::vector<float> values(n);
    for (float& v : values) v = (float)(scale * ((double)generator() / 2147483648.0 - 1));
    return values;
}

// Whether a and b differ by at most the tolerance, in relation to the largest finite magnitude in
// b. A value that is not finite is close to nothing, or with nan_is_nan to all values that are not.
inline bool Judge::close(const std::vector<double>& a, const std::vector<double>& b, bool nan_is_nan) const {
    if (a.size() != b.size()) return false;
    const double most = tolerance * largest(b);
    for (size_t i = 0; i < a.size(); i++)
        if (!(std::fabs(a[i] - b[i]) <= most) && b[i] != ANY &&
            !(nan_is_nan && !std::isfinite(a[i]) && !std::isfinite(b[i])))
            return false;
    return true;
}

inline void Judge::check(const std::vector<Output>& got, const std::function<Arrays(const Key&)>& oracle) {
    const Arrays right = oracle("");
    for (const Hint& hint : hints) {
        if (refuted.count(hint.key)) continue;
        const Arrays mistaken = oracle(hint.key);
        for (size_t a = 0; a < got.size(); a++)
            if (!close(got[a].value, mistaken[a], true)) refuted.insert(hint.key);
    }
    for (const Output& o : got)
        for (size_t i = 0; i < o.value.size(); i++) {
            unwritten &= o.value[i] == o.began[i];
            uint64_t word;
            memcpy(&word, &o.value[i], 8);
            bits = (bits ^ word) * 1099511628211u;
        }
    for (size_t a = 0; a < got.size(); a++) {
        if (close(got[a].value, right[a])) continue;
        const double most = tolerance * largest(right[a]);
        size_t i = 0;
        while (i < right[a].size() && i < got[a].value.size() &&
               (std::fabs(got[a].value[i] - right[a][i]) <= most || right[a][i] == ANY))
            i++;
        if (got[a].value.size() != right[a].size())
            printf("WRONG: %s has %zu elements, expected %zu\n", got[a].name.c_str(), got[a].value.size(),
                   right[a].size());
        else printf("WRONG: %s is %.6g, expected %.6g\n", got[a].element(i).c_str(), got[a].value[i], right[a][i]);
        if (!failed) diagnose(got, right);
        add_factor(got, right);
        failed = true;
        return;
    }
    printf("right\n");
}

// Whether all that is wrong in a case is the same number of times what is expected. One number
// alone always is: some case must have three.
inline void Judge::add_factor(const std::vector<Output>& got, const Arrays& right) {
    double factor = NAN;
    int compared = 0;
    for (size_t a = 0; a < got.size(); a++) {
        if (close(got[a].value, right[a])) continue;
        if (factors.empty() && compared == 0) factor_name = got[a].name;
        const double magnitude = largest(right[a]);
        for (size_t i = 0; i < std::min(right[a].size(), got[a].value.size()); i++) {
            if (right[a][i] == ANY || std::fabs(right[a][i]) < 0.01 * magnitude) continue;
            const double value = got[a].value[i];
            if (compared++ == 0) factor = value / right[a][i];
            if (!(std::fabs(value - factor * right[a][i]) <= 1e-4 * magnitude * std::fabs(factor))) factor = NAN;
        }
    }
    factors.push_back(factor), most_compared = std::max(most_compared, compared);
}
inline std::string Judge::factor_hint() const {
    if (factors.empty() || most_compared < 3) return "";
    bool same = true;
    for (double factor : factors) {
        if (!std::isfinite(factor) || factor == 0) return "";
        same &= std::fabs(factor - factors[0]) <= 1e-3 * std::fabs(factor);
    }
    char number[40];
    snprintf(number, sizeof number, "%.6g", factors[0]);
    return "every element of " + factor_name + " is " + number + " times what is expected" +
           (same ? "" : " at the first sizes that fail, and another number of times at others") +
           ": a factor is missing or too much.";
}

// What can be said of wrong numbers whatever the exercise is.
inline void Judge::diagnose(const std::vector<Output>& got, const Arrays& right) {
    const auto is = [&](const Key& key, const std::string& text) { first_key = key, first_text = text; };
    bool overwritten = true, added = true, some_unwritten = false, nan = false;
    std::string name;
    for (size_t a = 0; a < got.size(); a++) {
        const std::vector<double>&value = got[a].value, &began = got[a].began;
        if (close(value, right[a])) continue;
        if (value.size() != right[a].size())
            return is("length", got[a].name +
                                    " has another number of elements than is expected, and no typical mistake "
                                    "gives this one. Take the smallest case that fails, on paper.");
        if (name.empty()) name = got[a].name;
        std::vector<double> without = right[a], with = right[a];
        const double magnitude = largest(right[a]);
        for (size_t i = 0; i < value.size(); i++)
            if (right[a][i] != ANY) without[i] -= began[i], with[i] += began[i];
        overwritten &= close(value, without), added &= close(value, with);
        for (size_t i = 0; i < value.size(); i++) {
            if (right[a][i] == ANY) continue;
            if (std::isnan(value[i])) nan = true;
            if (value[i] == began[i] && std::fabs(value[i] - right[a][i]) > tolerance * magnitude)
                some_unwritten = true;
        }
    }
    if (overwritten)
        is("overwritten", name + " is overwritten: what was there before the call must remain part of the sum (+=).");
    else if (added)
        is("added", name + " is added to what was there before the call: it must be written (=, or set to 0 first).");
    else if (some_unwritten)
        is("unwritten", "some elements of " + name +
                            " still hold what was there before the call: nothing has been written to them.");
    else if (nan && cuda)
        is("uninitialised",
           name +
               " is not a number (NaN): memory is read that nobody has written, which begins as NaN here. "
               "Shared memory: is a __syncthreads() missing between the writes and the reads of other threads?");
    else if (nan)
        is("nan", name +
                      " is not a number (NaN): 0/0, infinity minus infinity, a root of a negative number, or memory "
                      "that nobody has written.");
    else
        is("unknown",
           "no typical mistake gives these numbers. Compute the first wrong element by hand, for the smallest size "
           "that fails.");
}

inline void Judge::expect(bool good, const Key& key, const char* format, ...) {
    if (good) return;
    va_list arguments;
    va_start(arguments, format);
    const std::string text = format_text(format, arguments);
    va_end(arguments);
    printf("WRONG: %s\n", text.c_str());
    if (!failed) first_key = key, first_text = text_of(key).empty() ? text : text_of(key);
    for (const Hint& hint : hints)
        if (hint.key != key) refuted.insert(hint.key);
    unwritten = false, failed = true;
}

inline double processor_seconds() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
inline void Judge::faster(const char* than, const std::function<void()>& naive, const std::function<void()>& mine,
                          double asked, double seconds) {
    if (failed) return;
    const char* times = getenv("EXERCISE_TIMES");
    if (!clock && times && times == std::string("no")) return naive(), mine(), (void)printf("  not timed\n");
    const auto now = clock ? clock : processor_seconds;
    const auto time_of = [&](const std::function<void()>& f) {
        const double begin = now();
        f();
        return now() - begin;
    };
    double best_naive = INFINITY, best_mine = INFINITY, spent = 0;
    for (int round = 0; round < 5 || spent < 2 * seconds; round++) {  // alternately, so that both see the same machine
        const double a = time_of(naive), b = time_of(mine);
        best_naive = std::min(best_naive, a), best_mine = std::min(best_mine, b), spent += a + b;
        if (round >= 2 && spent > 20 * seconds) break;
    }
    const double ratio = best_naive / best_mine;
    printf("  %.1f times as fast as %s (%.3f ms, %.3f ms); asked: %g times\n", ratio, than, best_mine * 1e3,
           best_naive * 1e3, asked);
    if (!(ratio >= asked)) failed = true, first_key = "slow", first_text = text_of("slow"), unwritten = false;
}

inline void Judge::within(int64_t bytes, const Key& key, const std::function<void()>& f) {
    const int64_t before = allocated_bytes;
    f();
    const int64_t taken = allocated_bytes - before;
    expect(taken <= bytes, key, "%lld bytes of memory are allocated, asked: %lld", (long long)taken, (long long)bytes);
}

inline std::string Judge::text_of(const Key& key) const {
    for (const Hint& hint : hints)
        if (hint.key == key) return hint.text;
    return "";
}

inline int Judge::verdict() const {
    if (!failed && cuda) printf("  bits %016llx\n", (unsigned long long)bits);
    // What follows "passed" comes only now, so nothing that ran before can have said it.
    std::string token;
    if (!failed) return std::getline(std::cin, token), printf("passed%s\n", token.c_str()), 0;
    Key key = first_key;
    std::string text = first_text;
    if (unwritten) {
        key = "nothing",
        text = "no output has changed yet. Write the body of the function; the comment above it says what it computes.";
    } else if (key != "slow") {
        if (key == "unknown" && !factor_hint().empty()) key = "factor", text = factor_hint();
        for (size_t i = hints.size(); i-- > 0;)
            if (!refuted.count(hints[i].key) && hints[i].key != "slow") key = hints[i].key, text = hints[i].text;
    }
    printf("hint (%s): %s\n", key.c_str(), text.c_str());
    return 1;
}

// d(loss)/dx[i] of all i, by central differences: (loss(x + h) - loss(x - h)) / 2h.
inline std::vector<double> finite_differences(std::vector<double>& x, const std::function<double()>& loss,
                                              double h = 1e-4) {
    std::vector<double> gradient(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        const double before = x[i];
        x[i] = before + h;
        const double above = loss();
        x[i] = before - h;
        gradient[i] = (above - loss()) / (2 * h);
        x[i] = before;
    }
    return gradient;
}
// e^x as a float has it: infinity or 0 where it is too large or too small.
inline double float_exp(double x) { return x > 88.72 ? INFINITY : x < -103.9 ? 0 : (double)(float)std::exp(x); }

// Gradients as they are after they have been added to what was there.
inline Arrays added_to_begins(Arrays arrays) {
    for (std::vector<double>& a : arrays)
        for (size_t i = 0; i < a.size(); i++) a[i] += begin_value(i);
    return arrays;
}

inline std::vector<double> doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }
