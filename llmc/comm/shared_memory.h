// Buckets between processes of one host: each has the others' weights and gradients in its own
// address space, and reads them where they lie, on all its threads, in place of MPI or TCP
// (comm.h), by which they have met. On a page of each it says how far it is.
//
//     rank 0      is ready | reads of rank 1's memory      | may write again
//     rank 1      is ready | reads of rank 0's memory      | may write again
//                          all are ready                  all have read
//
// Buckets in other memory, and messages between two ranks (comm_send_start), go on by MPI or TCP.
//
// Sums are added in the order of ranks, as by MPI and TCP: the same bits.
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/clock.h"
#include "llmc/base/integer_math.h"
#include "llmc/base/system_state.h"
#include "llmc/comm/add_in_order.h"
#include "llmc/comm/tcp.h"

constexpr int64_t SHARED_PAGE_BYTES = 4096;  // on which a process says how far it is

// How the device of a process reads: f(i) for each i from 0 to n - 1, maybe on many threads (its
// parallel_for); to (bytes) = from, of which much is copied.
struct ReadingDevice {
    int64_t threads;
    void (*loop)(int64_t n, const std::function<void(int64_t i)>& f);
    void (*copy)(void* to, const void* from, int64_t bytes);
};

struct SharedMemory {
    struct Page {
        std::atomic<int64_t> ready, read;  // the turns for which this process was ready, and in which it has read
        std::atomic<int64_t> pid, key;
    };
    static_assert(std::atomic<int64_t>::is_always_lock_free, "a lock would be seen by one process alone");
    // Memory that each rank has, and where that of each lies in this process.
    struct Region {
        int64_t bytes;
        std::vector<char*> of_rank;
    };
    bool on = false;
    Region pages{};
    std::vector<Region> regions{};
    int64_t turns = 0;
    ReadingDevice device{};
    Transport others{};  // MPI or TCP, for what is not in a region

    Page& page(int64_t rank) const { return *(Page*)pages.of_rank[rank]; }
    // Of so many bytes at `data` in this process, the region; null if they are in none.
    const Region* find(const void* data, int64_t bytes) const {
        for (const Region& r : regions)
            if ((char*)data >= r.of_rank[comm.rank] && (char*)data + bytes <= r.of_rank[comm.rank] + r.bytes) return &r;
        return nullptr;
    }
};
inline SharedMemory shared_memory;

// -------------------------------------------------------------------------------------------------
// memory that others read

// A file in memory without a name, so that nothing is left of it when the processes end, and where
// it is mapped; null if there is none.
struct SharedFile {
    int fd = -1;
    char* memory = nullptr;
};
inline char* map_shared_file(int fd, int64_t bytes, int access) {
    void* const p = mmap(nullptr, bytes, access, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return nullptr;
#ifdef MADV_HUGEPAGE
    if (bytes >= (4 << 20)) madvise(p, bytes, MADV_HUGEPAGE);  // few systems have huge pages for it
#endif
    return (char*)p;
}
// Has the system provide a part of a file, next to the processor of this thread (NUMA). False if
// there is no room, which shows here and not in a step.
inline bool provide_part([[maybe_unused]] const SharedFile& file, int64_t begin, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
    if (madvise(file.memory + begin, bytes, MADV_POPULATE_WRITE) == 0) return true;
    if (errno != EINVAL) return false;  // else this is a Linux before 5.14
#endif
#ifdef __linux__
    return fallocate(file.fd, 0, begin, bytes) == 0;
#else
    return (void)begin, (void)bytes, false;
#endif
}
inline SharedFile make_shared_file(int64_t bytes) {
    SharedFile file;
#ifdef __linux__
    constexpr int64_t PART_BYTES = 2 << 20;
    file.fd = memfd_create("shared", MFD_CLOEXEC);
    if (file.fd >= 0 && ftruncate(file.fd, bytes) == 0)
        file.memory = map_shared_file(file.fd, bytes, PROT_READ | PROT_WRITE);
    std::atomic<bool> lacks{!file.memory};
    shared_memory.device.loop(lacks ? 0 : ceil_div(bytes, PART_BYTES), [&](int64_t i) {
        const int64_t begin = i * PART_BYTES;
        if (!provide_part(file, begin, std::min(PART_BYTES, bytes - begin))) lacks = true;
    });
    if (lacks && file.memory) munmap(std::exchange(file.memory, nullptr), bytes);
#else
    (void)bytes;
#endif
    return file;
}
// What a process says of its file, for others to find it.
struct FilePlace {
    int64_t pid, fd;
    uint64_t device, inode;
};
inline FilePlace place_of(const SharedFile& file) {
    struct stat status {};
    if (!file.memory || fstat(file.fd, &status) != 0) return {getpid(), -1, 0, 0};
    return {getpid(), file.fd, (uint64_t)status.st_dev, (uint64_t)status.st_ino};
}
// Maps the file of another process, to be read; null if this one may not.
inline char* map_file_of(const FilePlace& place, int64_t bytes) {
    const std::string name = format("/proc/%d/fd/%d", place.pid, place.fd);
    const int fd = place.fd < 0 ? -1 : open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return nullptr;
    struct stat status {};
    const bool same = fstat(fd, &status) == 0 && status.st_dev == place.device && status.st_ino == place.inode;
    char* const memory = same && status.st_size >= bytes ? map_shared_file(fd, bytes, PROT_READ) : nullptr;
    close(fd);
    return memory;
}
// Zeroed memory of each rank, which the others can read; all call this, with equal sizes. Nothing
// where one of them cannot have it.
inline SharedMemory::Region make_region(int64_t bytes) {
    SharedFile mine = make_shared_file(bytes);
    const std::vector<FilePlace> places = comm_gather(place_of(mine), "the shared memory");
    SharedMemory::Region region{bytes, {}};
    bool all = true;
    for (int64_t r = 0; r < comm.processes; r++) {
        region.of_rank.push_back(r == comm.rank ? mine.memory : map_file_of(places[r], bytes));
        all &= region.of_rank[r] != nullptr;
    }
    all = !comm_any(!all, "the shared memory");
    if (mine.fd >= 0) close(mine.fd);  // not before all have opened it
    if (all) return region;
    for (char* p : region.of_rank)
        if (p) munmap(p, bytes);
    return {};
}

// Memory of this process (bytes, zeroed) that the others read when its buckets are exchanged; all
// call this, with equal sizes. Null where they cannot.
inline void* map_shared(int64_t bytes) {
    if (!shared_memory.on || bytes == 0) return nullptr;
    SharedMemory::Region region = make_region(bytes);
    if (region.of_rank.empty()) return nullptr;
    shared_memory.regions.push_back(region);
    return region.of_rank[comm.rank];
}
// How much of the others' memory is in this process, since it has read there. The system counts
// that among what is resident here. (All of its own is, from the start.)
inline int64_t resident_of_others() {
    if (!shared_memory.on) return 0;
    int64_t own = shared_memory.pages.bytes;
    for (const SharedMemory::Region& region : shared_memory.regions) own += region.bytes;
    const double all = bytes_in_file("/proc/self/status", "RssShmem");
    return std::isnan(all) ? 0 : std::max<int64_t>(0, (int64_t)all - own);
}

// -------------------------------------------------------------------------------------------------
// turns

// Waits until a rank has done something in so many turns; exit 1 after comm.timeout_s, or if that
// process or one that is connected to this one has ended.
inline void wait_for_turns(const std::atomic<int64_t>& done, int64_t turns, int64_t rank) {
    double begin = 0, looked = 0;
    for (int64_t tries = 1; done.load(std::memory_order_acquire) < turns; tries++) {
        sched_yield();
        if (tries % 16 != 0) continue;
        const double now = now_seconds();
        if (begin == 0) begin = looked = now;
        if (now - looked < 0.02) continue;
        looked = now;
        int64_t ended = tcp_ended_rank();
        if (kill((pid_t)shared_memory.page(rank).pid, 0) != 0 && errno == ESRCH) ended = rank;
        if (ended >= 0)
            end_after_loss(ended, format("rank %d has ended: this one waited for it in an exchange of slices", ended));
        if (now - begin > (double)comm.timeout_s)
            end_after_loss(rank, format("waited %d s in an exchange of slices for rank %d: it hangs (--comm-timeout "
                                        "sets how long)",
                                        comm.timeout_s, rank));
    }
}
// A turn: the others of a group read of what this process has at `data` (bytes), in a region, and
// it reads of theirs. When all are ready, calls read(first, count, theirs) for ranges of n, on all
// threads; theirs[i] is what member i has at that place. The turn ends when all have read. All
// processes take the same turns, each with its group. False, with nothing done, if `data` is in no
// region.
template <class T, class Read>
bool take_turn(const CommGroup& group, const T* data, int64_t bytes, int64_t n, Read read) {
    constexpr int64_t LINE_BYTES = 64;
    SharedMemory& m = shared_memory;
    const SharedMemory::Region* const region = m.find(data, bytes);
    if (!region) return false;
    std::vector<const T*> theirs;
    for (int64_t i = 0; i < group.processes; i++)
        theirs.push_back((const T*)(region->of_rank[group.member(i)] + ((char*)data - region->of_rank[comm.rank])));
    const int64_t turns = ++m.turns;
    const auto wait = [&](std::atomic<int64_t> SharedMemory::Page::*done) {
        (m.page(comm.rank).*done).store(turns, std::memory_order_release);
        for (int64_t i = 0; i < group.processes; i++)
            wait_for_turns(m.page(group.member(i)).*done, turns, group.member(i));
    };
    wait(&SharedMemory::Page::ready);
    const int64_t most = round_up(n / m.device.threads + 1, LINE_BYTES);
    m.device.loop(ceil_div(n, most), [&](int64_t p) { read(p * most, std::min(most, n - p * most), theirs); });
    wait(&SharedMemory::Page::read);
    return true;
}

inline void shared_exchange(const Started& c, void* out, const void* data, int64_t bytes) {
    const CommGroup& group = c.group;
    const auto read = [&](int64_t first, int64_t count, const std::vector<const char*>& theirs) {
        for (int64_t i = 0; i < group.processes; i++)
            shared_memory.device.copy((char*)out + i * bytes + first, theirs[i] + group.rank * bytes + first, count);
    };
    if (!take_turn(group, (const char*)data, group.processes * bytes, bytes, read))
        shared_memory.others.exchange_start(c, out, data, bytes);
}
inline void shared_sum_slices(const Started& c, float* data, int64_t n_elems) {
    const CommGroup& group = c.group;
    const auto read = [&](int64_t first, int64_t count, std::vector<const float*> theirs) {
        for (const float*& source : theirs) source += group.rank * n_elems + first;
        add_in_order(data + group.rank * n_elems + first, theirs, count);
    };
    if (!take_turn(group, data, group.processes * n_elems * (int64_t)sizeof(float), n_elems, read))
        shared_memory.others.sum_slices_start(c, data, n_elems);
}
inline void shared_all_gather(const Started& c, void* data, int64_t bytes) {
    const CommGroup& group = c.group;
    const auto read = [&](int64_t first, int64_t count, const std::vector<const char*>& theirs) {
        for (int64_t i = 0; i < group.processes; i++)
            if (i != group.rank)
                shared_memory.device.copy((char*)data + i * bytes + first, theirs[i] + i * bytes + first, count);
    };
    if (!take_turn(group, (const char*)data, group.processes * bytes, bytes, read))
        shared_memory.others.all_gather_start(c, data, bytes);
}

// Has processes that are all on one host read each other's memory from here on, where map_shared()
// gave it. Where one of them cannot, all of them go on as before.
inline void share_memory(const ReadingDevice& device) {
    SharedMemory& m = shared_memory;
    m.device = device;
    m.pages = make_region(SHARED_PAGE_BYTES);
    if (m.pages.of_rank.empty()) return;
    // A file of that number may be another one's, if a rank is on another host.
    const int64_t key = (int64_t)getpid() << 40 ^ (int64_t)(now_seconds() * 1e6);
    m.page(comm.rank).pid = getpid(), m.page(comm.rank).key = key;
    const std::vector<int64_t> keys = comm_gather(key, "the shared memory");
    bool all_here = true;
    for (int64_t r = 0; r < comm.processes; r++) all_here &= m.page(r).key == keys[r];
    m.on = !comm_any(!all_here, "the shared memory");
    if (!m.on) return;
    m.others = comm.transport;
    comm.transport.exchange_start = shared_exchange, comm.transport.sum_slices_start = shared_sum_slices;
    comm.transport.all_gather_start = shared_all_gather;
    // Sums do not travel while this process computes, so all are postponed until they are needed:
    // processes that are not equally fast then wait for each other once, and not at every bucket.
    comm.message_bytes = INT64_MAX;
}
