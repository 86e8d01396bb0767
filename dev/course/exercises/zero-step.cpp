// ----- task
// One step of training on several processes, with ZeRO-1 (Rajbhandari et al. 2020,
// arXiv:1910.02054, section 5.1). All ranks hold the same n parameters; each has computed gradients
// from its own part of the batch. The state of AdamW, m and v, is split: rank r has it for slice r,
// numbers r * n / size and following, alone. A step:
//
//     1. the gradient of slice r, its mean over the ranks, comes to rank r
//     2. rank r updates its slice of the parameters:
//            m = 0.9 m + 0.1 g,   v = 0.95 v + 0.05 g^2
//            p = p - rate (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.95^t)) + 1e-8)
//     3. all ranks get all slices
//
// params and grads have n numbers, m and v n / me.size. t = 1, 2, ... is the number of the update.
//
//     me.rank, me.size
//     me.reduce_scatter(slice, data, n)     slice (n / size) gets slice me.rank of the sum over the ranks of data (n)
//     me.all_gather(data, slice, n)         data (n) gets the slices (n / size) of all ranks
void zero_step(Rank& me, float* params, const float* grads, float* m, float* v, int64_t n, float rate, int64_t t) {
    // your code
}

// ----- solution
void zero_step(Rank& me, float* params, const float* grads, float* m, float* v, int64_t n, float rate, int64_t t) {
    const int64_t count = n / me.size;
    std::vector<float> g(count);
    me.reduce_scatter(g.data(), grads, n);
    float* p = params + me.rank * count;
    const float correction1 = (float)(1 - std::pow(0.9, t)), correction2 = (float)(1 - std::pow(0.95, t));
    for (int64_t i = 0; i < count; i++) {
        const float mean = g[i] / me.size;
        m[i] = 0.9f * m[i] + 0.1f * mean;
        v[i] = 0.95f * v[i] + 0.05f * mean * mean;
        p[i] -= rate * (m[i] / correction1) / (std::sqrt(v[i] / correction2) + 1e-8f);
    }
    const std::vector<float> updated(p, p + count);
    me.all_gather(params, updated.data(), n);
}

// ----- mistakes
//     sum: mean = g[i] / me.size ==> mean = g[i]
//     no-gather: me.all_gather(params, updated.data(), n); ==> ;
//     own-gradient: mean = g[i] / me.size ==> mean = grads[me.rank * count + i]
//     first-slice: params + me.rank * count ==> params
//     correction: (m[i] / correction1) / (std::sqrt(v[i] / correction2) ==> m[i] / (std::sqrt(v[i])
//     deadlock: me.all_gather(params, updated.data(), n); ==> if (me.rank == 0) me.all_gather(params,
//         updated.data(), n);

// ----- judge
#include "dev/course/exercises/ranks.h"
// The parameters of all ranks, and m and v of their slices, after some steps.
static Arrays trained_with(const std::vector<float>& params, const std::vector<std::vector<float>>& grads, int size,
                           int64_t n, int steps, const Key& wrong) {
    const int64_t count = n / size;
    RankArrays p(size, doubles(params)), m(size, std::vector<double>(count)), v = m;
    for (int t = 1; t <= steps; t++) {
        RankArrays slices(size);
        for (int r = 0; r < size; r++) {
            double* mine = &p[r][wrong == "first-slice" ? 0 : r * count];
            for (int64_t i = 0; i < count; i++) {
                double g = 0;
                for (int from = 0; from < size; from++)
                    if (wrong != "own-gradient" || from == r) g += grads[(t - 1) * size + from][r * count + i];
                if (wrong != "sum" && wrong != "own-gradient") g /= size;
                m[r][i] = 0.9 * m[r][i] + 0.1 * g, v[r][i] = 0.95 * v[r][i] + 0.05 * g * g;
                const double c1 = wrong == "correction" ? 1 : 1 - std::pow(0.9, t);
                const double c2 = wrong == "correction" ? 1 : 1 - std::pow(0.95, t);
                mine[i] -= 0.01 * m[r][i] / c1 / (std::sqrt(v[r][i] / c2) + 1e-8);
            }
            slices[r].assign(mine, mine + count);
        }
        for (int r = 0; r < size && wrong != "no-gather"; r++)
            for (int64_t i = 0; i < n; i++) p[r][i] = slices[i / count][i % count];
    }
    Arrays flat(3);
    for (int r = 0; r < size; r++) {
        flat[0].insert(flat[0].end(), p[r].begin(), p[r].end());
        flat[1].insert(flat[1].end(), m[r].begin(), m[r].end());
        flat[2].insert(flat[2].end(), v[r].begin(), v[r].end());
    }
    return flat;
}

void judge(Judge& j, decltype(task::zero_step)* zero_step) {
    j.hints = {
        {"deadlock", "not all ranks make the same collective calls, in the same order."},
        {"sum", "the gradients are summed over the ranks; the mean is asked for: divide by size."},
        {"own-gradient", "each rank uses its own gradient: those of the other ranks must have a part in it."},
        {"first-slice", "all ranks update the first slice: slice r begins at r * n / size."},
        {"no-gather", "each rank has updated its own slice, but the others do not learn of it: all_gather is missing."},
        {"correction", "m and v are not divided by 1 - 0.9^t and 1 - 0.95^t."}};
    for (auto [size, count] : {std::pair<int, int64_t>{1, 5}, {2, 4}, {3, 7}}) {
        const int64_t n = size * count;
        const int steps = 3;
        j.sizes("%d ranks, %d parameters, %d steps", size, (int)n, steps);
        const std::vector<float> start = j.random(n);
        std::vector<std::vector<float>> grads, params(size, start), m(size, std::vector<float>(count)), v = m;
        for (int i = 0; i < steps * size; i++) grads.push_back(j.random(n));
        Post post;
        const std::string problem = run_ranks(size, post, [&, size = size](Rank& me) {
            const int r = me.rank;
            for (int t = 1; t <= steps; t++)
                zero_step(me, params[r].data(), grads[(t - 1) * size + r].data(), m[r].data(), v[r].data(), n, 0.01f,
                          t);
        });
        if (!problem.empty()) {
            j.expect(false, "deadlock", "%s", problem.c_str());
            continue;
        }
        std::vector<float> all[3], began;
        for (int r = 0; r < size; r++) {
            all[0].insert(all[0].end(), params[r].begin(), params[r].end());
            all[1].insert(all[1].end(), m[r].begin(), m[r].end());
            all[2].insert(all[2].end(), v[r].begin(), v[r].end());
            began.insert(began.end(), start.begin(), start.end());
        }
        const std::vector<float> zeros(n);
        j.check(
            {{"params of rank", {size, n}, all[0], began},
             {"m of rank", {size, count}, all[1], zeros},
             {"v of rank", {size, count}, all[2], zeros}},
            [&, size = size](const Key& wrong) -> Arrays { return trained_with(start, grads, size, n, steps, wrong); });
    }
}
