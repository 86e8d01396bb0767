// From blocks of text to shards. Workers encode blocks (encode_block.h); Corpus takes the results
// in the order of the text, checks them, and writes the tokens.
#pragma once
#include <csignal>
#include "dev/data/bpe_trainer.h"
#include "dev/data/encode_block.h"
#include "dev/data/shards.h"
#include "llmc/base/logger.h"

inline volatile sig_atomic_t stop_signal = 0;

// Ends the program if a signal has come (exit 128 + its number).
inline void stop_if_asked() {
    if (!stop_signal) return;
    clear_the_way();
    fprintf(stderr, "interrupted; nothing was written\n");
    exit(128 + stop_signal);
}

// Whether document n is drawn for validation. It depends on seed and n alone, not on threads.
inline bool drawn(int64_t seed, int64_t n, double fraction) {
    uint64_t h = Checksum::mix(Checksum::mix(0x243F6A8885A308D3u, (uint64_t)seed), (uint64_t)n);
    h = Checksum::mix(h ^ (h >> 32), h);
    return (double)((h ^ (h >> 29)) >> 11) * 0x1p-53 < fraction;
}

// A run of `tokenize` over texts.
struct Corpus {
    const std::vector<TextFile>& files;
    std::vector<int64_t> file_begin;  // of each file, among the bytes of all
    DocumentFields fields;            // of .jsonl
    std::optional<bool> prompted;     // whether the documents so far have prompts
    bool chat = false;                // whether there are conversations
    bool by_documents = false;        // validation: documents that are drawn,
    bool by_files = false;            // or the last bytes of each file; else the last tokens of all
    // --pack: tokens of a window, which cuts no document that fits in; 0: documents follow each
    // other. The tokens of the current document wait for its end, or until it is too long; then it
    // is placed.
    int64_t window = 0, padding = 0;
    std::vector<uint32_t> waiting;
    std::vector<uint8_t> waiting_counts;
    bool placed = false;
    double val_fraction = 0;
    // The byte of all files at or after which the tail begins, with a piece (of .jsonl: a line):
    // where a vocabulary is trained, there are no tokens to count yet. -1: the tail is made of
    // tokens.
    int64_t tail_begin = -1;
    int64_t seed = 0;
    uint32_t end_of_text = 0;
    ShardSet train, val;
    std::unique_ptr<FileWriter> vocabulary;  // PREFIX_tokenizer.bin, which gets its name with the shards
    ShardSet* target = nullptr;              // where the current document goes
    int64_t documents = 0, val_documents = 0, empty = 0;
    Logger logger;
    Progress progress;
    int64_t lines = 0, bytes = 0, invalid = 0, first_invalid = 0, documents_before = 0;  // of the current file
    bool in_tail = false;                                                                // of it

    int64_t train_bytes(const Block& block) const;
    void count_words(const Tokenizer& tok, DocumentReader& reader, WordCounts& words);
    void check(const Encoded& e);
    void take(const Encoded& e);
    void append(const Encoded& e, size_t begin, size_t end);
    void place_document();
    void end_document();
    void append_documents(ShardSet& split, const Encoded& e, size_t begin, size_t end);
    void begin_tail(const Encoded& e, size_t cut);
    void finish_file(const TextFile& file);
    void warn_of_empty_split() const;
    void finish();

    // all_bytes: the bytes of all files; negative if that is not known.
    Corpus(const std::vector<TextFile>& f, int64_t all_bytes, const char* work)
        : files(f), logger{stdout_is_terminal()}, progress(logger, work, all_bytes, "MB", 1000000) {
        int64_t begin = 0;
        for (const TextFile& file : files) file_begin.push_back(begin), begin += file.bytes;
    }
};

// The bytes of a block that are before the tail, of all files or of its own.
inline int64_t Corpus::train_bytes(const Block& block) const {
    if (by_files) {
        const int64_t all = files[block.file].bytes, tail = std::llround((double)all * val_fraction);
        return std::max<int64_t>(0, all - tail - block.offset);
    }
    if (tail_begin < 0) return INT64_MAX;
    return std::max<int64_t>(0, tail_begin - file_begin[block.file] - block.offset);
}

// Reads the texts a first time, and counts the words of the training split, from which the
// vocabulary is learned.
inline void Corpus::count_words(const Tokenizer& tok, DocumentReader& reader, WordCounts& words) {
    bool trains = true;
    for (Encoded e; reader.next(e.block); e = Encoded()) {
        e.train_bytes = train_bytes(e.block);
        each_document(tok, files[e.block.file].jsonl, fields, e, [&](const Part& part) {
            const std::string_view text = part.text;
            if (part.starts_document) trains = !(by_documents && drawn(seed, documents, val_fraction)), documents++;
            if (!trains || part.validates) return;
            for (size_t at = 0, end; at < text.size(); at = end) {
                end = next_piece(tok, text, at);
                words.add(text.substr(at, end - at));
            }
        });
        check(e);
        if (e.block.last) lines = bytes = invalid = 0;
        progress.add((int64_t)e.block.text.size());
        stop_if_asked();
    }
    stop_if_asked();
}

// Exit 1 if a block is not text, or a line of it is not as expected.
inline void Corpus::check(const Encoded& e) {
    const TextFile& file = files[e.block.file];
    lines += e.lines, bytes += (int64_t)e.block.text.size(), empty += e.empty;
    if (!e.problem.empty()) runtime_failure("%s, line %d, %s", file.name(), lines, e.problem);
    if (e.prompted && prompted && *e.prompted != *prompted) {
        const std::string where = e.first_line ? format(", line %d,", lines - e.lines + e.first_line) : "";
        runtime_failure("%s%s %s", file.name(), where, mixed_documents(*e.prompted));
    }
    if (!prompted) prompted = e.prompted;
    chat = chat || e.chat;
    if (e.check.zero >= 0)
        runtime_failure("%s has a zero byte at %d: it is no UTF-8 text; nothing was written", file.name(),
                        e.block.offset + e.check.zero);
    if (invalid == 0) first_invalid = e.block.offset + e.check.first_invalid;
    invalid += e.check.invalid;
    if (invalid * 100 > bytes)
        runtime_failure(
            "%s is no UTF-8 text: %d of its first %d bytes are not, the first at %d; nothing was "
            "written",
            file.name(), invalid, bytes, first_invalid);
}

inline void Corpus::append(const Encoded& e, size_t begin, size_t end) {
    if (end == begin) return;
    if (window > 0) {
        waiting.insert(waiting.end(), e.tokens.begin() + begin, e.tokens.begin() + end);
        if (e.counts.empty()) waiting_counts.resize(waiting.size(), 1);
        else waiting_counts.insert(waiting_counts.end(), e.counts.begin() + begin, e.counts.begin() + end);
        if (placed || (int64_t)waiting.size() > window) place_document();
        return;
    }
    const uint8_t* counts = target->masked ? e.counts.data() + begin : nullptr;
    append_tokens(*target, e.tokens.data() + begin, counts, (int64_t)(end - begin));
}

// Writes what waits of the current document. Where the window in which it would begin has no room
// for it, that is filled up with ends of text, of which the first counts, as the one that follows a
// document does; then the document's own does not.
inline void Corpus::place_document() {
    if (waiting.empty()) return;
    const int64_t used = target->total % window;
    if (!placed && used > 0 && used + (int64_t)waiting.size() > window) {
        const std::vector<uint32_t> ends(window - used, waiting[0]);
        std::vector<uint8_t> counts(ends.size());
        counts[0] = 1, waiting_counts[0] = 0;
        append_tokens(*target, ends.data(), counts.data(), (int64_t)ends.size());
        padding += (int64_t)ends.size();
    }
    append_tokens(*target, waiting.data(), waiting_counts.data(), (int64_t)waiting.size());
    waiting.clear(), waiting_counts.clear(), placed = true;
}
inline void Corpus::end_document() {
    place_document();
    placed = false;
}

// Writes tokens `begin` to `end` - 1 of a block, document by document, to one of the splits.
inline void Corpus::append_documents(ShardSet& split, const Encoded& e, size_t begin, size_t end) {
    if (target != &split) end_document();
    target = &split;
    for (size_t start : e.starts) {
        if (start < begin || start >= end) continue;
        append(e, begin, start);
        end_document();
        begin = start;
    }
    append(e, begin, end);
}

// A tail that begins within a document follows that of another file, which has ended.
inline void Corpus::begin_tail(const Encoded& e, size_t cut) {
    const uint8_t counts = 1;
    in_tail = true, end_document();
    if (e.tokens[cut] != end_of_text) append_tokens(val, &end_of_text, &counts, 1);
}

// Writes the tokens of a block to the splits that its documents are for.
inline void Corpus::take(const Encoded& e) {
    check(e);
    train.masked = val.masked = prompted.value_or(false) || window > 0;
    if (tail_begin >= 0 || by_files) {
        const size_t cut = std::min(e.validates_from, e.tokens.size());
        if (cut > 0) append_documents(train, e, 0, cut);
        if (by_files && !in_tail && cut < e.tokens.size()) begin_tail(e, cut);
        if (cut < e.tokens.size()) append_documents(val, e, cut, e.tokens.size());
        documents += (int64_t)e.starts.size();
    } else {
        size_t at = 0;
        for (size_t start : e.starts) {
            append(e, at, start);
            end_document();
            at = start;
            const bool validates = by_documents && drawn(seed, documents, val_fraction);
            target = validates ? &val : &train;
            documents++, val_documents += validates;
        }
        append(e, at, e.tokens.size());
    }
    if (e.block.last) finish_file(files[e.block.file]);
    progress.add((int64_t)e.block.text.size());
}

inline void Corpus::finish_file(const TextFile& file) {
    if (documents == documents_before) warning("%s is empty and is left out", file.name());
    if (invalid > 0)
        warning("%s has %s of invalid UTF-8, the first at %d: kept as found", file.name(), count_text(invalid, "byte"),
                first_invalid);
    documents_before = documents, lines = bytes = invalid = 0, in_tail = false;
}

// Warns if one of the two splits has no tokens: otherwise only a run that opens it would say so.
inline void Corpus::warn_of_empty_split() const {
    if (val_fraction <= 0 || val_fraction >= 1 || (train.total > 0 && val.total > 0)) return;
    const bool no_val = val.total == 0;
    warning(
        "%s has no tokens: there are only %s, of which --val-fraction %g validate; more text or a %s "
        "--val-fraction is needed%s",
        shard_path(no_val ? val : train, 0), count_text(train.total + val.total, "token"), val_fraction,
        no_val ? "larger" : "smaller", no_val ? ", or -v 0 to train without validation" : "");
}

// Makes the split at the tail, gives all files their names, and prints what was written.
inline void Corpus::finish() {
    end_document();
    const int64_t all = train.total + val.total;
    if (all == 0) runtime_failure("no text in %s; nothing was written", count_text((int64_t)files.size(), "file"));
    if (!by_documents && !by_files && tail_begin < 0) move_tail(train, val, std::llround((double)all * val_fraction));
    const bool wants_both = by_documents && val_fraction > 0 && val_fraction < 1;
    if (wants_both && (train.total == 0 || val.total == 0))
        runtime_failure(
            "--seed %d draws %d of %d documents for validation; another --seed, another "
            "--val-fraction or --val-split tail is accepted",
            seed, val_documents, documents);
    stop_if_asked();
    publish_shards({&train, &val}, vocabulary.get());
    logger.clear_line_in_work();
    if (empty > 0) warning("left out: %s", count_text(empty, "empty document"));
    warn_of_empty_split();
    auto where = [](const ShardSet& set) {
        const std::string shards = count_text((int64_t)set.shards.size(), "shard");
        return set.limit ? format("%s %s_*.bin", shards, set.prefix) : shard_path(set, 0);
    };
    const std::string drawn_text = count_text(val_documents, "document") + " drawn";
    printf("%s, %s, %s: %lld in %s, %lld in %s (%s)\n", count_text((int64_t)files.size(), "file").c_str(),
           count_text(documents, "document").c_str(), count_text(all, "token").c_str(), (long long)train.total,
           where(train).c_str(), (long long)val.total, where(val).c_str(),
           by_documents ? drawn_text.c_str()
           : by_files   ? "the tail of each file"
                        : "the tail");
    int64_t counted = 0;
    for (const ShardSet* set : {&train, &val})
        for (const ShardFile& shard : set->shards) counted += shard.mask ? shard.mask->header.counted : 0;
    if (train.masked)
        printf("loss masks beside them, .mask in place of .bin: %s\n",
               (count_text(counted, "token") + (counted == 1 ? " counts" : " count")).c_str());
    if (window > 0)
        printf("windows of %lld tokens (the trainers' -t) cut no document that fits in: %s of padding\n",
               (long long)window, count_text(padding, "token").c_str());
    if (chat) printf("each turn is \"%s\"; the text of the assistant counts, and its end\n", CHAT_TEMPLATE);
}
