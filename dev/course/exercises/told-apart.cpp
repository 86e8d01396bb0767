// ----- task
// Which of two entries of the board is better? Each has the bits per byte of three seeds, a and b
// (3 each, in any order). The median of the three is an entry's result, and its spread is the
// largest minus the smallest. They are told apart if the medians differ by more than the larger of
// the two spreads. Returns 1 if a is better (fewer bits), -1 if b is, 0 if they are not told apart.
int told_apart(const float* a, const float* b) {
    // your code
    return 2;
}

// ----- solution
#include <algorithm>
int told_apart(const float* a, const float* b) {
    float x[3], y[3];
    std::copy(a, a + 3, x), std::copy(b, b + 3, y);
    std::sort(x, x + 3), std::sort(y, y + 3);
    const float spread = std::max(x[2] - x[0], y[2] - y[0]), difference = y[1] - x[1];
    return difference > spread ? 1 : difference < -spread ? -1 : 0;
}

// ----- mistakes
//     more: const float spread ==> std::swap(x[1], y[1]);\n    const float spread
//     always: difference > spread ? 1 : difference < -spread ? -1 : 0 ==> difference > 0 ? 1 : -1
//     mean: difference = y[1] - x[1] ==> difference = (y[0] + y[1] + y[2] - x[0] - x[1] - x[2]) / 3
//     best: difference = y[1] - x[1] ==> difference = y[0] - x[0]
//     smaller: spread = std::max( ==> spread = std::min(
//     unsorted: std::sort(x, x + 3), std::sort(y, y + 3); ==>
//     one-way: : difference < -spread ? -1 : 0 ==> : 0

// ----- judge
static int verdict_of(std::vector<float> a, std::vector<float> b, const Key& wrong) {
    const double mean_a = ((double)a[0] + a[1] + a[2]) / 3, mean_b = ((double)b[0] + b[1] + b[2]) / 3;
    if (wrong != "unsorted") std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
    const double of_a = (double)a[2] - a[0], of_b = (double)b[2] - b[0];
    double by = (double)b[1] - a[1];
    if (wrong == "mean") by = mean_b - mean_a;
    if (wrong == "best") by = (double)b[0] - a[0];
    if (wrong == "more") by = -by;
    const double least = wrong == "always" ? 0 : wrong == "smaller" ? std::min(of_a, of_b) : std::max(of_a, of_b);
    return by > least ? 1 : wrong == "one-way" ? 0 : by < -least || wrong == "always" ? -1 : 0;
}
void judge(Judge& j, decltype(task::told_apart)* told_apart) {
    j.hints = {{"more", "the entry with more bits per byte is called the better one."},
               {"always", "one of the two always wins; within the spread of the seeds nobody does."},
               {"mean", "the means are compared: one bad seed moves a mean, and not the median."},
               {"best", "the best seeds are compared: so the luckier entry would win."},
               {"smaller", "the smaller of the two spreads is asked for; a difference has to be above both."},
               {"unsorted", "the second of three numbers is the median only of sorted ones."},
               {"one-way", "it never says that b is better."}};
    for (int64_t pairs : {1, 7, 400}) {
        j.sizes("%d pairs", (int)pairs);
        std::vector<int> got;
        std::map<Key, std::vector<double>> expected;
        for (int64_t i = 0; i < pairs; i++) {
            std::vector<float> a = j.random(3, 0.03), b = j.random(3, i % 2 ? 0.1 : 0.02);
            const float apart = j.random(1, 0.2)[0];
            for (int s = 0; s < 3; s++) a[s] += 3, b[s] += 3 + apart;
            got.push_back(told_apart(a.data(), b.data()));
            expected[""].push_back(verdict_of(a, b, ""));
            for (const Judge::Hint& hint : j.hints) expected[hint.key].push_back(verdict_of(a, b, hint.key));
        }
        j.check({{"answer", {pairs}, got, std::vector<float>(pairs, 2)}},
                [&](const Key& wrong) -> Arrays { return {expected[wrong]}; });
    }
}
