// ----- task
// The token that is drawn: p (V) are probabilities, `coin` is uniform in [0, 1). It is the first
// token at which the running sum of p is above the coin.
//
// Where p is 0 the token must never be drawn, whatever the coin: top-k and top-p have ruled it out.
// By rounding, the sum of all p may end a little below 1, and a coin may lie above it: then it is
// the last token whose p is not 0. Add up in double, or the sum of 50,257 numbers ends well below.
int64_t pick_token(const float* p, int64_t V, double coin) {
    // your code
    return -1;
}

// ----- solution
int64_t pick_token(const float* p, int64_t V, double coin) {
    double sum = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < V; i++) {
        if (p[i] <= 0) continue;
        sum += p[i], last = i;
        if (coin < sum) return i;
    }
    return last;
}

// ----- shipped
#include "llmc/run/sampler.h"
int64_t pick_token(const float* p, int64_t V, double coin) { return ::pick_token(std::vector<double>(p, p + V), coin); }

// ----- mistakes
//     ruled-out: if (p[i] <= 0) continue; ==> ;; coin < sum ==> coin <= sum
//     last: return last ==> return V - 1
//     none: return last ==> return -1
//     one-more: return i; ==> return i + 1 < V && p[i + 1] > 0 ? i + 1 : i;
//     likeliest: if (coin < sum) return i; ==> ;; return last ==> return std::max_element(p, p + V) - p
//     single: double sum ==> float sum

// ----- judge
#include "dev/course/exercises/judge.h"
static double picked(const std::vector<float>& p, double coin, const Key& wrong) {
    const int64_t V = (int64_t)p.size();
    if (wrong == "likeliest") return (double)(std::max_element(p.begin(), p.end()) - p.begin());
    double sum = 0;
    float single = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < V; i++) {
        if (p[i] <= 0 && wrong != "ruled-out") continue;
        sum += p[i], single += p[i], last = i;
        const double reached = wrong == "single" ? single : sum;
        if (wrong == "ruled-out" ? coin > reached : coin >= reached) continue;
        return (double)(wrong == "one-more" && i + 1 < V && p[i + 1] > 0 ? i + 1 : i);
    }
    return (double)(wrong == "last" ? V - 1 : wrong == "none" ? -1 : last);
}

void judge(Judge& j, decltype(task::pick_token)* pick_token) {
    j.hints = {
        {"ruled-out", "a token of probability 0 is drawn: a coin of 0, or one that equals the sum, must pass it."},
        {"last", "a coin above the sum draws the last token of all, though its probability may be 0."},
        {"none", "a coin above the sum draws no token; by rounding that happens."},
        {"one-more", "it is the token behind the one at which the sum passes the coin."},
        {"likeliest", "it is always the likeliest token, whatever the coin."},
        {"single", "the running sum is a float: behind thousands of tokens small probabilities are lost."}};
    j.tolerance = 1e-9;
    for (int64_t V : {1, 4, 60, 50257}) {
        j.sizes("V %d", (int)V);
        std::vector<float> p(V);
        double sum = 0;
        for (int64_t i = 0; i < V; i++)
            if (V < 4 || (i > 0 && i + 1 < V && i % 3 != 2) || V > 1000)
                sum += p[i] = V > 1000 && i > 0 ? 1e-8f : 0.1f + (float)j.random_below(100) / 100;
        if (V > 1000) sum += p[0] = 4;
        for (float& x : p) x = (float)(x / sum);
        if (V > 1000) p[V - 1] = 0;
        std::vector<double> coins = {0, 0.25, 0.5, 0.999, std::nextafter(1.0, 0)};
        // On the edges of tokens, and a little beside: there it is decided.
        double running = 0;
        for (int64_t i = 0; i < V; i++) {
            running += p[i];
            if (V <= 1000 || i % 5000 == 4999) coins.push_back(running), coins.push_back(running - 1e-12);
        }
        std::vector<int64_t> got;
        for (double& coin : coins) {
            coin = std::min(coin, std::nextafter(1.0, 0));
            got.push_back(pick_token(p.data(), V, coin));
        }
        const int64_t n = (int64_t)coins.size();
        j.check({{"token of coin", {n}, got, std::vector<float>(n, -1)}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> right;
            for (double coin : coins) right.push_back(picked(p, coin, wrong));
            return {right};
        });
    }
}
