// Token shards and the order in which training sees them.
//
// A window is T tokens and the one after them, so that each of the T has a next token to predict. A
// shard of n tokens has floor((n-1)/T) windows, end to end. With shuffling, the shards, and the
// windows of each shard, are permuted anew each epoch, by a generator that depends on seed, epoch
// and shard alone. Which tokens window w of the run holds is therefore a pure function of w: the
// position in the data is one counter, and any range of windows can be split among any number of
// processes.
//
// A text (text_data.h) stands for a shard of its tokens, none of which is left out: where T does
// not divide it, its last window begins earlier, and targets that the window before has are not
// counted again.
#pragma once
#include <memory>
#include "llmc/gpt2/constants.h"
#include "llmc/base/integer_math.h"
#include "llmc/data/mask_file.h"
#include "llmc/base/random.h"
#include "llmc/data/text_data.h"

struct DataFile {
    std::string path;
    FileStamp stamp;        // as it was opened
    uint64_t ends = 0;      // a checksum of its first and last 4 KiB
    uint64_t checksum = 0;  // of all its bytes, 0 if nobody has asked (data_identity.h)
};

struct Shard {
    DataFile file, mask;  // mask: which of the tokens count (mask_file.h); no path if all do
    int64_t tokens = 0, windows = 0;
    TextTokens text;  // of a text, else empty

    bool in_memory() const { return !text.tokens.empty(); }
};

struct DataLoader {
    std::vector<Shard> shards;
    int64_t T = 0, vocab = 0, total_tokens = 0, total_windows = 0;
    int64_t counted_tokens = 0;            // by the masks
    uint64_t seed = 0, ends_identity = 0;  // of the first and last 4 KiB of each file
    bool shuffle = false, masked = false;

    // The order of the current epoch, and the shard that is open.
    int64_t epoch = -1, open_shard = -1;  // open_shard: its position in shard_order
    std::vector<uint32_t> shard_order, window_order;
    std::vector<int64_t> first_window;  // of each shard in shard_order, then the total
    std::unique_ptr<FileReader> file, mask_file;
    std::vector<uint16_t> window;  // T + 1 tokens
    std::vector<uint8_t> mask;     // the bytes with the bits of T targets
};

// The files of all shards: of each the tokens and, where there is one, the mask.
inline std::vector<DataFile*> files_of(DataLoader& loader) {
    std::vector<DataFile*> files;
    for (Shard& shard : loader.shards) {
        files.push_back(&shard.file);
        if (loader.masked) files.push_back(&shard.mask);
    }
    return files;
}

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
    shard.tokens = tok ? (int64_t)shard.text.tokens.size() : read_tokens_header(file);
    const int64_t targets = std::max<int64_t>(0, shard.tokens - 1);
    shard.windows = tok ? ceil_div(targets, T) : targets / T;
    if (shard.windows > UINT32_MAX) runtime_failure("%s has too many windows of %d tokens", path, T);
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
            "-o PREFIX` your own%s",
            flag, pattern, flag == std::string("-j") ? "; with -v 0 none is needed" : "");
    Checksum identity;
    for (const std::string& path : paths) {
        if (folder_exists(path))
            runtime_failure("%s %s is a folder; its files are accepted: '%s/*.bin'%s", flag, path, path,
                            flag == std::string("-j") ? " or '*.txt' in place of '*.bin'" : "");
        loader.shards.push_back(open_shard(path, T, identity, tok, logger));
        loader.total_tokens += loader.shards.back().tokens;
        loader.total_windows += loader.shards.back().windows;
    }
    loader.ends_identity = identity.value();
    if (loader.total_windows == 0)
        runtime_failure(
            "%s %s is too short: %d tokens hold no window of -t %d tokens and the one after; more text "
            "or a smaller -t is accepted",
            flag, pattern, loader.total_tokens, T);
    loader.window.resize(T + 1);
}

// Opens the masks, one for each shard in the same order, and checks their headers. Exit 1 if one is
// damaged, belongs to a shard of another length, or if no token counts.
inline void dataloader_open_masks(DataLoader& loader, const std::vector<std::string>& paths) {
    Checksum identity;
    identity.add(&loader.ends_identity, sizeof(loader.ends_identity));
    for (size_t i = 0; i < paths.size(); i++) {
        Shard& shard = loader.shards[i];
        FileReader file(paths[i]);
        const MaskHeader header = read_mask_header(file);
        if (header.tokens != shard.tokens)
            runtime_failure("%s is the loss mask of %d tokens and %s has %d: the mask of this shard is expected",
                            file.path, header.tokens, shard.file.path, shard.tokens);
        loader.counted_tokens += header.counted;
        shard.mask = {file.path, file.stamp(), checksum_of_ends(file, &identity)};
        file.expect_good();
    }
    loader.ends_identity = identity.value(), loader.masked = true;
    loader.mask.resize(mask_bytes(loader.T) + 1);
    if (loader.counted_tokens == 0)
        runtime_failure("%s counts no token as a target: there is nothing to learn or to evaluate", paths[0]);
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

// Opens shard_order[position] and puts its windows in the order of the epoch.
inline void start_shard(DataLoader& loader, int64_t position) {
    const uint32_t index = loader.shard_order[position];
    const Shard& shard = loader.shards[index];
    loader.open_shard = position;
    if (!shard.in_memory()) loader.file = std::make_unique<FileReader>(shard.file.path, FileReader::TELL);
    if (loader.masked) loader.mask_file = std::make_unique<FileReader>(shard.mask.path, FileReader::TELL);
    if (loader.shuffle)
        loader.window_order =
            permutation(shard.windows, generator_for(loader.seed, RANDOM_WINDOWS, loader.epoch, index));
}

// Where a window lies.
struct WindowPlace {
    Shard& shard;
    int64_t first;    // the window's first token there
    int64_t skipped;  // so many of its targets are those of the window before
};

// Opens the shard that has window w = 0, 1, ... of the run.
inline WindowPlace find_window(DataLoader& loader, int64_t w) {
    const int64_t epoch = w / loader.total_windows, in_epoch = w % loader.total_windows;
    if (epoch != loader.epoch) start_epoch(loader, epoch);
    const auto begin = loader.first_window.begin(), end = loader.first_window.end();
    const int64_t position = std::upper_bound(begin, end, in_epoch) - begin - 1;
    if (position != loader.open_shard) start_shard(loader, position);
    int64_t in_shard = in_epoch - loader.first_window[position];
    if (loader.shuffle) in_shard = loader.window_order[in_shard];
    Shard& shard = loader.shards[loader.shard_order[position]];
    const int64_t next = in_shard * loader.T, last_full = std::max<int64_t>(0, shard.tokens - 1 - loader.T);
    const int64_t first = std::min(next, last_full);
    return {shard, first, next - first};
}

// Reads a window's tokens into loader.window. Returns what is wrong, empty if nothing; so do the
// functions below.
inline std::string read_window(DataLoader& loader, const WindowPlace& window) {
    Shard& shard = window.shard;
    if (shard.in_memory()) {
        std::fill(loader.window.begin(), loader.window.end(), 0);
        const auto begin = shard.text.tokens.begin() + window.first;
        std::copy(begin, begin + std::min(loader.T + 1, shard.tokens - window.first), loader.window.begin());
        return "";
    }
    FileReader& file = *loader.file;
    const std::string change = change_of(shard.file, file);
    if (!change.empty()) return change;
    file.seek(TOKENS_HEADER_BYTES + window.first * 2);
    return file.try_read(loader.window.data(), (loader.T + 1) * 2, "the tokens") ? "" : file.problem;
}

// Reads the bits of a window's targets, of which the one at position t is bit `first_bit` + t of
// loader.mask.
inline std::string read_mask(DataLoader& loader, const WindowPlace& window, int64_t& first_bit) {
    FileReader& file = *loader.mask_file;
    const std::string change = change_of(window.shard.mask, file);
    if (!change.empty()) return change;
    const int64_t begin = window.first + 1, end = begin + loader.T, byte = begin / 8;
    first_bit = begin % 8;
    file.seek(MASK_HEADER_BYTES + byte);
    return file.try_read(loader.mask.data(), mask_bytes(end) - byte, "the loss mask") ? "" : file.problem;
}

// Adds to `counted` how many targets of window w count by the mask.
inline std::string try_count_targets(DataLoader& loader, int64_t w, int64_t& counted) {
    int64_t first_bit = 0;
    const std::string problem = read_mask(loader, find_window(loader, w), first_bit);
    if (problem.empty())
        for (int64_t t = 0; t < loader.T; t++) counted += mask_bit(loader.mask.data(), first_bit + t);
    return problem;
}

// Sets the targets y (T) of a window that do not count to IGNORED_TARGET: those of the window
// before and those behind the end, in the last window of a text, and those that the mask leaves
// out.
inline std::string ignore_targets(DataLoader& loader, const WindowPlace& window, int* y) {
    std::fill(y, y + window.skipped, IGNORED_TARGET);
    for (int64_t t = window.shard.tokens - 1 - window.first; t < loader.T; t++) y[t] = IGNORED_TARGET;
    if (!loader.masked) return "";
    int64_t first_bit = 0;
    const std::string problem = read_mask(loader, window, first_bit);
    if (problem.empty())
        for (int64_t t = 0; t < loader.T; t++)
            if (!mask_bit(loader.mask.data(), first_bit + t)) y[t] = IGNORED_TARGET;
    return problem;
}

// Loads window w = 0, 1, ... of the run: inputs x (T), which are 0 where a text has ended, and
// targets y (T), which are IGNORED_TARGET where they do not count. A problem is a file, which the
// message names, that cannot be read, has changed, or has a token that is not in the vocabulary.
inline std::string try_load_window(DataLoader& loader, int64_t w, int* x, int* y) {
    const WindowPlace window = find_window(loader, w);
    const std::string problem = read_window(loader, window);
    if (!problem.empty()) return problem;
    const int64_t T = loader.T;
    for (int64_t t = 0; t <= T; t++) {
        const int token = loader.window[t];
        if (token >= loader.vocab)
            return format(
                "%s: token %d at offset %d is not in the model's vocabulary of %d; the file is "
                "damaged, or made with another tokenizer (V in -e sets the vocabulary of a new model)",
                window.shard.file.path, token, window.first + t, loader.vocab);
        if (t < T) x[t] = token;
        if (t > 0) y[t - 1] = token;
    }
    return ignore_targets(loader, window, y);
}
