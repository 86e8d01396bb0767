// Flags that must be the same in all processes of a run. Each sends a checksum of every flag, which
// is enough to say which one differs.
#pragma once
#include <cstring>
#include <string>
#include <vector>
#include "llmc/base/checksum.h"

constexpr size_t MAX_FLAGS = 128;
struct FlagSums {
    uint32_t sum[MAX_FLAGS];
};

// The checksums of flags, each a text such as "--batch-size 4".
inline FlagSums sums_of(const std::vector<std::string>& flags) {
    FlagSums sums{};
    for (size_t i = 0; i < flags.size(); i++) {
        Checksum sum;
        sum.add(flags[i].data(), flags[i].size());
        sums.sum[i % MAX_FLAGS] ^= (uint32_t)(sum.value() ^ sum.value() >> 32);
    }
    return sums;
}
inline bool same_flags(const FlagSums& a, const FlagSums& b) { return memcmp(&a, &b, sizeof(a)) == 0; }

// The first flag of ours that is not theirs, as "--batch-size is not that of rank 0: it is 4 here".
inline std::string other_flag_text(const std::vector<std::string>& flags, const FlagSums& theirs, const char* whose) {
    const FlagSums ours = sums_of(flags);
    size_t i = 0;
    while (i + 1 < flags.size() && ours.sum[i % MAX_FLAGS] == theirs.sum[i % MAX_FLAGS]) i++;
    const std::string flag = i < flags.size() ? flags[i] : "a flag ";
    const size_t space = flag.find(' ');
    const std::string value = flag.size() > space + 1 ? flag.substr(space + 1) : "not set";
    return flag.substr(0, space) + " is not that of " + whose + ": it is " + value + " here";
}
