// ----- task
// Causal attention of a sequence that is divided among processes (Liu et al. 2023,
// arXiv:2310.01889). Rank r has n positions, from r n on: q, k, v (n, H), one head of H channels.
// Keys and values go around a ring, to the next rank in each round; a rank never has more than its
// own block and another one. So the softmax is online: before all its scores are known.
//
//     out[t] = sum over t2 <= t of p[t2] v[t2],   p = softmax of q[t] . k[t2] / sqrt(H)
//
// t and t2 count in the whole sequence. Write out (n, H). Scores may be large: e^score overflows.
//
//     me.rank, me.size
//     me.send(to, data, n)              send never waits
//     me.receive(from, data, n)
void ring_attention(Rank& me, float* out, const float* q, const float* k, const float* v, int64_t n, int64_t H) {
    // your code
}

// ----- solution
void ring_attention(Rank& me, float* out, const float* q, const float* k, const float* v, int64_t n, int64_t H) {
    std::vector<float> block(k, k + n * H), top(n, -INFINITY), sum(n);  // block: keys, then values
    block.insert(block.end(), v, v + n * H);
    std::fill(out, out + n * H, 0.0f);
    for (int step = 0; step < me.size; step++) {
        const int from = (me.rank + me.size - step) % me.size;  // whose block it is
        for (int64_t t = 0; t < n && from <= me.rank; t++) {
            const int64_t last = from == me.rank ? t : n - 1;
            for (int64_t t2 = 0; t2 <= last; t2++) {
                float score = 0;
                for (int64_t h = 0; h < H; h++) score += q[t * H + h] * block[t2 * H + h];
                score /= std::sqrt((float)H);
                const float highest = std::max(top[t], score);
                const float shrink = std::exp(top[t] - highest), e = std::exp(score - highest);
                sum[t] = sum[t] * shrink + e, top[t] = highest;
                for (int64_t h = 0; h < H; h++) out[t * H + h] = out[t * H + h] * shrink + e * block[(n + t2) * H + h];
            }
        }
        if (step + 1 == me.size) break;
        me.send((me.rank + 1) % me.size, block.data(), 2 * n * H);
        me.receive((me.rank + me.size - 1) % me.size, block.data(), 2 * n * H);
    }
    for (int64_t i = 0; i < n * H; i++) out[i] /= sum[i / H];
}

// ----- mistakes
//     offset: const int64_t last = from == me.rank ? t : n - 1; ==> const int64_t last = t;
//     no-mask: t < n && from <= me.rank ==> t < n
//     own-only: from <= me.rank ==> from == me.rank
//     no-scale: score /= std::sqrt((float)H); ==> ;
//     shrink: const float shrink = std::exp(top[t] - highest), ==> const float shrink = 1,
//     no-sum: out[i] /= sum[i / H]; ==> ;
//     overflow: const float highest = std::max(top[t], score); ==> const float highest = 0; top[t] = 0;
//     deadlock: me.receive((me.rank + me.size - 1) % me.size, ==> me.receive((me.rank + 1) % me.size,
//     bytes: if (step + 1 == me.size) break; ==> ;
//     bytes: for (int step = 0; step < me.size; step++) { ==> std::vector<float> all(2 * n * H * me.size);
//         me.all_gather(all.data(), block.data(), 2 * n * H * me.size);
//         for (int step = 0; step < me.size; step++) {

// ----- judge
#include "dev/course/exercises/ranks.h"
struct Heads {
    int size;
    int64_t n, H;
    std::vector<float> q, k, v;  // (size n, H)
};
static Arrays attention_with(const Heads& a, const Key& wrong) {
    const auto& [size, n, H, q, k, v] = a;
    std::vector<double> out(size * n * H);
    for (int r = 0; r < size; r++)
        for (int64_t t = 0; t < n; t++) {
            double sum = 0, top = -INFINITY, *o = &out[(r * n + t) * H];
            for (int step = 0; step < size; step++) {
                const int from = (r + size - step) % size;
                if (wrong == "own-only" ? from != r : wrong != "no-mask" && from > r) continue;
                const int64_t last = from == r || wrong == "offset" ? t : n - 1;
                for (int64_t t2 = 0; t2 <= last; t2++) {
                    double score = 0;
                    for (int64_t h = 0; h < H; h++)
                        score += (double)q[(r * n + t) * H + h] * k[(from * n + t2) * H + h];
                    if (wrong != "no-scale") score /= std::sqrt((double)H);
                    const double highest = wrong == "overflow" ? 0 : std::max(top, score);
                    const double shrink = wrong == "shrink" || wrong == "overflow" ? 1 : std::exp(top - highest);
                    const double e = wrong == "overflow" ? (float)std::exp((float)score) : std::exp(score - highest);
                    sum = sum * shrink + e, top = highest;
                    for (int64_t h = 0; h < H; h++) o[h] = o[h] * shrink + e * v[(from * n + t2) * H + h];
                }
            }
            for (int64_t h = 0; h < H && wrong != "no-sum"; h++) o[h] /= sum;
        }
    return {out};
}

void judge(Judge& j, decltype(task::ring_attention)* ring_attention) {
    j.hints = {{"deadlock", "blocks go to the next rank, so they come from the one before, once a round."},
               {"offset", "the mask compares positions within blocks: of an earlier block all keys are visible."},
               {"no-mask", "blocks of later ranks are in the future: none of their keys is visible."},
               {"own-only", "only the own block is seen; keys of earlier ranks count as well."},
               {"no-scale", "scores are divided by sqrt(H)."},
               {"shrink", "when the maximum grows, sum and out so far shrink by e^(old maximum - new maximum)."},
               {"overflow", "e^score overflows: subtract the largest score so far."},
               {"no-sum", "the sum of the exponentials must divide out at the end."},
               {"bytes", "more is sent than size - 1 blocks of keys and values from each rank."}};
    for (auto [size, n, H, scale] :
         {std::tuple<int, int64_t, int64_t, double>{1, 3, 2, 1}, {2, 4, 3, 2}, {3, 5, 4, 2}, {4, 2, 6, 20}}) {
        j.sizes("%d ranks of %d positions, H %d%s", size, (int)n, (int)H, scale > 2 ? ", large scores" : "");
        const int64_t all = size * n * H, own = n * H;
        const Heads a{size, n, H, j.random(all, scale), j.random(all, scale), j.random(all)};
        std::vector<float> out = begins(all);
        Post post;
        const std::string problem = run_ranks(size, post, [&](Rank& me) {
            const int64_t at = me.rank * own;
            ring_attention(me, &out[at], &a.q[at], &a.k[at], &a.v[at], a.n, a.H);
        });
        if (!problem.empty()) {
            j.expect(false, "deadlock", "%s", problem.c_str());
            continue;
        }
        j.check({{"out of rank", {size, n, H}, out}},
                [&](const Key& wrong) -> Arrays { return attention_with(a, wrong); });
        const int64_t sent = *std::max_element(post.sent_floats.begin(), post.sent_floats.end());
        j.expect(j.failed || sent <= (size - 1) * 2 * own, "bytes", "a rank has sent %d numbers, asked: %d", (int)sent,
                 (int)((size - 1) * 2 * own));
    }
}
