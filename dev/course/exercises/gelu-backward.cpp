// ----- task
// The gradient of GELU. Forward:
//
//     gelu(x) = x (1 + tanh(u)) / 2,    u = sqrt(2/pi) (x + 0.044715 x^3)
//
// By the product rule and the chain rule, gelu'(x) has two terms; dtanh(u)/du = 1 - tanh(u)^2.
//
// x.grad is added to, from out.grad and x.value; x.value.size() elements.
void gelu_backward(Tensor& out, Tensor& x) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp SQRT_2_OVER_PI gelu_s gelu_backward

// ----- shipped
#include "llmc/cpu/reference.h"
void gelu_backward(Tensor& out, Tensor& x) {
    std::vector<float> dx(x.value.size());
    reference::gelu_backward(dx.data(), out.grad.data(), x.row(0), x.value.size());
    for (size_t i = 0; i < dx.size(); i++) x.grad[i] += dx[i];
}

// ----- mistakes
//     product: s + z * 2 * s * (1 - s) * du ==> s
//     gate: s + z * 2 ==> z * 2
//     du: (1 - s) * du ==> (1 - s)
//     three: (1 + 3 * 0.044715f ==> (1 + 0.044715f
//     overwritten: x.grad[i] += ==> x.grad[i] =
//     dout: out.grad[i] * ==> 1 *
//     overflow: return 1 / (1 + std::exp(-2 * SQRT_2_OVER_PI * (x + 0.044715f * x * x * x))) ==>
//         const float e = std::exp(2 * SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)); return e / (1 + e)

// ----- judge
void judge(Judge& j, decltype(task::gelu_backward)* gelu_backward) {
    j.hints = {
        {"product", "the second term of the product rule is missing: x times the derivative of (1 + tanh(u)) / 2."},
        {"gate", "the first term of the product rule is missing: (1 + tanh(u)) / 2."},
        {"du", "the chain rule asks for du/dx as a factor of the second term."},
        {"three", "du/dx = sqrt(2/pi) (1 + 3 * 0.044715 x^2): the 3 is missing."},
        {"overflow", "tanh is made of e^(2u), which is infinite where x is large: infinity over infinity is NaN."},
        {"dout", "this is gelu'(x); the gradient is Dout gelu'(x)."}};
    for (auto [rows, C, scale] : {std::array<int64_t, 3>{1, 1, 4}, {3, 5, 4}, {7, 99, 4}, {2, 9, 30}}) {
        j.sizes("rows %d, C %d, x up to %d, by finite differences", (int)rows, (int)C, (int)scale);
        Tensor out(rows, C), x(rows, C);
        x.value = j.random(rows * C, (double)scale), out.grad = j.random(rows * C), x.grad = begins(rows * C);
        gelu_backward(out, x);
        j.check({{"Dx", {rows, C}, x.grad}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> dx;
            for (size_t i = 0; i < x.value.size(); i++) {
                const double k = std::sqrt(2 / M_PI), z = x.value[i], t = std::tanh(k * (z + 0.044715 * z * z * z));
                const bool lost = wrong == "overflow" && !std::isfinite(float_exp(2 * k * (z + 0.044715 * z * z * z)));
                const double du = wrong == "du" ? 1 : k * (1 + (wrong == "three" ? 1 : 3) * 0.044715 * z * z);
                const double first = (1 + t) / 2, second = z / 2 * (1 - t * t) * du;
                std::vector<double> one = {z};
                const auto gelu = [&] {
                    return one[0] * (1 + std::tanh(k * (one[0] + 0.044715 * std::pow(one[0], 3)))) / 2;
                };
                const double derivative = wrong.empty()        ? finite_differences(one, gelu)[0]
                                          : wrong == "product" ? first
                                          : wrong == "gate"    ? second
                                                               : first + second;
                dx.push_back(lost ? NAN : (wrong == "dout" ? 1 : out.grad[i]) * derivative);
            }
            return added_to_begins({dx});
        });
    }
}
