// The learning rate of a run, and warnings on rates and warmups that are accepted, but rarely
// meant.
#pragma once
#include "llmc/options/options.h"

// The learning rate of step 0, 1, ... of a run of so many steps.
inline double learning_rate_of(const Options& o, int64_t step, int64_t max_steps) {
    return learning_rate_at(o.lr_schedule, step, max_steps, o.warmup_steps, o.learning_rate, o.final_lr_frac);
}

// Advises where -k has no effect for want of -q, or -q for want of a -k that uses it.
inline void advise_on_schedule(std::vector<std::string>& advice, const Options& o) {
    const char* schedule = o.lr_schedule.c_str();
    const bool falls = ends_at_final(o.lr_schedule), q_given = o.given.count("--final-lr-frac");
    const char* zero = multiplies(o.lr_schedule) ? "" : ", -q 0 to zero";
    if (o.given.count("--lr-schedule") && falls && !q_given && o.final_lr_frac == 1)
        advice.push_back(
            format("-k %s ends at -q times the rate, and -q is 1 unless given: the learning rate stays at "
                   "%g; -q 0.1 lowers it to a tenth%s",
                   schedule, o.learning_rate, zero));
    if (q_given && !falls)
        advice.push_back(format("-q %g has no effect with -k %s, which does not use it; -k cosine, the default, does",
                                o.final_lr_frac, schedule));
}

// A line for the start of a run whose schedule never lowers the rate, where -k was not given, and
// so nothing is advised; else empty.
inline std::string steady_rate_text(const Options& o) {
    const bool said = o.given.count("--lr-schedule") || o.given.count("--final-lr-frac");
    if (said || !ends_at_final(o.lr_schedule) || o.final_lr_frac != 1) return "";
    return format(
        "learning rate: %g to the end, as -k %s ends at -q times the rate and -q is 1; -q 0.1 lowers it to a "
        "tenth",
        o.learning_rate, o.lr_schedule);
}

// Advises on warmups that never reach their end, which is in the last of their steps.
inline void advise_on_warmups(std::vector<std::string>& advice, const Options& o, int64_t max_steps) {
    struct Warmup {
        const char *flag, *end;
        int64_t steps;
    };
    for (const Warmup& w : {Warmup{"-u", "its peak learning rate", o.warmup_steps},
                            Warmup{"--seq-warmup", "sequences of -t tokens", o.seq_warmup},
                            Warmup{"--batch-warmup", "steps of -d tokens", o.batch_warmup}})
        if (w.steps > max_steps)
            advice.push_back(format("%s %d is longer than the run, %s, which never reaches %s; a smaller %s does",
                                    w.flag, w.steps, count_text(max_steps, "step"), w.end, w.flag));
}

// All sentences on rates and warmups, without "warning: ".
inline std::vector<std::string> advice_on_rates(const Options& o, int64_t max_steps) {
    std::vector<std::string> advice;
    if (max_steps == 0) return advice;
    advise_on_schedule(advice, o);
    advise_on_warmups(advice, o, max_steps);
    return advice;
}

// A sentence for a resumed run whose learning rate rises by a tenth or more; else empty. It may
// rise if the run has more steps than the `before_steps` that it was to have, which changes the
// schedule, or if -l is another.
inline std::string advice_on_rise(const Options& o, int64_t step, int64_t max_steps, const Options& before,
                                  int64_t before_steps) {
    if (max_steps <= before_steps || step < std::max<int64_t>(1, o.warmup_steps)) return "";
    const double last = learning_rate_of(before, step - 1, before_steps), next = learning_rate_of(o, step, max_steps);
    if (!ends_at_final(o.lr_schedule) || next < 1.1 * last) return "";
    const std::string rise =
        format("the learning rate rises from %.2e in step %d to %.2e in the next: ", last, step, next);
    Options same_rate = o;
    same_rate.learning_rate = before.learning_rate;
    if (learning_rate_of(same_rate, step, max_steps) < 1.1 * last)
        return rise + format("-l is %g now and was %g", o.learning_rate, before.learning_rate);
    return rise + format(
                      "-k %s depends on the number of steps, %d before and %d now; -k constant -l %.2e goes on with "
                      "the last rate",
                      o.lr_schedule, before_steps, max_steps, last);
}
