// Token shards: files of tokens, in the two layouts of llm.c. A header of 256 int32 (magic,
// version, number of tokens), then the tokens:
//
//     20240520, version 1    uint16    vocabularies of up to 65,536 tokens: GPT-2's
//     20240801, version 7    uint32    larger ones: Llama 3's
#pragma once
#include "llmc/base/file.h"

struct TokenLayout {
    int32_t magic, version;
    int64_t token_bytes;
};
constexpr TokenLayout TOKENS_16{20240520, 1, 2}, TOKENS_32{20240801, 7, 4};
constexpr int64_t TOKENS_HEADER_BYTES = sizeof(Header);

inline const TokenLayout& token_layout(int64_t vocabulary) { return vocabulary > 65536 ? TOKENS_32 : TOKENS_16; }
inline Header tokens_header(const TokenLayout& layout, int64_t tokens) {
    Header header;
    header.value[0] = layout.magic, header.value[1] = layout.version, header.value[2] = (int32_t)tokens;
    return header;
}

// The layout that an open shard begins with, from which it is read next; that of 16 bits if it is
// none.
inline const TokenLayout& layout_of_shard(FileReader& file) {
    int32_t magic = 0;
    if (file.size_bytes >= (int64_t)sizeof(magic)) file.read(&magic, sizeof(magic), "the header");
    file.rewind();
    return magic == TOKENS_32.magic ? TOKENS_32 : TOKENS_16;
}
struct TokensOfShard {
    int64_t tokens, token_bytes;
};
// Checks the header and the size of an open shard. Exit 1 if they are wrong.
inline TokensOfShard read_tokens_header(FileReader& file) {
    const TokenLayout& layout = layout_of_shard(file);
    Header header;
    header.read(file, layout.magic, "token",
                "; `tokenize TEXT... -o PREFIX` makes one of text; -j also takes a text, *.txt");
    if (header.value[1] != layout.version)
        runtime_failure("%s has version %d of the token layout; %d is expected", file.path, header.value[1],
                        layout.version);
    if (header.value[2] < 0)
        runtime_failure("%s is damaged: its header promises %d tokens", file.path, header.value[2]);
    file.expect_size(TOKENS_HEADER_BYTES + layout.token_bytes * (int64_t)header.value[2]);
    return {header.value[2], layout.token_bytes};
}

// Reads n tokens of a shard, from number `first` on. False if file.problem says what is wrong.
// Those of 16 bits come into the second half of the memory, and are widened from the first on.
inline bool try_read_tokens(FileReader& file, int64_t token_bytes, int64_t first, uint32_t* tokens, int64_t n) {
    const char* const stored = (char*)tokens + n * (4 - token_bytes);
    file.seek(TOKENS_HEADER_BYTES + first * token_bytes);
    if (!file.try_read((void*)stored, n * token_bytes, "the tokens")) return false;
    for (int64_t i = 0; i < n && token_bytes == 2; i++) {
        uint16_t token;
        memcpy(&token, stored + 2 * i, 2);
        tokens[i] = token;
    }
    return true;
}
// All tokens of an open shard, in the order of the file. Exit 1 if it is damaged.
inline std::vector<uint32_t> read_tokens(FileReader& file) {
    const TokensOfShard stored = read_tokens_header(file);
    std::vector<uint32_t> tokens(stored.tokens);
    if (!try_read_tokens(file, stored.token_bytes, 0, tokens.data(), stored.tokens)) file.expect_good();
    return tokens;
}
