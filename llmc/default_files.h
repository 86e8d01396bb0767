// Where the files are that a program uses when it was given none: dev/data/... of the folder in
// which it was started, or, if it was started elsewhere, of the folder in which the program itself
// lies. A path that the user gave is never looked for elsewhere.
#pragma once
#include <climits>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif
#include "llmc/folder.h"

// The folder of the program that runs; empty if the system does not say.
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

// The path under which a file of the repository is to be opened.
inline std::string default_file(const std::string& path) {
    const std::string beside = program_folder() + "/" + path;
    return !file_exists(path) && file_exists(beside) ? beside : path;
}
