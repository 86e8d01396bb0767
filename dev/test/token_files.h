// Token shards of tests: how they are written, and their windows read.
#pragma once
#include "llmc/data/dataloader.h"

// A shard of uint16_t or uint32_t. Exit 1 if the disk fails.
template <class Token>
void write_tokens(const std::string& path, const Token* tokens, int64_t count) {
    FileWriter file(path);
    file.write(tokens_header(sizeof(Token) == 4 ? TOKENS_32 : TOKENS_16, count).value, sizeof(Header));
    file.write(tokens, count * sizeof(Token));
    file.commit();
}

// The tokens of window w and those that follow each of them. Exit 1 if anything is wrong.
inline void load_window(DataLoader& loader, int64_t w, int* x, int* y) {
    const std::string problem = try_load_window(loader, w, x, y);
    if (!problem.empty()) runtime_failure("%s", problem);
}
