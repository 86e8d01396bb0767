// Documents within a sequence, for --document-mask 1: attention does not cross <|endoftext|>.
//
// A sequence is a window of T tokens of a stream in which <|endoftext|>, here E, stands before each
// document. That token belongs to the document that it begins: it and all tokens after it, up to
// the next one, see each other causally and nothing else.
//
//     position   0    1    2    3    4    5    6    7    8    9
//     token      was  lost E    To   be   E    E    Once upon a
//     start      0    0    2    2    2    5    6    6    6    6      the query at t sees the keys start(t) to t
//
// The first position of a sequence begins a document whatever its token is: the rest of a document
// whose beginning is in another window. Positions go on: wpe is indexed by the position in the
// sequence.
//
// Generation needs no mask: no prompt contains <|endoftext|>, and a sample ends there.
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/base/integer_math.h"

// Writes starts (B,T): for each position of tokens (B,T), the first position of its document.
inline void find_documents(int* starts, const int* tokens, int64_t B, int64_t T, int end_of_text) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0, start = 0; t < T; t++) {
            if (tokens[b * T + t] == end_of_text) start = t;
            starts[b * T + t] = (int)start;
        }
}

// Calls f(first, length) for each document of one sequence. starts (T) is the sequence's row of
// what find_documents() wrote; null: the sequence is one document.
template <class F>
inline void for_each_document(const int* starts, int64_t T, F f) {
    for (int64_t first = 0, end; first < T; first = end) {
        end = starts ? first + 1 : T;
        while (end < T && starts[end] == first) end++;
        f(first, end - first);
    }
}

// A part of a document that one block of GPU threads works on: tile number `index` of the document
// of `length` positions that begins at position `first` of all B*T.
struct DocumentTile {
    int first, length, index;
};
// Cuts all documents into tiles of `rows` positions; the last tile of a document may be shorter.
// Writes up to B*T tiles, those with the most tiles before them first, and returns how many.
inline int64_t cut_documents(DocumentTile* tiles, const int* starts, int64_t B, int64_t T, int64_t rows) {
    int64_t count = 0;
    for (int64_t b = 0; b < B; b++)
        for_each_document(starts + b * T, T, [&](int64_t first, int64_t length) {
            for (int64_t i = 0; i < ceil_div(length, rows); i++)
                tiles[count++] = {(int)(b * T + first), (int)length, (int)i};
        });
    std::stable_sort(tiles, tiles + count,
                     [](const DocumentTile& a, const DocumentTile& b) { return a.index > b.index; });
    return count;
}
