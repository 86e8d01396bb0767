// Whether the training data is what it was when the run began: each shard has a checksum of all its
// bytes. Computing it takes as long as reading the disk, so checksums are kept in the out dir, in
// shards.txt. They hold as long as size and time of the last change of a shard stay the same. The
// file has one line per shard:
//
//     CHECKSUM SIZE_BYTES CHANGED_NS PATH
#pragma once
#include <map>
#include "llmc/comm.h"
#include "llmc/dataloader.h"
#include "llmc/logger.h"

constexpr int64_t MAX_SHARDS_TXT_BYTES = 64 << 20;  // of a million shards and more

inline std::string shards_path(const std::string& dir) { return dir + "/shards.txt"; }

// The line of a shard as it is now, without its checksum.
inline std::string shard_line(const Shard& shard) {
    return format(" %lld %lld %s", (long long)shard.stamp.size_bytes, (long long)shard.stamp.changed_ns,
                  shard.path.c_str());
}

// The checksums that shards.txt has for these shards; 0 for a shard that it does not have. A
// damaged line matches no shard.
inline std::vector<uint64_t> remembered_checksums(const std::string& dir, const std::vector<Shard*>& shards) {
    std::vector<uint64_t> checksums(shards.size());
    std::map<std::string, uint64_t> known;
    for (const std::string& line : read_lines(shards_path(dir), MAX_SHARDS_TXT_BYTES)) {
        const size_t space = line.find(' ');
        if (space == 16) known[line.substr(space)] = strtoull(line.c_str(), nullptr, 16);
    }
    for (size_t i = 0; i < shards.size(); i++) {
        const auto found = known.find(shard_line(*shards[i]));
        if (found != known.end()) checksums[i] = found->second;
    }
    return checksums;
}

// Writes shards.txt.
inline void remember_checksums(const std::string& dir, const std::vector<Shard*>& shards) {
    std::string text;
    for (const Shard* shard : shards)
        text += format("%016llx", (unsigned long long)shard->checksum) + shard_line(*shard) + "\n";
    FileWriter file(shards_path(dir));
    file.write(text.data(), text.size());
    file.commit();
}

// Gives each shard its checksum; called by all ranks. Shards that rank 0 does not find in
// shards.txt are split among the processes.
inline void checksum_shards(const std::vector<Shard*>& shards, const std::string& dir, Logger& logger) {
    const size_t n = shards.size(), bytes = n * sizeof(uint64_t);
    if (n == 0) return;
    std::vector<uint64_t> mine(n), all(n * comm.processes);
    if (comm.rank == 0) mine = remembered_checksums(dir, shards);
    comm_gather(all.data(), mine.data(), bytes, "the checksums that are known");
    const std::vector<uint64_t> known(all.begin(), all.begin() + n);
    auto is_mine = [&](size_t i) { return known[i] == 0 && (int64_t)i % comm.processes == comm.rank; };
    int64_t to_read = 0;
    for (size_t i = 0; i < n; i++) to_read += is_mine(i) ? shards[i]->stamp.size_bytes : 0;
    {
        Progress progress(logger, "reading the data for its checksum", to_read, "MB", 1000000);
        for (size_t i = 0; i < n; i++) {
            if (!is_mine(i)) continue;
            FileReader file(shards[i]->path);
            mine[i] = checksum_of(file, [&](int64_t more) { progress.add(more); });
        }
    }
    comm_gather(all.data(), mine.data(), bytes, "the checksums of the data");
    for (size_t i = 0; i < n; i++) shards[i]->checksum = known[i] ? known[i] : all[i % comm.processes * n + i];
}

// A checksum of the checksums of all shards.
inline uint64_t identity_of(const DataLoader& data) {
    Checksum identity;
    for (const Shard& shard : data.shards) identity.add(&shard.checksum, sizeof(shard.checksum));
    return identity.value();
}
