// A text as validation data (-j FILE.txt): it is tokenized as it is opened, and its tokens stay in
// memory, two bytes each. Nothing is written.
//
// A text is one document. <|endoftext|> goes before it, as `tokenize` puts it, so every token of
// the text is predicted. Perplexity is exp(sum of all losses / n), where n counts tokens, words or
// bytes of the text. Per token it compares models of one vocabulary only; per word and per byte it
// compares any two. Words are what white space separates, as in lm-eval's word_perplexity.
#pragma once
#include "llmc/base/logger.h"
#include "llmc/data/tokenizer.h"

// Counts the words of a text that comes in parts, each of whole characters.
struct WordCounter {
    const Tokenizer& tok;
    int64_t words = 0;
    bool in_word = false;

    void add(std::string_view text) {
        for (size_t at = 0, length; at < text.size(); at += length) {
            const bool is_space = next_char(tok, text, at, length) == CHAR_SPACE;
            words += !is_space && !in_word;
            in_word = !is_space;
        }
    }
};

// The most memory that the tokens of these texts take: no token stands for less than one byte.
inline int64_t text_tokens_bytes(const std::string& pattern) {
    int64_t bytes = 0;
    for (const std::string& path : glob_files(pattern)) bytes += file_bytes(path) * (int64_t)sizeof(uint16_t);
    return bytes;
}

struct TextTokens {
    std::vector<uint16_t> tokens;  // <|endoftext|> first
    int64_t words = 0;
};

// The tokens of a file. Exit 1 if it is empty, or is no text.
inline TextTokens tokens_of_text(FileReader& file, const Tokenizer& tok, Logger& logger) {
    constexpr int64_t PIECE_BYTES = 1 << 20;
    if (file.size_bytes == 0) runtime_failure("%s is empty; a text is expected", file.path);
    TextTokens text;
    text.tokens.reserve(file.size_bytes / 3 + 2);
    text.tokens.push_back((uint16_t)tok.end_of_text);
    WordCounter counter{tok};
    std::string rest;  // read, but not encoded yet
    std::vector<int> ids;
    Progress progress(logger, "tokenizing " + file.path, file.size_bytes, "MB", 1000000);
    file.rewind();
    while (file.position < file.size_bytes) {
        const size_t had = rest.size(), bytes = std::min<int64_t>(PIECE_BYTES + had, file.size_bytes - file.position);
        rest.resize(had + bytes);
        file.read(&rest[had], bytes, "the text");
        if (memchr(&rest[had], 0, bytes)) runtime_failure("%s has a zero byte: it is no text", file.path);
        const bool at_end = file.position == file.size_bytes;
        const std::string_view whole = std::string_view(rest).substr(0, at_end ? rest.size() : last_cut(tok, rest));
        ids.clear();
        encode(tok, whole, ids);
        text.tokens.insert(text.tokens.end(), ids.begin(), ids.end());
        counter.add(whole);
        rest.erase(0, whole.size());
        progress.reach(file.position);
    }
    text.words = counter.words;
    return text;
}
