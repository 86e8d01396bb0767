// ----- task
// Which tokens find a place with the experts that they have chosen (Lepikhin et al. 2020,
// arXiv:2006.16668, section 2.2). Each of T tokens has chosen two of E experts: chosen[2 t] first,
// chosen[2 t + 1] second. An expert takes at most `capacity` tokens, in this order: all first
// choices before all second ones, and among each of these, early tokens before late ones.
//
// Write places (2 T): number n of those that expert e takes, counted from 0, has place e capacity +
// n; a choice that is dropped has -1.
void expert_places(int* places, const int* chosen, int T, int E, int capacity) {
    // your code
}

// ----- solution
void expert_places(int* places, const int* chosen, int T, int E, int capacity) {
    std::vector<int> taken(E);
    for (int i = 0; i < 2; i++)
        for (int t = 0; t < T; t++) {
            const int e = chosen[2 * t + i];
            places[2 * t + i] = taken[e] < capacity ? e * capacity + taken[e]++ : -1;
        }
}

// ----- mistakes
//     by-token: for (int i = 0; i < 2; i++) ==> for (int t = 0; t < T; t++) ;; for (int t = 0; t < T; t++) { ==>
//         for (int i = 0; i < 2; i++) {
//     one-more: taken[e] < capacity ==> taken[e] <= capacity
//     last-place: : -1 ==> : e * capacity + capacity - 1
//     apart: const int e = chosen[2 * t + i]; ==> const int e = chosen[2 * t + i];
//         if (i == 1 && t == 0) taken.assign(E, 0);

// ----- judge
#include "dev/course/exercises/judge.h"
static Arrays places_of(const std::vector<int>& chosen, int T, int E, int capacity, const Key& wrong) {
    std::vector<int> taken(E);
    std::vector<double> places(2 * T);
    for (int n = 0; n < 2 * T; n++) {
        if (n == T && wrong == "apart") taken.assign(E, 0);
        const int choice = wrong == "by-token" ? n : 2 * (n % T) + n / T, e = chosen[choice];
        const bool fits = taken[e] < capacity + (wrong == "one-more");
        places[choice] = fits ? e * capacity + taken[e]++ : wrong == "last-place" ? (e + 1) * capacity - 1 : -1;
    }
    return {places};
}

void judge(Judge& j, decltype(task::expert_places)* expert_places) {
    j.hints = {
        {"by-token", "each token's two choices are taken together; all first choices come before all second ones."},
        {"one-more", "an expert takes one token more than its capacity, into a place of the next expert."},
        {"last-place", "who comes too late has no place: -1, instead of the last one, which is another's."},
        {"apart", "second choices are counted from 0 again, and get places that first choices have."}};
    for (auto [T, E, capacity] : {std::array<int, 3>{1, 2, 1}, {4, 2, 3}, {16, 4, 8}, {64, 8, 12}, {33, 3, 33}}) {
        j.sizes("%d tokens, %d experts with %d places", T, E, capacity);
        std::vector<int> chosen(2 * T), places(2 * T, -9);
        for (int t = 0; t < T; t++) {
            chosen[2 * t] = (int)std::min(j.random_below(E), j.random_below(E));  // loads are uneven
            chosen[2 * t + 1] = (chosen[2 * t] + 1 + (int)j.random_below(E - 1)) % E;
        }
        expert_places(places.data(), chosen.data(), T, E, capacity);
        j.check({{"places", {2 * T}, places, std::vector<float>(2 * T, -9)}},
                [&, T = T, E = E, capacity = capacity](const Key& wrong) -> Arrays {
                    return places_of(chosen, T, E, capacity, wrong);
                });
    }
}
