// Token shards and the order in which training sees them.
//
// A window is T tokens to read and the one after, so that each of the T has a next one to predict. A shard of n tokens has
// floor((n-1)/T) of them, end to end. The windows of an epoch are numbered; with shuffling, shards and the windows of each shard are
// permuted afresh each epoch, by a generator that depends on seed, epoch and shard alone. Window number w of the whole run is therefore
// a pure function of w: the position in the data is one counter, and any number of processes can share out any range of it.
#pragma once
#include <memory>
#include "llmc/random.h"
#include "llmc/tokens_file.h"

struct Shard {
    std::string path;
    int64_t tokens = 0, windows = 0;
};

struct DataLoader {
    std::vector<Shard> shards;
    int64_t T = 0, vocab = 0, total_tokens = 0, total_windows = 0;
    uint64_t seed = 0, identity = 0;                 // identity: tells one set of shards from another
    bool shuffle = false;

    // the order of the epoch in use, and the shard in use
    int64_t epoch = -1, open_shard = -1;
    std::vector<uint32_t> shard_order, window_order;
    std::vector<int64_t> first_window;               // of each shard in shard_order, then the total
    std::unique_ptr<FileReader> file;
    std::vector<uint16_t> window;                    // T + 1 tokens
};

// Opens every shard that the pattern matches and checks its header. flag is what the user gave it with.
inline void dataloader_open(DataLoader& loader, const char* flag, const std::string& pattern, int64_t T, int64_t vocab, uint64_t seed, bool shuffle) {
    loader.T = T, loader.vocab = vocab, loader.seed = seed, loader.shuffle = shuffle;
    std::vector<std::string> paths = glob_files(pattern);
    if (paths.empty())
        runtime_failure("%s %s matches no file; `make data` tokenizes the text that comes with this repository, `tokenize TEXT... -o PREFIX` your own", flag, pattern.c_str());
    Checksum identity;
    for (const std::string& path : paths) {
        FileReader file(path);
        Shard shard{path, read_tokens_header(file), 0};
        shard.windows = shard.tokens > 0 ? (shard.tokens - 1) / T : 0;
        if (shard.windows > UINT32_MAX) runtime_failure("%s has too many windows of %lld tokens", path.c_str(), (long long)T);
        loader.total_tokens += shard.tokens;
        loader.total_windows += shard.windows;
        char ends[4096];
        for (int64_t at : {(int64_t)0, std::max<int64_t>(0, file.size_bytes - (int64_t)sizeof(ends))}) {
            size_t bytes = std::min<int64_t>(sizeof(ends), file.size_bytes - at);
            file.seek(at);
            file.read(ends, bytes, "the tokens");
            identity.add(ends, bytes);
        }
        loader.shards.push_back(shard);
    }
    loader.identity = identity.value();
    if (loader.total_windows == 0)
        runtime_failure("%s %s is too short: %lld tokens hold no window of -t %lld tokens and the one after; more text "
                        "or a smaller -t is accepted", flag, pattern.c_str(), (long long)loader.total_tokens,
                        (long long)T);
    loader.window.resize(T + 1);
}

inline void start_epoch(DataLoader& loader, int64_t epoch) {
    const int64_t n = loader.shards.size();
    loader.epoch = epoch, loader.open_shard = -1;
    loader.shard_order.resize(n);
    std::iota(loader.shard_order.begin(), loader.shard_order.end(), 0u);
    if (loader.shuffle) loader.shard_order = permutation(n, generator_for(loader.seed, RANDOM_SHARDS, epoch));
    loader.first_window.assign(1, 0);
    for (uint32_t s : loader.shard_order) loader.first_window.push_back(loader.first_window.back() + loader.shards[s].windows);
}

inline void start_shard(DataLoader& loader, int64_t place) {
    const uint32_t index = loader.shard_order[place];
    const Shard& shard = loader.shards[index];
    loader.open_shard = place;
    loader.file = std::make_unique<FileReader>(shard.path);
    if (loader.shuffle) loader.window_order = permutation(shard.windows, generator_for(loader.seed, RANDOM_WINDOWS, loader.epoch, index));
}

// Window w = 0, 1, ... of the run: T inputs to x and T targets to y. Exit 1 with shard and offset if a token is not in the vocabulary.
inline void load_window(DataLoader& loader, int64_t w, int* x, int* y) {
    const int64_t epoch = w / loader.total_windows, in_epoch = w % loader.total_windows, T = loader.T;
    if (epoch != loader.epoch) start_epoch(loader, epoch);
    const int64_t place = std::upper_bound(loader.first_window.begin(), loader.first_window.end(), in_epoch) - loader.first_window.begin() - 1;
    if (place != loader.open_shard) start_shard(loader, place);
    int64_t in_shard = in_epoch - loader.first_window[place];
    if (loader.shuffle) in_shard = loader.window_order[in_shard];
    loader.file->seek(TOKENS_HEADER_BYTES + in_shard * T * 2);
    loader.file->read(loader.window.data(), (T + 1) * 2, "the tokens");
    for (int64_t t = 0; t <= T; t++) {
        const int token = loader.window[t];
        if (token >= loader.vocab)
            runtime_failure("%s: token %d at offset %lld is not in the model's vocabulary of %lld; the file is "
                            "damaged, or made with another tokenizer (V in -e sets the vocabulary of a new model)",
                            loader.file->path.c_str(), token, (long long)(in_shard * T + t), (long long)loader.vocab);
        if (t < T) x[t] = token;
        if (t > 0) y[t - 1] = token;
    }
}
