// ----- task
// Causal attention of one head without a T x T matrix (Dao et al. 2022, arXiv:2205.14135, section
// 3.1), faster than query by query:
//
//     s[t,u] = q[t] . k[u] / sqrt(HS)
//     p[t,u] = softmax of s[t,0] ... s[t,t]
//     out[t] = sum over u <= t of p[t,u] v[u]
//
// q, k, v, out (T, HS), HS is 64. Go through the keys in tiles of 16. For each tile and each query,
// the 16 scores can be computed together if the tile of k is transposed first: kt[i] is a Vec of 16
// numbers of k, channel i of the 16 keys, and s += q[t,i] * kt[i] does them all (exercise
// matmul-register; s[u] is element u of a Vec). Scores, largest score, sum and out go on from tile
// to tile as in exercise online-softmax. A query needs the tiles up to its own position alone. T
// need not be a multiple of 16.
typedef float Vec __attribute__((vector_size(64), aligned(4)));
constexpr int64_t HS = 64;
void flash_attention(float* out, const float* q, const float* k, const float* v, int64_t T) {
    // your code
}

// ----- solution
typedef float Vec __attribute__((vector_size(64), aligned(4)));
constexpr int64_t HS = 64;
void flash_attention(float* out, const float* q, const float* k, const float* v, int64_t T) {
    constexpr int64_t TILE = 16;
    const float scale = 1 / std::sqrt((float)HS);
    std::vector<float> largest(T, -INFINITY), sum(T, 0.0f);
    std::fill(out, out + T * HS, 0.0f);
    for (int64_t first = 0; first < T; first += TILE) {
        const int64_t n = std::min(TILE, T - first);
        Vec kt[HS] = {};
        for (int64_t u = 0; u < n; u++)
            for (int64_t i = 0; i < HS; i++) kt[i][u] = k[(first + u) * HS + i];
        for (int64_t t = first; t < T; t++) {
            const int64_t seen = std::min(n, t + 1 - first);
            Vec s = {};
            for (int64_t i = 0; i < HS; i++) s += q[t * HS + i] * kt[i];
            float larger = largest[t], added = 0, *o = out + t * HS;
            for (int64_t u = 0; u < seen; u++) larger = std::max(larger, s[u] * scale);
            const float rescale = std::exp(largest[t] - larger);
            for (int64_t i = 0; i < HS; i++) o[i] *= rescale;
            for (int64_t u = 0; u < seen; u++) {
                const float p = std::exp(s[u] * scale - larger);
                added += p;
                for (int64_t i = 0; i < HS; i++) o[i] += p * v[(first + u) * HS + i];
            }
            sum[t] = sum[t] * rescale + added;
            largest[t] = larger;
        }
    }
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < HS; i++) out[t * HS + i] /= sum[t];
}

// ----- mistakes
//     scale: scale = 1 / std::sqrt((float)HS) ==> scale = 1
//     mask: std::min(n, t + 1 - first) ==> n
//     mask-self: std::min(n, t + 1 - first) ==> std::min(n, std::max<int64_t>(t - first, t == 0))
//     rescale-out: o[i] *= rescale ==> o[i] *= 1
//     rescale-sum: sum[t] * rescale + added ==> sum[t] + added
//     divided: out[t * HS + i] /= sum[t] ==> out[t * HS + i] /= 1
//     largest: const float rescale = std::exp(largest[t] - larger) ==> const float rescale = 1; larger = 0
//     memory: largest(T, -INFINITY), ==> scores(T * T), largest(T, -INFINITY),
//     slow: s += q[t * HS + i] * kt[i] ==> for (int64_t u = 0; u < n; u++) { volatile float x = q[t * HS + i] *
//         k[(first + u) * HS + i]; s[u] += x; }

// ----- judge
static void naive_attention(float* out, const float* q, const float* k, const float* v, int64_t T) {
    const int64_t HS = 64;
    std::vector<float> p(T);
    for (int64_t t = 0; t < T; t++) {
        float largest = -INFINITY, sum = 0;
        for (int64_t u = 0; u <= t; u++) {
            p[u] = 0;
            for (int64_t i = 0; i < HS; i++) p[u] += q[t * HS + i] * k[u * HS + i];
            largest = std::max(largest, p[u] *= 0.125f);
        }
        for (int64_t u = 0; u <= t; u++) sum += p[u] = std::exp(p[u] - largest);
        std::fill_n(out + t * HS, HS, 0.0f);
        for (int64_t u = 0; u <= t; u++)
            for (int64_t i = 0; i < HS; i++) out[t * HS + i] += p[u] / sum * v[u * HS + i];
    }
}
static std::vector<double> attention_with(const std::vector<float>& q, const std::vector<float>& k,
                                          const std::vector<float>& v, int64_t T, int64_t t, const Key& wrong) {
    const int64_t HS = 64;
    std::vector<double> out(HS);
    double largest = -INFINITY, sum = 0;
    for (int64_t first = 0; first <= t; first += 16) {
        double s[16], larger = largest;
        for (int64_t u = first; u < std::min(first + 16, T); u++) {
            double& score = s[u - first];
            score = 0;
            for (int64_t i = 0; i < HS; i++)
                score += (double)q[t * HS + i] * k[u * HS + i] * (wrong == "scale" ? 1 : 0.125);
            const bool seen = wrong == "mask" || (wrong == "mask-self" ? u < t || t == 0 : u <= t);
            if (!seen) score = -INFINITY;
            larger = std::max(larger, score);
        }
        if (wrong == "largest") larger = 0;
        const double rescale = wrong == "largest" ? 1 : std::exp(largest - larger);
        sum *= wrong == "rescale-sum" ? 1 : rescale;
        for (double& o : out) o *= wrong == "rescale-out" ? 1 : rescale;
        for (int64_t u = first; u < std::min(first + 16, T); u++) {
            const double p = float_exp(s[u - first] - larger);
            sum += p;
            for (int64_t i = 0; i < HS; i++) out[i] += p * v[u * HS + i];
        }
        largest = larger;
    }
    for (double& o : out) o /= wrong == "divided" ? 1 : sum;
    if (wrong == "mask-self" && t == 0) std::fill(out.begin(), out.end(), ANY);
    return out;
}

void judge(Judge& j, decltype(task::flash_attention)* flash_attention) {
    j.hints = {
        {"scale", "the scores are not divided by sqrt(HS) = 8."},
        {"mask", "positions see the future of their own tile: its scores are masked by u <= t."},
        {"mask-self", "the mask is off by one: a position sees itself too."},
        {"rescale-out", "out is not scaled by e^(old largest - new largest) when a larger score comes."},
        {"rescale-sum", "the sum is not scaled by e^(old largest - new largest) when a larger score comes."},
        {"largest", "nothing is subtracted from the scores before e^x, which overflows from 89 on."},
        {"divided", "out is not divided by the sums."},
        {"memory", "more memory is allocated than 4 matrices (T, HS) take: is there one of T x T?"},
        {"slow",
         "the 16 scores of a tile should be one Vec, from a tile of k that is transposed once for all queries."}};
    for (auto [T, scale] : {std::pair<int64_t, double>{1, 1}, {16, 1}, {37, 1}, {64, 4}, {37, 12}}) {
        j.sizes("T %d, HS 64, q, k, v up to %g", (int)T, scale);
        const std::vector<float> q = j.random(T * 64, scale), k = j.random(T * 64, scale), v = j.random(T * 64);
        std::vector<float> out = begins(T * 64);
        flash_attention(out.data(), q.data(), k.data(), v.data(), T);
        j.check({{"out", {T, 64}, out}}, [&, T = T, scale = scale](const Key& wrong) -> Arrays {
            std::vector<double> all;
            for (int64_t t = 0; t < T; t++) {
                const std::vector<double> row = attention_with(q, k, v, T, t, wrong);
                all.insert(all.end(), row.begin(), row.end());
            }
            // scores of hundreds have lost the digits that decide
            if (wrong == "scale" && scale > 4) std::fill(all.begin(), all.end(), ANY);
            return {all};
        });
    }
    const int64_t T = 512;
    const std::vector<float> q = j.random(T * 64), k = j.random(T * 64), v = j.random(T * 64);
    std::vector<float> out(T * 64);
    j.within(4 * T * 64 * sizeof(float), "memory",
             [&] { flash_attention(out.data(), q.data(), k.data(), v.data(), T); });
    j.faster(
        "query by query", [&] { naive_attention(out.data(), q.data(), k.data(), v.data(), T); },
        [&] { flash_attention(out.data(), q.data(), k.data(), v.data(), T); }, 2);
}
