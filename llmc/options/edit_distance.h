// The edit distance of two words (Levenshtein 1966): the fewest letters to add, drop or change that
// turn one into the other. It finds the flag that was probably meant.
//
// row[j] is the distance of the first i letters of a and the first j letters of b; corner is the
// one of i - 1 and j - 1.
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
