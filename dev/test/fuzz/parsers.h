// All parsers, in one table: what a valid input looks like, how it is changed, and who reads it.
#pragma once
#include "dev/test/fuzz/parse_files.h"
#include "dev/test/fuzz/parse_meeting.h"
#include "dev/test/fuzz/parse_text.h"

inline const Layout BINARY, STATE{false, sizeof(StateHeader)}, HELLO{false, sizeof(Hello)};
inline const std::vector<std::string> JSON = {
    "\"flags\"",    "\"version\": \"x\"", "{}",      "null",   "true",         "[]",
    "\"text\": \"", "\"\\ud83d\\ude00\"", "\\u00e9", "-1.5e3", "\"prompt\": ", "\"completion\": \"x\"",
    "\"step\": ",   "\"val_loss\": ",     "}\n{"};
inline const Layout FLAGS{true, 0, '\0', flag_words()},
    LINES{true, 0, '\n', {"DONE_", "model_", "state_", ".bin", ".tmp"}};
inline const Layout TEXT{true, 0, '\n', {"the", " ", "'re", "\n\n", "\xc2\xa0", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}};
inline const Layout OBJECTS{true, 0, '\n', JSON}, RUN_JSON{true, 0, '\n', [] {
                                                               std::vector<std::string> words = JSON;
                                                               for (const OptionRow& row : option_table())
                                                                   words.push_back(json_text(row.long_name) + ": ");
                                                               return words;
                                                           }()};

// The tables of a vocabulary take memory of their own.
inline const Parser PARSERS[] = {
    {"model", BINARY, model_seeds, run_model},
    {"state", STATE, state_seeds, run_state, repair_state},
    {"tokens", BINARY, shard_seeds, run_shard},
    {"mask", BINARY, mask_seeds, run_mask, repair_mask},
    {"tokenizer", BINARY, vocabulary_seeds, run_vocabulary, nullptr, 64 << 20},
    {"hellaswag", BINARY, hellaswag_seeds, run_hellaswag},
    {"flags", FLAGS, flag_seeds, run_flags},
    {"run_json", RUN_JSON, run_json_seeds, run_run_json},
    {"records", OBJECTS, record_seeds, run_records},
    {"names", LINES, name_seeds, run_names},
    {"prompt", TEXT, prompt_seeds, run_prompt, nullptr, 64 << 20, 1024},
    {"documents", OBJECTS, document_seeds, run_documents, nullptr, 64 << 20},
    {"hello", HELLO, hello_seeds, run_hello, repair_hello},
    {"verdict", HELLO, verdict_seeds, run_verdict, repair_verdict},
    {"meeting", TEXT, meeting_seeds, run_meeting},
    {"address", TEXT, address_seeds, run_address},
    {"adapter", BINARY, adapter_seeds, run_adapter},
};
constexpr size_t NUM_PARSERS = std::size(PARSERS);

inline size_t parser_of(const std::string& name) {
    std::string names;
    for (size_t p = 0; p < NUM_PARSERS; p++) {
        if (name == PARSERS[p].name) return p;
        names += std::string(p ? ", " : "") + PARSERS[p].name;
    }
    usage_error("%s is no parser; accepted: %s", name, names);
}

// An input from one that is in use, by the draw.
inline void change(std::string& input, const Parser& parser, Draw& draw) {
    mutate(input, parser.layout, draw);
    if (parser.repair && !draw.chance(4)) parser.repair(input);
}
