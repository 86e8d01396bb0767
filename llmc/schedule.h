// The learning rate of step 0, 1, ... of max_steps. It rises linearly over the warmup steps. Then
// it is constant; or it falls to final_frac times the peak: linearly, as a cosine (Loshchilov &
// Hutter 2017, arXiv:1608.03983), or by wsd, which holds the peak up to 80% of the run and then
// falls with 1 - sqrt(x) (Haegele et al. 2024, arXiv:2405.18392).
#pragma once
#include <algorithm>
#include <cmath>
#include <string>

inline double learning_rate_at(const std::string& schedule, int64_t step, int64_t max_steps, int64_t warmup_steps,
                               double peak, double final_frac) {
    if (step < warmup_steps) return peak * (double)(step + 1) / (double)warmup_steps;
    const double final = final_frac * peak;
    if (schedule == "constant") return peak;
    if (schedule == "wsd") {
        const int64_t decay_start = max_steps * 4 / 5;
        if (step < decay_start) return peak;
        return final +
               (peak - final) * (1.0 - std::sqrt((double)(step - decay_start) / (double)(max_steps - decay_start)));
    }
    const double r = (double)(step - warmup_steps) / (double)std::max<int64_t>(max_steps - warmup_steps, 1);
    if (schedule == "linear") return peak - r * (peak - final);
    return final + (peak - final) * (1.0 + std::cos(M_PI * r)) / 2.0;
}
