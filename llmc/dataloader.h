// Token shards and the order in which training sees them.
//
// A window is T tokens to read and the one after, so that each of the T has a next one to predict.
// A shard of n tokens has floor((n-1)/T) of them, end to end. The windows of an epoch are numbered;
// with shuffling, shards and the windows of each shard are permuted afresh each epoch, by a
// generator that depends on seed, epoch and shard alone. Window number w of the whole run is
// therefore a pure function of w: the position in the data is one counter, and any number of
// processes can share out any range of it.
#pragma once
#include <memory>
#include "llmc/random.h"
#include "llmc/tokens_file.h"

struct Shard {
    std::string path;
    int64_t tokens = 0, windows = 0;
    FileStamp stamp;        // as it was opened
    uint64_t ends = 0;      // a checksum of its first and last 4 KiB
    uint64_t checksum = 0;  // of all its bytes, 0 if nobody has asked (data_identity.h)
};

struct DataLoader {
    std::vector<Shard> shards;
    int64_t T = 0, vocab = 0, total_tokens = 0, total_windows = 0;
    uint64_t seed = 0, ends_identity = 0;  // of the first and last 4 KiB of each shard
    bool shuffle = false;

    // the order of the epoch in use, and the shard in use
    int64_t epoch = -1, open_shard = -1;
    std::vector<uint32_t> shard_order, window_order;
    std::vector<int64_t> first_window;  // of each shard in shard_order, then the total
    std::unique_ptr<FileReader> file;
    std::vector<uint16_t> window;  // T + 1 tokens
};

// A checksum of a file's first and last 4 KiB, which also go into `all`, if that is given.
inline uint64_t checksum_of_ends(FileReader& file, Checksum* all) {
    char ends[4096];
    Checksum sum;
    for (int64_t at : {(int64_t)0, std::max<int64_t>(0, file.size_bytes - (int64_t)sizeof(ends))}) {
        const size_t bytes = std::min<int64_t>(sizeof(ends), file.size_bytes - at);
        file.seek(at);
        file.read(ends, bytes, "the tokens");
        sum.add(ends, bytes);
        if (all) all->add(ends, bytes);
    }
    return sum.value();
}

// Opens every shard that the pattern matches and checks its header. flag is what the user gave it
// with.
inline void dataloader_open(DataLoader& loader, const char* flag, const std::string& pattern, int64_t T, int64_t vocab,
                            uint64_t seed, bool shuffle) {
    loader.T = T, loader.vocab = vocab, loader.seed = seed, loader.shuffle = shuffle;
    std::vector<std::string> paths = glob_files(pattern);
    if (paths.empty())
        runtime_failure(
            "%s %s matches no file; `make data` tokenizes the text that comes with this repository, `tokenize TEXT... "
            "-o PREFIX` your own",
            flag, pattern.c_str());
    Checksum identity;
    for (const std::string& path : paths) {
        FileReader file(path);
        Shard shard;
        shard.path = path, shard.tokens = read_tokens_header(file), shard.stamp = file.stamp();
        shard.windows = shard.tokens > 0 ? (shard.tokens - 1) / T : 0;
        if (shard.windows > UINT32_MAX)
            runtime_failure("%s has too many windows of %lld tokens", path.c_str(), (long long)T);
        loader.total_tokens += shard.tokens;
        loader.total_windows += shard.windows;
        shard.ends = checksum_of_ends(file, &identity);
        loader.shards.push_back(shard);
    }
    loader.ends_identity = identity.value();
    if (loader.total_windows == 0)
        runtime_failure(
            "%s %s is too short: %lld tokens hold no window of -t %lld tokens and the one after; more text "
            "or a smaller -t is accepted",
            flag, pattern.c_str(), (long long)loader.total_tokens, (long long)T);
    loader.window.resize(T + 1);
}

inline void start_epoch(DataLoader& loader, int64_t epoch) {
    const int64_t n = loader.shards.size();
    loader.epoch = epoch, loader.open_shard = -1;
    loader.shard_order.resize(n);
    std::iota(loader.shard_order.begin(), loader.shard_order.end(), 0u);
    if (loader.shuffle) loader.shard_order = permutation(n, generator_for(loader.seed, RANDOM_SHARDS, epoch));
    loader.first_window.assign(1, 0);
    for (uint32_t s : loader.shard_order)
        loader.first_window.push_back(loader.first_window.back() + loader.shards[s].windows);
}

// The checksum of a whole file, never 0. read(bytes) is called after each piece.
template <class Read>
inline uint64_t checksum_of(FileReader& file, Read read) {
    file.rewind();
    std::vector<char> piece(1 << 20);
    while (file.position < file.size_bytes) {
        const size_t bytes = std::min<int64_t>(piece.size(), file.size_bytes - file.position);
        file.read(piece.data(), bytes, "the tokens");
        read((int64_t)bytes);
    }
    return std::max<uint64_t>(1, file.checksum.value());
}

// Ends the run if the shard is not what it was when the run began. One that has only been copied or
// touched is; where nobody has asked for its checksum, its size and ends tell.
inline void check_unchanged(Shard& shard, FileReader& file) {
    const FileStamp now = file.stamp();
    if (now == shard.stamp) return;
    const bool same = now.size_bytes == shard.stamp.size_bytes &&
                      (shard.checksum ? checksum_of(file, [](int64_t) {}) == shard.checksum
                                      : checksum_of_ends(file, nullptr) == shard.ends);
    if (!same)
        runtime_failure(
            "%s has changed since this run began, which ends here; what it saved is untouched, and with -o "
            "-y 1 goes on once the file is again what it was",
            shard.path.c_str());
    shard.stamp = now;
}

inline void start_shard(DataLoader& loader, int64_t place) {
    const uint32_t index = loader.shard_order[place];
    const Shard& shard = loader.shards[index];
    loader.open_shard = place;
    loader.file = std::make_unique<FileReader>(shard.path);
    if (loader.shuffle)
        loader.window_order =
            permutation(shard.windows, generator_for(loader.seed, RANDOM_WINDOWS, loader.epoch, index));
}

// Window w = 0, 1, ... of the run: T inputs to x and T targets to y. Exit 1 with shard and offset
// if a token is not in the vocabulary.
inline void load_window(DataLoader& loader, int64_t w, int* x, int* y) {
    const int64_t epoch = w / loader.total_windows, in_epoch = w % loader.total_windows, T = loader.T;
    if (epoch != loader.epoch) start_epoch(loader, epoch);
    const int64_t place = std::upper_bound(loader.first_window.begin(), loader.first_window.end(), in_epoch) -
                          loader.first_window.begin() - 1;
    if (place != loader.open_shard) start_shard(loader, place);
    int64_t in_shard = in_epoch - loader.first_window[place];
    if (loader.shuffle) in_shard = loader.window_order[in_shard];
    check_unchanged(loader.shards[loader.shard_order[place]], *loader.file);
    loader.file->seek(TOKENS_HEADER_BYTES + in_shard * T * 2);
    loader.file->read(loader.window.data(), (T + 1) * 2, "the tokens");
    for (int64_t t = 0; t <= T; t++) {
        const int token = loader.window[t];
        if (token >= loader.vocab)
            runtime_failure(
                "%s: token %d at offset %lld is not in the model's vocabulary of %lld; the file is "
                "damaged, or made with another tokenizer (V in -e sets the vocabulary of a new model)",
                loader.file->path.c_str(), token, (long long)(in_shard * T + t), (long long)loader.vocab);
        if (t < T) x[t] = token;
        if (t > 0) y[t - 1] = token;
    }
}
