// Loss masks for tests, written byte by byte as llmc/data/mask_file.h describes them.
#pragma once
#include <functional>
#include "dev/test/run_program.h"

inline std::string int32_bytes(int64_t n) {
    std::string bytes;
    for (int i = 0; i < 4; i++) bytes += (char)(n >> (8 * i));
    return bytes;
}
inline std::string checksum_bytes(const std::string& data) {
    Checksum sum;
    sum.add(data.data(), data.size());
    return int32_bytes((int64_t)(sum.value() & 0xFFFFFFFFu)) + int32_bytes((int64_t)(sum.value() >> 32));
}

// The mask of a shard in which token i counts if counts(i).
inline std::string mask_of(const std::string& shard_path, const std::function<bool(int64_t)>& counts) {
    const std::string shard = read_whole(shard_path);
    const int64_t tokens = ((int64_t)shard.size() - 1024) / 2;
    std::string bits((tokens + 7) / 8, '\0');
    int64_t counted = 0;
    for (int64_t i = 0; i < tokens; i++)
        if (counts(i)) bits[i / 8] = (char)(bits[i / 8] | 1 << (i % 8)), counted++;
    std::string header = int32_bytes(20261122) + int32_bytes(1) + int32_bytes(tokens) + int32_bytes(counted);
    header += checksum_bytes(shard) + checksum_bytes(bits);
    header.resize(1024);
    return header + bits;
}
// Writes the mask beside its shard.
inline void write_mask(const std::string& shard_path, const std::function<bool(int64_t)>& counts) {
    write_whole(shard_path.substr(0, shard_path.size() - 4) + ".mask", mask_of(shard_path, counts));
}
