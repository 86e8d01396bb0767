// The learning rate of step 0, 1, ... of a run. It rises linearly over the warmup steps, to the
// peak; then it follows one of the schedules of this table, whose rows are the formulas.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

// A step after the warmup, and what a schedule makes its rate from.
struct SchedulePoint {
    int64_t step, max_steps, warmup_steps;
    double peak, final_frac, final;  // final = final_frac * peak: where most schedules end
    double r;                        // from 0 at the end of the warmup to 1 at the end of the run
};

struct Schedule {
    const char* name;
    double (*rate)(const SchedulePoint& p);
};

inline const Schedule SCHEDULES[] = {
    {"constant", [](const SchedulePoint& p) { return p.peak; }},
    // A straight line; with final_frac 0 linear to zero (Bergsma et al. 2025, arXiv:2502.15938).
    {"linear", [](const SchedulePoint& p) { return p.peak - p.r * (p.peak - p.final); }},
    // Half a period of a cosine (Loshchilov & Hutter 2017, arXiv:1608.03983).
    {"cosine",
     [](const SchedulePoint& p) { return p.final + (p.peak - p.final) * (1.0 + std::cos(M_PI * p.r)) / 2.0; }},
    // Warmup, stable, decay: the peak up to 80% of the run, then 1 - sqrt(x) (Haegele et al. 2024,
    // arXiv:2405.18392).
    {"wsd",
     [](const SchedulePoint& p) {
         const int64_t decay_start = p.max_steps * 4 / 5;
         if (p.step < decay_start) return p.peak;
         const double x = (double)(p.step - decay_start) / (double)(p.max_steps - decay_start);
         return p.final + (p.peak - p.final) * (1.0 - std::sqrt(x));
     }},
    // Falls with 1 / sqrt(steps done), and does not depend on the length of the run (Vaswani et al.
    // 2017, arXiv:1706.03762, section 5.3).
    {"inverse-sqrt",
     [](const SchedulePoint& p) {
         return p.peak * std::sqrt((double)std::max<int64_t>(p.warmup_steps, 1) / (double)(p.step + 1));
     }},
    // Each step multiplies the rate by the same factor.
    {"exponential", [](const SchedulePoint& p) { return p.peak * std::pow(p.final_frac, p.r); }},
    // Two equal factors, at 80% and at 90% of the run (DeepSeek LLM 2024, arXiv:2401.02954, section
    // 2.3).
    {"step",
     [](const SchedulePoint& p) {
         if (p.step < p.max_steps * 4 / 5) return p.peak;
         return p.step < p.max_steps * 9 / 10 ? p.peak * std::sqrt(p.final_frac) : p.final;
     }},
};

// The names of all schedules, as "a, b, c".
inline std::string schedule_names() {
    std::string names;
    for (const Schedule& schedule : SCHEDULES) names += (names.empty() ? "" : ", ") + std::string(schedule.name);
    return names;
}

// The rate of a step by the schedule of this name, which must be in the table.
inline double learning_rate_at(const std::string& name, int64_t step, int64_t max_steps, int64_t warmup_steps,
                               double peak, double final_frac) {
    if (step < warmup_steps) return peak * (double)(step + 1) / (double)warmup_steps;
    const double r = (double)(step - warmup_steps) / (double)std::max<int64_t>(max_steps - warmup_steps, 1);
    const SchedulePoint point{step, max_steps, warmup_steps, peak, final_frac, final_frac * peak, r};
    const Schedule* schedule = SCHEDULES;
    while (name != schedule->name) schedule++;
    return schedule->rate(point);
}

// Whether a schedule ends at final_frac of the peak, and so depends on the length of the run.
inline bool ends_at_final(const std::string& name) { return learning_rate_at(name, 1, 1, 0, 1, 0.5) == 0.5; }
// Whether a schedule multiplies the rate by factors, with which it cannot end at 0.
inline bool multiplies(const std::string& name) { return name == "exponential" || name == "step"; }
