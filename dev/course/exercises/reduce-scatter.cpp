// ----- task
// Reduce-scatter in a ring. Each of `size` ranks has n numbers, in `size` slices of n / size. In
// the end slice r of rank r holds the sum of slice r of all ranks; what its other slices hold does
// not matter.
//
// In step s = 0, 1, ... size - 2 every rank sends one slice to the next rank, (rank + 1) % size,
// and receives one from the rank before, which it adds to its own. A slice travels around the ring
// and collects the sums; it must end at the rank of its number. Which slice does rank r send in
// step s? Draw it for 3 ranks. Each rank sends size - 1 slices, however many ranks there are.
//
//     me.rank, me.size
//     me.send(to, data, count)          does not wait
//     me.receive(from, data, count)     waits for the message, writes it to data
void reduce_scatter(Rank& me, float* data, int64_t n) {
    // your code
}

// ----- solution
void reduce_scatter(Rank& me, float* data, int64_t n) {
    const int next = (me.rank + 1) % me.size, before = (me.rank + me.size - 1) % me.size;
    const int64_t count = n / me.size;
    std::vector<float> received(count);
    for (int s = 0; s < me.size - 1; s++) {
        const int out = (me.rank + 2 * me.size - 1 - s) % me.size, in = (out + me.size - 1) % me.size;
        me.send(next, data + out * count, count);
        me.receive(before, received.data(), count);
        for (int64_t i = 0; i < count; i++) data[in * count + i] += received[i];
    }
}

// ----- mistakes
//     rank: before = (me.rank + me.size - 1) % me.size ==> before = (me.rank - 1) % me.size
//     neighbour: 2 * me.size - 1 - s ==> 2 * me.size - s
//     overwritten-sum: data[in * count + i] += ==> data[in * count + i] =
//     deadlock: me.send(next, data + out * count, count); ==> if (me.rank > 0 || s > 0) me.send(next, data + out *
//         count, count);
//     one-step: s < me.size - 1 ==> s < me.size - 2
//     bytes: const int64_t count = n / me.size; ==> const int64_t count = n / me.size;
//         for (int r = 0; r < me.size; r++) if (r != me.rank) me.send(r, data, n);
//         for (int r = 0; r < me.size; r++) if (r != me.rank) { std::vector<float> x(n); me.receive(r, x.data(),
//         n);
//         for (int64_t i = 0; i < n; i++) data[i] += x[i]; } return;
//     same-slice: - 1 - s) % me.size ==> - 1) % me.size

// ----- judge
#include "dev/course/exercises/ranks.h"
void judge(Judge& j, decltype(task::reduce_scatter)* reduce_scatter) {
    j.hints = {
        {"deadlock", "ranks wait for messages that nobody sends: each step is one send and one receive on every rank."},
        {"bytes", "too much is sent: a ring sends one slice per step, size - 1 in all."},
        {"neighbour", "the sums end one rank too early: the first slice that rank r sends is slice r - 1."},
        {"one-step", "one step is missing: with `size` ranks a sum has size terms, so size - 1 additions."},
        {"overwritten-sum", "what is received replaces the slice; it must be added."},
        {"same-slice",
         "each rank sends the same slice in every step. What it received in a step goes on in the next."}};
    for (auto [size, count] : {std::pair<int, int64_t>{1, 3}, {2, 4}, {3, 5}, {5, 7}}) {
        const int64_t n = size * count;
        j.sizes("%d ranks, %d numbers", size, (int)n);
        std::vector<std::vector<float>> data, before;
        for (int r = 0; r < size; r++) before.push_back(j.random(n));
        data = before;
        Post post;
        const std::string problem =
            run_ranks(size, post, [&](Rank& me) { reduce_scatter(me, data[me.rank].data(), n); });
        if (!problem.empty()) {
            const bool astray = problem.find("there are ranks") != std::string::npos;
            j.expect(false, astray ? "rank" : "deadlock", "%s", problem.c_str());
            continue;
        }
        std::vector<float> got, began;
        for (int r = 0; r < size; r++) {
            got.insert(got.end(), data[r].begin(), data[r].end());
            began.insert(began.end(), before[r].begin(), before[r].end());
        }
        const int64_t sent = *std::max_element(post.sent_floats.begin(), post.sent_floats.end());
        if (sent > (size - 1) * count) {
            j.expect(false, "bytes", "a rank sent %d numbers, asked: %d", (int)sent, (int)((size - 1) * count));
            continue;
        }
        j.check({{"data of rank", {size, n}, got, began}}, [&, size = size, count = count](const Key& wrong) -> Arrays {
            RankArrays ring;
            for (const std::vector<float>& one : before) ring.push_back(doubles(one));
            for (int64_t s = 0; s < size - (wrong == "one-step" ? 2 : 1); s++) {
                const auto out = [&, s](int64_t r) {
                    return (r + 2 * size - (wrong == "neighbour" ? 0 : 1) - (wrong == "same-slice" ? 0 : s)) % size;
                };
                ring_step(ring, count, wrong != "overwritten-sum", out,
                          [&](int64_t r) { return (out(r) + size - 1) % size; });
            }
            std::vector<double> sums;
            for (int r = 0; r < size; r++)
                for (int64_t i = 0; i < n; i++) sums.push_back(i / count == r || !wrong.empty() ? ring[r][i] : ANY);
            return {sums};
        });
    }
}
