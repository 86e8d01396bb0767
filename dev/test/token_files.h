// Token shards of tests: how they are written, and their windows read.
#pragma once
#include "llmc/data/dataloader.h"

// Exit 1 if the disk fails.
inline void write_tokens(const std::string& path, const uint16_t* tokens, int64_t count) {
    Header header;
    header.value[0] = TOKENS_MAGIC, header.value[1] = TOKENS_VERSION, header.value[2] = (int32_t)count;
    FileWriter file(path);
    file.write(header.value, sizeof(header.value));
    file.write(tokens, count * sizeof(uint16_t));
    file.commit();
}

// The tokens of window w and those that follow each of them. Exit 1 if anything is wrong.
inline void load_window(DataLoader& loader, int64_t w, int* x, int* y) {
    const std::string problem = try_load_window(loader, w, x, y);
    if (!problem.empty()) runtime_failure("%s", problem);
}
