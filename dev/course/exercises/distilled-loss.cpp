// ----- task
// The loss of one position with a teacher, and its gradient. z (n) are the student's scores, q (n)
// the teacher's probabilities at temperature t, target is the token of the text. With
//
//     p[v] = e^z[v] / (sum over i of e^z[i]),  soft[v] = e^(z[v] / t) / (sum over i of e^(z[i] / t))
//
//     loss = -(1 - a) log p[target] + a t^2 (sum over v of q[v] log(q[v] / soft[v]))
//
// return the loss, and write d (n), its derivative by each z[v]. A q[v] may be 0: it adds nothing
// to the sum. Scores may be 1000 or -1000.
double distilled_loss(float* d, const float* z, const float* q, int64_t target, float a, float t, int64_t n) {
    // your code
    return -1;
}

// ----- solution
double distilled_loss(float* d, const float* z, const float* q, int64_t target, float a, float t, int64_t n) {
    float top = z[0];
    for (int64_t v = 1; v < n; v++) top = std::max(top, z[v]);
    double sum = 0, soft_sum = 0;
    for (int64_t v = 0; v < n; v++) sum += std::exp((double)z[v] - top), soft_sum += std::exp(((double)z[v] - top) / t);
    double loss = (1 - a) * (std::log(sum) - ((double)z[target] - top));
    for (int64_t v = 0; v < n; v++) {
        const double x = (double)z[v] - top, p = std::exp(x) / sum, soft = std::exp(x / t) / soft_sum;
        if (q[v] > 0) loss += a * t * t * q[v] * (std::log((double)q[v]) - (x / t - std::log(soft_sum)));
        d[v] = (float)((1 - a) * (p - (v == target)) + a * t * (soft - q[v]));
    }
    return loss;
}

// ----- mistakes
//     square: a * t * (soft - q[v]) ==> a * t * t * (soft - q[v])
//     no-factor: a * t * (soft - q[v]) ==> a * (soft - q[v])
//     cold: std::exp(x / t) / soft_sum ==> std::exp(x) / sum
//     target: (p - (v == target)) ==> p
//     shares: loss = (1 - a) * ==> loss = a * ;; (float)((1 - a) * (p ==> (float)(a * (p ;;
//         + a * t * (soft ==> + (1 - a) * t * (soft ;; loss += a * t * t ==> loss += (1 - a) * t * t
//     entropy: (std::log((double)q[v]) - (x / t - std::log(soft_sum))) ==> -(x / t - std::log(soft_sum))
//     sign: (soft - q[v]) ==> (q[v] - soft)
//     nan: if (q[v] > 0) loss ==> loss
//     infinite: float top = z[0]; ==> float top = 0; ;; top = std::max(top, z[v]) ==> top = 0

// ----- judge
#include "dev/course/exercises/judge.h"
void judge(Judge& j, decltype(task::distilled_loss)* distilled_loss) {
    j.hints = {{"square", "d has t^2 where the derivative of z / t has taken one t out again."},
               {"no-factor", "d lacks a factor t: t^2 from the loss, divided by the t that divides z."},
               {"cold", "soft is taken at t = 1 in the gradient."},
               {"target", "the text has no say in d: p is to become 1 at the target."},
               {"shares", "a and 1 - a are exchanged: a is the teacher's share."},
               {"entropy", "the teacher's own entropy is missing: the divergence is 0 where both are equal."},
               {"sign", "d pushes the student away from its teacher."},
               {"nan", "0 log 0 is not a number: a q[v] of 0 adds nothing."},
               {"infinite", "exponentials overflow: take the largest score out of all of them first."}};
    for (int64_t n : {2, 3, 50})
        for (float t : {1.0f, 2.0f})
            for (float scale : {1.0f, 1000.0f}) {
                j.sizes("n %d, t %g, scores up to %g", (int)n, (double)t, (double)scale);
                const std::vector<float> z = j.random(n, scale), u = j.random(n);
                std::vector<float> q(n), d = begins(n);
                double all = 0;
                for (int64_t v = 0; v < n; v++) all += q[v] = v == 1 ? 0 : std::exp(u[v]);
                for (float& p : q) p = (float)(p / all);
                const int64_t target = n - 1;
                const float a = 0.3f;
                const double loss = distilled_loss(d.data(), z.data(), q.data(), target, a, t, n);
                const bool finite = std::all_of(d.begin(), d.end(), [](float x) { return std::isfinite(x); });
                j.expect(finite, "infinite", "d has numbers that are not finite");
                if (!finite) continue;
                j.check({{"d", {n}, d}, {"loss", {1}, std::vector<double>{loss}, std::vector<float>{-1}}},
                        [&](const Key& wrong) -> Arrays {
                            const double top = *std::max_element(z.begin(), z.end());
                            double sum = 0, soft_sum = 0;
                            for (float x : z) sum += std::exp(x - top), soft_sum += std::exp((x - top) / t);
                            const double share = wrong == "shares" ? 1 - (double)a : a;
                            double found = (1 - share) * (std::log(sum) - (z[target] - top));
                            std::vector<double> gradient(n);
                            for (int64_t v = 0; v < n; v++) {
                                const double x = z[v] - top, p = std::exp(x) / sum;
                                const double soft = wrong == "cold" ? p : std::exp(x / t) / soft_sum;
                                const double log_soft = x / t - std::log(soft_sum);
                                const double own = wrong == "entropy" ? 0 : std::log((double)q[v]);
                                if (q[v] > 0 || wrong == "nan") found += share * t * t * q[v] * (own - log_soft);
                                const double factor = wrong == "square" ? t * t : wrong == "no-factor" ? 1 : t;
                                gradient[v] = (1 - share) * (p - (wrong != "target" && v == target)) +
                                              (wrong == "sign" ? -1 : 1) * share * factor * (soft - q[v]);
                            }
                            return {gradient, {found}};
                        });
            }
}
