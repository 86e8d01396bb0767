// Several sources of training data, each with a weight: -i 'a*.bin:0.7,b*.bin:0.3'. Anything else
// is one pattern, whose shards are one source.
#pragma once
#include "llmc/base/folder.h"
#include "llmc/base/parse.h"

constexpr size_t MOST_SOURCES = 100;

struct SourcePattern {
    std::string pattern;
    double weight = 1;  // the shares of the sources are in proportion to these
};

// The parts of a list with commas between them.
inline std::vector<std::string> parts_of_list(const std::string& list) {
    std::vector<std::string> parts;
    for (size_t at = 0, end; at <= list.size(); at = end + 1) {
        end = std::min(list.find(',', at), list.size());
        parts.push_back(list.substr(at, end - at));
    }
    return parts;
}

// The sources that -i names. Exit 2 if some have a weight and others none, or one is not above 0.
inline std::vector<SourcePattern> sources_of(const std::string& train_data) {
    if (train_data.find(':') == train_data.npos || name_exists(train_data)) return {{train_data}};
    std::vector<SourcePattern> sources;
    std::string unweighted;
    for (const std::string& part : parts_of_list(train_data)) {
        const size_t colon = part.rfind(':');
        SourcePattern source;
        if (colon == part.npos || colon == 0 || !parse_real(part.substr(colon + 1), source.weight)) unweighted = part;
        else source.pattern = part.substr(0, colon), sources.push_back(source);
    }
    if (sources.empty()) return {{train_data}};
    const auto refuse = [&](const std::string& problem) {
        usage_error("-i %s: %s; a pattern is accepted, or PATTERN:WEIGHT,PATTERN:WEIGHT with weights above 0",
                    train_data, problem);
    };
    if (!unweighted.empty()) refuse("`" + unweighted + "` has no weight");
    if (sources.size() > MOST_SOURCES) refuse(format("these are more than %d sources", MOST_SOURCES));
    for (const SourcePattern& source : sources)
        if (source.weight <= 0) refuse(format("the weight of %s is %g", source.pattern, source.weight));
    return sources;
}

// The files of all sources, in their order.
inline std::vector<std::string> source_files(const std::string& train_data) {
    std::vector<std::string> files;
    for (const SourcePattern& source : sources_of(train_data))
        for (const std::string& path : glob_files(source.pattern)) files.push_back(path);
    return files;
}

// The files that a pattern matches, or several with commas between them: the loss masks of several
// sources.
inline std::vector<std::string> files_of_patterns(const std::string& patterns) {
    std::vector<std::string> files = glob_files(patterns);
    if (!files.empty()) return files;
    for (const std::string& pattern : parts_of_list(patterns))
        for (const std::string& path : glob_files(pattern)) files.push_back(path);
    return files;
}
