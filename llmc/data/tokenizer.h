// GPT-2's tokenizer: byte-level byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909; Radford
// et al. 2019, section 2.2).
//
// Text becomes tokens in two steps.
//
// 1. The text is cut into pieces by this pattern; no token crosses the end of a piece:
//
//        's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// that is: contractions; then words, numbers and punctuation, each with at most one space before
// it; then white space. next_piece() below is this pattern, written out by hand.
//
// 2. Within a piece, every byte starts as a token. Of all pairs of neighbours whose concatenation
// is a token, the one whose concatenation has the lowest id is merged (the leftmost, if there are
// several), until no such pair is left. Ids were given in the order in which training found the
// merges, so the vocabulary is enough: the file needs no list of merges.
//
// Each byte that is not part of valid UTF-8 is a piece of its own, so
// decode(encode(bytes)) == bytes for any bytes.
#pragma once
#include <array>
#include <queue>
#include <string>
#include <string_view>
#include <vector>
#include "llmc/base/file.h"
#include "llmc/data/unicode_tables.h"
#include "llmc/base/utf8.h"

constexpr int MOST_TOKENS = 1 << 20;  // of a tokenizer file

enum CharClass : uint8_t { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE, CHAR_INVALID };

struct Tokenizer {
    std::vector<std::string> bytes_of;  // id -> bytes
    int end_of_text = -1;
    std::vector<uint8_t> class_of;    // code point -> CharClass
    std::array<int, 256> byte_token;  // byte -> id

    // Two open-addressing hash tables: bytes of a token -> id, and pairs of tokens -> id of their
    // concatenation. The second has every split of every token into two tokens, so merging never
    // looks at bytes.
    struct PairSlot {
        uint64_t pair = ~0ull;
        int id = -1;
    };
    std::vector<int> piece_slots;
    std::vector<PairSlot> pair_slots;

    int vocab_size() const { return (int)bytes_of.size(); }
};

// A hash of any bytes, for piece_slots.
inline uint64_t hash_bytes(std::string_view s) {
    uint64_t h = s.size() * 0x9E3779B97F4A7C15u;
    const char* p = s.data();
    size_t n = s.size();
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        h = Checksum::mix(h, word);
    }
    uint64_t word = 0;
    memcpy(&word, p, n);
    h = Checksum::mix(h, word);
    return h ^ (h >> 29);
}

// Id of the token with exactly these bytes, or -1.
inline int find_token(const Tokenizer& tok, std::string_view piece) {
    for (size_t slot = hash_bytes(piece) & (tok.piece_slots.size() - 1);;
         slot = (slot + 1) & (tok.piece_slots.size() - 1)) {
        int id = tok.piece_slots[slot];
        if (id < 0 || tok.bytes_of[id] == piece) return id;
    }
}

// The slot that holds this pair, or the free one in which it belongs. pair: the left token in the
// upper 32 bits, the right one in the lower 32.
inline size_t pair_slot(const Tokenizer& tok, uint64_t pair) {
    size_t mask = tok.pair_slots.size() - 1, slot = (pair * 0x9E3779B97F4A7C15u >> 32) & mask;
    while (tok.pair_slots[slot].id >= 0 && tok.pair_slots[slot].pair != pair) slot = (slot + 1) & mask;
    return slot;
}

// Id of the token that is a followed by b, or -1.
inline int find_merge(const Tokenizer& tok, int a, int b) {
    return tok.pair_slots[pair_slot(tok, (uint64_t)a << 32 | b)].id;
}

// Fills class_of, byte_token and both hash tables from bytes_of.
inline void index_tokens(Tokenizer& tok) {
    tok.class_of.assign(0x110000, CHAR_OTHER);
    auto mark = [&](const CodePointRange* begin, const CodePointRange* end, CharClass c) {
        for (auto r = begin; r != end; r++) std::fill(&tok.class_of[r->first], &tok.class_of[r->last] + 1, c);
    };
    mark(std::begin(UNICODE_LETTERS), std::end(UNICODE_LETTERS), CHAR_LETTER);
    mark(std::begin(UNICODE_NUMBERS), std::end(UNICODE_NUMBERS), CHAR_NUMBER);
    mark(std::begin(UNICODE_SPACES), std::end(UNICODE_SPACES), CHAR_SPACE);

    size_t pieces = 1 << 18;  // at most half full, so that every search finds an empty one soon; so with pairs
    while (pieces < 2 * tok.bytes_of.size()) pieces *= 2;
    tok.piece_slots.assign(pieces, -1);
    for (int id = 0; id < tok.vocab_size(); id++) {
        if (id == tok.end_of_text) continue;  // in a text, <|endoftext|> is not special
        size_t slot = hash_bytes(tok.bytes_of[id]) & (tok.piece_slots.size() - 1);
        while (tok.piece_slots[slot] >= 0 && tok.bytes_of[tok.piece_slots[slot]] != tok.bytes_of[id])
            slot = (slot + 1) & (tok.piece_slots.size() - 1);
        if (tok.piece_slots[slot] < 0) tok.piece_slots[slot] = id;  // of two with the same bytes the first is used
    }
    tok.byte_token.fill(-1);
    std::vector<Tokenizer::PairSlot> pairs;
    for (int id = 0; id < tok.vocab_size(); id++) {
        const std::string& s = tok.bytes_of[id];
        if (id == tok.end_of_text || s.empty() || find_token(tok, s) != id) continue;
        if (s.size() == 1) tok.byte_token[(unsigned char)s[0]] = id;
        for (size_t cut = 1; cut < s.size(); cut++) {
            int a = find_token(tok, std::string_view(s).substr(0, cut)),
                b = find_token(tok, std::string_view(s).substr(cut));
            if (a >= 0 && b >= 0) pairs.push_back({(uint64_t)a << 32 | b, id});
        }
    }
    size_t slots = 1 << 20;
    while (slots < 2 * pairs.size()) slots *= 2;
    tok.pair_slots.assign(slots, {});
    for (const Tokenizer::PairSlot& pair : pairs) tok.pair_slots[pair_slot(tok, pair.pair)] = pair;
}

inline Header read_tokenizer_header(FileReader& file) {
    Header header;
    header.read(file, 20240328, "tokenizer");
    const int vocab = header.value[2], eot = header.value[3];
    if (header.value[1] != 2)
        runtime_failure("%s has version %d of the tokenizer layout; 2 is expected (it names the end-of-text token)",
                        file.path, header.value[1]);
    if (vocab < 257 || vocab > MOST_TOKENS || eot < 0 || eot >= vocab)
        runtime_failure("%s is damaged: %d tokens, end of text %d", file.path, vocab, eot);
    return header;
}

inline int64_t tokenizer_vocab_size(const std::string& path) {
    FileReader file(path);
    return read_tokenizer_header(file).value[2];
}
inline int tokenizer_end_of_text(const std::string& path) {
    FileReader file(path);
    return read_tokenizer_header(file).value[3];
}

// Reads a tokenizer file: a header of 256 uint32 (20240328, version 2, vocabulary size, id of
// <|endoftext|>), then for each id a length byte and that many bytes. Exit 1 if it is damaged. The
// tables that encoding needs (20 MB) are left out unless for_encoding.
inline void tokenizer_load(Tokenizer& tok, const std::string& path, bool for_encoding = true) {
    if (access(path.c_str(), F_OK) != 0)
        runtime_failure(
            "--tokenizer %s is not there; a tokenizer file is expected (dev/data/tokenizer_file.py makes GPT-2's)",
            path);
    FileReader file(path);
    const Header header = read_tokenizer_header(file);
    int vocab = header.value[2], eot = header.value[3];
    if (file.size_bytes > (int64_t)sizeof(header.value) + vocab * 256ll)
        runtime_failure("%s is too long: it has %d bytes, and %d tokens take at most 256 each", path, file.size_bytes,
                        vocab);
    tok.end_of_text = eot;
    std::vector<char> body(file.size_bytes - sizeof(header.value));
    file.read(body.data(), body.size(), "the tokens");
    size_t at = 0;
    for (int id = 0; id < vocab; id++) {
        size_t length = at < body.size() ? (unsigned char)body[at] : 0;
        if (at >= body.size() || at + 1 + length > body.size())
            runtime_failure("%s is cut short: it ends within token %d of %d", path, id, vocab);
        tok.bytes_of.emplace_back(body.data() + at + 1, length);
        at += 1 + length;
    }
    if (at != body.size()) runtime_failure("%s is too long: %d bytes follow the last token", path, body.size() - at);
    if (!for_encoding) return;
    index_tokens(tok);
    for (int byte = 0; byte < 256; byte++)
        if (tok.byte_token[byte] < 0) runtime_failure("%s is damaged: no token for the byte %d", path, byte);
}

// Writes a tokenizer file into a file that is open.
inline void tokenizer_write(const Tokenizer& tok, FileWriter& file) {
    Header header;
    header.value[0] = 20240328, header.value[1] = 2;
    header.value[2] = tok.vocab_size(), header.value[3] = tok.end_of_text;
    file.write(header.value, sizeof(header.value));
    for (const std::string& bytes : tok.bytes_of) {
        const unsigned char length = (unsigned char)bytes.size();
        file.write(&length, 1);
        file.write(bytes.data(), bytes.size());
    }
}

// The class of the character at text[at], and its length in bytes. A byte that is not UTF-8 is
// CHAR_INVALID and has length 1.
inline CharClass next_char(const Tokenizer& tok, std::string_view text, size_t at, size_t& length) {
    const int32_t cp = code_point_at(text, at, length);
    return cp < 0 ? CHAR_INVALID : (CharClass)tok.class_of[cp];
}

// The end of the piece that starts at text[start].
inline size_t next_piece(const Tokenizer& tok, std::string_view text, size_t start) {
    if (text[start] == '\'') {
        std::string_view rest = text.substr(start + 1, 2);
        if (rest == "re" || rest == "ve" || rest == "ll") return start + 3;
        if (!rest.empty() && (rest[0] == 's' || rest[0] == 't' || rest[0] == 'm' || rest[0] == 'd')) return start + 2;
    }
    size_t length, at = start;
    CharClass first = next_char(tok, text, start, length);
    if (text[start] == ' ' && start + 1 < text.size()) {  // " ?": one space may lead a word, a number or punctuation
        size_t after;
        CharClass second = next_char(tok, text, start + 1, after);
        if (second < CHAR_SPACE) first = second, at = start + 1, length = after;
    }
    at += length;
    if (first == CHAR_INVALID) return at;
    size_t last_char = start;  // where the last character of the run begins
    for (size_t len; at < text.size() && next_char(tok, text, at, len) == first; at += len) last_char = at;
    // \s+(?!\S): before other text, white space of several characters leaves its last one to the
    // next piece
    if (first == CHAR_SPACE && at < text.size() && last_char > start) return last_char;
    return at;
}

// The last position at which a text can be cut so that its two parts, encoded one after the other,
// give the tokens of the whole, whatever text follows; 0 if there is none. Such a position is the
// end of a run of letters, numbers or punctuation: a piece ends there, and the pattern looks
// neither back nor ahead across it. Punctuation before a letter or number is not cut: it could be
// 's or 'll.
inline size_t last_cut(const Tokenizer& tok, std::string_view text) {
    for (size_t at = text.size(); at-- > 1;) {
        size_t before = at - 1, length, any;
        while (before > 0 && at - before < 4 && (text[before] & 0xC0) == 0x80) before--;
        const CharClass left = next_char(tok, text, before, length), right = next_char(tok, text, at, any);
        if (before + length != at || left >= CHAR_SPACE || right == CHAR_INVALID || left == right) continue;
        if (left != CHAR_OTHER || right == CHAR_SPACE) return at;
    }
    return 0;
}

// Appends the tokens of a piece of at most 64 bytes to out. Finds each merge by a plain search for
// the lowest id, which is fastest for short pieces.
inline void merge_short(const Tokenizer& tok, std::string_view piece, std::vector<int>& out) {
    int part[64], merged[64], n = (int)piece.size();
    for (int i = 0; i < n; i++) part[i] = tok.byte_token[(unsigned char)piece[i]];
    for (int i = 0; i + 1 < n; i++) merged[i] = find_merge(tok, part[i], part[i + 1]);
    while (n > 1) {
        int best = -1;
        for (int i = 0; i + 1 < n; i++)
            if (merged[i] >= 0 && (best < 0 || merged[i] < merged[best])) best = i;
        if (best < 0) break;
        part[best] = merged[best];
        n--;
        for (int i = best + 1; i < n; i++) part[i] = part[i + 1], merged[i - 1] = merged[i];
        if (best > 0) merged[best - 1] = find_merge(tok, part[best - 1], part[best]);
        if (best + 1 < n) merged[best] = find_merge(tok, part[best], part[best + 1]);
    }
    out.insert(out.end(), part, part + n);
}

// Appends the tokens of a long piece of n bytes to out, in O(n log n). The parts form a linked
// list. Candidate merges wait in a heap, ordered by id, then position. A candidate whose parts have
// changed in the meantime is dropped when it is popped.
inline void merge_long(const Tokenizer& tok, std::string_view piece, std::vector<int>& out) {
    struct Part {
        int id;
        int64_t prev, next;
    };
    struct Candidate {
        int merged, left_id, right_id;
        int64_t left;
        bool operator<(const Candidate& o) const { return merged != o.merged ? merged > o.merged : left > o.left; }
    };
    int64_t n = piece.size();
    std::vector<Part> part(n);
    std::priority_queue<Candidate> heap;
    auto propose = [&](int64_t left) {
        if (left < 0 || part[left].next >= n) return;
        int a = part[left].id, b = part[part[left].next].id, merged = find_merge(tok, a, b);
        if (merged >= 0) heap.push({merged, a, b, left});
    };
    for (int64_t i = 0; i < n; i++) part[i] = {tok.byte_token[(unsigned char)piece[i]], i - 1, i + 1};
    for (int64_t i = 0; i + 1 < n; i++) propose(i);
    for (; !heap.empty();) {
        Candidate c = heap.top();
        heap.pop();
        int64_t right = part[c.left].next;
        if (part[c.left].id != c.left_id || right >= n || part[right].id != c.right_id) continue;
        part[c.left] = {c.merged, part[c.left].prev, part[right].next};
        if (part[right].next < n) part[part[right].next].prev = c.left;
        part[right].id = -1;
        propose(part[c.left].prev);
        propose(c.left);
    }
    for (int64_t i = 0; i < n; i = part[i].next) out.push_back(part[i].id);
}

// Appends the tokens of text to out. No part of the text is special, <|endoftext|> included.
inline void encode(const Tokenizer& tok, std::string_view text, std::vector<int>& out) {
    for (size_t start = 0, end; start < text.size(); start = end) {
        end = next_piece(tok, text, start);
        std::string_view piece = text.substr(start, end - start);
        int whole = find_token(tok, piece);
        if (whole >= 0) out.push_back(whole);
        else if (piece.size() <= 64) merge_short(tok, piece, out);
        else merge_long(tok, piece, out);
    }
}

// The bytes of a token; none for an id that is not in the vocabulary.
inline std::string_view decode(const Tokenizer& tok, int id) {
    return id >= 0 && id < tok.vocab_size() ? std::string_view(tok.bytes_of[id]) : std::string_view();
}
