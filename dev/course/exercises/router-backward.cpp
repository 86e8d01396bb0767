// ----- task
// The backward pass of a router, for one token of a mixture of E experts (Lepikhin et al. 2020,
// arXiv:2006.16668, section 2.2; Fedus et al. 2021, arXiv:2101.03961, section 2.2). Forward,
//
//     p = softmax(logits)
//     g[i] = p[chosen[i]] / S,  S = p[chosen[0]] + p[chosen[1]]      the gates of the two chosen experts
//
// and the loss has an auxiliary part, sum over e of weight[e] p[e]. From p (E), chosen (2), the
// gates' gradients dg (2) and weight (E), write dlogits (E).
void router_backward(float* dlogits, const float* p, const int* chosen, const float* dg, const float* weight, int E) {
    // your code
}

// ----- solution
void router_backward(float* dlogits, const float* p, const int* chosen, const float* dg, const float* weight, int E) {
    const float S = p[chosen[0]] + p[chosen[1]];
    const float mean = (p[chosen[0]] * dg[0] + p[chosen[1]] * dg[1]) / S;  // of dg, by the gates
    std::vector<float> dp(weight, weight + E);
    for (int i = 0; i < 2; i++) dp[chosen[i]] += (dg[i] - mean) / S;
    float sum = 0;
    for (int e = 0; e < E; e++) sum += p[e] * dp[e];
    for (int e = 0; e < E; e++) dlogits[e] = p[e] * (dp[e] - sum);
}

// ----- mistakes
//     gates: dp[chosen[i]] += (dg[i] - mean) / S; ==> ;
//     not-divided: += (dg[i] - mean) / S ==> += dg[i]
//     scale: += (dg[i] - mean) / S ==> += dg[i] - mean
//     aux: dp(weight, weight + E) ==> dp(E)
//     softmax: dlogits[e] = p[e] * (dp[e] - sum) ==> dlogits[e] = dp[e]
//     chosen-only: for (int e = 0; e < E; e++) dlogits[e] = p[e] * (dp[e] - sum); ==>
//         for (int e = 0; e < E; e++) dlogits[e] = 0;
//         for (int i = 0; i < 2; i++) dlogits[chosen[i]] = p[chosen[i]] * (dp[chosen[i]] - sum);

// ----- judge
#include "dev/course/exercises/judge.h"
void judge(Judge& j, decltype(task::router_backward)* router_backward) {
    j.hints = {
        {"gates",
         "nothing comes by the gates: only the auxiliary loss reaches the router, which then learns even loads."},
        {"not-divided", "the gates are p divided by S, and S depends on both: dg minus its mean by the gates."},
        {"scale", "a gate is p / S, so its gradient is divided by S."},
        {"aux", "the auxiliary loss adds weight[e] to the gradient of every p[e]."},
        {"softmax", "this is the gradient of p; the softmax leads from there to the logits."},
        {"chosen-only",
         "the logits of experts that were not chosen have a gradient, too: the softmax has all in its sum."}};
    for (const int E : {2, 4, 8, 33}) {
        j.sizes("%d experts", E);
        std::vector<float> p = j.random(E), dg = j.random(2), weight = j.random(E), dlogits = begins(E);
        double sum = 0;
        for (float& x : p) x = std::exp(x), sum += x;
        for (float& x : p) x = (float)(x / sum);
        const std::vector<int> chosen{E - 1, E / 3};
        router_backward(dlogits.data(), p.data(), chosen.data(), dg.data(), weight.data(), E);
        j.check({{"dlogits", {E}, dlogits, begins(E)}}, [&](const Key& wrong) -> Arrays {
            const double S = (double)p[chosen[0]] + p[chosen[1]];
            const double mean = (p[chosen[0]] * (double)dg[0] + p[chosen[1]] * (double)dg[1]) / S;
            std::vector<double> dp(weight.begin(), weight.end()), D(E);
            if (wrong == "aux") dp.assign(E, 0);
            for (int i = 0; i < 2; i++) {
                const double by_gates = wrong == "not-divided" ? dg[i] : (dg[i] - mean) / (wrong == "scale" ? 1 : S);
                dp[chosen[i]] += wrong == "gates" ? 0 : by_gates;
            }
            double inner = 0;
            for (int e = 0; e < E; e++) inner += p[e] * dp[e];
            for (int e = 0; e < E; e++) {
                const bool left_out = wrong == "chosen-only" && e != chosen[0] && e != chosen[1];
                D[e] = wrong == "softmax" ? dp[e] : left_out ? 0 : p[e] * (dp[e] - inner);
            }
            return {D};
        });
    }
}
