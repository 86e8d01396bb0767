// Pairs of answers for preference tuning, in memory. `tokenize` has made a shard and its loss mask
// of lines with prompt and completion (dev/data/pairs.py writes them): document 2i is the answer
// that is preferred, document 2i + 1 the other. Each becomes a row of T inputs and targets:
//
//     x   <|endoftext|> prompt answer           padding
//     y   prompt        answer <|endoftext|>    padding
//
// Targets that are not of the answer, or the end of text behind it, do not count.
#pragma once
#include "llmc/base/random.h"
#include "llmc/data/dataloader.h"
#include "llmc/gpt2/constants.h"

struct Pairs {
    int64_t T = 0, left_out = 0;    // left out: pairs that are longer than T
    std::vector<int> x, y;          // (2 pairs, T)
    std::vector<double> reference;  // (2 pairs): log probabilities of the answers by the weights before training

    int64_t rows() const { return T ? (int64_t)x.size() / T : 0; }
    int64_t count() const { return rows() / 2; }
};

// Appends a document as a row; its first token is the end of text.
inline void add_row(Pairs& pairs, const uint32_t* tokens, const uint8_t* mask, int64_t first, int64_t n) {
    for (int64_t t = 0; t < pairs.T; t++) {
        const bool counts = t + 1 == n || (t + 1 < n && mask_bit(mask, first + t + 1));
        pairs.x.push_back(t < n ? (int)tokens[first + t] : 0);
        pairs.y.push_back(!counts ? IGNORED_TARGET : (int)tokens[first + (t + 1) % n]);
    }
}

// The pairs of the shards of -i or -j. Exit 1 if documents have no mask, do not make pairs, or have
// tokens that the model does not know.
inline Pairs read_pairs(const char* flag, const std::vector<Shard>& shards, int64_t T, int64_t V) {
    Pairs pairs;
    pairs.T = T;
    for (const Shard& shard : shards) {
        FileReader file(shard.file.path), mask_file(mask_path_of(shard.file.path));
        const std::vector<uint32_t> tokens = read_tokens(file);
        expect_mask_of(mask_file, file.checksum.value(), shard.file.path);
        std::vector<uint8_t> mask(mask_bytes((int64_t)tokens.size()));
        mask_file.seek(MASK_HEADER_BYTES);
        mask_file.read(mask.data(), mask.size(), "the loss mask");
        for (uint32_t token : tokens)
            if (token >= V)
                runtime_failure("%s %s has token %d, and the model has only %d", flag, shard.file.path, (int)token, V);
        std::vector<int64_t> begins;
        for (size_t i = 0; i < tokens.size(); i++)
            if (tokens[i] == tokens[0]) begins.push_back((int64_t)i);
        begins.push_back((int64_t)tokens.size());
        if (begins.size() % 2 == 0)
            runtime_failure("%s %s has %d documents, which make no pairs; dev/data/pairs.py writes such files", flag,
                            shard.file.path, (int64_t)begins.size() - 1);
        for (size_t d = 0; d + 2 < begins.size(); d += 2) {
            const bool fits = begins[d + 1] - begins[d] <= T && begins[d + 2] - begins[d + 1] <= T;
            pairs.left_out += !fits;
            for (size_t i = d; i < d + 2 && fits; i++)
                add_row(pairs, tokens.data(), mask.data(), begins[i], begins[i + 1] - begins[i]);
        }
    }
    if (pairs.count() == 0) runtime_failure("%s has no pairs whose answers fit -t %d", flag, T);
    return pairs;
}

// Copies pair number p of the run, in the order of its epoch, into two rows; returns the first of
// them in `pairs`.
inline int64_t load_pair(const Pairs& pairs, int64_t p, uint64_t seed, int* x, int* y) {
    const int64_t n = pairs.count();
    const int64_t row = 2 * (int64_t)permutation(n, generator_for(seed, RANDOM_WINDOWS, p / n))[p % n];
    std::copy_n(&pairs.x[row * pairs.T], 2 * pairs.T, x), std::copy_n(&pairs.y[row * pairs.T], 2 * pairs.T, y);
    return row;
}
