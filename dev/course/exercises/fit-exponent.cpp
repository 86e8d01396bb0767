// ----- task
// Runs of models with N[i] parameters, all with more than enough data, have ended with the losses
// L[i], i from 0 to n - 1. The scaling law says
//
//     L = E + A / N^alpha          so    log(L - E) = log A - alpha log N
//
// which is a straight line in log N. With E given, find the line: that for which the sum of the
// squared errors of log(L - E) is least. Its slope is
//
//     (sum over i of (x[i] - mean x) (y[i] - mean y)) / (sum over i of (x[i] - mean x)^2)
//
// with x = log N, y = log(L - E), and it passes through the means. Writes *A and *alpha; N and L
// are (n), n at least 2.
void fit_exponent(double* A, double* alpha, const double* N, const double* L, int64_t n, double E) {
    // your code
}

// ----- solution
void fit_exponent(double* A, double* alpha, const double* N, const double* L, int64_t n, double E) {
    double x_mean = 0, y_mean = 0, products = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) x_mean += std::log(N[i]) / n, y_mean += std::log(L[i] - E) / n;
    for (int64_t i = 0; i < n; i++) {
        const double x = std::log(N[i]) - x_mean, y = std::log(L[i] - E) - y_mean;
        products += x * y, squares += x * x;
    }
    *alpha = -products / squares;
    *A = std::exp(y_mean + *alpha * x_mean);
}

// ----- mistakes
//     entropy: L[i] - E ==> L[i]
//     sign: *alpha = -products ==> *alpha = products
//     log-a: *A = std::exp(y_mean + *alpha * x_mean) ==> *A = y_mean + *alpha * x_mean
//     turned: x * x; ==> y * y; ;; -products / squares ==> -squares / products
//     ends: *alpha = -products / squares ==>
//         *alpha = -(std::log(L[n - 1] - E) - std::log(L[0] - E)) / (std::log(N[n - 1]) - std::log(N[0]))
//     origin: - x_mean, y = ==> , y = ;; - y_mean; ==> ;
//     intercept: std::exp(y_mean + *alpha * x_mean) ==> std::exp(y_mean)

// ----- judge
static Arrays fit_of(const std::vector<double>& N, const std::vector<double>& L, double E, const Key& wrong) {
    const size_t n = N.size();
    std::vector<double> x, y;
    for (size_t i = 0; i < n; i++)
        x.push_back(std::log(N[i])), y.push_back(std::log(L[i] - (wrong == "entropy" ? 0 : E)));
    const double X = std::accumulate(x.begin(), x.end(), 0.0) / (double)n;
    const double Y = std::accumulate(y.begin(), y.end(), 0.0) / (double)n;
    double xy = 0, xx = 0, yy = 0;
    for (size_t i = 0; i < n; i++) {
        const double a = x[i] - (wrong == "origin" ? 0 : X), b = y[i] - (wrong == "origin" ? 0 : Y);
        xy += a * b, xx += a * a, yy += b * b;
    }
    double alpha = wrong == "turned" ? -yy / xy : -xy / xx;
    if (wrong == "sign") alpha = -alpha;
    if (wrong == "ends") alpha = -(y[n - 1] - y[0]) / (x[n - 1] - x[0]);
    const double line = Y + (wrong == "intercept" ? 0 : alpha * X);
    return {{wrong == "log-a" ? line : std::exp(line)}, {alpha}};
}
void judge(Judge& j, decltype(task::fit_exponent)* fit_exponent) {
    j.hints = {{"entropy", "E is not subtracted from the losses: what falls with N is what lies above it."},
               {"sign", "alpha is the negative slope: the loss falls, and alpha is positive."},
               {"log-a", "this is log A: A is e to it."},
               {"turned", "errors of log N are made small; the losses are what has errors."},
               {"ends", "the line goes through the first and the last run, and the others have no say."},
               {"origin", "the means are not subtracted: the line would pass through log N = 0, log(L - E) = 0."},
               {"intercept", "A is e to the mean of log(L - E); the line has to be followed back to log N = 0."}};
    struct Case {
        int64_t n;
        double E, A, alpha, noise;
    };
    for (const Case& c : {Case{2, 0, 20, 0.5, 0}, {5, 1.7, 400, 0.34, 0.02}, {12, 1.2, 13, 0.3, 0.1}}) {
        j.sizes("%d runs, E %g", (int)c.n, c.E);
        const std::vector<float> noise = j.random(c.n, c.noise), sizes = j.random(c.n, 0.5);
        std::vector<double> N, L;
        for (int64_t i = 0; i < c.n; i++) {
            N.push_back(1e4 * std::pow(3.0, (double)(i * 5 % c.n) + sizes[i]));
            L.push_back(c.E + c.A * std::pow(N.back(), -c.alpha) * std::exp(noise[i]));
        }
        double A = begin_value(0), alpha = begin_value(0);
        fit_exponent(&A, &alpha, N.data(), L.data(), c.n, c.E);
        j.check({{"A", {1}, std::vector<double>{A}}, {"alpha", {1}, std::vector<double>{alpha}}},
                [&](const Key& wrong) { return fit_of(N, L, c.E, wrong); });
    }
}
