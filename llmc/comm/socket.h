// TCP sockets that never block. Every wait is a poll() that ends at a given time of now_seconds();
// a signal does not end it. Functions that return a socket return -1 and set errno if they fail.
#pragma once
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>
#include "llmc/base/check.h"
#include "llmc/base/clock.h"

// Waits until one of the sockets is ready, or until `end`; false in that case.
inline bool poll_until(pollfd* polled, size_t n, double end) {
    for (;;) {
        const double left_ms = std::max(0.0, end - now_seconds()) * 1e3;
        const int ready = poll(polled, n, (int)std::min(left_ms + 1, 3.6e6));
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) runtime_failure("cannot wait for connections: %s", strerror(errno));
        if (now_seconds() >= end) return false;
    }
}
inline bool poll_until(int fd, short events, double end) {
    pollfd polled{fd, events, 0};
    return poll_until(&polled, 1, end);
}

// Sending on a connection that was closed must not raise SIGPIPE. macOS has no flag for that, but a
// property of the socket (prepare_socket).
#ifdef MSG_NOSIGNAL
constexpr int SEND_WITHOUT_SIGNAL = MSG_NOSIGNAL;
#else
constexpr int SEND_WITHOUT_SIGNAL = 0;
#endif

// Send or receive as many bytes as possible without waiting, and return how many: 0 if none, -1 if
// the connection is broken or was closed.
inline ssize_t send_some(int fd, const void* data, size_t bytes) {
    const ssize_t n = send(fd, data, bytes, SEND_WITHOUT_SIGNAL);
    return n >= 0 ? n : errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}
inline ssize_t receive_some(int fd, void* data, size_t bytes) {
    const ssize_t n = recv(fd, data, bytes, 0);
    return n > 0 ? n : n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}
// Receives all bytes by `end`; false if that fails.
inline bool receive_by(int fd, void* data, size_t bytes, double end) {
    for (size_t got = 0; got < bytes;) {
        const ssize_t n = receive_some(fd, (char*)data + got, bytes - got);
        if (n < 0 || (n == 0 && !poll_until(fd, POLLIN, end))) return false;
        got += n;
    }
    return true;
}
// Sends all bytes by `end`; false if that fails.
inline bool send_by(int fd, const void* data, size_t bytes, double end) {
    for (size_t sent = 0; sent < bytes;) {
        const ssize_t n = send_some(fd, (const char*)data + sent, bytes - sent);
        if (n < 0 || (n == 0 && !poll_until(fd, POLLOUT, end))) return false;
        sent += n;
    }
    return true;
}
// Sends a small message at once; false if the socket does not take all of it. To be used where
// nothing else is being sent.
template <class Message>
inline bool send_message(int fd, const Message& message) {
    return send_some(fd, &message, sizeof(message)) == (ssize_t)sizeof(message);
}

// True if the other side has closed the connection, or it is broken.
inline bool is_closed(int fd) {
    char byte;
    const ssize_t n = recv(fd, &byte, 1, MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// True if the other side has closed the connection, even if bytes that it sent before have not been
// read yet.
inline bool has_hung_up(int fd) {
#ifdef POLLRDHUP
    pollfd polled{fd, POLLRDHUP, 0};
    return poll(&polled, 1, 0) > 0;
#else
    return is_closed(fd);
#endif
}

// Makes a socket send small messages at once (no Nagle's algorithm), never block, and not be
// inherited by programs that this one starts.
inline void prepare_socket(int fd) {
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &yes, sizeof(yes));
#endif
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
}

inline bool is_loopback(in_addr address) { return ntohl(address.s_addr) >> 24 == 127; }

// The IPv4 addresses of a host, given by name or number; none if it is not known.
inline std::vector<in_addr> addresses_of(const std::string& host) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET, hints.ai_socktype = SOCK_STREAM;
    std::vector<in_addr> addresses;
    if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return addresses;
    for (addrinfo* a = found; a; a = a->ai_next) addresses.push_back(((sockaddr_in*)a->ai_addr)->sin_addr);
    freeaddrinfo(found);
    return addresses;
}

inline sockaddr_in socket_address(in_addr address, int port) {
    sockaddr_in whole{};
    whole.sin_family = AF_INET, whole.sin_addr = address, whole.sin_port = htons((uint16_t)port);
    return whole;
}

// A socket that listens at an address and port. If port is 0, any free one is chosen and stored
// there.
inline int listen_on(in_addr address, int& port) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (fd < 0) return -1;
    sockaddr_in whole = socket_address(address, port);
    socklen_t length = sizeof(whole);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(fd, (sockaddr*)&whole, length) != 0 || listen(fd, 1024) != 0) {
        const int reason = errno;
        close(fd);
        errno = reason;
        return -1;
    }
    prepare_socket(fd);
    getsockname(fd, (sockaddr*)&whole, &length);
    port = ntohs(whole.sin_port);
    return fd;
}

// A connection to an address and port, made by `end`.
inline int connect_by(in_addr address, int port, double end) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return -1;
    prepare_socket(fd);
    const sockaddr_in whole = socket_address(address, port);
    int reason = connect(fd, (const sockaddr*)&whole, sizeof(whole)) == 0 ? 0 : errno;
    if (reason == EINPROGRESS || reason == EINTR) {
        socklen_t length = sizeof(reason);
        if (!poll_until(fd, POLLOUT, end)) reason = ETIMEDOUT;
        else getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &length);
    }
    if (reason == 0) return fd;
    close(fd);
    errno = reason;
    return -1;
}

// Raises the limit of open files of this process to n, or as far as the system permits.
inline void allow_open_files(int64_t n) {
    rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= (rlim_t)n) return;
    limit.rlim_cur = std::min(limit.rlim_max, (rlim_t)n);
    setrlimit(RLIMIT_NOFILE, &limit);
}
