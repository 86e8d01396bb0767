// Files that are whole or absent. A writer puts its bytes beside the target under a name ending in .tmp, flushes them to the disk
// (fsync), and only then gives them the real name (rename, which POSIX makes atomic); last, the folder itself is flushed so that the
// name survives a pulled plug too. A reader knows what size to expect and says so when it finds another.
//
// Both keep a running checksum: four independent multiply-and-rotate lanes over 8-byte words (the construction of xxHash and its
// kin), about the speed of memory, strong enough to tell damage from data. It is no defence against forgery.
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <vector>
#include "llmc/check.h"

struct Checksum {
    uint64_t lane[4] = {0x9E3779B97F4A7C15u, 0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu, 0xD6E8FEB86659FD93u};
    unsigned char rest[32];
    size_t rest_bytes = 0, total_bytes = 0;

    static uint64_t mix(uint64_t state, uint64_t word) {
        state ^= word * 0x9FB21C651E98DF25u;
        return ((state << 29) | (state >> 35)) * 0xC2B2AE3D27D4EB4Fu;
    }
    void block(const unsigned char* p) {
        for (int i = 0; i < 4; i++) {
            uint64_t word;
            memcpy(&word, p + 8 * i, 8);
            lane[i] = mix(lane[i], word);
        }
    }
    void add(const void* data, size_t bytes) {
        const unsigned char* p = (const unsigned char*)data;
        total_bytes += bytes;
        if (rest_bytes) {
            size_t take = std::min(bytes, 32 - rest_bytes);
            memcpy(rest + rest_bytes, p, take);
            rest_bytes += take, p += take, bytes -= take;
            if (rest_bytes < 32) return;
            block(rest);
            rest_bytes = 0;
        }
        for (; bytes >= 32; p += 32, bytes -= 32) block(p);
        if (bytes) memcpy(rest, p, bytes);
        rest_bytes = bytes;
    }
    uint64_t value() const {
        Checksum end = *this;
        memset(end.rest + rest_bytes, 0, 32 - rest_bytes);
        end.block(end.rest);
        uint64_t h = total_bytes;
        for (uint64_t l : end.lane) h = mix(h, l);
        return h ^ (h >> 31);
    }
};

inline bool file_exists(const std::string& path) {
    struct stat st;
    return stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

// 0 if it is not there.
inline int64_t file_bytes(const std::string& path) {
    struct stat st;
    return stat(path.c_str(), &st) == 0 ? st.st_size : 0;
}

inline bool folder_exists(const std::string& path) {
    struct stat st;
    return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

inline std::string folder_of(const std::string& path) {
    size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Creates the folder and its parents. Exit 1 with the reason where that fails.
inline void make_folder(const std::string& path) {
    if (path.empty() || folder_exists(path)) return;
    if (path.find('/') != std::string::npos) make_folder(folder_of(path));
    if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) runtime_failure("cannot create the folder %s: %s", path.c_str(), strerror(errno));
    if (!folder_exists(path))
        runtime_failure("cannot create the folder %s: a file of that name is in the way", path.c_str());
}

inline void flush_folder(const std::string& path) {
    int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

// The files that match a shell pattern, sorted by name; a plain name matches itself.
inline std::vector<std::string> glob_files(const std::string& pattern) {
    std::vector<std::string> files;
    glob_t found;
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            if (file_exists(found.gl_pathv[i])) files.push_back(found.gl_pathv[i]);
    globfree(&found);
    return files;
}

// A file that was not there before: what an earlier run left under the name is removed, and no link that somebody put there is followed.
// -1 if that fails.
inline int create_file(const std::string& path, mode_t mode) {
    unlink(path.c_str());
    return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

// Writes a file beside its target and puts it in place with commit(). Dropped before that, it leaves nothing behind.
struct FileWriter {
    std::string path, temporary;
    int fd = -1;
    Checksum checksum;

    explicit FileWriter(const std::string& target) : path(target), temporary(target + ".tmp") {
        fd = create_file(temporary, 0666);
        if (fd < 0) runtime_failure("cannot write %s: %s; what was there before is untouched", path.c_str(), strerror(errno));
    }
    FileWriter(const FileWriter&) = delete;
    ~FileWriter() {
        if (fd < 0) return;
        close(fd);
        unlink(temporary.c_str());
    }
    void fail() {
        int reason = errno;
        close(fd);
        fd = -1;
        unlink(temporary.c_str());
        runtime_failure("cannot write %s: %s; what was there before is untouched", path.c_str(), strerror(reason));
    }
    void write(const void* data, size_t bytes) {
        checksum.add(data, bytes);
        for (const char* p = (const char*)data; bytes > 0;) {
            ssize_t n = ::write(fd, p, std::min(bytes, (size_t)1 << 30));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) fail();
            p += n, bytes -= n;
        }
    }
    void commit() {
        if (fsync(fd) != 0) fail();
        if (close(fd) != 0) fail();
        fd = -1;
        if (rename(temporary.c_str(), path.c_str()) != 0) {
            int reason = errno;
            unlink(temporary.c_str());
            runtime_failure("cannot write %s: %s; what was there before is untouched", path.c_str(), strerror(reason));
        }
        flush_folder(folder_of(path));
    }
};

// Reads a file of known layout. Every failure names the file, what was read, and where.
struct FileReader {
    std::string path;
    int fd = -1;
    int64_t size_bytes = 0, position = 0;
    Checksum checksum;

    explicit FileReader(const std::string& source) : path(source) {
        fd = open(path.c_str(), O_RDONLY);
        if (fd < 0) runtime_failure("cannot open %s: %s", path.c_str(), strerror(errno));
        struct stat st;
        if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) runtime_failure("%s is not a file", path.c_str());
        size_bytes = st.st_size;
    }
    FileReader(const FileReader&) = delete;
    ~FileReader() { close(fd); }
    void read(void* data, size_t bytes, const char* what) {
        char* p = (char*)data;
        for (size_t left = bytes; left > 0;) {
            ssize_t n = ::read(fd, p, std::min(left, (size_t)1 << 30));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) runtime_failure("cannot read %s: %s", path.c_str(), strerror(errno));
            if (n == 0) runtime_failure("%s is cut short: it ends at byte %lld, within %s", path.c_str(), (long long)size_bytes, what);
            p += n, left -= n;
        }
        checksum.add(data, bytes);
        position += bytes;
    }
    void seek(int64_t offset) {
        if (lseek(fd, offset, SEEK_SET) != offset) runtime_failure("cannot read %s: %s", path.c_str(), strerror(errno));
        position = offset;
    }
    // Says so when the file is not exactly as long as its header promises.
    void expect_size(int64_t expected_bytes) const {
        if (size_bytes != expected_bytes)
            runtime_failure("%s is %s: it has %lld bytes where its header promises %lld", path.c_str(),
                            size_bytes < expected_bytes ? "cut short" : "too long", (long long)size_bytes, (long long)expected_bytes);
    }
};

// The files of this family all open with 256 four-byte integers: a magic number, a version, then sizes.
struct Header {
    int32_t value[256] = {};

    // hint: where such a file comes from, for the message
    void read(FileReader& file, int32_t magic, const char* kind, const char* hint = "") {
        if (file.size_bytes < (int64_t)sizeof(value))
            runtime_failure("%s is no %s file: it is shorter than a header%s", file.path.c_str(), kind, hint);
        file.read(value, sizeof(value), "the header");
        if (value[0] != magic)
            runtime_failure("%s is no %s file: it begins with %d where %d is expected%s", file.path.c_str(), kind,
                            value[0], magic, hint);
    }
};
