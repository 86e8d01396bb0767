// The sources of the training data, and which of them each window of a run is from.
//
// With weights a and b, of every TURNS windows a share of a / (a + b) is from the first source, to
// one window. The windows of a source are spread evenly: at each turn it is the turn of the source
// that is furthest behind its share. So every step has its share of each, and which source window w
// is from, and how many windows of that source were before it, is a pure function of w: the
// position in the data stays one counter. A source that has no window left begins again, in the
// order of its next epoch, whatever the others do.
#pragma once
#include <cmath>
#include <memory>
#include "llmc/base/file.h"
#include "llmc/options/source_list.h"

constexpr int64_t TURNS = 1000;

struct DataSource {
    std::string pattern;
    int64_t first_shard = 0, num_shards = 0;  // in DataLoader::shards
    int64_t windows = 0, turns = TURNS;       // of its shards; of every TURNS windows

    // The order of the current epoch, and the shard that is open.
    int64_t epoch = -1, open_shard = -1;  // open_shard: its position in shard_order
    std::vector<uint32_t> shard_order, window_order;
    std::vector<int64_t> first_window;  // of each shard in shard_order, then the total
    std::unique_ptr<FileReader> file, mask_file;
};

// How many of TURNS each source has: in proportion to its weight, at least 1. Where whole numbers
// do not add up, those with the largest remainders have one more.
inline std::vector<int64_t> share_turns(const std::vector<SourcePattern>& sources) {
    double sum = 0;
    for (const SourcePattern& source : sources) sum += source.weight;
    std::vector<int64_t> turns;
    int64_t left = TURNS;
    const auto behind = [&](size_t s) { return sources[s].weight / sum * (double)TURNS - (double)turns[s]; };
    for (const SourcePattern& source : sources)
        turns.push_back(std::max<int64_t>(1, (int64_t)(source.weight / sum * (double)TURNS))), left -= turns.back();
    for (; left != 0; left += left > 0 ? -1 : 1) {
        const auto is_next = [&](size_t s, size_t best) {
            return left > 0 ? behind(s) > behind(best) : turns[s] > 1 && (turns[best] == 1 || behind(s) < behind(best));
        };
        size_t chosen = 0;
        for (size_t s = 1; s < turns.size(); s++)
            if (is_next(s, chosen)) chosen = s;
        turns[chosen] += left > 0 ? 1 : -1;
    }
    return turns;
}

// Whose turn it is, and how many turns it had before, of TURNS in a row.
struct SourceTurn {
    uint16_t source, before;
};

// Turn t is that of the source for which (t + 1) turns / TURNS is furthest above the turns that it
// had.
inline std::vector<SourceTurn> deal_turns(const std::vector<DataSource>& sources) {
    std::vector<int64_t> had(sources.size());
    std::vector<SourceTurn> dealt;
    for (int64_t t = 0; t < TURNS; t++) {
        const auto behind = [&](size_t s) { return sources[s].turns * (t + 1) - TURNS * had[s]; };
        size_t next = 0;
        for (size_t s = 1; s < sources.size(); s++)
            if (behind(s) > behind(next)) next = s;
        dealt.push_back({(uint16_t)next, (uint16_t)had[next]++});
    }
    return dealt;
}

// How many of a run's first `windows` windows are from a source.
inline int64_t windows_from(const std::vector<DataSource>& sources, const std::vector<SourceTurn>& dealt, size_t source,
                            int64_t windows) {
    int64_t count = windows / TURNS * sources[source].turns;
    for (int64_t t = 0; t < windows % TURNS; t++) count += dealt[t].source == source;
    return count;
}
