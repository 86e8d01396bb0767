// ----- task
// GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415), in the form with tanh that GPT-2 was trained
// with:
//
//     gelu(x) = x (1 + tanh(u)) / 2,    u = sqrt(2/pi) (x + 0.044715 x^3)
//
// out.value is written, from x.value; x.value.size() elements.
void gelu_forward(Tensor& out, Tensor& x) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp SQRT_2_OVER_PI gelu_s gelu_forward

// ----- shipped
#include "llmc/cpu/reference.h"
void gelu_forward(Tensor& out, Tensor& x) { reference::gelu_forward(out.row(0), x.row(0), x.value.size()); }

// ----- mistakes
//     root: 0.7978845608f ==> 0.4501581581f
//     square: 0.044715f * x * x * x ==> 0.044715f * x * x
//     half: x.value[i] * gelu_s ==> 2 * x.value[i] * gelu_s
//     erf: return 1 / (1 + std::exp(-2 * SQRT_2_OVER_PI * (x + 0.044715f * x * x * x))) ==>
//          return 0.5f * (1 + std::erf(x * 0.7071067812f))
//     gate: x.value[i] * gelu_s ==> gelu_s
//     overflow: return 1 / (1 + std::exp(-2 * SQRT_2_OVER_PI * (x + 0.044715f * x * x * x))) ==>
//         const float e = std::exp(2 * SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)); return e / (1 + e)

// ----- judge
void judge(Judge& j, decltype(task::gelu_forward)* gelu_forward) {
    j.hints = {
        {"root", "this is sqrt(2) / pi; the root is of 2 / pi: 0.79788."},
        {"square", "it is x^3 in u, not x^2."},
        {"half", "the division by 2 is missing."},
        {"erf",
         "this is the exact form, with erf. GPT-2 was trained with the form with tanh; they differ by up to "
         "0.0005."},
        {"overflow", "tanh is made of e^(2u), which is infinite where x is large: infinity over infinity is NaN."},
        {"gate", "the factor x is missing: gelu(x) is about x where x is large."}};
    for (auto [rows, C, scale] : {std::array<int64_t, 3>{1, 1, 5}, {3, 5, 5}, {7, 99, 5}, {2, 9, 30}}) {
        j.sizes("rows %d, C %d, x up to %d", (int)rows, (int)C, (int)scale);
        Tensor out(rows, C), x(rows, C);
        x.value = j.random(rows * C, (double)scale), out.value = begins(rows * C);
        gelu_forward(out, x);
        j.check({{"out", {rows, C}, out.value}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected;
            for (double z : x.value) {
                const double k = wrong == "root" ? std::sqrt(2) / M_PI : std::sqrt(2 / M_PI);
                const double e = float_exp(2 * k * (z + 0.044715 * z * z * z));
                const double inner = wrong == "overflow" ? 2 * (e / (1 + e)) - 1
                                     : wrong == "erf"    ? std::erf(z / std::sqrt(2))
                                     : wrong == "square" ? std::tanh(k * (z + 0.044715 * z * z))
                                                         : std::tanh(k * (z + 0.044715 * z * z * z));
                expected.push_back((wrong == "gate" ? 1 : z) * (1 + inner) / (wrong == "half" ? 1 : 2));
            }
            return {expected};
        });
    }
}
