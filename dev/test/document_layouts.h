// Sequences cut into documents in ways that nobody tuned for, for the tests of attention with a
// document mask.
#pragma once
#include "dev/test/test.h"
#include "llmc/gpt2/documents.h"

struct DocumentLayout {
    const char* name;
    bool (*begins)(int64_t t);  // whether a document begins at position t
};
inline const DocumentLayout DOCUMENT_LAYOUTS[] = {
    {"of one position each", [](int64_t) { return true; }},
    {"of 64 positions", [](int64_t t) { return t % 64 == 0; }},
    {"that begin one before and one after a multiple of 32", [](int64_t t) { return t % 32 == 31 || t % 32 == 1; }},
    {"of 1, 1, 1 and 17 positions", [](int64_t t) { return t % 20 < 4; }},
    {"of 5, 69 and more", [](int64_t t) { return t == 5 || t == 74; }},
    {"of random lengths", [](int64_t t) { return (uint64_t)(t * 0x9E3779B97F4A7C15u) >> 60 == 3; }},
};

// The starts (B,T) of B sequences of a layout; those after the first are the same layout, some
// positions later. At the first position of a sequence no end-of-text token is needed.
inline std::vector<int> document_starts(const DocumentLayout& layout, int64_t B, int64_t T) {
    const int end_of_text = 7;
    std::vector<int> tokens(B * T), starts(B * T, -1);
    for (int64_t i = 0; i < B * T; i++) {
        const int64_t t = i % T, shift = i / T * 3;
        tokens[i] = t > 0 && layout.begins(t + shift) ? end_of_text : (int)i % 7;
    }
    find_documents(starts.data(), tokens.data(), B, T, end_of_text);
    return starts;
}
