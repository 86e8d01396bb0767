// ----- task
// Softmax of each row, one warp per row, in two passes over the row instead of three (Milakov &
// Gimelshein 2018, arXiv:1805.02867, algorithm 3). p (rows, n), x (rows, n); a block has 4 warps.
//
// In the first pass each lane keeps the largest score so far, m, and the sum of e^(x - m) so far.
// When a score is above m, the sum is scaled by e^(m - new m). Then the lanes combine their pairs
// by shuffles, in the same way. The second pass writes
//
//     p[i] = e^(x[i] - m) / sum
//
// A lane without scores has m = -infinity and sum 0: -infinity minus -infinity is NaN.
__global__ void softmax(float* p, const float* x, int rows, int n) {
    // your code
}

// ----- solution
__global__ void softmax(float* p, const float* x, int rows, int n) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float m = -3e38f, sum = 0;
    for (int i = lane; i < n; i += 32) {
        const float score = x[row * n + i], larger = fmaxf(m, score);
        sum = sum * expf(m - larger) + expf(score - larger);
        m = larger;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other_m = __shfl_xor_sync(0xFFFFFFFFu, m, distance);
        const float other_sum = __shfl_xor_sync(0xFFFFFFFFu, sum, distance), larger = fmaxf(m, other_m);
        sum = sum * expf(m - larger) + other_sum * expf(other_m - larger);
        m = larger;
    }
    for (int i = lane; i < n; i += 32) p[row * n + i] = expf(x[row * n + i] - m) / sum;
}

// ----- mistakes
//     rescale: sum * expf(m - larger) + expf(score - larger) ==> sum + expf(score - larger)
//     lanes: sum * expf(m - larger) + other_sum * expf(other_m - larger) ==> sum + other_sum
//     zero: m = -3e38f ==> m = 0
//     bounds: if (row >= rows) return; ==> ;
//     passes: float m = -3e38f, sum = 0; ==> float m = -3e38f, sum = 0; for (int i = lane; i < n; i += 32) m =
//         fmaxf(m,
//         x[row * n + i]);
//     nan: m = -3e38f ==> m = -INFINITY
//     order: p[row * n + i] = ==> p[row * n + n - 1 - i] =
//     largest: larger = fmaxf(m, score) ==> larger = 0 ;; larger = fmaxf(m, other_m) ==> larger = 0
//     alone: int i = lane; i < n; i += 32) { ==> int i = 0; i < n && lane == 0; i++) { ;;
//         int i = lane; i < n; i += 32) p ==> int i = 0; i < n && lane == 0; i++) p
//     pieces: int i = lane; i < n; i += 32) p ==> int i = lane * ((n + 31) / 32); i < n && i < (lane + 1) * ((n + 31)
//         / 32);
//         i++) p

// ----- limits
//     counted reads <= 2.01, passes: each score is read more than twice: the largest and the sum are found in one
//         pass.
//     counted load-sectors <= 4.01, pieces: the lanes of a warp read from far apart: lane i must read scores i, i
//         + 32, ...

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
static std::vector<double> online_softmax(const float* x, int n, const Key& wrong) {
    std::vector<double> m(32, wrong == "zero" ? 0 : -3e38), sum(32), p(n);
    double highest = *std::max_element(m.begin(), m.end()), total = 0;
    for (int i = 0; i < n; i++) {
        const double larger = std::max(m[i % 32], (double)x[i]);
        sum[i % 32] = sum[i % 32] * (wrong == "rescale" ? 1 : std::exp(m[i % 32] - larger)) + float_exp(x[i] - larger);
        m[i % 32] = larger;
        highest = std::max(highest, larger);
    }
    for (int lane = 0; lane < 32; lane++) total += sum[lane] * (wrong == "lanes" ? 1 : float_exp(m[lane] - highest));
    for (int i = 0; i < n; i++) p[wrong == "order" ? n - 1 - i : i] = float_exp(x[i] - highest) / total;
    return p;
}

void judge(Judge& j, decltype(task::softmax)* softmax) {
    j.cuda = true;
    j.hints = {
        {"rescale", "the sum is not scaled when a larger score comes: multiply it by e^(old m - new m)."},
        {"lanes", "the sums of the lanes belong to different m: scale each by e^(its m - larger m) before adding."},
        {"zero", "m begins at 0, so it is wrong where all scores are below 0; they may underflow."},
        {"nan",
         "a lane without scores computes -infinity minus -infinity, which is NaN. Begin with a very low number "
         "such as -3e38, or treat this case by itself."},
        {"order", "each row is written in reverse order."},
        {"largest",
         "nothing is subtracted from the scores before e^x: it overflows from 89 on, and all of them are 0 below "
         "-104."}};
    struct Case {
        int rows, n;
        double add, scale;
    };
    for (const Case& c :
         {Case{4, 64, 0, 1}, {1, 5, 0, 1}, {7, 100, 0, 50}, {3, 33, -300, 2}, {2, 40, 200, 5}, {8, 256, 0, 3}}) {
        j.sizes("rows %d, n %d, scores %g +- %g", c.rows, c.n, c.add, c.scale);
        std::vector<float> x = j.random(c.rows * c.n, c.scale);
        for (float& score : x) score += (float)c.add;
        OnDevice<float> p(begins(c.rows * c.n)), from(x);
        run(c.rows == 8 ? "counted" : "softmax", softmax, (c.rows + 3) / 4, 128, p, from, c.rows, c.n);
        j.check({{"p", {c.rows, c.n}, p.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> all;
            for (int r = 0; r < c.rows; r++) {
                std::vector<double> row = online_softmax(&x[r * c.n], c.n, wrong);
                if (wrong == "nan" && c.n < 32) std::fill(row.begin(), row.end(), NAN);
                if (wrong == "largest" && std::fabs(c.add) > 100) std::fill(row.begin(), row.end(), NAN);
                if (wrong == "zero" && c.add < -200) std::fill(row.begin(), row.end(), NAN);  // 0 / 0
                all.insert(all.end(), row.begin(), row.end());
            }
            return {all};
        });
    }
}
