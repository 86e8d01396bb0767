// ----- task
// The loss of one pair of answers, and its gradient. Row 0 is the chosen answer, row 1 the rejected
// one. logp and ref (2, T): the log probability of each token by the model, and by the model before
// training; tokens with mask (2, T) 0 are not of the answer. With the sums over the tokens of each
// answer
//
//     margin = beta (sum logp[0] - sum ref[0] - sum logp[1] + sum ref[1])
//     loss   = -log(1 / (1 + e^-margin))
//
// Write d (2, T): the derivative of the loss by each logp, and return the loss. A margin may be 50
// or -50: the loss is about e^-50 then, not 0, or 50.
double dpo_loss(float* d, const float* logp, const float* ref, const unsigned char* mask, float beta, int T) {
    // your code
    return -1;
}

// ----- solution
double dpo_loss(float* d, const float* logp, const float* ref, const unsigned char* mask, float beta, int T) {
    double margin = 0;
    for (int i = 0; i < 2 * T; i++)
        if (mask[i]) margin += (i < T ? beta : -beta) * ((double)logp[i] - ref[i]);
    const double slope = beta / (1 + std::exp(margin));
    for (int i = 0; i < 2 * T; i++) d[i] = mask[i] ? (float)(i < T ? -slope : slope) : 0;
    return margin > 0 ? std::log1p(std::exp(-margin)) : -margin + std::log1p(std::exp(margin));
}

// ----- mistakes
//     reference: ((double)logp[i] - ref[i]) ==> (double)logp[i]
//     mask: if (mask[i]) margin ==> margin ;; mask[i] ? (float)(i < T ? -slope : slope) : 0 ==>
//         (float)(i < T ? -slope : slope)
//     mean: if (mask[i]) margin += ==> if (mask[i]) margin += 1.0 / T *
//     up: i < T ? -slope : slope ==> i < T ? slope : -slope
//     beta: slope = beta / ==> slope = 1 /
//     infinite: margin > 0 ? std::log1p(std::exp(-margin)) : -margin + std::log1p(std::exp(margin)) ==>
//         -std::log((float)(1 / (1 + std::exp(-margin))))

// ----- judge
#include "dev/course/exercises/judge.h"
static Arrays pair_of(const std::vector<float>& logp, const std::vector<float>& ref,
                      const std::vector<unsigned char>& mask, double beta, const Key& wrong) {
    const size_t T = logp.size() / 2;
    double margin = 0;
    for (size_t i = 0; i < 2 * T; i++)
        if (mask[i] || wrong == "mask")
            margin += (i < T ? beta : -beta) * ((double)logp[i] - (wrong == "reference" ? 0 : ref[i])) /
                      (wrong == "mean" ? (double)T : 1);
    const double slope = (wrong == "beta" ? 1 : beta) / (1 + std::exp(margin)) * (wrong == "up" ? -1 : 1);
    Arrays found(2);
    for (size_t i = 0; i < 2 * T; i++) found[0].push_back(mask[i] || wrong == "mask" ? (i < T ? -slope : slope) : 0);
    double loss = std::max(0.0, -margin) + std::log1p(std::exp(-std::fabs(margin)));
    if (wrong == "infinite") loss = -std::log((float)(1 / (1 + std::exp(-margin))));
    found[1] = {loss};
    return found;
}

void judge(Judge& j, decltype(task::dpo_loss)* dpo_loss) {
    j.hints = {{"reference", "ref is left out: what counts is how much likelier an answer has become."},
               {"mask", "tokens of the prompt count; they are the same in both answers, but not those behind the end."},
               {"mean", "these are means over tokens: the probability of an answer is a product, its logarithm a sum."},
               {"up", "with these signs the loss rises: the chosen answer is to become likelier."},
               {"beta", "the derivative of the margin by a log probability is beta, not 1."},
               {"infinite",
                "the logarithm is taken of a number that has become 0 or 1 in between: log1p, and for a "
                "margin below 0 what is left when it is taken out."}};
    for (int T : {1, 3, 40}) {
        for (float shift : {0.0f, 0.3f, 100.0f, -100.0f}) {
            j.sizes("T %d, answers %g apart", T, (double)shift);
            const std::vector<float> random = j.random(2 * T), ref = j.random(2 * T);
            std::vector<float> logp = random;
            std::vector<unsigned char> mask(2 * T);
            for (int i = 0; i < 2 * T; i++) mask[i] = T == 1 || i % T >= T / 3, logp[i] += i < T ? shift / (float)T : 0;
            std::vector<float> d = begins(2 * T);
            const double loss = dpo_loss(d.data(), logp.data(), ref.data(), mask.data(), 0.5f, T);
            j.check({{"d", {2, T}, d}, {"loss", {1}, std::vector<double>{loss}, std::vector<float>{-1}}},
                    [&](const Key& wrong) { return pair_of(logp, ref, mask, 0.5, wrong); });
        }
    }
}
