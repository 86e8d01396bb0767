// Finds the files that a program uses by default, dev/data/...: in the folder in which it was
// started or, if they are not there, in the folder of the program itself; and the vocabulary that
// lies beside shards. A path that the user gave is taken as it is.
#pragma once
#include <climits>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif
#include "llmc/base/folder.h"
#include "llmc/base/text.h"

// The folder of the running program; empty if the system does not tell.
inline std::string program_folder() {
    char path[PATH_MAX + 1] = {};
#ifdef __APPLE__
    uint32_t bytes = sizeof(path);
    if (_NSGetExecutablePath(path, &bytes) != 0) return "";
#else
    if (readlink("/proc/self/exe", path, PATH_MAX) <= 0) return "";
#endif
    return folder_of(path);
}

// The path by which to open a default file.
inline std::string default_file(const std::string& path) {
    const std::string beside = program_folder() + "/" + path;
    return !file_exists(path) && file_exists(beside) ? beside : path;
}

// The vocabulary beside a model file, where import_hf.py puts it: NAME_tokenizer.bin for NAME.bin.
// Empty if there is none.
inline std::string tokenizer_of_model(const std::string& model) {
    if (!ends_with(model, ".bin")) return "";
    const std::string name = model.substr(0, model.size() - 4) + "_tokenizer.bin";
    return file_exists(name) ? name : "";
}

// The vocabulary that `tokenize --train-vocab` has put beside shards: PREFIX_tokenizer.bin for
// PREFIX_train.bin, PREFIX_val.bin, or numbered ones such as PREFIX_train_000000.bin. Empty if
// there is none. The first shard that the pattern matches counts.
inline std::string tokenizer_beside(const std::string& pattern) {
    const std::vector<std::string> shards = glob_files(pattern);
    if (shards.empty()) return "";
    std::string name = shards[0];
    auto drop = [&](const std::string& end) {
        const bool ends = ends_with(name, end);
        if (ends) name.resize(name.size() - end.size());
        return ends;
    };
    if (!drop(".bin")) return "";
    const size_t number = name.find_last_not_of("0123456789");
    if (number != name.npos && name[number] == '_' && name.size() - number == 7) name.resize(number);
    if (!drop("_train") && !drop("_val")) return "";
    name += "_tokenizer.bin";
    return file_exists(name) ? name : "";
}
