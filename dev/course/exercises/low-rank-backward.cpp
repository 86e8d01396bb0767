// ----- task
// The gradients of an adapter: two thin matrices A (R, C) and B (R, OC) beside a frozen W (OC, C).
// Forward, with low (rows, R) in between:
//
//     low = scale x A^T            out = x W^T + low B
//
// W has no gradient. From dout (rows, OC) write da (R, C), db (R, OC) and dx (rows, C). All
// matrices lie row by row. A std::vector<float> has room for what comes between. No matrix of the
// size of W is needed: a vector of C or OC numbers more is fine, C x OC numbers are too many.
void low_rank_backward(float* dx, float* da, float* db, const float* dout, const float* x, const float* W,
                       const float* A, const float* B, float scale, int64_t rows, int64_t C, int64_t OC, int64_t R) {
    // your code
}

// ----- solution
#include <vector>
void low_rank_backward(float* dx, float* da, float* db, const float* dout, const float* x, const float* W,
                       const float* A, const float* B, float scale, int64_t rows, int64_t C, int64_t OC, int64_t R) {
    std::vector<float> low(rows * R), dlow(rows * R);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < R; i++) {
            for (int64_t c = 0; c < C; c++) low[r * R + i] += scale * x[r * C + c] * A[i * C + c];
            for (int64_t o = 0; o < OC; o++) dlow[r * R + i] += scale * dout[r * OC + o] * B[i * OC + o];
        }
    for (int64_t i = 0; i < R; i++) {
        for (int64_t c = 0; c < C; c++) da[i * C + c] = 0;
        for (int64_t o = 0; o < OC; o++) db[i * OC + o] = 0;
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < C; c++) da[i * C + c] += dlow[r * R + i] * x[r * C + c];
            for (int64_t o = 0; o < OC; o++) db[i * OC + o] += low[r * R + i] * dout[r * OC + o];
        }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < C; c++) {
            float sum = 0;
            for (int64_t o = 0; o < OC; o++) sum += dout[r * OC + o] * W[o * C + c];
            for (int64_t i = 0; i < R; i++) sum += dlow[r * R + i] * A[i * C + c];
            dx[r * C + c] = sum;
        }
}

// ----- mistakes
//     frozen-only: for (int64_t i = 0; i < R; i++) sum += dlow[r * R + i] * A[i * C + c]; ==> ;
//     adapter-only: for (int64_t o = 0; o < OC; o++) sum += dout[r * OC + o] * W[o * C + c]; ==> ;
//     no-scale: += scale * dout[r * OC + o] ==> += dout[r * OC + o]
//     low-scale: += scale * x[r * C + c] ==> += x[r * C + c]
//     twice: dlow[r * R + i] * x[r * C + c] ==> scale * dlow[r * R + i] * x[r * C + c] ;;
//         low[r * R + i] * dout[r * OC + o] ==> scale * low[r * R + i] * dout[r * OC + o]
//     exchanged: dlow[r * R + i] * x[r * C + c] ==> low[r * R + i] * x[r * C + c]
//     mean: dlow[r * R + i] * x[r * C + c] ==> dlow[r * R + i] * x[r * C + c] / rows

// ----- judge
#include "dev/course/exercises/judge.h"
void judge(Judge& j, decltype(task::low_rank_backward)* low_rank_backward) {
    j.hints = {{"frozen-only", "dx comes through W alone: x is also what A multiplies."},
               {"adapter-only", "dx comes through the adapter alone: W has no gradient, but x has one through it."},
               {"no-scale", "dlow, the gradient behind A, has no factor scale: low is scale times x A^T."},
               {"low-scale", "low has no factor scale in db: the low that B multiplies is scale x A^T."},
               {"twice", "scale is a factor twice: it is in low and in dlow already."},
               {"exchanged", "da is made with low; a change of A moves low, whose gradient is dlow."},
               {"mean", "da is divided by the number of rows. It is a sum; the mean over rows is in the loss."},
               {"large", "a matrix of the size of W is built: then nothing is saved by thin ones."}};
    struct Case {
        int64_t rows, C, OC, R;
    };
    for (const Case& c : {Case{1, 1, 1, 1}, {2, 3, 5, 1}, {5, 4, 4, 2}, {6, 90, 70, 3}}) {
        const auto [rows, C, OC, R] = c;
        const bool small = rows * C < 100;
        j.sizes("rows %d, C %d, OC %d, R %d%s", (int)rows, (int)C, (int)OC, (int)R,
                small ? ", by finite differences" : "");
        const float scale = 0.5f;
        const std::vector<float> x = j.random(rows * C), W = j.random(OC * C), dout = j.random(rows * OC);
        const std::vector<float> A = j.random(R * C), B = j.random(R * OC);
        std::vector<float> dx = begins(rows * C), da = begins(R * C), db = begins(R * OC);
        const int64_t room = 4 * (8 * rows * (R + C + OC) + 8 * (C + OC));
        const auto call = [&, rows = rows, C = C, OC = OC, R = R] {
            low_rank_backward(dx.data(), da.data(), db.data(), dout.data(), x.data(), W.data(), A.data(), B.data(),
                              scale, rows, C, OC, R);
        };
        if (small) call();
        else j.within(std::min(room, 4 * C * OC - 1), "large", call);
        std::vector<double> X = doubles(x), a = doubles(A), b = doubles(B);
        const auto loss = [&, rows = rows, C = C, OC = OC, R = R] {  // its gradient with respect to out is dout
            double sum = 0;
            for (int64_t r = 0; r < rows; r++)
                for (int64_t o = 0; o < OC; o++) {
                    double value = 0;
                    for (int64_t k = 0; k < C; k++) value += X[r * C + k] * W[o * C + k];
                    for (int64_t i = 0; i < R; i++)
                        for (int64_t k = 0; k < C; k++) value += scale * X[r * C + k] * a[i * C + k] * b[i * OC + o];
                    sum += dout[r * OC + o] * value;
                }
            return sum;
        };
        j.check({{"dx", {rows, C}, dx}, {"da", {R, C}, da}, {"db", {R, OC}, db}},
                [&, rows = rows, C = C, OC = OC, R = R](const Key& wrong) -> Arrays {
                    if (wrong.empty() && small)
                        return {finite_differences(X, loss), finite_differences(a, loss), finite_differences(b, loss)};
                    const double twice = wrong == "twice" ? scale : 1;
                    std::vector<double> dX(rows * C), dA(R * C), dB(R * OC);
                    for (int64_t r = 0; r < rows; r++) {
                        for (int64_t o = 0; o < OC; o++)
                            for (int64_t k = 0; k < C && wrong != "adapter-only"; k++)
                                dX[r * C + k] += (double)dout[r * OC + o] * W[o * C + k];
                        for (int64_t i = 0; i < R; i++) {
                            double low = 0, dlow = 0;
                            for (int64_t k = 0; k < C; k++)
                                low += (wrong == "low-scale" ? 1 : scale) * X[r * C + k] * a[i * C + k];
                            for (int64_t o = 0; o < OC; o++)
                                dlow += (wrong == "no-scale" ? 1 : scale) * (double)dout[r * OC + o] * b[i * OC + o];
                            for (int64_t k = 0; k < C; k++) {
                                dA[i * C + k] += twice * (wrong == "exchanged" ? low : dlow) * X[r * C + k] /
                                                 (wrong == "mean" ? (double)rows : 1);
                                if (wrong != "frozen-only") dX[r * C + k] += dlow * a[i * C + k];
                            }
                            for (int64_t o = 0; o < OC; o++) dB[i * OC + o] += twice * low * dout[r * OC + o];
                        }
                    }
                    return {dX, dA, dB};
                });
    }
}
