// ----- task
// Which positions of a sequence a process gets so that all have the same number of pairs of a query
// and a key (Brandon et al. 2023, arXiv:2311.09431). The T positions are cut into 2 P pieces of
// equal length; process r of P has piece r and piece 2 P - 1 - r. T is a multiple of 2 P.
//
// Write positions (T / P), those of process r in increasing order. Return the number of pairs: each
// position attends to itself and to all before it, whoever has them.
int64_t zigzag_rows(int64_t* positions, int64_t T, int64_t P, int64_t r) {
    // your code
    return 0;
}

// ----- solution
int64_t zigzag_rows(int64_t* positions, int64_t T, int64_t P, int64_t r) {
    const int64_t n = T / (2 * P);
    int64_t pairs = 0;
    for (int64_t i = 0; i < 2 * n; i++) {
        positions[i] = i < n ? r * n + i : (2 * P - 1 - r) * n + i - n;
        pairs += positions[i] + 1;
    }
    return pairs;
}

// ----- mistakes
//     contiguous: positions[i] = i < n ? r * n + i : (2 * P - 1 - r) * n + i - n; ==> positions[i] = 2 * r * n + i;
//     second-piece: (2 * P - 1 - r) * n ==> (P + r) * n
//     mirrored: (2 * P - 1 - r) * n + i - n ==> (2 * P - 1 - r) * n + 2 * n - 1 - i
//     one-late: (2 * P - 1 - r) * n ==> (2 * P - r) * n
//     itself: positions[i] + 1 ==> positions[i]

// ----- judge
#include "dev/course/exercises/judge.h"
static Arrays rows_of(int64_t T, int64_t P, int64_t r, const Key& wrong) {
    const int64_t n = T / (2 * P);
    std::vector<double> positions(2 * n), pairs(1);
    for (int64_t i = 0; i < 2 * n; i++) {
        const int64_t second = wrong == "second-piece" ? P + r : wrong == "one-late" ? 2 * P - r : 2 * P - 1 - r;
        positions[i] = wrong == "contiguous" ? 2 * r * n + i
                       : i < n               ? r * n + i
                       : wrong == "mirrored" ? second * n + 2 * n - 1 - i
                                             : second * n + i - n;
        pairs[0] += positions[i] + (wrong != "itself");
    }
    return {positions, pairs};
}

void judge(Judge& j, decltype(task::zigzag_rows)* zigzag_rows) {
    j.hints = {{"contiguous", "these are neighbouring positions: the last process has most pairs, all wait for it."},
               {"second-piece", "the second piece is the r-th of the second half; it must be the r-th from the end."},
               {"mirrored", "the second piece is written backwards: positions increase."},
               {"one-late", "pieces are counted from 0, so the last one is piece 2 P - 1."},
               {"itself", "a position attends to itself, too: position t has t + 1 pairs."}};
    for (auto [T, P] : {std::pair<int64_t, int64_t>{8, 1}, {8, 2}, {24, 3}, {64, 4}}) {
        j.sizes("T %d, %d processes", (int)T, (int)P);
        std::vector<double> positions, pairs, counts;
        for (int64_t r = 0; r < P; r++) {
            std::vector<int64_t> mine(T / P, -1);
            pairs.push_back((double)zigzag_rows(mine.data(), T, P, r));
            positions.insert(positions.end(), mine.begin(), mine.end());
        }
        j.check({{"positions of process", {P, T / P}, positions, std::vector<float>(T, -1)},
                 {"pairs of process", {P}, pairs, std::vector<float>(P)}},
                [&, T = T, P = P](const Key& wrong) -> Arrays {
                    Arrays all(2);
                    for (int64_t r = 0; r < P; r++) {
                        const Arrays one = rows_of(T, P, r, wrong);
                        for (int i = 0; i < 2; i++) all[i].insert(all[i].end(), one[i].begin(), one[i].end());
                    }
                    return all;
                });
    }
}
