// The processes of a run, and how they exchange data: by MPI (comm_mpi.h), where the build found
// it, or by TCP (tcp.h); the CPUs of one host exchange buckets by shared memory (shared_memory.h).
// With one process, nothing happens. comm_start.h brings them together.
//
// Every process trains on its own part of each batch. Then the gradients are summed: a
// reduce-scatter leaves on rank r the sum of slice r of a bucket (tensors.h), and an all-gather
// collects the slices of all ranks. Collectives on buckets are started, and waited for later, so
// that data travels while the next layer computes; by shared memory they are complete when the
// start returns. What starts one returns its number. All ranks of a group (usually all processes)
// start the same ones in the same order; they may wait for them in any order:
//
//     const Collective weights = comm_all_gather_start(...), sum = comm_reduce_scatter_start(...);
//     comm_wait(weights, "the weights");    for that one
//     comm_wait("the end of the step");     for all that were started
//
// Small collectives (numbers that all processes must agree on) wait at once; their sums are added
// in the order of ranks, so that all ranks get the same bits.
//
// No process waits forever: after comm.timeout_s it says what it waits for, and ends the run.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>
#include "llmc/trace/trace.h"

// A collective that was started, by the number of those before it; ALL_COLLECTIVES: every one.
using Collective = int64_t;
constexpr Collective ALL_COLLECTIVES = 0;

// Processes that exchange buckets with each other: ranks first, first + stride, ... of all. This
// one is number `rank` among them. Those of all groups of a kind (comm_make_group()) have equal
// numbers of processes, and start the same collectives.
struct CommGroup {
    int64_t processes = 1, rank = 0, first = 0, stride = 1;
    int64_t number = 0;  // of the kind, by which the transport knows it; 0: all processes

    int64_t member(int64_t i) const { return first + i * stride; }  // its rank among all
};

// A collective as it starts; its work is for the trace.
struct Started {
    Collective number;
    KernelWork work;
    CommGroup group{};
};

// How processes exchange data. `what` is for a message.
struct Transport {
    void (*gather)(const CommGroup& group, void* out, const void* mine, int64_t bytes, const char* what);
    void (*exchange_start)(const Started& c, void* out, const void* data, int64_t bytes);
    void (*sum_slices_start)(const Started& c, float* data, int64_t n_elems);
    void (*all_gather_start)(const Started& c, void* data, int64_t bytes);
    void (*progress)();
    void (*wait)(Collective number, const char* what);
    void (*end)();
    void (*make_group)(const CommGroup& group);  // null: nothing has to be made
    void (*send_start)(const Started& c, const void* data, int64_t bytes, int64_t to);
    void (*receive_start)(const Started& c, void* data, int64_t bytes, int64_t from);
    bool (*is_complete)(Collective number);
};

// A sum that waits for others, to travel together with them (--bucket-mb; shared_memory.h).
struct PostponedSum {
    Started c;
    float* data;
    int64_t n_elems;
};

struct Comm {
    int64_t processes = 1, rank = 0;
    int64_t started = 1;  // the processes of the run, also in an Alone
    // Each bucket is in slices among `shards`; `replicas` have the same slice (--shard-within).
    CommGroup shards{}, replicas{};
    int64_t groups = 0;  // kinds that were made
    int64_t timeout_s = 600;
    Collective last = 0;         // that was started
    void (*at_end)() = nullptr;  // called by comm_end(), while all processes are still there
    Transport transport{};
    int64_t message_bytes = 0;  // of gradients that travel together, at least; 0: every bucket by itself
    std::vector<PostponedSum> postponed{};
    // Saves what can be saved when a rank is lost, if it is set (run/after_loss.h); returns what
    // became of it, to be said after why the run ends.
    std::function<std::string(int64_t lost)> at_loss;
};
inline Comm comm;

// Ends the run (exit 1), since a rank has ended or hangs.
[[noreturn]] inline void end_after_loss(int64_t lost, const std::string& why) {
    const auto save = std::exchange(comm.at_loss, nullptr);
    runtime_failure("%s%s", why, save ? save(lost) : "");
}

// Called again and again while this process waits for another, if it is set: a simulated GPU
// computes only while its host lets it, a real one by itself.
inline void (*while_polling)() = nullptr;

// While an Alone exists, its process acts as if it were the only one: collectives do nothing.
struct Alone {
    const int64_t processes = std::exchange(comm.processes, 1);
    ~Alone() { comm.processes = processes; }
};
// Within an Alone, for what no process can do without the others.
struct Together {
    const int64_t processes = std::exchange(comm.processes, comm.started);
    ~Together() { comm.processes = processes; }
};

// All processes.
inline CommGroup everyone() { return {comm.processes, comm.rank}; }

// A kind of groups that are known from here on, of which this process is in `group`. All processes
// call it, with equal sizes.
inline CommGroup comm_make_group(CommGroup group) {
    group.number = ++comm.groups;
    if (comm.transport.make_group) comm.transport.make_group(group);
    return group;
}
// Has buckets in slices among N neighbours: ranks 0 to N-1, N to 2N-1, ...; N divides the number of
// processes. Processes of different groups that have the same slices are replicas.
//
//     2 of 6:        shards    {0, 1} {2, 3} {4, 5}
//                    replicas  {0, 2, 4} {1, 3, 5}
inline void comm_shard_within(int64_t N) {
    const int64_t P = comm.processes, r = comm.rank;
    comm.shards = {P, r}, comm.replicas = {1, 0, r};
    if (N == P) return;
    comm.shards = comm_make_group({N, r % N, r / N * N, 1});
    comm.replicas = comm_make_group({P / N, r / N, r % N, N});
}
// Has this process be one of so many from here on, which may not be there: a plan counts them.
inline void comm_count(int64_t processes, int64_t rank = 0) {
    comm.processes = processes, comm.rank = rank;
    comm_shard_within(processes);
}

// out (processes * bytes) = the mine (bytes) of every rank of a group, in the order of ranks.
inline void comm_gather(const CommGroup& group, void* out, const void* mine, int64_t bytes, const char* what) {
    if (comm.processes == 1 || group.processes == 1) {
        memcpy(out, mine, bytes);
        return;
    }
    const Range range("gather");
    comm.transport.gather(group, out, mine, bytes, what);
}
inline void comm_gather(void* out, const void* mine, int64_t bytes, const char* what) {
    comm_gather(everyone(), out, mine, bytes, what);
}
template <class T>
inline std::vector<T> comm_gather(const T& mine, const char* what) {
    std::vector<T> all(comm.processes);
    comm_gather(all.data(), &mine, sizeof(T), what);
    return all;
}
// The sum of `mine` over all ranks, added in their order.
inline double comm_sum(double mine, const char* what) {
    double total = 0;
    for (double value : comm_gather(mine, what)) total += value;
    return total;
}
// True if `mine` is true on any rank.
inline bool comm_any(bool mine, const char* what) { return comm.processes > 1 ? comm_sum(mine, what) > 0 : mine; }
// Returns once all ranks have called it.
inline void comm_barrier(const char* what) { comm_gather((char)0, what); }

// values (n) = their elementwise sum over all ranks. At most one rank has a value other than 0 for
// each element, so the sum is exact.
inline void comm_merge(double* values, int64_t n, const char* what) {
    if (comm.processes == 1 || n == 0) return;
    std::vector<double> all(comm.processes * n);
    comm_gather(all.data(), values, n * sizeof(double), what);
    for (int64_t i = 0; i < n; i++) {
        values[i] = 0;
        for (int64_t r = 0; r < comm.processes; r++) values[i] += all[r * n + i];
    }
}

// Starts the sums that were postponed.
inline void comm_send_postponed() {
    for (const PostponedSum& sum : std::exchange(comm.postponed, {})) {
        const Range range(sum.c.work);
        comm.transport.sum_slices_start(sum.c, sum.data, sum.n_elems);
    }
}
// Starts summing a bucket of gradients, data (processes * n_elems), over a group, or postpones that
// until there is a message's worth. Once it is complete, slice `rank` of data holds the sum; the
// other slices are undefined. `bucket` is for the trace.
inline Collective comm_reduce_scatter_start(float* data, int64_t n_elems, int64_t bucket,
                                            const CommGroup& group = comm.shards) {
    if (comm.processes == 1 || group.processes == 1) return ALL_COLLECTIVES;
    const int64_t slice_bytes = n_elems * (int64_t)sizeof(float);
    const KernelWork sent = work::collective("reduce_scatter", bucket, (group.processes - 1) * slice_bytes);
    comm.postponed.push_back({{++comm.last, sent, group}, data, n_elems});
    int64_t bytes = 0;
    for (const PostponedSum& sum : comm.postponed)
        bytes += sum.c.group.processes * sum.n_elems * (int64_t)sizeof(float);
    if (bytes >= comm.message_bytes) comm_send_postponed();
    return comm.last;
}
// Starts collecting the slices of data (processes * n_elems), of which this process has slice
// `rank`.
template <class T>
inline Collective comm_all_gather_start(T* data, int64_t n_elems, int64_t bucket,
                                        const CommGroup& group = comm.shards) {
    if (comm.processes == 1 || group.processes == 1) return ALL_COLLECTIVES;
    const int64_t bytes = n_elems * (int64_t)sizeof(T);
    const KernelWork sent = work::collective("all_gather", bucket, (group.processes - 1) * bytes);
    const Range range(sent);
    comm.transport.all_gather_start({++comm.last, sent, group}, data, bytes);
    return comm.last;
}
// Starts sending piece r of data (processes * bytes) to rank r. Once that is complete, piece s of
// out (processes * bytes) is what rank s has sent to this one.
inline Collective comm_exchange_start(void* out, const void* data, int64_t bytes, int64_t bucket,
                                      const CommGroup& group = comm.shards) {
    if (comm.processes == 1 || group.processes == 1) return memcpy(out, data, bytes), ALL_COLLECTIVES;
    const KernelWork sent = work::collective("all_to_all", bucket, (group.processes - 1) * bytes);
    const Range range(sent);
    comm.transport.exchange_start({++comm.last, sent, group}, out, data, bytes);
    return comm.last;
}
// Start sending data (bytes) to one rank, and receiving it there; waited for like a collective.
// Messages have no names: two ranks start those between them, and the collectives among these, in
// the same order, which the one that receives must know.
inline Collective comm_send_start(const void* data, int64_t bytes, int64_t to) {
    const KernelWork sent = work::collective("send", (double)to, (double)bytes);
    const Range range(sent);
    comm.transport.send_start({++comm.last, sent}, data, bytes, to);
    return comm.last;
}
inline Collective comm_receive_start(void* data, int64_t bytes, int64_t from) {
    const KernelWork received = work::collective("receive", (double)from, 0);
    const Range range(received);
    comm.transport.receive_start({++comm.last, received}, data, bytes, from);
    return comm.last;
}
// Whether what was started is complete, without waiting.
inline bool comm_is_complete(Collective number) { return comm.transport.is_complete(number); }
// Lets MPI advance what was started, which it does only while it is called.
inline void comm_progress() {
    if (comm.transport.progress) comm.transport.progress();
}
// Waits until a collective is complete.
inline void comm_wait(Collective number, const char* what) {
    comm_send_postponed();
    const Range range("wait for processes");
    if (comm.transport.wait) comm.transport.wait(number, what);
}
// Waits until everything that was started is complete.
inline void comm_wait(const char* what) { comm_wait(ALL_COLLECTIVES, what); }

// Ends all communication; MPI waits here for all processes.
inline void comm_end() {
    if (comm.at_end) comm.at_end();
    if (comm.transport.end) comm.transport.end();
    comm.transport = {}, comm.started = 1, comm.groups = comm.message_bytes = 0;
    comm_count(1);
}
// Calls comm_end() when a run ends (run.h). A process that ends in another way, such as by an
// exception, closes its connections without that, and so ends the others.
struct CommSession {
    ~CommSession() {
        if (std::uncaught_exceptions() == 0) comm_end();
    }
};
