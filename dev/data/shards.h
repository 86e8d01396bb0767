// The token shards that a run of `tokenize` writes: PREFIX_train.bin or, with a limit,
// PREFIX_train_000000.bin, PREFIX_train_000001.bin and so on, and likewise for validation. Where
// the texts are prompts and completions, each shard has a loss mask beside it (mask_file.h). All
// files have temporary names until all are complete and on the disk. A run that fails or is
// interrupted before that leaves nothing behind.
#pragma once
#include <memory>
#include "llmc/data/mask_file.h"

// The temporary files that exit() removes.
inline std::vector<std::string>& unpublished_files() {
    static std::vector<std::string> names;
    return names;
}
inline void remove_unpublished_at_exit() {
    unpublished_files();  // created before atexit(), so that it still exists then
    atexit([] {
        for (const std::string& name : unpublished_files()) unlink(name.c_str());
    });
}

// A loss mask that is being written.
struct MaskWriter {
    FileWriter file;
    MaskHeader header;
    Checksum checksum;
    std::vector<uint8_t> bits;  // of the tokens that no whole byte has been written for, and room

    explicit MaskWriter(const std::string& path) : file(path) {
        unpublished_files().push_back(file.temporary);
        file.write(mask_header(header).value, sizeof(Header));
    }
    void write_bits(int64_t bytes) {
        file.write(bits.data(), bytes);
        checksum.add(bits.data(), bytes);
    }
    // Appends the bits of n tokens; counts (n) is 1 for a token that counts, else 0.
    void append(const uint8_t* counts, int64_t n) {
        const int64_t begin = header.tokens % 8, whole = (begin + n) / 8;
        bits.resize(whole + 1);
        for (int64_t i = 0; i < n; i++) {
            bits[(begin + i) / 8] |= (uint8_t)(counts[i] << (begin + i) % 8);
            header.counted += counts[i];
        }
        header.tokens += n;
        write_bits(whole);
        bits = {bits[whole]};
    }
    // Flushes the mask to the disk, with the checksum of its shard, which is complete.
    void close(const std::string& shard_path) {
        if (file.fd < 0) return;
        if (header.tokens % 8) write_bits(1);
        FileReader shard(shard_path);
        header.shard_checksum = checksum_of(shard, [](int64_t) {});
        shard.expect_good();
        header.bits_checksum = checksum.value();
        file.rewrite(0, mask_header(header).value, sizeof(Header));
        file.flush();
    }
};

struct ShardFile {
    std::unique_ptr<FileWriter> writer;
    int64_t tokens = 0;
    std::unique_ptr<MaskWriter> mask;  // null: there is none
};

struct ShardSet {
    std::string prefix;  // PREFIX_train or PREFIX_val
    int64_t limit = 0;   // tokens in a shard; 0: all in one
    bool masked = false;
    TokenLayout layout = TOKENS_16;
    std::vector<ShardFile> shards;
    int64_t total = 0;

    // Tokens that still fit into the last shard.
    int64_t room() const { return shards.empty() ? 0 : (limit ? limit : INT32_MAX) - shards.back().tokens; }
};

inline std::string shard_path(const ShardSet& set, size_t index) {
    return set.limit ? format("%s_%06d.bin", set.prefix, index) : set.prefix + ".bin";
}

// Begins the next shard of a set.
inline void open_shard(ShardSet& set) {
    if (!set.limit && !set.shards.empty())
        runtime_failure("%s.bin: more tokens than the layout counts, %d; --shard-tokens 100000000 writes several files",
                        set.prefix, INT32_MAX);
    if (set.shards.size() == 1000000)
        runtime_failure("more than a million shards %s_*.bin; a larger --shard-tokens makes fewer", set.prefix);
    set.shards.push_back({std::make_unique<FileWriter>(shard_path(set, set.shards.size())), 0, nullptr});
    unpublished_files().push_back(set.shards.back().writer->temporary);
    set.shards.back().writer->write(tokens_header(set.layout, 0).value, sizeof(Header));
    if (set.masked) set.shards.back().mask = std::make_unique<MaskWriter>(mask_path_of(set.shards.back().writer->path));
}

// Writes the number of tokens into the header of a shard, and flushes it and its mask to the disk.
inline void close_shard(ShardFile& shard, const TokenLayout& layout) {
    if (shard.writer->fd < 0) return;
    shard.writer->rewrite(0, tokens_header(layout, shard.tokens).value, sizeof(Header));
    shard.writer->flush();
    if (shard.mask) shard.mask->close(shard.writer->temporary);
}
inline void close_shard(ShardSet& set) {
    if (!set.shards.empty()) close_shard(set.shards.back(), set.layout);
}

// Appends tokens to a set, in new shards where one is full. counts (count): which of the tokens
// count, where the set is masked.
inline void append_tokens(ShardSet& set, const uint32_t* tokens, const uint8_t* counts, int64_t count) {
    std::vector<uint16_t> halves;
    if (set.layout.token_bytes == 2) halves.assign(tokens, tokens + count);
    const char* stored = set.layout.token_bytes == 2 ? (const char*)halves.data() : (const char*)tokens;
    while (count > 0) {
        if (set.room() == 0) close_shard(set), open_shard(set);
        const int64_t n = std::min(count, set.room()), bytes = n * set.layout.token_bytes;
        set.shards.back().writer->write(stored, bytes);
        if (set.masked) set.shards.back().mask->append(counts, n), counts += n;
        set.shards.back().tokens += n, set.total += n;
        stored += bytes, count -= n;
    }
}

// The bits of n tokens of a mask that is on the disk, from token `first` on, as 0 and 1.
inline std::vector<uint8_t> read_counts(FileReader& mask, int64_t first, int64_t n) {
    std::vector<uint8_t> bits(mask_bytes(first + n) - first / 8), counts(n);
    mask.seek(MASK_HEADER_BYTES + first / 8);
    mask.read(bits.data(), bits.size(), "the loss mask");
    for (int64_t i = 0; i < n; i++) counts[i] = mask_bit(bits.data(), first % 8 + i);
    return counts;
}

constexpr int64_t PIECE_TOKENS = 1 << 19;  // of a shard that is read back

// Writes the mask of a shard that was shortened again, from the bits of the tokens that are left.
inline void shorten_mask(ShardFile& shard) {
    FileReader earlier(shard.mask->file.temporary);  // stays open while a new file takes its name
    shard.mask = std::make_unique<MaskWriter>(shard.mask->file.path);
    for (int64_t at = 0, n; at < shard.tokens; at += n) {
        n = std::min(PIECE_TOKENS, shard.tokens - at);
        shard.mask->append(read_counts(earlier, at, n).data(), n);
    }
    shard.mask->close(shard.writer->temporary);
}

// Shortens a shard that is on the disk to its first tokens.
inline void shorten_shard(ShardFile& shard, int64_t tokens, const TokenLayout& layout) {
    const std::string& path = shard.writer->temporary;
    shard.tokens = tokens;
    const int fd = open(path.c_str(), O_RDWR);
    if (fd >= 0) shard.writer->fd = fd;  // so that the writer reports its errors
    if (fd < 0 || ftruncate(fd, sizeof(Header) + tokens * layout.token_bytes) != 0) shard.writer->fail();
    close_shard(shard, layout);
    if (shard.mask) shorten_mask(shard);
}

// Moves the last tokens of one set to the end of another.
inline void move_tail(ShardSet& from, ShardSet& to, int64_t count) {
    close_shard(from);
    size_t first = from.shards.size();
    int64_t before = from.total;  // tokens in the shards before the first one concerned
    while (before > from.total - count) before -= from.shards[--first].tokens;
    const int64_t kept = from.total - count - before;
    std::vector<uint32_t> tokens(PIECE_TOKENS);
    std::vector<uint8_t> counts;
    for (size_t i = first; i < from.shards.size(); i++) {
        const ShardFile& shard = from.shards[i];
        FileReader file(shard.writer->temporary);
        std::unique_ptr<FileReader> mask;
        if (shard.mask) mask = std::make_unique<FileReader>(shard.mask->file.temporary);
        int64_t at = i == first ? kept : 0;
        for (int64_t n; at < shard.tokens; at += n) {
            n = std::min(PIECE_TOKENS, shard.tokens - at);
            if (!try_read_tokens(file, from.layout.token_bytes, at, tokens.data(), n)) file.expect_good();
            if (mask) counts = read_counts(*mask, at, n);
            append_tokens(to, tokens.data(), counts.data(), n);
        }
    }
    for (size_t i = first; i < from.shards.size(); i++) {
        if (i == first && (kept > 0 || i == 0)) continue;
        unlink(from.shards[i].writer->temporary.c_str());
        if (from.shards[i].mask) unlink(from.shards[i].mask->file.temporary.c_str());
    }
    if (first < from.shards.size() && (kept > 0 || first == 0)) shorten_shard(from.shards[first++], kept, from.layout);
    from.shards.resize(std::min(first, from.shards.size()));
    from.total -= count;
}

// Flushes all shards to the disk; then gives them, their masks, and the vocabulary if there is one,
// their names. Removes the masks that an earlier run has left beside shards of the same names.
inline void publish_shards(std::vector<ShardSet*> sets, FileWriter* vocabulary) {
    for (ShardSet* set : sets) {
        if (set->shards.empty()) open_shard(*set);  // a file of no tokens, in place of what an earlier run left
        close_shard(*set);
    }
    if (vocabulary) vocabulary->publish();
    for (ShardSet* set : sets)
        for (ShardFile& shard : set->shards) {
            shard.writer->publish();
            if (shard.mask) shard.mask->file.publish();
            else remove_file(mask_path_of(shard.writer->path));
        }
    for (ShardSet* set : sets) flush_folder(folder_of(set->prefix));
    unpublished_files().clear();
}

// Exit 2 if numbered shards of an earlier run are there: a pattern would match them together with
// those of this run.
inline void refuse_earlier_shards(const std::string& prefix) {
    const std::string base = prefix.substr(prefix.rfind('/') + 1);
    for (const std::string& name : list_folder(folder_of(prefix)))
        for (const char* split : {"_train_", "_val_"}) {
            const std::string start = base + split;
            if (name.size() != start.size() + 10 || name.compare(0, start.size(), start) != 0) continue;
            if (!ends_with(name, ".bin")) continue;
            if (name.find_first_not_of("0123456789", start.size()) == start.size() + 6)
                usage_error(
                    "-o %s: shards of that name are there already (%s); another prefix is accepted, or this "
                    "one when they are removed",
                    prefix, name);
        }
}
