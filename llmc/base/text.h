// Names and sizes as text.
#pragma once
#include <string>
#include "llmc/base/format.h"

// Whether a text has this end, and something before it.
inline bool ends_with(const std::string& text, const std::string& end) {
    return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

constexpr double MIB = 1024.0 * 1024, GIB = 1024 * MIB;

// 1234567890 bytes as 1.1 GiB.
inline std::string memory_text(double bytes) {
    return bytes >= GIB ? format("%.1f GiB", bytes / GIB) : format("%.1f MiB", bytes / MIB);
}
