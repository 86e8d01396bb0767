// What the tests of `tokenize` share: texts to tokenize, and the tokens that it should write.
#pragma once
#include <filesystem>
#include "dev/test/run_program.h"
#include "llmc/data/tokenizer.h"

const int EOT = 50256;
inline Tokenizer tok;

inline uint64_t text_state = 88172645463325252u;
inline uint64_t random_below(uint64_t n) {
    text_state ^= text_state << 13, text_state ^= text_state >> 7, text_state ^= text_state << 17;
    return text_state % n;
}

// The tokens of one document, <|endoftext|> first; of several, one after the other.
inline std::vector<int> document(const std::string& text) {
    std::vector<int> ids{EOT};
    encode(tok, text, ids);
    return ids;
}
inline std::vector<int> documents(const std::vector<std::string>& texts) {
    std::vector<int> ids;
    for (const std::string& text : texts) {
        const std::vector<int> more = document(text);
        ids.insert(ids.end(), more.begin(), more.end());
    }
    return ids;
}
// The tokens of a shard; none if the file is not a valid one.
inline std::vector<int> shard(const std::string& path) {
    const std::string bytes = read_whole(path);
    std::vector<int> ids;
    if (bytes.size() < 1024 || bytes.size() % 2) return ids;
    int32_t header[3];
    memcpy(header, bytes.data(), sizeof(header));
    if (header[0] != TOKENS_16.magic || header[1] != 1 || header[2] != (int)(bytes.size() - 1024) / 2) return ids;
    for (size_t at = 1024; at < bytes.size(); at += 2)
        ids.push_back((unsigned char)bytes[at] | (unsigned char)bytes[at + 1] << 8);
    return ids;
}
// All that a run wrote, training tokens first.
inline std::vector<int> written(const std::string& prefix) {
    std::vector<int> ids = shard(prefix + "_train.bin"), val = shard(prefix + "_val.bin");
    ids.insert(ids.end(), val.begin(), val.end());
    return ids;
}
inline Outcome tokenize(const std::string& flags) { return run("./tokenize " + flags); }
inline bool good(const Outcome& r) {
    if (r.status != 0) printf("    status %d: %s\n", r.status, r.err.substr(0, 300).c_str());
    return r.status == 0;
}
inline std::vector<std::string> names_in(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}
inline std::string fresh_folder(const std::string& name) {
    std::filesystem::remove_all(dir(name));
    std::filesystem::create_directories(dir(name));
    return dir(name);
}
// A random sequence of words, white space and punctuation of the kinds that the tokenizer's pattern
// distinguishes.
inline std::string random_text(size_t pieces) {
    static const std::vector<std::string> parts = {"'s",
                                                   "'ll",
                                                   " ",
                                                   "  ",
                                                   "\n",
                                                   "\r\n",
                                                   "\t",
                                                   "a",
                                                   "bc",
                                                   "don't",
                                                   "5",
                                                   "42",
                                                   "\xc3\xa9",
                                                   "\xe4\xb8\xad\xe6\x96\x87",
                                                   "\xe3\x80\x82",
                                                   "\xc2\xa0",
                                                   "\xe2\x80\xa8",
                                                   "\xf0\x9f\x98\x80",
                                                   "!",
                                                   "...",
                                                   "'",
                                                   "word",
                                                   "\xcc\x81"};
    std::string text;
    for (size_t i = 0; i < pieces; i++) text += parts[random_below(parts.size())];
    return text;
}

inline void prepare_tokenize_tests() {
    make_test_folder();
    tokenizer_load(tok, "dev/data/gpt2_tokenizer.bin");
}
