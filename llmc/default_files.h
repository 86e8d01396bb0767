// Finds the files that a program uses by default, dev/data/...: in the folder in which it was
// started or, if they are not there, in the folder of the program itself. A path that the user gave
// is taken as it is.
#pragma once
#include <climits>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif
#include "llmc/folder.h"

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
