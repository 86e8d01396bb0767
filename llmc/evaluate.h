// What a run does beside training: validation loss, HellaSwag, samples. None of it changes the
// weights or the order of the training data.
#pragma once
#include "llmc/integer_math.h"
#include "llmc/bits_per_byte.h"
#include "llmc/generate.h"
#include "llmc/run.h"

// How many batches a validation takes, -1 for all. Before the first step of a run that begins with
// random weights the loss is about ln V, whatever the text: one batch shows that, unless -m was
// given. A run that only evaluates takes the whole of a text.
template <class Model>
inline int64_t validation_batches(const Run<Model>& run) {
    const Options& o = run.options;
    if (o.max_steps == 0 && is_text(o.val_data) && !o.given.count("--val-max-steps")) return -1;
    const bool untrained = run.random_weights && run.state.step == 0 && o.max_steps != 0;
    return untrained && !o.given.count("--val-max-steps") ? 1 : o.val_max_steps;
}

struct Validation {
    double loss;
    double bits_per_byte;  // NAN where the vocabulary is not known
    double loss_sum = NAN;
    int64_t tokens = 0, bytes = 0;  // of the targets
};

// Mean loss over the targets that count in the first windows of the validation split, which are
// split among the processes, and the same in bits per byte. The last batch may be smaller. The
// losses of each window are summed apart, then the sums in the order of windows: the result depends
// neither on B nor on the number of processes. NAN if no target counts, or if the run was stopped
// meanwhile (stop.h).
template <class Model>
inline Validation validate(Run<Model>& run) {
    const int64_t batch = run.B * comm.processes, all = run.val_data.total_windows;
    const int64_t batches = ceil_div(all, batch), most = validation_batches(run);
    const int64_t windows = most < 0 ? all : std::min(all, std::min(most, batches) * batch);
    const bool counts_bytes =
        is_text(run.options.val_data) || is_tokenizer_of(run.tokenizer, run.model.layout.config.V);
    std::vector<double> sums(windows), targets(windows), bytes(counts_bytes ? windows : 0);
    Progress progress(run.logger, "validation", windows, "windows");
    for (int64_t first = 0; first < windows && !stop_agreed(); first += batch) {
        const int64_t w = first + comm.rank * run.B, n = std::min(run.B, windows - w);
        if (n <= 0) continue;
        for (int64_t b = 0; b < n; b++) load_row(run, run.val_data, w + b, b);
        evaluate(run.model, run.x.data(), run.y.data(), n, run.T, run.losses.data());
        for (int64_t i = 0; i < n * run.T; i++) {
            sums[w + i / run.T] += run.losses[i];
            targets[w + i / run.T] += run.y[i] != IGNORED_TARGET;
        }
        for (int64_t b = 0; b < n && counts_bytes; b++)
            bytes[w + b] = (double)bytes_of_targets(run.tokenizer, &run.y[b * run.T], run.T);
        progress.reach(w + batch);
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
    return {tokens > 0 ? total / tokens : NAN, bits, total, (int64_t)tokens, (int64_t)total_bytes};
}

// The perplexities of a text (text_data.h), if all of it was evaluated.
template <class Model>
inline void report_perplexity(Run<Model>& run, const Validation& v) {
    const DataLoader& data = run.val_data;
    int64_t tokens = 0, words = 0;
    for (const Shard& text : data.shards) tokens += text.tokens - 1, words += text.text.words;
    if (!is_text(run.options.val_data) || v.tokens < tokens) return;
    auto per = [&](int64_t n) { return loss_text("%.7g", n > 0 ? std::exp(v.loss_sum / (double)n) : NAN); };
    run.logger.line("perplexity: %s per token, %s per word, %s per byte (%s, %s, %s)", per(tokens).c_str(),
                    per(words).c_str(), per(v.bytes).c_str(), count_text(tokens, "token").c_str(),
                    count_text(words, "word").c_str(), count_text(v.bytes, "byte").c_str());
}

// A HellaSwag question's context and one of its completions, as a row of a batch: the positions
// where the completion begins and ends.
struct HellaSwagRow {
    int begin, end;
};

// Writes a question's context and completion number `choice` to row r of run.x and run.y. What does
// not fit in T loses its beginning.
template <class Model>
inline HellaSwagRow load_hellaswag_row(Run<Model>& run, const HellaSwagExample& question, int choice, int64_t r) {
    const std::vector<int>& completion = question.completions[choice];
    std::vector<int> text = question.context;
    text.insert(text.end(), completion.begin(), completion.end());
    const int64_t T = run.T, cut = std::max<int64_t>(0, (int64_t)text.size() - (T + 1));
    text.erase(text.begin(), text.begin() + cut);
    for (size_t t = 0; t + 1 < text.size(); t++) run.x[r * T + t] = text[t], run.y[r * T + t] = text[t + 1];
    return {(int)std::max<int64_t>(1, (int64_t)question.context.size() - cut), (int)text.size()};
}

// Mean loss of a row's completion.
inline double completion_loss(const float* losses, HellaSwagRow row) {
    double total = 0;
    for (int t = row.begin - 1; t + 1 < row.end; t++) total += losses[t];
    return total / std::max(1, row.end - row.begin);
}

// How many HellaSwag questions the model answers correctly: those whose right completion has the
// lowest mean loss of all. Rank r of P takes the questions r, r + P, ... 0 if the run was stopped
// meanwhile.
template <class Model>
inline int64_t hellaswag_correct(Run<Model>& run) {
    const int64_t all = run.hellaswag.size(), questions = ceil_div(all - comm.rank, comm.processes);
    const int64_t rows = questions * HELLASWAG_CHOICES;
    const int64_t most_rows = ceil_div(all, comm.processes) * HELLASWAG_CHOICES;  // those of rank 0
    std::vector<HellaSwagRow> batch(run.B);
    Progress progress(run.logger, "HellaSwag", all, "questions");
    double best = 0;
    int64_t correct = 0;
    int answer = 0;
    auto question = [&](int64_t row) -> const HellaSwagExample& {
        return run.hellaswag[row / HELLASWAG_CHOICES * comm.processes + comm.rank];
    };
    for (int64_t first = 0; first < most_rows && !stop_agreed(); first += run.B) {
        const int64_t n = std::min(run.B, rows - first);
        if (n <= 0) continue;
        std::fill(run.x.begin(), run.x.end(), 0), std::fill(run.y.begin(), run.y.end(), 0);
        for (int64_t r = 0; r < n; r++)
            batch[r] = load_hellaswag_row(run, question(first + r), (int)((first + r) % HELLASWAG_CHOICES), r);
        evaluate(run.model, run.x.data(), run.y.data(), n, run.T, run.losses.data());
        for (int64_t r = 0; r < n; r++) {
            const double loss = completion_loss(&run.losses[r * run.T], batch[r]);
            const int choice = (int)((first + r) % HELLASWAG_CHOICES);
            if (choice == 0 || loss < best) best = loss, answer = choice;
            if (choice == HELLASWAG_CHOICES - 1) correct += answer == question(first + r).label;
        }
        progress.reach((first + n) / HELLASWAG_CHOICES * comm.processes);
    }
    if (stop.agreed) return 0;
    return (int64_t)comm_sum((double)correct, "the sum of the answers");
}

// The results of a validation: on stdout, in evals.jsonl and in main.log.
template <class Model>
inline void report_validation(Run<Model>& run, int64_t step, const Validation& v) {
    const std::string loss = json_number_text(v.loss), bits = json_number_text(v.bits_per_byte);
    run.logger.line("val loss %s", loss_text("%f", v.loss).c_str());
    if (!std::isnan(v.bits_per_byte)) run.logger.line("bits per byte %.4f", v.bits_per_byte);
    report_perplexity(run, v);
    run.files.evals.record(format("{\"step\": %lld, \"val_loss\": %s, \"bits_per_byte\": %s}", (long long)step,
                                  loss.c_str(), bits.c_str()));
    run.files.log.record(format("s:%lld tel:%s", (long long)step, loss_text("%.4f", v.loss).c_str()));
}
// Those of HellaSwag.
template <class Model>
inline void report_hellaswag(Run<Model>& run, int64_t step, int64_t correct) {
    const int64_t questions = (int64_t)run.hellaswag.size();
    const double share = (double)correct / (double)questions;
    run.logger.line("HellaSwag: %lld/%lld = %f", (long long)correct, (long long)questions, share);
    run.files.evals.record(format("{\"step\": %lld, \"hellaswag\": %.9g, \"correct\": %lld, \"questions\": %lld}",
                                  (long long)step, share, (long long)correct, (long long)questions));
    run.files.log.record(format("s:%lld eval:%.4f", (long long)step, share));
}

// What is due between steps: validation loss, HellaSwag, a sample. Returns early if the run was
// stopped meanwhile.
template <class Model>
inline void evaluate_and_sample(Run<Model>& run, int64_t step, bool last) {
    const Options& o = run.options;
    const bool due = o.val_every > 0 && (step % o.val_every == 0 || last) && !only_generates(o);
    if (due && run.val_data.total_windows > 0) {
        const Validation v = validate(run);
        if (stop.agreed) return;
        report_validation(run, step, v);
    }
    if (due && !run.hellaswag.empty()) {
        const int64_t correct = hellaswag_correct(run);
        if (stop.agreed) return;
        report_hellaswag(run, step, correct);
    }
    const bool sample_due = last || (o.sample_every > 0 && step > 0 && step % o.sample_every == 0);
    if (sample_due && run.model.sizes.cache_T > 0 && comm.rank == 0) sample_text(run, o.prompt, run.prompt, step);
}
