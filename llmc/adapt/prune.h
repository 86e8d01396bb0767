// --prune: weights of the layers' matrices become 0 and stay 0.
//
// By magnitude: of a matrix with n weights the s n smallest become 0, of equal ones the first
// (LeCun et al. 1990; Han et al. 2015, arXiv:1506.02626). 2:4: of every four weights beside each
// other, which belong to four inputs of one output, the two smallest; sparse tensor cores multiply
// such matrices twice as fast (Mishra et al. 2021, arXiv:2104.08378). At once, in the step that
// --prune-steps names; or, from one step to another, to a sparsity that rises fast at first, when
// there is much to spare, and then slower (Zhu & Gupta 2017, arXiv:1710.01878, section 3):
//
//     sparsity(t) = s - s (1 - (t - from) / (to - from))^3
//
// There is no mask: a weight that is 0 is pruned. When it becomes 0, so do its fp32 master and what
// the optimizer keeps of it, and from then on its gradient is set to 0 before the norm is computed.
// Then no rule of optimizers.h that works by element changes it: each moves a weight by a multiple
// of its m, its gradient and itself. So the checkpoint of a pruned model needs nothing more, and a
// run goes on from it to the same bits. A weight that training happens to bring to 0 is pruned,
// too.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include "llmc/adapt/trained.h"
#include "llmc/base/parse.h"

struct Pruning {
    bool two_of_four = false;
    double sparsity = 0;       // s
    int64_t from = 0, to = 0;  // equal: at once

    explicit operator bool() const { return sparsity > 0; }
};
constexpr int64_t PRUNINGS = 20;  // at most so many from one step to the other: each takes about as long as a step

// What is pruned after `step` steps; 0 before the first time.
inline double sparsity_at(const Pruning& p, int64_t step) {
    if (step < p.from || (step == p.from && p.from < p.to)) return 0;
    if (step >= p.to) return p.sparsity;
    const double left = 1 - (double)(step - p.from) / (double)(p.to - p.from);
    return p.sparsity - p.sparsity * left * left * left;
}
// Whether weights become 0 after `step` steps.
inline bool prunes_at(const Pruning& p, int64_t step) {
    if (!p || step < p.from || step > p.to) return false;
    const int64_t every = std::max<int64_t>(1, (p.to - p.from + PRUNINGS - 1) / PRUNINGS);
    return step == p.to || (step > p.from && (step - p.from) % every == 0);
}

// The weights of one matrix, pruned. n: how many become 0.
inline void prune_smallest(std::vector<float>& weights, int64_t n) {
    if (n == 0) return;
    std::vector<float> sizes(weights.size());
    for (size_t i = 0; i < sizes.size(); i++) sizes[i] = std::fabs(weights[i]);
    std::nth_element(sizes.begin(), sizes.begin() + (n - 1), sizes.end());
    const float largest = sizes[n - 1];
    const auto smaller = [&](float w) { return std::fabs(w) < largest; };
    int64_t equal = n - std::count_if(weights.begin(), weights.end(), smaller);
    for (float& w : weights)
        if (smaller(w) || (std::fabs(w) == largest && equal-- > 0)) w = 0;
}
inline void prune_two_of_four(std::vector<float>& weights) {
    for (size_t first = 0; first < weights.size(); first += 4) {
        float* const four = &weights[first];
        int order[] = {0, 1, 2, 3};
        std::stable_sort(order, order + 4, [&](int a, int b) { return std::fabs(four[a]) < std::fabs(four[b]); });
        four[order[0]] = four[order[1]] = 0;
    }
}
inline void prune(std::vector<float>& weights, const Pruning& p, double sparsity) {
    if (p.two_of_four) prune_two_of_four(weights);
    else prune_smallest(weights, std::llround(sparsity * (double)weights.size()));
}

// What --prune and --prune-steps say. Exit 2 if that, or what goes with it, is not accepted.
inline Pruning pruning_of(const Options& o, const GPT2Config& c) {
    Pruning p;
    p.two_of_four = o.prune == "2:4";
    if (p.two_of_four) p.sparsity = 0.5;
    else if (!parse_real(o.prune, p.sparsity) || p.sparsity < 0 || p.sparsity >= 1)
        usage_error("--prune %s is no sparsity; 0 to less than 1 is accepted, or 2:4", o.prune);
    const std::string& steps = o.prune_steps;
    const size_t dash = steps.find('-');
    const bool range = dash != steps.npos;
    if (!parse_whole(steps.substr(0, dash), p.from) || !parse_whole(range ? steps.substr(dash + 1) : steps, p.to) ||
        p.from < 0 || p.to < p.from || (range && p.to == p.from))
        usage_error("--prune-steps %s names no steps; N, or FROM-TO with FROM below TO, is accepted", steps);
    if (!p) {
        if (steps != Options().prune_steps) usage_error("--prune-steps %s has no effect without --prune", steps);
        return p;
    }
    const std::string flag = "--prune " + o.prune;
    if (p.two_of_four && range)
        usage_error("%s with --prune-steps %s: it prunes at once; --prune-steps N is accepted", flag, steps);
    if (p.two_of_four && c.C % 4 != 0) usage_error("%s needs multiples of 4 channels, and the model has %d", flag, c.C);
    if (!o.weights.empty())
        usage_error("%s with --weights %s, in whose codes nothing can be pruned; one of them is accepted", flag,
                    o.weights);
    if (o.train != "all" || c.lora.rank > 0)
        usage_error("%s with %s, which leaves weights as they are; one of them is accepted", flag,
                    c.lora.rank > 0 ? format("adapters of rank %d", c.lora.rank) : "--train " + o.train);
    if (o.max_steps == 0) {
        if (p.to > 0 && o.given.count("--prune-steps"))
            usage_error("%s --prune-steps %s with -x 0, which makes no steps; 0 is accepted", flag, steps);
        return p.to > 0 ? Pruning() : p;
    }
    if (o.ema > 0) usage_error("%s with --ema %g, an average that is not pruned; one of them is accepted", flag, o.ema);
    const char* reason = "which does not know what is pruned";
    const OptimizerInfo& optimizer = OPTIMIZERS[find_optimizer(o.optimizer.c_str())];
    if (o.zero_stage > 1) usage_error("%s with -z %d, %s; -z 0 and -z 1 are accepted", flag, o.zero_stage, reason);
    if (optimizer.whole_tensors || !optimizer.keeps_by_element())
        usage_error("%s with --optimizer %s, %s; adamw, adam, sgd and others that keep fp32 are accepted", flag,
                    o.optimizer, reason);
    check_partial_training(flag, o, reason);
    return p;
}

// Weights of the matrices of the layers.
inline int64_t prunable_elems(const GPT2Config& c) { return 12 * c.C * c.C * c.L; }

inline std::string pruning_text(const Pruning& p, const GPT2Config& c) {
    const std::string at = p.to > 0 ? format("after step %d", p.to) : "at once",
                      when = p.from < p.to ? format("from step %d to %d", p.from, p.to) : at;
    return format("pruning: %s of the %s weights of the layers' matrices become 0 and stay 0, %s",
                  p.two_of_four ? "two of four" : format("%g%%", 100 * p.sparsity), grouped_text(prunable_elems(c)),
                  when);
}
