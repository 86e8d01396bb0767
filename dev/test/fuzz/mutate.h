// Changes of a valid input, made with knowledge of its layout: of numbers in a header, of the
// length, of values, or, in text, of numbers, lines and words. The same draw gives the same
// changes.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/random.h"

// Draws for one case.
struct Draw {
    MersenneTwister generator;

    Draw(uint64_t seed, uint64_t purpose, uint64_t number)
        : generator(generator_for(seed, RANDOM_SAMPLE, purpose, number)) {}
    size_t below(size_t n) { return n ? generator.bits64() % n : 0; }
    bool chance(size_t one_in) { return below(one_in) == 0; }
    template <class List>
    auto pick(const List& list) {
        return list[below(list.size())];
    }
};

// What a mutation knows about an input.
struct Layout {
    bool text = false;
    int header_bytes = 1024;           // binary: where numbers of 32 bits are
    char separator = '\n';             // text: ends a line
    std::vector<std::string> words{};  // text: what may be inserted
};

inline void change_header(std::string& data, const Layout& layout, Draw& draw) {
    static const std::vector<int64_t> numbers = {0,     1,       -1,      2,         7,         255,         256,
                                                 65535, 1 << 16, 1 << 20, 1ll << 30, INT32_MAX, -(1ll << 31)};
    const size_t likely = draw.chance(2) ? 40 : layout.header_bytes;  // few fields of a header are used
    const size_t at = 4 * draw.below(std::min(data.size(), likely) / 4);
    if (data.size() < at + 4) return;
    uint32_t value;
    memcpy(&value, &data[at], 4);
    const std::vector<uint32_t> near = {value + 1, value - 1, 2 * value, 0u - value, value ^ (1u << draw.below(32))};
    value = draw.chance(2) ? (uint32_t)draw.pick(numbers) : draw.pick(near);
    memcpy(&data[at], &value, 4);
}

// A byte, a value of 16 bits or a float: NaN, infinity, the largest, or a flipped bit.
inline void change_value(std::string& data, const Layout& layout, Draw& draw) {
    const size_t begin = std::min<size_t>(layout.header_bytes, data.size() - 1);
    const size_t at = begin + draw.below(data.size() - begin);
    const std::string flipped(1, (char)(data[at] ^ 1 << draw.below(8)));
    const std::vector<std::string> values = {std::string("\0\0\xc0\x7f", 4), std::string("\0\0\x80\xff", 4), "\xff\xff",
                                             std::string(1, '\0'), flipped};
    const std::string value = draw.pick(values);
    data.replace(at, std::min(value.size(), data.size() - at), value.substr(0, data.size() - at));
}

inline void cut_end(std::string& data, const Layout& layout, Draw& draw) {
    const size_t header = layout.header_bytes;
    const std::vector<size_t> ends = {
        0, 1, header - 1, header, data.size() / 2, data.size() - 1, draw.below(data.size())};
    data.resize(std::min(data.size(), draw.pick(ends)));
}
inline void extend(std::string& data, const Layout&, Draw& draw) {
    const std::vector<std::string> ends = {std::string(1, '\0'), "\xff\xff\xff\xff\xff\xff\xff",
                                           data.substr(data.size() - std::min<size_t>(64, data.size())),
                                           std::string(5000, '\0')};
    data += draw.pick(ends);
}
inline size_t piece_bytes(Draw& draw) { return std::vector<size_t>{1, 2, 4, 64, 1024}[draw.below(5)]; }
inline void remove_piece(std::string& data, const Layout&, Draw& draw) {
    data.erase(draw.below(data.size()), piece_bytes(draw));
}
inline void repeat_piece(std::string& data, const Layout&, Draw& draw) {
    const size_t at = draw.below(data.size());
    data.insert(at, data.substr(at, piece_bytes(draw)));
}

// Another number where a text has one.
inline void change_number(std::string& data, const Layout&, Draw& draw) {
    static const std::vector<std::string> numbers = {
        "-1", "0", "1", "7", "0.5", "1e999", "nan", "2147483648", "9223372036854775807", "99999999999999999999", ""};
    std::vector<std::pair<size_t, size_t>> found;
    for (size_t at = 0, end; at < data.size(); at = end + 1) {
        for (end = at; end < data.size() && strchr("0123456789.", data[end]) && data[end]; end++) {}
        if (end > at) found.push_back({at, end - at});
    }
    if (found.empty()) return;
    const auto [at, length] = draw.pick(found);
    data.replace(at, length, draw.pick(numbers));
}
inline void insert_word(std::string& data, const Layout& layout, Draw& draw) {
    static const std::vector<std::string> bytes = {std::string(1, '\0'),
                                                   "\xff\xfe",
                                                   "\"",
                                                   "\\",
                                                   "{",
                                                   std::string(3000, '['),
                                                   "\n",
                                                   "\r\n",
                                                   ",",
                                                   " ",
                                                   "=",
                                                   "%s%n",
                                                   "\xed\xa0\x80",
                                                   "\xe2\x82\xac",
                                                   "\xf0\x9f\x98",
                                                   "\x1b[31m",
                                                   std::string(2000, 'A')};
    const bool known = !layout.words.empty() && !draw.chance(3);
    data.insert(draw.below(data.size() + 1), known ? draw.pick(layout.words) : draw.pick(bytes));
}
inline void change_lines(std::string& data, const Layout& layout, Draw& draw) {
    std::vector<std::string> lines(1);
    for (char c : data)
        if (c == layout.separator) lines.emplace_back();
        else lines.back() += c;
    std::string& line = lines[draw.below(lines.size())];
    switch (draw.below(4)) {
        case 0: lines.erase(lines.begin() + (&line - &lines[0])); break;
        case 1: lines.insert(lines.begin() + draw.below(lines.size()), std::string(line)); break;
        case 2: std::swap(line, lines[draw.below(lines.size())]); break;
        default:
            if (!layout.words.empty()) line = draw.pick(layout.words);
    }
    data.clear();
    for (size_t i = 0; i < lines.size(); i++) data += (i ? std::string(1, layout.separator) : "") + lines[i];
}

// Changes an input in one to three ways.
inline void mutate(std::string& data, const Layout& layout, Draw& draw) {
    typedef void Change(std::string&, const Layout&, Draw&);
    static const std::vector<Change*> binary = {change_header, change_header, change_header, change_value, change_value,
                                                cut_end,       extend,        remove_piece,  repeat_piece};
    static const std::vector<Change*> text = {change_number, change_number, insert_word, insert_word,
                                              change_lines,  change_lines,  cut_end,     remove_piece};
    for (size_t left = 1 + draw.below(3); left > 0; left--)
        if (data.empty()) insert_word(data, layout, draw);
        else draw.pick(layout.text ? text : binary)(data, layout, draw);
}
