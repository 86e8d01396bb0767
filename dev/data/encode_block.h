// From a block of text to tokens: finds its documents, in plain text or in the lines of a .jsonl
// file, and encodes them. Documents of prompts and completions, and conversations (chat.h), also
// get the bits of a loss mask (llmc/data/mask_file.h).
#pragma once
#include <optional>
#include "dev/data/chat.h"
#include "dev/data/documents.h"

// A block, and what a worker makes of it.
struct Encoded {
    Block block;
    int64_t train_bytes = INT64_MAX;  // what begins after them is for validation (Corpus::tail_begin)
    std::vector<uint32_t> tokens;
    std::vector<uint8_t> counts;       // of prompts and completions: 1 for a token that counts, else 0
    std::vector<size_t> starts;        // where in tokens a document begins
    size_t validates_from = SIZE_MAX;  // where in tokens that is
    TextCheck check;
    int64_t lines = 0, empty = 0;  // of .jsonl: lines seen, documents without a byte
    std::string problem;           // of the last line, if it is not accepted
    std::optional<bool> prompted;  // whether its documents have prompts; not set if there is none
    int64_t first_line = 0;        // of .jsonl: the line of the first document
    bool chat = false;             // whether a document is a conversation
};

// A part of a document: all of it, a prompt, a completion, or what a turn of a conversation makes
// of these; or what is before or behind a cut.
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
    bool prompts = true;  // where that is not there, those of prompts or of a conversation are

    std::string expected() const {
        const std::string one = "a JSON object with a string \"" + text + "\"";
        if (!prompts) return one;
        return one +
               ", or with strings \"prompt\" and \"completion\", or \"instruction\" and \"output\", or with "
               "\"messages\", a list of {\"role\", \"content\"},";
    }
};

// The document of a line of .jsonl.
struct LineDocument {
    std::vector<TextPart> parts;
    bool prompted = false, chat = false;

    // A document without a byte; a conversation in which the assistant says nothing.
    bool empty() const {
        for (const TextPart& part : parts)
            if (!part.text.empty() && (part.counts || !chat)) return false;
        return true;
    }
};

// Reads the document of a line. False if there is none: json.problem says why.
inline bool json_document(JsonReader& json, const DocumentFields& names, LineDocument& document) {
    enum { TEXT, PROMPT, COMPLETION, MESSAGES, INSTRUCTION, INPUT, OUTPUT };
    std::vector<JsonField> fields(names.prompts ? OUTPUT + 1 : 1);
    fields[TEXT].name = names.text;
    if (names.prompts) {
        fields[PROMPT].name = "prompt", fields[COMPLETION].name = "completion", fields[MESSAGES].name = "messages";
        fields[INSTRUCTION].name = "instruction", fields[INPUT].name = "input", fields[OUTPUT].name = "output";
    }
    if (!json_fields(json, fields)) return false;
    const auto there = [&](size_t i) { return i < fields.size() && (fields[i].found || fields[i].other); };
    const auto is_text = [&](size_t i) {
        if (fields[i].found) return true;
        if (fields[i].other) json.at = fields[i].other;
        return json.fail(fields[i].other ? "the field is no string" : "the field is not there");
    };
    document.chat = !there(TEXT) && !there(PROMPT) && !there(COMPLETION) && (there(MESSAGES) || there(INSTRUCTION));
    document.prompted = document.chat || (!there(TEXT) && (there(PROMPT) || there(COMPLETION)));
    if (!document.prompted) return document.parts = {{fields[TEXT].text, true}}, is_text(TEXT);
    if (!document.chat) {
        document.parts = {{fields[PROMPT].text, false}, {fields[COMPLETION].text, true}};
        return is_text(PROMPT) && is_text(COMPLETION);
    }
    std::vector<Turn> turns;
    if (there(MESSAGES)) {
        json.at = fields[MESSAGES].other;
        if (fields[MESSAGES].found) return json.fail("\"messages\" is a string, and no list");
        if (!json_turns(json, turns)) return false;
    } else {
        if (!is_text(INSTRUCTION) || !is_text(OUTPUT) || (there(INPUT) && !is_text(INPUT))) return false;
        const std::string& input = fields[INPUT].text;
        turns = {{"user", fields[INSTRUCTION].text + (input.empty() ? "" : "\n\n" + input)},
                 {"assistant", fields[OUTPUT].text}};
    }
    document.parts = parts_of(turns);
    return true;
}

// Calls take(part, position in the block) for each document of a block of .jsonl: once, or for
// parts of which some count and some do not, and which are encoded apart, so that no token belongs
// to both.
template <class Take>
inline void each_line_of_jsonl(const DocumentFields& names, Encoded& out, Take take) {
    const std::string_view text = out.block.text;
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
        end = std::min(text.find('\n', at), text.size());
        out.lines++;
        JsonReader json{text.substr(at, end - at)};
        json.skip_space();
        if (json.at == json.line.size()) continue;
        LineDocument document;
        if (!json_document(json, names, document)) {
            out.problem = format("column %d: %s; %s is expected", json.at + 1, json.problem, names.expected());
            return;
        }
        if (!out.prompted) out.prompted = document.prompted, out.first_line = out.lines;
        if (*out.prompted != document.prompted) {
            out.problem = mixed_documents(document.prompted);
            return;
        }
        out.chat = out.chat || document.chat, out.empty += document.empty();
        bool first = true;
        for (const TextPart& part : document.empty() ? std::vector<TextPart>{} : document.parts)
            take(Part{part.text, first, false, part.counts}, at), first = false;
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
