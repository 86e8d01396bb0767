// How fast the collectives of llmc/comm/tcp.h are on this machine, beside a plain socket: two
// processes, each of which sends and receives as many bytes at once. Rounds are interleaved, and of
// each the best counts.
//
//     make build/bench/tcp && build/bench/tcp [MIB [ROUNDS]]
//
// It prints a table: what a process sends in a second, and its share of what the plain socket does.
#include <sys/wait.h>
#include "llmc/comm/comm_start.h"

constexpr int64_t MIB = 1 << 20;
enum Way { PLAIN, RING, SUM, EXCHANGE, WAYS };
const char* const NAMES[WAYS] = {"plain socket", "all-gather, the ring", "reduce-scatter", "exchange"};

// Sends and receives `bytes` on one connection, as much at a time as it takes.
static void send_and_receive(int fd, const char* out, char* in, int64_t bytes) {
    for (int64_t sent = 0, received = 0; sent < bytes || received < bytes;) {
        const ssize_t s = sent < bytes ? send_some(fd, out + sent, bytes - sent) : 0;
        const ssize_t r = received < bytes ? receive_some(fd, in + received, bytes - received) : 0;
        if (s < 0 || r < 0) runtime_failure("the other process has ended");
        sent += s, received += r;
        const int wanted = (sent < bytes ? POLLOUT : 0) | (received < bytes ? POLLIN : 0);
        if (s + r == 0 && wanted) poll_until(fd, (short)wanted, now_seconds() + 60);
    }
}

// Two connections between the processes: one of the run, and a plain one.
static int plain_connection(int64_t rank, int listener, int port) {
    const int fd = rank == 0 ? (poll_until(listener, POLLIN, now_seconds() + 60), accept(listener, nullptr, nullptr))
                             : connect_by({htonl(INADDR_LOOPBACK)}, port, now_seconds() + 60);
    if (fd < 0) runtime_failure("no plain connection: %s", strerror(errno));
    prepare_socket(fd);
    return fd;
}

static void measure(int64_t rank, int listener, int port, int meeting, int64_t bytes, int64_t rounds) {
    comm_start(2, rank, "tcp", format("127.0.0.1:%d", meeting), "", 60, "tcp");
    const int fd = plain_connection(rank, listener, port);
    std::vector<char> data(2 * bytes, 1), out(2 * bytes);
    double best[WAYS] = {INFINITY, INFINITY, INFINITY, INFINITY};
    for (int64_t round = 0; round < rounds; round++)
        for (int way = 0; way < WAYS; way++) {
            comm_barrier("the start");
            const double begin = now_seconds();
            if (way == PLAIN) send_and_receive(fd, data.data(), out.data(), bytes);
            if (way == RING) comm_all_gather_start(data.data(), bytes, 0);
            if (way == SUM) comm_reduce_scatter_start((float*)data.data(), bytes / (int64_t)sizeof(float), 0);
            if (way == EXCHANGE) comm_exchange_start(out.data(), data.data(), bytes, 0);
            comm_wait("a collective");
            comm_barrier("the end");
            best[way] = std::min(best[way], now_seconds() - begin);
        }
    if (rank == 0) {
        printf("| what a process sends while it receives as much | GB/s | of the plain socket |\n|---|---|---|\n");
        for (int way = 0; way < WAYS; way++)
            printf("| %s | %.2f | %.0f%% |\n", NAMES[way], 1e-9 * (double)bytes / best[way],
                   100 * best[PLAIN] / best[way]);
    }
    comm_end();
}

int main(int argc, char** argv) {
    const int64_t mib = argc > 1 ? atoll(argv[1]) : 32, rounds = argc > 2 ? atoll(argv[2]) : 10;
    if (mib < 1 || rounds < 1) usage_error("%s [MIB [ROUNDS]]: whole numbers from 1 on are accepted", argv[0]);
    int port = 0, meeting = 0;
    const int listener = listen_on({htonl(INADDR_LOOPBACK)}, port);
    close(listen_on({htonl(INADDR_LOOPBACK)}, meeting));
    const pid_t other = fork();
    measure(other == 0 ? 1 : 0, listener, port, meeting, mib * MIB, rounds);
    int status = 0;
    if (other > 0) waitpid(other, &status, 0);
    return status != 0;
}
