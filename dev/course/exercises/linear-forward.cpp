// ----- task
// A linear layer: each output is a weighted sum of the inputs of its row, plus a bias.
//
//     out[r,o] = bias[o] + sum over c of x[r,c] weight[o,c]
//
// out.value (rows, OC) is written, from x.value (rows, C), weight.value (OC, C), and bias->value
// (1, OC); bias is null if there is none. rows is x.rows, C is x.cols, OC is weight.rows.
void linear_forward(Tensor& out, Tensor& x, Tensor& weight, Tensor* bias) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp linear_forward

// ----- shipped
#include "llmc/cpu/reference.h"
void linear_forward(Tensor& out, Tensor& x, Tensor& weight, Tensor* bias) {
    reference::matmul_forward(out.row(0), x.row(0), weight.row(0), bias ? bias->row(0) : nullptr, x.rows, x.cols,
                              weight.rows);
}

// ----- mistakes
//     transposed: w_row[c] ==> weight.value[c * out.cols + o]
//     bias: (bias ? bias->value[o] : 0) ==> 0
//     bias-row: bias->value[o] ==> bias->value[r % out.cols]
//     added: out.row(r)[o] = sum ==> out.row(r)[o] += sum
//     last: c < x.cols ==> c < x.cols - 1
//     reset: float sum = 0; ==> static float sum = 0; if (o == 0) sum = 0;

// ----- judge
void judge(Judge& j, decltype(task::linear_forward)* linear_forward) {
    j.hints = {{"transposed", "weight is read as if it were (C, OC): element (o, c) is weight.row(o)[c]."},
               {"bias", "the bias is not added."},
               {"bias-row", "the bias belongs to the output o, not to the row r."},
               {"last", "the last input of each row is left out of the sum."},
               {"reset", "the sum is not set to 0 for each output: it goes on with that of the output before."}};
    struct Case {
        int64_t rows, C, OC;
        bool bias;
    };
    for (const Case& c : {Case{1, 1, 1, true}, {2, 3, 5, true}, {5, 4, 4, false}, {33, 48, 7, true}}) {
        const int64_t rows = c.rows, C = c.C, OC = c.OC;
        j.sizes("rows %d, C %d, OC %d%s", (int)rows, (int)C, (int)OC, c.bias ? "" : ", no bias");
        Tensor out(rows, OC), x(rows, C), weight(OC, C), bias(1, OC);
        x.value = j.random(rows * C), weight.value = j.random(OC * C), bias.value = j.random(OC);
        out.value = begins(rows * OC);
        linear_forward(out, x, weight, c.bias ? &bias : nullptr);
        j.check({{"out", {rows, OC}, out.value}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected(rows * OC);
            for (int64_t r = 0; r < rows; r++) {
                double sum = 0;
                for (int64_t o = 0; o < OC; o++) {
                    if (wrong != "reset" || o == 0) sum = 0;
                    for (int64_t i = 0; i < C - (wrong == "last"); i++)
                        sum += (double)x.row(r)[i] * weight.value[wrong == "transposed" ? i * OC + o : o * C + i];
                    const bool add = c.bias && wrong != "bias";
                    expected[r * OC + o] = sum + (add ? bias.value[wrong == "bias-row" ? r % OC : o] : 0);
                }
            }
            return {expected};
        });
    }
}
