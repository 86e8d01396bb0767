// What the tests of processes that meet without MPI share: ports, connections, and copies of the
// test program that take part in a run.
#pragma once
#include "dev/test/run_program.h"
#include "llmc/comm/comm_start.h"
#include "llmc/comm/shared_memory.h"

const std::string CPU = "./train_gpt2_cpu";
const in_addr LOOPBACK{htonl(INADDR_LOOPBACK)};

inline int free_port() {
    int port = 0;
    close(listen_on(LOOPBACK, port));
    return port;
}
inline int connect_to(int port) { return connect_by(LOOPBACK, port, now_seconds() + 5); }
// A connection to a port, made as soon as somebody listens there.
inline int connect_soon(int port) {
    for (int tries = 0; tries < 500; tries++, usleep(10000)) {
        const int fd = connect_to(port);
        if (fd >= 0) return fd;
    }
    return -1;
}

// Does work() in a copy of this program, which then ends with status 0; one that hangs is ended
// after 60 s.
template <class Work>
inline pid_t begin(const std::string& name, Work work) {
    fflush(stdout);
    const pid_t child = fork();
    if (child != 0) return child;
    if (!freopen((folder + "/" + name + "err").c_str(), "w", stderr)) _exit(126);
    setvbuf(stderr, nullptr, _IONBF, 0);
    alarm(60);
    work();
    comm_end();
    _exit(0);
}
inline void join_run(int processes, int rank, int port, int timeout_s = 30, const std::string& program = "test") {
    comm_start(processes, rank, "tcp", format("127.0.0.1:%d", port), "", timeout_s, program);
}
inline bool said(const Outcome& r, int status, const std::string& text) {
    const bool good = r.status == status && contains(r.err, text);
    if (!good) printf("    status %d, stderr: %s\n", r.status, r.err.substr(0, 400).c_str());
    return good;
}
