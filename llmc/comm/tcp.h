// Collectives over TCP, for machines without MPI. Everything goes through rank 0, which has a
// connection to every other rank (rendezvous.h). TCP is meant for meeting and for small messages
// (NCCL carries the gradients of GPUs); CPU trainers can also sum their gradients with it, slowly.
//
// No process waits forever: if no byte has moved for timeout_s, or a connection breaks, the run
// ends with a message that names the rank on the other side.
#pragma once
#include "llmc/comm/socket.h"

struct Tcp {
    std::vector<int> peers;  // rank 0: by rank, [0] unused; others: [0] is rank 0
    int64_t timeout_s = 600;

    bool active() const { return !peers.empty(); }
};
inline Tcp tcp;

// Called again and again while this process waits for another, if it is set: a simulated GPU
// computes only while its host lets it, a real one by itself.
inline void (*while_polling)() = nullptr;

inline bool poll_with_others(int fd, short event, double end) {
    if (!while_polling) return poll_until(fd, event, end);
    while (!poll_until(fd, event, std::min(end, now_seconds() + 1e-3))) {
        if (now_seconds() >= end) return false;
        while_polling();
    }
    return true;
}

// Sends or receives all bytes: `move` is send_some or receive_some (socket.h), `event` what to wait
// for when it cannot go on. Exit 1 if that fails; `doing` and `what` are for the message.
template <class Data, class Move>
inline void tcp_move(int64_t peer, Data* data, size_t bytes, short event, Move move, const char* doing,
                     const char* what) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = move(tcp.peers[peer], data + done, bytes - done);
        if (n < 0) runtime_failure("rank %d has ended: its connection broke in %s", peer, what);
        if (n == 0 && !poll_with_others(tcp.peers[peer], event, now_seconds() + (double)tcp.timeout_s))
            runtime_failure("waited %d s in %s to %s rank %d: it hangs%s (--comm-timeout sets how long)", tcp.timeout_s,
                            what, doing, peer, peer == 0 ? ", or another rank that it waits for" : "");
        done += n;
    }
}
inline void tcp_send(int64_t peer, const void* data, size_t bytes, const char* what) {
    tcp_move(peer, (const char*)data, bytes, POLLOUT, send_some, "send to", what);
}
inline void tcp_receive(int64_t peer, void* data, size_t bytes, const char* what) {
    tcp_move(peer, (char*)data, bytes, POLLIN, receive_some, "hear from", what);
}

// The lowest rank that this one is connected to and that has ended; -1 if there is none.
inline int64_t tcp_ended_rank() {
    for (size_t r = 0; r < tcp.peers.size(); r++)
        if (tcp.peers[r] >= 0 && has_hung_up(tcp.peers[r])) return (int64_t)r;
    return -1;
}

inline void tcp_end() {
    for (int fd : tcp.peers)
        if (fd >= 0) close(fd);
    tcp.peers.clear();
}

// out (processes * bytes) = every rank's mine (bytes), in the order of ranks. mine may be slice
// `rank` of out.
inline void tcp_gather(char* out, const char* mine, size_t bytes, int64_t processes, int64_t rank, const char* what) {
    if (rank > 0) {
        tcp_send(0, mine, bytes, what);
        return tcp_receive(0, out, processes * bytes, what);
    }
    memmove(out, mine, bytes);
    for (int64_t r = 1; r < processes; r++) tcp_receive(r, out + r * bytes, bytes, what);
    for (int64_t r = 1; r < processes; r++) tcp_send(r, out, processes * bytes, what);
}

// Slice `rank` of data (processes * n_elems) = that slice of the sum of all ranks' data, added in
// the order of ranks. Rank 0 adds what arrives to its own data piece by piece, so no rank needs
// memory for another's data.
inline void tcp_reduce_scatter(float* data, size_t n_elems, int64_t processes, int64_t rank, const char* what) {
    constexpr size_t PIECE_ELEMS = 1 << 16;
    if (rank > 0) {
        tcp_send(0, data, processes * n_elems * sizeof(float), what);
        return tcp_receive(0, data + rank * n_elems, n_elems * sizeof(float), what);
    }
    const size_t all_elems = processes * n_elems;
    std::vector<float> piece(std::min(PIECE_ELEMS, all_elems));
    for (int64_t r = 1; r < processes; r++)
        for (size_t first = 0, elems; first < all_elems; first += elems) {
            elems = std::min(piece.size(), all_elems - first);
            tcp_receive(r, piece.data(), elems * sizeof(float), what);
            for (size_t i = 0; i < elems; i++) data[first + i] += piece[i];
        }
    for (int64_t r = 1; r < processes; r++) tcp_send(r, data + r * n_elems, n_elems * sizeof(float), what);
}

// Slice r of `from` (processes * bytes) becomes slice `rank` of `to` on rank r.
inline void tcp_all_to_all(char* to, const char* from, size_t bytes, int64_t processes, int64_t rank,
                           const char* what) {
    const size_t row = processes * bytes;
    if (rank > 0) {
        tcp_send(0, from, row, what);
        return tcp_receive(0, to, row, what);
    }
    std::vector<char> rows(processes * row), column(row);  // row r: what rank r sends
    memcpy(rows.data(), from, row);
    for (int64_t r = 1; r < processes; r++) tcp_receive(r, &rows[r * row], row, what);
    for (int64_t r = 0; r < processes; r++) {
        char* const out = r == 0 ? to : column.data();
        for (int64_t s = 0; s < processes; s++) memcpy(out + s * bytes, &rows[s * row + r * bytes], bytes);
        if (r > 0) tcp_send(r, out, row, what);
    }
}
