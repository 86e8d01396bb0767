// ----- task
// The end of a step on a mesh of D replicas, P stages and N parts: each process has gradients of
// its own micro-batches, its own layers, its own part of them, and the sums over others are
// missing. rank = (stage D + replica) N + part.
//
//     weight (n)     cut among the parts. Replicas have it from other micro-batches.
//     norm (n)       not cut: all parts of a stage have the same weights of a layer norm, but, with sequence
//                    parallelism, each has the gradient from its own tokens alone.
//     wte (n)        cut among the parts. It is in the first stage, as the embedding, and in the last, as the
//                    classifier, and must stay the same there: the gradient is the sum of both. Other stages have none.
//
// Replace them by the gradients of the whole batch.
//
//     me.rank
//     me.sum_among(data, n, {ranks})    data (n) becomes the sum over these ranks, all of which call it
void mesh_gradients(Rank& me, float* weight, float* norm, float* wte, int64_t n, int D, int P, int N) {
    // your code
}

// ----- solution
void mesh_gradients(Rank& me, float* weight, float* norm, float* wte, int64_t n, int D, int P, int N) {
    const int part = me.rank % N, replica = me.rank / N % D, stage = me.rank / (N * D);
    std::vector<int> parts, replicas;
    for (int i = 0; i < N; i++) parts.push_back((stage * D + replica) * N + i);
    for (int i = 0; i < D; i++) replicas.push_back((stage * D + i) * N + part);
    const bool ends = stage == 0 || stage == P - 1;
    me.sum_among(norm, n, parts);
    if (P > 1 && ends) me.sum_among(wte, n, {replica * N + part, ((P - 1) * D + replica) * N + part});
    me.sum_among(weight, n, replicas);
    me.sum_among(norm, n, replicas);
    if (ends) me.sum_among(wte, n, replicas);
}

// ----- mistakes
//     no-norm: me.sum_among(norm, n, parts); ==> ;
//     weight-parts: me.sum_among(norm, n, parts); ==> me.sum_among(norm, n, parts); me.sum_among(weight, n, parts);
//     wte-apart: if (P > 1 && ends) me.sum_among(wte, ==> if (P < 0) me.sum_among(wte,
//     wte-twice: if (P > 1 && ends) ==> if (P == 1) for (int64_t i = 0; i < n; i++) wte[i] *= 2; else if (ends)
//     no-replicas: me.sum_among(weight, n, replicas); ==> ;
//     norm-replicas: me.sum_among(norm, n, replicas); ==> ;
//     deadlock: if (ends) me.sum_among(wte, n, replicas); ==> if (ends && replica == 0)
//         me.sum_among(wte, n, replicas);

// ----- judge
#include "dev/course/exercises/ranks.h"
struct Gradients {
    int D, P, N;
    int64_t n;
    std::vector<float> weight, norm, wte;  // (ranks, n)
};
static Arrays gradients_with(const Gradients& g, const Key& wrong) {
    const int D = g.D, P = g.P, N = g.N;
    Arrays found(3, std::vector<double>(g.weight.size()));
    for (int rank = 0; rank < D * P * N; rank++)
        for (int64_t i = 0; i < g.n; i++) {
            const int p = rank % N, d = rank / N % D, s = rank / (N * D);
            const int64_t here = rank * g.n + i;
            double &weight = found[0][here], &norm = found[1][here], &wte = found[2][here];
            const bool ends = s == 0 || s == P - 1;
            if (!ends) wte = g.wte[here];
            for (int replica = 0; replica < D; replica++) {
                const auto at = [&](int stage, int part) { return ((stage * D + replica) * N + part) * g.n + i; };
                for (int part = 0; part < N; part++) {
                    const bool own = replica == d, mine = part == p;
                    if ((own || wrong != "no-replicas") && (mine || wrong == "weight-parts"))
                        weight += g.weight[at(s, part)];
                    if ((own || wrong != "norm-replicas") && (mine || wrong != "no-norm")) norm += g.norm[at(s, part)];
                }
                if (!ends) continue;
                wte += g.wte[at(s, p)] * (P == 1 && wrong == "wte-twice" ? 2 : 1);
                if (P > 1 && wrong != "wte-apart") wte += g.wte[at(P - 1 - s, p)];
            }
        }
    return found;
}

void judge(Judge& j, decltype(task::mesh_gradients)* mesh_gradients) {
    j.hints = {{"deadlock", "not all of the ranks that a sum is among take part in it, in the same order."},
               {"no-norm", "each part has norm's gradient from its own tokens: the sum over the parts is missing."},
               {"weight-parts", "each part has weights of its own: their gradients are no sums over the parts."},
               {"wte-apart", "wte is in the first and in the last stage: each has only its own half of the gradient."},
               {"wte-twice", "with one stage, first and last are the same process: wte must not be added to itself."},
               {"no-replicas", "replicas have other micro-batches: the sum of weight over them is missing."},
               {"norm-replicas", "replicas have other micro-batches: the sum of norm over them is missing."}};
    for (auto [D, P, N] : {std::array<int, 3>{1, 1, 1}, {2, 1, 1}, {1, 3, 2}, {2, 2, 2}, {3, 3, 1}}) {
        j.sizes("%d replicas, %d stages, %d parts", D, P, N);
        const int64_t n = 5;
        const int all = D * P * N;
        const Gradients g{D, P, N, n, j.random(all * n), j.random(all * n), j.random(all * n)};
        Gradients mine = g;
        Post post;
        const std::string problem = run_ranks(all, post, [&](Rank& me) {
            const int64_t at = me.rank * n;
            mesh_gradients(me, &mine.weight[at], &mine.norm[at], &mine.wte[at], n, g.D, g.P, g.N);
        });
        if (!problem.empty()) {
            j.expect(false, "deadlock", "%s", problem.c_str());
            continue;
        }
        j.check({{"weight of rank", {all, n}, mine.weight, g.weight},
                 {"norm of rank", {all, n}, mine.norm, g.norm},
                 {"wte of rank", {all, n}, mine.wte, g.wte}},
                [&](const Key& wrong) -> Arrays { return gradients_with(g, wrong); });
    }
}
