// What programs measure on a machine once and keep from run to run: files in the folder `build`
// beside the program, if that folder exists. A line is KEY: VALUE.
#pragma once
#include <unistd.h>
#include "llmc/base/default_files.h"
#include "llmc/base/file.h"

constexpr int64_t MAX_KEPT_BYTES = 1 << 20;  // anything longer was not written by this program

// The path of a file of kept values. Empty if there is no folder `build`, or if the system does not
// say where the program is.
inline std::string kept_file(const std::string& name) {
    const std::string beside = program_folder(), folder = beside + "/build";
    return !beside.empty() && folder_exists(folder) ? folder + "/" + name : "";
}

// The value kept under `key`; empty if there is none.
inline std::string kept_value(const std::string& path, const std::string& key) {
    std::string value;
    for (const std::string& line : read_lines(path, MAX_KEPT_BYTES))
        if (line.compare(0, key.size() + 2, key + ": ") == 0) value = line.substr(key.size() + 2);
    return value;
}
// Keeps `value` under `key`. The new file is written beside the old one and then renamed, so that
// other programs never read half of it. False if that is not possible; then nothing has changed.
inline bool keep_value(const std::string& path, const std::string& key, const std::string& value) {
    std::string text = key + ": " + value + "\n";
    for (const std::string& line : read_lines(path, MAX_KEPT_BYTES))
        if (line.compare(0, key.size() + 2, key + ": ") != 0) text += line + "\n";
    const std::string temporary = path + format(".%d.tmp", (int)getpid());
    const int fd = create_file(temporary, 0666);
    if (fd < 0) return false;
    const bool whole = write(fd, text.data(), text.size()) == (ssize_t)text.size();
    const bool kept = close(fd) == 0 && whole && rename(temporary.c_str(), path.c_str()) == 0;
    if (!kept) unlink(temporary.c_str());
    return kept;
}
