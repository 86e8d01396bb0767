// Buckets between processes of one host: through memory that all of them map, in place of MPI or
// TCP (comm.h), by which they have met.
//
// Each process has a piece for others to read, twice. In a turn every process fills its piece, then
// reads those of the others; in the next turn it fills its second piece, so it need not wait until
// all have read the first. Pieces are small enough to stay in the cache.
//
//     turn:       0            1            2
//     rank 0      fill a read  fill b read  fill a read      a is filled again when all ranks have
//     rank 1      fill a read  fill b read  fill a read      ended turn 0
//
// Messages between two ranks (comm_send_start) go on by MPI or TCP.
//
// Sums are added in the order of ranks, as by TCP: the same bits. (MPI may choose another order for
// four and more.)
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>
#include "llmc/base/clock.h"
#include "llmc/comm/add_in_order.h"
#include "llmc/comm/tcp.h"

constexpr int64_t SHARED_PIECE_BYTES = 1 << 18;
// What one process has of the memory: two pieces, and a page on which it says how far it is.
constexpr int64_t SHARED_PROGRESS_BYTES = 4096, SHARED_BYTES = SHARED_PROGRESS_BYTES + 2 * SHARED_PIECE_BYTES;

struct SharedMemory {
    struct Progress {
        std::atomic<int64_t> filled, read;  // the turns in which this process has done so
        std::atomic<int64_t> pid;
    };
    static_assert(std::atomic<int64_t>::is_always_lock_free, "a lock would be seen by one process alone");
    char* all = nullptr;  // SHARED_BYTES of each rank; null: not in use
    int64_t turn = 0;

    Progress& progress(int64_t rank) const { return *(Progress*)(all + rank * SHARED_BYTES); }
    char* piece(int64_t rank) const {
        return all + rank * SHARED_BYTES + SHARED_PROGRESS_BYTES + turn % 2 * SHARED_PIECE_BYTES;
    }
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
        if (kill((pid_t)shared_memory.progress(rank).pid, 0) != 0 && errno == ESRCH) ended = rank;
        if (ended >= 0)
            end_after_loss(ended, format("rank %d has ended: this one waited for it in an exchange of slices", ended));
        if (now - begin > (double)comm.timeout_s)
            end_after_loss(rank, format("waited %d s in an exchange of slices for rank %d: it hangs (--comm-timeout "
                                        "sets how long)",
                                        comm.timeout_s, rank));
    }
}
// A turn: fill(piece) writes what others read of this process; read() is called when all pieces of
// its group are filled. All processes take the same turns, each with its group.
template <class Fill, class Read>
void take_turn(const CommGroup& group, Fill fill, Read read) {
    SharedMemory& m = shared_memory;
    for (int64_t r = 0; r < comm.processes; r++) wait_for_turns(m.progress(r).read, m.turn - 1, r);
    fill(m.piece(comm.rank));
    m.progress(comm.rank).filled.store(m.turn + 1, std::memory_order_release);
    for (int64_t i = 0; i < group.processes; i++)
        wait_for_turns(m.progress(group.member(i)).filled, m.turn + 1, group.member(i));
    read();
    m.progress(comm.rank).read.store(m.turn + 1, std::memory_order_release);
    m.turn++;
}

// In a turn each process gives every other a part of what is for that one.
inline void shared_exchange(const Started& c, void* out, const void* data, int64_t bytes) {
    const CommGroup& group = c.group;
    const int64_t P = group.processes, own = group.rank, part = SHARED_PIECE_BYTES / P;
    const auto at = [&](const void* all, int64_t rank, int64_t first) { return (char*)all + rank * bytes + first; };
    memcpy(at(out, own, 0), at(data, own, 0), bytes);
    for (int64_t first = 0; first < bytes; first += part) {
        const int64_t n = std::min(part, bytes - first);
        take_turn(
            group,
            [&](char* piece) {
                for (int64_t r = 0; r < P; r++) memcpy(piece + r * part, at(data, r, first), n);
            },
            [&] {
                for (int64_t r = 0; r < P; r++)
                    if (r != own) memcpy(at(out, r, first), shared_memory.piece(group.member(r)) + own * part, n);
            });
    }
}
// In a turn each process gives every other a part of that one's slice.
inline void shared_sum_slices(const Started& c, float* data, int64_t n_elems) {
    const CommGroup& group = c.group;
    const int64_t P = group.processes, own = group.rank, part = SHARED_PIECE_BYTES / (int64_t)sizeof(float) / P;
    float* const mine = data + own * n_elems;
    std::vector<const float*> sources(P);
    for (int64_t first = 0; first < n_elems; first += part) {
        const int64_t n = std::min(part, n_elems - first);
        take_turn(
            group,
            [&](char* piece) {
                for (int64_t r = 0; r < P; r++)
                    if (r != own) memcpy((float*)piece + r * part, data + r * n_elems + first, n * sizeof(float));
            },
            [&] {
                for (int64_t r = 0; r < P; r++)
                    sources[r] =
                        r == own ? mine + first : (const float*)shared_memory.piece(group.member(r)) + own * part;
                add_in_order(mine + first, sources, n);
            });
    }
}
inline void shared_all_gather(const Started& c, void* data, int64_t bytes) {
    const CommGroup& group = c.group;
    const auto slice = [&](int64_t rank, int64_t first) { return (char*)data + rank * bytes + first; };
    for (int64_t first = 0; first < bytes; first += SHARED_PIECE_BYTES) {
        const int64_t n = std::min(SHARED_PIECE_BYTES, bytes - first);
        take_turn(
            group, [&](char* piece) { memcpy(piece, slice(group.rank, first), n); },
            [&] {
                for (int64_t r = 0; r < group.processes; r++)
                    if (r != group.rank) memcpy(slice(r, first), shared_memory.piece(group.member(r)), n);
            });
    }
}

// A file of so many zeros in memory, without a name, so that nothing is left of it when the
// processes end. Returns its descriptor, -1 if there is no room or this system has no such files.
inline int make_shared_file(int64_t bytes) {
#ifdef __linux__
    const int fd = memfd_create("slices", MFD_CLOEXEC);
    const std::vector<char> zeros(bytes);  // are written, so that a lack of memory shows here, not in a step
    if (fd < 0 || write(fd, zeros.data(), bytes) == bytes) return fd;
    close(fd);
#else
    (void)bytes;
#endif
    return -1;
}
// Has processes that are all on one host exchange buckets by shared memory from here on. Where one
// of them cannot, all of them go on as before.
inline void share_memory() {
    const int64_t bytes = comm.processes * SHARED_BYTES, KEY_AT = 64;
    struct Place {
        int64_t pid, fd;  // where rank 0 has the file
        uint64_t key;     // is on its first page, so that a file of another host is not taken for this one
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
    bool all = true;
    for (const int ready : comm_gather((int)(memory != MAP_FAILED), "the shared memory")) all &= ready;
    if (fd >= 0) close(fd);  // not before all have opened it
    if (!all) {
        if (memory != MAP_FAILED) munmap(memory, bytes);
        return;
    }
    shared_memory = {(char*)memory, 0};
    shared_memory.progress(comm.rank).pid = getpid();
    comm_barrier("the shared memory");  // all have said so
    comm.transport.exchange_start = shared_exchange, comm.transport.sum_slices_start = shared_sum_slices;
    comm.transport.all_gather_start = shared_all_gather;
    // Sums do not travel while this process computes, so all are postponed until they are needed:
    // processes that are not equally fast then wait for each other once, and not at every bucket.
    comm.message_bytes = INT64_MAX;
}
