// A library for LD_PRELOAD that makes a program's file calls fail, so that tests can try each of
// them:
//
//     FAIL_PATH=text FAIL_AT=n FAIL_HOW=EIO|KILL    the n-th call on a file whose path contains the text fails, or the
//                                                   program is killed just before the n-th that changes something;
//                                                   FAIL_MARK=file appears if so
//     SWAP_PATH=file SWAP_WITH=other                once the first has been opened, the other takes its name
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static bool watched[4096];  // by descriptor
static long calls = 0;

template <class F>
static F* real(F*, const char* name) {
    return (F*)dlsym(RTLD_NEXT, name);
}
#define REAL(name) real(&::name, #name)

static bool matches(const char* path) {
    const char* part = getenv("FAIL_PATH");
    return part && strstr(path, part);
}
static bool is_watched(int fd) { return fd >= 0 && fd < 4096 && watched[fd]; }
static int watch(int fd, const char* path) {
    if (fd >= 0 && fd < 4096) watched[fd] = matches(path);
    return fd;
}
// True if this call is to fail.
static bool due(bool counts, bool changes = false) {
    const char *at = getenv("FAIL_AT"), *how = getenv("FAIL_HOW");
    if (!counts || !at || !how || (strcmp(how, "KILL") == 0 && !changes) || ++calls != atol(at)) return false;
    if (const char* mark = getenv("FAIL_MARK")) REAL(close)(REAL(creat)(mark, 0666));
    if (strcmp(how, "KILL") == 0) raise(SIGKILL);
    errno = EIO;
    return true;
}

extern "C" int open(const char* path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    if (due(matches(path), flags & O_CREAT)) return -1;
    const int fd = watch(REAL(open)(path, flags, mode), path);
    const char *swap = getenv("SWAP_PATH"), *with = getenv("SWAP_WITH");
    if (swap && with && fd >= 0 && strcmp(path, swap) == 0) REAL(rename)(with, swap);
    return fd;
}
extern "C" DIR* opendir(const char* path) {
    if (due(matches(path))) return nullptr;
    DIR* folder = REAL(opendir)(path);
    if (folder) watch(dirfd(folder), path);
    return folder;
}
extern "C" struct dirent* readdir(DIR* folder) {
    return due(is_watched(dirfd(folder))) ? nullptr : REAL(readdir)(folder);
}
extern "C" int close(int fd) {
    if (is_watched(fd)) watched[fd] = false;
    return REAL(close)(fd);
}
extern "C" ssize_t read(int fd, void* to, size_t n) { return due(is_watched(fd)) ? -1 : REAL(read)(fd, to, n); }
extern "C" ssize_t write(int fd, const void* p, size_t n) {
    return due(is_watched(fd), true) ? -1 : REAL(write)(fd, p, n);
}
extern "C" int fsync(int fd) { return due(is_watched(fd), true) ? -1 : REAL(fsync)(fd); }
extern "C" int flock(int fd, int how) { return due(is_watched(fd)) ? -1 : REAL(flock)(fd, how); }
extern "C" int fstat(int fd, struct stat* st) noexcept { return due(is_watched(fd)) ? -1 : REAL(fstat)(fd, st); }
extern "C" int stat(const char* path, struct stat* st) noexcept {
    return due(matches(path)) ? -1 : REAL(stat)(path, st);
}
extern "C" int lstat(const char* path, struct stat* st) noexcept {
    return due(matches(path)) ? -1 : REAL(lstat)(path, st);
}
extern "C" int unlink(const char* path) noexcept { return due(matches(path), true) ? -1 : REAL(unlink)(path); }
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
    return due(matches(path), true) ? -1 : REAL(mkdir)(path, mode);
}
extern "C" int rename(const char* from, const char* to) noexcept {
    return due(matches(to), true) ? -1 : REAL(rename)(from, to);
}
