// ----- task
// The gradient of the cross-entropy. Forward:
//
//     p    = softmax of logits[r,0] ... logits[r,V-1]
//     loss = (sum over r of -log p[r,targets[r]]) / rows
//
// Derive d(loss)/dlogits[r,v]; it is short. Begin with -log p[y] = -x[y] + log(sum over v of
// e^x[v]).
//
// logits.grad (rows, Vp) is added to in its first V columns; the others keep what they have.
// probs.value (rows, Vp) holds p of the forward pass. rows is logits.rows.
void cross_entropy_backward(Tensor& logits, Tensor& probs, const Tokens& targets, int64_t V) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp cross_entropy_backward

// ----- mistakes
//     onehot: - (v == targets[r] ? 1 : 0) ==> - 0
//     mean: / logits.rows ==> / 1
//     sign: += (probs.row(r)[v] - (v == targets[r] ? 1 : 0)) ==> -= (probs.row(r)[v] - (v == targets[r] ? 1 : 0))
//     target-only: v = 0; v < V; v++) ==> v = targets[r]; v <= targets[r]; v++)
//     overwritten: [v] += ==> [v] =
//     padding: v < V ==> v < logits.cols

// ----- judge
void judge(Judge& j, decltype(task::cross_entropy_backward)* cross_entropy_backward) {
    j.hints = {{"onehot", "1 is to be subtracted at the target: p[v] - (1 if v is the target, else 0)."},
               {"mean", "the loss is the mean over rows, so each row has the factor 1 / rows."},
               {"sign", "the sign is wrong: a step against the gradient must make the target more probable."},
               {"target-only",
                "only the gradient of the target's logit is there. The others lower its probability too, through "
                "the sum of the softmax."},
               {"padding", "the padding, columns V to Vp - 1, takes no part: its gradient must stay as it was."}};
    for (auto [rows, V, Vp] : {std::array<int64_t, 3>{1, 3, 3}, {2, 5, 8}, {7, 50, 64}}) {
        j.sizes("rows %d, V %d, Vp %d, by finite differences", (int)rows, (int)V, (int)Vp);
        Tensor logits(rows, Vp), probs(rows, Vp);
        logits.value = j.random(rows * Vp, 2), logits.grad = begins(rows * Vp), probs.value = j.random(rows * Vp);
        Tokens targets;
        for (int64_t r = 0; r < rows; r++) targets.push_back((int)j.random_below(V));
        std::vector<double> x = doubles(logits.value);
        const auto loss = [&, rows = rows, V = V, Vp = Vp] {
            double mean = 0;
            for (int64_t r = 0; r < rows; r++) {
                double total = 0;
                for (int64_t v = 0; v < V; v++) total += std::exp(x[r * Vp + v]);
                for (int64_t v = 0; v < V; v++) probs.row(r)[v] = (float)(std::exp(x[r * Vp + v]) / total);
                mean += (std::log(total) - x[r * Vp + targets[r]]) / rows;
            }
            return mean;
        };
        loss();
        cross_entropy_backward(logits, probs, targets, V);
        const std::vector<double> right = finite_differences(x, loss);
        loss();
        j.check({{"Dlogits", {rows, Vp}, logits.grad}}, [&, rows = rows, V = V, Vp = Vp](const Key& wrong) -> Arrays {
            if (wrong.empty()) return added_to_begins({right});
            std::vector<double> d(rows * Vp);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t v = 0; v < (wrong == "padding" ? Vp : V); v++) {
                    const double one = wrong != "onehot" && v == targets[r];
                    d[r * Vp + v] = (probs.row(r)[v] - one) / (wrong == "mean" ? 1 : rows) * (wrong == "sign" ? -1 : 1);
                    if (wrong == "target-only" && v != targets[r]) d[r * Vp + v] = 0;
                }
            return added_to_begins({d});
        });
    }
}
