// Several processes that exchange messages, as threads of one program: for the exercises on
// distributed training. Rank r is the process of number r of `size`. Each has memory of its own, as
// long as nothing but messages is exchanged.
//
// A message that is sent waits until it is received; send never waits. Messages from one rank to
// another arrive in order. If all ranks wait for messages that nobody will send, each receive ends
// with an exception, and run_ranks says who waited for whom.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <thread>
#include "dev/course/exercises/judge.h"

struct Post {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::pair<int, int>, std::deque<std::vector<float>>> boxes;  // by sender and receiver
    std::vector<int64_t> sent_floats, collectives, largest;               // by rank; largest: of a collective operation
    std::vector<int> waits_for;                                           // by rank; -1: for nobody
    int running = 0;
    std::string problem;
};

class Rank {
    Post* post;

public:
    const int rank, size;

    Rank(int rank, int size, Post* post) : post(post), rank(rank), size(size) {}
    void send(int to, const float* data, int64_t n) {
        const std::lock_guard<std::mutex> lock(post->mutex);
        look_for_rank("sends to", to);
        post->sent_floats[rank] += n;
        post->boxes[{rank, to}].emplace_back(data, data + n);
        post->changed.notify_all();
    }
    // Writes the next message from this rank to data; it must have n numbers.
    void receive(int from, float* data, int64_t n) {
        std::unique_lock<std::mutex> lock(post->mutex);
        look_for_rank("receives from", from);
        std::deque<std::vector<float>>& box = post->boxes[{from, rank}];
        post->waits_for[rank] = from;
        while (box.empty()) {
            look_for_deadlock();
            post->changed.wait(lock);
        }
        post->waits_for[rank] = -1;
        const std::vector<float> message = box.front();
        box.pop_front();
        if ((int64_t)message.size() != n)
            stop("rank " + std::to_string(rank) + " expects " + std::to_string(n) + " numbers from rank " +
                 std::to_string(from) + ", which sent " + std::to_string(message.size()));
        std::copy(message.begin(), message.end(), data);
    }
    // Collective operations, for the exercises that are not about them. All ranks must call them in
    // the same order. n is a multiple of size in the last two, and slice r begins at r * n / size.
    void all_reduce(float* data, int64_t n) {  // afterwards all have the sum of all
        exchange(data, n, [&](const std::vector<std::vector<float>>& all) {
            for (int64_t i = 0; i < n; i++) data[i] = sum_of(all, i);
        });
    }
    // The same among some ranks, all of which call it, with the same list.
    void sum_among(float* data, int64_t n, const std::vector<int>& ranks) {
        for (int r : ranks) send(r, data, n);
        std::vector<std::vector<float>> all(ranks.size(), std::vector<float>(n));
        for (size_t r = 0; r < ranks.size(); r++) receive(ranks[r], all[r].data(), n);
        for (int64_t i = 0; i < n; i++) data[i] = sum_of(all, i);
    }
    void reduce_scatter(float* slice, const float* data,
                        int64_t n) {  // slice (n / size) gets the sum of all slices `rank`
        exchange(data, n, [&](const std::vector<std::vector<float>>& all) {
            for (int64_t i = 0; i < n / size; i++) slice[i] = sum_of(all, rank * (n / size) + i);
        });
    }
    void all_gather(float* data, const float* slice, int64_t n) {  // data (n) gets the slices (n / size) of all ranks
        exchange(slice, n / size, [&](const std::vector<std::vector<float>>& all) {
            for (int64_t i = 0; i < n; i++) data[i] = all[i / (n / size)][i % (n / size)];
        });
    }

private:
    static float sum_of(const std::vector<std::vector<float>>& all, int64_t i) {
        float sum = 0;
        for (const std::vector<float>& one : all) sum += one[i];
        return sum;
    }
    [[noreturn]] void stop(const std::string& problem) {
        if (post->problem.empty()) post->problem = problem;
        post->changed.notify_all();
        throw std::runtime_error(post->problem);
    }
    // In C++ -1 % 3 is -1.
    void look_for_rank(const std::string& does, int other) {
        if (other >= 0 && other < size) return;
        stop("rank " + std::to_string(rank) + " " + does + " rank " + std::to_string(other) +
             ": there are ranks 0 to " + std::to_string(size - 1) +
             (other < 0 ? " (in C++ -1 % 3 is -1: add size before %)" : ""));
    }
    // Called with the lock held, by a rank that is about to wait.
    void look_for_deadlock() {
        if (!post->problem.empty()) stop("");
        int waiting = 0;
        for (int r = 0; r < size; r++) {
            const int from = post->waits_for[r];
            if (from >= 0 && post->boxes[{from, r}].empty()) waiting++;
        }
        if (waiting < post->running) return;
        stop("rank " + std::to_string(rank) + " waits for a message from rank " +
             std::to_string(post->waits_for[rank]) + " that nobody will send");
    }
    template <class F>
    void exchange(const float* data, int64_t n, const F& combine) {
        post->collectives[rank]++, post->largest[rank] = std::max(post->largest[rank], n);
        const std::vector<float> mine(data, data + n);
        for (int r = 0; r < size; r++) send(r, mine.data(), n);
        std::vector<std::vector<float>> all(size, std::vector<float>(n));
        for (int r = 0; r < size; r++) receive(r, all[r].data(), n);
        combine(all);
    }
};

// Runs f on `size` ranks at the same time. Returns what went wrong, or "".
inline std::string run_ranks(int size, Post& post, const std::function<void(Rank&)>& f) {
    post.sent_floats.assign(size, 0), post.collectives.assign(size, 0), post.largest.assign(size, 0);
    post.waits_for.assign(size, -1);
    post.running = size;
    std::vector<std::thread> threads;
    for (int r = 0; r < size; r++)
        threads.emplace_back([&, r] {
            Rank me(r, size, &post);
            try {
                f(me);
            } catch (const std::runtime_error&) {}
            const std::lock_guard<std::mutex> lock(post.mutex);
            post.running--, post.waits_for[r] = -1;
            post.changed.notify_all();
        });
    for (std::thread& thread : threads) thread.join();
    for (const auto& [ends, box] : post.boxes)
        if (post.problem.empty() && !box.empty())
            post.problem = "rank " + std::to_string(ends.second) + " never receives a message from rank " +
                           std::to_string(ends.first);
    return post.problem;
}

// Ring algorithms in lockstep, for oracles: in step s rank r sends slice out(r, s) to the next
// rank, which adds it to its own, or puts it in its place. Slices have `count` numbers.
using RankArrays = std::vector<std::vector<double>>;
inline void ring_step(RankArrays& data, int64_t count, bool add, const std::function<int64_t(int64_t r)>& out,
                      const std::function<int64_t(int64_t r)>& in) {
    const int64_t size = (int64_t)data.size();
    const RankArrays before = data;
    for (int64_t r = 0; r < size; r++) {
        const int64_t from = (r + size - 1) % size, sent = out(from), to = in(r);
        for (int64_t i = 0; i < count; i++) {
            double& x = data[r][to * count + i];
            x = (add ? x : 0) + before[from][sent * count + i];
        }
    }
}
