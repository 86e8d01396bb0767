// ----- task
// A learning rate for a run that ends by the clock, not by its steps. With x the part of the budget
// that is spent:
//
//     rate = peak x / warmup                      while x < warmup
//     rate = peak                                 from there to 1 - fall
//     rate = peak (1 - x) / fall                  in the last part, `fall` of the budget
//     rate = 0                                    from the end of the budget on
//
// spent and budget are in seconds, warmup and fall parts of the budget, larger than 0, and together
// at most 1.
double rate_by_clock(double spent, double budget, double peak, double warmup, double fall) {
    // your code
    return -1;
}

// ----- solution
double rate_by_clock(double spent, double budget, double peak, double warmup, double fall) {
    const double x = spent / budget;
    if (x >= 1) return 0;
    if (x < warmup) return peak * x / warmup;
    if (x < 1 - fall) return peak;
    return peak * (1 - x) / fall;
}

// ----- mistakes
//     seconds: x = spent / budget ==> x = spent
//     warmup: return peak * x / warmup ==> return peak * x
//     no-warmup: if (x < warmup) return peak * x / warmup; ==>
//     early: x < 1 - fall ==> x < fall
//     jump: (1 - x) / fall ==> (1 - x)
//     whole: return peak * (1 - x) / fall ==> return peak * (1 - x) / (1 - warmup) ;;
//         if (x < 1 - fall) return peak; ==>
//     below: if (x >= 1) return 0; ==>

// ----- judge
static double rate_of(double spent, double budget, double peak, double warmup, double fall, const Key& wrong) {
    const double x = wrong == "seconds" ? spent : spent / budget;
    if (x >= 1 && wrong != "below") return 0;
    if (x < warmup && wrong != "no-warmup") return peak * x / (wrong == "warmup" ? 1 : warmup);
    if (wrong == "whole") return peak * (1 - x) / (1 - warmup);
    if (x < (wrong == "early" ? fall : 1 - fall)) return peak;
    return peak * (1 - x) / (wrong == "jump" ? 1 : fall);
}
void judge(Judge& j, decltype(task::rate_by_clock)* rate_by_clock) {
    j.hints = {{"seconds", "the seconds are taken for the part of the budget: x = spent / budget."},
               {"warmup", "the rate does not rise to the peak: x is to be divided by the warmup."},
               {"no-warmup", "the warmup is missing: the rate begins at its peak."},
               {"early", "the rate falls from `fall` on; it is to fall in the last part, from 1 - fall on."},
               {"jump", "where the fall begins the rate jumps down: (1 - x) is to be divided by `fall`."},
               {"whole", "the rate falls all the way from the warmup on; it is to stay at its peak between."},
               {"below", "after the end of the budget the rate is negative: it is 0."}};
    struct Case {
        double budget, peak, warmup, fall;
    };
    for (const Case& c : {Case{1, 1, 0.25, 0.5}, {1200, 0.01, 0.1, 0.3}, {30, 0.003, 0.02, 0.98}}) {
        j.sizes("%g s, peak %g, warmup %g, fall %g", c.budget, c.peak, c.warmup, c.fall);
        std::vector<double> got;
        const int64_t n = 41;
        for (int64_t i = 0; i < n; i++)
            got.push_back(rate_by_clock((double)i / 32 * c.budget, c.budget, c.peak, c.warmup, c.fall));
        j.check({{"rate", {n}, got, std::vector<float>(n, -1)}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> rates;
            for (int64_t i = 0; i < n; i++)
                rates.push_back(rate_of((double)i / 32 * c.budget, c.budget, c.peak, c.warmup, c.fall, wrong));
            return {rates};
        });
    }
}
