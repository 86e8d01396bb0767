// ----- task
// The gradients of one step in a pipeline (Huang et al. 2018, arXiv:1811.06965, section 2.2). Each
// rank is a stage: it multiplies its input, n numbers, by its n weights, and sends the products on.
// `micro` micro-batches go forward one after the other, then back in the same order:
//
//     rank 0    x = inputs[i]                          i = 0 to micro - 1, the number of the micro-batch
//     others    x = what rank - 1 sends
//     all       y = weight * x, which goes to rank + 1
//
//     last      d = (y - targets[i]) / micro           of Loss = the mean over i of sum (y - targets[i])^2 / 2
//     others    d = what rank + 1 sends
//     all       Dweight = sum over i of d * x;   d * weight goes to rank - 1
//
// dweight (n) is written. inputs (micro, n) are there on rank 0 alone, targets (micro, n) on the
// last.
//
//     me.rank, me.size
//     me.send(to, data, n)         never waits
//     me.receive(from, data, n)    messages from one rank to another arrive in order
void pipeline_step(Rank& me, float* dweight, const float* weight, const float* inputs, const float* targets,
                   int64_t micro, int64_t n) {
    // your code
}

// ----- solution
void pipeline_step(Rank& me, float* dweight, const float* weight, const float* inputs, const float* targets,
                   int64_t micro, int64_t n) {
    const bool first = me.rank == 0, last = me.rank == me.size - 1;
    std::vector<float> x(inputs, inputs + micro * n), y(micro * n), d(n);  // x: each micro-batch's is needed again
    for (int64_t i = 0; i < micro; i++) {
        if (!first) me.receive(me.rank - 1, &x[i * n], n);
        for (int64_t c = 0; c < n; c++) y[i * n + c] = weight[c] * x[i * n + c];
        if (!last) me.send(me.rank + 1, &y[i * n], n);
    }
    std::fill(dweight, dweight + n, 0.0f);
    for (int64_t i = 0; i < micro; i++) {
        if (!last) me.receive(me.rank + 1, d.data(), n);
        for (int64_t c = 0; c < n; c++) {
            if (last) d[c] = (y[i * n + c] - targets[i * n + c]) / micro;
            dweight[c] += d[c] * x[i * n + c];
            d[c] *= weight[c];
        }
        if (!first) me.send(me.rank - 1, d.data(), n);
    }
}

// ----- mistakes
//     order: dweight[c] += d[c] * x[i * n + c]; ==> dweight[c] += d[c] * x[(last ? i : micro - 1 - i) * n + c];
//     not-kept: dweight[c] += d[c] * x[i * n + c]; ==> dweight[c] += d[c] * x[(micro - 1) * n + c];
//     not-summed: dweight[c] += ==> dweight[c] =
//     no-mean: / micro; ==> ;
//     weight: d[c] *= weight[c]; ==> ;
//     deadlock: if (!first) me.send(me.rank - 1, d.data(), n); ==> ;

// ----- judge
#include "dev/course/exercises/ranks.h"
// The gradients of all ranks.
static Arrays gradients_of(const std::vector<std::vector<float>>& weights, const std::vector<float>& inputs,
                           const std::vector<float>& targets, int64_t micro, int64_t n, const Key& wrong) {
    const int64_t P = (int64_t)weights.size();
    std::vector<double> gradients(P * n);
    for (int64_t c = 0; c < n; c++)
        for (int64_t i = 0; i < micro; i++) {
            const auto x = [&](int64_t stage, int64_t of) {
                double value = inputs[of * n + c];
                for (int64_t s = 0; s < stage; s++) value *= weights[s][c];
                return value;
            };
            double d = (x(P, i) - targets[i * n + c]) / (wrong == "no-mean" ? 1 : (double)micro);
            for (int64_t s = P - 1; s >= 0; s--) {
                int64_t of = i;
                if (wrong == "order" && s < P - 1) of = micro - 1 - i;
                if (wrong == "not-kept") of = micro - 1;
                double& g = gradients[s * n + c];
                g = (wrong == "not-summed" ? 0 : g) + d * x(s, of);
                if (wrong != "weight") d *= weights[s][c];
            }
        }
    return {gradients};
}

void judge(Judge& j, decltype(task::pipeline_step)* pipeline_step) {
    j.hints = {{"deadlock", "each message that is sent is received, and none is waited for that nobody sends."},
               {"order", "gradients come back in the order of the micro-batches: the first is that of micro-batch 0."},
               {"not-kept", "a stage needs the x of each micro-batch again: keep them all until they have come back."},
               {"not-summed", "Dweight is the sum over the micro-batches."},
               {"no-mean", "the loss is the mean over the micro-batches: divide by micro."},
               {"weight", "the gradient that goes to the stage before is that of its output: d * weight."}};
    for (auto [size, micro] : {std::pair<int, int64_t>{1, 3}, {2, 1}, {2, 4}, {4, 3}, {3, 6}}) {
        const int64_t n = 5;
        j.sizes("%d ranks, %d micro-batches", size, (int)micro);
        std::vector<std::vector<float>> weights, dweights(size, begins(n));
        for (int r = 0; r < size; r++) weights.push_back(j.random(n, 2));
        const std::vector<float> inputs = j.random(micro * n), targets = j.random(micro * n), none(micro * n, NAN);
        Post post;
        const std::string problem = run_ranks(size, post, [&, size = size, micro = micro](Rank& me) {
            const bool first = me.rank == 0, last = me.rank == size - 1;
            pipeline_step(me, dweights[me.rank].data(), weights[me.rank].data(), (first ? inputs : none).data(),
                          (last ? targets : none).data(), micro, n);
        });
        if (!problem.empty()) {
            j.expect(false, "deadlock", "%s", problem.c_str());
            continue;
        }
        std::vector<float> all, began;
        for (int r = 0; r < size; r++) {
            const std::vector<float> start = begins(n);
            all.insert(all.end(), dweights[r].begin(), dweights[r].end());
            began.insert(began.end(), start.begin(), start.end());
        }
        j.check({{"dweight of rank", {size, n}, all, began}}, [&, micro = micro](const Key& wrong) -> Arrays {
            return gradients_of(weights, inputs, targets, micro, n, wrong);
        });
    }
}
