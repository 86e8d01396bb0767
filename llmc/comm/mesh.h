// From connections to rank 0, by which the processes of a run have met, to one between any two:
//
//     rank 0   -> others   a key drawn for this run, and whether all are on this machine
//     others   -> rank 0   the port at which this one listens
//     rank 0   -> others   where everybody listens
//     rank r   -> 1..r-1   connects, and introduces itself with that key (handshake.h)
//
// So a slice of a sum goes straight to the rank that adds it up, which does so in the order of
// ranks; what all must know arrives after one message; and whoever waits for a process that ends or
// hangs knows which one it is. (NCCL, too, connects all machines: a firewall must let it.)
#pragma once
#include "llmc/comm/rendezvous.h"

// What rank 0 says of the run, and of a rank. The address is 0 for rank 0's own machine.
struct MeshKey {
    SipKey key;
    int64_t all_here;
};
struct Door {
    in_addr address;
    int32_t port;
};

// The address of the other side of a connection, or of this one's.
inline in_addr address_of(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    name(fd, (sockaddr*)&address, &length);
    return address.sin_addr;
}

// Messages between rank 0 and the others, before there is anything else. Exit 1 if one does not
// arrive in time.
struct StarLink {
    int64_t peer;
    int fd;
    double end;

    void must(bool good) const {
        if (good) return;
        if (is_closed(fd)) runtime_failure("rank %d has ended: its connection broke while all met", peer);
        runtime_failure("waited for rank %d while all met: it hangs (--comm-timeout sets how long)", peer);
    }
    template <class T>
    void send(const T* data, int64_t n) const {
        must(send_by(fd, data, n * sizeof(T), end));
    }
    template <class T>
    void receive(T* data, int64_t n) const {
        must(receive_by(fd, data, n * sizeof(T), end));
    }
};

// Rank 0's part: says to all where the others listen.
inline void tell_doors(const std::vector<int>& peers, double end) {
    const int64_t P = (int64_t)peers.size();
    const Nonce drawn = fresh_nonce();
    MeshKey mesh{{drawn.word[0], drawn.word[1]}, true};
    std::vector<Door> doors(P);
    for (int64_t r = 1; r < P; r++) {
        doors[r].address = address_of(peers[r], getpeername);
        const bool here = is_loopback(doors[r].address);
        if (here) doors[r].address.s_addr = 0;
        mesh.all_here &= here;
    }
    for (int64_t r = 1; r < P; r++) StarLink{r, peers[r], end}.send(&mesh, 1);
    for (int64_t r = 1; r < P; r++) StarLink{r, peers[r], end}.receive(&doors[r].port, 1);
    for (int64_t r = 1; r < P; r++) StarLink{r, peers[r], end}.send(doors.data(), P);
}

// The connections of this process to all others, by rank; -1 for itself. met: those that it has so
// far, rank 0 to all by rank, the others one to rank 0.
inline std::vector<int> connect_all(std::vector<int> met, Member me, int64_t timeout_s) {
    const double end = now_seconds() + (double)timeout_s;
    if (me.rank == 0) return tell_doors(met, end), met;
    allow_open_files(me.processes + 64);
    me.flags.clear();  // rank 0 has compared them
    const StarLink rank0{0, met[0], end};
    MeshKey mesh;
    rank0.receive(&mesh, 1);
    int port = 0;
    const in_addr listen_to{htonl(mesh.all_here ? INADDR_LOOPBACK : INADDR_ANY)};
    const int listener = listen_on(listen_to, port);
    if (listener < 0) runtime_failure("cannot listen for the ranks above %d: %s", me.rank, strerror(errno));
    const int32_t own_port = port;
    std::vector<Door> doors(me.processes);
    rank0.send(&own_port, 1);
    rank0.receive(doors.data(), me.processes);
    std::vector<int> lower{met[0]};
    for (int64_t r = 1; r < me.rank; r++) {
        in_addr address = doors[r].address;
        if (address.s_addr == 0) address = address_of(met[0], getpeername);
        char host[INET_ADDRSTRLEN];
        inet_ntop(AF_INET, &address, host, sizeof(host));
        const Place place{host, doors[r].port, mesh.key, true, r};
        lower.push_back(join(
            me, [&](Place& found) { return found = place, std::string(); },
            "every process must be able to connect to every other", timeout_s));
    }
    std::vector<int> all = take_in_all(listener, me, mesh.key, timeout_s);
    std::copy(lower.begin(), lower.end(), all.begin());
    return all;
}
