// From a block of text to tokens: finds its documents, in plain text or in the lines of a .jsonl
// file, and encodes them. Documents of prompts and completions also get the bits of a loss mask
// (llmc/data/mask_file.h).
#pragma once
#include <optional>
#include "dev/data/documents.h"
#include "llmc/base/json_text.h"

// A block, and what a worker makes of it.
struct Encoded {
    Block block;
    int64_t train_bytes = INT64_MAX;  // what begins after them is for validation (Corpus::tail_begin)
    std::vector<uint16_t> tokens;
    std::vector<uint8_t> counts;       // of prompts and completions: 1 for a token that counts, else 0
    std::vector<size_t> starts;        // where in tokens a document begins
    size_t validates_from = SIZE_MAX;  // where in tokens that is
    TextCheck check;
    int64_t lines = 0, empty = 0;  // of .jsonl: lines seen, documents without a byte
    std::string problem;           // of the last line, if it is not accepted
    std::optional<bool> prompted;  // whether its documents have prompts; not set if there is none
    int64_t first_line = 0;        // of .jsonl: the line of the first document
};

// A part of a document: all of it, a prompt, or a completion; or what is before or behind a cut.
struct Part {
    std::string_view text;
    bool starts_document = true, validates = false;
    bool counts = true;  // false: of a prompt
};

// What is wrong with a document that has a prompt where the others have none, or the reverse.
inline std::string mixed_documents(bool prompted) {
    return format("has %s \"prompt\", but the documents before it have %s: all or none of them are accepted with one",
                  prompted ? "a" : "no", prompted ? "none" : "one");
}

// The fields of a .jsonl file that hold a document.
struct DocumentFields {
    std::string text = "text";
    bool prompts = true;  // where that is not there, "prompt" and "completion" are

    std::string expected() const {
        const std::string one = "a JSON object with a string \"" + text + "\"";
        return prompts ? one + ", or with strings \"prompt\" and \"completion\"," : one;
    }
};

// Reads the document of a line into fields: {text} or {text, prompt, completion}. Sets `prompted`
// if it is a prompt and a completion. False if there is none: json.problem says why.
inline bool json_document(JsonReader& json, std::vector<JsonField>& fields, bool& prompted) {
    if (!json_fields(json, fields)) return false;
    const auto absent = [&](const JsonField& field) {
        if (field.other) json.at = field.other;
        return json.fail(field.other ? "the field is no string" : "the field is not there");
    };
    const auto there = [](const JsonField& field) { return field.found || field.other; };
    prompted = fields.size() > 1 && !there(fields[0]) && (there(fields[1]) || there(fields[2]));
    for (size_t i = prompted ? 1 : 0; i < (prompted ? 3 : 1); i++)
        if (!fields[i].found) return absent(fields[i]);
    return true;
}

// Calls take(part, position in the block) for each document of a block of .jsonl: once, or for a
// prompt and its completion, which are encoded apart, so that no token belongs to both.
template <class Take>
inline void each_line_of_jsonl(const DocumentFields& names, Encoded& out, Take take) {
    const std::string_view text = out.block.text;
    std::vector<JsonField> fields(names.prompts ? 3 : 1);
    fields[0].name = names.text;
    if (names.prompts) fields[1].name = "prompt", fields[2].name = "completion";
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
        end = std::min(text.find('\n', at), text.size());
        out.lines++;
        JsonReader json{text.substr(at, end - at)};
        json.skip_space();
        if (json.at == json.line.size()) continue;
        bool prompted = false;
        if (!json_document(json, fields, prompted)) {
            out.problem = format("column %d: %s; %s is expected", json.at + 1, json.problem, names.expected());
            return;
        }
        if (!out.prompted) out.prompted = prompted, out.first_line = out.lines;
        if (*out.prompted != prompted) {
            out.problem = mixed_documents(prompted);
            return;
        }
        if (prompted ? fields[1].text.empty() && fields[2].text.empty() : fields[0].text.empty()) out.empty++;
        else if (!prompted) take(Part{fields[0].text}, at);
        else take(Part{fields[1].text, true, false, false}, at), take(Part{fields[2].text, false}, at);
    }
}

// The end of the part of a segment that is for training, which is what begins before `train_bytes`.
// It is the end of a piece, because no token crosses one.
inline size_t end_of_training(const Tokenizer& tok, std::string_view block, const Segment& s, int64_t train_bytes) {
    if ((int64_t)s.end <= train_bytes) return s.end;
    size_t at = s.begin;
    while ((int64_t)at < train_bytes && at < s.end) at = next_piece(tok, block.substr(0, s.end), at);
    return at;
}

// Calls take(part) for all texts of a block. A text that lies in both splits comes in two parts,
// the one for training first.
template <class Take>
inline void each_document(const Tokenizer& tok, bool jsonl, const DocumentFields& fields, Encoded& out, Take take) {
    const std::string_view block = out.block.text;
    if (jsonl)
        return each_line_of_jsonl(fields, out, [&](Part part, size_t at) {
            part.validates = (int64_t)at >= out.train_bytes;
            take(part);
        });
    if (!out.block.segments.empty()) out.prompted = false;
    out.check = check_text(block);
    if (out.check.zero >= 0) return;
    for (const Segment& s : out.block.segments) {
        const size_t cut = end_of_training(tok, block, s, out.train_bytes);
        if (cut > s.begin) take(Part{block.substr(s.begin, cut - s.begin), s.starts_document, false});
        if (cut < s.end) take(Part{block.substr(cut, s.end - cut), s.starts_document && cut == s.begin, true});
    }
}

// Encodes the texts of a block. Each document begins with <|endoftext|>, which is what follows the
// completion before it, and so counts.
inline void encode_block(const Tokenizer& tok, bool jsonl, const DocumentFields& fields, Encoded& out) {
    std::vector<int> ids;
    out.tokens.reserve(out.block.text.size() / 3);
    each_document(tok, jsonl, fields, out, [&](const Part& part) {
        ids.clear();
        if (part.validates) out.validates_from = std::min(out.validates_from, out.tokens.size());
        if (part.starts_document) out.starts.push_back(out.tokens.size()), ids.push_back(tok.end_of_text);
        encode(tok, part.text, ids);
        out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
        if (!out.prompted.value_or(false)) return;
        if (part.starts_document) out.counts.push_back(1);
        out.counts.resize(out.tokens.size(), part.counts);
    });
}
