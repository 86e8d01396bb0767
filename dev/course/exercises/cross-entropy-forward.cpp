// ----- task
// Cross-entropy, the loss: minus the logarithm of the probability that the model gave to the token
// that did come next, its mean over all rows.
//
//     p    = softmax of logits[r,0] ... logits[r,V-1]
//     loss = (sum over r of -log p[r,targets[r]]) / rows
//
// logits.value (rows, Vp) are the scores; the columns from V to Vp - 1 are padding and take no
// part. probs.value (rows, Vp) is written in its first V columns. The loss is returned.
float cross_entropy_forward(Tensor& logits, Tensor& probs, const Tokens& targets, int64_t V) {
    // your code
    return 0;
}

// ----- solution: dev/course/gpt2.cpp softmax cross_entropy_forward

// ----- mistakes
//     mean: (sum / logits.rows) ==> sum
//     padding: x, V) ==> x, logits.cols)
//     sign: sum -= ==> sum +=
//     log2: std::log( ==> std::log2( ;; - x[targets[r]]) ==> - x[targets[r]]) / std::log(2.0)
//     largest: x[i] - largest ==> x[i]
//     tokens: (sum / logits.rows) ==> (sum / V)

// ----- judge
void judge(Judge& j, decltype(task::cross_entropy_forward)* cross_entropy_forward) {
    j.hints = {{"mean", "this is the sum over the rows; the loss is the mean."},
               {"tokens", "the sum is divided by V; it has one term per row."},
               {"padding", "the padding takes part in the softmax: only the first V columns of logits are scores."},
               {"sign", "the loss is minus the logarithm: it is never negative."},
               {"log2", "this is the logarithm to base 2; the loss is in units of the natural one."},
               {"largest", "e^x overflows for large scores: subtract the largest score first."}};
    struct Case {
        int64_t rows, V, Vp;
        double scale;
    };
    for (const Case& c : {Case{1, 3, 3, 1}, {2, 5, 8, 2}, {7, 50, 128, 1}, {3, 4, 6, 300}}) {
        j.sizes("rows %d, V %d, Vp %d, logits up to %g", (int)c.rows, (int)c.V, (int)c.Vp, c.scale);
        Tensor logits(c.rows, c.Vp), probs(c.rows, c.Vp);
        Tokens targets;
        logits.value = j.random(c.rows * c.Vp, c.scale), probs.value = begins(c.rows * c.Vp);
        for (int64_t r = 0; r < c.rows; r++)  // at 300, log p is infinite if p, in fp32, is 0
            targets.push_back(c.scale < 10
                                  ? (int)j.random_below(c.V)
                                  : (int)(std::max_element(logits.row(r), logits.row(r) + c.V) - logits.row(r)));
        std::vector<float> loss = {cross_entropy_forward(logits, probs, targets, c.V)}, unknown = {0};
        j.check({{"probs", {c.rows, c.Vp}, probs.value}, {"loss", {1}, loss, unknown}},
                [&](const Key& wrong) -> Arrays {
                    std::vector<double> p(c.rows * c.Vp, ANY);
                    double sum = 0;
                    for (int64_t r = 0; r < c.rows; r++) {
                        const int64_t columns = wrong == "padding" ? c.Vp : c.V;
                        const float* x = logits.row(r);
                        const double highest = wrong == "largest" ? 0 : *std::max_element(x, x + columns);
                        double total = 0;
                        for (int64_t v = 0; v < columns; v++) total += p[r * c.Vp + v] = float_exp(x[v] - highest);
                        for (int64_t v = 0; v < columns; v++) p[r * c.Vp + v] /= total;
                        sum -= std::log(p[r * c.Vp + targets[r]]) / (wrong == "log2" ? std::log(2) : 1);
                        for (int64_t v = c.V; v < c.Vp; v++) p[r * c.Vp + v] = ANY;
                    }
                    const double mean = sum / (wrong == "mean" ? 1 : wrong == "tokens" ? c.V : c.rows);
                    return {p, {wrong == "sign" ? -mean : mean}};
                });
    }
}
