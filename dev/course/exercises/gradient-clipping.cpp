// ----- task
// Clipping (Pascanu et al. 2013, arXiv:1211.5063): if the norm of the gradient of all parameters
// together is above the limit, all of it is scaled so that the norm is the limit; else it stays.
//
//     norm = sqrt(sum of g^2 over all elements of all tensors)
//
// grads has one vector per tensor. They are scaled in place. The norm before clipping is returned.
// Large models have 10^9 elements: what happens to a sum in float?
double clip_gradients(std::vector<std::vector<float>>& grads, double limit) {
    // your code
    return 0;
}

// ----- solution
double clip_gradients(std::vector<std::vector<float>>& grads, double limit) {
    double squares = 0;
    for (const std::vector<float>& tensor : grads)
        for (float g : tensor) squares += (double)g * g;
    const double norm = std::sqrt(squares);
    const float scale = norm > limit ? (float)(limit / norm) : 1.0f;
    for (std::vector<float>& tensor : grads)
        for (float& g : tensor) g *= scale;
    return norm;
}

// ----- shipped
#include "llmc/cpu/reference.h"
#include "llmc/optim/update_settings.h"
double clip_gradients(std::vector<std::vector<float>>& grads, double limit) {
    double squares = 0;
    UpdateSettings settings;
    settings.grad_clip = limit;
    for (auto& tensor : grads) squares += reference::global_norm_squared(tensor.data(), tensor.size());
    for (auto& tensor : grads)
        for (float& g : tensor) g *= clipping_scale(std::sqrt(squares), settings);
    return std::sqrt(squares);
}

// ----- mistakes
//     root: norm = std::sqrt(squares) ==> norm = squares
//     always: norm > limit ? (float)(limit / norm) : 1.0f ==> (float)(limit / norm)
//     unclipped: g *= scale ==> g *= 1
//     inverse: (limit / norm) ==> (1 / norm)
//     elements: g *= scale ==> g = std::max(-(float)limit, std::min((float)limit, g))
//     float: double squares = 0 ==> float squares = 0 ;; (double)g * g ==> g * g

// ----- judge
void judge(Judge& j, decltype(task::clip_gradients)* clip_gradients) {
    j.hints = {{"root", "the root is missing: this is the square of the norm."},
               {"always", "the gradient is scaled up where its norm is below the limit; then it must stay as it is."},
               {"inverse", "the norm becomes 1: the factor is limit / norm."},
               {"each",
                "each tensor is clipped by its own norm. The norm is of all tensors together, else their directions "
                "change against each other."},
               {"elements",
                "each element is cut off at the limit, which changes the direction of the gradient; the norm is "
                "to be limited."},
               {"unclipped", "the gradient is left as it was, though its norm is above the limit."},
               {"float",
                "the sum of squares has lost digits: a float has 24 bits, so small terms vanish in a large sum. "
                "Sum in double."}};
    struct Case {
        std::vector<int64_t> sizes;
        double scale, limit;
    };
    for (const Case& c :
         {Case{{3}, 1, 0.5}, {{5, 2, 7}, 0.01, 1}, {{5, 2, 7}, 1, 1.5}, {{1, 300}, 10, 1}, {{30000000}, 1, 1}}) {
        int64_t n = 0;
        for (int64_t size : c.sizes) n += size;
        j.sizes("%d tensors, %d elements, limit %g", (int)c.sizes.size(), (int)n, c.limit);
        std::vector<std::vector<float>> grads;
        for (int64_t size : c.sizes)
            grads.push_back(n > 1000 ? std::vector<float>(size, 0.9f) : j.random(size, c.scale));
        std::vector<float> flat, before;
        for (auto& tensor : grads) before.insert(before.end(), tensor.begin(), tensor.end());
        const std::vector<float> norm = {(float)clip_gradients(grads, c.limit)}, unknown = {0};
        for (auto& tensor : grads) flat.insert(flat.end(), tensor.begin(), tensor.end());
        if (n > 1000) flat.resize(1000), before.resize(1000);
        j.check({{"norm", {1}, norm, unknown}, {"grads", {(int64_t)flat.size()}, flat, before}},
                [&](const Key& wrong) -> Arrays {
                    float lossy = 0;
                    for (int64_t i = 0; i < n && wrong == "float"; i++) lossy += before[i % 1000] * before[i % 1000];
                    double squares = 0;
                    for (int64_t i = 0; i < n; i++) squares += (double)before[i % 1000] * before[i % 1000];
                    if (wrong == "float") squares = lossy;
                    double all = wrong == "root" ? squares : std::sqrt(squares);
                    std::vector<double> g = doubles(before);
                    const auto scale_of = [&](double of) {
                        if (wrong == "unclipped") return 1.0;
                        return of > c.limit || wrong == "always" ? (wrong == "inverse" ? 1 : c.limit) / of : 1.0;
                    };
                    size_t first = 0;
                    for (int64_t size : c.sizes) {
                        double own = 0;
                        for (int64_t i = 0; i < size; i++) own += std::pow((double)before[(first + i) % 1000], 2);
                        for (size_t i = first; i < std::min(first + size, g.size()); i++)
                            g[i] = wrong == "elements" ? std::max(-c.limit, std::min(c.limit, g[i]))
                                                       : g[i] * scale_of(wrong == "each" ? std::sqrt(own) : all);
                        first += size;
                    }
                    return {{all}, g};
                });
    }
}
