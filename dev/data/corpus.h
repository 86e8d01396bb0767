// From blocks to shards: what a worker makes of a block of text, and what is done with that in the
// order of the text.
#pragma once
#include <csignal>
#include "dev/data/documents.h"
#include "dev/data/shards.h"
#include "llmc/json_text.h"
#include "llmc/logger.h"

// What a worker makes of a block.
struct Encoded {
    Block block;
    std::vector<uint16_t> tokens;
    std::vector<size_t> starts;  // where in tokens a document begins
    TextCheck check;
    int64_t lines = 0, empty = 0;  // of .jsonl: lines seen, documents without a byte
    std::string problem;           // with the last of the lines
};

inline void encode_document(const Tokenizer& tok, std::string_view text, bool starts, std::vector<int>& ids,
                            Encoded& out) {
    ids.clear();
    if (starts) out.starts.push_back(out.tokens.size()), ids.push_back(tok.end_of_text);
    encode(tok, text, ids);
    out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
}

inline void encode_jsonl(const Tokenizer& tok, const std::string& field, std::vector<int>& ids, Encoded& out) {
    const std::string_view text = out.block.text;
    std::string document;
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
        end = std::min(text.find('\n', at), text.size());
        out.lines++;
        JsonReader json{text.substr(at, end - at)};
        json.skip_space();
        if (json.at == json.line.size()) continue;
        document.clear();
        if (!json_field(json, field, document)) {
            out.problem = format("column %zu: %s", json.at + 1, json.problem);
            return;
        }
        if (document.empty()) out.empty++;
        else encode_document(tok, document, true, ids, out);
    }
}

inline void encode_block(const Tokenizer& tok, bool jsonl, const std::string& field, Encoded& out) {
    std::vector<int> ids;
    const Block& block = out.block;
    out.tokens.reserve(block.text.size() / 3);
    if (jsonl) return encode_jsonl(tok, field, ids, out);
    out.check = check_text(block.text);
    if (out.check.zero >= 0) return;
    for (const Segment& s : block.segments)
        encode_document(tok, {block.text.data() + s.begin, s.end - s.begin}, s.starts_document, ids, out);
}

inline volatile sig_atomic_t stop_signal = 0;

inline void stop_if_asked() {
    if (!stop_signal) return;
    clear_the_way();
    fprintf(stderr, "interrupted; nothing was written\n");
    exit(128 + stop_signal);
}

// Whether document n is for validation: the same for any number of threads.
inline bool drawn(int64_t seed, int64_t n, double fraction) {
    uint64_t h = Checksum::mix(Checksum::mix(0x243F6A8885A308D3u, (uint64_t)seed), (uint64_t)n);
    h = Checksum::mix(h ^ (h >> 32), h);
    return (double)((h ^ (h >> 29)) >> 11) * 0x1p-53 < fraction;
}

// Takes what the workers made, in the order of the text.
struct Corpus {
    const std::vector<TextFile>& files;
    std::string field;          // of .jsonl
    bool by_documents = false;  // validation: documents that are drawn, or the last tokens
    double val_fraction = 0;
    int64_t seed = 0;
    ShardSet train, val;
    ShardSet* target = nullptr;  // of the document that is open
    int64_t documents = 0, val_documents = 0, empty = 0;
    Logger logger;
    Progress progress;
    int64_t lines = 0, bytes = 0, invalid = 0, first_invalid = 0, documents_before = 0;  // of the file that is open

    void check(const Encoded& e);
    void take(const Encoded& e);
    void finish_file(const TextFile& file);
    void warn_of_empty_split() const;
    void finish();

    // all_bytes: of the files, negative if that is not known.
    Corpus(const std::vector<TextFile>& f, int64_t all_bytes)
        : files(f), logger{"", stdout_is_terminal()}, progress(logger, "tokenizing", all_bytes, "MB", 1000000) {}
};

inline void Corpus::check(const Encoded& e) {
    const TextFile& file = files[e.block.file];
    lines += e.lines, bytes += (int64_t)e.block.text.size(), empty += e.empty;
    if (!e.problem.empty())
        runtime_failure("%s, line %lld, %s; a JSON object with a string \"%s\" is expected", file.name(),
                        (long long)lines, e.problem.c_str(), field.c_str());
    if (e.check.zero >= 0)
        runtime_failure("%s has a zero byte at %lld: it is no UTF-8 text; nothing was written", file.name(),
                        (long long)(e.block.offset + e.check.zero));
    if (invalid == 0) first_invalid = e.block.offset + e.check.first_invalid;
    invalid += e.check.invalid;
    if (invalid * 100 > bytes)
        runtime_failure(
            "%s is no UTF-8 text: %lld of its first %lld bytes are not, the first at %lld; nothing was "
            "written",
            file.name(), (long long)invalid, (long long)bytes, (long long)first_invalid);
}

inline void Corpus::take(const Encoded& e) {
    check(e);
    size_t at = 0;
    for (size_t i = 0; i <= e.starts.size(); i++) {
        const size_t end = i < e.starts.size() ? e.starts[i] : e.tokens.size();
        if (end > at) append_tokens(*target, e.tokens.data() + at, (int64_t)(end - at));
        at = end;
        if (i == e.starts.size()) break;
        const bool validates = by_documents && drawn(seed, documents, val_fraction);
        target = validates ? &val : &train;
        documents++, val_documents += validates;
    }
    if (e.block.last) finish_file(files[e.block.file]);
    progress.add((int64_t)e.block.text.size());
}

inline void Corpus::finish_file(const TextFile& file) {
    if (documents == documents_before) warning("%s is empty and is left out", file.name());
    if (invalid > 0)
        warning("%s has %s of invalid UTF-8, the first at %lld: kept as found", file.name(),
                count_text(invalid, "byte").c_str(), (long long)first_invalid);
    documents_before = documents, lines = bytes = invalid = 0;
}

// A split that was asked for and has no tokens would fail only when a run opens it.
inline void Corpus::warn_of_empty_split() const {
    if (val_fraction <= 0 || val_fraction >= 1 || (train.total > 0 && val.total > 0)) return;
    const bool no_val = val.total == 0;
    warning(
        "%s has no tokens: there are only %s, of which --val-fraction %g validate; more text or a %s "
        "--val-fraction is needed%s",
        shard_path(no_val ? val : train, 0).c_str(), count_text(train.total + val.total, "token").c_str(), val_fraction,
        no_val ? "larger" : "smaller", no_val ? ", or -v 0 to train without validation" : "");
}

// The split that was asked for, and all files under their names.
inline void Corpus::finish() {
    const int64_t all = train.total + val.total;
    if (all == 0)
        runtime_failure("no text in %s; nothing was written", count_text((int64_t)files.size(), "file").c_str());
    if (!by_documents) move_tail(train, val, std::llround((double)all * val_fraction));
    const bool wants_both = by_documents && val_fraction > 0 && val_fraction < 1;
    if (wants_both && (train.total == 0 || val.total == 0))
        runtime_failure(
            "--seed %lld draws %lld of %lld documents for validation; another --seed, another "
            "--val-fraction or --val-split tail is accepted",
            (long long)seed, (long long)val_documents, (long long)documents);
    stop_if_asked();
    publish_shards({&train, &val});
    logger.clear_line_in_work();
    if (empty > 0) warning("left out: %s", count_text(empty, "empty document").c_str());
    warn_of_empty_split();
    auto where = [](const ShardSet& set) {
        const std::string shards = count_text((int64_t)set.shards.size(), "shard");
        return set.limit ? format("%s %s_*.bin", shards.c_str(), set.prefix.c_str()) : shard_path(set, 0);
    };
    const std::string drawn_text = count_text(val_documents, "document") + " drawn";
    printf("%s, %s, %s: %lld in %s, %lld in %s (%s)\n", count_text((int64_t)files.size(), "file").c_str(),
           count_text(documents, "document").c_str(), count_text(all, "token").c_str(), (long long)train.total,
           where(train).c_str(), (long long)val.total, where(val).c_str(),
           by_documents ? drawn_text.c_str() : "the tail");
}
