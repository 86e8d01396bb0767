// UTF-8 (RFC 3629): a code point takes one to four bytes. The first byte says how many; the others
// begin with the bits 10.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

// The code point at text[at], and its length in bytes. -1 and length 1 for what is not UTF-8:
// overlong forms, surrogates, code points above U+10FFFF, and characters that are cut short.
inline int32_t code_point_at(std::string_view text, size_t at, size_t& length) {
    const unsigned char c = text[at];
    length = 1;
    if (c < 0x80) return c;
    const size_t need = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (c < 0xC2 || c > 0xF4 || at + need > text.size()) return -1;
    int32_t cp = c & (0x7F >> need);
    for (size_t i = 1; i < need; i++) {
        const unsigned char next = text[at + i];
        if ((next & 0xC0) != 0x80) return -1;
        cp = cp << 6 | (next & 0x3F);
    }
    if (need == 3 && (cp < 0x800 || (cp >= 0xD800 && cp < 0xE000))) return -1;
    if (need == 4 && (cp < 0x10000 || cp > 0x10FFFF)) return -1;
    length = need;
    return cp;
}

// How many bytes from text[at] on can be the beginning of a character, a whole one included; 0 if
// text[at] begins none. After four of the first bytes not every second one is possible (overlong
// forms, surrogates, code points above U+10FFFF).
inline size_t begun_character(std::string_view text, size_t at) {
    const unsigned char first = text[at];
    if (first < 0xC2 || first > 0xF4) return first < 0x80 ? 1 : 0;
    const size_t need = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    size_t n = 1;
    for (; n < need && at + n < text.size(); n++, low = 0x80, high = 0xBF) {
        const unsigned char next = text[at + n];
        if (next < low || next > high) break;
    }
    return n;
}

inline bool is_utf8(std::string_view text) {
    for (size_t at = 0, length; at < text.size(); at += length)
        if (code_point_at(text, at, length) < 0) return false;
    return true;
}

// Appends a code point, which must not be a surrogate.
inline void append_utf8(std::string& out, uint32_t cp) {
    if (cp < 0x80) {
        out += (char)cp;
    } else if (cp < 0x800) {
        out += (char)(0xC0 | cp >> 6);
        out += (char)(0x80 | (cp & 0x3F));
    } else if (cp < 0x10000) {
        out += (char)(0xE0 | cp >> 12);
        out += (char)(0x80 | (cp >> 6 & 0x3F));
        out += (char)(0x80 | (cp & 0x3F));
    } else {
        out += (char)(0xF0 | cp >> 18);
        out += (char)(0x80 | (cp >> 12 & 0x3F));
        out += (char)(0x80 | (cp >> 6 & 0x3F));
        out += (char)(0x80 | (cp & 0x3F));
    }
}
