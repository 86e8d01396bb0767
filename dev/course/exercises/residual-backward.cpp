// ----- task
// The gradient of a residual connection (He et al. 2015, arXiv:1512.03385). Forward:
//
//     out = x + branch
//
// What is dout/dx, what dout/dbranch? x.grad and branch.grad are added to, from out.grad. All have
// the same size: x.grad.size() elements.
void residual_backward(Tensor& out, Tensor& x, Tensor& branch) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp residual_backward

// ----- mistakes
//     overwritten: += out ==> = out
//     half: += out.grad[i] ==> += out.grad[i] / 2
//     branch: branch.grad[i] += out.grad[i]; ==> ;
//     value: += out.grad[i] ==> += out.value[i]

// ----- judge
void judge(Judge& j, decltype(task::residual_backward)* residual_backward) {
    j.hints = {{"half", "the gradient is not split between the two: each term of a sum has the derivative 1."},
               {"branch", "the gradient of branch is left as it was."},
               {"value", "these are the values of out; the gradient of out is out.grad."}};
    for (auto [rows, C] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {4, 130}}) {
        j.sizes("rows %d, C %d", (int)rows, (int)C);
        const int64_t n = rows * C;
        Tensor out(rows, C), x(rows, C), branch(rows, C);
        out.grad = j.random(n), x.value = j.random(n), branch.value = j.random(n);
        for (int64_t i = 0; i < n; i++) out.value[i] = x.value[i] + branch.value[i];
        x.grad = branch.grad = begins(n);
        residual_backward(out, x, branch);
        j.check({{"Dx", {rows, C}, x.grad}, {"Dbranch", {rows, C}, branch.grad}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> d = doubles(wrong == "value" ? out.value : out.grad), db = d;
            for (int64_t i = 0; i < n; i++) {
                if (wrong == "half") d[i] /= 2, db[i] /= 2;
                if (wrong == "branch") db[i] = 0;
            }
            return added_to_begins({d, db});
        });
    }
}
