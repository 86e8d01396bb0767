// Generation: the model's probabilities of what follows a text, a token drawn from them
// (sampler.h), and again for the text with that token. The cache of keys and values spares the
// model all positions but the new one. A sample ends after -g tokens, at the end-of-text token, or
// before the text of --stop.
#pragma once
#include "llmc/base/json_text.h"
#include "llmc/run/run.h"
#include "llmc/run/sampler.h"
#include "llmc/data/text_stream.h"

// A text that the model continues. The cache has the keys and values of `cached` of its tokens,
// from number `begin` on.
struct Context {
    std::vector<int> tokens;
    int64_t begin = 0, cached = 0;
};

// Goes back to the first n tokens, of which the last is computed once more. If there are more than
// the cache holds, the model sees the last of them.
inline void rewind(Context& context, int64_t n, int64_t cache_T) {
    const int64_t begin = std::max<int64_t>(0, n - cache_T);
    const bool same = context.begin == begin;
    context.tokens.resize(n);
    context.begin = begin;
    context.cached = same ? std::min(context.cached, n - begin - 1) : 0;
}

// Whether the user stops it. Where weights are in slices all processes generate, and agree.
inline bool generation_stopped(const GPT2& model) {
    const bool stopped = stop.signal != 0;
    return model.weight_places.sharded ? comm_any(stopped, "whether generation is stopped") : stopped;
}

// The logits of what follows the context; null if the user stops it meanwhile. What the cache does
// not have yet is computed in one forward pass, as far as that is made for so many tokens; then
// token by token. When the cache is full, the model goes on from the second half of what it saw.
inline const float* logits_after(GPT2& model, Context& context) {
    const int64_t length = (int64_t)context.tokens.size(), cache_T = model.sizes.cache_T;
    if (context.cached == cache_T) context.cached = 0, context.begin = length - std::max<int64_t>(1, cache_T / 2);
    const float* logits = nullptr;
    if (generation_stopped(model)) return nullptr;
    if (context.cached == 0) {
        context.cached = std::min(length - context.begin, model.sizes.T);
        logits = model.prefill(model, &context.tokens[context.begin], context.cached);
    }
    for (int64_t t = context.begin + context.cached; t < length; t++) {
        if (generation_stopped(model)) return nullptr;
        logits = model.decode(model, context.tokens[t], context.cached++);
    }
    return logits;
}

// How long generation took.
struct GenerationTime {
    int64_t prompt_tokens = 0, tokens = 0;
    double prompt_seconds = 0, seconds = 0;
};

inline std::string generation_text(const char* what, int64_t tokens, double seconds) {
    const std::string rate = seconds > 0 ? format(", %.1f tok/s", (double)tokens / seconds) : "";
    return format("%s: %s%s", what, count_text(tokens, "token"), rate);
}
// On stderr, so that stdout has the same text in every run.
inline void print_generation_time(const GenerationTime& time) {
    clear_the_way();
    fprintf(stderr, "%s | %s\n", generation_text("prompt", time.prompt_tokens, time.prompt_seconds).c_str(),
            generation_text("generated", time.tokens, time.seconds).c_str());
}

inline void print_now(const std::string& text) {
    if (comm.rank > 0) return;
    fwrite(text.data(), 1, text.size(), stdout);
    fflush(stdout);
}

// Continues a text, and prints what follows as it comes: characters, or numbers of tokens if there
// is no tokenizer. Returns what it printed.
inline std::string continue_text(Run& run, Context& context, MersenneTwister rng, GenerationTime& time) {
    const Options& o = run.options;
    const int64_t V = run.model.layout.config.V;
    const bool has_words = run.tokenizer.vocab_size() > 0;
    TextStream stream{o.stop, run.logger.terminal};
    std::string printed;
    const auto print = [&](const std::string& text) { print_now(text), printed += text; };
    std::vector<double> probs;
    double begin = now_seconds();
    for (int64_t made = 0; made < o.sample_tokens && !stream.stopped; made++) {
        const float* logits = logits_after(run.model, context);
        if (!logits) break;
        if (time.prompt_tokens == 0) {
            time.prompt_tokens = context.cached, time.prompt_seconds = now_seconds() - begin;
            begin = now_seconds();
        }
        sampling_probabilities(probs, logits, V, o.temperature, o.top_k, o.top_p);
        const int token = pick_token(probs, rng.uniform_double());
        time.tokens++;
        if (has_words && token == run.tokenizer.end_of_text) break;
        context.tokens.push_back(token);
        print(has_words ? stream.add(decode(run.tokenizer, token)) : format("%d ", token));
    }
    print(stream.finish());
    time.seconds += now_seconds() - begin;
    return printed;
}

// Records a sample in evals.jsonl.
inline void record_sample(Run& run, int64_t step, const std::string& sample, const std::string& prompt) {
    run.files.evals.record(
        format("{\"step\": %d, \"sample\": %s, \"prompt\": %s}", step, json_text(sample), json_text(prompt)));
}

// Says, once, if a text may go beyond the positions that the model was trained at.
inline void check_sample_positions(Run& run, int64_t prompt_tokens) {
    const int64_t trained = run.trained_positions;
    const int64_t reached = std::min(prompt_tokens + run.options.sample_tokens - 1, run.model.sizes.cache_T);
    if (trained == 0 || reached <= trained) return;
    warning(
        "the run of -e %s has trained %d positions; a prompt of %s and -g %d may take %d, of which the last "
        "were never trained",
        run.options.model, trained, count_text(prompt_tokens, "token"), run.options.sample_tokens, reached);
    run.trained_positions = 0;
}

// Draws --samples continuations of a prompt and prints them, each after the prompt. Sample k has
// its own generator of random numbers, made from seed, step and k. Without a prompt the text begins
// after an end of text. A run that only generates prints nothing but the text; with --quiet 1 a NUL
// byte ends each of several samples, except on a terminal.
inline void sample_text(Run& run, const std::string& prompt, const std::vector<int>& tokens, int64_t step) {
    const Options& o = run.options;
    const bool knows_end = run.tokenizer.vocab_size() > 0 && run.tokenizer.end_of_text < run.model.layout.config.V;
    const bool framed = !only_generates(o), ends_with_nul = !framed && o.quiet && o.samples > 1 && !run.logger.terminal;
    const char* separator = framed || o.samples > 1 ? "\n---" : "";
    Context context;
    GenerationTime time;
    context.tokens = tokens;
    if (tokens.empty()) context.tokens.push_back(knows_end ? run.tokenizer.end_of_text : 0);
    const int64_t prompt_tokens = (int64_t)context.tokens.size();
    if (comm.rank == 0) check_sample_positions(run, prompt_tokens);
    if (framed) run.logger.line("generating:\n---");
    run.logger.clear_line_in_work();
    for (int64_t k = 0; k < o.samples && !generation_stopped(run.model); k++) {
        rewind(context, prompt_tokens, run.model.sizes.cache_T);
        print_now(shown_text(prompt, run.logger.terminal));
        const std::string sample = continue_text(run, context, generator_for(o.seed, RANDOM_SAMPLE, step, k), time);
        if (!stop.signal) record_sample(run, step, sample, prompt);
        if (ends_with_nul) print_now(std::string(1, '\0'));
        else run.logger.line("%s", k + 1 < o.samples || framed ? separator : "");
    }
    if (!framed && !o.quiet && comm.rank == 0) print_generation_time(time);
}
