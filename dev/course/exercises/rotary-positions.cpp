// ----- task
// Rotary positions of one head. Row t of x (T, HS) is the query or key of position t. Channel i of
// its first half, a, and channel i of its second half, b, are turned by an angle:
//
//     angle = t theta^(-2 i / HS)         i from 0 to HS/2 - 1; t = 0, 1, ... T - 1
//     a' = a cos(angle) - b sin(angle)
//     b' = b cos(angle) + a sin(angle)
//
// in place. If `back`, by the opposite angle: that is the gradient's way.
void rotary(float* x, int64_t T, int64_t HS, float theta, bool back) {
    // your code
}

// ----- solution
void rotary(float* x, int64_t T, int64_t HS, float theta, bool back) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < HS / 2; i++) {
            const double angle = (back ? -1.0 : 1.0) * t * std::pow((double)theta, -2.0 * i / HS);
            float *p = x + t * HS + i, *q = p + HS / 2;
            const float a = *p, b = *q, cosine = std::cos(angle), sine = std::sin(angle);
            *p = a * cosine - b * sine;
            *q = b * cosine + a * sine;
        }
}

// ----- shipped
#include "dev/modern/rope.h"
void rotary(float* x, int64_t T, int64_t HS, float theta, bool back) {
    std::vector<float> table(T * HS), qkv(T * 3 * HS);
    rope_table(table.data(), T, HS, theta);
    for (int64_t i = 0; i < T * HS; i++) qkv[i / HS * 3 * HS + i % HS] = x[i];
    reference::rope(qkv.data(), table.data(), T, T, Heads{1, 1, HS}, back);
    for (int64_t i = 0; i < T * HS; i++) x[i] = qkv[i / HS * 3 * HS + i % HS];
}

// ----- mistakes
//     neighbours: float *p = x + t * HS + i, *q = p + HS / 2; ==> float *p = x + t * HS + 2 * i, *q = p + 1;
//     in-place: *q = b * cosine + a * sine ==> *q = b * cosine + *p * sine
//     exponent: -2.0 * i / HS ==> -1.0 * i / HS
//     signs: *p = a * cosine - b * sine ==> *p = a * cosine + b * sine ;; *q = b * cosine + a * sine ==>
//         *q = b * cosine - a * sine
//     mirrored: *q = b * cosine + a * sine ==> *q = b * cosine - a * sine
//     forward: (back ? -1.0 : 1.0) * t ==> t
//     position: (back ? -1.0 : 1.0) * t ==> (back ? -1.0 : 1.0) * (t + 1)
//     cosine: (back ? -1.0 : 1.0) * t ==> t ;; sine = std::sin(angle) ==>
//         sine = std::sin(angle) ;; cosine = std::cos(angle) ==> cosine = (back ? -1.0 : 1.0) * std::cos(angle)

// ----- judge
void judge(Judge& j, decltype(task::rotary)* rotary) {
    j.tolerance = 1e-4;  // an angle of 100 in fp32
    j.hints = {{"neighbours", "neighbouring channels are turned together; here the partner is half a head away."},
               {"in-place", "the second half is made from an a that is already turned: keep both before you write."},
               {"exponent", "the angles of the channels fall too slowly: the exponent is -2 i / HS."},
               {"signs", "the turn goes the other way: a' = a cos - b sin, b' = b cos + a sin."},
               {"mirrored", "lengths change: of the two signs of sine one must be - and the other +."},
               {"forward", "`back` makes no difference; it turns by the opposite angle."},
               {"position", "the angle is that of the next position: position 0 is not turned."},
               {"cosine", "the opposite angle has the same cosine, and the opposite sine."}};
    struct Case {
        int64_t T, HS;
        float theta;
    };
    for (const Case& c : {Case{1, 2, 10000}, {4, 6, 100}, {33, 16, 10000}})
        for (bool back : {false, true}) {
            j.sizes("T %d, HS %d, theta %g, %s", (int)c.T, (int)c.HS, c.theta, back ? "back" : "forward");
            std::vector<float> x = j.random(c.T * c.HS);
            const std::vector<float> before = x;
            rotary(x.data(), c.T, c.HS, c.theta, back);
            j.check({{"x", {c.T, c.HS}, x, before}}, [&](const Key& wrong) -> Arrays {
                std::vector<double> X = doubles(before);
                for (int64_t t = 0; t < c.T; t++)
                    for (int64_t i = 0; i < c.HS / 2; i++) {
                        const double power = (wrong == "exponent" ? -1.0 : -2.0) * (double)i / (double)c.HS;
                        double angle = (double)(t + (wrong == "position")) * std::pow((double)c.theta, power);
                        if ((back && wrong != "forward" && wrong != "cosine") != (wrong == "signs")) angle = -angle;
                        const bool next = wrong == "neighbours";
                        double &a = X[t * c.HS + (next ? 2 * i : i)],
                               &b = X[t * c.HS + (next ? 2 * i + 1 : i + c.HS / 2)];
                        const double cosine = std::cos(angle) * (back && wrong == "cosine" ? -1 : 1);
                        const double A = a * cosine - b * std::sin(angle);
                        const double from = wrong == "in-place" ? A : wrong == "mirrored" ? -a : a;
                        b = b * cosine + from * std::sin(angle), a = A;
                    }
                return {X};
            });
        }
}
