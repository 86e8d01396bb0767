// ----- task
// Attention of one new position in generation, of one head. Keys and values of the positions before
// it lie in a cache, so only its own are new:
//
//     keys[t] = k,  values[t] = v                              the new position is t
//     p[u]    = e^(q . keys[u] / sqrt(HS)) / (the sum of these over all u up to t)
//     out     = sum over u up to t of p[u] values[u]
//
// q, k, v (HS) belong to position t; out (HS) is written. keys, values (maxT, HS): row t is
// written, the rows before it are kept, and the rows behind it hold what an earlier text has left
// there. Scores may be large: e^score overflows unless the maximum is subtracted.
void attention_decode(float* out, float* keys, float* values, const float* q, const float* k, const float* v, int64_t t,
                      int64_t maxT, int64_t HS) {
    // your code
}

// ----- solution
void attention_decode(float* out, float* keys, float* values, const float* q, const float* k, const float* v, int64_t t,
                      int64_t maxT, int64_t HS) {
    std::copy(k, k + HS, keys + t * HS);
    std::copy(v, v + HS, values + t * HS);
    std::vector<double> p(t + 1);
    double most = -INFINITY, sum = 0;
    for (int64_t u = 0; u <= t; u++) {
        for (int64_t i = 0; i < HS; i++) p[u] += (double)q[i] * keys[u * HS + i];
        p[u] /= std::sqrt((double)HS);
        most = std::max(most, p[u]);
    }
    for (double& x : p) sum += x = std::exp(x - most);
    for (int64_t i = 0; i < HS; i++) {
        double mix = 0;
        for (int64_t u = 0; u <= t; u++) mix += p[u] * values[u * HS + i];
        out[i] = (float)(mix / sum);
    }
}

// ----- shipped
#include "llmc/cpu/attention_decode.h"
void attention_decode(float* out, float* keys, float* values, const float* q, const float* k, const float* v, int64_t t,
                      int64_t maxT, int64_t HS) {
    std::vector<float> qkv(q, q + HS), scores(maxT);
    qkv.insert(qkv.end(), k, k + HS), qkv.insert(qkv.end(), v, v + HS);
    ::attention_decode(out, keys, values, qkv.data(), scores.data(), t, maxT, HS, 1);
}

// ----- mistakes
//     scale: p[u] /= std::sqrt((double)HS); ==>
//     not-cached: std::copy(k, k + HS, keys + t * HS); ==> const std::vector<float> before(keys + t * HS, keys + t * HS
//         + HS); std::copy(k, k + HS, keys + t * HS); ;; out[i] = (float)(mix / sum);\n    } ==>
//         out[i] = (float)(mix / sum);\n    } std::copy(before.begin(), before.end(), keys + t * HS);
//     without-itself: u <= t; u++) { ==> u < t; u++) { ;; std::vector<double> p(t + 1) ==> std::vector<double> p(t) ;;
//         u <= t; u++) mix ==> u < t; u++) mix ;; mix / sum ==> t ? mix / sum : 0
//     old-rows: std::vector<double> p(t + 1) ==> std::vector<double> p(maxT) ;; u <= t; ==> u < maxT;
//     overflow: std::exp(x - most) ==> (float)std::exp((float)x)
//     not-divided: mix / sum ==> mix
//     appended: keys + t * HS) ==> keys) ;; values + t * HS) ==> values)

// ----- judge
#include "dev/course/exercises/judge.h"
struct Decoded {
    std::vector<double> keys, values, outs;
};
// T positions, one after another, in a cache that begins as it was left.
static Decoded decoded(const std::vector<float>& qkv, const std::vector<float>& left, int64_t T, int64_t maxT,
                       int64_t HS, const Key& wrong) {
    Decoded d{doubles(left), doubles(left), {}};
    for (int64_t t = 0; t < T; t++) {
        const float* const q = &qkv[t * 3 * HS];
        const int64_t row = wrong == "appended" ? 0 : t;
        const std::vector<double> before(d.keys.begin() + t * HS, d.keys.begin() + (t + 1) * HS);
        for (int64_t i = 0; i < HS; i++) d.keys[row * HS + i] = q[HS + i], d.values[row * HS + i] = q[2 * HS + i];
        const int64_t n = wrong == "old-rows" ? maxT : wrong == "without-itself" ? t : t + 1;
        std::vector<double> p(n), out(HS);
        double most = -INFINITY, sum = 0;
        for (int64_t u = 0; u < n; u++) {
            for (int64_t i = 0; i < HS; i++) p[u] += q[i] * d.keys[u * HS + i];
            most = std::max(most, p[u] /= wrong == "scale" ? 1 : std::sqrt((double)HS));
        }
        for (double& x : p) sum += x = wrong == "overflow" ? std::exp((float)x) : std::exp(x - most);
        for (int64_t u = 0; u < n; u++)
            for (int64_t i = 0; i < HS; i++) out[i] += p[u] * d.values[u * HS + i] / (wrong == "not-divided" ? 1 : sum);
        d.outs.insert(d.outs.end(), out.begin(), out.end());
        if (wrong == "not-cached") std::copy(before.begin(), before.end(), d.keys.begin() + t * HS);
    }
    return d;
}

void judge(Judge& j, decltype(task::attention_decode)* attention_decode) {
    j.hints = {
        {"scale", "the scores are not divided by sqrt(HS)."},
        {"not-cached", "the key of the new position is not in the cache afterwards: the next one does not see it."},
        {"without-itself", "the new position attends to those before it, but not to itself."},
        {"old-rows", "rows of the cache behind the new position take part; what is there is of another text."},
        {"not-divided", "the weights do not add up to 1."},
        {"appended", "the new key and value belong in row t of the cache."},
        {"overflow", "e^score overflows: subtract the largest score first."}};
    struct Case {
        int64_t T, maxT, HS;
        double scale;
    };
    for (const Case& c : {Case{1, 1, 4, 1}, {3, 5, 8, 1}, {17, 32, 64, 1}, {5, 9, 3, 2}, {9, 9, 16, 40}}) {
        j.sizes("%d positions, room for %d, HS %d, values up to %g", (int)c.T, (int)c.maxT, (int)c.HS, c.scale);
        const std::vector<float> qkv = j.random(c.T * 3 * c.HS, c.scale), left = j.random(c.maxT * c.HS, c.scale);
        std::vector<float> keys = left, values = left, outs = begins(c.T * c.HS);
        for (int64_t t = 0; t < c.T; t++) {
            const float* q = &qkv[t * 3 * c.HS];
            attention_decode(&outs[t * c.HS], keys.data(), values.data(), q, q + c.HS, q + 2 * c.HS, t, c.maxT, c.HS);
        }
        j.check({{"out", {c.T, c.HS}, outs},
                 {"keys", {c.maxT, c.HS}, keys, left},
                 {"values", {c.maxT, c.HS}, values, left}},
                [&](const Key& wrong) -> Arrays {
                    const Decoded d = decoded(qkv, left, c.T, c.maxT, c.HS, wrong);
                    return {d.outs, d.keys, d.values};
                });
    }
}
