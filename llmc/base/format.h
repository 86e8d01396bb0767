// printf into a std::string, for values of any type: each value knows its kind, so that %d takes
// every whole number, whatever its size, %g every real one, and %s a std::string, too. Flags, width
// and precision are those of printf, lengths (the ll of %lld) are read and mean nothing. A value
// that is not of its conversion's kind, or missing, or left over, is said in the text: "(internal:
// ...". dev/test/formats.py counts the conversions of all calls.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>

struct FormatValue {
    enum Kind { SIGNED, UNSIGNED, REAL, TEXT } kind;
    int64_t whole = 0;
    uint64_t bits = 0;  // of a whole number, as many as it has: for %x
    double real = 0;
    const char* text = nullptr;

    FormatValue(int n) : kind(SIGNED), whole(n), bits((unsigned)n) {}
    FormatValue(long n) : kind(SIGNED), whole(n), bits((unsigned long)n) {}
    FormatValue(long long n) : kind(SIGNED), whole(n), bits((unsigned long long)n) {}
    FormatValue(unsigned n) : kind(UNSIGNED), whole(n), bits(n) {}
    FormatValue(unsigned long n) : kind(UNSIGNED), whole((int64_t)n), bits(n) {}
    FormatValue(unsigned long long n) : kind(UNSIGNED), whole((int64_t)n), bits(n) {}
    FormatValue(double x) : kind(REAL), real(x) {}
    FormatValue(const char* s) : kind(TEXT), text(s ? s : "(null)") {}
    FormatValue(const std::string& s) : kind(TEXT), text(s.c_str()) {}

    bool is_whole() const { return kind == SIGNED || kind == UNSIGNED; }
};

template <class T>
inline std::string printed(const std::string& conversion, T value) {
    const int length = snprintf(nullptr, 0, conversion.c_str(), value);
    if (length < 0) return "(internal: " + conversion + " is too wide)";
    std::string text(length, '\0');
    snprintf(text.data(), text.size() + 1, conversion.c_str(), value);
    return text;
}

// One value by a conversion: "%-8" and 's'.
inline std::string format_value(const std::string& begin, char type, const FormatValue& value) {
    if (strchr("di", type) && value.kind == FormatValue::SIGNED) return printed(begin + "lld", (long long)value.whole);
    if (strchr("diu", type) && value.is_whole()) return printed(begin + "llu", (unsigned long long)value.bits);
    if (strchr("xXo", type) && value.is_whole()) return printed(begin + "ll" + type, (unsigned long long)value.bits);
    if (type == 'c' && value.is_whole()) return printed(begin + type, (int)value.whole);
    if (strchr("eEfFgG", type) && value.kind == FormatValue::REAL) return printed(begin + type, value.real);
    if (type == 's' && value.kind == FormatValue::TEXT) return printed(begin + type, value.text);
    const char* kinds[] = {"a whole number", "a whole number", "a real number", "a text"};
    return "(internal: " + begin + type + " is given " + kinds[value.kind] + ")";
}

inline std::string format_list(const char* fmt, std::initializer_list<FormatValue> values) {
    std::string text;
    const FormatValue* value = values.begin();
    for (; *fmt; fmt++) {
        if (*fmt != '%' || *++fmt == '%') {
            text += *fmt;
            continue;
        }
        std::string conversion = "%";
        for (; *fmt && strchr("-+ #0123456789.*hlqjzt", *fmt); fmt++)
            if (*fmt != '*') conversion += strchr("hlqjzt", *fmt) ? "" : std::string(1, *fmt);
            else if (value < values.end() && value->is_whole()) conversion += std::to_string((value++)->whole);
            else break;
        if (!*fmt) return text + "(internal: " + conversion + " has no end)";
        text += value < values.end() ? format_value(conversion, *fmt, *value++)
                                     : "(internal: " + conversion + *fmt + " has no value)";
    }
    return value < values.end() ? text + "(internal: more values than conversions)" : text;
}
template <class... T>
inline std::string format(const char* fmt, const T&... values) {
    return format_list(fmt, {FormatValue(values)...});
}
