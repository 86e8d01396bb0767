// ----- task
// All-reduce in a ring (Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002): in the end all
// ranks hold the sum of the n numbers of all ranks. First reduce-scatter (exercise reduce-scatter):
// after size - 1 steps each rank has the complete sum of one slice of n / size numbers. Then
// all-gather: in size - 1 more steps the complete slices travel around the ring, each rank passing
// on what it has just received. Each rank sends 2 (size - 1) / size n numbers: less than 2 n,
// however many ranks there are. All ranks have the same bits in the end, since each sum is made
// once.
//
//     me.rank, me.size
//     me.send(to, data, count)          does not wait
//     me.receive(from, data, count)     waits for the message, writes it to data
//
// n is a multiple of me.size.
void all_reduce(Rank& me, float* data, int64_t n) {
    // your code
}

// ----- solution
void all_reduce(Rank& me, float* data, int64_t n) {
    const int next = (me.rank + 1) % me.size, before = (me.rank + me.size - 1) % me.size;
    const int64_t count = n / me.size;
    std::vector<float> received(count);
    for (int s = 0; s < me.size - 1; s++) {  // reduce-scatter: rank r ends with slice r + 1
        const int out = (me.rank + me.size - s) % me.size, in = (out + me.size - 1) % me.size;
        me.send(next, data + out * count, count);
        me.receive(before, received.data(), count);
        for (int64_t i = 0; i < count; i++) data[in * count + i] += received[i];
    }
    for (int s = 0; s < me.size - 1; s++) {  // all-gather
        const int own = (me.rank + 1 + me.size - s) % me.size, in = (me.rank + me.size - s) % me.size;
        me.send(next, data + own * count, count);
        me.receive(before, data + in * count, count);
    }
}

// ----- mistakes
//     rank: before = (me.rank + me.size - 1) % me.size ==> before = (me.rank - 1) % me.size
//     no-gather: me.send(next, data + own * count, count); ==> ;; me.receive(before, data + in * count, count); ==>
//     gather-adds: me.receive(before, data + in * count, count); ==> me.receive(before, received.data(), count);
//         for (int64_t i = 0; i < count; i++) data[in * count + i] += received[i];
//     gather-begins: own = (me.rank + 1 + me.size - s) % me.size, in = (me.rank + me.size - s) % me.size ==>
//         own = (me.rank + me.size - s) % me.size, in = (me.rank + 2 * me.size - 1 - s) % me.size
//     mean: const int own ==> if (s == 0) for (int64_t i = 0; i < count; i++)
//         data[(me.rank + 1) % me.size * count + i] /= me.size; const int own
//     deadlock: me.send(next, data + own * count, count); ==> if (me.rank != 0) me.send(next, data + own * count,
//         count);
//     bytes: const int64_t count = n / me.size; ==> const int64_t count = n / me.size;
//         std::vector<float> own(data, data + n), x(n);
//         for (int r = 0; r < me.size; r++) if (r != me.rank) me.send(r, own.data(), n);
//         for (int r = 0; r < me.size; r++) if (r != me.rank) { me.receive(r, x.data(), n);
//         for (int64_t i = 0; i < n; i++) data[i] += x[i]; } return;

// ----- judge
#include "dev/course/exercises/ranks.h"
void judge(Judge& j, decltype(task::all_reduce)* all_reduce) {
    j.hints = {
        {"deadlock", "ranks wait for messages that nobody sends: each step is one send and one receive on every rank."},
        {"bytes", "too much is sent: the ring sends 2 (size - 1) slices of n / size numbers."},
        {"no-gather",
         "the sums are complete in one slice per rank, but they do not reach the others: all-gather is "
         "missing."},
        {"gather-adds", "in all-gather, complete sums replace what is there; here they are added."},
        {"gather-begins",
         "all-gather begins with the wrong slice: with the one that is complete on this rank after "
         "reduce-scatter."},
        {"mean", "this is the mean; the sum is asked for."}};
    for (auto [size, count] : {std::pair<int, int64_t>{1, 3}, {2, 4}, {3, 5}, {5, 7}}) {
        const int64_t n = size * count;
        j.sizes("%d ranks, %d numbers", size, (int)n);
        std::vector<std::vector<float>> data, before;
        for (int r = 0; r < size; r++) before.push_back(j.random(n));
        data = before;
        Post post;
        const std::string problem = run_ranks(size, post, [&](Rank& me) { all_reduce(me, data[me.rank].data(), n); });
        if (!problem.empty()) {
            const bool astray = problem.find("there are ranks") != std::string::npos;
            j.expect(false, astray ? "rank" : "deadlock", "%s", problem.c_str());
            continue;
        }
        const int64_t sent = *std::max_element(post.sent_floats.begin(), post.sent_floats.end());
        if (sent > 2 * (size - 1) * count) {
            j.expect(false, "bytes", "a rank sent %d numbers, asked: %d", (int)sent, (int)(2 * (size - 1) * count));
            continue;
        }
        std::vector<float> got, began;
        for (int r = 0; r < size; r++) {
            got.insert(got.end(), data[r].begin(), data[r].end());
            began.insert(began.end(), before[r].begin(), before[r].end());
        }
        j.check({{"data of rank", {size, n}, got, began}}, [&, size = size, count = count](const Key& wrong) -> Arrays {
            RankArrays ring;
            for (const std::vector<float>& one : before) ring.push_back(doubles(one));
            for (int64_t s = 0; s < size - 1; s++)
                ring_step(
                    ring, count, true, [&](int64_t r) { return (r + size - s) % size; },
                    [&](int64_t r) { return (r + 2 * size - 1 - s) % size; });
            const int64_t first = wrong == "gather-begins" ? 0 : 1;
            for (int64_t s = 0; s < size - 1 && wrong != "no-gather"; s++)
                ring_step(
                    ring, count, wrong == "gather-adds", [&](int64_t r) { return (r + first + size - s) % size; },
                    [&](int64_t r) { return (r + first + 2 * size - 1 - s) % size; });
            std::vector<double> all;
            for (std::vector<double>& one : ring)
                for (double x : one) all.push_back(wrong == "mean" ? x / size : x);
            return {all};
        });
    }
}
