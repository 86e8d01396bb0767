// How the processes of a run meet without MPI: rank 0 listens, the others connect and introduce
// themselves (handshake.h). Rank 0 serves all connections at the same time, so a stranger who sends
// nothing, or little, delays nobody. One deadline holds for the whole meeting. Processes that wait
// longer than a few seconds say for whom.
#pragma once
#include <memory>
#include "llmc/comm/handshake.h"
#include "llmc/comm/socket.h"

// How long one connection may take; GUESS_S: one to an address that may be an earlier run's.
constexpr double HANDSHAKE_S = 10, GUESS_S = 2;
constexpr int64_t MAX_STRANGERS = 256;

// A deadline, and messages on stderr about what is being waited for: after 3 seconds, then each
// time that the wait has become twice as long.
struct Waiting {
    const int64_t timeout_s;
    const double begin = now_seconds(), end = begin + (double)timeout_s;
    double next = begin + 3;

    explicit Waiting(int64_t timeout) : timeout_s(timeout) {}
    bool is_over() const { return now_seconds() > end; }
    template <class Text>
    void tell(Text text) {
        if (now_seconds() < next) return;
        const double gone = now_seconds() - begin;
        fprintf(stderr, "%s (%.0f s of %lld)\n", text().c_str(), gone, (long long)timeout_s);
        next = begin + 2 * gone;
    }
};

// "1, 3 to 7, 9": the ranks from `first` on that have no connection yet.
inline std::string missing_ranks(const std::vector<int>& peers, size_t first) {
    std::string text;
    for (size_t r = first, last; r < peers.size(); r = last + 1) {
        for (last = r; peers[r] < 0 && last + 1 < peers.size() && peers[last + 1] < 0;) last++;
        if (peers[r] >= 0) continue;
        text += format("%s%d", text.empty() ? "" : ", ", r);
        if (last > r) text += format("%s%d", last > r + 1 ? " to " : ", ", last);
    }
    return text;
}

// A connection on which a host has sent its greeting, and waits for the hello.
struct Guest {
    int fd;
    double until;
    Nonce nonce = fresh_nonce();
    Hello hello{};
    size_t got = 0;

    explicit Guest(int socket) : fd(socket), until(now_seconds() + HANDSHAKE_S) {}
    Guest(const Guest&) = delete;
    ~Guest() {
        if (fd >= 0) close(fd);
    }
};

// A host's side of the meeting: it takes in all ranks above its own.
struct Reception {
    const Member& me;
    const SipKey& key;
    int listener;
    std::vector<std::unique_ptr<Guest>> guests;  // oldest first
    std::vector<int> peers;                      // by rank; -1: not there yet
    bool has_token;                              // that other runs do not know
    int64_t turned_away = 0, misfits = 0;

    std::string missing() const { return missing_ranks(peers, me.rank + 1); }
    // How many processes were turned away because they did not know the token, or did not fit, for
    // messages.
    std::string refusals() const {
        std::string text = turned_away ? format(" (refused for want of this run's token: %d)", turned_away) : "";
        return misfits ? text + format(" (refused because they do not fit: %d)", misfits) : text;
    }
    // What is wrong with a process that knows the token and does not fit this run; empty if it
    // does.
    std::string misfit(VerdictCode code, const Hello& hello) const {
        const long long rank = hello.rank;
        if (code == OTHER_PROGRAM)
            return format("rank %d is another program, %s, than rank 0, %s: all must be built alike", rank,
                          printable(hello.program), me.program.text);
        if (code == OTHER_NUMBERS)
            return format(
                "a process came as rank %d of %d, but this run has %d processes, each rank once: -pn and -pr "
                "must agree everywhere",
                rank, hello.processes, me.processes);
        const std::string whose = format("rank %d", rank);
        return code == OTHER_FLAGS ? other_flag_text(me.flags, hello.flags, whose.c_str()) : "";
    }
    // Ends this run (exit 1) if a process does not fit. Without a token it may be one of another
    // run at the same address: that one ends, and this one waits on.
    void judge_misfit(const std::string& problem) {
        if (problem.empty()) return;
        if (has_token) runtime_failure("%s", problem);
        if (misfits++ < 10) warning("refused a process: %s (COMM_TOKEN keeps other runs away)", problem);
    }
    // Accepts one connection. If there are too many guests, or open files, the oldest guest is
    // dropped.
    void open_door() {
        if ((int64_t)guests.size() >= me.processes + MAX_STRANGERS) guests.erase(guests.begin());
        const int fd = accept(listener, nullptr, nullptr);
        if (fd < 0) {
            const bool no_room = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
            if (no_room && guests.empty())
                runtime_failure("cannot take in rank %s: %s; a run of %d processes needs about as many (ulimit -n)",
                                missing(), strerror(errno), me.processes);
            if (no_room) guests.erase(guests.begin());
            return;
        }
        prepare_socket(fd);
        auto guest = std::make_unique<Guest>(fd);
        if (send_message(fd, Greeting{GREETING_MAGIC, guest->nonce})) guests.push_back(std::move(guest));
    }
    // Reads what has arrived of a guest's hello and answers it once it is complete. False if this
    // guest is done with: admitted, turned away, or gone.
    bool listen_to(Guest& guest) {
        const ssize_t n = receive_some(guest.fd, (char*)&guest.hello + guest.got, sizeof(Hello) - guest.got);
        guest.got += std::max<ssize_t>(n, 0);
        if (n < 0 || guest.got < sizeof(Hello)) return n >= 0;
        VerdictCode code = judge(guest.hello, me, key, guest.nonce);
        const int64_t rank = guest.hello.rank;
        const bool came_before = code == WELCOME && peers[rank] >= 0;
        if (came_before && is_closed(peers[rank])) close(peers[rank]);  // it was started again, or gave up waiting
        else if (came_before) code = OTHER_NUMBERS;
        const bool told = send_message(guest.fd, make_verdict(code, me, key, guest.nonce, guest.hello));
        turned_away += code == UNKNOWN_TOKEN;
        judge_misfit(misfit(code, guest.hello));
        if (code != WELCOME || !told) return false;
        peers[rank] = guest.fd;
        guest.fd = -1;
        return false;
    }
    // One round: waits until something arrives, for at most a second, and handles it.
    void serve(double end) {
        std::vector<pollfd> polled{{listener, POLLIN, 0}};
        for (const auto& guest : guests) polled.push_back({guest->fd, POLLIN, 0});
        poll_until(polled.data(), polled.size(), std::min(end, now_seconds() + 1));
        std::vector<std::unique_ptr<Guest>> stay;
        for (size_t i = 0; i < guests.size(); i++)
            if (now_seconds() < guests[i]->until && (!polled[i + 1].revents || listen_to(*guests[i])))
                stay.push_back(std::move(guests[i]));
        guests = std::move(stay);
        if (polled[0].revents) open_door();
    }
};

// A host's side of the meeting: returns the connections to all ranks above its own, by rank; -1
// elsewhere. Exit 1 after timeout_s.
inline std::vector<int> take_in_all(int listener, const Member& me, const SipKey& key, int64_t timeout_s) {
    allow_open_files(me.processes + MAX_STRANGERS + 64);
    const bool has_token = !same_key(key, key_of(""));
    Reception reception{me, key, listener, {}, std::vector<int>(me.processes, -1), has_token};
    Waiting waiting(timeout_s);
    while (std::count(reception.peers.begin() + me.rank + 1, reception.peers.end(), -1) > 0) {
        if (waiting.is_over())
            runtime_failure("waited %d s, and rank %s did not connect%s", timeout_s, reception.missing(),
                            reception.refusals());
        waiting.tell(
            [&] { return format("rank %d waits for rank %s%s", me.rank, reception.missing(), reception.refusals()); });
        reception.serve(waiting.end);
    }
    close(listener);
    return std::move(reception.peers);
}

// Where a host is, mostly rank 0, and the key that both sides know. A place read from a file may be
// an earlier run's; one that the user gave is certain.
struct Place {
    std::string host;
    int port = 0;
    SipKey key{};
    bool certain = false;
    int64_t rank = 0;  // the host's
};

// Introduces this process on a connection to rank 0. Fills in rank 0's verdict, NO_ANSWER if there
// was none; returns the problem in words, empty if rank 0 admits this process.
inline std::string shake_hands(int fd, const SipKey& key, const Member& me, double end, Verdict& verdict) {
    Greeting greeting;
    const char* stranger = "what listens there does not answer as rank 0 does";
    verdict = {0, NO_ANSWER, {}, {}, 0};
    if (!receive_by(fd, &greeting, sizeof(greeting), end) || greeting.magic != GREETING_MAGIC) return stranger;
    const Hello hello = make_hello(me, key, greeting.nonce);
    const bool answered =
        send_message(fd, hello) && receive_by(fd, &verdict, sizeof(verdict), end) && verdict.magic == VERDICT_MAGIC;
    if (!answered) verdict.code = NO_ANSWER;
    else if (verdict.proof != proof_of(verdict, key, greeting.nonce, hello.nonce)) verdict.code = UNKNOWN_TOKEN;
    if (verdict.code == WELCOME) return "";
    return verdict.code == UNKNOWN_TOKEN ? "rank 0 there has another token" : stranger;
}

// Connects to rank 0 and introduces this process. Returns the socket if rank 0 admits it; else -1,
// with rank 0's verdict and the problem in words.
inline int introduce(const Place& place, in_addr address, const Member& me, double end, Verdict& verdict,
                     std::string& problem) {
    verdict = {0, NO_ANSWER, {}, {}, 0};
    const int fd = connect_by(address, place.port, end);
    if (fd < 0) return problem = strerror(errno), -1;
    problem = shake_hands(fd, place.key, me, end, verdict);
    if (problem.empty()) return fd;
    close(fd);
    return -1;
}

// The other ranks' side of the meeting: returns the connection to the host. Tries again and again
// until timeout_s, then exit 1. find(place) fills in where the host is, or returns why that is not
// known yet; hint says what may be wrong, for the last message.
template <class Find>
inline int join(const Member& me, Find find, const char* hint, int64_t timeout_s) {
    Waiting waiting(timeout_s);
    std::string where = "an unknown place", problem;
    Place place;
    for (size_t attempt = 0;; attempt++, usleep(100000)) {
        if (waiting.is_over())
            runtime_failure("waited %d s for rank %d at %s: %s; %s", timeout_s, place.rank, where, problem, hint);
        if (attempt > 0)
            waiting.tell(
                [&] { return format("rank %d waits for rank %d at %s: %s", me.rank, place.rank, where, problem); });
        place = {};
        problem = find(place);
        if (!problem.empty()) continue;
        where = format("%s:%d", place.host, place.port);
        const std::vector<in_addr> addresses = addresses_of(place.host);
        problem = "no machine of that name is known";
        if (addresses.empty()) continue;
        Verdict verdict;
        const double end = std::min(waiting.end, now_seconds() + (place.certain ? HANDSHAKE_S : GUESS_S));
        const int fd = introduce(place, addresses[attempt % addresses.size()], me, end, verdict, problem);
        if (fd >= 0) return fd;
        if (verdict.code == UNKNOWN_TOKEN && place.certain)
            runtime_failure("rank 0 at %s has another token: COMM_TOKEN must be the same for all ranks", where);
        if (verdict.code == OTHER_NUMBERS)
            runtime_failure("rank 0 at %s does not know a rank %d of %d: -pn and -pr must agree everywhere", where,
                            me.rank, me.processes);
        if (verdict.code == OTHER_PROGRAM)
            runtime_failure("rank 0 at %s is another program, %s, than this one, %s: all must be built alike", where,
                            printable(verdict.program), me.program.text);
        if (verdict.code == OTHER_FLAGS)
            runtime_failure("of the flags at %s, %s; all processes of a run must have the same", where,
                            other_flag_text(me.flags, verdict.flags, "rank 0"));
    }
}
