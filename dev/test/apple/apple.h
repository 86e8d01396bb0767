// Makes a compiler on Linux take the branches for macOS, and refuse what macOS does not have. It is
// included before all else (-include; dev/test/portable.sh). No substitute for a Mac: it knows the
// differences listed here, and no others.
#pragma once
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <cctype>
#include <cerrno>
#include <cfloat>
#include <chrono>
#include <climits>
#include <clocale>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#undef __linux__
#undef __linux
#undef linux
#undef __GLIBC__
#undef _GNU_SOURCE
#define __APPLE__ 1

// 64-bit integers are long long there, and size_t is unsigned long: two types to std::min and to
// overloads.
typedef long long apple_int64;
typedef unsigned long long apple_uint64;
namespace std {
using ::apple_int64;
using ::apple_uint64;
}  // namespace std
#define int64_t apple_int64
#define uint64_t apple_uint64

// Members, constants and functions that macOS does not have, or has under another name.
#define st_mtimespec st_mtim
#undef MSG_NOSIGNAL
#undef MSG_CMSG_CLOEXEC
#undef SOCK_CLOEXEC
#undef SOCK_NONBLOCK
#undef POLLRDHUP
#undef MADV_HUGEPAGE
#undef MAP_POPULATE
#undef MAP_HUGETLB
#undef O_PATH
#undef O_TMPFILE
#undef O_DIRECT
#undef O_LARGEFILE
#undef CPU_ALLOC
#undef CPU_ALLOC_SIZE
#undef CPU_COUNT
#undef CPU_COUNT_S
#undef CPU_FREE
#undef CPU_ISSET
#undef CPU_ISSET_S
#undef CPU_SET
#undef CPU_ZERO
#undef RUSAGE_THREAD
#undef SYS_arch_prctl
#pragma GCC poison st_mtim st_atim st_ctim cpu_set_t sched_getaffinity sched_setaffinity sched_getcpu
#pragma GCC poison pthread_setaffinity_np pthread_getaffinity_np syscall prctl eventfd memfd_create gettid
#pragma GCC poison epoll_create1 epoll_wait accept4 pipe2 dup3 fallocate posix_fallocate posix_fadvise sync_file_range
#pragma GCC poison fdatasync malloc_trim mallopt malloc_usable_size mremap sendfile splice renameat2 getrandom
#pragma GCC poison signalfd timerfd_create inotify_init strchrnul mempcpy memrchr get_nprocs sysinfo
#pragma GCC poison program_invocation_name program_invocation_short_name secure_getenv sigtimedwait sigwaitinfo ppoll
#pragma GCC poison clock_nanosleep pthread_barrier_t sem_timedwait canonicalize_file_name fopencookie open64 stat64
