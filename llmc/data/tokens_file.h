// Token shards: files of tokens, as llm.c writes them. A header of 256 int32 (20240520, version 1,
// number of tokens), then the tokens as uint16.
#pragma once
#include "llmc/base/file.h"

constexpr int32_t TOKENS_MAGIC = 20240520, TOKENS_VERSION = 1;
constexpr int64_t TOKENS_HEADER_BYTES = sizeof(Header);

// Checks the header and the size of an open shard, and returns its number of tokens. Exit 1 if they
// are wrong.
inline int64_t read_tokens_header(FileReader& file) {
    Header header;
    header.read(file, TOKENS_MAGIC, "token",
                "; `tokenize TEXT... -o PREFIX` makes one of text; -j also takes a text, *.txt");
    if (header.value[1] != TOKENS_VERSION)
        runtime_failure("%s has version %d of the token layout; %d is expected", file.path, header.value[1],
                        TOKENS_VERSION);
    if (header.value[2] < 0)
        runtime_failure("%s is damaged: its header promises %d tokens", file.path, header.value[2]);
    file.expect_size(TOKENS_HEADER_BYTES + 2 * (int64_t)header.value[2]);
    return header.value[2];
}
