// How processes meet by TCP, and talk: strangers who want in or want to disturb, ranks that stop or
// are interrupted, addresses that lead nowhere, files that others left. Parts of it run in forked
// copies of this program, parts in the trainer.
#include <ifaddrs.h>
#include <sys/time.h>
#include <csignal>
#include "dev/test/run_program.h"
#include "llmc/checkpoint.h"

static const std::string CPU = "./train_gpt2_cpu";
static const in_addr LOOPBACK{htonl(INADDR_LOOPBACK)};

static int free_port() {
    int port = 0;
    close(listen_on(LOOPBACK, port));
    return port;
}
static int connect_to(int port) { return connect_by(LOOPBACK, port, now_seconds() + 5); }
// Connected as soon as somebody listens there.
static int connect_soon(int port) {
    for (int tries = 0; tries < 500; tries++, usleep(10000)) {
        const int fd = connect_to(port);
        if (fd >= 0) return fd;
    }
    return -1;
}

// A copy of this program does it, then ends with status 0; one that hangs is ended.
template <class Work>
static pid_t begin(const std::string& name, Work work) {
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
static void join_run(int processes, int rank, int port, int timeout_s = 30, const std::string& program = "test") {
    comm_start(processes, rank, "tcp", format("127.0.0.1:%d", port), "", timeout_s, program);
}
static bool said(const Outcome& r, int status, const std::string& text) {
    const bool good = r.status == status && contains(r.err, text);
    if (!good) printf("    status %d, stderr: %s\n", r.status, r.err.substr(0, 400).c_str());
    return good;
}

// ---- talking

// A value for every element of every rank, such that sums depend on their order; not inlined, lest
// a product and a sum become one operation.
__attribute__((noinline)) static float value_of(int rank, size_t i) {
    return (float)((i * 2654435761u + rank * 40503u) % 1000003u) * (rank == 1 ? 1e-3f : rank == 2 ? 97.0f : 1.0f);
}
static float sum_of(size_t i) { return (value_of(0, i) + value_of(1, i)) + value_of(2, i); }

static void sum_under_signals(int rank, int port) {
    join_run(3, rank, port);
    struct sigaction action = {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;  // as the trainer's; poll() is interrupted all the same
    for (int signal : {SIGALRM, SIGUSR1}) sigaction(signal, &action, nullptr);
    const itimerval often{{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &often, nullptr);
    const size_t n = 100003;
    std::vector<float> data(3 * n);
    for (int round = 0; round < 40; round++) {
        usleep(rank == round % 3 ? 3000 : 0);  // the others wait for this one
        for (size_t i = 0; i < data.size(); i++) data[i] = value_of(rank, i + round);
        comm_reduce_scatter(data.data(), n, "the sum");
        for (size_t i = rank * n; i < (rank + 1) * n; i++)
            if (data[i] != sum_of(i + round)) _exit(3);
        comm_all_gather_start(data.data(), n, 0);
        for (size_t i = 0; i < data.size(); i += 31)
            if (data[i] != sum_of(i + round)) _exit(4);
        if (comm_sum(rank, "a number") != 3) _exit(5);
    }
}

static void talking() {
    start_test("SipHash: the published values");
    const SipKey key{0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
    EXPECT(siphash(key, "", 0) == 0x726fdb47dd0e0e31u);
    EXPECT(siphash(key, "\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16", 15) == 0xa129ca6149be45e5u);
    start_test("collectives under a hail of signals: the sums of all ranks, bit for bit in their order");
    const int port = free_port();
    pid_t ranks[3];
    for (int r = 0; r < 3; r++) ranks[r] = begin(format("sum%d", r), [=] { sum_under_signals(r, port); });
    for (int r = 0; r < 3; r++) EXPECT(said(finish(ranks[r], format("sum%d", r)), 0, ""));
    start_test("a rank that stops while others send it much: noticed after --comm-timeout, on either side");
    for (int stopped : {0, 1}) {
        const int meet = free_port();
        auto talk = [=](int rank) {
            join_run(2, rank, meet, 1);
            comm_barrier("the start");
            if (rank == stopped) raise(SIGSTOP);
            std::vector<float> data(64 << 20 >> 2, 1.0f);
            comm_all_gather_start(data.data(), data.size() / 2, 0);
        };
        const pid_t first = begin("first", [=] { talk(0); }), second = begin("second", [=] { talk(1); });
        const double start = now_seconds();
        EXPECT(said(finish(stopped ? first : second, stopped ? "first" : "second"), 1,
                    format("rank %d: it hangs", stopped)));
        EXPECT(now_seconds() - start < 20);
        kill(stopped ? second : first, SIGKILL);
        finish(stopped ? second : first, stopped ? "second" : "first");
    }
}

// ---- strangers

// Rank 0 with little room for connections, and the strangers; then rank 1, who must be let in while
// the strangers stay.
template <class Strangers>
static void meets_in_spite_of(const std::string& what, Strangers strangers) {
    start_test("strangers at the door: " + what);
    const int port = free_port();
    const pid_t zero = begin("zero", [=] {
        const rlimit few{32, 32};
        setrlimit(RLIMIT_NOFILE, &few);
        join_run(2, 0, port);
        if (comm_sum(1, "a number") != 3) _exit(3);
    });
    std::vector<int> open;
    strangers(port, open);
    const double start = now_seconds();
    const pid_t one = begin("one", [=] { join_run(2, 1, port), comm_sum(2, "a number"); });
    EXPECT(said(finish(one, "one"), 0, "") && said(finish(zero, "zero"), 0, ""));
    EXPECT(now_seconds() - start < 8);  // less than a silent guest is allowed
    for (int fd : open) close(fd);
}

static void strangers() {
    setenv("COMM_TOKEN", "what the run's own ranks know", 1);
    meets_in_spite_of("one byte and silence", [](int port, std::vector<int>& open) {
        open.push_back(connect_soon(port));
        EXPECT(send_message(open[0], 'x'));
    });
    meets_in_spite_of("half a hello and silence", [](int port, std::vector<int>& open) {
        Hello hello{HELLO_MAGIC, {}, 2, 1, program_name("test"), 0};
        open.push_back(connect_soon(port));
        EXPECT(send_some(open[0], &hello, sizeof(hello) / 2) > 0);
    });
    meets_in_spite_of("a hundred silent ones, more than there is room for", [](int port, std::vector<int>& open) {
        for (int i = 0; i < 100; i++) open.push_back(connect_soon(port));
    });
    meets_in_spite_of("a megabyte of 0xff", [](int port, std::vector<int>& open) {
        const std::string much(1 << 20, '\xff');
        open.push_back(connect_soon(port));
        send_some(open[0], much.data(), much.size());
    });
    meets_in_spite_of(
        "the right form, the wrong token, the numbers of another length", [](int port, std::vector<int>& open) {
            for (int64_t rank : {INT64_MIN, (int64_t)-1, (int64_t)0, (int64_t)1, (int64_t)2, INT64_MAX})
                for (const char* token : {"", "a guess at what they know"}) {
                    Greeting greeting;
                    Verdict verdict{};
                    open.push_back(connect_soon(port));
                    EXPECT(receive_by(open.back(), &greeting, sizeof(greeting), now_seconds() + 5));
                    EXPECT(send_message(open.back(),
                                        make_hello({rank, rank, program_name("test")}, key_of(token), greeting.nonce)));
                    EXPECT(receive_by(open.back(), &verdict, sizeof(verdict), now_seconds() + 5) &&
                           verdict.code == UNKNOWN_TOKEN);
                }
        });
    // What rank 1 says to whoever listens, in the words of earlier versions too.
    int port = 0;
    const int trap = listen_on(LOOPBACK, port);
    const pid_t victim = begin("victim", [=] { join_run(2, 1, port); });
    EXPECT(poll_until(trap, POLLIN, now_seconds() + 20));
    const int caught = accept(trap, nullptr, nullptr);
    Hello recorded{};
    EXPECT(send_message(caught, Greeting{GREETING_MAGIC, fresh_nonce()}) &&
           receive_by(caught, &recorded, sizeof(recorded), now_seconds() + 20));
    EXPECT(recorded.rank == 1 && !contains(std::string((char*)&recorded, sizeof(recorded)), "own ranks"));
    kill(victim, SIGKILL);
    finish(victim, "victim");
    close(trap), close(caught);
    meets_in_spite_of("a hello recorded of the true rank 1, said again", [&](int port, std::vector<int>& open) {
        const int64_t simple[] = {0x3274706750435431, 2, 1};
        Greeting greeting;
        Verdict verdict{};
        for (int i = 0; i < 2; i++) open.push_back(connect_soon(port));
        EXPECT(send_message(open[1], simple) && send_message(open[0], recorded));
        EXPECT(receive_by(open[0], &greeting, sizeof(greeting), now_seconds() + 5));
        EXPECT(receive_by(open[0], &verdict, sizeof(verdict), now_seconds() + 5) && verdict.code == UNKNOWN_TOKEN);
    });
    unsetenv("COMM_TOKEN");
}

// ---- ranks that do not fit, or do not come

static void misfits() {
    start_test("another program, another token, other numbers: both sides say so, at once");
    auto both = [](auto zero, auto one, const char* zero_says, const char* one_says) {
        const pid_t first = begin("zero", zero), second = begin("one", one);
        EXPECT(said(finish(second, "one"), 1, one_says) && said(finish(first, "zero"), 1, zero_says));
    };
    int port = free_port();
    both([=] { join_run(2, 0, port, 20, "1.0, fp32"); }, [=] { join_run(2, 1, port, 20, "1.0, bf16"); },
         "rank 1 is another program, 1.0, bf16, than rank 0, 1.0, fp32",
         "is another program, 1.0, fp32, than this one, 1.0, bf16");
    port = free_port();
    both([=] { join_run(2, 0, port, 20); }, [=] { join_run(3, 2, port, 20); }, "rank 2 of 3",
         "does not know a rank 2 of 3");
    port = free_port();
    both([=] { join_run(2, 0, port, 2); },
         [=] { setenv("COMM_TOKEN", "sixteen characters", 1), join_run(2, 1, port, 20); },
         "rank 1 did not connect (refused for want of this run's token: 1)",
         "COMM_TOKEN must be the same for all ranks");
    start_test("no room for a single connection: said, with what gives room");
    port = free_port();
    const pid_t cramped = begin("zero", [=] {
        const rlimit few{4, 4};  // stdin, stdout, stderr and the listener
        for (int fd = 3; fd < 64; fd++) close(fd);
        setrlimit(RLIMIT_NOFILE, &few);
        join_run(2, 0, port, 20);
    });
    const int knocking = connect_soon(port);
    EXPECT(said(finish(cramped, "zero"), 1, "Too many open files; a run of 2 processes needs about as many"));
    close(knocking);
    start_test("who is missing is said while it is waited for");
    port = free_port();
    const int nobody = free_port();
    const pid_t zero = begin("zero", [=] { join_run(7, 0, port, 4); }),
                lonely = begin("lonely", [=] { join_run(2, 1, nobody, 4); });
    const pid_t two = begin("two", [=] { join_run(7, 2, port, 20), comm_barrier("the start"); });
    EXPECT(said(finish(zero, "zero"), 1, "rank 0 waits for rank 1, 3 to 6 (3 s of 4)\n") &&
           said(finish(two, "two"), 1, "rank 0 has ended"));
    EXPECT(
        said(finish(lonely, "lonely"), 1,
             "rank 1 waits for rank 0 at 127.0.0.1:" + std::to_string(nobody) + ": Connection refused (3 s of 4)\n"));
    start_test("an address that drops packets, one that is silent: --comm-timeout holds");
    int deaf = 0;
    const int full = socket(AF_INET, SOCK_STREAM, 0);  // its queue is full, so that who connects hears nothing
    sockaddr_in address = socket_address(LOOPBACK, 0);
    socklen_t length = sizeof(address);
    EXPECT(bind(full, (sockaddr*)&address, length) == 0 && listen(full, 0) == 0 &&
           getsockname(full, (sockaddr*)&address, &length) == 0);
    deaf = ntohs(address.sin_port);
    std::vector<int> queue;
    for (int i = 0; i < 3; i++) queue.push_back(connect_by(LOOPBACK, deaf, now_seconds() + 0.3));
    int silent = 0;
    const int listener = listen_on(LOOPBACK, silent);
    const double start = now_seconds();
    const pid_t to_deaf = begin("deaf", [=] { join_run(2, 1, deaf, 1); }),
                to_silent = begin("silent", [=] { join_run(2, 1, silent, 1); });
    EXPECT(said(finish(to_deaf, "deaf"), 1, "waited 1 s for rank 0") &&
           said(finish(to_silent, "silent"), 1, "does not answer as rank 0 does"));
    EXPECT(now_seconds() - start < 20);
    for (int fd : queue) close(fd);
    close(full), close(listener);
}

// ---- addresses and tokens

static std::string other_address() {
    ifaddrs* all = nullptr;
    std::string text;
    if (getifaddrs(&all) != 0) return text;
    for (ifaddrs* a = all; a; a = a->ifa_next)
        if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET && !is_loopback(((sockaddr_in*)a->ifa_addr)->sin_addr))
            text = inet_ntoa(((sockaddr_in*)a->ifa_addr)->sin_addr);
    freeifaddrs(all);
    return text;
}

static void addresses() {
    start_test("addresses and tokens that are none: exit 2, one sentence");
    auto refuses = [](const std::string& flags, const std::string& name) {
        return refused(run(flags.substr(0, flags.find('|')) + " " +
                           tiny_run(CPU, "-x 1 --comm-timeout 1 -pn 2 -pi tcp " + flags.substr(flags.find('|') + 1))),
                       2, name);
    };
    for (const char* server : {"localhost:29501x", "localhost:", ":29501", "::1", "[::1]:29501", "localhost:0",
                               "localhost:65536", "localhost:-5"})
        EXPECT(refuses(std::string("env|-pr 1 -ps ") + server, "--server-ip " + std::string(server)));
    EXPECT(refuses("env MASTER_PORT=29501x|-pr 1 -ps localhost", "MASTER_PORT 29501x"));
    EXPECT(refuses("env MASTER_ADDR=localhost:x|-pr 1", "MASTER_ADDR localhost:x"));
    EXPECT(refuses("env COMM_TOKEN=short|-pr 1 -ps localhost", "COMM_TOKEN has 5 characters"));
    EXPECT(refuses("env|-pr 1 -ps 192.0.2.1", "COMM_TOKEN is not set") &&
           refuses("env RANK=0 WORLD_SIZE=2|-ps 192.0.2.1", "COMM_TOKEN is not set"));
    start_test("rank 0 listens at the address given, and nowhere else");
    const int port = free_port();
    const pid_t zero = begin("zero", [=] {
        comm_start(2, 0, "tcp", format("127.0.0.2:%d", port), "", 20, "test"), comm_barrier("the start");
    });
    int fd = -1;
    for (int tries = 0; tries < 500 && fd < 0; tries++, usleep(10000))
        fd = connect_by({htonl(INADDR_LOOPBACK + 1)}, port, now_seconds() + 5);
    EXPECT(fd >= 0 && connect_to(port) < 0);
    close(fd);
    const pid_t one = begin("one", [=] {
        comm_start(2, 1, "tcp", format("127.0.0.2:%d", port), "", 20, "test"), comm_barrier("the start");
    });
    EXPECT(said(finish(zero, "zero"), 0, "") && said(finish(one, "one"), 0, ""));
    const std::string outside = other_address();
    if (outside.empty())
        return skip_test("rank 0 at an address that others reach (a network interface beside loopback)");
    start_test("at an address that others reach: rank 0 prints a token, without which nobody comes in");
    const std::string place = format("%s:%d", outside.c_str(), free_port());
    const pid_t first =
        begin("zero", [=] { comm_start(2, 0, "tcp", place, "", 20, "test"), comm_barrier("the start"); });
    std::string token;
    for (int tries = 0; tries < 500 && token.empty(); tries++, usleep(10000)) {
        const std::string text = read_whole(dir("zeroerr"));
        if (contains(text, " in their environment\n")) token = text.substr(text.find("COMM_TOKEN=") + 11, 32);
    }
    EXPECT(token.size() == 32);
    setenv("COMM_TOKEN", "not the one that was printed", 1);
    const pid_t wrong = begin("wrong", [=] { comm_start(2, 1, "tcp", place, "", 20, "test"); });
    EXPECT(said(finish(wrong, "wrong"), 1, "has another token"));
    setenv("COMM_TOKEN", token.c_str(), 1);
    const pid_t second =
        begin("one", [=] { comm_start(2, 1, "tcp", place, "", 20, "test"), comm_barrier("the start"); });
    EXPECT(said(finish(second, "one"), 0, "") && said(finish(first, "zero"), 0, ""));
    unsetenv("COMM_TOKEN");
}

// ---- the shared folder

static void folders() {
    const std::string meet = dir("meet"), path = meet + "/rendezvous.txt", victim = dir("victim.txt");
    run("mkdir -p " + meet);
    auto rank = [&](int r, int timeout_s = 20) {
        return begin(r ? "one" : "zero",
                     [=] { comm_start(2, r, "fs", "", meet, timeout_s, "test"), comm_barrier("the start"); });
    };
    auto meets = [&] {
        const pid_t one = rank(1), zero = rank(0);
        EXPECT(said(finish(one, "one"), 0, "") && said(finish(zero, "zero"), 0, ""));
        EXPECT(!file_exists(path));
    };
    start_test("over files of earlier runs, links and pipes under the name of the rendezvous");
    int port = 0;
    const int other = listen_on(LOOPBACK, port);  // a port that some other program has now, and does not answer on
    write_whole(path, format("127.0.0.1 %d 0123456789abcdef\n", port)), meets();
    write_whole(path, "127.0.0.1 9\n"), meets();
    write_whole(path, std::string(100000, 'x')), meets();
    write_whole(victim, "precious\n");
    EXPECT(symlink(victim.c_str(), path.c_str()) == 0), meets();
    EXPECT(link(victim.c_str(), path.c_str()) == 0), meets();
    EXPECT(mkfifo(path.c_str(), 0666) == 0), meets();
    EXPECT(read_whole(victim) == "precious\n");
    close(other);
    start_test("a pipe, or what another user may have written, is not read: --comm-timeout holds");
    EXPECT(mkfifo(path.c_str(), 0666) == 0 && said(finish(rank(1, 1), "one"), 1, "is no file of this user"));
    unlink(path.c_str());
    write_whole(path, "127.0.0.1 9 0123456789abcdef\n");
    if (geteuid() == 0 && chown(path.c_str(), 65534, 65534) == 0)
        EXPECT(said(finish(rank(1, 1), "one"), 1, "is no file of this user"));
    unlink(path.c_str());
    start_test("the file is its owner's alone, and gone when all have met or nobody came");
    pid_t zero = rank(0);
    struct stat st = {};
    for (int tries = 0; tries < 500 && stat(path.c_str(), &st) != 0; tries++) usleep(10000);
    EXPECT((st.st_mode & 0777) == 0600);
    start_test("a second run in the folder of one that is meeting is refused, and does it no harm");
    const pid_t second = begin("second", [=] { comm_start(2, 0, "fs", "", meet, 20, "test"); });
    EXPECT(said(finish(second, "second"), 1, "another run is meeting"));
    const pid_t one = rank(1);
    EXPECT(said(finish(one, "one"), 0, "") && said(finish(zero, "zero"), 0, "") && !file_exists(path));
    start_test("a file that another run has left in the place of its own is not removed");
    zero = begin("zero", [=] { comm_start(2, 0, "fs", "", meet, 1, "test"); });
    for (int tries = 0; tries < 500 && read_whole(path).empty(); tries++) usleep(10000);
    unlink(path.c_str());
    write_whole(path, "127.0.0.1 9 0123456789abcdef\n");
    EXPECT(said(finish(zero, "zero"), 1, "rank 1 did not connect") && file_exists(path));
    unlink(path.c_str());
    zero = begin("zero", [=] { comm_start(2, 0, "fs", "", meet, 1, "test"); });
    EXPECT(said(finish(zero, "zero"), 1, "rank 1 did not connect") && !file_exists(path));
}

// ---- the trainer

static void interrupted_runs() {
    start_test(
        "24 runs, each interrupted by a signal to one rank and gone on from: the weights of a run that nobody "
        "interrupted");
    auto flags = [](const std::string& out) { return "-b 1 -d 96 --threads 1 -z 1 -n 1000 -nk 2 -o " + dir(out); };
    const std::string log = dir("interrupted") + "/main.log";
    long long step = 0;
    for (int i = 0; i < 24; i++) {
        const std::string common = tiny_run(
            CPU, flags("interrupted") +
                     format(" -y 1 -x 100000 -k constant -pn 2 -pi tcp -ps 127.0.0.1:%d --comm-timeout 20 -pr ",
                            free_port()));
        const pid_t ranks[] = {start(common + "0", "zero"), start(common + "1", "one")};
        for (int tries = 0; tries < 2000 && !contains(read_whole(log), format("s:%lld trl", step + i % 3)); tries++)
            usleep(1000 + 97 * i);
        kill(ranks[i % 2], SIGUSR1);
        const Outcome zero = finish(ranks[0], "zero"), one = finish(ranks[1], "one");
        if (!EXPECT(said(zero, 0, "") && said(one, 0, "") && contains(zero.out, "stopped at step "))) return;
        EXPECT(step == 0 || contains(zero.out, format("resumed at step %lld\n", step)));
        step = atoll(zero.out.c_str() + zero.out.find("stopped at step ") + 16);
    }
    const std::string whole = tiny_run(
        CPU, flags("whole") + format(" -x %lld -k constant -pn 2 -pi tcp -ps 127.0.0.1:%d --comm-timeout 20 -pr ", step,
                                     free_port()));
    const pid_t one = start(whole + "1", "one");
    EXPECT(run(whole + "0").status == 0 && finish(one, "one").status == 0);
    EXPECT(same_files(model_path(dir("interrupted"), step), model_path(dir("whole"), step)));
}

static void trainers_that_differ() {
    start_test("a rank of another precision is refused");
    const std::string common =
        tiny_run(CPU, format("-x 1 -pn 2 -pi tcp -ps 127.0.0.1:%d --comm-timeout 20 ", free_port()));
    const pid_t one = start(common + "-pr 1 --precision bf16", "one");
    const Outcome zero = run(common + "-pr 0");
    EXPECT(refused(zero, 1, "bf16, fast kernels") && refused(finish(one, "one"), 1, "fp32, fast kernels"));
}

int main() {
    make_test_folder();
    talking();
    strangers();
    misfits();
    addresses();
    folders();
    interrupted_runs();
    trainers_that_differ();
    return report_and_clean();
}
