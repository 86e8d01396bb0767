// Processes that find each other by TCP, for clusters without MPI: rank 0 listens, the others connect, and whatever all must hear goes by way of
// rank 0. Meant for small messages and for meeting (NCCL carries the gradients of GPUs); CPU trainers can run on it too, slowly.
//
// Where rank 0 is to be found is either said (-pi tcp -ps ADDRESS[:PORT]) or left in a file of a folder that all share (-pi fs -pf FOLDER).
// Nobody waits for ever, and a connection that breaks ends the run with the rank on its other side.
#pragma once
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include "llmc/clock.h"
#include "llmc/file.h"

constexpr int TCP_DEFAULT_PORT = 29500;
constexpr uint64_t TCP_MAGIC = 0x3274706750435431u;

struct Tcp {
    std::vector<int> peers;     // rank 0: by rank, [0] unused; others: [0] is rank 0
    int64_t timeout_s = 600;
    std::string rendezvous;     // the file to remove at the end

    bool active() const { return !peers.empty(); }
};
inline Tcp tcp;

struct TcpHello { uint64_t magic; int64_t processes, rank; };

// Until fd can be read (written) or the time is up; false then.
inline bool tcp_ready(int fd, short events, double seconds) {
    struct pollfd p{fd, events, 0};
    return poll(&p, 1, (int)(seconds * 1e3)) > 0;
}
inline void tcp_send(int64_t peer, const void* data, size_t bytes, const char* what) {
    for (size_t sent = 0; sent < bytes;) {
        if (!tcp_ready(tcp.peers[peer], POLLOUT, (double)tcp.timeout_s)) runtime_failure("waited %lld s to send to rank %lld in %s: it hangs (--comm-timeout sets how long)", (long long)tcp.timeout_s, (long long)peer, what);
        const ssize_t n = send(tcp.peers[peer], (const char*)data + sent, bytes - sent, MSG_NOSIGNAL);
        if (n <= 0) runtime_failure("rank %lld has ended: its connection broke in %s", (long long)peer, what);
        sent += n;
    }
}
inline void tcp_receive(int64_t peer, void* data, size_t bytes, const char* what) {
    for (size_t got = 0; got < bytes;) {
        if (!tcp_ready(tcp.peers[peer], POLLIN, (double)tcp.timeout_s)) runtime_failure("waited %lld s in %s for rank %lld: it hangs (--comm-timeout sets how long)", (long long)tcp.timeout_s, what, (long long)peer);
        const ssize_t n = recv(tcp.peers[peer], (char*)data + got, bytes - got, 0);
        if (n <= 0) runtime_failure("rank %lld has ended: its connection broke in %s", (long long)peer, what);
        got += n;
    }
}

// Listens on the port, 0 for any that is free; returns the socket, and the port in it.
inline int tcp_listen(int& port) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    struct sockaddr_in address{};
    address.sin_family = AF_INET, address.sin_addr.s_addr = INADDR_ANY, address.sin_port = htons((uint16_t)port);
    socklen_t length = sizeof(address);
    if (bind(fd, (struct sockaddr*)&address, length) != 0 || listen(fd, 1024) != 0)
        runtime_failure("cannot listen on port %d: %s; -ps ADDRESS:PORT chooses another", port, strerror(errno));
    getsockname(fd, (struct sockaddr*)&address, &length);
    port = ntohs(address.sin_port);
    return fd;
}
// A connection to host:port, -1 if there is none now.
inline int tcp_connect(const std::string& host, int port) {
    struct addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET, hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return -1;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const bool good = connect(fd, found->ai_addr, found->ai_addrlen) == 0;
    freeaddrinfo(found);
    if (good) return fd;
    close(fd);
    return -1;
}

// Small messages go at once, not when there are enough of them.
inline void tcp_no_delay(int fd) {
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

// Rank 0: takes in all others.
inline void tcp_accept_all(int listener, int64_t processes) {
    tcp.peers.assign(processes, -1);
    const double end = now_seconds() + (double)tcp.timeout_s;
    for (int64_t missing = processes - 1; missing > 0;) {
        if (!tcp_ready(listener, POLLIN, std::max(0.0, end - now_seconds()))) {
            std::string who;
            for (int64_t r = 1; r < processes; r++)
                if (tcp.peers[r] < 0) who += format("%s%lld", who.empty() ? "" : ", ", (long long)r);
            runtime_failure("waited %lld s, and rank %s did not connect", (long long)tcp.timeout_s, who.c_str());
        }
        const int fd = accept(listener, nullptr, nullptr);
        TcpHello hello{};
        const bool speaks = fd >= 0 && tcp_ready(fd, POLLIN, 5) && recv(fd, &hello, sizeof(hello), MSG_WAITALL) == (ssize_t)sizeof(hello) && hello.magic == TCP_MAGIC;
        if (!speaks) {  // somebody else's connection
            close(fd);
            continue;
        }
        const bool fits = hello.processes == processes && hello.rank > 0 && hello.rank < processes && tcp.peers[hello.rank] < 0;
        const char answer = fits ? 1 : 0;
        if (send(fd, &answer, 1, MSG_NOSIGNAL) != 1 || !fits)
            runtime_failure("a process came as rank %lld of %lld, but this run has %lld processes, each rank once: -pn and -pr must agree everywhere", (long long)hello.rank, (long long)hello.processes, (long long)processes);
        tcp_no_delay(fd);
        tcp.peers[hello.rank] = fd;
        missing--;
    }
    close(listener);
}

// Rank > 0: connects to where `find` says rank 0 is, asking again until it answers. find returns false while it does not know.
template <class Find>
inline void tcp_join(int64_t processes, int64_t rank, Find find, const char* hint) {
    const double end = now_seconds() + (double)tcp.timeout_s;
    std::string host, last = "nowhere";
    for (int port = 0;; usleep(100000)) {
        if (now_seconds() > end) runtime_failure("waited %lld s for rank 0 at %s: %s", (long long)tcp.timeout_s, last.c_str(), hint);
        if (!find(host, port)) continue;
        last = format("%s:%d", host.c_str(), port);
        const int fd = tcp_connect(host, port);
        if (fd < 0) continue;
        const TcpHello hello{TCP_MAGIC, processes, rank};
        char answer = 0;
        const bool answered = send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == (ssize_t)sizeof(hello) && tcp_ready(fd, POLLIN, (double)tcp.timeout_s) && recv(fd, &answer, 1, 0) == 1;
        if (!answered) {  // something else listens there, or rank 0 is gone again
            close(fd);
            continue;
        }
        if (!answer) runtime_failure("rank 0 at %s does not know a rank %lld of %lld: -pn and -pr must agree everywhere", last.c_str(), (long long)rank, (long long)processes);
        tcp_no_delay(fd);
        tcp.peers = {fd};
        return;
    }
}

inline void tcp_start(const std::string& server, int64_t processes, int64_t rank) {
    const size_t colon = server.rfind(':');
    const long long environment = launcher_value({"MASTER_PORT"});
    int port = environment > 0 ? (int)environment : TCP_DEFAULT_PORT;
    std::string host = server;
    if (colon != server.npos) host = server.substr(0, colon), port = atoi(server.c_str() + colon + 1);
    if (host.empty() || port < 1 || port > 65535) usage_error("--server-ip %s is no address; HOST or HOST:PORT is accepted", server.c_str());
    if (rank == 0) return tcp_accept_all(tcp_listen(port), processes);
    tcp_join(processes, rank, [&](std::string& h, int& p) { return h = host, p = port, true; }, "it was not started, is elsewhere, or a firewall is between (-ps, and MASTER_PORT, say where)");
}

// The file holds host and port of rank 0. One that an earlier run left leads nowhere: rank 0 writes its own over it, the others try again.
inline void fs_start(const std::string& folder, int64_t processes, int64_t rank) {
    const std::string path = folder + "/rendezvous.txt";
    if (!folder_exists(folder)) runtime_failure("--fs-path %s is no folder; one that all processes share is accepted", folder.c_str());
    if (rank == 0) {
        int port = 0;
        const int listener = tcp_listen(port);
        char host[256] = "";
        gethostname(host, sizeof(host) - 1);
        const int probe = tcp_connect(host, port);
        if (probe < 0) strcpy(host, "127.0.0.1");  // a machine that does not know its own name
        else close(probe);
        const std::string line = format("%s %d\n", host, port);
        FileWriter file(path);
        file.write(line.data(), line.size());
        file.commit();
        tcp.rendezvous = path;
        return tcp_accept_all(listener, processes);
    }
    tcp_join(processes, rank, [&](std::string& host, int& port) {
        char name[256];
        FILE* file = fopen(path.c_str(), "r");
        const bool good = file && fscanf(file, "%255s %d", name, &port) == 2;
        if (file) fclose(file);
        if (good) host = name;
        return good;
    }, "rank 0 has written no file there, or the file is an earlier run's (-pf)");
}

inline void tcp_end() {
    for (int fd : tcp.peers)
        if (fd >= 0) close(fd);
    tcp.peers.clear();
    if (!tcp.rendezvous.empty()) unlink(tcp.rendezvous.c_str());
}

// out (processes * bytes) = every rank's mine (bytes).
inline void tcp_gather(char* out, const char* mine, size_t bytes, int64_t processes, int64_t rank, const char* what) {
    if (rank > 0) {
        tcp_send(0, mine, bytes, what);
        return tcp_receive(0, out, processes * bytes, what);
    }
    memmove(out, mine, bytes);
    for (int64_t r = 1; r < processes; r++) tcp_receive(r, out + r * bytes, bytes, what);
    for (int64_t r = 1; r < processes; r++) tcp_send(r, out, processes * bytes, what);
}
// sum (n_elems) = slice `rank` of the sum of data (processes * n_elems), in the order of ranks. sum may be that slice of data.
inline void tcp_reduce_scatter(float* sum, const float* data, size_t n_elems, int64_t processes, int64_t rank, const char* what) {
    if (rank > 0) {
        tcp_send(0, data, processes * n_elems * sizeof(float), what);
        return tcp_receive(0, sum, n_elems * sizeof(float), what);
    }
    std::vector<float> total(data, data + processes * n_elems), other(processes * n_elems);
    for (int64_t r = 1; r < processes; r++) {
        tcp_receive(r, other.data(), other.size() * sizeof(float), what);
        for (size_t i = 0; i < total.size(); i++) total[i] += other[i];
    }
    for (int64_t r = 1; r < processes; r++) tcp_send(r, total.data() + r * n_elems, n_elems * sizeof(float), what);
    memcpy(sum, total.data(), n_elems * sizeof(float));
}
