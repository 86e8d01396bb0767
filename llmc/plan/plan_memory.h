// What other flags would change in the memory of a run: activations at each recompute level, flags
// that save memory, the largest batch that fits. Each is a plan of its own, made as the run's is.
#pragma once
#include "llmc/model/model_state.h"
#include "llmc/options/messages.h"
#include "llmc/plan/plan.h"
#include "llmc/plan/plan_device.h"

// The sizes of the same run at another recompute level.
inline Sizes at_level(Sizes s, const Options& o, int64_t level) {
    s.recompute = level;
    s.recompute_every = o.recompute_every > 0 ? o.recompute_every : default_recompute_every(s.config.L);
    return s;
}
inline double activation_total(const Sizes& s) {
    double bytes = 0;
    for (int a = 0; a < NUM_ACTIVATIONS; a++) bytes += (double)activation_copies(a, s) * (double)activation_bytes(a, s);
    return bytes;
}

constexpr int64_t RECOMPUTE_LEVELS = 5;

// The activations that recomputation changes, then all others, then the whole run.
inline void print_recompute_levels(const Options& o, const Sizes& s, int64_t run_bytes) {
    printf("MiB at each recompute level (-r 4: %lld layers at a time; * is this run's):\n%-14s",
           (long long)at_level(s, o, 4).recompute_every, "activation");
    for (int64_t level = 0; level < RECOMPUTE_LEVELS; level++)
        printf(" %9s", format("-r %d%s", level, level == s.recompute ? "*" : "").c_str());
    double others = activation_total(s);
    const auto line = [&](const char* name, auto bytes_at) {
        printf("\n%-14s", name);
        for (int64_t level = 0; level < RECOMPUTE_LEVELS; level++)
            printf(" %9.1f", bytes_at(at_level(s, o, level)) / MIB);
    };
    for (int a = 0; a < NUM_ACTIVATIONS; a++) {
        if (ACTIVATIONS[a].purpose != ActivationInfo::LAYER) continue;
        others -= (double)activation_copies(a, s) * (double)activation_bytes(a, s);
        line(ACTIVATIONS[a].name,
             [&](const Sizes& t) { return (double)activation_copies(a, t) * (double)activation_bytes(a, t); });
    }
    line("the others", [&](const Sizes&) { return others; });
    line("= all", [&](const Sizes& t) { return activation_total(t); });
    line("the whole run",
         [&](const Sizes& t) { return (double)run_bytes - activation_total(s) + activation_total(t); });
    printf("\n");
}

// The plan of a run with other flags: bytes of one process.
inline int64_t trial_bytes(const GPT2& model, const Options& o, Sizes s) {
    GPT2 trial;
    trial.format = model.format, trial.backend = model.backend;
    if (model.teacher) trial.teacher = new_teacher(model.teacher->layout.config);
    trial.layout = parameter_layout(s.config, s.slices(), weight_format(o.weights));
    s.recompute = o.recompute, s.recompute_every = std::max<int64_t>(1, o.recompute_every);
    s.compressed_activations = o.compress_activations;
    s.B = o.batch_size, s.T = o.seq_len, s.micro_steps = o.total_batch_size / (s.B * s.T * s.processes);
    trial.backend->settle(trial, s, o);
    return plan_bytes(trial.backend->plan_rows(trial, s, o));
}

// Whether the tokens of a step stay the same with another B: if -d was given. Then B must divide
// -d / (T P).
inline bool has_own_total_batch(const Options& o, const Sizes& s) {
    return o.given.count("--total-batch-size") || s.micro_steps > 1;
}
inline Options with_batch(Options o, const Sizes& s, int64_t B) {
    if (!has_own_total_batch(o, s)) o.total_batch_size = B * o.seq_len * s.processes;
    o.batch_size = B;
    return o;
}

// The largest B whose plan is at most so many bytes; 0 if none is.
inline int64_t largest_batch(const GPT2& model, const Options& o, const Sizes& s, double most_bytes) {
    constexpr int64_t MOST_B = 1 << 20;
    const auto fits = [&](int64_t B) { return (double)trial_bytes(model, with_batch(o, s, B), s) <= most_bytes; };
    if (has_own_total_batch(o, s)) {
        const int64_t sequences = o.total_batch_size / (s.T * s.processes);
        int64_t B = std::min(sequences, MOST_B);
        while (B > 0 && (sequences % B != 0 || !fits(B))) B--;
        return B;
    }
    int64_t low = 0, high = 1;  // low fits, high does not
    while (high <= MOST_B && fits(high)) low = high, high *= 2;
    while (low + 1 < high && low < MOST_B) fits((low + high) / 2) ? low = (low + high) / 2 : high = (low + high) / 2;
    return low;
}

// Flags that lower the plan, with what each alone would save.
inline void print_savings(const GPT2& model, const Options& o, const Sizes& s, int64_t bytes, double most_bytes) {
    const auto line = [&](const std::string& flags, const Options& changed) {
        const int64_t lower = trial_bytes(model, changed, s);
        if (lower < bytes)
            printf("  %-24s saves %10s, leaves %10s%s\n", flags.c_str(), memory_text((double)(bytes - lower)).c_str(),
                   memory_text((double)lower).c_str(), (double)lower <= most_bytes ? ": fits" : "");
    };
    for (int64_t level = s.recompute + 1; level < RECOMPUTE_LEVELS; level++) {
        Options changed = o;
        changed.recompute = level, changed.recompute_every = at_level(s, o, level).recompute_every;
        line(format("-r %d", level), changed);
    }
    if (!o.compress_activations) {
        Options changed = o;
        changed.compress_activations = 1;
        line("--compress-activations 1", changed);
    }
    for (int64_t B : {s.B / 2, (int64_t)1})
        if (B > 0 && B < s.B && (!has_own_total_batch(o, s) || s.B % B == 0))
            line(format("-b %d", B), with_batch(o, s, B));
    if (s.T > 1) {
        Options changed = o;
        changed.seq_len = s.T / 2, changed.total_batch_size = s.B * changed.seq_len * s.processes * s.micro_steps;
        line(format("-t %d", changed.seq_len), changed);
    }
    if (o.master_weights) {
        Options changed = o;
        changed.master_weights = 0;
        line("-w 0", changed);
    }
    for (int64_t stage = o.zero_stage + 1; stage <= most_stage(o) && s.processes > 1; stage++) {
        Options changed = o;
        changed.zero_stage = stage;
        line(format("-z %d", stage), changed);
    }
}

// The flags of a run that fits, where no batch does with those of this one: -r if that helps; else
// also a higher -z, -w 0, and at last a smaller -t; and the largest -b that fits with them. Empty
// if nothing helps.
inline std::string fitting_flags(const GPT2& model, const Options& o, Sizes s, double most_bytes) {
    const int64_t stages = s.processes > 1 ? most_stage(o) - o.zero_stage : 0;  // above this run's
    const bool has_master = model.format == FORMAT_BF16 && o.master_weights;
    for (; s.T > 0; s.T /= 2) {
        if (has_own_total_batch(o, s) && o.total_batch_size % (s.T * s.processes) != 0) continue;
        for (int64_t more = 0; more <= stages + has_master; more++)
            for (int64_t level = o.recompute; level < RECOMPUTE_LEVELS; level++) {
                Options changed = o;
                std::string flags;
                const auto set = [&](const char* flag, int64_t Options::*option, int64_t value) {
                    if (changed.*option != value) flags += format("%s %d ", flag, value);
                    changed.*option = value;
                };
                changed.recompute_every = at_level(s, o, level).recompute_every;
                set("-r", &Options::recompute, level), set("-t", &Options::seq_len, s.T);
                set("-z", &Options::zero_stage, o.zero_stage + std::min(more, stages));
                if (more > stages) set("-w", &Options::master_weights, 0);
                const int64_t B = largest_batch(model, changed, s, most_bytes);
                if (B > 0) return flags + format("-b %d", B);
            }
    }
    return "";
}

// Whether the run fits the memory of the device; if not, what would make it fit. On a CPU the
// processes of one machine share its memory.
inline void print_fit(const GPT2& model, const Options& o, const Sizes& s, int64_t bytes, const PlanDevice& device) {
    if (device.memory_bytes == 0) return;
    const double sharing = s.gpu ? 1 : (double)std::min(s.processes, o.gpus_per_node);
    const double most_bytes = (device.memory_bytes - (s.gpu ? DRIVER_BYTES : 0)) / sharing;
    const bool fits = (double)bytes <= most_bytes;
    printf("%s %s: %s of the %s for each process%s\n", fits ? "fits" : "does not fit", device.name.c_str(),
           memory_text((double)bytes).c_str(), memory_text(most_bytes).c_str(), fits ? "" : "; each of these alone");
    if (!fits) print_savings(model, o, s, bytes, most_bytes);
    if (!s.training) return;
    const int64_t B = largest_batch(model, o, s, most_bytes);
    if (B == 0) {
        const std::string flags = fitting_flags(model, o, s, most_bytes);
        if (flags.empty()) printf("no batch fits, with any of these flags\n");
        else printf("no batch fits with this run's flags; with these together one does: %s\n", flags.c_str());
    } else
        printf("the largest batch that fits%s: -b %lld\n", has_own_total_batch(o, s) ? " and divides -d" : "",
               (long long)B);
}
