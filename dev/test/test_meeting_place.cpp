// Where processes meet: addresses that lead nowhere, tokens, files in a shared folder that others
// left; and trainers that are interrupted while they meet, or differ.
#include <ifaddrs.h>
#include <csignal>
#include "dev/test/meeting.h"
#include "llmc/checkpoint/checkpoint_files.h"

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
    const std::string place = format("%s:%d", outside, free_port());
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
        for (int tries = 0; tries < 2000 && !contains(read_whole(log), format("s:%d trl", step + i % 3)); tries++)
            usleep(1000 + 97 * i);
        kill(ranks[i % 2], SIGUSR1);
        const Outcome zero = finish(ranks[0], "zero"), one = finish(ranks[1], "one");
        if (!EXPECT(said(zero, 0, "") && said(one, 0, "") && contains(zero.out, "stopped at step "))) return;
        EXPECT(step == 0 || contains(zero.out, format("resumed at step %d\n", step)));
        step = atoll(zero.out.c_str() + zero.out.find("stopped at step ") + 16);
    }
    const std::string whole = tiny_run(
        CPU, flags("whole") +
                 format(" -x %d -k constant -pn 2 -pi tcp -ps 127.0.0.1:%d --comm-timeout 20 -pr ", step, free_port()));
    const pid_t one = start(whole + "1", "one");
    EXPECT(run(whole + "0").status == 0 && finish(one, "one").status == 0);
    EXPECT(same_files(model_path(dir("interrupted"), step), model_path(dir("whole"), step)));
}

static void trainers_that_differ() {
    start_test("a rank of another precision is refused");
    setenv("COMM_TOKEN", "a token that both know", 1);
    const std::string common =
        tiny_run(CPU, format("-x 1 -pn 2 -pi tcp -ps 127.0.0.1:%d --comm-timeout 20 ", free_port()));
    pid_t one = start(common + "-pr 1 --precision bf16", "one");
    Outcome zero = run(common + "-pr 0");
    EXPECT(refused(zero, 1, "bf16, fast kernels") && refused(finish(one, "one"), 1, "fp32, fast kernels"));
    start_test("a flag that differs is named; --threads, --quiet and the spelling of the address may differ");
    one = start(common + "-pr 1 --seed 7", "one");
    zero = run(common + "-pr 0");
    EXPECT(refused(zero, 1, "--seed is not that of rank 1: it is 42 here") &&
           refused(finish(one, "one"), 1, "--seed is not that of rank 0: it is 7 here"));
    unsetenv("COMM_TOKEN");
    const std::string port = std::to_string(free_port()), flags = "-x 1 -pn 2 -pi tcp --comm-timeout 20 ";
    one = start(tiny_run(CPU, flags + "-pr 1 --threads 1 --quiet 1 -ps localhost:" + port), "one");
    zero = run(tiny_run(CPU, flags + "-pr 0 -ps 127.0.0.1:" + port));
    EXPECT(passed(zero) && passed(finish(one, "one")));
}

int main() {
    make_test_folder();
    addresses();
    folders();
    interrupted_runs();
    trainers_that_differ();
    return report_and_clean();
}
