// Buckets between processes of one host: each reads the memory of the others, on all its threads,
// in place of MPI or TCP (comm.h), by which they have met. The system copies (process_vm_readv);
// what they map together is a page of each, on which it says where its data lies and how far it is.
//
//     rank 0      says where | reads of rank 1's memory      | may write again
//     rank 1      says where | reads of rank 0's memory      | may write again
//                            all have said so                all have read
//
// Messages between two ranks (comm_send_start) go on by MPI or TCP.
//
// Sums are added in the order of ranks, as by TCP: the same bits. (MPI may choose another order for
// four and more.)
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#include "llmc/base/clock.h"
#include "llmc/base/integer_math.h"
#include "llmc/comm/add_in_order.h"
#include "llmc/comm/tcp.h"
#ifdef __linux__
#include <sys/prctl.h>
#endif

// What a process needs: a page, and for each thread room for the pieces that it adds, which fit the
// cache.
constexpr int64_t SHARED_PAGE_BYTES = 4096, SHARED_PIECE_BYTES = 1 << 18;
inline int64_t shared_bytes(int64_t threads) { return SHARED_PAGE_BYTES + threads * SHARED_PIECE_BYTES; }

// Calls f(i) for each i from 0 to n - 1, maybe on many threads: the parallel_for of the device.
using ParallelLoop = void (*)(int64_t n, const std::function<void(int64_t i)>& f);

struct SharedMemory {
    struct Page {
        std::atomic<int64_t> ready, read;  // the turns in which this process has said where its data is, and read
        std::atomic<const char*> data;     // of its turn
        std::atomic<int64_t> pid;
    };
    static_assert(std::atomic<int64_t>::is_always_lock_free, "a lock would be seen by one process alone");
    char* pages = nullptr;  // of each rank; null: not in use
    int64_t turns = 0;
    ParallelLoop loop = nullptr;

    Page& page(int64_t rank) const { return *(Page*)(pages + rank * SHARED_PAGE_BYTES); }
};
inline SharedMemory shared_memory;

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
// to (bytes) = what a rank has at that address. False if it has ended, or this process may not read
// it.
inline bool read_memory(int64_t rank, void* to, const char* from, int64_t bytes) {
#ifdef __linux__
    const pid_t pid = (pid_t)shared_memory.page(rank).pid;
    for (int64_t done = 0; done < bytes;) {
        const iovec here = {(char*)to + done, (size_t)(bytes - done)};
        const iovec there = {(char*)from + done, (size_t)(bytes - done)};
        const int64_t n = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (n <= 0) return false;
        done += n;
    }
    return true;
#else
    return (void)rank, (void)to, (void)from, bytes == 0;
#endif
}
// A turn: the others of a group read of what this process has at `data`, and it reads of theirs.
// When all have said where that is, calls read(first, count, from) for ranges of n, `most` at a
// time, on all threads; from(i, to, offset, bytes) reads of member i. The turn ends when all have
// read. All processes take the same turns, each with its group.
template <class Read>
void take_turn(const CommGroup& group, const void* data, int64_t n, int64_t most, Read read) {
    SharedMemory& m = shared_memory;
    const int64_t turns = ++m.turns;
    const auto wait = [&](std::atomic<int64_t> SharedMemory::Page::*done) {
        (m.page(comm.rank).*done).store(turns, std::memory_order_release);
        for (int64_t i = 0; i < group.processes; i++)
            wait_for_turns(m.page(group.member(i)).*done, turns, group.member(i));
    };
    m.page(comm.rank).data = (const char*)data;
    wait(&SharedMemory::Page::ready);
    std::atomic<int64_t> lost{-1};
    const auto from = [&](int64_t i, void* to, int64_t offset, int64_t bytes) {
        const int64_t rank = group.member(i);
        if (!read_memory(rank, to, m.page(rank).data + offset, bytes)) lost = rank;
    };
    m.loop(ceil_div(n, most), [&](int64_t p) { read(p * most, std::min(most, n - p * most), from); });
    if (lost >= 0) end_after_loss(lost, format("rank %d has ended: this one was reading its slices", (int64_t)lost));
    wait(&SharedMemory::Page::read);
}

inline void shared_exchange(const Started& c, void* out, const void* data, int64_t bytes) {
    const CommGroup& group = c.group;
    take_turn(group, data, bytes, SHARED_PIECE_BYTES, [&](int64_t first, int64_t count, auto from) {
        for (int64_t i = 0; i < group.processes; i++)
            from(i, (char*)out + i * bytes + first, group.rank * bytes + first, count);
    });
}
inline void shared_sum_slices(const Started& c, float* data, int64_t n_elems) {
    const CommGroup& group = c.group;
    const int64_t P = group.processes, own = group.rank * n_elems, FLOAT = sizeof(float);
    const int64_t most = std::max<int64_t>(1, SHARED_PIECE_BYTES / FLOAT / (P - 1));
    take_turn(group, data, n_elems, most, [&](int64_t first, int64_t count, auto from) {
        thread_local std::vector<float> pieces(SHARED_PIECE_BYTES / FLOAT);
        float *piece = pieces.data(), *const mine = data + own + first;
        std::vector<const float*> sources(P, mine);
        for (int64_t i = 0; i < P; i++) {
            if (i == group.rank) continue;
            from(i, piece, (own + first) * FLOAT, count * FLOAT);
            sources[i] = piece, piece += count;
        }
        add_in_order(mine, sources, count);
    });
}
inline void shared_all_gather(const Started& c, void* data, int64_t bytes) {
    const CommGroup& group = c.group;
    take_turn(group, data, bytes, SHARED_PIECE_BYTES, [&](int64_t first, int64_t count, auto from) {
        for (int64_t i = 0; i < group.processes; i++)
            if (i != group.rank) from(i, (char*)data + i * bytes + first, i * bytes + first, count);
    });
}

// A file of so many zeros in memory, without a name, so that nothing is left of it when the
// processes end. Returns its descriptor, -1 if there is no room or this system has no such files.
inline int make_shared_file(int64_t bytes) {
#ifdef __linux__
    const int fd = memfd_create("pages", MFD_CLOEXEC);
    const std::vector<char> zeros(bytes);  // are written, so that a lack of memory shows here, not in a step
    if (fd < 0 || write(fd, zeros.data(), bytes) == bytes) return fd;
    close(fd);
#else
    (void)bytes;
#endif
    return -1;
}
// True if this process can read the memory of all others, each of which has the key there, and must
// keep it until it has heard of all.
inline bool reads_all(const uint64_t& key) {
    shared_memory.page(comm.rank).data = (const char*)&key;
    comm_barrier("the shared memory");  // all have said where
    bool all = true;
    for (int64_t r = 0; r < comm.processes; r++) {
        uint64_t its = 0;
        all &= read_memory(r, &its, shared_memory.page(r).data, sizeof(its)) && its == key;
    }
    return all;
}
inline void loop_in_order(int64_t n, const std::function<void(int64_t i)>& f) {
    for (int64_t i = 0; i < n; i++) f(i);
}
// Has processes that are all on one host exchange buckets by shared memory from here on. Where one
// of them cannot, all of them go on as before.
inline void share_memory(ParallelLoop loop = loop_in_order) {
    const int64_t bytes = comm.processes * SHARED_PAGE_BYTES, KEY_AT = 64;
    struct Place {
        int64_t pid, fd;  // where rank 0 has the file
        uint64_t key;     // in the file and in each process, so that none of another host is taken for it
    } place = {};
    int fd = -1;
    if (comm.rank == 0) {
        fd = make_shared_file(bytes);
        place = {getpid(), fd, (uint64_t)getpid() << 40 ^ (uint64_t)(now_seconds() * 1e6)};
        if (fd >= 0 && pwrite(fd, &place.key, sizeof(place.key), KEY_AT) < 0) place.fd = -1;
    }
    place = comm_gather(place, "the shared memory")[0];
    if (comm.rank > 0 && place.fd >= 0)
        fd = open(format("/proc/%d/fd/%d", place.pid, place.fd).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    uint64_t key = 0;
    void* memory = MAP_FAILED;
    if (fd >= 0 && place.fd >= 0 && pread(fd, &key, sizeof(key), KEY_AT) == sizeof(key) && key == place.key)
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const auto everywhere = [](bool here) { return !comm_any(!here, "the shared memory"); };
    bool all = everywhere(memory != MAP_FAILED);
    if (fd >= 0) close(fd);  // not before all have opened it
    if (all) {
#ifdef __linux__
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where only a parent may read the memory of a process (Yama)
#endif
        shared_memory = {(char*)memory, 0, loop};
        shared_memory.page(comm.rank).pid = getpid();
        all = everywhere(reads_all(key));
    }
    if (!all) {
        shared_memory = {};
        if (memory != MAP_FAILED) munmap(memory, bytes);
        return;
    }
    comm.transport.exchange_start = shared_exchange, comm.transport.sum_slices_start = shared_sum_slices;
    comm.transport.all_gather_start = shared_all_gather;
    // Sums do not travel while this process computes, so all are postponed until they are needed:
    // processes that are not equally fast then wait for each other once, and not at every bucket.
    comm.message_bytes = INT64_MAX;
}
