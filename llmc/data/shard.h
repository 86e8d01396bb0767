// A shard of a run: a file of tokens and its loss mask, or a text, as they were when the run began,
// and whether they still are.
#pragma once
#include "llmc/base/integer_math.h"
#include "llmc/data/mask_file.h"
#include "llmc/data/text_data.h"

struct DataFile {
    std::string path;
    FileStamp stamp;        // as it was opened
    uint64_t ends = 0;      // a checksum of its first and last 4 KiB
    uint64_t checksum = 0;  // of all its bytes, 0 if nobody has asked (data_identity.h)
};

struct Shard {
    DataFile file, mask;  // mask: which of the tokens count (mask_file.h); no path if all do
    int64_t tokens = 0, token_bytes = 0, windows = 0;
    TextTokens text;  // of a text, else empty

    bool in_memory() const { return !text.tokens.empty(); }
};

// A checksum of a file's first and last 4 KiB. The same bytes are added to `all`, if that is given.
// Of no use if the file cannot be read: file.problem says so, here and below.
inline uint64_t checksum_of_ends(FileReader& file, Checksum* all) {
    char ends[4096];
    Checksum sum;
    for (int64_t at : {(int64_t)0, std::max<int64_t>(0, file.size_bytes - (int64_t)sizeof(ends))}) {
        const size_t bytes = std::min<int64_t>(sizeof(ends), file.size_bytes - at);
        file.seek(at);
        if (!file.try_read(ends, bytes, "the data")) break;
        sum.add(ends, bytes);
        if (all) all->add(ends, bytes);
    }
    return sum.value();
}

// Opens a shard and checks its header, or tokenizes a text if a tokenizer is given. Adds what
// identifies its tokens to `identity`.
inline Shard open_shard(const std::string& path, int64_t T, Checksum& identity, const Tokenizer* tok, Logger* logger) {
    FileReader file(path);
    Shard shard;
    shard.file = {path, file.stamp(), checksum_of_ends(file, &identity)};
    file.rewind();
    if (tok) {
        shard.text = tokens_of_text(file, *tok, *logger);
        identity.add(shard.text.tokens.data(), shard.text.tokens.size() * sizeof(uint16_t));
    }
    const TokensOfShard stored = tok ? TokensOfShard{(int64_t)shard.text.tokens.size(), 0} : read_tokens_header(file);
    shard.tokens = stored.tokens, shard.token_bytes = stored.token_bytes;
    const int64_t targets = std::max<int64_t>(0, shard.tokens - 1);
    shard.windows = tok ? ceil_div(targets, T) : targets / T;
    if (shard.windows > UINT32_MAX) runtime_failure("%s has too many windows of %d tokens", path, T);
    file.expect_good();
    return shard;
}

// Says that a file's content has changed since the run began, or cannot be read; else empty. A new
// time of last change or inode alone is no change: the checksum decides or, if it was not computed,
// size, first and last 4 KiB.
inline std::string change_of(DataFile& known, FileReader& file) {
    if (!file.good()) return file.problem;
    const FileStamp now = file.stamp();
    if (now == known.stamp) return "";
    const bool same = now.size_bytes == known.stamp.size_bytes &&
                      (known.checksum ? checksum_of(file, [](int64_t) {}) == known.checksum
                                      : checksum_of_ends(file, nullptr) == known.ends);
    if (!file.good()) return file.problem;
    if (!same)
        return known.path +
               " has changed since this run began, which ends here; with -o, -y 1 goes on once the file is again what "
               "it was";
    known.stamp = now;
    return "";
}
