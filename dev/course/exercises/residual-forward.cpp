// ----- task
// A residual connection (He et al. 2015, arXiv:1512.03385): a block adds to what it got, instead of
// replacing it.
//
//     out = x + branch
//
// out.value is written, from x.value and branch.value. All have the same size: out.value.size()
// elements. x and branch stay as they are.
void residual_forward(Tensor& out, Tensor& x, Tensor& branch) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp residual_forward

// ----- mistakes
//     branch: x.value[i] + branch.value[i] ==> branch.value[i]
//     added: out.value[i] = x ==> out.value[i] += x
//     product: x.value[i] + branch ==> x.value[i] * branch
//     row: i < out.value.size() ==> i < (size_t)out.cols

// ----- judge
void judge(Judge& j, decltype(task::residual_forward)* residual_forward) {
    j.hints = {{"branch", "this is the branch alone: x is to be added, so that the block changes what it got."},
               {"product", "x and branch are multiplied; the connection adds them."},
               {"row", "only the first row is written: all elements, rows times cols of them, are asked for."}};
    for (auto [rows, C] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {4, 130}}) {
        j.sizes("rows %d, C %d", (int)rows, (int)C);
        const int64_t n = rows * C;
        Tensor out(rows, C), x(rows, C), branch(rows, C);
        out.value = begins(n), x.value = j.random(n), branch.value = j.random(n);
        residual_forward(out, x, branch);
        j.check({{"out", {rows, C}, out.value}}, [&, rows = rows, C = C](const Key& wrong) -> Arrays {
            std::vector<double> sum = doubles(begins(n));
            for (int64_t i = 0; i < (wrong == "row" ? C : n); i++)
                sum[i] = wrong == "branch"    ? branch.value[i]
                         : wrong == "product" ? (double)x.value[i] * branch.value[i]
                                              : (double)x.value[i] + branch.value[i];
            return {sum};
        });
    }
}
