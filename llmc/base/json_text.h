// JSON (RFC 8259), as much as .jsonl files and run.json need: the field "text" of
// {"text": "Once upon a time", "id": 7} is Once upon a time.
//
// The whole text is checked, not only the field that is wanted. Functions return false where the
// text is not JSON; then json.problem says what is wrong, and json.at where.
#pragma once
#include <cmath>
#include <vector>
#include "llmc/base/check.h"
#include "llmc/base/utf8.h"

struct JsonReader {
    std::string_view line;
    size_t at = 0;
    const char* problem = nullptr;  // what is wrong at line[at]

    bool fail(const char* what) { return problem = what, false; }
    char peek() const { return at < line.size() ? line[at] : '\0'; }
    void skip_space() {
        while (at < line.size() && (line[at] == ' ' || line[at] == '\t' || line[at] == '\r' || line[at] == '\n')) at++;
    }
    bool take(char c) { return peek() == c && at < line.size() ? at++, true : false; }
};

// Four hexadecimal digits; -1 if they are not there.
inline int32_t json_hex(JsonReader& json) {
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        const char c = json.peek();
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit, json.at++;
    }
    return value;
}

// Reads what follows a backslash in a string. A character above U+FFFF is written as two \u, a high
// and a low surrogate (RFC 8259, section 7).
inline bool json_escape(JsonReader& json, std::string* out) {
    constexpr std::string_view names = "\"\\/bfnrt", bytes = "\"\\/\b\f\n\r\t";
    if (!json.take('u')) {
        const size_t which = json.at < json.line.size() ? names.find(json.peek()) : names.npos;
        if (which == names.npos) return json.fail("an escape that JSON does not have");
        json.at++;
        if (out) *out += bytes[which];
        return true;
    }
    int32_t cp = json_hex(json);
    if (cp < 0) return json.fail("\\u without four hexadecimal digits");
    if (cp >= 0xDC00 && cp < 0xE000) return json.fail("a surrogate without its first half");
    if (cp >= 0xD800 && cp < 0xDC00) {
        const int32_t low = json.take('\\') && json.take('u') ? json_hex(json) : -1;
        if (low < 0xDC00 || low >= 0xE000) return json.fail("a surrogate without its second half");
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    }
    if (out) append_utf8(*out, (uint32_t)cp);
    return true;
}

// Reads a string, and appends it to out, if that is given.
inline bool json_string(JsonReader& json, std::string* out) {
    if (!json.take('"')) return json.fail("no string where one is expected");
    for (;;) {
        const size_t begin = json.at;
        while (json.at < json.line.size() && json.line[json.at] != '"' && json.line[json.at] != '\\') {
            size_t length;
            if ((unsigned char)json.line[json.at] < 0x20) return json.fail("a control character within a string");
            if (code_point_at(json.line, json.at, length) < 0) return json.fail("a byte that is not UTF-8");
            json.at += length;
        }
        if (json.at >= json.line.size()) return json.fail("a string that does not end");
        if (out) out->append(json.line, begin, json.at - begin);
        if (json.line[json.at++] == '"') return true;
        if (!json_escape(json, out)) return false;
    }
}

inline bool json_digits(JsonReader& json) {
    const size_t begin = json.at;
    while (json.peek() >= '0' && json.peek() <= '9') json.at++;
    return json.at > begin || json.fail("a number without digits");
}

inline bool json_number(JsonReader& json) {
    json.take('-');
    if (!json.take('0') && !json_digits(json)) return false;
    if (json.take('.') && !json_digits(json)) return false;
    if (!json.take('e') && !json.take('E')) return true;
    if (!json.take('+')) json.take('-');
    return json_digits(json);
}

// Reads an object. For each member it calls member(name), which must read the value, and return
// false if it cannot.
template <class Member>
inline bool json_object(JsonReader& json, Member member) {
    json.skip_space();
    if (!json.take('{')) return json.fail("no JSON object");
    json.skip_space();
    for (bool more = !json.take('}'); more; json.skip_space()) {
        std::string name;
        if (!json_string(json, &name)) return false;
        json.skip_space();
        if (!json.take(':')) return json.fail("no colon after a name");
        json.skip_space();
        if (!member(name)) return false;
        json.skip_space();
        more = json.take(',');
        if (!more && !json.take('}')) return json.fail("neither a comma nor the end of the object");
    }
    return true;
}

// Reads a list. For each element it calls element(), which must read it, and return false if it
// cannot.
template <class Element>
inline bool json_list(JsonReader& json, Element element) {
    if (!json.take('[')) return json.fail("no list");
    json.skip_space();
    for (bool more = !json.take(']'); more; json.skip_space()) {
        if (!element()) return false;
        json.skip_space();
        more = json.take(',');
        if (!more && !json.take(']')) return json.fail("neither a comma nor the end of the list");
    }
    return true;
}

// Reads any value and ignores it.
inline bool json_value(JsonReader& json, int depth = 0) {
    constexpr int DEEPEST = 256;
    if (depth > DEEPEST) return json.fail("more than 256 levels within each other");
    const char first = json.peek();
    if (first == '"') return json_string(json, nullptr);
    if (first == '-' || (first >= '0' && first <= '9')) return json_number(json);
    for (const std::string_view word : {"true", "false", "null"})
        if (json.line.compare(json.at, word.size(), word) == 0) return json.at += word.size(), true;
    if (first == '{') return json_object(json, [&](const std::string&) { return json_value(json, depth + 1); });
    if (first == '[') return json_list(json, [&] { return json_value(json, depth + 1); });
    return json.fail("no value where one is expected");
}

// A field to look for in an object, and what was found: its text, if it is a string. Of two fields
// of this name, the last counts.
struct JsonField {
    std::string_view name;
    std::string text;
    bool found = false;
    size_t other = 0;  // where a value of another kind is in the line, 0 if there is none
};
// Reads the object in json.line, and these fields of it. False if the line is no object.
inline bool json_fields(JsonReader& json, std::vector<JsonField>& fields) {
    for (JsonField& field : fields) field.found = false, field.other = 0;
    const bool good = json_object(json, [&](const std::string& name) {
        for (JsonField& field : fields) {
            if (name != field.name) continue;
            field.found = json.peek() == '"', field.other = field.found ? 0 : json.at, field.text.clear();
            return field.found ? json_string(json, &field.text) : json_value(json);
        }
        return json_value(json);
    });
    if (!good) return false;
    json.skip_space();
    return json.at == json.line.size() || json.fail("something after the object");
}

// A text as a JSON string. A byte that is not UTF-8 becomes U+FFFD.
inline std::string json_text(const std::string& text) {
    std::string quoted = "\"";
    for (size_t at = 0, length; at < text.size(); at += length) {
        const int32_t cp = code_point_at(text, at, length);
        if (cp == '"' || cp == '\\') quoted += '\\';
        if (cp >= 0 && cp < 0x20) quoted += format("\\u%04x", cp);
        else append_utf8(quoted, cp < 0 ? 0xFFFD : (uint32_t)cp);
    }
    return quoted + "\"";
}

// A number, with as many digits as make up an fp32. JSON has no infinity and no NaN: they are null.
inline std::string json_number_text(double value) { return std::isfinite(value) ? format("%.9g", value) : "null"; }
// The value that such a text has: what is shown of a number that is also recorded. Rounding the
// number itself may give another last digit.
inline double recorded_number(double value) {
    return std::isfinite(value) ? strtod(json_number_text(value).c_str(), nullptr) : value;
}
