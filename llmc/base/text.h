// Numbers as people read them: counts, durations, sizes; and how names end.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>
#include "llmc/base/format.h"

// A number as printf shows it, but NaN without a sign, where printf may show -nan.
inline std::string loss_text(const char* fmt, double value) {
    char text[64];
    snprintf(text, sizeof(text), fmt, std::isnan(value) ? std::fabs(NAN) : value);
    return text;
}

// Seconds as hours, minutes and seconds: 75 is 0:01:15.
inline std::string hours_text(double seconds) {
    const long long s = (long long)(seconds + 0.5);
    return format("%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
}
// Seconds likewise, without hours below one: 75 is 1:15, 3675 is 1:01:15.
inline std::string duration_text(double seconds) {
    const long long s = (long long)(seconds + 0.5);
    return s >= 3600 ? hours_text(seconds) : format("%d:%02d", s / 60, s % 60);
}
// A time in the unit that fits: 13.55 ms, 13.55 s, 13.55 min, 13.55 hours. fmt: of the
// milliseconds.
inline std::string time_text(double seconds, const char* fmt = "%.4g") {
    if (seconds < 10) return loss_text(fmt, 1e3 * seconds) + " ms";
    if (seconds < 600) return loss_text("%.4g", seconds) + " s";
    return seconds < 6 * 3600 ? format("%.4g min", seconds / 60) : format("%.4g hours", seconds / 3600);
}

// A whole number in groups of three digits: 1,424,000.
inline std::string grouped_text(int64_t n) {
    std::string text = std::to_string(n);
    for (int64_t at = (int64_t)text.size() - 3; at > 0; at -= 3) text.insert(at, ",");
    return text;
}

constexpr double MIB = 1024.0 * 1024, GIB = 1024 * MIB;
// Bytes of memory, in MiB or GiB: 1234567890 is 1.1 GiB.
inline std::string memory_text(double bytes) {
    return bytes >= GIB ? format("%.1f GiB", bytes / GIB) : format("%.1f MiB", bytes / MIB);
}

// Whether a text has this end, and something before it.
inline bool ends_with(const std::string& text, const std::string& end) {
    return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}
