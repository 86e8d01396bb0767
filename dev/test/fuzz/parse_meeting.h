// What processes tell each other before they belong to one run: by TCP, and in a file.
#pragma once
#include "dev/test/fuzz/harness.h"
#include "llmc/comm/meeting_place.h"
#include "llmc/comm/rendezvous.h"

inline const Member RANK0{3, 0, program_name("fuzz")};
const SipKey KEY = {1, 2};
// In place of random numbers, so that proofs can be made in advance.
extern "C" int getentropy(void* to, size_t n) { return memset(to, 7, n), 0; }

inline std::string hello_bytes(int64_t processes, int64_t rank, const char* program) {
    const Hello hello = make_hello({processes, rank, program_name(program)}, KEY, fresh_nonce());
    return std::string((const char*)&hello, sizeof(hello));
}
inline std::vector<std::string> hello_seeds() {
    return {hello_bytes(3, 1, "fuzz") + hello_bytes(3, 2, "fuzz"), hello_bytes(3, ONLY_ASKING, "fuzz")};
}
inline void repair_hello(std::string& input) {
    for (size_t at = 0; at + sizeof(Hello) <= input.size(); at += sizeof(Hello)) {
        Hello hello;
        memcpy(&hello, &input[at], sizeof(hello));
        hello.proof = proof_of(hello, KEY, fresh_nonce(), hello.nonce);
        memcpy(&input[at], &hello, sizeof(hello));
    }
}
// Two ends of a connection.
struct Connection {
    int ends[2];
    Connection() {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) broken("no socket pair");
        for (int fd : ends) fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    ~Connection() {
        for (int fd : ends)
            if (fd >= 0) close(fd);
    }
    // Sends all that the other side will ever get.
    void send_last(int end, const std::string& bytes) {
        if (send_some(ends[end], bytes.data(), bytes.size()) < 0) broken("a connection breaks");
        shutdown(ends[end], SHUT_WR);
    }
};
// Rank 0's side: each guest sends as many bytes as a hello has.
inline void run_hello(const std::string& input) {
    Reception reception{RANK0, KEY, -1, {}, std::vector<int>(RANK0.processes, -1), 0};
    struct Closing {
        std::vector<int>& peers;
        ~Closing() {
            for (int fd : peers)
                if (fd >= 0) close(fd);
        }
    } closing{reception.peers};
    for (size_t at = 0; at < input.size() && at < 16 * sizeof(Hello); at += sizeof(Hello)) {
        const std::string bytes = input.substr(at, sizeof(Hello));
        Connection connection;
        connection.send_last(1, bytes);
        Guest guest(std::exchange(connection.ends[0], -1));
        const std::vector<int> before = reception.peers;
        while (reception.listen_to(guest)) {}
        if (reception.peers == before) continue;
        Hello hello;
        expect(bytes.size() == sizeof(hello), "half a hello admits nobody");
        memcpy(&hello, bytes.data(), sizeof(hello));
        expect(hello.proof == proof_of(hello, KEY, guest.nonce, hello.nonce), "only those who know the token come in");
        expect(hello.processes == 3 && (hello.rank == 1 || hello.rank == 2), "and only with a rank of the run");
    }
    expect(reception.peers[0] < 0, "nobody comes as rank 0");
}

// The other side: what listens there sends these bytes.
inline std::vector<std::string> verdict_seeds() {
    const Greeting greeting{GREETING_MAGIC, fresh_nonce()};
    const Hello hello = make_hello(RANK0, KEY, greeting.nonce);
    std::vector<std::string> seeds;
    for (VerdictCode code : {WELCOME, OTHER_NUMBERS, OTHER_PROGRAM, OTHER_FLAGS, I_AM_HERE}) {
        const Verdict verdict = make_verdict(code, RANK0, KEY, greeting.nonce, hello);
        seeds.push_back(std::string((const char*)&greeting, sizeof(greeting)) +
                        std::string((const char*)&verdict, sizeof(verdict)));
    }
    return seeds;
}
inline void repair_verdict(std::string& input) {
    Greeting greeting;
    Verdict verdict;
    if (input.size() < sizeof(greeting) + sizeof(verdict)) return;
    memcpy(&greeting, &input[0], sizeof(greeting));
    memcpy(&verdict, &input[sizeof(greeting)], sizeof(verdict));
    verdict.proof = proof_of(verdict, KEY, greeting.nonce, fresh_nonce());
    memcpy(&input[sizeof(greeting)], &verdict, sizeof(verdict));
}
inline void run_verdict(const std::string& input) {
    Connection connection;
    connection.send_last(1, input.substr(0, 1 << 16));
    Verdict verdict;
    const std::string problem = shake_hands(connection.ends[0], KEY, {3, 1, RANK0.program}, now_seconds() + 5, verdict);
    expect(problem.empty() == (verdict.code == WELCOME), "a process is admitted, or a problem said");
    for (char c : printable(verdict.program)) expect(c >= ' ' && c <= '~', "names of programs are printable");
}

inline std::vector<std::string> meeting_seeds() { return {"127.0.0.1 29500 0123456789abcdef0123456789abcdef\n"}; }
inline void run_meeting(const std::string& input) {
    Place place;
    const std::string problem = read_meeting_file(scratch_file("rendezvous.txt", input), place);
    if (!problem.empty()) runtime_failure("%s", problem);
    expect(place.port >= 1 && place.port <= 65535 && !place.host.empty(), "a meeting place is an address and a port");
}
inline std::vector<std::string> address_seeds() { return {"10.0.0.1:29500", "localhost", "gpu-7.cluster:1"}; }
inline void run_address(const std::string& input) {
    const Place place = place_of("--server-ip", std::string(input.c_str()));
    expect(place.port >= 1 && place.port <= 65535, "a port is a port");
    names_loopback(place.host);
}
