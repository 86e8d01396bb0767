// ----- task
// A matrix made orthogonal by products alone (Jordan et al. 2024): x = U S V^T becomes about U V^T,
// which is chapter 18b. x (rows, cols), rows <= cols, is divided by its norm, the root of the sum
// of the squares of its elements, and then 5 times
//
//     A = x x^T                           (rows, rows)
//     x = (a I + b A + c A A) x           a = 3.4445, b = -4.7750, c = 2.0315; I has ones on its diagonal
//
// in place. A std::vector<float> has room for what comes between.
void orthogonalize(float* x, int64_t rows, int64_t cols) {
    // your code
}

// ----- solution
#include <vector>
void orthogonalize(float* x, int64_t rows, int64_t cols) {
    float squares = 0;
    for (int64_t i = 0; i < rows * cols; i++) squares += x[i] * x[i];
    for (int64_t i = 0; i < rows * cols; i++) x[i] /= std::sqrt(squares);
    for (int step = 0; step < 5; step++) {
        std::vector<float> A(rows * rows), P(rows * rows), next(rows * cols);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < rows; j++)
                for (int64_t k = 0; k < cols; k++) A[i * rows + j] += x[i * cols + k] * x[j * cols + k];
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < rows; j++) {
                float square = 0;
                for (int64_t k = 0; k < rows; k++) square += A[i * rows + k] * A[k * rows + j];
                P[i * rows + j] = (i == j ? 3.4445f : 0.0f) - 4.7750f * A[i * rows + j] + 2.0315f * square;
            }
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < rows; j++)
                for (int64_t k = 0; k < cols; k++) next[i * cols + k] += P[i * rows + j] * x[j * cols + k];
        std::copy(next.begin(), next.end(), x);
    }
}

// ----- mistakes
//     norm: x[i] /= std::sqrt(squares) ==> x[i] /= squares
//     not-divided: x[i] /= std::sqrt(squares) ==> x[i] /= 1
//     rms: x[i] /= std::sqrt(squares) ==> x[i] /= std::sqrt(squares / (rows * cols))
//     once: step < 5 ==> step < 1
//     diagonal: (i == j ? 3.4445f : 0.0f) ==> 3.4445f
//     square: square += A[i * rows + k] * A[k * rows + j] ==> square = A[i * rows + j] * A[i * rows + j]
//     sign: - 4.7750f ==> + 4.7750f
//     in-place: next[i * cols + k] += P[i * rows + j] * x[j * cols + k]; ==>
//         next[k] = 0;\n        for (int64_t i = 0; i < rows; i++)\n            for (int64_t k = 0; k < cols; k++) {
//         float s = 0; for (int64_t j = 0; j < rows; j++) s += P[i * rows + j] * x[j * cols + k]; x[i * cols + k] = s;
//         } ;; std::copy(next.begin(), next.end(), x); ==> ;

// ----- judge
void judge(Judge& j, decltype(task::orthogonalize)* orthogonalize) {
    j.tolerance = 1e-3;  // five times products of products
    j.hints = {{"in-place", "rows of x are replaced while later rows of the product still need the old ones."},
               {"norm", "x is divided by the square of its norm: the root is missing."},
               {"not-divided", "x is not divided by its norm first: singular values above 1 run away."},
               {"rms", "x is divided by the root of the mean of the squares; its norm has their sum."},
               {"once", "one iteration is not enough: there are 5."},
               {"diagonal", "a I is a on the diagonal alone; a is added to all elements."},
               {"square", "A A is a product of matrices, not the squares of A's elements."},
               {"sign", "b is negative."}};
    for (auto [rows, cols] : {std::pair<int, int>{1, 1}, {1, 2}, {2, 3}, {5, 5}, {7, 20}}) {
        j.sizes("%d x %d", rows, cols);
        std::vector<float> x = j.random(rows * cols, 0.1);
        for (int i = 0; i < rows; i++) x[i * cols + i] += i % 2 ? 0.2f : -0.3f;  // no singular value is near 0
        const std::vector<float> before = x;
        orthogonalize(x.data(), rows, cols);
        j.check({{"x", {rows, cols}, x, before}}, [&, rows = rows, cols = cols](const Key& wrong) -> Arrays {
            std::vector<double> X = doubles(before);
            double squares = 0;
            for (double v : X) squares += v * v;
            const double divisor = wrong == "norm"          ? squares
                                   : wrong == "not-divided" ? 1
                                   : wrong == "rms"         ? std::sqrt(squares / (rows * cols))
                                                            : std::sqrt(squares);
            for (double& v : X) v /= divisor;
            const double b = wrong == "sign" ? 4.775 : -4.775;
            for (int step = 0; step < (wrong == "once" ? 1 : 5); step++) {
                std::vector<double> A(rows * rows), next = X;
                for (int i = 0; i < rows * rows; i++)
                    A[i] =
                        std::inner_product(&X[i / rows * cols], &X[i / rows * cols] + cols, &X[i % rows * cols], 0.0);
                std::vector<double>& from = wrong == "in-place" ? next : X;
                for (int i = 0; i < rows; i++) {
                    std::vector<double> P(rows);
                    for (int n = 0; n < rows; n++) {
                        double square = 0;
                        for (int k = 0; k < rows; k++) square += A[i * rows + k] * A[k * rows + n];
                        if (wrong == "square") square = A[i * rows + n] * A[i * rows + n];
                        P[n] = (i == n || wrong == "diagonal" ? 3.4445 : 0) + b * A[i * rows + n] + 2.0315 * square;
                    }
                    for (int k = 0; k < cols; k++) {
                        double sum = 0;
                        for (int n = 0; n < rows; n++) sum += P[n] * from[n * cols + k];
                        next[i * cols + k] = sum;
                    }
                }
                X = next;
            }
            for (double& v : X)
                if (!(std::fabs(v) < 1e6)) v = std::fabs(v) < 1e60 ? ANY : NAN;  // it has run away
            return {X};
        });
    }
}
