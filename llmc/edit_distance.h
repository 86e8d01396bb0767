// How far one word is from another, to name the flag that was probably meant: the letters that must
// be added, dropped or changed to make one of the other (Levenshtein 1966), from those of all their
// beginnings, a row of the table at a time.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

inline size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); j++) row[j] = j;
    for (size_t i = 1; i <= a.size(); i++)
        for (size_t j = 1, corner = row[0]++; j <= b.size(); j++) {
            const size_t changed = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            row[j] = std::min(changed, std::min(row[j - 1], row[j]) + 1);
        }
    return row.back();
}
