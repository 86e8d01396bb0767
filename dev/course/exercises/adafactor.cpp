// ----- task
// Adafactor's direction (Shazeer & Stern 2018, arXiv:1804.04235, section 3). Of a matrix of
// gradients g (rows, cols) it keeps no v of every element, but two lists of factors: R has one
// value for each row, C one for each column. In update t = 1, 2, ...:
//
//     share = t^-0.8
//     R_i = R_i + share (mean over j of g_ij^2 - R_i)
//     C_j = C_j + share (mean over i of g_ij^2 - C_j)
//     v_ij = R_i C_j / (mean over i of R_i)
//     d_ij = g_ij / sqrt(v_ij)
//
// R (rows) and C (cols) are updated in place, d (rows, cols) is written. No v is 0.
void adafactor(float* d, float* R, float* C, const float* g, int64_t rows, int64_t cols, int64_t t) {
    // your code
}

// ----- solution
#include <vector>
void adafactor(float* d, float* R, float* C, const float* g, int64_t rows, int64_t cols, int64_t t) {
    const float share = (float)std::pow((double)t, -0.8);
    std::vector<float> row(rows), col(cols);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            const float square = g[i * cols + j] * g[i * cols + j];
            row[i] += square / cols, col[j] += square / rows;
        }
    float mean = 0;
    for (int64_t i = 0; i < rows; i++) R[i] += share * (row[i] - R[i]);
    for (int64_t j = 0; j < cols; j++) C[j] += share * (col[j] - C[j]);
    for (int64_t i = 0; i < rows; i++) mean += R[i] / rows;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) d[i * cols + j] = g[i * cols + j] / std::sqrt(R[i] * C[j] / mean);
}

// ----- shipped
#include "llmc/optim/optimizers.h"
void adafactor(float* d, float* R, float* C, const float* g, int64_t rows, int64_t cols, int64_t t) {
    typedef AdafactorRule Rule;
    std::vector<float> row(rows), col(cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float of_element = Rule::contribution(g[i], R[i / cols], C[i % cols]);
        row[i / cols] += of_element, col[i % cols] += of_element;
    }
    float mean = 0;
    for (int64_t i = 0; i < rows; i++) R[i] = Rule::renewed(R[i], row[i], (float)cols, Rule::newest_share(t));
    for (int64_t j = 0; j < cols; j++) C[j] = Rule::renewed(C[j], col[j], (float)rows, Rule::newest_share(t));
    for (int64_t i = 0; i < rows; i++) mean += R[i] / (float)rows;
    for (int64_t i = 0; i < rows * cols; i++) {
        float of_row = R[i / cols] * Rule::row_scale(mean);
        d[i] = Rule::direction(0.0f, of_row, C[i % cols], g[i], {});
    }
}

// ----- mistakes
//     sums: square / cols ==> square ;; square / rows ==> square
//     counts: square / cols ==> square / 1 / rows ;; col[j] += square / rows ==> col[j] += square / cols
//     share: (double)t, -0.8) ==> (double)t, 0.8) ;; const float share = ==> const float share = 1 - 1 /
//     forgets: share * (row[i] - R[i]) ==> row[i] - R[i] ;; share * (col[j] - C[j]) ==> col[j] - C[j]
//     added: share * (row[i] - R[i]) ==> share * row[i] ;; share * (col[j] - C[j]) ==> share * col[j]
//     old: float mean = 0; ==> float mean = 0;\n    const std::vector<float> R0(R, R + rows), C0(C, C + cols); ;;
//          mean += R[i] ==> mean += R0[i] ;; std::sqrt(R[i] * C[j] / mean) ==> std::sqrt(R0[i] * C0[j] / mean)
//     mean: R[i] * C[j] / mean ==> R[i] * C[j]
//     root: std::sqrt(R[i] * C[j] / mean) ==> (R[i] * C[j] / mean)

// ----- judge
void judge(Judge& j, decltype(task::adafactor)* adafactor) {
    j.hints = {{"sums", "R and C have the sums of squares; they are means: a row has cols elements, a column rows."},
               {"counts", "the numbers of elements are exchanged: a row has cols elements, a column has rows."},
               {"share", "the shares are exchanged: t^-0.8 is that of the newest gradient, all of update 1."},
               {"forgets", "R and C hold this update's means alone; they are running means, of which share is new."},
               {"added", "the means are added to all that was there; it is to shrink by the same share."},
               {"old", "the direction is made from R and C as they were before this update."},
               {"mean", "v is not divided by the mean of R, so it is a square of a square."},
               {"root", "the root of v is missing."}};
    struct Case {
        int64_t rows, cols, t;
    };
    for (const Case& c : {Case{1, 1, 1}, {2, 3, 1}, {5, 3, 2}, {7, 40, 100}}) {
        j.sizes("%d x %d, update %d", (int)c.rows, (int)c.cols, (int)c.t);
        const int64_t n = c.rows * c.cols;
        std::vector<float> g = j.random(n, 0.1), d = begins(n), R = begins(c.rows), C = begins(c.cols);
        for (auto* factors : {&R, &C})
            for (float& x : *factors) x = c.t == 1 ? 0 : std::fabs(x) * 0.01f;
        const std::vector<float> R_before = R, C_before = C;
        adafactor(d.data(), R.data(), C.data(), g.data(), c.rows, c.cols, c.t);
        j.check({{"R", {c.rows}, R, R_before}, {"C", {c.cols}, C, C_before}, {"d", {c.rows, c.cols}, d}},
                [&](const Key& wrong) -> Arrays {
                    const double newest = std::pow((double)c.t, -0.8), share = wrong == "share" ? 1 - newest : newest;
                    std::vector<double> r(c.rows), l(c.cols), D;
                    const double in_row = wrong == "sums" ? 1 : wrong == "counts" ? c.rows : c.cols;
                    const double in_col = wrong == "sums" ? 1 : wrong == "counts" ? c.cols : c.rows;
                    for (int64_t i = 0; i < n; i++) {
                        r[i / c.cols] += (double)g[i] * g[i] / in_row;
                        l[i % c.cols] += (double)g[i] * g[i] / in_col;
                    }
                    const auto renewed = [&](std::vector<double> factors, const std::vector<float>& before) {
                        for (size_t i = 0; i < factors.size(); i++)
                            factors[i] = wrong == "forgets"
                                             ? factors[i]
                                             : share * factors[i] + (wrong == "added" ? 1 : 1 - share) * before[i];
                        return factors;
                    };
                    r = renewed(r, R_before), l = renewed(l, C_before);
                    const std::vector<double> of_row = wrong == "old" ? doubles(R_before) : r;
                    const std::vector<double> of_col = wrong == "old" ? doubles(C_before) : l;
                    const double mean = std::accumulate(of_row.begin(), of_row.end(), 0.0) / (double)c.rows;
                    for (int64_t i = 0; i < n; i++) {
                        const double v = of_row[i / c.cols] * of_col[i % c.cols] / (wrong == "mean" ? 1 : mean);
                        D.push_back(g[i] / (wrong == "root" ? v : std::sqrt(v)));
                    }
                    return {r, l, D};
                });
    }
}
