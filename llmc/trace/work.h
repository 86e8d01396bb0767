// What the kernels of a step compute and move: FLOPs, and bytes if every operand is read or written
// once. dev/cpu/roofline.cpp compares them with measured times; plan_time.h adds them up.
//
// n = B*T positions. x and g are the bytes of an activation and of a gradient.
#pragma once
#include <cstdint>
#include <string>
#include "llmc/base/check.h"

// A text and up to two sizes, as "matmul 768 x 2304"; sizes below 0 are left out.
struct KernelName {
    const char* text;
    double size = -1, other_size = -1;

    std::string str() const {
        const std::string second = other_size < 0 ? "" : format(" x %.0f", other_size);
        return size < 0 ? text : format("%s %.0f%s", text, size, second);
    }
};

struct KernelWork {
    KernelName name;
    double flops = 0, bytes = 0;  // of one call
    double sent_bytes = 0;        // to other processes
    int64_t calls = 1;
};

namespace work {
inline KernelWork embedding(double n, double C, double x) { return {{"embedding"}, 0, 3 * n * C * x}; }
inline KernelWork embedding_backward(double n, double C, double maxT, double x, double g) {
    return {{"embedding backward"}, 0, n * C * (x + 2 * g) + maxT * C * g};
}
inline KernelWork layernorm(double n, double C, double x) { return {{"layernorm"}, 0, 2 * n * C * x}; }
inline KernelWork residual_layernorm(double n, double C, double x) {
    return {{"residual + layernorm"}, 0, 4 * n * C * x};
}
inline KernelWork layernorm_backward(double n, double C, double x) {
    return {{"layernorm backward"}, 0, 4 * n * C * x};
}
inline KernelWork gelu(double elems, double x) { return {{"gelu"}, 0, 2 * elems * x}; }
inline KernelWork dropout(double elems, double x) { return {{"dropout"}, 0, 2 * elems * x}; }
// Codes of activations, 8 bits each and a scale for every 64 (gpt2/activation_codes.h).
inline KernelWork encode_activations(double elems, double x) { return {{"to codes"}, 0, elems * (x + 1 + 4 / 64.0)}; }
inline KernelWork decode_activations(double elems, double x) { return {{"from codes"}, 0, elems * (x + 1 + 4 / 64.0)}; }
// Weights in codes (adapt/weight_codes.h) as numbers, for a product with many rows.
inline KernelWork decode_weights(double code_bytes, double elems, double x) {
    return {{"weights from codes"}, 0, code_bytes + elems * x};
}
inline KernelWork matmul(double n, double C, double OC, bool gelu, double x) {
    return {{gelu ? "matmul + gelu" : "matmul", C, OC}, 2 * n * C * OC, x * (n * C + C * OC + (gelu ? 2 : 1) * n * OC)};
}
inline KernelWork low_rank(double n, double C, double OC, double R, bool gelu, double x) {
    return {{gelu ? "matmul + LoRA + gelu" : "matmul + LoRA", C, OC},
            2 * n * (C * OC + R * (C + OC)),
            x * (n * C + C * OC + R * (C + OC) + (gelu ? 2 : 1) * n * OC)};
}
// input, weight: whether the gradient of the layer's inputs, and that of its matrix, is computed.
inline KernelWork low_rank_backward(double n, double C, double OC, double R, double x, double g, bool input = true) {
    return {{"matmul backward + LoRA", C, OC},
            2 * n * ((input ? C * OC + R * C : 0) + 2 * R * (C + OC)),
            x * ((input ? n * C + C * OC : 0) + n * C + n * OC) + (x + g) * R * (C + OC)};
}
inline KernelWork matmul_backward(double n, double C, double OC, bool gelu, double x, double g, bool input = true,
                                  bool weight = true) {
    return {{gelu ? "matmul backward + gelu" : "matmul backward", C, OC},
            2 * n * C * OC * (input + weight),
            x * ((input ? (gelu ? 2 : 1) * n * C + C * OC : 0) + (weight ? n * C : 0) + n * OC) +
                (weight ? g * C * OC : 0)};
}
// T: twice the keys that a query sees on average (gpt2/window.h).
inline KernelWork attention(double n, double T, double C, double x) {
    return {{"attention"}, 2 * n * T * C, 4 * n * C * x};
}
inline KernelWork attention_backward(double n, double T, double C, double x) {
    return {{"attention backward"}, 5 * n * T * C, 8 * n * C * x};
}
inline KernelWork classifier(double n, double C, double Vp, bool backward, double x, double g, bool weight = true) {
    return {{"classifier"}, (backward ? 4 + 2 * weight : 2) * n * C * Vp, Vp * C * (x + (weight ? g : 0))};
}
// The fp32 sums of several micro-steps' gradients: sums and gradients are read, sums written.
inline KernelWork gradient_sums(double elems, double x) { return {{"gradient sums"}, 0, elems * (8 + x)}; }
inline KernelWork gradient_norm(double elems, double g) { return {{"gradient norm"}, 0, elems * g}; }
// Five Newton-Schulz steps of a matrix (cpu/orthogonalize.h), after a pass each for norm and scale.
inline KernelWork orthogonalize(double rows, double cols, double x) {
    const double n = rows < cols ? rows : cols, elems = rows * cols;
    const double step_bytes = x * (3 * elems + 5 * n * n);  // A: X, A; P: A twice, P; X: X, P, X
    return {{"orthogonalize", rows, cols},
            5 * (4 * n * elems + 2 * n * n * n),
            elems * (8 + x) + 5 * step_bytes + elems * (4 - x)};
}
// A collective on a bucket, of which this process sends `bytes`.
inline KernelWork collective(const char* text, double bucket, double bytes) { return {{text, bucket}, 0, 0, bytes}; }
}  // namespace work
