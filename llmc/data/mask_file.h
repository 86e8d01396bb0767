// Loss masks: which tokens of a shard count as targets. A model that is fine-tuned on prompts and
// completions (SFT, supervised fine-tuning) reads both, but learns to predict only the completions.
// Positions whose target does not count have no loss and no gradient, as with PyTorch's
// ignore_index; the loss of a step is the mean over the targets that count.
//
// A mask lies in a file of its own, NAME.mask for the shard NAME.bin. All numbers are
// little-endian:
//
//     256 int32   [0] 20261122, [1] version 1, [2] tokens of the shard, [3] how many of them count,
//                 [4] and [5] the checksum of the shard's file (llmc/base/checksum.h), low half first,
//                 [6] and [7] the checksum of the bits
//     bits        one per token, (tokens + 7) / 8 bytes. Token i has bit i % 8, the lowest being 0, of
//                 byte i / 8. 1: it counts. Bits behind the last token are 0.
//
// A token's bit says whether it counts as a target: of the window that begins with token i, the
// target at position t is token i + t + 1.
#pragma once
#include "llmc/base/text.h"
#include "llmc/data/tokens_file.h"

constexpr int32_t MASK_MAGIC = 20261122, MASK_VERSION = 1;
constexpr int64_t MASK_HEADER_BYTES = sizeof(Header);

inline std::string mask_path_of(const std::string& shard) {
    return (ends_with(shard, ".bin") ? shard.substr(0, shard.size() - 4) : shard) + ".mask";
}

inline int64_t mask_bytes(int64_t tokens) { return (tokens + 7) / 8; }
inline bool mask_bit(const uint8_t* bits, int64_t i) { return bits[i / 8] >> (i % 8) & 1; }

struct MaskHeader {
    int64_t tokens = 0, counted = 0;
    uint64_t shard_checksum = 0, bits_checksum = 0;
};

inline Header mask_header(const MaskHeader& mask) {
    Header header;
    header.value[0] = MASK_MAGIC, header.value[1] = MASK_VERSION;
    header.value[2] = (int32_t)mask.tokens, header.value[3] = (int32_t)mask.counted;
    memcpy(&header.value[4], &mask.shard_checksum, sizeof(uint64_t));
    memcpy(&header.value[6], &mask.bits_checksum, sizeof(uint64_t));
    return header;
}

// Reads the header of an open mask and checks the size of the file. Exit 1 if they are wrong.
inline MaskHeader read_mask_header(FileReader& file) {
    Header header;
    header.read(file, MASK_MAGIC, "loss mask", "; `tokenize` makes one of a .jsonl file with prompts");
    if (header.value[1] != MASK_VERSION)
        runtime_failure("%s has version %d of the loss mask's layout; %d is expected", file.path, header.value[1],
                        MASK_VERSION);
    MaskHeader mask;
    mask.tokens = header.value[2], mask.counted = header.value[3];
    if (mask.tokens < 0 || mask.counted < 0 || mask.counted > mask.tokens)
        runtime_failure("%s is damaged: its header promises %d tokens, of which %d count", file.path, mask.tokens,
                        mask.counted);
    memcpy(&mask.shard_checksum, &header.value[4], sizeof(uint64_t));
    memcpy(&mask.bits_checksum, &header.value[6], sizeof(uint64_t));
    file.expect_size(MASK_HEADER_BYTES + mask_bytes(mask.tokens));
    return mask;
}

// Reads a whole mask. Exit 1 if it is damaged, or was not made for the shard with this checksum.
inline void expect_mask_of(FileReader& file, uint64_t shard_checksum, const std::string& shard) {
    const MaskHeader header = read_mask_header(file);
    if (header.shard_checksum != shard_checksum)
        runtime_failure("%s is not the loss mask of %s: it was made for a shard with other bytes", file.path, shard);
    Checksum sum;
    int64_t counted = 0;
    std::vector<uint8_t> piece(1 << 20);
    while (file.position < file.size_bytes) {
        const size_t bytes = std::min<int64_t>(piece.size(), file.size_bytes - file.position);
        file.read(piece.data(), bytes, "the loss mask");
        sum.add(piece.data(), bytes);
        for (size_t i = 0; i < 8 * bytes; i++) counted += mask_bit(piece.data(), (int64_t)i);
    }
    if (sum.value() != header.bits_checksum || counted != header.counted)
        runtime_failure("%s is damaged: its checksum is wrong", file.path);
}
