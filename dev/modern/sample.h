// Generation after a run: tokens that follow a prompt, drawn one by one (llmc/run/sampler.h).
#pragma once
#include "dev/modern/model.h"
#include "dev/modern/settings.h"
#include "llmc/data/tokenizer.h"
#include "llmc/run/sampler.h"

namespace modern {

struct Prompt {
    Tokenizer tokenizer;  // empty without --tokenizer
    std::vector<int> tokens;
};
// --prompt as tokens: those of its text, or the numbers in it; without one an end of text, else 0.
inline Prompt prompt_of(const Settings& s, int64_t V) {
    Prompt prompt;
    if (!s.tokenizer.empty()) {
        tokenizer_load(prompt.tokenizer, s.tokenizer);
        if (prompt.tokenizer.vocab_size() > V)
            usage_error("--tokenizer %s has %d tokens, the model %d", s.tokenizer, prompt.tokenizer.vocab_size(), V);
        encode(prompt.tokenizer, s.prompt, prompt.tokens);
        if (prompt.tokens.empty()) prompt.tokens.push_back(prompt.tokenizer.end_of_text);
        return prompt;
    }
    for (size_t at = 0, end; at < s.prompt.size(); at = end + 1) {
        end = std::min(s.prompt.find(' ', at), s.prompt.size());
        int64_t token;
        if (!parse_whole(s.prompt.substr(at, end - at), token) || token < 0 || token >= V)
            usage_error(
                "--prompt \"%s\" without a --tokenizer: numbers from 0 to %d are accepted, with a space between",
                s.prompt, V - 1);
        prompt.tokens.push_back((int)token);
    }
    if (prompt.tokens.empty()) prompt.tokens.push_back(0);
    return prompt;
}
// -g: prints the prompt and what follows. logits_after(model, tokens, n, cached, logits) is the
// model, whose cache has keys and values of `cached` of the n tokens. When it is full, the model
// goes on from the second half of what it saw.
template <class LogitsAfter>
void generate(const Settings& s, const Model& model, Prompt prompt, int64_t step, LogitsAfter logits_after) {
    if (s.sample_tokens == 0) return;
    std::vector<int>& tokens = prompt.tokens;
    int64_t begin = std::max<int64_t>(0, (int64_t)tokens.size() - model.T), cached = 0;
    std::vector<float> logits;
    std::vector<double> probabilities;
    MersenneTwister random = generator_for((uint64_t)s.seed, RANDOM_SAMPLE, (uint64_t)step);
    const bool has_words = prompt.tokenizer.vocab_size() > 0;
    printf("%s", s.prompt.c_str());
    for (int64_t made = 0; made < s.sample_tokens; made++) {
        const int64_t length = (int64_t)tokens.size();
        if (cached == model.T) begin = length - std::max<int64_t>(1, model.T / 2), cached = 0;
        logits_after(model, &tokens[begin], length - begin, cached, logits);
        cached = length - begin;
        sampling_probabilities(probabilities, logits.data(), model.config.V, s.temperature, s.top_k, 1);
        tokens.push_back(pick_token(probabilities, random.uniform_double()));
        if (has_words && tokens.back() == prompt.tokenizer.end_of_text) break;
        const std::string text =
            has_words ? std::string(decode(prompt.tokenizer, tokens.back())) : format(" %d", tokens.back());
        fwrite(text.data(), 1, text.size(), stdout), fflush(stdout);
    }
    printf("\n");
}

}  // namespace modern
