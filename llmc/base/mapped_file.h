// Memory that lies in a file, and only as far as it is in use in main memory. The system reads a
// page when it is touched; what is released is written to the disk when there is time, and read
// again when it is touched again. The file has no name, so that nothing is left of it when the
// program ends, in whatever way.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include "llmc/base/check.h"

constexpr int64_t MAPPED_PAGE = 4096;

// Reserves room for so many zeros in an empty file; 0, or why there is none.
inline int reserve_zeros(int fd, int64_t bytes) {
#ifdef __linux__
    return posix_fallocate(fd, 0, bytes);
#else
    const std::string zeros(std::min<int64_t>(bytes, 1 << 20), '\0');
    for (int64_t done = 0, n; done < bytes; done += n) {
        n = pwrite(fd, zeros.data(), std::min<int64_t>(zeros.size(), bytes - done), done);
        if (n <= 0) return n < 0 ? errno : ENOSPC;
    }
    return 0;
#endif
}
// A nameless file of so many zero bytes in a folder, which has room for them. Exit 1 if it has not;
// `what` is what the file is for.
inline int nameless_file(const std::string& folder, int64_t bytes, const char* what) {
    std::string path = folder + "/offloaded.XXXXXX";
    const int fd = mkstemp(path.data());
    if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
    const int reason = fd < 0 ? errno : reserve_zeros(fd, bytes);
    if (fd >= 0) unlink(path.c_str());
    if (reason != 0)
        runtime_failure("cannot keep %s in a file of %.0f MiB in %s: %s; --offload-dir names another folder", what,
                        bytes / 1048576.0, folder, strerror(reason));
    return fd;
}
// Such a file as memory. at: its address, the beginning of a page; null: any.
inline void* map_file(const std::string& folder, int64_t bytes, const char* what, void* at = nullptr) {
    const int fd = nameless_file(folder, bytes, what);
    void* p = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
    if (p == MAP_FAILED) runtime_failure("cannot map the file of %s: %s", what, strerror(errno));
    close(fd);
    return p;
}
// The pages in which bytes of such memory lie: may go from main memory; and are read in the
// background, for they will be touched soon.
inline void advise_mapped(const void* p, int64_t bytes, int advice) {
    const uintptr_t begin = (uintptr_t)p / MAPPED_PAGE * MAPPED_PAGE;
    const uintptr_t end = ((uintptr_t)p + bytes + MAPPED_PAGE - 1) / MAPPED_PAGE * MAPPED_PAGE;
    if (bytes > 0) madvise((void*)begin, end - begin, advice);
}
inline void release_mapped(const void* p, int64_t bytes) { advise_mapped(p, bytes, MADV_DONTNEED); }
inline void fetch_mapped(const void* p, int64_t bytes) { advise_mapped(p, bytes, MADV_WILLNEED); }
