// Who does what when in a pipeline: a schedule is a list of actions for each stage, made by one
// function without side effects. Nothing here computes or sends (pipeline.cpp does).
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

// P stages, m micro-batches, v chunks of layers a stage.
struct Shape {
    int64_t P, m, v;
};
// F: forward. B: backward, which is I, the gradients of the inputs, and W, those of the weights.
struct Action {
    char kind;
    int64_t micro, chunk;
};
using Actions = std::vector<Action>;

// One micro-batch at a time: each stage waits for all others.
inline Actions naive(const Shape& s, int64_t) {
    Actions actions;
    for (int64_t i = 0; i < s.m; i++) actions.push_back({'F', i, 0}), actions.push_back({'B', i, 0});
    return actions;
}
// GPipe (Huang et al. 2018, arXiv:1811.06965): all forward, then all backward.
inline Actions gpipe(const Shape& s, int64_t) {
    Actions actions;
    for (const char kind : {'F', 'B'})
        for (int64_t i = 0; i < s.m; i++) actions.push_back({kind, i, 0});
    return actions;
}
// One forward, one backward, after so many forward passes (PipeDream-Flush; Narayanan et al. 2020,
// arXiv:2006.09503). With v chunks a stage (Narayanan et al. 2021, arXiv:2104.04473, section 2.2)
// groups of P micro-batches go through the chunks one after the other, backward in reverse.
inline Actions alternating(const Shape& s, int64_t most_ahead) {
    const int64_t all = s.m * s.v, ahead = std::min(most_ahead, all);
    Actions actions;
    const auto add = [&](char kind, int64_t k) {
        const int64_t group = k / (s.P * s.v), within = k % (s.P * s.v), chunk = within / s.P;
        actions.push_back({kind, group * s.P + within % s.P, kind == 'F' ? chunk : s.v - 1 - chunk});
    };
    for (int64_t k = -ahead; k < all; k++) {
        if (k + ahead < all) add('F', k + ahead);
        if (k >= 0) add('B', k);
    }
    return actions;
}
inline Actions one_f_one_b(const Shape& s, int64_t stage) { return alternating(s, s.P - 1 - stage); }
inline Actions interleaved(const Shape& s, int64_t stage) {
    return alternating(s, 2 * (s.P - 1 - stage) + (s.v - 1) * s.P);
}
// ZB-H1 (Qi et al. 2023, arXiv:2401.10241): 1F1B whose stage s does W s micro-batches late. No
// other stage waits for a W, so those that are left fill the end.
inline Actions zb_h1(const Shape& s, int64_t stage) {
    Actions actions;
    int64_t late = 0;
    for (const Action& a : one_f_one_b(s, stage)) {
        actions.push_back({a.kind == 'B' ? 'I' : a.kind, a.micro, 0});
        if (a.kind == 'B' && a.micro >= stage) actions.push_back({'W', late++, 0});
    }
    while (late < s.m) actions.push_back({'W', late++, 0});
    return actions;
}

// bubble: the share of time in which stages wait, if I and W take as long as F. kept: how many
// micro-batches (chunks of them) a stage keeps at most.
struct Schedule {
    const char* name;
    Actions (*actions)(const Shape&, int64_t stage);
    double (*bubble)(const Shape&);
    int64_t (*kept)(const Shape&, int64_t stage);
};
inline double bubble_of_gpipe(const Shape& s) { return (s.P - 1.0) / (double)(s.v * s.m + s.P - 1); }
const Schedule SCHEDULES[] = {
    {"naive", naive, [](const Shape& s) { return (s.P - 1.0) / (double)s.P; },
     [](const Shape&, int64_t) { return (int64_t)1; }},
    {"gpipe", gpipe, bubble_of_gpipe, [](const Shape& s, int64_t) { return s.m; }},
    {"1f1b", one_f_one_b, bubble_of_gpipe, [](const Shape& s, int64_t stage) { return s.P - stage; }},
    {"interleaved", interleaved, bubble_of_gpipe,
     [](const Shape& s, int64_t stage) { return std::min(2 * (s.P - 1 - stage) + (s.v - 1) * s.P + 1, s.m * s.v); }},
    {"zb-h1", zb_h1, [](const Shape& s) { return (s.P - 1.0) / (double)(3 * s.m + s.P - 1); },
     [](const Shape& s, int64_t) { return s.P; }},
};
