// Two warmups beside that of the learning rate (schedule.h): over the first N steps of a run,
// sequences or batches are smaller. Each is a pure function of the step.
//
// --seq-warmup N (Li et al. 2022, arXiv:2108.06084): step s = 0, 1, ... cuts each window of T
// tokens into k sequences of T/k, k the smallest power of two with
//
//     T/k <= T (s + 1) / N,  as far as T/k is a multiple of 8
//
// So the last half of the N steps has sequences of T/2, the quarter before it of T/4, and so on.
// The tokens and their targets stay the same. Attention does not cross a cut, and positions count
// from 0 after it: a micro-batch (B, T) is computed as (B k, T/k), which lies in memory the same
// way.
//
// --batch-warmup N (Brown et al. 2020, arXiv:2005.14165, section 2.3): of the W windows of a full
// step, step s takes
//
//     ceil(W (s + 1) / N)
//
// It computes as many whole micro-batches as hold them. Rows beyond the last window have no loss.
#pragma once
#include "llmc/base/integer_math.h"
#include "llmc/options/options.h"

constexpr int64_t SEQUENCE_MULTIPLE = 8;

// How many sequences a window of T tokens is cut into: k above.
inline int64_t sequences_per_window(int64_t step, int64_t warmup_steps, int64_t T) {
    int64_t k = 1;
    while (k * (step + 1) < warmup_steps && T / k % (2 * SEQUENCE_MULTIPLE) == 0) k *= 2;
    return k;
}

// The windows of a step; a full step has `all`.
inline int64_t windows_of_step(int64_t step, int64_t warmup_steps, int64_t all) {
    if (step + 1 >= warmup_steps) return all;
    // ceil(all (step + 1) / N) without the product, which might not fit 64 bits
    return all / warmup_steps * (step + 1) + ceil_div(all % warmup_steps * (step + 1), warmup_steps);
}

// The windows of steps 0 to steps - 1.
inline int64_t windows_before(int64_t steps, int64_t warmup_steps, int64_t all) {
    const int64_t warm = std::min(steps, warmup_steps);
    int64_t windows = (steps - warm) * all;
    for (int64_t s = 0; s < warm; s++) windows += windows_of_step(s, warmup_steps, all);
    return windows;
}
// How many steps so many tokens suffice for.
inline int64_t steps_within(int64_t tokens, int64_t warmup_steps, int64_t all, int64_t T) {
    int64_t steps = 0;
    for (int64_t needed; steps < warmup_steps; steps++, tokens -= needed) {
        needed = windows_of_step(steps, warmup_steps, all) * T;
        if (needed > tokens) return steps;
    }
    return steps + tokens / (all * T);
}
// How much training data there is. The windows may have fewer tokens: a shard's last ones are in
// none.
struct DataSize {
    int64_t tokens = 0, windows = 0;
};

// The steps of a run: -x, or as many as the tokens of the data suffice for, or as --epochs passes
// over its windows have.
inline int64_t steps_of(const Options& o, const DataSize& data) {
    const int64_t T = o.seq_len, windows = o.total_batch_size / T;
    const int64_t tokens = o.epochs > 0 ? o.epochs * data.windows * T : data.tokens;
    return o.max_steps >= 0 ? o.max_steps : steps_within(tokens, o.batch_warmup, windows, T);
}
// The work of the first `steps` steps in full steps, to rounding.
inline double full_steps(double steps, int64_t warmup_steps) {
    const double N = (double)warmup_steps, warm = std::min(steps, N);
    return N > 0 ? steps - warm + warm * (warm + 1) / (2 * N) : steps;
}

// Exit 2 if a warmup would have no effect.
inline void check_warmups(const Options& o) {
    if (o.max_steps == 0) return;
    if (o.seq_warmup > 0 && o.seq_len % (2 * SEQUENCE_MULTIPLE) != 0)
        usage_error(
            "--seq-warmup %d with -t %d: windows are cut into sequences of a multiple of %d tokens; multiples of "
            "%d are accepted for -t",
            o.seq_warmup, o.seq_len, SEQUENCE_MULTIPLE, 2 * SEQUENCE_MULTIPLE);
    if (o.batch_warmup > 0 && o.total_batch_size == o.seq_len)
        usage_error("--batch-warmup %d with -d %d, one sequence in each step: two or more are accepted", o.batch_warmup,
                    o.total_batch_size);
}

// "8 tokens, from step 3 on 16, from step 5 on 32": the lengths of the sequences. Steps are counted
// from 1, as on stdout.
inline std::string sequence_warmup_text(int64_t warmup_steps, int64_t T) {
    int64_t length = T / sequences_per_window(0, warmup_steps, T);
    std::string text = format("%d tokens", length);
    for (; length < T; length *= 2) {
        const int64_t k = T / length / 2, first = ceil_div(warmup_steps, k);  // k (s + 1) >= N from here on
        text += format(", from step %d on %d", first, 2 * length);
    }
    return text;
}
