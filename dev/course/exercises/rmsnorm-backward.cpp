// ----- task
// The gradient of RMSNorm. Forward, for each row x of C channels:
//
//     rstd = 1 / sqrt((mean over c of x[c]^2) + eps),    n[c] = x[c] rstd,    out[c] = n[c] weight[c]
//
// Backward, from Dout, with g[c] = Dout[c] weight[c]:
//
//     Dweight[c] += sum over the rows of Dout[r,c] n[r,c]
//     Dx[r,c] = rstd[r] (g[r,c] - n[r,c] (mean over j of g[r,j] n[r,j]))
//
// dx, dout and x are (rows, C), weight and dweight (C), rstd (rows), which the forward pass has
// kept. dx is written, dweight added to.
void rmsnorm_backward(float* dx, float* dweight, const float* dout, const float* x, const float* weight,
                      const float* rstd, int64_t rows, int64_t C) {
    // your code
}

// ----- solution
void rmsnorm_backward(float* dx, float* dweight, const float* dout, const float* x, const float* weight,
                      const float* rstd, int64_t rows, int64_t C) {
    for (int64_t r = 0; r < rows; r++) {
        float mean = 0;
        for (int64_t c = r * C; c < (r + 1) * C; c++) {
            const float n = x[c] * rstd[r];
            mean += dout[c] * weight[c - r * C] * n / C;
            dweight[c - r * C] += dout[c] * n;
        }
        for (int64_t c = r * C; c < (r + 1) * C; c++)
            dx[c] = rstd[r] * (dout[c] * weight[c - r * C] - x[c] * rstd[r] * mean);
    }
}

// ----- shipped
#include "dev/modern/rmsnorm.h"
void rmsnorm_backward(float* dx, float* dweight, const float* dout, const float* x, const float* weight,
                      const float* rstd, int64_t rows, int64_t C) {
    for (int64_t r = 0; r < rows; r++)
        rmsnorm_backward_row<false>(dx + r * C, dweight, dout + r * C, x + r * C, weight, rstd[r], C);
}

// ----- mistakes
//     constant: - x[c] * rstd[r] * mean) ==> )
//     sum: * n / C; ==> * n;
//     weight: dx[c] = rstd[r] * (dout[c] * weight[c - r * C] - ==> dx[c] = rstd[r] * (dout[c] -
//     scale: dx[c] = rstd[r] * (dout[c] * weight[c - r * C] - x[c] * rstd[r] * mean) ==>
//         dx[c] = dout[c] * weight[c - r * C] - x[c] * rstd[r] * mean
//     raw: dweight[c - r * C] += dout[c] * n ==> dweight[c - r * C] += dout[c] * x[c]
//     shift: - x[c] * rstd[r] * mean) ==> - x[c] * rstd[r] * mean - shift) ;; float mean = 0; ==>
//         float mean = 0, shift = 0; ;; dweight[c - r * C] += ==>
//         shift += dout[c] * weight[c - r * C] / C;\n            dweight[c - r * C] +=
//     rows: float mean = 0;\n ==> \n ;; for (int64_t r = 0; ==> float mean = 0;\n    for (int64_t r = 0;
//     overwritten: dweight[c - r * C] += ==> if (r == 0) dweight[c - r * C] = 0;\n            dweight[c - r * C] +=

// ----- judge
void judge(Judge& j, decltype(task::rmsnorm_backward)* rmsnorm_backward) {
    j.hints = {{"constant", "rstd is taken for a constant; it depends on x, which gives the term with the mean."},
               {"sum", "the sum of g n over a row is to be divided by C: it is a mean."},
               {"weight", "Dx begins with g = Dout weight: the weight is missing."},
               {"scale", "Dx is to be multiplied by rstd."},
               {"raw", "Dweight is the sum of Dout n, with the normalised n, not of Dout x."},
               {"shift",
                "the mean of g is subtracted, as in layer norm; RMSNorm leaves the mean of x, so it has no "
                "such term."},
               {"rows", "the mean of g n goes on from row to row: each row has its own."},
               {"overwritten", "Dweight must be added to what was there."}};
    for (auto [rows, C] : {std::pair<int64_t, int64_t>{1, 3}, {3, 5}, {4, 33}}) {
        j.sizes("rows %d, C %d, by finite differences", (int)rows, (int)C);
        const std::vector<float> x = j.random(rows * C, 2), dout = j.random(rows * C), weight = j.random(C);
        std::vector<float> rstd(rows), dx = begins(rows * C), dweight = begins(C);
        std::vector<double> X = doubles(x), W = doubles(weight);
        const auto rstd_of = [&, C = C](int64_t r) {
            const double squares = std::inner_product(&X[r * C], &X[r * C] + C, &X[r * C], 0.0);
            return 1 / std::sqrt(squares / (double)C + 0.01);
        };
        for (int64_t r = 0; r < rows; r++) rstd[r] = (float)rstd_of(r);
        rmsnorm_backward(dx.data(), dweight.data(), dout.data(), x.data(), weight.data(), rstd.data(), rows, C);
        const auto loss = [&, rows = rows, C = C] {
            double sum = 0;
            for (int64_t i = 0; i < rows * C; i++) sum += dout[i] * X[i] * rstd_of(i / C) * W[i % C];
            return sum;
        };
        j.check({{"Dx", {rows, C}, dx}, {"Dweight", {C}, dweight}},
                [&, rows = rows, C = C](const Key& wrong) -> Arrays {
                    std::vector<double> Dx(rows * C), Dweight(C);
                    double mean = 0;
                    for (int64_t r = 0; r < rows; r++) {
                        double shift = 0, s = rstd_of(r);
                        if (wrong != "rows") mean = 0;
                        for (int64_t c = 0; c < C; c++) {
                            const double d = dout[r * C + c], n = X[r * C + c] * s;
                            mean += d * W[c] * n / (wrong == "sum" ? 1 : (double)C), shift += d * W[c] / (double)C;
                            Dweight[c] += d * (wrong == "raw" ? X[r * C + c] : n);
                        }
                        for (int64_t c = 0; c < C; c++) {
                            double d = dout[r * C + c] * (wrong == "weight" ? 1 : W[c]);
                            if (wrong != "constant") d -= X[r * C + c] * s * mean;
                            Dx[r * C + c] = (d - (wrong == "shift" ? shift : 0)) * (wrong == "scale" ? 1 : s);
                        }
                    }
                    if (wrong.empty()) Dx = finite_differences(X, loss), Dweight = finite_differences(W, loss);
                    if (wrong != "overwritten") Dweight = added_to_begins({Dweight})[0];
                    return {Dx, Dweight};
                });
    }
}
