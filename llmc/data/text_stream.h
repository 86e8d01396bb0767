// Generated text on its way to the reader. A token is a few bytes. It may end within a character,
// or within the text at which a sample stops (--stop); such bytes are held back until the tokens
// after them decide. What comes out is valid UTF-8: bytes that belong to no character become
// U+FFFD, one for each maximal subpart of a character (The Unicode Standard, section 3.9), as in
// Python's decode(errors="replace"). So does NUL, which separates samples, and, on a terminal,
// every control character but tab, newline and carriage return: a terminal would obey it.
#pragma once
#include <algorithm>
#include "llmc/base/utf8.h"

struct TextStream {
    std::string stop{};     // the stream ends before this text; empty: nowhere
    bool terminal = false;  // the reader is one
    std::string held{};     // what has not come out yet
    bool stopped = false;   // the text to stop at was found

    // Takes the bytes of a token, and returns the characters that can be shown.
    std::string add(std::string_view bytes) {
        held += bytes;
        const size_t found = stop.empty() ? held.npos : held.find(stop);
        if (found == held.npos) return take(held.size() - begun_stop(), false);
        stopped = true;
        held.resize(found);
        return finish();
    }
    // Returns the rest, when nothing more is to come.
    std::string finish() { return take(held.size(), true); }

    // How many bytes at the end of `held` may be the beginning of the text to stop at.
    size_t begun_stop() const {
        size_t n = stop.empty() ? 0 : std::min(held.size(), stop.size() - 1);
        while (n > 0 && held.compare(held.size() - n, n, stop, 0, n) != 0) n--;
        return n;
    }
    // Removes the characters of the first n bytes of `held` and returns them. A character that is
    // cut short at their end stays, unless they are the last.
    std::string take(size_t n, bool last) {
        const std::string_view bytes = std::string_view(held).substr(0, n);
        std::string text;
        size_t at = 0;
        while (at < n) {
            size_t length;
            const int32_t character = code_point_at(bytes, at, length);
            const size_t begun = character < 0 ? begun_character(bytes, at) : 0;
            if (begun > 0 && at + begun == n && !last) break;
            if (character < 0 || is_hidden(character)) append_utf8(text, 0xFFFD);
            else text += bytes.substr(at, length);
            at += std::max(begun, length);
        }
        held.erase(0, at);
        return text;
    }
    bool is_hidden(int32_t character) const {
        if (character == '\t' || character == '\n' || character == '\r') return false;
        const bool is_control = character < 0x20 || (character >= 0x7F && character < 0xA0);
        return terminal ? is_control : character == 0;
    }
};

// A whole text as it can be shown.
inline std::string shown_text(const std::string& text, bool terminal) {
    TextStream stream{"", terminal};
    const std::string begin = stream.add(text);
    return begin + stream.finish();
}
