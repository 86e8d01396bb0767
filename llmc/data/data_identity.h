// Whether the training data is what it was when the run began: each file, of tokens or a loss mask,
// has a checksum of all its bytes. Computing it takes as long as reading the disk, so checksums are
// kept in the out dir, in shards.txt. They hold as long as size and time of the last change of a
// file stay the same. shards.txt has one line per file:
//
//     CHECKSUM SIZE_BYTES CHANGED_NS PATH
#pragma once
#include <map>
#include <set>
#include "llmc/comm/comm.h"
#include "llmc/data/dataloader.h"
#include "llmc/base/logger.h"

constexpr int64_t MAX_SHARDS_TXT_BYTES = 64 << 20;  // of a million shards and more

inline std::string shards_path(const std::string& dir) { return dir + "/shards.txt"; }

// The line of a file as it is now, without its checksum.
inline std::string shard_line(const DataFile& file) {
    return format(" %d %d %s", file.stamp.size_bytes, file.stamp.changed_ns, file.path);
}

// The lines of shards.txt: what shard_line() returns for a file, and its checksum. A damaged line
// is left out.
inline std::map<std::string, uint64_t> read_shards_txt(const std::string& dir) {
    std::map<std::string, uint64_t> known;
    for (const std::string& line : read_lines(shards_path(dir), MAX_SHARDS_TXT_BYTES)) {
        const size_t space = line.find(' ');
        if (space == 16) known[line.substr(space)] = strtoull(line.c_str(), nullptr, 16);
    }
    return known;
}

// The checksums that shards.txt has for these files; 0 for a file that it does not have.
inline std::vector<uint64_t> remembered_checksums(const std::string& dir, const std::vector<DataFile*>& files) {
    std::vector<uint64_t> checksums(files.size());
    const std::map<std::string, uint64_t> known = read_shards_txt(dir);
    for (size_t i = 0; i < files.size(); i++) {
        const auto found = known.find(shard_line(*files[i]));
        if (found != known.end()) checksums[i] = found->second;
    }
    return checksums;
}

// Writes shards.txt.
inline void remember_checksums(const std::string& dir, const std::vector<DataFile*>& files) {
    std::string text;
    for (const DataFile* file : files) text += format("%016x", file->checksum) + shard_line(*file) + "\n";
    FileWriter file(shards_path(dir));
    file.write(text.data(), text.size());
    file.commit();
}

// Gives each file its checksum; called by all ranks. Files that rank 0 does not find in shards.txt
// are split among the processes.
inline void checksum_files(const std::vector<DataFile*>& files, const std::string& dir, Logger& logger) {
    const size_t n = files.size(), bytes = n * sizeof(uint64_t);
    if (n == 0) return;
    std::vector<uint64_t> mine(n), all(n * comm.processes);
    if (comm.rank == 0) mine = remembered_checksums(dir, files);
    comm_gather(all.data(), mine.data(), bytes, "the checksums that are known");
    const std::vector<uint64_t> known(all.begin(), all.begin() + n);
    auto is_mine = [&](size_t i) { return known[i] == 0 && (int64_t)i % comm.processes == comm.rank; };
    int64_t to_read = 0;
    for (size_t i = 0; i < n; i++) to_read += is_mine(i) ? files[i]->stamp.size_bytes : 0;
    {
        Progress progress(logger, "reading the data for its checksum", to_read, "MB", 1000000);
        for (size_t i = 0; i < n; i++) {
            if (!is_mine(i)) continue;
            FileReader file(files[i]->path);
            mine[i] = checksum_of(file, [&](int64_t more) { progress.add(more); });
            file.expect_good();
        }
    }
    comm_gather(all.data(), mine.data(), bytes, "the checksums of the data");
    for (size_t i = 0; i < n; i++) files[i]->checksum = known[i] ? known[i] : all[i % comm.processes * n + i];
}

// A checksum of the checksums of all files, and of the shares of several sources.
inline uint64_t identity_of(DataLoader& data) {
    Checksum identity;
    for (const DataSource& source : data.sources)
        if (data.sources.size() > 1) identity.add(&source.turns, sizeof(source.turns));
    for (const DataFile* file : files_of(data)) identity.add(&file->checksum, sizeof(file->checksum));
    return identity.value();
}

// Reads all shards that have a mask, and their masks; called by all ranks, which share the work.
// Exit 1 if a mask is damaged, or is not that of its shard.
inline void check_masks(const DataLoader& data, Logger& logger) {
    if (!data.masked) return;
    auto is_mine = [&](size_t i) { return (int64_t)i % comm.processes == comm.rank; };
    int64_t to_read = 0;
    for (size_t i = 0; i < data.shards.size(); i++) to_read += is_mine(i) ? data.shards[i].file.stamp.size_bytes : 0;
    Progress progress(logger, "comparing the loss masks with their shards", to_read, "MB", 1000000);
    for (size_t i = 0; i < data.shards.size(); i++) {
        if (!is_mine(i)) continue;
        FileReader tokens(data.shards[i].file.path), mask(data.shards[i].mask.path);
        const uint64_t shard_checksum = checksum_of(tokens, [&](int64_t more) { progress.add(more); });
        tokens.expect_good();
        expect_mask_of(mask, shard_checksum, tokens.path);
    }
}

// Names the first file of the data on which the run in the out dir was validated before, if that is
// other data than now. Empty if it is the same, or if there was or is none. shards.txt lists the
// earlier data: what is no training data there is validation data.
inline std::string other_validation_data(const std::string& dir, DataLoader& train, DataLoader& val) {
    std::set<uint64_t> trained, then, now;
    std::string name;
    for (const DataFile* file : files_of(train)) trained.insert(file->checksum);
    for (const DataFile* file : files_of(val)) now.insert(file->checksum);
    for (const auto& [line, checksum] : read_shards_txt(dir)) {
        if (trained.count(checksum)) continue;
        const size_t path = line.find(' ', line.find(' ', 1) + 1) + 1;
        if (then.empty()) name = line.substr(path);
        then.insert(checksum);
    }
    for (uint64_t checksum : trained) now.erase(checksum);
    return then.empty() || now.empty() || then == now ? "" : name;
}

// A checksum of a sample of each file, the same bytes on every rank: the file is cut into equal
// parts, and a block is read somewhere in each. It tells ranks that have other files under the same
// names, though none of them reads a whole file.
inline uint64_t sample_identity(const std::vector<DataFile*>& files) {
    constexpr int64_t BLOCK_BYTES = 4096, MAX_BLOCKS = 64, BLOCKS_OF_ALL = 4096;
    const int64_t blocks = std::max<int64_t>(1, std::min<int64_t>(MAX_BLOCKS, BLOCKS_OF_ALL / (files.size() + 1)));
    Checksum identity;
    char block[BLOCK_BYTES];
    for (size_t i = 0; i < files.size(); i++) {
        FileReader file(files[i]->path);
        const int64_t part = file.size_bytes / blocks, room = std::max<int64_t>(1, part - BLOCK_BYTES + 1);
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t begin = b * part + (int64_t)(Checksum::mix(i, b + 1) % (uint64_t)room);
            const size_t bytes = std::min<int64_t>(BLOCK_BYTES, file.size_bytes - begin);
            file.seek(begin);
            file.read(block, bytes, "the data");
            identity.add(block, bytes);
        }
    }
    return identity.value();
}
