// ----- task
// What a teacher says at a temperature: from its scores u (n) write
//
//     q[v] = e^(u[v] / t) / (sum over i of e^(u[i] / t))
//
// and return their entropy, -(sum over v of q[v] log q[v]), which grows with t. Scores may be 1000
// or -1000, and a q[v] may become 0: it then adds nothing to the entropy.
double soft_targets(float* q, const float* u, float t, int64_t n) {
    // your code
    return -1;
}

// ----- solution
double soft_targets(float* q, const float* u, float t, int64_t n) {
    float top = u[0];
    for (int64_t v = 1; v < n; v++) top = std::max(top, u[v]);
    double sum = 0, weighted = 0;
    for (int64_t v = 0; v < n; v++) {
        const double x = (double)(u[v] - top) / t, e = std::exp(x);
        sum += e, weighted += e * x;
        q[v] = (float)e;
    }
    for (int64_t v = 0; v < n; v++) q[v] = (float)(q[v] / sum);
    return std::log(sum) - weighted / sum;  // log q[v] is x - log(sum)
}

// ----- mistakes
//     cold: (double)(u[v] - top) / t ==> (double)(u[v] - top)
//     times: (double)(u[v] - top) / t ==> (double)(u[v] - top) * t
//     powers: (double)(u[v] - top) / t, e = std::exp(x) ==> (double)(u[v] - top), e = std::exp(x) / t
//     bits: return std::log(sum) - weighted / sum ==> return (std::log(sum) - weighted / sum) / std::log(2.0)
//     sign: return std::log(sum) - weighted / sum ==> return weighted / sum - std::log(sum)
//     infinite: float top = u[0]; ==> float top = 0; ;; top = std::max(top, u[v]) ==> top = 0

// ----- judge
#include "dev/course/exercises/judge.h"
void judge(Judge& j, decltype(task::soft_targets)* soft_targets) {
    j.hints = {{"cold", "the temperature has no effect: these are the probabilities at t = 1."},
               {"times", "scores are multiplied by t: that makes the teacher surer, and it is to become less sure."},
               {"powers", "t divides the exponentials, where it cancels; it divides the scores."},
               {"bits", "the entropy is in bits: log is the natural logarithm here."},
               {"sign", "the entropy is negative: logarithms of probabilities are, and a minus stands before them."},
               {"infinite", "exponentials overflow or all vanish: take the largest score out of all of them first."}};
    for (int64_t n : {2, 7, 300})
        for (float t : {1.0f, 2.0f, 0.5f})
            for (float scale : {1.0f, 1000.0f}) {
                j.sizes("n %d, t %g, scores up to %g", (int)n, (double)t, (double)scale);
                std::vector<float> u = j.random(n, scale), q = begins(n);
                for (float& v : u) v = scale > 1 ? v - 500 : v;
                const double entropy = soft_targets(q.data(), u.data(), t, n);
                const double all = std::accumulate(q.begin(), q.end(), 0.0);
                const bool lost = !std::isfinite(all) || all == 0;
                j.expect(!lost, "infinite", "the sum of q is %g", all);
                if (lost) continue;
                // beside 1, so that an entropy of about 0 need not be exact
                j.check({{"q", {n}, q}, {"entropy", {2}, std::vector<double>{entropy, 1}, std::vector<float>{-1, 1}}},
                        [&](const Key& wrong) -> Arrays {
                            const double of = wrong == "cold" ? 1 : wrong == "times" ? 1 / (double)t : t;
                            const double rate = wrong == "powers" ? 1 : of;
                            const double top = *std::max_element(u.begin(), u.end());
                            double sum = 0, weighted = 0;
                            std::vector<double> found(n);
                            for (int64_t v = 0; v < n; v++) {
                                const double x = (u[v] - top) / rate;
                                found[v] = std::exp(x) / (wrong == "powers" ? t : 1), sum += found[v];
                                weighted += found[v] * x;
                            }
                            for (double& p : found) p /= sum;
                            const double nats = std::log(sum) - weighted / sum;
                            const double unit = wrong == "bits" ? std::log(2.0) : wrong == "sign" ? -1 : 1;
                            return {found, {nats / unit, 1}};
                        });
            }
}
