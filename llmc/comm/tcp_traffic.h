// What carries the bytes of collectives over TCP (tcp.h): a thread, and for every connection the
// collectives that lack bytes there, in the order of their start.
//
//     tcp_report()   takes up what was started, says what is complete
//     tcp_move()     sends and receives what the connections take and have, without waiting
//     tcp_add()      adds pieces of a sum up, once those of all ranks are there
//     tcp_pause()    waits until a connection is ready, or something is started
#pragma once
#include <cfenv>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include "llmc/comm/add_in_order.h"
#include "llmc/comm/comm.h"
#include "llmc/comm/socket.h"

struct TcpThread;
// The processes as the thread knows them; those of comm.h may be others for a time (Alone).
struct Tcp {
    int64_t processes = 1;
    std::vector<int> peers;  // by rank; -1 for this one
    TcpThread* thread = nullptr;

    bool active() const { return !peers.empty(); }
};
inline Tcp tcp;

// One direction of a collective on one connection. peer: the other side's rank in the group.
struct TcpFlow {
    int64_t peer;
    bool sends;
    int64_t bytes, done = 0;
};

// Sums are added in pieces of so many bytes, of which one of each other rank is kept.
constexpr int64_t TCP_PIECE_BYTES = 1 << 18;

enum TcpKind { TCP_EXCHANGE, TCP_SUM, TCP_RING, TCP_MESSAGE };
struct TcpCollective {
    Started is;
    TcpKind kind;
    const char* from;    // what is sent to rank r begins at from + r * stride
    int64_t stride;      // 0: the same to all
    char* to;            // what rank r sends goes to to + r * bytes; a message, to `to`
    int64_t bytes;       // of a piece, slice or message
    double begin = 0;    // when it was started
    std::fenv_t mode{};  // how the thread that started it treats denormals; so are they in the sum
    std::vector<TcpFlow> flows{};
    // TCP_SUM: a piece of every rank, taken while the collective receives; so many bytes are added.
    std::vector<char> pieces{};
    int64_t added = 0;

    int64_t piece_bytes() const { return std::min(TCP_PIECE_BYTES, bytes); }
    int64_t piece_end() const { return std::min(added + TCP_PIECE_BYTES, bytes); }
    bool is_complete() const {
        for (const TcpFlow& f : flows)
            if (f.done < f.bytes) return false;
        return kind != TCP_SUM || added == bytes;
    }
};

struct TcpSpan {
    char* at;
    int64_t bytes;
};
// What a flow can move now.
inline TcpSpan tcp_next(TcpCollective& c, const TcpFlow& f) {
    if (c.kind == TCP_RING) {
        const int64_t P = c.is.group.processes, nth = f.done / c.bytes, within = f.done % c.bytes;
        const int64_t slice = (c.is.group.rank - nth - (f.sends ? 0 : 1) + 2 * P) % P;
        const int64_t here = f.sends ? c.bytes + c.flows[1].done : f.bytes;  // own slice, and what has come
        return {c.to + slice * c.bytes + within, std::min(c.bytes - within, std::min(here, f.bytes) - f.done)};
    }
    if (f.sends) return {(char*)c.from + f.peer * c.stride + f.done, f.bytes - f.done};
    if (c.kind == TCP_MESSAGE) return {c.to + f.done, f.bytes - f.done};
    if (c.kind == TCP_EXCHANGE) return {c.to + f.peer * c.bytes + f.done, f.bytes - f.done};
    // no more than a piece before all others have sent theirs
    if (c.pieces.empty()) c.pieces.resize(c.is.group.processes * c.piece_bytes());
    return {c.pieces.data() + f.peer * c.piece_bytes() + f.done - c.added, c.piece_end() - f.done};
}
// Adds the pieces up if all are there.
inline void tcp_add(TcpCollective& c) {
    for (const TcpFlow& f : c.flows)
        if (!f.sends && f.done < c.piece_end()) return;
    float* const mine = (float*)(c.to + c.added);
    std::vector<const float*> sources(c.is.group.processes);
    for (int64_t r = 0; r < c.is.group.processes; r++)
        sources[r] = r == c.is.group.rank ? mine : (const float*)(c.pieces.data() + r * c.piece_bytes());
    std::fesetenv(&c.mode);
    add_in_order(mine, sources, (c.piece_end() - c.added) / (int64_t)sizeof(float));
    c.added = c.piece_end();
}

// Why the run must end: between the two halves of the sentence stands what was waited for.
struct TcpFailure {
    int64_t lost = -1;
    std::string before{}, after{};
};

// What the thread that carries the bytes and the others share; it is never destroyed, since the
// thread may be in it when the program ends.
struct TcpThread {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<TcpCollective> given;     // started, not yet taken up
    std::vector<Collective> incomplete;  // started, not yet complete
    std::vector<Span> spans;             // of those that are complete
    TcpFailure failure;
    bool ends = false, has_ended = false;
    int wake[2] = {-1, -1};  // a pipe: the thread waits for it and for the connections at once
};

// The collectives that are under way, as the thread sees them. first[sends][r]: those that lack
// bytes on the connection to rank r, in the order of their start.
struct TcpTraffic {
    struct Entry {
        TcpCollective* collective;
        TcpFlow* flow;

        int64_t peer() const { return collective->is.group.member(flow->peer); }  // among all
    };
    std::vector<std::unique_ptr<TcpCollective>> collectives;
    std::vector<std::deque<Entry>> queues[2];
    double moved_at = 0;  // when bytes have moved last

    TcpTraffic() {
        for (auto& queue : queues) queue.resize(tcp.processes);
    }
    // Calls visit(entry, what it can move) for the first entry of each queue that can move
    // anything.
    template <class Visit>
    void for_each_ready(Visit visit) {
        for (const int sends : {0, 1})
            for (auto& queue : queues[sends]) {
                if (queue.empty()) continue;
                const TcpSpan span = tcp_next(*queue[0].collective, *queue[0].flow);
                if (span.bytes > 0) visit(queue[0], span);
            }
    }
    void take_up(TcpCollective&& given) {
        collectives.push_back(std::make_unique<TcpCollective>(std::move(given)));
        TcpCollective& c = *collectives.back();
        for (TcpFlow& f : c.flows)
            if (const Entry e{&c, &f}; f.bytes > 0) queues[f.sends][e.peer()].push_back(e);
    }
};

inline void tcp_fail(TcpThread& t, const TcpFailure& why) {
    std::lock_guard<std::mutex> lock(t.mutex);
    t.failure = why, t.has_ended = true;
    t.changed.notify_all();
}
// Moves what can move without waiting, once on every connection. Returns whether anything has;
// `broken` becomes the rank to which the connection is broken.
inline bool tcp_move(TcpTraffic& traffic, int64_t& broken) {
    bool moved = false;
    traffic.for_each_ready([&](const TcpTraffic::Entry& e, const TcpSpan& span) {
        TcpFlow& f = *e.flow;
        const int fd = tcp.peers[e.peer()];
        const ssize_t n = f.sends ? send_some(fd, span.at, span.bytes) : receive_some(fd, span.at, span.bytes);
        if (n < 0) broken = e.peer();
        if (n <= 0) return;
        moved = true, f.done += n;
        if (!f.sends && e.collective->kind == TCP_SUM) tcp_add(*e.collective);
        if (f.done == f.bytes) traffic.queues[f.sends][e.peer()].pop_front();
    });
    if (moved) traffic.moved_at = now_seconds();
    return moved;
}
// Waits until something can move, or is given. Returns why the run must end if that takes too long.
inline TcpFailure tcp_pause(const TcpThread& t, TcpTraffic& traffic) {
    std::vector<pollfd> polled{{t.wake[0], POLLIN, 0}};
    std::string waits;
    int64_t peer = -1;
    traffic.for_each_ready([&](const TcpTraffic::Entry& e, const TcpSpan&) {
        polled.push_back({tcp.peers[e.peer()], (short)(e.flow->sends ? POLLOUT : POLLIN), 0});
        const bool knows = e.collective->kind != TCP_RING || e.collective->is.group.processes == 2;
        if (!waits.empty()) return;
        peer = e.peer();
        waits = format("to %s rank %d: it hangs%s", e.flow->sends ? "send to" : "hear from", peer,
                       knows ? "" : ", or another rank that it waits for");
    });
    const double end = traffic.collectives.empty() ? INFINITY : traffic.moved_at + (double)comm.timeout_s;
    const bool ready = poll_until(polled.data(), polled.size(), std::min(end, now_seconds() + 3600));
    for (char bytes[64]; polled[0].revents && read(t.wake[0], bytes, sizeof(bytes)) > 0;) continue;
    if (ready || now_seconds() < end) return {};
    return {peer, format("waited %d s", comm.timeout_s), format(" %s (--comm-timeout sets how long)", waits)};
}

// Takes up what was given, and says what is complete. False if the thread is to end.
inline bool tcp_report(TcpThread& t, TcpTraffic& traffic) {
    std::lock_guard<std::mutex> lock(t.mutex);
    if (traffic.collectives.empty()) traffic.moved_at = now_seconds();
    for (; !t.given.empty(); t.given.pop_front()) traffic.take_up(std::move(t.given.front()));
    auto& all = traffic.collectives;
    const auto ended = [&](const std::unique_ptr<TcpCollective>& c) {
        if (!c->is_complete()) return false;
        t.spans.push_back({c->is.work, c->begin, now_seconds()});
        t.incomplete.erase(std::find(t.incomplete.begin(), t.incomplete.end(), c->is.number));
        t.changed.notify_all();
        return true;
    };
    all.erase(std::remove_if(all.begin(), all.end(), ended), all.end());
    t.has_ended = t.ends;
    if (t.ends) t.changed.notify_all();
    return !t.ends;
}
// What the thread does.
inline void tcp_carry(TcpThread& t) {
    TcpTraffic traffic;
    while (tcp_report(t, traffic)) {
        int64_t broken = -1;
        if (tcp_move(traffic, broken)) continue;
        if (broken >= 0) return tcp_fail(t, {broken, format("rank %d has ended: its connection broke", broken)});
        const TcpFailure why = tcp_pause(t, traffic);
        if (!why.before.empty()) return tcp_fail(t, why);
    }
}
