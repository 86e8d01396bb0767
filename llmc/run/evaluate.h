// What a run does beside training: validation loss, HellaSwag, samples. None of it changes the
// weights or the order of the training data.
#pragma once
#include <numeric>
#include <utility>
#include "llmc/data/bits_per_byte.h"
#include "llmc/base/integer_math.h"
#include "llmc/run/average.h"
#include "llmc/run/generate.h"
#include "llmc/run/keep_best.h"
#include "llmc/run/run.h"

// How many windows a validation takes: -m batches of 4, whatever B and the number of processes are,
// so that runs with any of them are compared on the same text. A run that only evaluates takes the
// whole of a text.
inline int64_t validation_windows(const Run& run) {
    constexpr int64_t WINDOWS_PER_BATCH = 4;
    const Options& o = run.options;
    const bool whole_text = o.max_steps == 0 && is_text(o.val_data) && !o.given.count("--val-max-steps");
    const int64_t all = run.val_data.total_windows, batches = whole_text ? -1 : o.val_max_steps;
    return batches < 0 || batches > all / WINDOWS_PER_BATCH ? all : batches * WINDOWS_PER_BATCH;
}

struct Validation {
    double loss;           // as it is recorded
    double bits_per_byte;  // NAN where the vocabulary is not known
    double loss_sum = NAN;
    int64_t tokens = 0, bytes = 0;  // of the targets
};

// Where weights are in slices, all processes evaluate as often as each other: one that has nothing
// left to evaluate calls this.
inline void evaluate_nothing(Run& run) {
    if (!run.model.weight_places.sharded) return;
    run.x[0] = run.y[0] = 0;
    run.model.evaluate(run.model, run.x.data(), run.y.data(), 1, 1, run.losses.data());
}

// Mean loss over the targets that count in the first windows of the validation split, and the same
// in bits per byte. Of B windows for each process in turn, or of the fewer that are left, each
// takes an equal part. The losses of each window are summed apart, then the sums in the order of
// windows, whatever B and the number of processes are. The losses themselves may differ in their
// last bits between two B: a library of matrix products chooses its algorithm by the number of
// rows. NAN if no target counts, or if the run was stopped meanwhile (stop.h).
inline Validation validate(Run& run) {
    const int64_t batch = run.B * comm.processes, windows = validation_windows(run);
    const bool counts_bytes =
        is_text(run.options.val_data) || is_tokenizer_of(run.tokenizer, run.model.layout.config.V);
    std::vector<double> sums(windows), targets(windows), bytes(counts_bytes ? windows : 0);
    Progress progress(run.logger, "validation", windows, "windows");
    for (int64_t first = 0; first < windows && !stop_agreed(); first += batch) {
        const int64_t left = std::min(batch, windows - first), w = first + left * comm.rank / comm.processes;
        const int64_t n = first + left * (comm.rank + 1) / comm.processes - w;
        if (n == 0) evaluate_nothing(run);
        if (n == 0) continue;
        for (int64_t b = 0; b < n; b++) load_row(run, run.val_data, w + b, b);
        run.model.evaluate(run.model, run.x.data(), run.y.data(), n, run.T, run.losses.data());
        for (int64_t i = 0; i < n * run.T; i++) {
            sums[w + i / run.T] += run.losses[i];
            targets[w + i / run.T] += run.y[i] != IGNORED_TARGET;
        }
        for (int64_t b = 0; b < n && counts_bytes; b++)
            bytes[w + b] = (double)bytes_of_targets(run.tokenizer, &run.y[b * run.T], run.T);
        progress.reach(first + left);
    }
    if (stop_agreed()) return {NAN, NAN};
    comm_merge(sums.data(), windows, "the sum of the validation losses");
    comm_merge(bytes.data(), (int64_t)bytes.size(), "the bytes of the validation windows");
    comm_merge(targets.data(), windows, "the number of the validation targets");
    double total = 0, tokens = 0, total_bytes = 0;
    for (double sum : sums) total += sum;
    for (double n : targets) tokens += n;
    for (double n : bytes) total_bytes += n;
    const double bits = total_bytes > 0 ? bits_per_byte(total, total_bytes) : NAN;
    const double loss = recorded_number(tokens > 0 ? total / tokens : NAN);
    return {loss, bits, total, (int64_t)tokens, (int64_t)total_bytes};
}

// The perplexities of a text (text_data.h), if all of it was evaluated.
inline void report_perplexity(Run& run, const Validation& v) {
    const DataLoader& data = run.val_data;
    int64_t tokens = 0, words = 0;
    for (const Shard& text : data.shards) tokens += text.tokens - 1, words += text.text.words;
    if (!is_text(run.options.val_data) || v.tokens < tokens) return;
    auto per = [&](int64_t n) { return loss_text("%.7g", n > 0 ? std::exp(v.loss_sum / (double)n) : NAN); };
    run.logger.line("perplexity: %s per token, %s per word, %s per byte (%s, %s, %s)", per(tokens), per(words),
                    per(v.bytes), count_text(tokens, "token"), count_text(words, "word"), count_text(v.bytes, "byte"));
}

// Rows of HellaSwag that are evaluated together, as one batch of T positions each.
struct HellaSwagBatch {
    int64_t first, rows, T;
};

// The batch that begins with a row: as many rows as fit in B*T positions when all are as long as
// the longest of them, rounded up. Most rows are much shorter than the run's T.
inline HellaSwagBatch hellaswag_batch(const Run& run, int64_t first) {
    constexpr int64_t MULTIPLE = 32;  // so that there are few different T
    const int64_t all = (int64_t)run.hellaswag.size() * HELLASWAG_CHOICES;
    HellaSwagBatch batch{first, 0, 1};
    for (; first + batch.rows < all; batch.rows++) {
        const int64_t inputs = (int64_t)hellaswag_row(run.hellaswag, first + batch.rows, run.T).tokens.size() - 1;
        const int64_t T = std::max(batch.T, std::min(run.T, round_up(inputs, MULTIPLE)));
        if ((batch.rows + 1) * T > run.B * run.T) break;
        batch.T = T;
    }
    return batch;
}

// The mean loss of the completion in each row of a batch, to means[row].
inline void evaluate_completions(Run& run, const HellaSwagBatch& batch, std::vector<double>& means) {
    std::fill(run.x.begin(), run.x.end(), 0), std::fill(run.y.begin(), run.y.end(), 0);
    for (int64_t r = 0; r < batch.rows; r++) {
        const std::vector<int> tokens = hellaswag_row(run.hellaswag, batch.first + r, run.T).tokens;
        std::copy(tokens.begin(), tokens.end() - 1, &run.x[r * batch.T]);
        std::copy(tokens.begin() + 1, tokens.end(), &run.y[r * batch.T]);
    }
    run.model.evaluate(run.model, run.x.data(), run.y.data(), batch.rows, batch.T, run.losses.data());
    for (int64_t r = 0; r < batch.rows; r++) {
        const HellaSwagRow row = hellaswag_row(run.hellaswag, batch.first + r, run.T);
        const float* end = &run.losses[r * batch.T] + row.tokens.size() - 1;
        means[batch.first + r] = std::accumulate(end - row.targets, end, 0.0) / (double)row.targets;
    }
}

// How many HellaSwag questions the model answers correctly: those whose right completion has the
// lowest mean loss of all. Of P batches in a row each process evaluates one. 0 if the run was
// stopped meanwhile.
inline int64_t hellaswag_correct(Run& run) {
    const int64_t questions = (int64_t)run.hellaswag.size(), rows = questions * HELLASWAG_CHOICES;
    std::vector<double> means(rows);
    Progress progress(run.logger, "HellaSwag", questions, "questions");
    int64_t number = 0;
    for (int64_t first = 0; first < rows; number++) {
        if (number % comm.processes == 0 && stop_agreed()) return 0;
        const HellaSwagBatch batch = hellaswag_batch(run, first);
        if (number % comm.processes == comm.rank) evaluate_completions(run, batch, means);
        first += batch.rows;
        progress.reach(first / HELLASWAG_CHOICES);
    }
    if (const int64_t in_last = number % comm.processes; in_last > 0 && comm.rank >= in_last) evaluate_nothing(run);
    if (stop_agreed()) return 0;
    comm_merge(means.data(), rows, "the losses of the completions");
    int64_t correct = 0;
    for (int64_t q = 0; q < questions; q++) {
        const double *of_question = &means[q * HELLASWAG_CHOICES], right = of_question[run.hellaswag[q].label];
        const double* lowest = std::min_element(of_question, of_question + HELLASWAG_CHOICES);
        correct += lowest - of_question == run.hellaswag[q].label && std::isfinite(right);
    }
    return correct;
}

// The results of a validation: on stdout, in evals.jsonl and in main.log.
inline void report_validation(Run& run, int64_t step, const Validation& v, const Validation* average) {
    const std::string loss = json_number_text(v.loss), bits = json_number_text(v.bits_per_byte);
    run.logger.line("val loss %s", loss_text("%f", v.loss));
    if (!std::isnan(v.bits_per_byte)) run.logger.line("bits per byte %.4f", v.bits_per_byte);
    report_perplexity(run, v);
    std::string line = format("{\"step\": %d, \"val_loss\": %s, \"bits_per_byte\": %s", step, loss, bits);
    if (average) {
        run.logger.line("val loss of the average %s", loss_text("%f", average->loss));
        line += format(", \"average_loss\": %s", json_number_text(average->loss));
    }
    run.files.evals.record(line + "}");
    run.files.log.record(format("s:%d tel:%s", step, loss_text("%.4f", v.loss)));
}
// The results of HellaSwag: on stdout, in evals.jsonl and in main.log.
inline void report_hellaswag(Run& run, int64_t step, int64_t correct) {
    const int64_t questions = (int64_t)run.hellaswag.size();
    const double share = (double)correct / (double)questions;
    run.logger.line("HellaSwag: %d/%d = %f", correct, questions, share);
    run.files.evals.record(format("{\"step\": %d, \"hellaswag\": %.9g, \"correct\": %d, \"questions\": %d}", step,
                                  share, correct, questions));
    run.files.log.record(format("s:%d eval:%.4f", step, share));
}

// What is due between steps: validation loss, HellaSwag, a sample. Returns early if the run was
// stopped meanwhile.
inline void evaluate_and_sample(Run& run, int64_t step, bool last) {
    const Options& o = run.options;
    const bool due = validates(o) && (step % o.val_every == 0 || last);
    if (due && run.val_data.total_windows > 0) {
        const Validation v = validate(run);
        if (stop.agreed) return;
        Validation of_average;
        if (run.model.average) with_average(run, [&] { of_average = validate(run); });
        if (stop.agreed) return;
        keep_if_best(run, step, v.loss);  // first: what is recorded is not evaluated again
        report_validation(run, step, v, run.model.average ? &of_average : nullptr);
        run.validated_step = step;
        stop_if_no_better(run);
    }
    if ((due || o.max_steps == 0) && !run.hellaswag.empty()) {
        const int64_t correct = hellaswag_correct(run);
        if (stop.agreed) return;
        report_hellaswag(run, step, correct);
    }
    const bool together = run.model.weight_places.sharded;  // then no process can do it alone
    const bool sample_due = last || (o.sample_every > 0 && step > 0 && step % o.sample_every == 0);
    if (sample_due && run.model.sizes.cache_T > 0 && (comm.rank == 0 || together))
        sample_text(run, o.prompt, run.prompt, step);
}

// After Ctrl-C, SIGUSR1 or --max-minutes, when all is saved: validates and samples, for whoever
// waits. A second signal ends the program. Nothing is recorded, so that a resumed run leaves the
// files of one that was not stopped.
inline void evaluate_stopped(Run& run) {
    const Options& o = run.options;
    const bool waited_for = stop.agreed == SIGUSR1 || (stop.agreed == SIGINT && !stop.by_mpi);
    if (!waited_for || o.max_steps == 0 || run.state.step == run.first_step) return;
    stop.saved = true;
    const int agreed = std::exchange(stop.agreed, 0);
    const RunFiles files = std::exchange(run.files, {});
    run.options.keep_best = 0, run.hellaswag.clear();
    if (run.validated_step == run.state.step) run.options.val_every = 0;
    evaluate_and_sample(run, run.state.step, true);
    run.files = files, stop.agreed = agreed;
}
