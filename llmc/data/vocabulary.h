// Which vocabulary a run has. A run that has shards of its own vocabulary finds it beside them, and
// a new model takes its size.
#pragma once
#include "llmc/gpt2/config.h"
#include "llmc/options/run_json.h"
#include "llmc/data/tokenizer.h"

// The folder of the run that -e names by this folder or by a model file in it, model_*.bin; empty
// if it names none.
inline std::string folder_of_run(const std::string& model) {
    GPT2Config config;
    if (parse_descriptor(model, config)) return "";
    const size_t slash = model.rfind('/'), name = slash == model.npos ? 0 : slash + 1;
    const bool is_file = model.compare(name, 6, "model_") == 0 && file_exists(model);
    const std::string folder = is_file ? folder_of(model) : model;
    return name_exists(run_json_path(folder)) ? folder : "";
}

// The flags of the run in a folder.
inline Options options_of_folder(const std::string& folder) {
    Options run;
    run.out_dir = folder;
    take_over_flags(run, run_json_path(folder));
    return run;
}

// The --tokenizer of the run that -e names; empty if it names none, or the file is not there.
inline std::string tokenizer_of_run(const std::string& model) {
    const std::string folder = folder_of_run(model);
    const std::string tokenizer = folder.empty() ? "" : options_of_folder(folder).tokenizer;
    return !tokenizer.empty() && file_exists(tokenizer) ? tokenizer : "";
}

// The vocabulary that lies beside the shards of -i. Exit 2 if two of several sources have different
// ones.
inline std::string tokenizer_of_sources(const std::string& train_data) {
    const auto checksum_of = [](const std::string& path) {
        FileReader file(path);
        return ::checksum_of(file, [](int64_t) {});
    };
    std::string found;
    for (const auto& [pattern, weight] : sources_of(train_data)) {
        const std::string beside = tokenizer_beside(pattern);
        if (!found.empty() && !beside.empty() && checksum_of(found) != checksum_of(beside))
            usage_error(
                "-i %s: the tokens of these sources are of different vocabularies, %s and %s; shards of one vocabulary "
                "are accepted (`tokenize --tokenizer FILE` makes them)",
                train_data, found, beside);
        if (found.empty()) found = beside;
    }
    return found;
}

// Finds --tokenizer where it is not given, nor known from a run.json: beside the shards of
// -i (of -j if only those are given), or that of the run which -e names, or beside the model file.
inline void settle_tokenizer(Options& o) {
    if (!o.given.count("--tokenizer") && o.flags_from.empty()) {
        const bool i = o.given.count("--train-data"), j = o.given.count("--val-data") && !is_text(o.val_data);
        std::string found = i   ? tokenizer_of_sources(o.train_data)
                            : j ? tokenizer_beside(o.val_data)
                                : tokenizer_of_run(o.model);
        if (found.empty()) found = tokenizer_of_model(o.model);
        if (found.empty() && !i && !j) found = tokenizer_of_sources(o.train_data);
        if (!found.empty()) o.tokenizer = found;
    }
    const std::string standard = Options().tokenizer;
    const size_t length = o.tokenizer.size();
    const bool is_standard =
        length >= standard.size() && o.tokenizer.compare(length - standard.size(), standard.size(), standard) == 0;
    if (!is_standard && file_exists(o.tokenizer)) o.vocabulary = tokenizer_vocab_size(o.tokenizer);
}

// Exit 2 if the model cannot hold the tokens that the tokenizer makes of a text. what: names the
// text.
inline void check_text_vocabulary(const std::string& what, const Options& o, const Tokenizer& tok,
                                  const GPT2Config& config) {
    if (tok.vocab_size() > config.V)
        usage_error(
            "%s would be tokenized by %s, which has %d tokens, and the model (-e %s) only %d; --tokenizer with "
            "the model's own vocabulary is accepted",
            what, o.tokenizer, tok.vocab_size(), o.model, config.V);
}

// Exit 2 if the model cannot hold the tokens of the vocabulary that was chosen.
inline void check_vocabulary(const Options& o, const GPT2Config& config) {
    if (o.vocabulary == 0 || config.V == o.vocabulary) return;
    if (config.V < o.vocabulary)
        usage_error(
            "the model (-e %s) has a vocabulary of %d tokens and %s has %d: V%d or no V is accepted in a "
            "descriptor, or another --tokenizer",
            o.model, config.V, o.tokenizer, o.vocabulary, o.vocabulary);
    if (config.V > padded_vocab(o.vocabulary))
        warning("the model (-e %s) has a vocabulary of %d tokens and %s has only %d", o.model, config.V, o.tokenizer,
                o.vocabulary);
}

// The token at which documents begin, for --document-mask 1. Exit 2 if it is not known.
inline void settle_end_of_text(Options& o, const GPT2Config& config) {
    if (!o.document_mask) return;
    if (!file_exists(o.tokenizer))
        usage_error(
            "--document-mask 1 takes the end-of-text token from --tokenizer, and %s is not there; a tokenizer file is "
            "accepted, or --document-mask 0",
            o.tokenizer);
    const int64_t tokens = tokenizer_vocab_size(o.tokenizer);
    if (!is_vocabulary_of(tokens, config.V))
        usage_error(
            "--document-mask 1 takes the end-of-text token from --tokenizer, and %s is not that of the model: it has "
            "%d tokens, the model %d; the model's tokenizer is accepted, or --document-mask 0",
            o.tokenizer, tokens, config.V);
    o.end_of_text = tokenizer_end_of_text(o.tokenizer);
}
