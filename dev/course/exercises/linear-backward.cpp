// ----- task
// The gradient of a linear layer. Forward:
//
//     out[r,o] = bias[o] + sum over c of x[r,c] weight[o,c]
//
// x[r,c] is used by all outputs of row r; weight[o,c] by output o of all rows. Each use adds one
// term to the gradient. Derive Dx, Dweight and Dbias from Dout.
//
// x.grad (rows, C), weight.grad (OC, C) and bias->grad (1, OC) are added to, from out.grad (rows,
// OC), x.value and weight.value. bias is null if there is none.
void linear_backward(Tensor& out, Tensor& x, Tensor& weight, Tensor* bias) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp linear_backward

// ----- shipped
#include "llmc/cpu/reference.h"
void linear_backward(Tensor& out, Tensor& x, Tensor& weight, Tensor* bias) {
    std::vector<float> dx(x.value.size());
    reference::matmul_backward(dx.data(), weight.grad_row(0), bias ? bias->grad_row(0) : nullptr, out.grad_row(0),
                               x.row(0), weight.row(0), x.rows, x.cols, weight.rows, true);
    for (size_t i = 0; i < dx.size(); i++) x.grad[i] += dx[i];
}

// ----- mistakes
//     transposed: dx_row[c] += d * w_row[c] ==> dx_row[c] += d * weight.value[c * out.cols + o]
//     exchanged: dx_row[c] += d * w_row[c] ==>
//            dx_row[c] += d * weight.value[(c * x.cols + o) % weight.value.size()]
//     overwritten: dx_row[c] += ==> dx_row[c] = (o == 0 ? 0 : dx_row[c]) +
//     last-use: dx_row[c] += d ==> dx_row[c] = d
//     swapped: dw_row[c] += d * x_row[c] ==> dw_row[c] += d * weight.row(o)[c]
//     mean: bias->grad[o] += d ==> bias->grad[o] += d / out.rows
//     no-bias: if (bias) bias->grad[o] += d; ==> ;
//     mean-weight: dw_row[c] += d * ==> dw_row[c] += d / out.rows *

// ----- judge
void judge(Judge& j, decltype(task::linear_backward)* linear_backward) {
    j.hints = {
        {"transposed", "Dx reads weight as if it were (C, OC): element (o, c) is weight.row(o)[c]."},
        {"exchanged", "Dx takes weight.row(c)[o], row c and column o; element (o, c) of weight is weight.row(o)[c]."},
        {"last-use", "each use of x[r,c] overwrites the one before: its gradient is the sum over all outputs o."},
        {"swapped", "Dweight is made with weight; the derivative of out[r,o] with respect to weight[o,c] is x[r,c]."},
        {"mean", "Dbias is divided by the number of rows. It is a sum; the mean over rows is in the loss."},
        {"mean-weight", "Dweight is divided by the number of rows. It is a sum; the mean over rows is in the loss."},
        {"no-bias", "the gradient of the bias is left as it was."}};
    struct Case {
        int64_t rows, C, OC;
        bool bias;
    };
    for (const Case& c : {Case{1, 1, 1, true}, {2, 3, 5, true}, {5, 4, 4, false}, {33, 48, 7, true}}) {
        const int64_t rows = c.rows, C = c.C, OC = c.OC;
        const bool small = rows * C < 100;
        j.sizes("rows %d, C %d, OC %d%s%s", (int)rows, (int)C, (int)OC, c.bias ? "" : ", no bias",
                small ? ", by finite differences" : "");
        Tensor out(rows, OC), x(rows, C), weight(OC, C), bias(1, OC);
        x.value = j.random(rows * C), weight.value = j.random(OC * C), out.grad = j.random(rows * OC);
        x.grad = begins(rows * C), weight.grad = begins(OC * C), bias.grad = begins(OC);
        linear_backward(out, x, weight, c.bias ? &bias : nullptr);
        std::vector<double> X = doubles(x.value), W = doubles(weight.value), Z(OC);
        const auto loss = [&] {  // its gradient with respect to out is out.grad
            double sum = 0;
            for (int64_t r = 0; r < rows; r++)
                for (int64_t o = 0; o < OC; o++) {
                    double value = c.bias ? Z[o] : 0;
                    for (int64_t i = 0; i < C; i++) value += X[r * C + i] * W[o * C + i];
                    sum += out.grad[r * OC + o] * value;
                }
            return sum;
        };
        j.check({{"Dx", {rows, C}, x.grad}, {"Dweight", {OC, C}, weight.grad}, {"Dbias", {OC}, bias.grad}},
                [&](const Key& wrong) -> Arrays {
                    if (wrong.empty() && small)
                        return added_to_begins(
                            {finite_differences(X, loss), finite_differences(W, loss), finite_differences(Z, loss)});
                    std::vector<double> dx(rows * C), dw(OC * C), db(OC);
                    for (int64_t r = 0; r < rows; r++)
                        for (int64_t o = 0; o < OC; o++) {
                            const double d = out.grad[r * OC + o];
                            if (c.bias && wrong != "no-bias") db[o] += d / (wrong == "mean" ? rows : 1);
                            for (int64_t i = 0; i < C; i++) {
                                double& to = dx[r * C + i];
                                const int64_t at = wrong == "transposed"  ? i * OC + o
                                                   : wrong == "exchanged" ? i * C + o
                                                                          : o * C + i;
                                if (wrong == "last-use") to = 0;
                                to = to == ANY || at >= OC * C ? ANY : to + d * W[at];
                                dw[o * C + i] += d * (wrong == "swapped" ? W[o * C + i] : X[r * C + i]) /
                                                 (wrong == "mean-weight" ? rows : 1);
                            }
                        }
                    Arrays sums = added_to_begins({dx, dw, db});
                    if (wrong == "last-use") sums[0] = dx;
                    return sums;
                });
    }
}
