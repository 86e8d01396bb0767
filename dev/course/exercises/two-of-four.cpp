// ----- task
// A row of weights (C, a multiple of 4) in the form that sparse tensor cores read: of every four
// beside each other the two of the largest magnitude stay, in the order of their places. Write
// their values (C / 2) and their places in their four, 0 to 3 (C / 2). Then multiply with x (C) by
// values and places alone, without w, and return the sum:
//
//     sum = sum over i of values[i] x[4 floor(i / 2) + places[i]]
//
// No two weights of a four have the same magnitude.
float two_of_four(float* values, unsigned char* places, const float* w, const float* x, int C) {
    // your code
    return -1;
}

// ----- solution
float two_of_four(float* values, unsigned char* places, const float* w, const float* x, int C) {
    float sum = 0;
    int kept = 0;
    for (int four = 0; four < C; four += 4)
        for (int place = 0; place < 4; place++) {
            int larger = 0;
            for (int other = 0; other < 4; other++) larger += std::fabs(w[four + other]) > std::fabs(w[four + place]);
            if (larger >= 2) continue;
            values[kept] = w[four + place], places[kept] = (unsigned char)place;
            sum += values[kept] * x[4 * (kept / 2) + places[kept]];
            kept++;
        }
    return sum;
}

// ----- mistakes
//     signed: std::fabs(w[four + other]) > std::fabs(w[four + place]) ==> w[four + other] > w[four + place]
//     smallest: std::fabs(w[four + other]) > std::fabs(w[four + place]) ==>
//         std::fabs(w[four + other]) < std::fabs(w[four + place])
//     first: larger >= 2 ==> place >= 2
//     where: x[4 * (kept / 2) + places[kept]] ==> x[kept]

// ----- judge
#include "dev/course/exercises/judge.h"
static Arrays kept_of(const std::vector<float>& w, const std::vector<float>& x, const Key& wrong) {
    Arrays found(3);
    double sum = 0;
    for (size_t four = 0; four < w.size(); four += 4) {
        std::vector<int> order = {0, 1, 2, 3};
        std::sort(order.begin(), order.end(), [&](int a, int b) {
            if (wrong == "signed") return w[four + a] > w[four + b];
            if (wrong == "smallest") return std::fabs(w[four + a]) < std::fabs(w[four + b]);
            return std::fabs(w[four + a]) > std::fabs(w[four + b]);
        });
        if (wrong == "first") order = {0, 1};
        std::sort(order.begin(), order.begin() + 2);
        for (int i = 0; i < 2; i++) {
            const size_t kept = found[0].size(), place = order[i];
            found[0].push_back(w[four + place]), found[1].push_back((double)place);
            sum += (double)w[four + place] * x[wrong == "where" ? kept : four + place];
        }
    }
    found[2] = {sum};
    return found;
}

void judge(Judge& j, decltype(task::two_of_four)* two_of_four) {
    j.hints = {{"signed", "the largest values are kept, not the largest magnitudes: -3 is larger than 1 here."},
               {"smallest", "the two that matter least are kept."},
               {"first", "the first two of each four are kept, whatever they are."},
               {"where", "x is read as if it had C / 2 values: the place says which of four belongs to a value."}};
    for (int C : {4, 8, 64, 260}) {
        j.sizes("C %d", C);
        const std::vector<float> w = j.random(C), x = j.random(C);
        std::vector<float> values = begins(C / 2);
        std::vector<unsigned char> places(C / 2, 99);
        const float sum = two_of_four(values.data(), places.data(), w.data(), x.data(), C);
        j.check({{"values", {C / 2}, values},
                 {"places", {C / 2}, places, std::vector<float>(C / 2, 99)},
                 {"sum", {1}, std::vector<float>{sum}, std::vector<float>{-1}}},
                [&](const Key& wrong) { return kept_of(w, x, wrong); });
    }
}
