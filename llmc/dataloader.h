// Token shards and the order in which training sees them.
//
// A window is T tokens and the one after them, so that each of the T has a next token to predict. A
// shard of n tokens has floor((n-1)/T) windows, end to end. With shuffling, the shards, and the
// windows of each shard, are permuted anew each epoch, by a generator that depends on seed, epoch
// and shard alone. Which tokens window w of the run holds is therefore a pure function of w: the
// position in the data is one counter, and any range of windows can be split among any number of
// processes.
//
// A text (text_data.h) stands for a shard of its tokens. Its last window may be shorter than T, so
// that none of the text is left out.
#pragma once
#include <memory>
#include "llmc/integer_math.h"
#include "llmc/random.h"
#include "llmc/text_data.h"
#include "llmc/tokens_file.h"

struct Shard {
    std::string path;
    int64_t tokens = 0, windows = 0;
    FileStamp stamp;        // as it was opened
    uint64_t ends = 0;      // a checksum of its first and last 4 KiB
    uint64_t checksum = 0;  // of all its bytes, 0 if nobody has asked (data_identity.h)
    TextTokens text;        // of a text, else empty

    bool in_memory() const { return !text.tokens.empty(); }
};

struct DataLoader {
    std::vector<Shard> shards;
    int64_t T = 0, vocab = 0, total_tokens = 0, total_windows = 0;
    uint64_t seed = 0, ends_identity = 0;  // of the first and last 4 KiB of each shard
    bool shuffle = false;

    // the order of the current epoch, and the shard that is open
    int64_t epoch = -1, open_shard = -1;  // open_shard: its position in shard_order
    std::vector<uint32_t> shard_order, window_order;
    std::vector<int64_t> first_window;  // of each shard in shard_order, then the total
    std::unique_ptr<FileReader> file;
    std::vector<uint16_t> window;  // T + 1 tokens
};

// A checksum of a file's first and last 4 KiB. The same bytes are added to `all`, if that is given.
// Of no use if the file cannot be read: file.problem says so, here and below.
inline uint64_t checksum_of_ends(FileReader& file, Checksum* all) {
    char ends[4096];
    Checksum sum;
    for (int64_t at : {(int64_t)0, std::max<int64_t>(0, file.size_bytes - (int64_t)sizeof(ends))}) {
        const size_t bytes = std::min<int64_t>(sizeof(ends), file.size_bytes - at);
        file.seek(at);
        if (!file.try_read(ends, bytes, "the tokens")) break;
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
    shard.path = path, shard.stamp = file.stamp();
    shard.ends = checksum_of_ends(file, &identity);
    file.rewind();
    if (tok) {
        shard.text = tokens_of_text(file, *tok, *logger);
        identity.add(shard.text.tokens.data(), shard.text.tokens.size() * sizeof(uint16_t));
    }
    shard.tokens = tok ? (int64_t)shard.text.tokens.size() : read_tokens_header(file);
    const int64_t targets = std::max<int64_t>(0, shard.tokens - 1);
    shard.windows = tok ? ceil_div(targets, T) : targets / T;
    if (shard.windows > UINT32_MAX)
        runtime_failure("%s has too many windows of %lld tokens", path.c_str(), (long long)T);
    file.expect_good();
    return shard;
}

// Opens every shard that the pattern matches; with a tokenizer, every text. Exit 1 if there is
// none, one is damaged, or all together hold no window. flag: the one that gave the pattern, for
// messages.
inline void dataloader_open(DataLoader& loader, const char* flag, const std::string& pattern, int64_t T, int64_t vocab,
                            uint64_t seed, bool shuffle, const Tokenizer* tok = nullptr, Logger* logger = nullptr) {
    loader.T = T, loader.vocab = vocab, loader.seed = seed, loader.shuffle = shuffle;
    std::vector<std::string> paths = glob_files(pattern);
    if (paths.empty())
        runtime_failure(
            "%s %s matches no file; `make data` tokenizes the text that comes with this repository, `tokenize TEXT... "
            "-o PREFIX` your own",
            flag, pattern.c_str());
    Checksum identity;
    for (const std::string& path : paths) {
        loader.shards.push_back(open_shard(path, T, identity, tok, logger));
        loader.total_tokens += loader.shards.back().tokens;
        loader.total_windows += loader.shards.back().windows;
    }
    loader.ends_identity = identity.value();
    if (loader.total_windows == 0)
        runtime_failure(
            "%s %s is too short: %lld tokens hold no window of -t %lld tokens and the one after; more text "
            "or a smaller -t is accepted",
            flag, pattern.c_str(), (long long)loader.total_tokens, (long long)T);
    loader.window.resize(T + 1);
}

// Puts the shards in the order of an epoch.
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
    while (file.good() && file.position < file.size_bytes) {
        const size_t bytes = std::min<int64_t>(piece.size(), file.size_bytes - file.position);
        file.try_read(piece.data(), bytes, "the tokens");
        read((int64_t)bytes);
    }
    return std::max<uint64_t>(1, file.checksum.value());
}

// Empty unless the shard's tokens have changed since the run began, or cannot be read. A new time
// of last change or inode alone is no change: the checksum decides or, if it was not computed,
// size, first and last 4 KiB.
inline std::string change_of(Shard& shard, FileReader& file) {
    const FileStamp now = file.stamp();
    if (now == shard.stamp) return "";
    const bool same = now.size_bytes == shard.stamp.size_bytes &&
                      (shard.checksum ? checksum_of(file, [](int64_t) {}) == shard.checksum
                                      : checksum_of_ends(file, nullptr) == shard.ends);
    if (!file.good()) return file.problem;
    if (!same)
        return shard.path +
               " has changed since this run began, which ends here; with -o, -y 1 goes on once the file is again what "
               "it was";
    shard.stamp = now;
    return "";
}

// Opens shard_order[position] and puts its windows in the order of the epoch.
inline void start_shard(DataLoader& loader, int64_t position) {
    const uint32_t index = loader.shard_order[position];
    const Shard& shard = loader.shards[index];
    loader.open_shard = position;
    if (!shard.in_memory()) loader.file = std::make_unique<FileReader>(shard.path, FileReader::TELL);
    if (loader.shuffle)
        loader.window_order =
            permutation(shard.windows, generator_for(loader.seed, RANDOM_WINDOWS, loader.epoch, index));
}

// Reads window `index` of a shard into loader.window. Returns what is wrong, empty if nothing.
inline std::string read_window(DataLoader& loader, Shard& shard, int64_t index) {
    const int64_t T = loader.T, first = index * T;
    if (shard.in_memory()) {
        std::fill(loader.window.begin(), loader.window.end(), 0);
        const auto begin = shard.text.tokens.begin() + first;
        std::copy(begin, begin + std::min(T + 1, shard.tokens - first), loader.window.begin());
        return "";
    }
    FileReader& file = *loader.file;
    if (!file.good()) return file.problem;
    const std::string change = change_of(shard, file);
    if (!change.empty()) return change;
    file.seek(TOKENS_HEADER_BYTES + first * 2);
    return file.try_read(loader.window.data(), (T + 1) * 2, "the tokens") ? "" : file.problem;
}

// Where window w is: the position of its shard in shard_order, and its number in the order of the
// shard's windows. Starts the epoch of w.
struct WindowPlace {
    int64_t position, in_shard;
};
inline WindowPlace place_of_window(DataLoader& loader, int64_t w) {
    const int64_t epoch = w / loader.total_windows, in_epoch = w % loader.total_windows;
    if (epoch != loader.epoch) start_epoch(loader, epoch);
    const auto begin = loader.first_window.begin(), end = loader.first_window.end();
    const int64_t position = std::upper_bound(begin, end, in_epoch) - begin - 1;
    return {position, in_epoch - loader.first_window[position]};
}

// How many targets window w has: T, or fewer at the end of a text. Not for shuffled data.
inline int64_t targets_of_window(DataLoader& loader, int64_t w) {
    const WindowPlace place = place_of_window(loader, w);
    const Shard& shard = loader.shards[loader.shard_order[place.position]];
    return std::min(loader.T, shard.tokens - 1 - place.in_shard * loader.T);
}

// Loads window w = 0, 1, ... of the run: inputs x (T) and targets y (T). Where a text has ended,
// they are 0. Returns what is wrong, with the shard's name, if it cannot be read, has changed, or
// has a token that is not in the vocabulary; empty if nothing.
inline std::string try_load_window(DataLoader& loader, int64_t w, int* x, int* y) {
    const auto [position, place] = place_of_window(loader, w);
    const int64_t T = loader.T;
    if (position != loader.open_shard) start_shard(loader, position);
    const int64_t in_shard = loader.shuffle ? loader.window_order[place] : place;
    Shard& shard = loader.shards[loader.shard_order[position]];
    const std::string problem = read_window(loader, shard, in_shard);
    if (!problem.empty()) return problem;
    for (int64_t t = 0; t <= T; t++) {
        const int token = loader.window[t];
        if (token >= loader.vocab)
            return format(
                "%s: token %d at offset %lld is not in the model's vocabulary of %lld; the file is "
                "damaged, or made with another tokenizer (V in -e sets the vocabulary of a new model)",
                shard.path.c_str(), token, (long long)(in_shard * T + t), (long long)loader.vocab);
        if (t < T) x[t] = token;
        if (t > 0) y[t - 1] = token;
    }
    return "";
}
// The same; exit 1 if anything is wrong.
inline void load_window(DataLoader& loader, int64_t w, int* x, int* y) {
    const std::string problem = try_load_window(loader, w, x, y);
    if (!problem.empty()) runtime_failure("%s", problem.c_str());
}
