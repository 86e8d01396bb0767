// Where the processes of a run meet, and where they get the token from by which they recognise each
// other (handshake.h):
//
//     -pi tcp -ps HOST[:PORT]   at an address. The token is in the variable COMM_TOKEN. Without it, they meet at an
//                               address that only this machine can reach, or rank 0, if it was started by hand,
//                               makes a token up and prints it
//     -pi fs -pf FOLDER         by a file in a folder that all share. The token is in the file, which only its owner
//                               can read
#pragma once
#include <sys/stat.h>
#include "llmc/base/file.h"
#include "llmc/base/parse.h"
#include "llmc/comm/rendezvous.h"

constexpr int64_t DEFAULT_PORT = 29500;
constexpr size_t MIN_TOKEN_CHARS = 16;

inline bool is_port(const std::string& text, int64_t& port) {
    return !text.empty() && parse_whole(text, port) && port > 0 && port <= 65535;
}

// The place that a flag or variable `name` gives as HOST or HOST:PORT. Exit 2 if it gives none.
inline Place place_of(const char* name, const std::string& server) {
    const size_t colon = server.rfind(':');
    const char* variable = getenv("MASTER_PORT");
    const std::string host = server.substr(0, colon);
    int64_t port = DEFAULT_PORT;
    const bool good_port = colon == server.npos || is_port(server.substr(colon + 1), port);
    if (host.empty() || host.find(':') != host.npos || !good_port)
        usage_error(
            "%s %s is no address; HOST or HOST:PORT is accepted, HOST a name or an IPv4 address, PORT 1 to 65535", name,
            server);
    if (colon == server.npos && variable && !is_port(variable, port))
        usage_error("MASTER_PORT %s is no port; 1 to 65535 are accepted", variable);
    return {host, (int)port, {}, true};
}

// True if a host name can only mean this machine.
inline bool names_loopback(const std::string& host) {
    in_addr address;
    return host == "localhost" || (inet_pton(AF_INET, host.c_str(), &address) == 1 && is_loopback(address));
}

// The key that the processes of a run share when they meet at an address. Exit 2 if it is needed
// and there is none.
inline SipKey key_for(const Place& place, int64_t rank) {
    const char* token = getenv("COMM_TOKEN");
    const bool by_hand = launcher_value(LAUNCHER_RANKS) < 0;
    const char* accepted =
        "a secret of 16 characters or more, the same for all ranks, is accepted (openssl rand -hex 16 makes one)";
    if (token && *token) {
        if (strlen(token) < MIN_TOKEN_CHARS) usage_error("COMM_TOKEN has %d characters; %s", strlen(token), accepted);
        return key_of(token);
    }
    if (names_loopback(place.host)) return key_of("");
    if (rank > 0 || !by_hand)
        usage_error("COMM_TOKEN is not set, and anyone who reaches %s could join; %s%s", place.host, accepted,
                    by_hand ? "; rank 0, started without, prints one" : "");
    const std::string made_up = random_token();
    fprintf(stderr, "rank 0 waits at %s:%d; the other ranks are to have COMM_TOKEN=%s in their environment\n",
            place.host.c_str(), place.port, made_up.c_str());
    return key_of(made_up);
}

// Rank 0's listening socket at a place. On systems where the machine's own name stands for an
// address that only itself can reach, rank 0 listens on all addresses.
inline int listen_at(const Place& place) {
    const std::vector<in_addr> addresses = addresses_of(place.host);
    if (addresses.empty()) runtime_failure("rank 0 cannot listen at %s: no machine of that name is known", place.host);
    in_addr address = addresses[0];
    if (is_loopback(address) && !names_loopback(place.host)) address.s_addr = INADDR_ANY;
    int port = place.port;
    const int fd = listen_on(address, port);
    if (fd < 0 && errno == EADDRNOTAVAIL)
        runtime_failure(
            "rank 0 cannot listen at %s: this machine does not have that address; -ps is the address of rank 0's "
            "machine",
            place.host);
    if (fd < 0)
        runtime_failure("cannot listen on port %d of %s: %s; -ps HOST:PORT chooses another", port, place.host,
                        strerror(errno));
    return fd;
}

// Meets the other processes at an address; returns the connections (tcp.h). name: the flag or
// variable that gave the address.
inline std::vector<int> meet_at(const char* name, const std::string& server, const Member& me, int64_t timeout_s) {
    Place place = place_of(name, server);
    place.key = key_for(place, me.rank);
    if (me.rank == 0) return take_in_all(listen_at(place), me, place.key, timeout_s);
    auto find = [&](Place& found) { return found = place, std::string(); };
    return {join(me, find,
                 "it was not started, is elsewhere, or a firewall is between (-ps, and MASTER_PORT, say where), or "
                 "COMM_TOKEN differs",
                 timeout_s)};
}

// Reads the text of a meeting file; returns why that is not possible, or an empty text. A file that
// other users may have written is refused.
inline std::string read_meeting_text(const std::string& path, std::string& text) {
    text.clear();
    const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return path + ": " + (errno == ELOOP ? "a symbolic link" : strerror(errno));
    struct stat st;
    char line[512];
    const bool own = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (st.st_uid == geteuid() || (st.st_mode & 077) == 0);
    const ssize_t n = own ? read(fd, line, sizeof(line) - 1) : 0;
    close(fd);
    text.assign(line, std::max<ssize_t>(n, 0));
    return own ? "" : path + " is no file of this user";
}

// The meeting file of this process: one line, HOST PORT TOKEN, which exists while the run meets. If
// another run took it for a stale one and replaced it by its own, that one stays.
struct MeetingFile {
    std::string path, line;
    ~MeetingFile() { remove(); }
    void remove() {
        std::string text;
        if (!path.empty() && read_meeting_text(path, text).empty() && text == line) unlink(path.c_str());
        path.clear();
    }
};
inline MeetingFile meeting_file;

// Reads host, port and token from the text of a meeting file; returns what is wrong with it, or an
// empty text.
inline std::string parse_meeting_text(const std::string& path, const std::string& text, Place& place) {
    char host[256], token[65], end;
    if (sscanf(text.c_str(), "%255s %d %64s%c", host, &place.port, token, &end) != 4 || end != '\n' || place.port < 1 ||
        place.port > 65535)
        return path + " does not say HOST PORT TOKEN";
    place.host = host, place.key = key_of(token);
    return "";
}

// Reads a meeting file; returns what is wrong with it, or an empty text.
inline std::string read_meeting_file(const std::string& path, Place& place) {
    std::string text;
    const std::string problem = read_meeting_text(path, text);
    return problem.empty() ? parse_meeting_text(path, text, place) : problem;
}

// True if the file is that of a run which is meeting right now: if its rank 0 answers. text becomes
// what the file holds.
inline bool is_live(const std::string& path, const Member& me, std::string& text) {
    Place place;
    std::string problem;
    for (int tries = 0; tries < 10; tries++, usleep(50000)) {  // it may not be complete yet
        problem = read_meeting_text(path, text);
        if (problem.empty()) problem = parse_meeting_text(path, text, place);
        if (problem.empty()) break;
    }
    const std::vector<in_addr> addresses = problem.empty() ? addresses_of(place.host) : std::vector<in_addr>();
    if (addresses.empty()) return false;
    Verdict verdict;
    introduce(place, addresses[0], {me.processes, ONLY_ASKING, me.program}, now_seconds() + GUESS_S, verdict, problem);
    return verdict.code == I_AM_HERE;
}

// Writes the meeting file. Replaces the file of an earlier run; exit 1 if another run is meeting by
// it.
inline void leave_meeting_file(const std::string& path, const std::string& line, const Member& me) {
    for (int tries = 0;; tries++) {
        const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0) {
            bool good = write(fd, line.data(), line.size()) == (ssize_t)line.size();
            int reason = errno;
            if (close(fd) != 0) good = false, reason = errno;
            if (good) return (void)(meeting_file.path = path, meeting_file.line = line);
            unlink(path.c_str());
            runtime_failure("cannot write %s: %s", path, strerror(reason));
        }
        if (errno != EEXIST || tries == 10) runtime_failure("cannot write %s: %s", path, strerror(errno));
        std::string stale, found;
        if (is_live(path, me, stale))
            runtime_failure(
                "another run is meeting by way of %s right now; -pf with a folder of its own, or waiting until it has "
                "met, is accepted",
                path);
        read_meeting_text(path, found);
        if (found != stale) continue;  // another run has replaced it
        if (unlink(path.c_str()) != 0 && errno != ENOENT)
            runtime_failure("cannot replace %s, which an earlier run left: %s", path, strerror(errno));
    }
}

// Meets the other processes by a file in a folder; returns the connections (tcp.h).
inline std::vector<int> meet_by_file(const std::string& folder, const Member& me, int64_t timeout_s) {
    const std::string path = folder + "/rendezvous.txt";
    if (!folder_exists(folder))
        runtime_failure("--fs-path %s is no folder; one that all processes share is accepted", folder);
    if (me.rank > 0) {
        auto find = [&](Place& place) { return read_meeting_file(path, place); };
        return {join(me, find, "rank 0 has written no file there, or the file is an earlier run's (-pf)", timeout_s)};
    }
    in_addr any{htonl(INADDR_ANY)}, self{htonl(INADDR_LOOPBACK)};
    int port = 0;
    char host[256] = "";
    gethostname(host, sizeof(host) - 1);
    int listener = listen_on(any, port);
    const std::vector<in_addr> addresses = addresses_of(host);
    const int probe = addresses.empty() || listener < 0 ? -1 : connect_by(addresses[0], port, now_seconds() + GUESS_S);
    if (probe >= 0) close(probe);
    else {  // this machine does not know its own name: only its own processes can connect
        strcpy(host, "127.0.0.1");
        if (listener >= 0) close(listener);
        listener = listen_on(self, port = 0);
    }
    if (listener < 0) runtime_failure("rank 0 cannot listen for the other processes: %s", strerror(errno));
    const std::string token = random_token();
    leave_meeting_file(path, format("%s %d %s\n", host, port, token), me);
    const std::vector<int> peers = take_in_all(listener, me, key_of(token), timeout_s);
    meeting_file.remove();
    return peers;
}
