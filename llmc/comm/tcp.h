// Collectives over TCP, for machines without MPI. Every process has a connection to every other
// (mesh.h). A thread of its own carries what was started, while the others compute:
//
//     exchange       piece r of the data goes to rank r
//     sum of slices  an exchange whose pieces rank r adds up in the order of ranks: the same bits run after run,
//                    and by shared memory. (A ring that passes partial sums on sends the same bytes, and adds
//                    each slice in an order of its own.)
//     all-gather     a ring: rank r sends its slice to rank r + 1, and after it what comes from rank r - 1, as it
//                    comes. Each slice enters a machine once, however many of its processes wait for it.
//     message        from one rank to one other
//
// Of P slices a process sends P - 1, and receives as many. All ranks start the same collectives in
// the same order, and two ranks the messages between them, so what arrives on a connection needs no
// label: it belongs to the first that still lacks bytes from there.
//
// No process waits forever: if no byte has moved for comm.timeout_s, or a connection breaks, the
// run ends with a message that names the rank on the other side.
#pragma once
#include <chrono>
#include <csignal>
#include <system_error>
#include <thread>
#include "llmc/comm/tcp_traffic.h"

inline void tcp_wake() {
    const char byte = 0;
    if (write(tcp.thread->wake[1], &byte, 1) < 0) return;  // full: it wakes up anyway
}
// Starts the thread. Signals are for the others: their handlers interrupt no sums.
inline void tcp_start_thread() {
    tcp.thread = new TcpThread;
    if (pipe(tcp.thread->wake) != 0) runtime_failure("cannot make a pipe: %s", strerror(errno));
    for (int fd : tcp.thread->wake) fcntl(fd, F_SETFL, O_NONBLOCK), fcntl(fd, F_SETFD, FD_CLOEXEC);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread(tcp_carry, std::ref(*tcp.thread)).detach();
    } catch (const std::system_error& e) {
        runtime_failure("cannot start the thread that talks to the other processes: %s", e.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}
// Waits until is_so(), which is asked while nobody else changes the thread's state; exit 1 if the
// thread has failed.
template <class Condition>
inline void tcp_wait_until(Condition is_so, const char* what) {
    TcpThread& t = *tcp.thread;
    std::unique_lock<std::mutex> lock(t.mutex);
    while (t.failure.before.empty() && !is_so(t)) {
        if (!while_polling) {
            t.changed.wait(lock);
            continue;
        }
        t.changed.wait_for(lock, std::chrono::milliseconds(1));
        lock.unlock();
        while_polling();
        lock.lock();
    }
    const TcpFailure failure = t.failure;
    std::vector<Span> spans;
    spans.swap(t.spans);
    lock.unlock();
    for (const Span& span : spans) trace.add_communication(span);
    if (!failure.before.empty()) end_after_loss(failure.lost, failure.before + " in " + what + failure.after);
}
inline void tcp_wait(Collective number, const char* what) {
    const auto complete = [=](const TcpThread& t) {
        const auto begin = t.incomplete.begin(), end = t.incomplete.end();
        return number == ALL_COLLECTIVES ? begin == end : std::find(begin, end, number) == end;
    };
    if (tcp.thread) tcp_wait_until(complete, what);
}
inline bool tcp_is_complete(Collective number) {
    const std::lock_guard<std::mutex> lock(tcp.thread->mutex);
    const std::vector<Collective>& left = tcp.thread->incomplete;
    return std::find(left.begin(), left.end(), number) == left.end();
}

// Gives the thread a collective. sends, receives: the flows' bytes; a ring has one of each, a
// message one to or from `peer`, the others one of each for every other rank.
inline void tcp_start(TcpCollective&& c, int64_t peer = -1) {
    const int64_t P = c.is.group.processes, rank = c.is.group.rank;
    if (c.kind == TCP_RING)
        c.flows = {{(rank + 1) % P, true, (P - 1) * c.bytes}, {(rank + P - 1) % P, false, (P - 1) * c.bytes}};
    // beginning with the next rank, so that not all send to the same
    if (c.kind == TCP_MESSAGE) c.flows = {{peer, c.from != nullptr, c.bytes}};
    for (int64_t i = 1; i < P && (c.kind == TCP_EXCHANGE || c.kind == TCP_SUM); i++)
        for (const bool sends : {true, false}) c.flows.push_back({(rank + i) % P, sends, c.bytes});
    c.begin = now_seconds();
    std::fegetenv(&c.mode);
    {
        std::lock_guard<std::mutex> lock(tcp.thread->mutex);
        tcp.thread->incomplete.push_back(c.is.number);
        tcp.thread->given.push_back(std::move(c));
    }
    tcp_wake();
}

// ---- the collectives of comm.h

inline void tcp_exchange(const Started& c, void* out, const void* data, int64_t bytes) {
    memcpy((char*)out + c.group.rank * bytes, (const char*)data + c.group.rank * bytes, bytes);
    tcp_start({c, TCP_EXCHANGE, (const char*)data, bytes, (char*)out, bytes});
}
inline void tcp_sum_slices(const Started& c, float* data, int64_t n_elems) {
    const int64_t bytes = n_elems * (int64_t)sizeof(float);
    tcp_start({c, TCP_SUM, (const char*)data, bytes, (char*)(data + c.group.rank * n_elems), bytes});
}
inline void tcp_all_gather(const Started& c, void* data, int64_t bytes) {
    tcp_start({c, TCP_RING, nullptr, 0, (char*)data, bytes});
}
inline void tcp_send(const Started& c, const void* data, int64_t bytes, int64_t to) {
    tcp_start({c, TCP_MESSAGE, (const char*)data, 0, nullptr, bytes}, to);
}
inline void tcp_receive(const Started& c, void* data, int64_t bytes, int64_t from) {
    tcp_start({c, TCP_MESSAGE, nullptr, 0, (char*)data, bytes}, from);
}
inline void tcp_gather(const CommGroup& group, void* out, const void* mine, int64_t bytes, const char* what) {
    const Started c{++comm.last, {{"gather"}}, group};
    memmove((char*)out + group.rank * bytes, mine, bytes);
    tcp_start({c, TCP_EXCHANGE, (const char*)out + group.rank * bytes, 0, (char*)out, bytes});
    tcp_wait(c.number, what);
}

// The lowest rank that this one is connected to and that has ended; -1 if there is none.
inline int64_t tcp_ended_rank() {
    for (size_t r = 0; r < tcp.peers.size(); r++)
        if (tcp.peers[r] >= 0 && has_hung_up(tcp.peers[r])) return (int64_t)r;
    return -1;
}

inline void tcp_end() {
    if (tcp.thread) {
        tcp.thread->mutex.lock();
        tcp.thread->ends = true;
        tcp.thread->mutex.unlock();
        tcp_wake();
        tcp_wait_until([](const TcpThread& t) { return t.has_ended; }, "the end");
        for (int fd : tcp.thread->wake) close(fd);
    }
    for (int fd : tcp.peers)
        if (fd >= 0) close(fd);
    tcp = {};
}
// Exchanges data over these connections from here on.
inline void tcp_begin(const std::vector<int>& peers) {
    tcp.processes = comm.processes, tcp.peers = peers;
    tcp_start_thread();
    comm.transport = {tcp_gather, tcp_exchange, tcp_sum_slices, tcp_all_gather, nullptr,        tcp_wait,
                      tcp_end,    nullptr,      tcp_send,       tcp_receive,    tcp_is_complete};
}
