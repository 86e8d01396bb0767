// ----- task
// The answer of a model to a question of HellaSwag (Zellers et al. 2019, arXiv:1905.07830): a
// context of `context` tokens, and 4 ways it could go on, completion c of length[c] tokens. The
// model has been given 4 rows of T tokens, each the context, a completion and padding, and
// loss[c,t] (4, T) is the loss of the token at t + 1 in row c, as position t predicts it.
//
// The answer is the completion whose tokens have the lowest mean loss: the mean, as completions are
// of different lengths; of its own tokens alone, as the context is the same in all. Of equal ones
// the first. The loss of what lies behind a completion means nothing, and may be NaN.
int hellaswag_answer(const float* loss, int64_t T, int64_t context, const int64_t* length) {
    // your code
    return -1;
}

// ----- solution
int hellaswag_answer(const float* loss, int64_t T, int64_t context, const int64_t* length) {
    int best = 0;
    double lowest = INFINITY;
    for (int c = 0; c < 4; c++) {
        double sum = 0;
        for (int64_t i = 0; i < length[c]; i++) sum += loss[c * T + context - 1 + i];
        if (sum / length[c] < lowest) best = c, lowest = sum / length[c];
    }
    return best;
}

// ----- mistakes
//     sum: sum / length[c] ==> sum
//     shifted: context - 1 + i ==> context + i
//     with-context: int64_t i = 0; i < length[c] ==> int64_t i = 1 - context; i < length[c] ;;
//         sum / length[c] ==> sum / (length[c] + context - 1)
//     padding: i < length[c]; ==> i < T - context; ;; sum / length[c] ==> sum / (T - context)
//     highest: double lowest = INFINITY ==> double lowest = -INFINITY ;; sum / length[c] < lowest ==>
//         sum / length[c] > lowest
//     first: best = c, lowest ==> lowest
//     later: sum / length[c] < lowest ==> sum / length[c] <= lowest

// ----- judge
#include "dev/course/exercises/judge.h"
static double answer_of(const float* loss, int64_t T, int64_t context, const int64_t* length, const Key& wrong) {
    int best = 0;
    double lowest = wrong == "highest" ? -INFINITY : INFINITY;
    for (int c = 0; c < 4; c++) {
        double sum = 0;
        const int64_t first = wrong == "with-context" ? 0 : wrong == "shifted" ? context : context - 1;
        const int64_t end = wrong == "padding"   ? T - 1
                            : wrong == "shifted" ? context + length[c]
                                                 : context - 1 + length[c];
        for (int64_t t = first; t < end; t++) sum += loss[c * T + t];
        const double value = wrong == "sum" ? sum : sum / (double)(end - first);
        const bool better = wrong == "highest" ? value > lowest : wrong == "later" ? value <= lowest : value < lowest;
        if (!better) continue;
        lowest = value;
        if (wrong != "first") best = c;
    }
    return best;
}

void judge(Judge& j, decltype(task::hellaswag_answer)* hellaswag_answer) {
    j.hints = {
        {"sum", "this is the lowest sum, which prefers short completions."},
        {"shifted", "the first token of a completion is predicted at the last position of the context: one earlier."},
        {"with-context", "the losses of the context are in the mean; they drown those of the completion."},
        {"padding", "what lies behind a completion is in the mean."},
        {"highest", "this is the completion that the model finds least likely."},
        {"first", "it is always the first."},
        {"later", "of equal completions the first counts."}};
    for (int64_t questions : {1, 5, 200}) {
        j.sizes("%d questions", (int)questions);
        std::vector<double> got;
        std::map<Key, std::vector<double>> expected;
        for (int64_t q = 0; q < questions; q++) {
            const int64_t T = 24, context = 1 + j.random_below(9);
            int64_t length[4];
            std::vector<float> loss = j.random(4 * T, 3);
            for (float& x : loss) x += 3;
            for (int c = 0; c < 4; c++) {
                length[c] = 1 + j.random_below(T - context - 1);
                for (int64_t t = context + length[c] - 1; t < T; t++) loss[c * T + t] = q % 2 ? NAN : 0;
                if (q % 5 == 4) std::fill(&loss[c * T], &loss[c * T] + T, 2);  // all equal
            }
            got.push_back(hellaswag_answer(loss.data(), T, context, length));
            expected[""].push_back(answer_of(loss.data(), T, context, length, ""));
            for (const Judge::Hint& hint : j.hints)
                expected[hint.key].push_back(answer_of(loss.data(), T, context, length, hint.key));
        }
        j.check({{"answer", {questions}, got, std::vector<float>(questions, -1)}},
                [&](const Key& wrong) -> Arrays { return {expected[wrong]}; });
    }
}
