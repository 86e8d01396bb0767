// Files that are either complete or absent.
//
// A FileWriter writes to a temporary file beside its target, flushes it to the disk (fsync), and
// only then gives it the real name (rename, which POSIX makes atomic). Last, it flushes the folder,
// so that the name too survives a power failure. A FileReader reports a file that is shorter or
// longer than expected. Both keep a checksum of all bytes that pass (checksum.h).
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include "llmc/base/checksum.h"
#include "llmc/base/folder.h"

// Creates a file and returns its descriptor, -1 and errno if that fails. What has the name already
// is removed first; a symbolic link is never followed.
inline int create_file(const std::string& path, mode_t mode) {
    unlink(path.c_str());
    return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

// What the sentence on a file that cannot be written ends with: how a run goes on.
inline std::string after_failed_write;

// Writes a file, which appears under its name with commit(). A FileWriter that ends before its file
// is flushed leaves nothing behind. Every failure ends the program (exit 1).
struct FileWriter {
    std::string path, temporary;
    int fd = -1;
    Checksum checksum;

    explicit FileWriter(const std::string& target) : path(target), temporary(target + ".tmp") {
        fd = create_file(temporary, 0666);
        if (fd < 0) refuse(strerror(errno));
    }
    FileWriter(const FileWriter&) = delete;
    ~FileWriter() {
        if (fd < 0) return;
        close(fd);
        unlink(temporary.c_str());
    }
    // Ends the program (exit 1) and removes the temporary file.
    [[noreturn]] void refuse(const std::string& reason) {
        if (fd >= 0) close(fd);
        fd = -1;
        unlink(temporary.c_str());
        runtime_failure("cannot write %s: %s; what was there before is untouched%s", path, reason, after_failed_write);
    }
    [[noreturn]] void fail() { refuse(strerror(errno)); }
    void write(const void* data, size_t bytes) {
        checksum.add(data, bytes);
        for (const char* p = (const char*)data; bytes > 0;) {
            ssize_t n = ::write(fd, p, std::min(bytes, (size_t)1 << 30));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) fail();
            p += n, bytes -= n;
        }
    }
    // Overwrites bytes at an earlier offset, such as a header that counts what follows it. The
    // checksum still has the earlier bytes.
    void rewrite(int64_t offset, const void* data, size_t bytes) {
        for (const char* p = (const char*)data; bytes > 0;) {
            ssize_t n = pwrite(fd, p, bytes, offset);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) fail();
            p += n, offset += n, bytes -= n;
        }
    }
    // Flushes the file to the disk and closes it, still under the temporary name.
    void flush() {
        if (fsync(fd) != 0) fail();
        const int closed = close(fd);
        fd = -1;
        if (closed != 0) fail();
    }
    // Gives the flushed file its real name. The name is permanent once the folder is flushed.
    void publish() {
        if (rename(temporary.c_str(), path.c_str()) != 0) fail();
    }
    void commit() {
        flush();
        publish();
        flush_folder(folder_of(path));
    }
};

// What shows, without reading a file, whether it may have changed.
struct FileStamp {
    int64_t size_bytes = 0, changed_ns = 0, inode = 0;

    bool operator==(const FileStamp& other) const {
        return size_bytes == other.size_bytes && changed_ns == other.changed_ns && inode == other.inode;
    }
};

// Reads a regular file. Messages name the file, what was being read, and where. A failure ends the
// program (exit 1), or, if the file was opened with TELL, is reported in `problem`.
struct FileReader {
    enum OnFailure { END_PROGRAM, TELL };
    std::string path, problem;
    int fd = -1;
    bool missing = false;  // nothing has this name
    int64_t size_bytes = 0, position = 0;
    Checksum checksum;

    explicit FileReader(const std::string& source, OnFailure on_failure = END_PROGRAM) : path(source) {
        fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // opening a pipe would wait for its writer
        struct stat st;
        missing = fd < 0 && errno == ENOENT;
        if (fd < 0) problem = format("cannot open %s: %s", path, strerror(errno));
        else if (fstat(fd, &st) != 0) problem = format("cannot read %s: %s", path, strerror(errno));
        else if (!S_ISREG(st.st_mode)) problem = path + " is not a regular file";
        else size_bytes = st.st_size;
        if (on_failure == END_PROGRAM) expect_good();
    }
    FileReader(const FileReader&) = delete;
    ~FileReader() {
        if (fd >= 0) close(fd);
    }
    bool good() const { return problem.empty(); }
    void expect_good() const {
        if (!good()) runtime_failure("%s", problem);
    }
    // Reads exactly that many bytes. `what` they are is for the message.
    bool try_read(void* data, size_t bytes, const char* what) {
        char* p = (char*)data;
        for (size_t left = bytes; left > 0 && good();) {
            const ssize_t n = ::read(fd, p, std::min(left, (size_t)1 << 30));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) problem = format("cannot read %s: %s", path, strerror(errno));
            if (n == 0)
                problem = format("%s is cut short: it ends at byte %d, within %s", path, position + bytes - left, what);
            if (n > 0) p += n, left -= n;
        }
        if (!good()) return false;
        checksum.add(data, bytes);
        position += bytes;
        return true;
    }
    void read(void* data, size_t bytes, const char* what) {
        if (!try_read(data, bytes, what)) expect_good();
    }
    FileStamp stamp() const {
        struct stat st;
        if (fstat(fd, &st) != 0) runtime_failure("cannot read %s: %s", path, strerror(errno));
#ifdef __APPLE__
        const struct timespec changed = st.st_mtimespec;
#else
        const struct timespec changed = st.st_mtim;
#endif
        return {st.st_size, changed.tv_sec * 1000000000ll + changed.tv_nsec, (int64_t)st.st_ino};
    }
    // Starts again from the beginning, checksum included.
    void rewind() { seek(0), checksum = {}; }
    void seek(int64_t offset) {
        if (lseek(fd, offset, SEEK_SET) != offset) runtime_failure("cannot read %s: %s", path, strerror(errno));
        position = offset;
    }
    // Exit 1 if the file is not exactly as long as its header promises.
    void expect_size(int64_t expected_bytes) const {
        if (size_bytes != expected_bytes)
            runtime_failure("%s is %s: it has %d bytes where its header promises %d", path,
                            size_bytes < expected_bytes ? "cut short" : "too long", size_bytes, expected_bytes);
    }
};

// The checksum of a whole file, never 0. read(bytes) is called after each piece.
template <class Read>
inline uint64_t checksum_of(FileReader& file, Read read) {
    file.rewind();
    std::vector<char> piece(1 << 20);
    while (file.good() && file.position < file.size_bytes) {
        const size_t bytes = std::min<int64_t>(piece.size(), file.size_bytes - file.position);
        file.try_read(piece.data(), bytes, "its bytes");
        read((int64_t)bytes);
    }
    return std::max<uint64_t>(1, file.checksum.value());
}

// The lines of a small text file, without their newlines; none if it cannot be read or has more
// than max_bytes. A last line without a newline was never finished, and is left out.
inline std::vector<std::string> read_lines(const std::string& path, int64_t max_bytes) {
    std::vector<std::string> lines;
    FileReader file(path, FileReader::TELL);
    if (!file.good() || file.size_bytes > max_bytes) return lines;
    std::string text(file.size_bytes, '\0');
    if (!file.try_read(text.data(), text.size(), "its lines")) return lines;
    for (size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
        lines.push_back(text.substr(at, end - at));
    return lines;
}

// The header of llm.c's files: 256 four-byte integers, of which the first is a magic number that
// tells the kind of file, the second a version; sizes follow.
struct Header {
    int32_t value[256] = {};

    // Reads the header; exit 1 if the file is of another kind. hint: where such a file comes from.
    void read(FileReader& file, int32_t magic, const char* kind, const char* hint = "") {
        if (file.size_bytes < (int64_t)sizeof(value))
            runtime_failure("%s is no %s file: it is shorter than a header%s", file.path, kind, hint);
        file.read(value, sizeof(value), "the header");
        if (value[0] != magic)
            runtime_failure("%s is no %s file: it begins with %d where %d is expected%s", file.path, kind, value[0],
                            magic, hint);
    }
};
