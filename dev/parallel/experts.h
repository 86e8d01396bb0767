// A mixture of experts in place of the MLP of a layer: E MLPs, of which each token uses k. A router
// chooses them, and process r of P has experts r E/P to (r+1) E/P - 1, so tokens travel.
//
//     p = softmax(Wr x)                        over the E experts; Wr (E, C) is the router, on every process
//     g_i = p_i / (sum of the chosen p)        gates of the k largest; with k = 1 that would be 1, whatever
//                                              the router does, and there g = p
//     y = sum of g_i expert_i(x)
//
// Messages have a fixed size: of the tokens of a sequence an expert takes at most
//
//     capacity = ceil(factor k T / E)
//
// First choices before second ones, early positions before late ones; who comes too late is
// dropped. That choice adds nothing to y, and the residual stream goes on. Places that stay empty
// travel and are computed as zeros.
//
// Left to itself the router prefers who is chosen often, who then learns most. An auxiliary loss
// pulls it to even loads: with f_e the share of the choices that fall on e, before any is dropped,
// and P_e the mean of p_e over the sequence,
//
//     aux = alpha E sum over e of f_e P_e,     d(aux) / dp_e = alpha E f_e / T
//
// f has no gradient: it counts.
//
// Sources: Shazeer et al. 2017, arXiv:1701.06538; Lepikhin et al. 2020, arXiv:2006.16668, section
// 2.2 (capacity, all-to-all, gates of two); Fedus et al. 2021, arXiv:2101.03961, section 2.2 (k =
// 1, aux).
#pragma once
#include "dev/parallel/parallel.h"

constexpr int ROUTER = NUM_TENSORS;  // beside the tensors of the model

struct Experts {
    int64_t P, rank, E, k, capacity;
    float alpha;

    int64_t own() const { return E / P; }
    int64_t places() const { return E * capacity; }                    // of a sequence; as many on an expert's process
    int64_t hidden(const GPT2Config& c) const { return 4 * c.C / k; }  // so k experts have the FLOPs of one MLP
    int64_t piece_bytes(const GPT2Config& c) const { return own() * capacity * c.C * (int64_t)sizeof(float); }
};
inline int64_t capacity_of(double factor, int64_t k, int64_t E) {
    return std::min(T, (int64_t)std::ceil(factor * (double)(k * T) / (double)E));
}

// What a layer keeps of a sequence. Of its tokens: probabilities (T, E), gates (T, k), and what
// came back (E, capacity, C). Of the experts here: what arrived (P, E/P, capacity, C), fch and
// gelu.
struct ExpertsRecord {
    Counted probabilities, gates, returned, arrived, fch, gelu;
    std::vector<int64_t> chosen, places;  // (k, T); place: in (E, capacity), -1 where it was dropped
};
inline int64_t experts_record_elems(const Experts& x, const GPT2Config& c) {
    return T * (x.E + x.k) + x.places() * (2 * c.C + 2 * x.hidden(c));
}
inline ExpertsRecord experts_record(const Experts& x, const GPT2Config& c) {
    const int64_t n = x.places() * c.C, wide = x.places() * x.hidden(c);
    return {Counted(T * x.E),
            Counted(T * x.k),
            Counted(n),
            Counted(n),
            Counted(wide),
            Counted(wide),
            std::vector<int64_t>(T * x.k),
            std::vector<int64_t>(T * x.k)};
}

// ---- the router

// r.chosen, r.gates and r.places from r.probabilities.
inline void choose(const Experts& x, ExpertsRecord& r) {
    std::vector<int64_t> taken(x.E);
    for (int64_t i = 0; i < x.k; i++)
        for (int64_t t = 0; t < T; t++) {
            const float* p = &r.probabilities[t * x.E];
            int64_t best = -1;
            for (int64_t e = 0; e < x.E; e++)
                if ((best < 0 || p[e] > p[best]) && (i == 0 || e != r.chosen[t])) best = e;
            r.chosen[i * T + t] = best;
            r.gates[t * x.k + i] = p[best];
            r.places[i * T + t] = taken[best] < x.capacity ? best * x.capacity + taken[best] : -1;
            taken[best]++;
        }
    for (int64_t t = 0; t < T && x.k == 2; t++) {
        float* g = &r.gates[t * 2];
        const float sum = g[0] + g[1];
        g[0] /= sum, g[1] /= sum;
    }
}
inline void router_forward(const Experts& x, ExpertsRecord& r, const float* inp, const float* weight, int64_t C) {
    kernels::matmul_forward(r.probabilities.data(), inp, weight, (const float*)nullptr, T, C, x.E);
    for (int64_t t = 0; t < T; t++) {
        float *p = &r.probabilities[t * x.E], sum = 0;
        const float most = *std::max_element(p, p + x.E);
        for (int64_t e = 0; e < x.E; e++) sum += p[e] = std::exp(p[e] - most);
        for (int64_t e = 0; e < x.E; e++) p[e] /= sum;
    }
    choose(x, r);
}
inline std::vector<int64_t> loads(const Experts& x, const ExpertsRecord& r) {
    std::vector<int64_t> n(x.E);
    for (const int64_t e : r.chosen) n[e]++;
    return n;
}
// alpha E sum f P of one sequence.
inline double auxiliary_loss(const Experts& x, const ExpertsRecord& r) {
    const std::vector<int64_t> n = loads(x, r);
    double sum = 0;
    for (size_t i = 0; i < r.probabilities.size(); i++) sum += (double)n[i % x.E] * r.probabilities[i];
    return x.alpha * (double)x.E * sum / (double)(x.k * T * T);
}
// dinp (T, C) is written and dweight (E, C) added to, from dgates (T, k). With Dx the
// gradient of x, and S the sum of the chosen p,
//
//     k = 1:  Dp_i = Dg_i          k = 2:  Dp_i = (Dg_i - sum over j of g_j Dg_j) / S
//     Dlogit_e = p_e (Dp_e - sum over f of p_f Dp_f)
//
// share: of a sequence in the step, by which aux is weighted.
inline void router_backward(const Experts& x, const ExpertsRecord& r, float* dinp, float* dweight, const Floats& dgates,
                            const float* inp, const float* weight, int64_t C, float share) {
    const std::vector<int64_t> n = loads(x, r);
    Floats dlogits(T * x.E), dp(x.E);
    for (int64_t t = 0; t < T; t++) {
        const float *p = &r.probabilities[t * x.E], *g = &r.gates[t * x.k], *dg = &dgates[t * x.k];
        for (int64_t e = 0; e < x.E; e++) dp[e] = share * x.alpha * (float)(x.E * n[e]) / (float)(x.k * T * T);
        float mean = 0, sum = 0;
        for (int64_t i = 0; i < x.k; i++) mean += g[i] * dg[i], sum += p[r.chosen[i * T + t]];
        for (int64_t i = 0; i < x.k; i++) dp[r.chosen[i * T + t]] += x.k == 1 ? dg[i] : (dg[i] - mean) / sum;
        mean = 0;
        for (int64_t e = 0; e < x.E; e++) mean += p[e] * dp[e];
        for (int64_t e = 0; e < x.E; e++) dlogits[t * x.E + e] = p[e] * (dp[e] - mean);
    }
    kernels::matmul_backward(dinp, dweight, (float*)nullptr, dlogits.data(), inp, weight, T, C, x.E, true);
}

// ---- the experts

// f(expert, row): for each expert here, and each process, in order of their ranks, the first row of
// the tokens of the one for the other. Sums over sequences are then in the same order for any P.
template <class F>
void for_pieces(const Experts& x, F f) {
    for (int64_t s = 0; s < x.P; s++)
        for (int64_t e = 0; e < x.own(); e++) f(e, (s * x.own() + e) * x.capacity);
}
inline void exchange(const Experts& x, const GPT2Config& c, float* to, const Floats& from, const char* what) {
    comm_wait(comm_exchange_start(to, from.data(), x.piece_bytes(c), 0), what);
}
// out (T, C) = residual (T, C) + y, from inp (T, C). own: the experts here.
inline void experts_forward(const Experts& x, Part& part, std::vector<Part>& own, int64_t l, ExpertsRecord& r,
                            float* out, const float* residual, const float* inp) {
    const int64_t C = part.c.C, H = x.hidden(part.c);
    Floats sent(x.places() * C);
    router_forward(x, r, inp, part.weight(ROUTER, l), C);
    for (int64_t i = 0; i < T * x.k; i++)
        if (r.places[i] >= 0) std::copy_n(inp + i % T * C, C, &sent[r.places[i] * C]);
    exchange(x, part.c, r.arrived.data(), sent, "the experts' tokens");
    for_pieces(x, [&](int64_t e, int64_t row) {
        const auto w = [&](int tensor) { return own[e].weight(tensor, l); };
        kernels::matmul_forward(&r.fch[row * H], &r.arrived[row * C], w(FCW), w(FCB), x.capacity, C, H,
                                &r.gelu[row * H]);
        kernels::matmul_forward(&sent[row * C], &r.gelu[row * H], w(FCPROJW), w(FCPROJB), x.capacity, H, C);
    });
    exchange(x, part.c, r.returned.data(), sent, "what experts return");
    std::copy_n(residual, T * C, out);
    for (int64_t i = 0; i < T * x.k; i++)
        for (int64_t n = 0; n < C && r.places[i] >= 0; n++)
            out[i % T * C + n] += r.gates[i % T * x.k + i / T] * r.returned[r.places[i] * C + n];
}
// dinp (T, C) is written, from dout (T, C); gradients of router and experts are added to.
inline void experts_backward(const Experts& x, Part& part, std::vector<Part>& own, int64_t l, ExpertsRecord& r,
                             float* dinp, const float* dout, const float* inp, float share) {
    const int64_t C = part.c.C, H = x.hidden(part.c);
    Floats sent(x.places() * C), here(x.places() * C), dgates(T * x.k), dfch(x.capacity * H);
    for (int64_t i = 0; i < T * x.k; i++)
        for (int64_t n = 0, t = i % T; n < C && r.places[i] >= 0; n++) {
            dgates[t * x.k + i / T] += dout[t * C + n] * r.returned[r.places[i] * C + n];
            sent[r.places[i] * C + n] = r.gates[t * x.k + i / T] * dout[t * C + n];
        }
    exchange(x, part.c, here.data(), sent, "the gradients of experts' outputs");
    for_pieces(x, [&](int64_t e, int64_t row) {
        const auto w = [&](int tensor) { return own[e].weight(tensor, l); };
        const auto g = [&](int tensor) { return own[e].gradient(tensor, l); };
        kernels::matmul_backward(dfch.data(), g(FCPROJW), g(FCPROJB), &here[row * C], &r.gelu[row * H], w(FCPROJW),
                                 x.capacity, H, C, true, &r.fch[row * H]);
        kernels::matmul_backward(&sent[row * C], g(FCW), g(FCB), dfch.data(), &r.arrived[row * C], w(FCW), x.capacity,
                                 C, H, true);
    });
    exchange(x, part.c, here.data(), sent, "the gradients of experts' tokens");
    router_backward(x, r, dinp, part.gradient(ROUTER, l), dgates, inp, part.weight(ROUTER, l), C, share);
    for (int64_t i = 0; i < T * x.k; i++)
        for (int64_t n = 0; n < C && r.places[i] >= 0; n++) dinp[i % T * C + n] += here[r.places[i] * C + n];
}

// ---- their weights

inline bool is_of_expert(int i) { return i == FCW || i == FCB || i == FCPROJW || i == FCPROJB; }
// Expert e begins as the MLP of a model drawn from seed + e: with one expert that is this model's.
// With k = 2 only the first half of its hidden units stays.
inline Part first_expert(const Experts& x, const GPT2Config& c, uint64_t seed, int64_t e) {
    const int64_t H = x.hidden(c);
    return first_weights(c, seed + e, [&](int i, int64_t, Floats&& all) {
        if (!is_of_expert(i)) return Floats();
        if (i == FCW) all.resize(H * c.C);
        if (i == FCB) all.resize(H);
        for (int64_t row = 0; row < c.C && i == FCPROJW; row++) std::copy_n(&all[row * 4 * c.C], H, &all[row * H]);
        if (i == FCPROJW) all.resize(c.C * H);
        return std::move(all);
    });
}
inline void add_routers(const Experts& x, Part& part, uint64_t seed) {
    MersenneTwister rng(seed);
    for (int64_t l = 0; l < part.c.L; l++) {
        Floats weight(x.E * part.c.C), zeros(weight.size());
        normal_fill(rng, weight.data(), (int64_t)weight.size(), 0.02f);
        part.parameters[{ROUTER, l}] = {weight, zeros, zeros, zeros};
    }
}
