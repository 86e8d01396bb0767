// ----- task
// The gradient of layer normalisation. Forward, for one row x of C channels:
//
//     mean = (sum over c of x[c]) / C,   var = (sum over c of (x[c] - mean)^2) / C,   s = 1 / sqrt(var + 1e-5)
//     n[c] = (x[c] - mean) s
//     out  = n[c] gain[c] + bias[c]
//
// Derive Dx, Dgain and Dbias from Dout, where D stands for "the gradient of the loss with respect
// to". mean and s depend on every channel of the row, so Dx[c] depends on all of Dout.
//
// x.grad (rows, C), gain.grad (1, C) and bias.grad (1, C) are added to, since other layers may use
// x too; from out.grad (rows, C) and the values of x, gain and bias. x.grad_row(r)[c] is element
// (r, c) of a gradient.
void layernorm_backward(Tensor& out, Tensor& x, Tensor& gain, Tensor& bias) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp RowStatistics row_statistics layernorm_backward

// ----- shipped
#include "llmc/cpu/reference.h"
void layernorm_backward(Tensor& out, Tensor& x, Tensor& gain, Tensor& bias) {
    std::vector<float> mean(x.rows), rstd(x.rows), again(x.rows * x.cols);
    reference::layernorm_forward(again.data(), mean.data(), rstd.data(), x.row(0), gain.row(0), bias.row(0), x.rows,
                                 x.cols);
    reference::layernorm_backward(x.grad_row(0), gain.grad_row(0), bias.grad_row(0), out.grad_row(0), x.row(0),
                                  gain.row(0), mean.data(), rstd.data(), x.rows, x.cols, true);
}

// ----- mistakes
//     mean: s * (g - mean_g - n * mean_gn) ==> s * (g - n * mean_gn)
//     scale: s * (g - mean_g - n * mean_gn) ==> s * (g - mean_g)
//     constants: s * (g - mean_g - n * mean_gn) ==> s * g
//     sums: mean_g += g / C ==> mean_g += g ;; mean_gn += g * n / C ==> mean_gn += g * n
//     raw: dout[c] * n; ==> dout[c] * x_row[c];
//     gain: g = dout[c] * gain.value[c] ==> g = dout[c]
//     overwritten: += s * (g ==> = s * (g
//     s: += s * (g - mean_g - n * mean_gn) ==> += g - mean_g - n * mean_gn
//     one-pass: var += (x[c] - mean) * (x[c] - mean) / C; ==> var += x[c] * x[c] / C; ;;
//         std::sqrt(var + 1e-5f) ==> std::sqrt(var - mean * mean + 1e-5f)

// ----- judge
void judge(Judge& j, decltype(task::layernorm_backward)* layernorm_backward) {
    j.hints = {{"constants", "mean and s are taken for constants. Both depend on x, and each adds a term to Dx."},
               {"mean", "the term is missing that comes from the mean: (mean over j of g[j]), with g = Dout gain."},
               {"scale", "the term is missing that comes from s: n[c] (mean over j of g[j] n[j]), with g = Dout gain."},
               {"gain", "Dx begins with Dn[c] = Dout[c] gain[c]: the gain is missing."},
               {"s", "Dx is to be multiplied by s = 1 / sqrt(var + 1e-5)."},
               {"sums", "the two sums over the row are to be divided by C: they are means."},
               {"raw", "Dgain is the sum of Dout n, with the normalised n, not of Dout x."},
               {"one-pass",
                "the mean of the squares minus the square of the mean: both are large where the mean is, and their "
                "difference is lost to rounding. Sum up (x - mean)^2 once the mean is known."}};
    for (auto [rows, C, add] : {std::array<int64_t, 3>{1, 3, 0}, {3, 5, 0}, {4, 33, 64}, {2, 768, 0}}) {
        j.sizes("rows %d, C %d, x around %d%s", (int)rows, (int)C, (int)add,
                rows * C < 200 ? ", by finite differences" : "");
        Tensor x(rows, C), gain(1, C), bias(1, C), out(rows, C);
        x.value = j.random(rows * C, 2), gain.value = j.random(C), bias.value = j.random(C);
        for (float& z : x.value) z += (float)add;
        out.grad = j.random(rows * C), x.grad = begins(rows * C), gain.grad = begins(C), bias.grad = begins(C);
        layernorm_backward(out, x, gain, bias);
        std::vector<double> X(x.value.begin(), x.value.end()), G(gain.value.begin(), gain.value.end()),
            Bias(bias.value.begin(), bias.value.end());
        struct Statistics {
            double mean, s;
        };
        const auto statistics = [&, C = C](int64_t r) -> Statistics {
            double mean = 0, var = 0;
            for (int64_t c = 0; c < C; c++) mean += X[r * C + c] / C;
            for (int64_t c = 0; c < C; c++) var += std::pow(X[r * C + c] - mean, 2) / C;
            return {mean, 1 / std::sqrt(var + 1e-5)};
        };
        const auto loss = [&, rows = rows, C = C] {  // its gradient with respect to out is out.grad
            double sum = 0;
            for (int64_t r = 0; r < rows; r++) {
                const Statistics k = statistics(r);
                for (int64_t c = 0; c < C; c++)
                    sum += out.grad[r * C + c] * ((X[r * C + c] - k.mean) * k.s * G[c] + Bias[c]);
            }
            return sum;
        };
        const auto by_formula = [&, rows = rows, C = C](const Key& wrong) -> Arrays {
            std::vector<double> dx(rows * C), dgain(C), dbias(C);
            for (int64_t r = 0; r < rows; r++) {
                const Statistics k = statistics(r);
                double g_sum = 0, gn_sum = 0;
                for (int64_t c = 0; c < C; c++) {
                    const double d = out.grad[r * C + c], n = (X[r * C + c] - k.mean) * k.s,
                                 g = d * (wrong == "gain" ? 1 : G[c]);
                    g_sum += g, gn_sum += g * n;
                    dgain[c] += d * (wrong == "raw" ? X[r * C + c] : n), dbias[c] += d;
                }
                const double divisor = wrong == "sums" ? 1 : C;
                for (int64_t c = 0; c < C; c++) {
                    const double n = (X[r * C + c] - k.mean) * k.s,
                                 g = out.grad[r * C + c] * (wrong == "gain" ? 1 : G[c]);
                    double d = g;
                    if (wrong != "mean" && wrong != "constants") d -= g_sum / divisor;
                    if (wrong != "scale" && wrong != "constants") d -= n * gn_sum / divisor;
                    dx[r * C + c] = d * (wrong == "s" ? 1 : k.s);
                }
            }
            return {dx, dgain, dbias};
        };
        j.check({{"Dx", {rows, C}, x.grad}, {"Dgain", {C}, gain.grad}, {"Dbias", {C}, bias.grad}},
                [&, rows = rows, C = C, add = add](const Key& wrong) -> Arrays {
                    Arrays d = by_formula(wrong);
                    if (wrong.empty() && rows * C < 200)
                        d = {finite_differences(X, loss), finite_differences(G, loss), finite_differences(Bias, loss)};
                    d = added_to_begins(d);
                    if (wrong == "one-pass" && add > 0)
                        for (int a = 0; a < 2; a++) std::fill(d[a].begin(), d[a].end(), ANY);
                    return d;
                });
    }
}
