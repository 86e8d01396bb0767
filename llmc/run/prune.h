// --prune in a run: weights of the layers' matrices become 0 where that is due (adapt/prune.h).
#pragma once
#include "llmc/run/run.h"

// Prunes the matrices to a sparsity. Every process has all weights, and finds the same.
inline void prune_matrices(Run& run, double sparsity) {
    const Range range("prune");
    GPT2& model = run.model;
    const GPT2Config& c = model.layout.config;
    int64_t zeros = 0;
    for (int64_t l = 0; l < c.L; l++)
        for (int tensor : {QKVW, ATTPROJW, FCW, FCPROJW}) {
            const int64_t elems = tensor_elems(tensor, c);
            const float* const values = tensor_data(model, tensor, l, 0, elems);
            std::vector<float> weights(values, values + elems);
            prune(weights, run.pruning, sparsity);
            to_device(model, model.format, weight_at(model, tensor, l, 0), weights.data(), elems);
            zeros += std::count(weights.begin(), weights.end(), 0.0f);
        }
    model.backend->clear_pruned(model);
    const int64_t all = prunable_elems(c);
    run.logger.note("pruned: %s of the %s weights of the layers' matrices are 0 (%.1f%%)", grouped_text(zeros),
                    grouped_text(all), 100.0 * (double)zeros / (double)all);
}
// To be called before each step.
inline void prune_when_due(Run& run) {
    if (prunes_at(run.pruning, run.state.step)) prune_matrices(run, sparsity_at(run.pruning, run.state.step));
}

// Says what a run prunes, and warns if it ends before that. A run that only evaluates begins with
// it.
inline void begin_pruning(Run& run) {
    if (!run.pruning) return;
    run.logger.note("%s", pruning_text(run.pruning, run.model.layout.config));
    if (run.options.max_steps == 0) return prune_when_due(run);
    if (run.pruning.to < run.max_steps || comm.rank > 0) return;
    warning("--prune-steps %s goes on to step %d, and the run ends after %d: it ends before the last pruning",
            run.options.prune_steps, run.pruning.to, run.max_steps);
}
