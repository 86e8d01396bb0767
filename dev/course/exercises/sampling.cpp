// ----- task
// The probabilities from which the next token is drawn, in generation:
//
//     1. p = softmax of logits / temperature
//     2. only the top_k likeliest tokens remain                    (top-k: Fan et al. 2018, arXiv:1805.04833)
//     3. of these only the fewest likeliest remain that together hold at least top_p of what step 2 left
//                                                                  (top-p: Holtzman et al. 2020, arXiv:1904.09751)
//     4. the others get 0; those that remain are divided by their sum
//
// p (V) is written, from logits (V). top_k is 1 to V, top_p above 0 and up to 1, temperature above
// 0. No two logits are equal, and the softmax fits a float without precautions.
void sampling_probabilities(float* p, const float* logits, int64_t V, float temperature, int64_t top_k, float top_p) {
    // your code
}

// ----- solution
void sampling_probabilities(float* p, const float* logits, int64_t V, float temperature, int64_t top_k, float top_p) {
    std::vector<int64_t> order(V);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
    double sum = 0, kept = 0;
    std::fill(p, p + V, 0.0f);
    for (int64_t i = 0; i < top_k; i++) sum += std::exp(logits[order[i]] / temperature);
    for (int64_t i = 0; i < top_k && kept < top_p * sum; i++)
        kept += p[order[i]] = std::exp(logits[order[i]] / temperature);
    for (int64_t v = 0; v < V; v++) p[v] = (float)(p[v] / kept);
}

// ----- shipped
#include "llmc/run/sampler.h"
void sampling_probabilities(float* p, const float* logits, int64_t V, float temperature, int64_t top_k, float top_p) {
    std::vector<double> probabilities;
    ::sampling_probabilities(probabilities, logits, V, temperature, top_k, top_p);
    std::copy(probabilities.begin(), probabilities.end(), p);
}

// ----- mistakes
//     temperature: / temperature ==> * temperature
//     renormalise: p[v] / kept ==> p[v] / sum
//     exclusive: kept < top_p * sum; i++) ==> kept + std::exp(logits[order[i]] / temperature) <= top_p * sum; i++)
//     order: i < top_k; i++) sum ==> i < V; i++) sum
//     off-by-one: i < top_k && ==> i < top_k - 1 && ;; i < top_k; i++) ==> i < top_k - 1; i++)
//     no-top-p: kept < top_p * sum ==> true

// ----- judge
static std::vector<double> sampled_with(const std::vector<float>& logits, double temperature, int64_t k, double top_p,
                                        const Key& wrong) {
    std::vector<std::pair<double, size_t>> sorted;
    for (size_t v = 0; v < logits.size(); v++)
        sorted.push_back({-std::exp(wrong == "temperature" ? logits[v] * temperature : logits[v] / temperature), v});
    std::sort(sorted.begin(), sorted.end());
    double all = 0, of_k = 0, kept = 0;
    if (wrong == "off-by-one") k--;
    for (size_t i = 0; i < sorted.size(); i++) all -= sorted[i].first, of_k -= (int64_t)i < k ? sorted[i].first : 0;
    const double enough = top_p * (wrong == "order" ? all : of_k);
    std::vector<double> p(logits.size());
    for (int64_t i = 0; i < k; i++) {
        if (wrong == "exclusive" ? kept - sorted[i].first > enough : wrong != "no-top-p" && kept >= enough) break;
        kept += p[sorted[i].second] = -sorted[i].first;
    }
    for (double& x : p) x /= wrong == "renormalise" ? of_k : kept;
    return p;
}

void judge(Judge& j, decltype(task::sampling_probabilities)* sampling_probabilities) {
    j.hints = {
        {"temperature", "the logits are multiplied by the temperature; a low temperature must sharpen the choice."},
        {"renormalise", "the probabilities that remain do not add up to 1: divide by their sum."},
        {"exclusive", "the token with which the sum reaches top_p is left out: at least top_p must remain."},
        {"order", "top_p is taken of the whole vocabulary; it is a share of what the top_k left."},
        {"off-by-one", "one token too few remains of the top_k."},
        {"no-top-p", "top_p has no effect."},
        {"no-top-k", "top_k has no effect."}};
    struct Case {
        int64_t V;
        float temperature;
        int64_t k;
        float top_p;
    };
    for (const Case& c :
         {Case{3, 1, 3, 1}, {10, 0.5f, 4, 1}, {10, 2, 10, 0.6f}, {50, 1.5f, 20, 0.7f}, {300, 0.7f, 2, 0.3f}}) {
        j.sizes("V %d, temperature %g, top_k %d, top_p %g", (int)c.V, c.temperature, (int)c.k, c.top_p);
        const std::vector<float> logits = j.random(c.V, 3);
        std::vector<float> p = begins(c.V);
        sampling_probabilities(p.data(), logits.data(), c.V, c.temperature, c.k, c.top_p);
        j.check({{"p", {c.V}, p}}, [&](const Key& wrong) -> Arrays {
            return {sampled_with(logits, c.temperature, wrong == "no-top-k" ? c.V : c.k, c.top_p, wrong)};
        });
    }
}
