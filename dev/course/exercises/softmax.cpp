// ----- task
// The softmax of n scores: positive numbers whose sum is 1, so they serve as probabilities, and a
// larger score has a larger one.
//
//     p[i] = e^x[i] / (sum over j of e^x[j])
//
// p (n) is written, from x (n). p may be x. Scores may be as large as 1000, and e^89 does not fit a
// float: which number can be subtracted from all scores so that p stays the same?
void softmax(float* p, const float* x, int64_t n) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp softmax

// ----- mistakes
//     sum: p[i] /= sum ==> p[i] /= 1
//     largest: x[i] - largest ==> x[i]
//     first: *std::max_element(x, x + n) ==> x[0]
//     exp2: std::exp( ==> std::exp2(

// ----- judge
static std::vector<double> softmax_with(const std::vector<float>& x, const Key& wrong) {
    const bool shifted = wrong != "largest";
    const double shift = wrong == "first" ? x[0] : *std::max_element(x.begin(), x.end());
    std::vector<double> p(x.size());
    double sum = 0;
    for (size_t i = 0; i < x.size(); i++) {
        const double score = shifted ? x[i] - shift : x[i];
        p[i] = float_exp(wrong == "exp2" ? score * std::log(2.0) : score);
        sum += p[i];
    }
    for (double& q : p) q /= wrong == "sum" ? 1 : sum;
    return p;
}

void judge(Judge& j, decltype(task::softmax)* softmax) {
    j.hints = {
        {"sum", "the exponentials are not divided by their sum: the probabilities must add up to 1."},
        {"exp2", "this is 2^x where e^x belongs: std::exp, not std::exp2."},
        {"largest",
         "e^x overflows for large scores: subtract the largest score from all of them first. p stays the "
         "same, as numerator and denominator are both divided by e^largest."},
        {"first", "the score that is subtracted is the first, not the largest: e^(x - x[0]) can still overflow."}};
    struct Case {
        int64_t n;
        double scale, add;
    };
    for (const Case& c : {Case{1, 1, 0}, {5, 1, 0}, {3, 2, 1000}, {33, 300, 0}, {1000, 3, -500}}) {
        for (bool in_place : {false, true}) {
            j.sizes("n %d, scores %g +- %g%s", (int)c.n, c.add, c.scale, in_place ? ", p is x" : "");
            std::vector<float> x = j.random(c.n, c.scale), p = begins(c.n);
            for (float& s : x) s += (float)c.add;
            std::vector<float> scores = x;
            if (in_place) p = x;
            softmax(p.data(), in_place ? p.data() : x.data(), c.n);
            j.check({{"p", {c.n}, p, in_place ? scores : begins(c.n)}},
                    [&](const Key& wrong) -> Arrays { return {softmax_with(scores, wrong)}; });
        }
    }
}
