// ----- task
// Forward and backward through a chain of layers, with little memory. The input of layer l + 1 is
// the output of layer l; x (n) is the input of layer 0. dx (n), the gradient of the loss with
// respect to x, is written. What there is (llmc's layers have more arguments, and the same need):
//
//     chain.layers, chain.n
//     chain.forward(l, out, in)               out (n) = layer l of in (n); out must not be in
//     chain.backward(l, din, in, dout)        din (n) from dout (n), and in, the input of layer l; din must not be dout
//     chain.loss_backward(dout, out)          the gradient of the loss with respect to the output of the last layer
//     float* p = chain.room()                 room for n numbers: all activations and gradients live in such
//     chain.give_back(p)                      it is free again
//
// A backward pass needs the inputs of all layers, the last one first. Keep only those of layers 0,
// k, 2k, ... When the backward pass comes to such a segment of k layers, compute the inputs of its
// other layers again from the one that is kept, use them, and give their rooms back (Chen et al.
// 2016, arXiv:1604.06174, section 4).
//
// At most ceil(layers / k) + k + 1 rooms may be in use at once, and forward may be called at most
// 2 layers times.
void forward_and_backward(Chain& chain, float* dx, const float* x, int64_t k) {
    // your code
}

// ----- solution
void forward_and_backward(Chain& chain, float* dx, const float* x, int64_t k) {
    const int64_t L = chain.layers, n = chain.n;
    std::vector<float*> kept;
    float *now = chain.room(), *next = chain.room();
    std::copy(x, x + n, now);
    for (int64_t l = 0; l < L; l++) {
        if (l % k == 0) {
            kept.push_back(chain.room());
            std::copy(now, now + n, kept.back());
        }
        chain.forward(l, next, now);
        std::swap(now, next);
    }
    chain.loss_backward(next, now);
    std::swap(now, next);  // now is the gradient
    for (int64_t begin = (L - 1) / k * k; begin >= 0; begin -= k) {
        const int64_t end = std::min(begin + k, L);
        std::vector<float*> inputs = {kept[begin / k]};
        for (int64_t l = begin; l + 1 < end; l++) {
            inputs.push_back(chain.room());
            chain.forward(l, inputs[l + 1 - begin], inputs[l - begin]);
        }
        for (int64_t l = end - 1; l >= begin; l--) {
            chain.backward(l, next, inputs[l - begin], now);
            std::swap(now, next);
            chain.give_back(inputs[l - begin]);
        }
    }
    std::copy(now, now + n, dx);
    chain.give_back(now), chain.give_back(next);
}

// ----- mistakes
//     not-recomputed: inputs[l - begin], now) ==> inputs[0], now)
//     all-kept: if (l % k == 0) ==> ;; kept[begin / k] ==> kept[begin] ;; begin -= k ==> begin -= 1 ;; (L - 1) / k * k
//         ==> L - 1 ;; begin + k ==> begin + 1
//     last-segment: (L - 1) / k * k ==> L / k * k - k
//     first-segment: begin >= 0 ==> begin > 0
//     again: chain.forward(l, inputs[l + 1 - begin], inputs[l - begin]); ==> for (int64_t j = begin; j <= l; j++)
//         chain.forward(j, inputs[j + 1 - begin], inputs[j - begin]);
//     rooms: chain.give_back(inputs[l - begin]); ==> ;
//     loss: chain.loss_backward(next, now) ==> std::fill(next, next + n, 1.0f)

// ----- judge
#include "dev/course/exercises/chain.h"
void judge(Judge& j, decltype(task::forward_and_backward)* forward_and_backward) {
    j.hints = {{"rule", "forward, backward and give_back each say what they accept; see the description."},
               {"not-recomputed", "backward gets the input of its segment; each layer needs its own input."},
               {"last-segment", "the last segment may have fewer than k layers, and they are left out."},
               {"first-segment", "the first segment, from layer 0 on, is left out."},
               {"loss", "the backward pass begins with loss_backward, not with ones."},
               {"all-kept", "more inputs are kept than those of layers 0, k, 2k, ..."},
               {"rooms", "some rooms are not given back when the backward pass has used what is in them."},
               {"again",
                "layers are computed more than twice: from the input that is kept, once forward through the "
                "segment is enough."}};
    struct Case {
        int64_t layers, n, k;
    };
    for (const Case& c : {Case{6, 3, 3}, {7, 2, 3}, {5, 4, 1}, {3, 2, 5}, {24, 5, 5}, {1, 2, 1}}) {
        j.sizes("%d layers, n %d, k %d", (int)c.layers, (int)c.n, (int)c.k);
        const std::vector<float> x = j.random(c.n);
        std::vector<float> dx = begins(c.n);
        Chain chain(c.layers, c.n);
        try {
            forward_and_backward(chain, dx.data(), x.data(), c.k);
        } catch (const std::runtime_error& problem) {
            j.expect(false, "rule", "%s", problem.what());
            continue;
        }
        const int64_t segments = (c.layers + c.k - 1) / c.k, most = segments + c.k + 1;
        if (chain.backwards == c.layers && !chain.rooms.empty()) {
            j.expect(false, "rooms", "%d rooms were not given back", (int)chain.rooms.size());
            continue;
        }
        if (chain.most_rooms > most) {
            j.expect(false, "all-kept", "%d rooms in use at once, asked: at most %d", (int)chain.most_rooms, (int)most);
            continue;
        }
        if (chain.forwards > 2 * c.layers) {
            j.expect(false, "again", "forward is called %d times, asked: at most %d", (int)chain.forwards,
                     (int)(2 * c.layers));
            continue;
        }
        j.check({{"dx", {c.n}, dx}}, [&](const Key& wrong) -> Arrays {
            Chain plain(c.layers, c.n);
            std::vector<std::vector<float>> in(c.layers + 1, x);
            for (int64_t l = 0; l < c.layers; l++) plain.forward(l, in[l + 1].data(), in[l].data());
            std::vector<float> now(c.n, 1.0f), next(c.n);
            if (wrong != "loss") plain.loss_backward(now.data(), in[c.layers].data());
            const int64_t begin = wrong == "first-segment" ? std::min(c.k, c.layers) : 0;
            const int64_t end = wrong == "last-segment" && c.layers % c.k ? c.layers / c.k * c.k : c.layers;
            for (int64_t l = end - 1; l >= begin; l--) {
                plain.backward(l, next.data(), in[wrong == "not-recomputed" ? l / c.k * c.k : l].data(), now.data());
                std::swap(now, next);
            }
            return {doubles(now)};
        });
    }
}
