// The tokens of a step: which windows it takes, how they are divided into micro-batches, and how
// they are loaded.
#pragma once
#include <utility>
#include "llmc/comm/comm.h"
#include "llmc/run/run.h"
#include "llmc/trace/trace.h"

// What the step computes: its windows, and how they are cut and divided (warmup.h).
inline void shape_step(Run& run) {
    const int64_t step = run.state.step;
    run.step_windows = windows_of_step(run, step);
    run.cuts = sequences_per_window(step, run.options.seq_warmup, run.T);
    run.model.micro_steps = ceil_div(run.step_windows, run.B * comm.processes);
}

// This rank's micro-batch number `micro` of a step: B windows from `first` on, of which the step
// has only `rows`.
struct MicroBatch {
    int64_t first, rows;
};
inline MicroBatch micro_batch(const Run& run, int64_t micro, int64_t step) {
    const int64_t skipped = step > run.state.step ? windows_of_step(run, run.state.step) : 0;  // at most one step
    const int64_t step_begin = run.options.overfit_one_batch ? 0 : run.state.position_windows + skipped;
    const int64_t before = (micro * comm.processes + comm.rank) * run.B;
    const int64_t left = windows_of_step(run, step) - before;
    return {step_begin + before, std::max<int64_t>(0, std::min(left, run.B))};
}

// Loads a micro-batch into x and y (B,T). Rows that the step has no window for have no loss.
// Returns what is wrong, empty if nothing.
inline std::string try_load(Run& run, const MicroBatch& batch, std::vector<int>& x, std::vector<int>& y) {
    const int64_t T = run.T;
    x.resize(run.B * T), y.resize(run.B * T);
    for (int64_t b = 0; b < batch.rows; b++) {
        const std::string problem = try_load_window(run.train_data, batch.first + b, &x[b * T], &y[b * T]);
        if (!problem.empty()) return problem;
    }
    std::fill(x.begin() + batch.rows * T, x.end(), 0);
    std::fill(y.begin() + batch.rows * T, y.end(), IGNORED_TARGET);
    return "";
}

// Loads the tokens of this rank's micro-batch number `micro` of the step into run.x and run.y. Sets
// stop.failed if that fails.
inline void load_micro_batch(Run& run, int64_t micro) {
    const Range range("data", micro);
    const MicroBatch batch = micro_batch(run, micro, run.state.step);
    if (std::exchange(run.ahead.first_window, -1) == batch.first) {
        run.x.swap(run.ahead.x), run.y.swap(run.ahead.y);
        return;
    }
    if (!stop.failed) fail_on(try_load(run, batch, run.x, run.y));
}
// The tokens of the step that count: all, or with a loss mask those that it counts. They must be
// known before the first backward pass, which divides by their number. Sets run.first_tokens, and
// stop.failed if the mask cannot be read.
inline double counted_tokens(Run& run) {
    run.first_tokens = micro_batch(run, 0, run.state.step).rows * run.T;
    if (!run.train_data.masked) return (double)(run.step_windows * run.T);
    int64_t mine = 0;
    for (int64_t micro = 0; micro < run.model.micro_steps; micro++) {
        const MicroBatch batch = micro_batch(run, micro, run.state.step);
        for (int64_t b = 0; b < batch.rows && !stop.failed; b++)
            fail_on(try_count_targets(run.train_data, batch.first + b, mine));
        if (micro == 0) run.first_tokens = mine;
    }
    return comm_sum((double)mine, "the number of tokens that count");  // exact: a sum of whole numbers
}
