// Numbers from text, which must be a number from its first character to its last.
#pragma once
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

// Read a number in decimal notation: an integer, or any finite number. False if the value is
// anything else, or out of range.
inline bool parse_whole(const std::string& value, int64_t& out) {
    const size_t digits = value[0] == '-' || value[0] == '+';
    if (digits >= value.size() || value.find_first_not_of("0123456789", digits) != value.npos) return false;
    errno = 0;
    out = strtoll(value.c_str(), nullptr, 10);
    return errno == 0;
}
inline bool parse_real(const std::string& value, double& out) {
    if (value.empty() || value.find_first_not_of("0123456789+-.eE") != value.npos) return false;
    char* end;
    out = strtod(value.c_str(), &end);
    return *end == '\0' && end != value.c_str() && std::isfinite(out);
}
