// Token shards and the order in which training sees them.
//
// A window is T tokens and the one after them, so that each of the T has a next token to predict. A
// shard of n tokens has floor((n-1)/T) windows, end to end. With shuffling, the shards, and the
// windows of each shard, are permuted anew each epoch, by a generator that depends on seed, epoch
// and shard alone. Which tokens window w of the run holds is therefore a pure function of w: the
// position in the data is one counter, and any range of windows can be split among any number of
// processes. Several sources with weights (sources.h) have epochs of their own.
//
// A text (text_data.h) stands for a shard of its tokens, none of which is left out: where T does
// not divide it, its last window begins earlier, and targets that the window before has are not
// counted again.
#pragma once
#include "llmc/gpt2/constants.h"
#include "llmc/base/random.h"
#include "llmc/data/shard.h"
#include "llmc/data/sources.h"

struct DataLoader {
    std::vector<Shard> shards;
    int64_t T = 0, vocab = 0, total_tokens = 0, total_windows = 0;
    int64_t counted_tokens = 0;            // by the masks
    uint64_t seed = 0, ends_identity = 0;  // of the first and last 4 KiB of each file
    bool shuffle = false, masked = false;
    std::vector<DataSource> sources;
    std::vector<SourceTurn> turns;  // whose windows come when
    std::vector<uint32_t> window;   // T + 1 tokens
    std::vector<uint8_t> mask;      // the bytes with the bits of T targets
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

// Opens every shard that the pattern of a source matches; with a tokenizer, every text. Exit 1 if
// there is none, one is damaged, or all together hold no window. flag: the one that gave the
// pattern, for messages.
inline void open_source(DataLoader& loader, const char* flag, const std::string& pattern, Checksum& identity,
                        const Tokenizer* tok, Logger* logger) {
    const int64_t T = loader.T;
    std::vector<std::string> paths = glob_files(pattern);
    if (paths.empty())
        runtime_failure(
            "%s %s matches no file; `make data` tokenizes the text that comes with this repository, `tokenize TEXT... "
            "-o PREFIX` your own%s",
            flag, pattern, flag == std::string("-j") ? "; with -v 0 none is needed" : "");
    DataSource source;
    source.pattern = pattern, source.first_shard = loader.shards.size(), source.num_shards = paths.size();
    int64_t tokens = 0;
    for (const std::string& path : paths) {
        if (folder_exists(path))
            runtime_failure("%s %s is a folder; its files are accepted: '%s/*.bin'%s", flag, path, path,
                            flag == std::string("-j") ? " or '*.txt' in place of '*.bin'" : "");
        loader.shards.push_back(open_shard(path, T, identity, tok, logger));
        tokens += loader.shards.back().tokens, source.windows += loader.shards.back().windows;
    }
    if (source.windows == 0)
        runtime_failure(
            "%s %s is too short: %d tokens hold no window of -t %d tokens and the one after; more text "
            "or a smaller -t is accepted",
            flag, pattern, tokens, T);
    loader.total_tokens += tokens, loader.total_windows += source.windows;
    loader.sources.push_back(std::move(source));
}

// Opens all shards of a pattern or, of -i, of several sources. Exit 1 or 2 if they cannot be read.
inline void dataloader_open(DataLoader& loader, const char* flag, const std::string& pattern, int64_t T, int64_t vocab,
                            uint64_t seed, bool shuffle, const Tokenizer* tok = nullptr, Logger* logger = nullptr) {
    loader.T = T, loader.vocab = vocab, loader.seed = seed, loader.shuffle = shuffle;
    const std::vector<SourcePattern> sources =
        flag == std::string("-i") ? sources_of(pattern) : std::vector<SourcePattern>{{pattern}};
    const std::vector<int64_t> turns = share_turns(sources);
    Checksum identity;
    for (size_t s = 0; s < sources.size(); s++) {
        open_source(loader, flag, sources[s].pattern, identity, tok, logger);
        loader.sources[s].turns = turns[s];
    }
    loader.turns = deal_turns(loader.sources);
    if (sources.size() > 1) identity.add(turns.data(), turns.size() * sizeof(int64_t));
    loader.ends_identity = identity.value();
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

// Puts the shards of a source in the order of an epoch.
inline void start_epoch(const DataLoader& loader, DataSource& source, int64_t epoch) {
    const int64_t n = source.num_shards, number = &source - loader.sources.data();
    source.epoch = epoch, source.open_shard = -1;
    source.shard_order.resize(n);
    std::iota(source.shard_order.begin(), source.shard_order.end(), 0u);
    if (loader.shuffle) source.shard_order = permutation(n, generator_for(loader.seed, RANDOM_SHARDS, epoch, number));
    source.first_window.assign(1, 0);
    for (uint32_t& s : source.shard_order) {
        s += (uint32_t)source.first_shard;
        source.first_window.push_back(source.first_window.back() + loader.shards[s].windows);
    }
}

// Opens shard_order[position] and puts its windows in the order of the epoch.
inline void start_shard(const DataLoader& loader, DataSource& source, int64_t position) {
    const uint32_t index = source.shard_order[position];
    const Shard& shard = loader.shards[index];
    source.open_shard = position;
    if (!shard.in_memory()) source.file = std::make_unique<FileReader>(shard.file.path, FileReader::TELL);
    if (loader.masked) source.mask_file = std::make_unique<FileReader>(shard.mask.path, FileReader::TELL);
    if (loader.shuffle)
        source.window_order =
            permutation(shard.windows, generator_for(loader.seed, RANDOM_WINDOWS, source.epoch, index));
}

// Where a window lies.
struct WindowPlace {
    DataSource& source;
    Shard& shard;
    int64_t first;    // the window's first token there
    int64_t skipped;  // so many of its targets are those of the window before
};

// Opens the shard that has window w = 0, 1, ... of the run.
inline WindowPlace find_window(DataLoader& loader, int64_t w) {
    const SourceTurn turn = loader.turns[w % TURNS];
    DataSource& source = loader.sources[turn.source];
    const int64_t in_source = w / TURNS * source.turns + turn.before;
    const int64_t epoch = in_source / source.windows, in_epoch = in_source % source.windows;
    if (epoch != source.epoch) start_epoch(loader, source, epoch);
    const auto begin = source.first_window.begin(), end = source.first_window.end();
    const int64_t position = std::upper_bound(begin, end, in_epoch) - begin - 1;
    if (position != source.open_shard) start_shard(loader, source, position);
    int64_t in_shard = in_epoch - source.first_window[position];
    if (loader.shuffle) in_shard = source.window_order[in_shard];
    Shard& shard = loader.shards[source.shard_order[position]];
    const int64_t next = in_shard * loader.T, last_full = std::max<int64_t>(0, shard.tokens - 1 - loader.T);
    const int64_t first = std::min(next, last_full);
    return {source, shard, first, next - first};
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
    FileReader& file = *window.source.file;
    const std::string change = change_of(shard.file, file);
    if (!change.empty()) return change;
    const bool read = try_read_tokens(file, shard.token_bytes, window.first, loader.window.data(), loader.T + 1);
    return read ? "" : file.problem;
}

// Reads the bits of a window's targets, of which the one at position t is bit `first_bit` + t of
// loader.mask.
inline std::string read_mask(DataLoader& loader, const WindowPlace& window, int64_t& first_bit) {
    FileReader& file = *window.source.mask_file;
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
        const int64_t token = loader.window[t];
        if (token >= loader.vocab)
            return format(
                "%s: token %d at offset %d is not in the model's vocabulary of %d; the file is "
                "damaged, or made with another tokenizer (V in -e sets the vocabulary of a new model)",
                window.shard.file.path, token, window.first + t, loader.vocab);
        if (t < T) x[t] = (int)token;
        if (t > 0) y[t - 1] = (int)token;
    }
    return ignore_targets(loader, window, y);
}
