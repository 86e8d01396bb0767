// ----- task
// The loss of one token, whose logits are divided among processes. Rank r has n of them, those of
// the tokens r * n to r * n + n - 1; `target` is the token that came next, in 0 .. size * n - 1.
// Logits may be large: e^logit overflows.
//
//     p    = e^(logit - M) / S           M: the maximum of all logits, S: the sum of all e^(logit - M)
//     loss = log S + M - logit[target]
//
// logits (n) are replaced by their gradients, p - onehot(target). All ranks return the loss. No
// rank sends its logits: no message is longer than 3 numbers.
//
//     me.rank, me.size
//     me.all_reduce(data, n)            data (n) becomes the sum over the ranks
//     me.all_gather(data, slice, n)     data (n) gets the slices (n / size) of all ranks
float split_softmax(Rank& me, float* logits, int64_t n, int64_t target) {
    // your code
    return 0;
}

// ----- solution
float split_softmax(Rank& me, float* logits, int64_t n, int64_t target) {
    const int64_t at = target - me.rank * n;
    const bool here = at >= 0 && at < n;
    float mine[3] = {-INFINITY, 0, here ? logits[at] : 0};  // maximum, sum, the target's logit
    for (int64_t i = 0; i < n; i++) mine[0] = std::max(mine[0], logits[i]);
    for (int64_t i = 0; i < n; i++) mine[1] += std::exp(logits[i] - mine[0]);
    std::vector<float> all(3 * me.size);
    me.all_gather(all.data(), mine, 3 * me.size);
    float M = -INFINITY, S = 0, wanted = 0;
    for (int r = 0; r < me.size; r++) M = std::max(M, all[3 * r]);
    for (int r = 0; r < me.size; r++) S += all[3 * r + 1] * std::exp(all[3 * r] - M), wanted += all[3 * r + 2];
    for (int64_t i = 0; i < n; i++) logits[i] = std::exp(logits[i] - M) / S;
    if (here) logits[at] -= 1;
    return std::log(S) + M - wanted;
}

// ----- mistakes
//     unscaled: all[3 * r + 1] * std::exp(all[3 * r] - M) ==> all[3 * r + 1]
//     own-sum: logits[i] = std::exp(logits[i] - M) / S; ==> logits[i] = std::exp(logits[i] - mine[0]) / mine[1];
//     target-everywhere: if (here) logits[at] -= 1; ==> logits[target % n] -= 1;
//     no-target: wanted += all[3 * r + 2]; ==> wanted = mine[2];
//     no-maximum: + M - wanted ==> - wanted
//     overflow: float mine[3] = ==> std::vector<float> both{0, here ? logits[at] : 0};
//         for (int64_t i = 0; i < n; i++) both[0] += std::exp(logits[i]);
//         me.all_reduce(both.data(), 2);
//         for (int64_t i = 0; i < n; i++) logits[i] = std::exp(logits[i]) / both[0];
//         if (here) logits[at] -= 1;
//         return std::log(both[0]) - both[1];
//         float mine[3] =
//     bytes: std::vector<float> all(3 * me.size); ==> std::vector<float> whole(n * me.size);
//         me.all_gather(whole.data(), logits, n * me.size); std::vector<float> all(3 * me.size);
//     deadlock: me.all_gather(all.data(), mine, 3 * me.size); ==> if (here) me.all_gather(all.data(), mine,
//         3 * me.size);

// ----- judge
#include "dev/course/exercises/ranks.h"
// The losses of all ranks, and their gradients.
static Arrays softmax_with(const std::vector<float>& logits, int size, int64_t n, int64_t target, const Key& wrong) {
    std::vector<double> losses, gradients;
    double M = -INFINITY, S = 0, unscaled = 0;
    for (const float x : logits) M = std::max(M, (double)x);
    for (const float x : logits) S += std::exp(x - M);
    std::vector<double> maxima(size, -INFINITY), sums(size);
    for (int64_t i = 0; i < size * n; i++) maxima[i / n] = std::max(maxima[i / n], (double)logits[i]);
    for (int64_t i = 0; i < size * n; i++) sums[i / n] += std::exp(logits[i] - maxima[i / n]);
    for (const double sum : sums) unscaled += sum;
    if (wrong == "unscaled") S = unscaled;
    for (int64_t r = 0; r < size; r++) {
        const double wanted = wrong == "no-target" && target / n != r ? 0 : logits[target];
        losses.push_back(std::log(S) + (wrong == "no-maximum" ? 0 : M) - wanted);
    }
    for (int64_t i = 0; i < size * n; i++) {
        const bool own = wrong == "own-sum", everywhere = wrong == "target-everywhere";
        gradients.push_back(std::exp(logits[i] - (own ? maxima[i / n] : M)) / (own ? sums[i / n] : S) -
                            (everywhere ? i % n == target % n : i == target));
    }
    return {losses, gradients};
}

void judge(Judge& j, decltype(task::split_softmax)* split_softmax) {
    j.hints = {
        {"deadlock", "not all ranks make the same collective calls, in the same order."},
        {"bytes", "more than 3 numbers are sent at a time: maximum, sum and the target's logit are enough."},
        {"overflow", "e^logit is infinite from 89 on: take the maximum of all ranks off first."},
        {"unscaled",
         "each rank's sum is of e^(logit - its own maximum): times e^(own maximum - M), before they are "
         "added."},
        {"own-sum", "the probabilities of each rank add up to 1; all together must, with the sum and maximum of all."},
        {"target-everywhere", "1 is taken off on every rank; only one has the target."},
        {"no-target", "only one rank has the target's logit; the others need it for the loss."},
        {"no-maximum", "the loss is log S + M - logit[target]; M is missing."}};
    for (auto [size, n, target] : {std::tuple<int, int64_t, int64_t>{1, 3, 1}, {2, 4, 6}, {3, 5, 2}, {4, 2, 7}}) {
        j.sizes("%d ranks, %d logits each, target %d", size, (int)n, (int)target);
        std::vector<float> logits = j.random(size * n), losses(size);
        for (float& x : logits) x = 2 * x + 100;
        std::vector<float> gradients = logits;
        Post post;
        const std::string problem = run_ranks(size, post, [&, n = n, target = target](Rank& me) {
            losses[me.rank] = split_softmax(me, &gradients[me.rank * n], n, target);
        });
        if (!problem.empty()) {
            j.expect(false, "deadlock", "%s", problem.c_str());
            continue;
        }
        const int64_t largest = *std::max_element(post.largest.begin(), post.largest.end());
        if (largest > 3) {
            j.expect(false, "bytes", "a rank sent %d numbers at a time, asked: 3", (int)largest);
            continue;
        }
        if (!std::isfinite(losses[0])) {
            j.expect(false, "overflow", "the loss is %f", losses[0]);
            continue;
        }
        j.check({{"loss of rank", {size}, losses, std::vector<float>(size)},
                 {"gradient of rank", {size, n}, gradients, logits}},
                [&, size = size, n = n, target = target](const Key& wrong) -> Arrays {
                    return softmax_with(logits, size, n, target, wrong);
                });
    }
}
