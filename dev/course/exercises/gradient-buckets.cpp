// ----- task
// The gradients of a model are many tensors, small ones too. A message takes a while however small
// it is, so many small ones are slow; one for all would have to wait for the last gradient, and
// needs as much memory again. So they travel in buckets (Li et al. 2020, arXiv:2006.15704, section
// 3.2.2).
//
// All tensors, in order and without gaps, fill buckets of `bucket` numbers; only the last bucket
// may have fewer. A tensor may span several buckets. me.all_reduce(data, count) replaces data on
// all ranks by the sum over the ranks; call it once per bucket. In the end each tensor holds the
// sums.
void all_reduce_tensors(Rank& me, std::vector<std::vector<float>>& tensors, int64_t bucket) {
    // your code
}

// ----- solution
void all_reduce_tensors(Rank& me, std::vector<std::vector<float>>& tensors, int64_t bucket) {
    std::vector<float> packed;
    std::vector<float*> origin;  // of each number in the bucket
    const auto flush = [&] {
        me.all_reduce(packed.data(), (int64_t)packed.size());
        for (size_t i = 0; i < packed.size(); i++) *origin[i] = packed[i];
        packed.clear(), origin.clear();
    };
    for (std::vector<float>& tensor : tensors)
        for (float& x : tensor) {
            packed.push_back(x), origin.push_back(&x);
            if ((int64_t)packed.size() == bucket) flush();
        }
    if (!packed.empty()) flush();
}

// ----- mistakes
//     last: if (!packed.empty()) flush(); ==> ;
//     calls: for (float& x : tensor) { ==> for (float& x : tensor) { if (&x == tensor.data() && !packed.empty())
//         flush();
//     capacity: if ((int64_t)packed.size() == bucket) flush(); ==> ;
//     added: *origin[i] = packed[i] ==> *origin[i] += packed[i]
//     mean: = packed[i] ==> = packed[i] / me.size
//     shifted: *origin[i] = packed[i] ==> *origin[i] = packed[packed.size() - 1 - i]

// ----- judge
#include "dev/course/exercises/ranks.h"
void judge(Judge& j, decltype(task::all_reduce_tensors)* all_reduce_tensors) {
    j.hints = {{"deadlock", "not all ranks make the same calls of all_reduce, in the same order."},
               {"capacity", "more than `bucket` numbers travel at once."},
               {"calls", "too many calls: buckets are filled to the end, also with the begin of the next tensor."},
               {"last", "what remains in the last, partial bucket is not summed."},
               {"mean", "these are means; sums are asked for."},
               {"shifted", "the sums come back in another order than they were packed in."}};
    struct Case {
        int ranks;
        std::vector<int64_t> sizes;
        int64_t bucket;
    };
    for (const Case& c :
         {Case{2, {4, 4}, 4}, {2, {3, 1, 5}, 4}, {3, {20, 2}, 6}, {2, {7}, 100}, {3, {1, 1, 1, 1, 1, 9}, 3}}) {
        int64_t n = 0;
        for (int64_t size : c.sizes) n += size;
        j.sizes("%d ranks, %d tensors, %d numbers, buckets of %d", c.ranks, (int)c.sizes.size(), (int)n, (int)c.bucket);
        std::vector<std::vector<std::vector<float>>> tensors(c.ranks);
        for (auto& mine : tensors)
            for (int64_t size : c.sizes) mine.push_back(j.random(size));
        const auto flat = [&] {
            std::vector<float> all;
            for (const auto& mine : tensors)
                for (const auto& tensor : mine) all.insert(all.end(), tensor.begin(), tensor.end());
            return all;
        };
        const std::vector<float> before = flat();
        Post post;
        const std::string problem =
            run_ranks(c.ranks, post, [&](Rank& me) { all_reduce_tensors(me, tensors[me.rank], c.bucket); });
        if (!problem.empty()) {
            j.expect(false, "deadlock", "%s", problem.c_str());
            continue;
        }
        const int64_t buckets = (n + c.bucket - 1) / c.bucket;
        if (post.largest[0] > c.bucket) {
            j.expect(false, "capacity", "%d numbers travel at once, asked: at most %d", (int)post.largest[0],
                     (int)c.bucket);
            continue;
        }
        if (post.collectives[0] > buckets) {
            j.expect(false, "calls", "all_reduce is called %d times, asked: %d", (int)post.collectives[0],
                     (int)buckets);
            continue;
        }
        j.check({{"numbers of rank", {c.ranks, n}, flat(), before}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected = doubles(before);
            for (int64_t i = 0; i < n; i++) {
                double sum = 0;
                const int64_t first = i / c.bucket * c.bucket, end = std::min(first + c.bucket, n);
                const int64_t from = wrong == "shifted" ? first + end - 1 - i : i;
                for (int r = 0; r < c.ranks; r++) sum += before[r * n + from];
                if (wrong == "mean") sum /= c.ranks;
                if (wrong == "last" && i >= n / c.bucket * c.bucket) continue;
                for (int r = 0; r < c.ranks; r++) expected[r * n + i] = sum;
            }
            return {expected};
        });
    }
}
