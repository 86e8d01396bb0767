// A library for LD_PRELOAD that makes a program's file calls fail, so that tests can try each of
// them:
//
//     FAIL_PATH=text FAIL_AT=n FAIL_HOW=EIO|KILL    the n-th call on a file whose path contains the text fails, or the
//                                                   program is killed just before the n-th that changes something;
//                                                   FAIL_MARK=file appears if so
//     FAIL_HOW=ENOSPC|EROFS                         from the n-th call on that changes something, all such calls fail:
//                                                   the disk is full (what needs no space succeeds), or read-only
//     CLOCK_JUMPS=1                                 every reading of the time of day is a day off, before or after
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
#include <sys/time.h>
#include <ctime>
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
// True if this call is to fail, on a disk that is full or read-only from some call on.
static bool due_on_disk(bool full, long at, bool changes, bool needs_space) {
    if (!changes || (full && !needs_space) || ++calls < at) return false;
    errno = full ? ENOSPC : EROFS;
    return true;
}
// True if this call is to fail.
static bool due(bool counts, bool changes = false, bool needs_space = true) {
    const char *at = getenv("FAIL_AT"), *how = getenv("FAIL_HOW");
    const bool full = how && strcmp(how, "ENOSPC") == 0;
    if (counts && at && (full || (how && strcmp(how, "EROFS") == 0)))
        return due_on_disk(full, atol(at), changes, needs_space);
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
extern "C" int unlink(const char* path) noexcept { return due(matches(path), true, false) ? -1 : REAL(unlink)(path); }
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
    return due(matches(path), true) ? -1 : REAL(mkdir)(path, mode);
}
extern "C" int rename(const char* from, const char* to) noexcept {
    return due(matches(to), true, false) ? -1 : REAL(rename)(from, to);
}

// Seconds by which the time of day is off.
static time_t jump() {
    static bool later = false;
    later = !later;
    return !getenv("CLOCK_JUMPS") ? 0 : later ? 86400 : -86400;
}
extern "C" int clock_gettime(clockid_t which, struct timespec* now) noexcept {
    const int result = REAL(clock_gettime)(which, now);
    if (which == CLOCK_REALTIME) now->tv_sec += jump();
    return result;
}
extern "C" int gettimeofday(struct timeval* now, void* zone) noexcept {
    const int result = REAL(gettimeofday)(now, zone);
    now->tv_sec += jump();
    return result;
}
extern "C" time_t time(time_t* to) noexcept {
    const time_t now = REAL(time)(nullptr) + jump();
    return to ? *to = now : now;
}
