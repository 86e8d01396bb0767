// ----- task
// Layer normalisation (Ba et al. 2016, arXiv:1607.06450): each row is shifted and scaled to mean 0
// and variance 1, then scaled and shifted by a gain and a bias per channel. For one row x of C
// channels:
//
//     mean = (sum over c of x[c]) / C
//     var  = (sum over c of (x[c] - mean)^2) / C
//     s    = 1 / sqrt(var + 1e-5)                        1e-5, so that a constant row is no division by 0
//     out  = (x[c] - mean) s gain[c] + bias[c]
//
// out.value (rows, C) is written, from x.value (rows, C), gain.value (1, C), bias.value (1, C).
// x.rows and x.cols are the sizes; x.row(r)[c] is element (r, c).
void layernorm_forward(Tensor& out, Tensor& x, Tensor& gain, Tensor& bias) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp RowStatistics row_statistics layernorm_forward

// ----- shipped
#include "llmc/cpu/reference.h"
void layernorm_forward(Tensor& out, Tensor& x, Tensor& gain, Tensor& bias) {
    std::vector<float> mean(x.rows), rstd(x.rows);
    reference::layernorm_forward(out.row(0), mean.data(), rstd.data(), x.row(0), gain.row(0), bias.row(0), x.rows,
                                 x.cols);
}

// ----- mistakes
//     biased: (x[c] - mean) * (x[c] - mean) / C; ==> (x[c] - mean) * (x[c] - mean) / (C - 1);
//     outside: std::sqrt(var + 1e-5f) ==> (std::sqrt(var) + 1e-5f)
//     eps: std::sqrt(var + 1e-5f) ==> std::sqrt(var)
//     var: 1 / std::sqrt(var + 1e-5f) ==> 1 / (var + 1e-5f)
//     mean: (x.row(r)[c] - mean) * s ==> x.row(r)[c] * s
//     gain: * gain.value[c] ==> * gain.value[r]
//     one-pass: var += (x[c] - mean) * (x[c] - mean) / C; ==> var += x[c] * x[c] / C; ;;
//         std::sqrt(var + 1e-5f) ==> std::sqrt(var - mean * mean + 1e-5f)

// ----- judge
void judge(Judge& j, decltype(task::layernorm_forward)* layernorm_forward) {
    j.hints = {{"biased", "the variance is divided by C - 1. Layer normalisation divides by C."},
               {"outside", "1e-5 is added to the root; it belongs inside: sqrt(var + 1e-5)."},
               {"eps", "1e-5 is missing in sqrt(var + 1e-5): rows of small variance show it."},
               {"var", "the root is missing: s = 1 / sqrt(var + 1e-5)."},
               {"mean", "the mean is not subtracted from x before the product with s."},
               {"gain", "gain and bias have one element per channel: gain[c], for all rows."},
               {"bias", "the bias is not added."},
               {"one-pass",
                "the mean of the squares minus the square of the mean: both are large where the mean is, and their "
                "difference is lost to rounding. Sum up (x - mean)^2 once the mean is known."}};
    struct Case {
        int64_t rows, C;
        double scale, add;
    };
    for (const Case& c :
         {Case{1, 4, 1, 1}, {3, 5, 1, 1}, {2, 7, 0.003, 0.003}, {5, 48, 2, 2}, {2, 1601, 1, 1}, {3, 48, 1, 64}}) {
        const int64_t rows = c.rows, C = c.C;
        j.sizes("rows %d, C %d, x around %g", (int)rows, (int)C, c.add);
        Tensor x(rows, C), gain(1, C), bias(1, C), out(rows, C);
        x.value = j.random(rows * C, c.scale), gain.value = j.random(C), bias.value = j.random(C);
        for (float& z : x.value) z += (float)c.add;
        out.value = begins(rows * C);
        layernorm_forward(out, x, gain, bias);
        j.check({{"out", {rows, C}, out.value}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected;
            for (int64_t r = 0; r < rows; r++) {
                double mean = 0, var = 0;
                for (int64_t i = 0; i < C; i++) mean += (double)x.row(r)[i] / C;
                for (int64_t i = 0; i < C; i++) var += std::pow(x.row(r)[i] - mean, 2);
                var /= wrong == "biased" ? C - 1 : C;
                const double s = wrong == "outside" ? 1 / (std::sqrt(var) + 1e-5)
                                 : wrong == "eps"   ? 1 / std::sqrt(var)
                                 : wrong == "var"   ? 1 / (var + 1e-5)
                                                    : 1 / std::sqrt(var + 1e-5);
                for (int64_t i = 0; i < C; i++)
                    expected.push_back((x.row(r)[i] - (wrong == "mean" ? 0 : mean)) * s *
                                           gain.value[wrong == "gain" ? std::min(r, C - 1) : i] +
                                       (wrong == "bias" ? 0 : bias.value[i]));
            }
            if (wrong == "one-pass" && c.add > 2) std::fill(expected.begin(), expected.end(), ANY);
            return {expected};
        });
    }
}
