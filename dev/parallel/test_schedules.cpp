// The schedules of pipelines, played through on paper: every action is there once, in an order in
// which no stage waits for ever, and bubble and kept micro-batches are those of the formulas.
#include <array>
#include <map>
#include "dev/parallel/schedules.h"
#include "dev/test/test.h"

// What happens if the stages do their actions one after the other, each as soon as it can.
struct Played {
    bool ends = false;
    double bubble = 0;
};
using Done = std::map<std::array<int64_t, 3>, int64_t>;  // when: by kind, micro-batch, place

// When what an action needs of another place is there; -1: nobody knows yet.
static int64_t ready_at(const Done& done, const Action& a, int64_t place, int64_t places) {
    const bool forward = a.kind == 'F';
    const int64_t source = a.kind == 'W' ? -1 : forward ? place - 1 : place + 1;
    if (source < 0 || source == places) return 0;
    const auto found = done.find({forward, a.micro, source});
    return found == done.end() ? -1 : found->second;
}
static Played play(const std::vector<Actions>& stages, const Shape& s) {
    Done done;
    std::vector<size_t> next(s.P);
    std::vector<int64_t> now(s.P);
    int64_t busy = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int64_t stage = 0; stage < s.P; stage++)
            for (; next[stage] < stages[stage].size(); next[stage]++, moved = true) {
                const Action& a = stages[stage][next[stage]];
                const int64_t place = a.chunk * s.P + stage, ready = ready_at(done, a, place, s.P * s.v);
                if (ready < 0) break;
                const int64_t takes = a.kind == 'B' ? 2 : 1;
                now[stage] = std::max(now[stage], ready) + takes, busy += takes;
                if (a.kind != 'W') done[{a.kind == 'F', a.micro, place}] = now[stage];
            }
    }
    Played played{true, 0};
    for (int64_t stage = 0; stage < s.P; stage++) played.ends = played.ends && next[stage] == stages[stage].size();
    played.bubble = 1 - (double)busy / (double)(*std::max_element(now.begin(), now.end()) * s.P);
    return played;
}
// Whether F, then B or I and W, are there once for each micro-batch and chunk, those of a chunk in
// the order of micro-batches; most: how many are kept at a time.
static bool is_whole(const Actions& actions, const Shape& s, int64_t& most) {
    std::map<std::pair<char, int64_t>, int64_t> next;
    int64_t kept = 0;
    most = 0;
    for (const Action& a : actions) {
        if (next[{a.kind, a.chunk}]++ != a.micro) return false;
        if (a.kind != 'F' && next[{'F', a.chunk}] <= a.micro) return false;
        if (a.kind == 'W' && next[{'I', a.chunk}] <= a.micro) return false;
        kept += (a.kind == 'F') - (a.kind == 'B' || a.kind == 'W');
        most = std::max(most, kept);
    }
    for (int64_t c = 0; c < s.v; c++) {
        const int64_t B = next[{'B', c}], I = next[{'I', c}], W = next[{'W', c}];
        if (next[{'F', c}] != s.m || B + I != s.m || I != W) return false;
    }
    return kept == 0;
}

int main() {
    for (const Schedule& schedule : SCHEDULES) {
        start_test(format("%s: whole, without deadlock, its bubble and what it keeps by the formulas", schedule.name));
        for (int64_t P = 1; P <= 8; P++)
            for (int64_t m = P; m <= 4 * P; m += schedule.actions == interleaved ? P : 1)
                for (int64_t v = 1; v <= (schedule.actions == interleaved ? 4 : 1); v++) {
                    const Shape s{P, m, v};
                    std::vector<Actions> stages;
                    for (int64_t stage = 0; stage < P; stage++) {
                        int64_t most;
                        stages.push_back(schedule.actions(s, stage));
                        EXPECT(is_whole(stages.back(), s, most) && most == schedule.kept(s, stage));
                    }
                    const Played played = play(stages, s);
                    EXPECT(played.ends && std::fabs(played.bubble - schedule.bubble(s)) < 1e-12);
                }
    }
    start_test("lists that are wrong are found: a micro-batch twice, one that is missing, stages that wait for ever");
    const Shape s{2, 2, 1};
    int64_t most;
    EXPECT(!is_whole({{'F', 0, 0}, {'F', 0, 0}, {'B', 0, 0}, {'B', 1, 0}}, s, most));
    EXPECT(!is_whole({{'F', 0, 0}, {'B', 0, 0}}, s, most));
    EXPECT(!is_whole({{'F', 0, 0}, {'F', 1, 0}, {'W', 0, 0}, {'I', 0, 0}, {'I', 1, 0}, {'W', 1, 0}}, s, most));
    const Actions waits{{'F', 0, 0}, {'B', 0, 0}, {'F', 1, 0}, {'B', 1, 0}};
    const Actions reversed{{'F', 1, 0}, {'B', 1, 0}, {'F', 0, 0}, {'B', 0, 0}};
    EXPECT(!play({waits, reversed}, s).ends);
    return report_tests();
}
