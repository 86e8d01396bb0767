// ----- task
// The list of actions of a stage in a pipeline, by 1F1B (Narayanan et al. 2020, arXiv:2006.09503,
// section 2.2). The stages have numbers 0 to stages - 1, the last computes the loss. A step has
// `micro` micro-batches, at least as many as there are stages; each goes forward through all stages
// and then back.
//
// A stage does first as many forward passes as there are stages behind it. Then it alternates: one
// forward, one backward, until no forward pass is left; then it does the backward passes that are
// left. Both begin with micro-batch 0. So it never keeps the activations of more than
// stages - stage micro-batches.
//
// actions (2 * micro) gets i + 1 for the forward pass of micro-batch i, and -(i + 1) for its
// backward pass.
void one_f_one_b(int* actions, int stage, int stages, int micro) {
    // your code
}

// ----- solution
void one_f_one_b(int* actions, int stage, int stages, int micro) {
    const int ahead = stages - 1 - stage;
    int forward = 0, backward = 0;
    while (forward < ahead) *actions++ = ++forward;
    while (backward < micro) {
        if (forward < micro) *actions++ = ++forward;
        *actions++ = -++backward;
    }
}

// ----- mistakes
//     all-forward: const int ahead = stages - 1 - stage; ==> const int ahead = micro + 0 * (stages + stage);
//     wrong-end: const int ahead = stages - 1 - stage; ==> const int ahead = stage + 0 * stages;
//     one-more: const int ahead = stages - 1 - stage; ==> const int ahead = stages - stage;
//     reversed: *actions++ = -++backward; ==> *actions++ = -(micro - backward++);
//     backward-first: if (forward < micro) *actions++ = ++forward; ==> ;;
//         *actions++ = -++backward; ==> *actions++ = -++backward; if (forward < micro) *actions++ = ++forward;

// ----- judge
#include "dev/course/exercises/judge.h"
static Arrays actions_of(int stage, int stages, int micro, const Key& wrong) {
    int ahead = stages - 1 - stage, forward = 0, backward = 0;
    if (wrong == "all-forward") ahead = micro;
    if (wrong == "wrong-end") ahead = stage;
    if (wrong == "one-more") ahead = stages - stage;
    std::vector<double> actions;
    while (forward < ahead) actions.push_back(++forward);
    while (backward < micro) {
        if (forward < micro && wrong != "backward-first") actions.push_back(++forward);
        backward++;
        actions.push_back(wrong == "reversed" ? -(micro - backward + 1) : -backward);
        if (forward < micro && wrong == "backward-first") actions.push_back(++forward);
    }
    return {actions};
}

void judge(Judge& j, decltype(task::one_f_one_b)* one_f_one_b) {
    j.hints = {{"all-forward", "this is GPipe: all micro-batches go forward first, and all are kept."},
               {"wrong-end", "the first stage goes furthest ahead, the last not at all."},
               {"one-more", "one forward pass too many at the beginning: a stage would keep stages - stage + 1."},
               {"reversed", "backward passes, too, begin with micro-batch 0: its gradient comes first."},
               {"backward-first", "after the first forward passes comes one more of them, then a backward pass."}};
    for (auto [stages, micro] : {std::pair<int, int>{1, 3}, {2, 4}, {4, 4}, {4, 8}, {3, 7}})
        for (int stage = 0; stage < stages; stage++) {
            j.sizes("stage %d of %d, %d micro-batches", stage, stages, micro);
            std::vector<int> actions(2 * micro + 1, 99);
            one_f_one_b(actions.data(), stage, stages, micro);
            j.expect(actions[2 * micro] == 99, "bounds", "more than 2 * micro actions are written.");
            actions.pop_back();
            const std::vector<float> before(2 * micro, 99);
            j.check({{"actions", {2 * micro}, actions, before}},
                    [&, stage = stage, stages = stages, micro = micro](const Key& wrong) -> Arrays {
                        return actions_of(stage, stages, micro, wrong);
                    });
        }
}
