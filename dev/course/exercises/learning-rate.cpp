// ----- task
// The learning rate of step 0, 1, ... of a run. It rises linearly over the first `warmup` steps:
// the first step has peak / warmup, step warmup - 1 has peak. Then it falls with half a period of a
// cosine (Loshchilov & Hutter 2017, arXiv:1608.03983), from peak at step `warmup` to
// final_fraction * peak at step `steps`, which is one after the last. warmup may be 0.
double learning_rate(int64_t step, int64_t steps, int64_t warmup, double peak, double final_fraction) {
    // your code
    return 0;
}

// ----- solution
double learning_rate(int64_t step, int64_t steps, int64_t warmup, double peak, double final_fraction) {
    if (step < warmup) return peak * (step + 1) / warmup;
    const double progress = (double)(step - warmup) / (steps - warmup);
    const double end = final_fraction * peak;
    return end + (peak - end) * (1 + std::cos(M_PI * progress)) / 2;
}

// ----- shipped
#include "llmc/optim/schedule.h"
double learning_rate(int64_t step, int64_t steps, int64_t warmup, double peak, double final_fraction) {
    return learning_rate_at("cosine", step, steps, warmup, peak, final_fraction);
}

// ----- mistakes
//     zero: (step + 1) / warmup ==> step / warmup
//     progress: (step - warmup) / (steps - warmup) ==> step / steps
//     final: end = final_fraction * peak ==> end = 0
//     absolute: end = final_fraction * peak ==> end = final_fraction
//     period: std::cos(M_PI * ==> std::cos(2 * M_PI *
//     linear: (1 + std::cos(M_PI * progress)) / 2 ==> (1 - progress)
//     integer: (double)(step - warmup) ==> (step - warmup)

// ----- judge
void judge(Judge& j, decltype(task::learning_rate)* learning_rate) {
    j.hints = {
        {"zero", "step 0 has the rate 0: it would be lost. The rate of step s of the warmup is peak (s + 1) / warmup."},
        {"progress",
         "the cosine begins before the end of the warmup: its progress is (step - warmup) / (steps - warmup)."},
        {"final", "the rate falls to 0; its end is final_fraction * peak."},
        {"absolute", "the rate ends at final_fraction itself; it is a fraction of peak."},
        {"period", "this is a whole period of the cosine, which rises again; half of one ends at pi."},
        {"linear", "the rate falls linearly; half a period of a cosine is asked for."},
        {"integer", "the progress is a quotient of integers, which is 0 until the end: make it a double."}};
    for (auto [steps, warmup] : {std::pair<int64_t, int64_t>{5, 0}, {10, 3}, {100, 7}, {50, 49}}) {
        j.sizes("%d steps, warmup %d", (int)steps, (int)warmup);
        std::vector<float> rates;
        for (int64_t step = 0; step < steps; step++)
            rates.push_back((float)learning_rate(step, steps, warmup, 0.02, 0.1));
        j.check({{"rate", {steps}, rates, std::vector<float>(steps)}},
                [&, steps = steps, warmup = warmup](const Key& wrong) -> Arrays {
                    std::vector<double> expected;
                    for (int64_t step = 0; step < steps; step++) {
                        double progress = (double)(step - warmup) / (steps - warmup);
                        if (wrong == "progress") progress = (double)step / steps;
                        if (wrong == "integer") progress = std::floor(progress);
                        const double end = wrong == "final" ? 0 : wrong == "absolute" ? 0.1 : 0.002;
                        const double way = wrong == "linear"
                                               ? 1 - progress
                                               : (1 + std::cos(M_PI * progress * (wrong == "period" ? 2 : 1))) / 2;
                        if (step < warmup) expected.push_back(0.02 * (wrong == "zero" ? step : step + 1) / warmup);
                        else expected.push_back(end + (0.02 - end) * way);
                    }
                    return {expected};
                });
    }
}
