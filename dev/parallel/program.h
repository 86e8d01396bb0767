// What the programs of this folder do alike beside their models: flags, a step whose messages are
// counted, and a report of every process beside what the formulas say.
#pragma once
#include <unistd.h>
#include <deque>
#include "dev/flags.h"
#include "dev/parallel/held.h"
#include "dev/parallel/part.h"

constexpr const char* BYTES_OF_TEXTS = "build/parallel/bytes_train.bin";  // of --data

// ---- a run

// How many processes there will be, before they have met.
inline int64_t launched_processes() { return std::max<int64_t>(launcher_value(LAUNCHER_SIZES), 1); }
inline void meet(const char* program) { comm_start(-1, -1, "mpi", "", "", 60, program); }
// Memory for the kernels of a model.
inline void prepare_kernels(const GPT2Config& c) {
    device.scratch_elems = thread_scratch_elems<float>(T, c.C / c.NH);
    allocate_scratch();
}
// A step, whose messages are counted: sent_bytes() is what this process has sent in the last one.
template <class Step>
void counted_step(Step step) {
    trace.tracks = {{"work", {}}, {"messages", {}}}, trace.communication = 1;
    trace.on = true;
    step();
    trace.on = false;
}
inline int64_t sent_bytes() {
    double bytes = 0;
    for (const Span& span : trace.tracks[trace.communication].spans) bytes += span.work.sent_bytes;
    return (int64_t)bytes;
}

// Messages on their way to other ranks, which keep what they send.
struct Outbox {
    std::deque<std::pair<Collective, Floats>> messages{};

    void send(Floats&& data, int64_t to) {
        messages.emplace_back(0, std::move(data));
        auto& [number, floats] = messages.back();
        number = comm_send_start(floats.data(), (int64_t)(floats.size() * sizeof(float)), to);
    }
    void forget_complete() {
        while (!messages.empty() && comm_is_complete(messages.front().first)) messages.pop_front();
    }
    void wait() { comm_wait("the messages"), messages.clear(); }
};
// Waits for the next message from another rank, of n numbers.
inline Floats receive_message(int64_t n, int64_t from) {
    Floats data(n);
    comm_wait(comm_receive_start(data.data(), n * (int64_t)sizeof(float), from), "the pipeline");
    return data;
}
// For who sleeps in place of computing.
inline void sleep_until(double end) {
    for (; now_seconds() < end; usleep(500)) comm_progress();
}

// What a process has done of a step, and when it was at its end.
struct Busy {
    double busy_s, end_s;
};
// The share of the time of all processes in which they have waited. All call it.
inline double idle_share(const Busy& mine) {
    double busy = 0, end = 0;
    const std::vector<Busy> all = comm_gather(mine, "the idle time");
    for (const Busy& one : all) busy += one.busy_s, end = std::max(end, one.end_s);
    return 1 - busy / (end * (double)all.size());
}

// What a process keeps of micro-batches at most, and what it sends in a step.
struct Counts {
    int64_t kept_bytes, sent_bytes;
};
inline Counts counts() { return {held.peak_bytes, sent_bytes()}; }
inline std::string beside_formula(const Counts& found, const Counts& wanted) {
    return format("keeps %d bytes, by the formula %d | sends %d bytes, by the formula %d", found.kept_bytes,
                  wanted.kept_bytes, found.sent_bytes, wanted.sent_bytes);
}
// Prints a line for each process: what it has counted, and what it should. All call it.
template <class Report>
void print_reports(const char* who, const Report& found, const Report& wanted) {
    const std::vector<Report> all = comm_gather(found, "the reports"), formulas = comm_gather(wanted, "the formulas");
    for (size_t r = 0; r < all.size() && comm.rank == 0; r++)
        printf("%s %zu | %s\n", who, r, beside_formula(all[r], formulas[r]).c_str());
}
