// SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask a run to finish its step, save and end. The first signal
// is answered at once on stderr. The run ends when all processes know of it; whatever takes long
// asks stop_agreed() between two pieces of its work. A second signal ends the process immediately.
//
// A terminal, a shell and a launcher may each pass on the same Ctrl-C, so a signal that follows the
// first within a moment does not count as a second one. Nor does SIGHUP: it says that the terminal
// is gone, and may come several times.
#pragma once
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include "llmc/comm/comm.h"

constexpr int STOP_FAILED = -1;  // in the place of a signal: a process cannot go on, its weights are good

struct Stop {
    volatile sig_atomic_t signal = 0;  // the first that this process got
    int agreed = 0;                    // the one that all processes know of
    bool failed = false;               // this process has printed why it cannot go on
    std::atomic<int64_t> first_ms{0};  // when the signal came
    char answers[2][160] = {};         // what the handler writes, since it must not compose text: one is
    std::atomic<int> answer{0};        // in use, `answer`, and the other can be filled
    std::atomic<bool> at_once{true};   // the first signal ends the process: there is nothing to save yet
    double deadline = INFINITY;        // by now_seconds(): from then on the run is stopped as by SIGUSR1
    bool by_mpi = false;               // what the process prints goes to mpirun
    bool saved = false;                // a stopped run has saved and looks once more at what came out
};
inline Stop stop;
constexpr int64_t SAME_WISH_MS = 300;  // a later signal within this time is the same request

// Sets the answer to a signal from here on.
inline void answer_signals(const std::string& text) {
    const int other = 1 - stop.answer;
    const std::string who = comm.rank > 0 ? format("rank %d: ", comm.rank) : "";
    snprintf(stop.answers[other], sizeof(stop.answers[other]), "%s%s%s; once more to stop at once\n",
             isatty(2) ? "\n" : "", who.c_str(), text.c_str());
    stop.answer = other;
}

// The exit status of a run that was stopped.
inline int stop_status(int signal) { return signal == SIGUSR1 ? 0 : signal == STOP_FAILED ? 1 : 128 + signal; }

// When mpirun is told to stop, it no longer reads what its processes print, and kills them a second
// later. From here on a write does not wait for it: what the pipe cannot hold is lost.
inline void never_wait_for_mpirun() {
    for (int fd : {1, 2}) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

inline void on_stop_signal(int signal) {
    const int before = errno;
    if (stop.by_mpi && signal != SIGUSR1) never_wait_for_mpirun();  // SIGUSR1 does not stop mpirun
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t now_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (stop.signal == 0) {
        stop.signal = signal, stop.first_ms = now_ms;
        const char* text = stop.answers[stop.answer];
        if (stop.at_once) text = "stopped before the first step\n";
        (void)!write(2, text, strlen(text));
        if (stop.at_once) _exit(stop_status(signal));
    } else if (signal != SIGHUP && now_ms - stop.first_ms >= SAME_WISH_MS) _exit(128 + signal);
    errno = before;
}

inline void catch_signals() {
    struct sigaction action = {};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;
    struct sigaction hangup = {};
    sigaction(SIGHUP, nullptr, &hangup);
    const bool outlives_terminal = hangup.sa_handler == SIG_IGN;  // started by nohup
    stop.by_mpi = started_by_mpi();
    stop.at_once = comm.processes == 1;  // several processes end together, once all have started
    answer_signals("stopping before the first step");
    for (int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
    if (!outlives_terminal) sigaction(SIGHUP, &action, nullptr);
    ::signal(SIGXFSZ, SIG_IGN);  // then write() fails for a file over the limit, which is reported
    ::signal(SIGPIPE, SIG_IGN);  // likewise if the reader of stdout is gone
}

// True in all processes, at the same call, once one of them has failed or got a signal. A failure
// takes precedence over signals, and SIGUSR1, whose exit status is 0, comes last.
inline bool stop_agreed() {
    if (stop.saved) return false;
    if (stop.agreed) return true;
    if (stop.signal == 0 && now_seconds() >= stop.deadline) stop.signal = SIGUSR1;
    auto weight = [](int signal) { return signal == STOP_FAILED ? 3 : signal == SIGUSR1 ? 1 : signal ? 2 : 0; };
    for (int signal : comm_gather(stop.failed ? STOP_FAILED : (int)stop.signal, "agreeing to go on"))
        if (weight(signal) > weight(stop.agreed)) stop.agreed = signal;
    return stop.agreed != 0;
}
