// ----- task
// The loss of a model of N parameters that sees S tokens, and the FLOPs that this takes:
//
//     L = E + A / N^alpha + B / S^beta,     C = 6 N S
//
// For given FLOPs C, which N has the lowest loss, and what is S then? Where the loss is least,
// alpha A / N^alpha = beta B / S^beta, which gives
//
//     G = (alpha A / (beta B))^(1 / (alpha + beta))
//     N = G (C / 6)^(beta / (alpha + beta))
//     S = (C / 6)^(alpha / (alpha + beta)) / G
//
// Writes *N and *S.
void best_size(double* N, double* S, double C, double A, double alpha, double B, double beta) {
    // your code
}

// ----- solution
void best_size(double* N, double* S, double C, double A, double alpha, double B, double beta) {
    const double G = std::pow(alpha * A / (beta * B), 1 / (alpha + beta));
    *N = G * std::pow(C / 6, beta / (alpha + beta));
    *S = std::pow(C / 6, alpha / (alpha + beta)) / G;
}

// ----- mistakes
//     six: C / 6 ==> C
//     tokens: *S = std::pow(C / 6, alpha / (alpha + beta)) / G ==> *S = C / *N
//     exponents: *N = G * std::pow(C / 6, beta ==> *N = G * std::pow(C / 6, alpha ;;
//         *S = std::pow(C / 6, alpha ==> *S = std::pow(C / 6, beta
//     root: 1 / (alpha + beta) ==> 1
//     equal: alpha * A / (beta * B) ==> A / B
//     inverse: alpha * A / (beta * B) ==> beta * B / (alpha * A)
//     twenty: *N = G * std::pow(C / 6, beta / (alpha + beta)) ==> *N = std::sqrt(C / 120) ;;
//         *S = std::pow(C / 6, alpha / (alpha + beta)) / G ==> *S = 20 * *N

// ----- judge
static Arrays best_of(double C, double A, double alpha, double B, double beta, const Key& wrong) {
    const double products = wrong == "six" ? C : C / 6;
    if (wrong == "twenty") return {{std::sqrt(C / 120)}, {20 * std::sqrt(C / 120)}};
    if (wrong.empty()) {  // by search: the loss of each N, with steps that become smaller
        double log_N = std::log(products) / 2;
        const auto loss = [&](double x) {
            return A * std::exp(-alpha * x) + B * std::exp(beta * x) / std::pow(products, beta);
        };
        for (double step = 4; step > 1e-9; step /= 2)
            while (loss(log_N + step) < loss(log_N) || loss(log_N - step) < loss(log_N))
                log_N += loss(log_N + step) < loss(log_N) ? step : -step;
        return {{std::exp(log_N)}, {products / std::exp(log_N)}};
    }
    double ratio = wrong == "equal" ? A / B : alpha * A / (beta * B);
    if (wrong == "inverse") ratio = 1 / ratio;
    const double G = wrong == "root" ? ratio : std::pow(ratio, 1 / (alpha + beta));
    double of_N = beta / (alpha + beta), of_D = alpha / (alpha + beta);
    if (wrong == "exponents") std::swap(of_N, of_D);
    const double N = G * std::pow(products, of_N);
    return {{N}, {wrong == "tokens" ? C / N : std::pow(products, of_D) / G}};
}
void judge(Judge& j, decltype(task::best_size)* best_size) {
    j.tolerance = 1e-4;  // a minimum is flat
    j.hints = {{"six", "C / 6 is what N and S have to multiply to; the 6 is missing."},
               {"tokens", "S is C / N: the 6 is missing in it."},
               {"exponents", "the exponents are exchanged: N grows with beta, the exponent of the data."},
               {"root", "G is not taken to the power 1 / (alpha + beta)."},
               {"equal", "the two lacks are set equal; their derivatives are, so alpha and beta are in G."},
               {"inverse", "G is upside down: the larger A, the larger the best model."},
               {"twenty", "20 tokens a parameter is what one fit gives; A, alpha, B and beta decide."}};
    struct Case {
        double C, A, alpha, B, beta;
    };
    for (const Case& c : {Case{1e13, 40, 0.4, 90, 0.35}, {6e21, 406.4, 0.34, 410.7, 0.28}, {600, 2, 0.9, 1, 0.3}}) {
        j.sizes("%g FLOPs, A %g, alpha %g, B %g, beta %g", c.C, c.A, c.alpha, c.B, c.beta);
        double N = begin_value(0), S = begin_value(0);
        best_size(&N, &S, c.C, c.A, c.alpha, c.B, c.beta);
        j.check({{"N", {1}, std::vector<double>{N}}, {"S", {1}, std::vector<double>{S}}},
                [&](const Key& wrong) { return best_of(c.C, c.A, c.alpha, c.B, c.beta, wrong); });
    }
}
