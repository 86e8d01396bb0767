// How processes meet by TCP, and exchange data: strangers who want to join or to disturb, ranks
// that stop or are interrupted, ranks that do not fit.
#include <sys/time.h>
#include <csignal>
#include <thread>
#include "dev/test/meeting.h"
#include "llmc/comm/all_reduce.h"

// ---- exchanging data

// A value for every element of every rank, chosen so that sums depend on their order. It is not
// inlined, or the compiler could fuse a product with a sum.
__attribute__((noinline)) static float value_of(int rank, size_t i) {
    return (float)((i * 2654435761u + rank * 40503u) % 1000003u) * (rank == 1 ? 1e-3f : rank == 2 ? 97.0f : 1.0f);
}
static float sum_of(size_t i) { return (value_of(0, i) + value_of(1, i)) + value_of(2, i); }

static void loop_on_two_threads(int64_t n, const std::function<void(int64_t i)>& f) {
    std::thread other([&] {
        for (int64_t i = 1; i < n; i += 2) f(i);
    });
    for (int64_t i = 0; i < n; i += 2) f(i);
    other.join();
}
static void copy(void* to, const void* from, int64_t bytes) { memcpy(to, from, bytes); }
static const ReadingDevice TWO_THREADS = {2, loop_on_two_threads, copy};

// n values of a rank, in memory that the others read, if the ranks share it.
template <class T>
static T* room(int64_t n, T value) {
    T* const values = (T*)(shared_memory.on ? map_shared(n * sizeof(T)) : malloc(n * sizeof(T)));
    if (!values) _exit(9);
    std::fill(values, values + n, value);
    return values;
}
static void sum_under_signals(int rank, int port, bool shares) {
    join_run(3, rank, port);
    if (shares) share_memory(TWO_THREADS);
    if (shares != shared_memory.on) _exit(7);
    struct sigaction action = {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;  // as the trainer's; poll() is interrupted all the same
    for (int signal : {SIGALRM, SIGUSR1}) sigaction(signal, &action, nullptr);
    const itimerval often{{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &often, nullptr);
    const size_t n = 100003;
    const int64_t piece = 300007;
    float* const data = room(3 * n, 0.0f);
    char* const sent = room(3 * piece, (char)0);
    std::vector<char> received(3 * piece);
    for (int64_t i = 0; i < 3 * piece; i++) sent[i] = (char)(rank + 5 * (i / piece));
    for (int round = 0; round < 40; round++) {
        usleep(rank == round % 3 ? 3000 : 0);  // the other ranks wait for this one
        for (size_t i = 0; i < 3 * n; i++) data[i] = value_of(rank, i + round);
        comm_reduce_scatter_start(data, n, 0);
        comm_wait("the sum");
        for (size_t i = rank * n; i < (rank + 1) * n; i++)
            if (data[i] != sum_of(i + round)) _exit(3);
        comm_reduce_scatter_start(data, 0, 1);  // a bucket of which nothing trains
        const Collective slices = comm_all_gather_start(data, n, 0);
        comm_exchange_start(received.data(), sent, piece, 0);
        comm_wait(slices, "the slices");
        for (size_t i = 0; i < 3 * n; i += 31)
            if (data[i] != sum_of(i + round)) _exit(4);
        if (comm_sum(rank, "a number") != 3) _exit(5);
        comm_wait("the exchange");
        for (int64_t i = 0; i < 3 * piece; i++)
            if (received[i] != (char)(i / piece + 5 * rank)) _exit(6);
    }
}

// Whether this system has what share_memory() needs; if not, processes go on without.
static bool can_share_memory() {
    shared_memory.device = TWO_THREADS;
    const SharedFile file = make_shared_file(3 << 20);
    char* const again = map_file_of(place_of(file), 3 << 20);
    if (again) file.memory[2 << 20] = 7;
    return again && again[2 << 20] == 7;
}

// Rank 0 sends 20 messages of unlike sizes to rank 2, which sends as many back, before either
// receives any; rank 1 has a part in the collectives among them alone.
static void exchange_messages(int rank, int port, bool shares) {
    join_run(3, rank, port);
    if (shares) share_memory(TWO_THREADS);
    std::vector<std::vector<float>> sent(20), received(20);
    float* const sum = room(3, (float)rank);
    std::vector<Collective> numbers;
    for (size_t i = 0; i < sent.size() && rank != 1; i++) {
        sent[i].resize(i % 3 == 0 ? i : 40000 * i), received[i].resize(sent[i].size());
        for (size_t k = 0; k < sent[i].size(); k++) sent[i][k] = value_of(rank, i + k);
        numbers.push_back(comm_send_start(sent[i].data(), sent[i].size() * sizeof(float), 2 - rank));
    }
    for (size_t i = 0; i < sent.size() && rank != 1; i++)
        numbers.push_back(comm_receive_start(received[i].data(), received[i].size() * sizeof(float), 2 - rank));
    comm_reduce_scatter_start(sum, 1, 0);
    for (size_t i = numbers.size(); i-- > 0;) {
        comm_wait(numbers[i], "a message");
        if (!comm_is_complete(numbers[i])) _exit(3);
    }
    for (size_t i = 0; i < sent.size(); i++)
        for (size_t k = 0; k < received[i].size(); k++)
            if (received[i][k] != value_of(2 - rank, i + k)) _exit(4);
    comm_wait("the sum");
    if (sum[rank] != 3) _exit(5);
}
static void messages() {
    for (const bool shares : can_share_memory() ? std::vector<bool>{false, true} : std::vector<bool>{false}) {
        start_test(format("messages between two ranks beside collectives%s: they arrive in the order of their sending",
                          shares ? ", which go by shared memory" : ""));
        const int port = free_port();
        pid_t ranks[3];
        for (int r = 0; r < 3; r++)
            ranks[r] = begin(format("message%d", r), [=] { exchange_messages(r, port, shares); });
        for (int r = 0; r < 3; r++) EXPECT(said(finish(ranks[r], format("message%d", r)), 0, ""));
    }
    start_test("messages: two under way, of which the second is complete first; a rank that dies is named");
    const int port = free_port();
    const auto talk = [=](int rank) {
        join_run(3, rank, port);
        char first = 0, second = 0;
        const char mine = (char)('a' + rank);
        if (rank == 2) comm_wait(comm_send_start(&mine, 1, 0), "the message");
        if (rank == 0) {
            const Collective late = comm_receive_start(&first, 1, 1);
            comm_wait(comm_receive_start(&second, 1, 2), "the second message");
            if (second != 'c' || comm_is_complete(late)) _exit(3);
        }
        if (rank == 1) usleep(300000), raise(SIGKILL);
        comm_wait("the first message");
        comm_barrier("the end");
    };
    pid_t ranks[3];
    for (int r = 0; r < 3; r++) ranks[r] = begin(format("talk%d", r), [=] { talk(r); });
    const double start = now_seconds();
    EXPECT(said(finish(ranks[0], "talk0"), 1, "rank 1 has ended: its connection broke in the first message"));
    EXPECT(said(finish(ranks[2], "talk2"), 1, "has ended: its connection broke in the end"));
    EXPECT(now_seconds() - start < 20);
    finish(ranks[1], "talk1");
}

static int next_descriptor() {
    const int fd = dup(0);
    close(fd);
    return fd;
}
static void talking() {
    const bool can_share = can_share_memory();
    start_test("SipHash: the published values");
    const SipKey key{0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
    EXPECT(siphash(key, "", 0) == 0x726fdb47dd0e0e31u);
    EXPECT(siphash(key, "\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16", 15) == 0xa129ca6149be45e5u);
    for (const bool shares : can_share ? std::vector<bool>{false, true} : std::vector<bool>{false}) {
        start_test(format("collectives under a hail of signals, by %s: sums bit for bit in the order of ranks",
                          shares ? "shared memory" : "TCP"));
        const int port = free_port();
        pid_t ranks[3];
        for (int r = 0; r < 3; r++) ranks[r] = begin(format("sum%d", r), [=] { sum_under_signals(r, port, shares); });
        for (int r = 0; r < 3; r++) EXPECT(said(finish(ranks[r], format("sum%d", r)), 0, ""));
    }
    start_test(
        "a rank that stops while others send it much, by TCP and by shared memory: noticed after --comm-timeout, on "
        "either side");
    for (int number = 0; number < (can_share ? 4 : 2); number++) {
        const int meet = free_port(), stopped = number % 2;
        const bool shares = number > 1;
        auto talk = [=](int rank) {
            join_run(2, rank, meet, 1);
            if (shares) share_memory(TWO_THREADS);
            const int64_t n = 64 << 20 >> 2;
            float* const data = room(n, 1.0f);
            comm_barrier("the start");
            if (rank == stopped) raise(SIGSTOP);
            comm_all_gather_start(data, n / 2, 0);
            comm_wait("the slices");
        };
        const pid_t first = begin("first", [=] { talk(0); }), second = begin("second", [=] { talk(1); });
        const double start = now_seconds();
        EXPECT(said(finish(stopped ? first : second, stopped ? "first" : "second"), 1,
                    format("rank %d: it hangs", stopped)));
        EXPECT(now_seconds() - start < 20);
        kill(stopped ? second : first, SIGKILL);
        finish(stopped ? second : first, stopped ? "second" : "first");
    }
    start_test(
        "what is started travels while this process does something else: start returns before the other has come");
    const int port = free_port();
    const auto overlap = [=](int rank) {
        join_run(2, rank, port);
        std::vector<float> data(4 << 20, 1.0f), slices(4 << 20, (float)rank);
        const int64_t n = (int64_t)data.size() / 2;
        comm_barrier("the start");
        if (rank == 1) usleep(600000);
        const double start = now_seconds();
        const Collective sum = comm_reduce_scatter_start(data.data(), n, 0);
        const Collective all = comm_all_gather_start(slices.data(), n, 1);
        if (now_seconds() - start > 0.3) _exit(3);
        comm_wait(all, "the slices");
        if (slices[0] != 0 || slices[n] != 1) _exit(4);
        comm_wait(sum, "the sum");
        if (data[rank * n] != 2 || (rank == 0 && now_seconds() - start < 0.5)) _exit(5);
    };
    const pid_t early = begin("early", [=] { overlap(0); }), late = begin("late", [=] { overlap(1); });
    EXPECT(said(finish(early, "early"), 0, "") && said(finish(late, "late"), 0, ""));
    messages();
    start_test("a rank of three that dies while slices go around: the others end at once, and name it or each other");
    const int around = free_port();
    const auto ring = [=](int rank) {
        join_run(3, rank, around);
        std::vector<float> data(3 << 20, 1.0f);
        if (rank == 1) raise(SIGKILL);
        for (int i = 0; i < 2; i++) comm_all_gather_start(data.data(), 1 << 20, i);
        comm_wait("the slices");
    };
    const pid_t zeroth = begin("zeroth", [=] { ring(0); }), dies = begin("dies", [=] { ring(1); }),
                last = begin("last", [=] { ring(2); });
    const double began = now_seconds();
    EXPECT(said(finish(zeroth, "zeroth"), 1, "has ended") && said(finish(last, "last"), 1, "has ended"));
    EXPECT(now_seconds() - began < 20);
    finish(dies, "dies");
    start_test("groups of every second rank: sums, slices, pieces of their own; who dies is named by its rank of all");
    for (const bool shares : {false, true}) {
        if (shares && !can_share) continue;
        const int port = free_port();
        const auto in_groups = [=](int rank, bool dies) {
            join_run(4, rank, port);
            if (shares) share_memory(TWO_THREADS);
            comm_shard_within(2);
            const CommGroup& group = comm.replicas;  // 0 and 2, or 1 and 3
            const int64_t n = 7, other = rank < 2 ? rank + 2 : rank - 2;
            float *const sum = room(n, (float)(1 << rank)), *const mine = room(2 * n, (float)rank),
                         *const from = room(2 * n, 0.0f);
            std::vector<float> to(2 * n);
            if (dies && rank == 3) raise(SIGKILL);
            comm_all_reduce(sum, n, 0, group, "the sum");
            comm_wait(comm_all_gather_start(mine, n, 0, group), "the slices");
            for (int64_t i = 0; i < 2 * n; i++) from[i] = (float)(10 * rank + i / n);
            comm_wait(comm_exchange_start(to.data(), from, n * 4, 0, group), "the pieces");
            for (int64_t i = 0; i < n; i++) {
                const int64_t low = std::min<int64_t>(rank, other), high = low + 2, own = group.rank;
                if (sum[i] != (float)((1 << low) + (1 << high))) _exit(3);
                if (mine[i] != (float)low || mine[n + i] != (float)high) _exit(4);
                if (to[i] != (float)(10 * low + own) || to[n + i] != (float)(10 * high + own)) _exit(5);
            }
        };
        for (const bool dies : {false, true}) {
            std::vector<pid_t> ranks;
            for (int r = 0; r < 4; r++) ranks.push_back(begin(format("member%d", r), [=] { in_groups(r, dies); }));
            for (int r = 0; r < 4; r++) {
                const Outcome o = finish(ranks[r], format("member%d", r));
                // in shared memory all take turns with all, and one may hear of another end first
                const char* end = shares ? "has ended" : "rank 3 has ended";
                EXPECT(dies ? r != 1 || said(o, 1, end) : said(o, 0, ""));
            }
        }
    }
    if (!can_share) return skip_test("dying in shared memory: this system has none (Linux tests it)");
    start_test("a rank that dies in an exchange by shared memory: noticed at once");
    for (const int died : {0, 1}) {
        const int meet = free_port();
        const auto talk = [=](int rank) {
            join_run(2, rank, meet);
            share_memory(TWO_THREADS);
            const int64_t n = 1 << 20;
            float* const data = room(n, 1.0f);
            if (rank == died) raise(SIGKILL);
            comm_reduce_scatter_start(data, n / 2, 0);
            comm_wait("the sum");
        };
        const pid_t first = begin("first", [=] { talk(0); }), second = begin("second", [=] { talk(1); });
        const double start = now_seconds();
        EXPECT(said(finish(died ? first : second, died ? "first" : "second"), 1, format("rank %d has ended", died)));
        EXPECT(now_seconds() - start < 20);
        finish(died ? second : first, died ? "second" : "first");
    }
    start_test("shared memory that one rank cannot have, from the start or later: all go on without");
    for (const int lacks : {0, 1, 2}) {
        const int meet = free_port();
        const auto talk = [=](int rank) {
            join_run(2, rank, meet);
            signal(SIGXFSZ, SIG_IGN);
            const auto forbid = [=] {
                const rlimit none{0, 0}, no_more{(rlim_t)next_descriptor(), (rlim_t)next_descriptor()};
                if (rank == 0 && lacks == 0) setrlimit(RLIMIT_FSIZE, &none);
                if (rank == 1 && lacks > 0) setrlimit(RLIMIT_NOFILE, &no_more);
            };
            if (lacks < 2) forbid();
            share_memory(TWO_THREADS);
            if (lacks == 2) forbid();
            if (shared_memory.on != (lacks == 2) || map_shared(8008)) _exit(3);
            std::vector<float> data(2 * 1001, (float)rank + 1);
            comm_reduce_scatter_start(data.data(), 1001, 0);
            comm_wait("the sum");
            if (data[rank * 1001] != 3) _exit(4);
        };
        const pid_t first = begin("first", [=] { talk(0); }), second = begin("second", [=] { talk(1); });
        EXPECT(said(finish(first, "first"), 0, "") && said(finish(second, "second"), 0, ""));
    }
}

// ---- strangers

// Starts rank 0 with room for few connections, and strangers; then rank 1, which must be admitted
// while the strangers stay.
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
        Hello hello{HELLO_MAGIC, {}, 2, 1, program_name("test"), {}, 0};
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
    meets_in_spite_of("the right form, the wrong token, the numbers of another length", [](int port,
                                                                                           std::vector<int>& open) {
        for (int64_t rank : {(int64_t)INT64_MIN, (int64_t)-1, (int64_t)0, (int64_t)1, (int64_t)2, (int64_t)INT64_MAX})
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
    // What rank 1 would tell any program that listens there, also in the protocol of earlier
    // versions.
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
    setenv("COMM_TOKEN", "a token that both know", 1);
    int port = free_port();
    both([=] { join_run(2, 0, port, 20, "1.0, fp32"); }, [=] { join_run(2, 1, port, 20, "1.0, bf16"); },
         "rank 1 is another program, 1.0, bf16, than rank 0, 1.0, fp32",
         "is another program, 1.0, fp32, than this one, 1.0, bf16");
    port = free_port();
    both([=] { join_run(2, 0, port, 20); }, [=] { join_run(3, 2, port, 20); }, "rank 2 of 3",
         "does not know a rank 2 of 3");
    port = free_port();
    const auto with_flags = [](int rank, int at, const std::vector<std::string>& flags) {
        comm_start(2, rank, "tcp", format("127.0.0.1:%d", at), "", 20, "test", flags);
        comm_barrier("the start");
    };
    both(
        [=] {
            with_flags(0, port, {"-i a", "-b 4"});
        },
        [=] {
            with_flags(1, port, {"-i a", "-b 8"});
        },
        "-b is not that of rank 1: it is 4 here", "-b is not that of rank 0: it is 8 here");
    unsetenv("COMM_TOKEN");
    port = free_port();
    both([=] { join_run(2, 0, port, 2); },
         [=] { setenv("COMM_TOKEN", "sixteen characters", 1), join_run(2, 1, port, 20); },
         "rank 1 did not connect (refused for want of this run's token: 1)",
         "COMM_TOKEN must be the same for all ranks");
    start_test("without a token, processes of another run at the same address are refused, and this one goes on");
    port = free_port();
    const pid_t host = begin("zero", [=] { with_flags(0, port, {"-b 4"}); });
    const pid_t numbers = begin("numbers", [=] { join_run(3, 2, port, 20); });
    const pid_t program = begin("program", [=] { join_run(2, 1, port, 20, "another"); });
    const pid_t flags = begin("flags", [=] { with_flags(1, port, {"-b 8"}); });
    EXPECT(said(finish(numbers, "numbers"), 1, "does not know a rank 2 of 3") &&
           said(finish(program, "program"), 1, "is another program") && said(finish(flags, "flags"), 1, "-b is not"));
    const pid_t own = begin("one", [=] { with_flags(1, port, {"-b 4"}); });
    EXPECT(said(finish(own, "one"), 0, "") && said(finish(host, "zero"), 0, "refused a process"));
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
    const int full = socket(AF_INET, SOCK_STREAM, 0);  // its queue is full: a process that connects gets no answer
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

int main() {
    make_test_folder();
    talking();
    strangers();
    misfits();
    return report_and_clean();
}
