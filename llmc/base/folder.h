// Folders: listing, creating, flushing, locking, and file name patterns. A folder that cannot be
// read ends the program (exit 1); it is never taken for an empty one.
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <vector>
#include "llmc/base/check.h"

inline bool file_exists(const std::string& path) {
    struct stat st;
    return stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

// The size of a file; 0 if it does not exist.
inline int64_t file_bytes(const std::string& path) {
    struct stat st;
    return stat(path.c_str(), &st) == 0 ? st.st_size : 0;
}

inline bool folder_exists(const std::string& path) {
    struct stat st;
    return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

// The folder that a path is in: "." if the path names none.
inline std::string folder_of(const std::string& path) {
    size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Creates a folder and its parents. Exit 1 with the reason if that fails.
inline void make_folder(const std::string& path) {
    if (path.empty() || folder_exists(path)) return;
    if (path.find('/') != std::string::npos) make_folder(folder_of(path));
    const int reason = mkdir(path.c_str(), 0777) == 0 ? 0 : errno;
    if (reason != 0 && reason != EEXIST) runtime_failure("cannot create the folder %s: %s", path, strerror(reason));
    if (!folder_exists(path)) runtime_failure("cannot create the folder %s: a file of that name is in the way", path);
}

// Brings new and removed names of a folder to the disk; until then the change is only in memory.
// File systems that have nothing to flush return an error, which is ignored.
inline void flush_folder(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool good = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS);
    const int reason = errno;
    if (fd >= 0) close(fd);
    if (!good) runtime_failure("cannot flush the folder %s to the disk: %s", path, strerror(reason));
}

// Removes a file. True if no file of this name exists afterwards.
inline bool remove_file(const std::string& path) { return unlink(path.c_str()) == 0 || errno == ENOENT; }

// The names in a folder, sorted; none if it does not exist.
inline std::vector<std::string> list_folder(const std::string& path) {
    std::vector<std::string> names;
    DIR* folder = opendir(path.c_str());
    if (!folder && (errno == ENOENT || errno == ENOTDIR)) return names;
    while (folder) {
        errno = 0;
        const struct dirent* entry = readdir(folder);
        if (!entry) break;
        names.push_back(entry->d_name);
    }
    if (!folder || errno != 0) runtime_failure("cannot list the folder %s: %s", path, strerror(errno));
    closedir(folder);
    std::sort(names.begin(), names.end());
    return names;
}

// Makes sure that only one run at a time writes to a folder. The lock is the kernel's, on a file
// that stays there: it ends with the process that holds it, however that process ends.
struct FolderLock {
    std::string path;
    int fd = -1;

    FolderLock() = default;
    FolderLock(const FolderLock&) = delete;
    ~FolderLock() { release(); }
    void release() {
        if (fd >= 0) close(fd);
        fd = -1;
    }
    // Takes the lock of a folder. False if another process holds it.
    bool take(const std::string& folder) {
        path = folder + "/run.lock";
        int tries = 0;
        do {
            release();
            fd = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
            if (fd < 0) runtime_failure("cannot write %s: %s", path, strerror(errno));
            if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
                const int reason = errno;
                if (reason == EWOULDBLOCK) return release(), false;
                warning("cannot lock %s (%s): another run in this folder would not be noticed", path, strerror(reason));
                return true;
            }
        } while (!has_its_name() && tries++ < 10);  // the file was removed between open and flock
        return true;
    }
    // False if the file was removed or replaced: a process that opens the name now locks another
    // file.
    bool has_its_name() const {
        struct stat mine, named;
        return fstat(fd, &mine) == 0 && lstat(path.c_str(), &named) == 0 && mine.st_ino == named.st_ino &&
               mine.st_dev == named.st_dev;
    }
    // Takes the lock again if the file has lost its name. False if another process was faster.
    bool keep() { return has_its_name() || take(folder_of(path)); }
};

// True if anything has this name, a broken link included.
inline bool name_exists(const std::string& path) {
    struct stat st;
    if (lstat(path.c_str(), &st) == 0) return true;
    if (errno != ENOENT && errno != ENOTDIR) runtime_failure("cannot look for %s: %s", path, strerror(errno));
    return false;
}

// Renames a file or a folder. Exit 1 with the reason if that fails.
inline void rename_file(const std::string& from, const std::string& to) {
    if (rename(from.c_str(), to.c_str()) != 0) runtime_failure("cannot rename %s to %s: %s", from, to, strerror(errno));
}

// Renames a file to NAME.old, NAME.old2 or the like, whichever is free; returns the new name. Exit
// 1 if that fails.
inline std::string set_aside(const std::string& path) {
    std::string old = path + ".old";
    for (int n = 2; name_exists(old); n++) old = format("%s.old%d", path, n);
    rename_file(path, old);
    return old;
}

// Appends to `files` the files below a folder ("" or a path that ends in /) that match a pattern.
inline void match_below(const std::string& folder, const std::string& pattern, std::vector<std::string>& files) {
    const size_t slash = pattern.find('/');
    const std::string part = pattern.substr(0, slash);
    std::vector<std::string> names{part};
    const bool stands_for_itself = part.find_first_of("*?[\\") == part.npos || name_exists(folder + part);
    if (!stands_for_itself) names = list_folder(folder.empty() ? "." : folder);
    for (const std::string& name : names) {
        if (name != part && fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) != 0) continue;
        if (slash != pattern.npos) match_below(folder + name + "/", pattern.substr(slash + 1), files);
        else if (name_exists(folder + name) && !folder_exists(folder + name)) files.push_back(folder + name);
    }
}

// The files that match a shell pattern, sorted by name; folders are left out. A pattern that is the
// name of a file stands for that file, whatever characters are in it. Broken links and pipes are
// included, so that the program that opens them reports them.
inline std::vector<std::string> glob_files(const std::string& pattern) {
    if (name_exists(pattern)) return {pattern};
    std::vector<std::string> files;
    match_below("", pattern, files);
    std::sort(files.begin(), files.end());
    return files;
}
