// ----- task
// A mean weighted by a softmax, in one pass (Milakov & Gimelshein 2018, arXiv:1805.02867, section
// 3). It is what attention computes for one query:
//
//     p = softmax of the scores,   result[i] = sum over u of p[u] v[u][i]
//
// The scores and values come in pieces: next(score, v, n) fills in the next n scores, n up to 16,
// with their values, v (n, HS), and returns false when there are none left. Nothing comes twice, so
// neither the largest score nor the sum of the exponentials is known before the end. Keep the
// largest score so far, the sum and the result so far; when a larger one comes, scale what you have
// by e^(old largest - new largest).
//
// result (HS) is written. There is at least one score. Memory for a piece or two is at hand, not
// for all.
using Next = std::function<bool(const float*& score, const float*& v, int& n)>;
void weighted_mean(float* result, int HS, const Next& next) {
    // your code
}

// ----- solution
using Next = std::function<bool(const float*& score, const float*& v, int& n)>;
void weighted_mean(float* result, int HS, const Next& next) {
    float largest = -INFINITY, sum = 0;
    std::fill(result, result + HS, 0.0f);
    const float *score, *v;
    for (int n; next(score, v, n);)
        for (int u = 0; u < n; u++) {
            const float larger = std::max(largest, score[u]), scale = std::exp(largest - larger);
            const float p = std::exp(score[u] - larger);
            sum = sum * scale + p;
            for (int i = 0; i < HS; i++) result[i] = result[i] * scale + p * v[u * HS + i];
            largest = larger;
        }
    for (int i = 0; i < HS; i++) result[i] /= sum;
}

// ----- mistakes
//     rescale-sum: sum = sum * scale + p ==> sum = sum + p
//     rescale-result: result[i] * scale + p ==> result[i] + p
//     divided: result[i] /= sum ==> result[i] /= 1
//     zero: largest = -INFINITY ==> largest = 0
//     transposed: v[u * HS + i] ==> v[i * n + u]
//     largest: const float larger = std::max(largest, score[u]) ==> const float larger = largest = 0
//     memory: const float *score, *v; ==> const float *score, *v; std::vector<float> all(400 * (HS + 1));

// ----- judge
static std::vector<double> mean_with(const std::vector<float>& score, const std::vector<float>& v, int HS,
                                     const Key& wrong) {
    double largest = wrong == "zero" || wrong == "largest" ? 0 : -INFINITY, sum = 0;
    std::vector<double> result(HS);
    for (size_t u = 0; u < score.size(); u++) {
        const int64_t first = u < 3 ? 0 : (u - 3) / 16 * 16 + 3;  // of the piece of n
        const int64_t n = u < 3 ? std::min<int64_t>(3, score.size()) : std::min<int64_t>(16, score.size() - first);
        const double larger = wrong == "largest" ? 0 : std::max(largest, (double)score[u]),
                     scale = float_exp(largest - larger);
        const double p = float_exp(score[u] - larger);
        sum = sum * (wrong == "rescale-sum" ? 1 : scale) + p;
        for (int i = 0; i < HS; i++)
            result[i] = result[i] * (wrong == "rescale-result" ? 1 : scale) +
                        p * v[wrong == "transposed" ? first * HS + i * n + (int64_t)u - first : u * HS + i];
        largest = larger;
    }
    for (double& x : result) x /= wrong == "divided" ? 1 : sum;
    return result;
}

using task::Next;
void judge(Judge& j, decltype(task::weighted_mean)* weighted_mean) {
    j.hints = {
        {"rescale-sum", "the sum is not scaled by e^(old largest - new largest) when a larger score comes."},
        {"rescale-result", "the result is not scaled by e^(old largest - new largest) when a larger score comes."},
        {"transposed", "v is read as if it were (HS, n): the values of score u begin at v[u * HS]."},
        {"divided", "the result is not divided by the sum of the exponentials at the end."},
        {"largest", "e^score overflows, or becomes 0 everywhere: the largest score so far must be subtracted."},
        {"zero",
         "the largest score begins at 0, which is wrong where all scores are far below: e^score is 0 for all "
         "of them."},
        {"memory", "what comes is collected first: the mean must go on from piece to piece."}};
    struct Case {
        int n, HS;
        double add, scale;
    };
    for (const Case& c :
         {Case{1, 3, 0, 1}, {5, 2, 0, 1}, {50, 7, 0, 30}, {20, 4, 300, 5}, {40, 4, -300, 5}, {400, 6, 0, 3}}) {
        j.sizes("%d scores of %g +- %g, HS %d", c.n, c.add, c.scale, c.HS);
        std::vector<float> score = j.random(c.n, c.scale), v = j.random(c.n * c.HS), result = begins(c.HS);
        for (float& s : score) s += (float)c.add;
        struct Piece {
            std::vector<float> scores, values;
        };
        std::vector<Piece> pieces;  // each between margins
        for (int first = 0, n; first < c.n; first += n) {
            n = std::min(c.n - first, first == 0 ? 3 : 16);
            pieces.push_back(
                {{&score[0] + first, &score[0] + first + n}, {&v[0] + first * c.HS, &v[0] + (first + n) * c.HS}});
        }
        size_t given = 0;
        const Next next = [&](const float*& s, const float*& values, int& n) {
            if (given > 0) {  // the piece before is gone
                std::fill(pieces[given - 1].scores.begin(), pieces[given - 1].scores.end(), NAN);
                std::fill(pieces[given - 1].values.begin(), pieces[given - 1].values.end(), NAN);
            }
            n = given < pieces.size() ? (int)pieces[given].scores.size() : 0;
            if (n > 0) s = pieces[given].scores.data(), values = pieces[given++].values.data();
            return n > 0;
        };
        j.within(2 * 16 * (c.HS + 1) * sizeof(float), "memory", [&] { weighted_mean(result.data(), c.HS, next); });
        j.check({{"result", {c.HS}, result}},
                [&](const Key& wrong) -> Arrays { return {mean_with(score, v, c.HS, wrong)}; });
    }
}
