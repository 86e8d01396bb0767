// The end of the network: scores for every word of the vocabulary, their softmax, its cross-entropy
// with what came next, and the gradient of all three, fused:
//
//     logits = inp wte^T,   p = softmax(logits[0..V)),   loss = -log p[target],   Dlogits = (p - onehot(target)) dloss
//     Dinp = Dlogits wte,   Dwte = Dlogits^T inp
//
// The logits are the largest thing a step makes (V is 50257), and nobody needs all of them at once:
// rows go through in chunks, whose logits become their gradients in place and are spent before the
// next chunk overwrites them. Columns V..Vp, there only for alignment, take no part in the softmax
// and get gradient 0. 6 rows C Vp FLOPs with gradients, 2 without.
#pragma once
#include <cmath>
#include "llmc/cpu/matmul.h"

// How many rows go through at once: enough that reading wte and adding to dwte is cheap beside the
// arithmetic, few enough that their logits are small.
inline int64_t classifier_chunk_rows(int64_t rows) { return std::min<int64_t>(rows, 512); }

// Elements of device.transposed that classifier needs: for the gradients of one chunk's logits.
template <class floatX>
int64_t classifier_transposed_elems(int64_t rows, int64_t Vp) {
    return matmul_transposed_elems<floatX>(classifier_chunk_rows(rows), Vp);
}

// One row: its loss; logits (Vp) become gradients, dloss times (p - onehot), or stay as they are if
// dloss is 0.
template <class floatX>
VEC_INLINE float softmax_loss_row(floatX* logits, int target, int64_t V, int64_t Vp, float dloss) {
    vfloat highest = broadcast((float)logits[0]), total{};
    const int64_t whole = V / VEC_FLOATS * VEC_FLOATS;
    for (int64_t i = 0; i < whole; i += VEC_FLOATS) {
        vfloat v = load(logits + i);
        highest = v > highest ? v : highest;
    }
    float top = max(highest);
    for (int64_t i = whole; i < V; i++) top = (float)logits[i] > top ? (float)logits[i] : top;
    const float target_logit = logits[target];
    auto exp_at = [&](int64_t i) { return exp(load(logits + i) - top); };
    auto exp_tail = [&] {  // of the last, partial vector, 0 beyond V
        vfloat e = exp(load_first(logits + whole, V - whole) - top), kept{};
        memcpy(&kept, &e, (V - whole) * sizeof(float));
        return kept;
    };
    // in 16 bits it would be rounded twice, so it is computed twice
    const bool keep_exp = sizeof(floatX) == 4 && dloss != 0;
    for (int64_t i = 0; i < whole; i += VEC_FLOATS) {
        const vfloat e = exp_at(i);
        if (keep_exp) store(logits + i, e);
        total += e;
    }
    const vfloat tail = exp_tail();
    const float denominator = sum(total + tail), scale = dloss / denominator,
                loss = std::log(denominator) - (target_logit - top);
    if (dloss == 0) return loss;
    for (int64_t i = 0; i < whole; i += VEC_FLOATS)
        store(logits + i, (keep_exp ? load(logits + i) : exp_at(i)) * scale);
    store_first(logits + whole, tail * scale, V - whole);
    for (int64_t i = V; i < Vp; i++) logits[i] = 0.0f;
    logits[target] = std::exp(target_logit - top) * scale - dloss;
    return loss;
}

// losses (rows) of targets (rows), from inp (rows, C) and wte (Vp, C), is written. logits
// (classifier_chunk_rows(rows), Vp) is scratch. With dinp (rows, C), not null, also the gradients
// for dLoss/dloss_i = dloss: dinp is written, dwte (Vp, C) written, or added to if add. With
// dwte_sums (Vp, C), fp32 scratch, dwte is summed over the chunks there and then written, so that
// it is rounded once.
template <class floatX, class floatG>
void classifier(float* losses, floatX* dinp, floatG* dwte, floatX* logits, const floatX* inp, const floatX* wte,
                const int* targets, int64_t rows, int64_t C, int64_t V, int64_t Vp, float dloss, bool add,
                float* dwte_sums = nullptr) {
    const int64_t chunk = classifier_chunk_rows(rows);
    for (int64_t r = 0; r < rows; r += chunk) {
        const int64_t n = std::min(chunk, rows - r);
        matmul_forward(logits, inp + r * C, wte, (const floatX*)nullptr, n, C, Vp);
        parallel_for(n, [&](int64_t i) {
            losses[r + i] = softmax_loss_row(logits + i * Vp, targets[r + i], V, Vp, dinp ? dloss : 0.0f);
        });
        if (dinp && dwte_sums)
            matmul_backward(dinp + r * C, dwte_sums, (float*)nullptr, logits, inp + r * C, wte, n, C, Vp, r > 0);
        else if (dinp)
            matmul_backward(dinp + r * C, dwte, (floatG*)nullptr, logits, inp + r * C, wte, n, C, Vp, add || r > 0);
    }
    if (dinp && dwte_sums)
        parallel_ranges(Vp * C, 1 << 14, [&](int64_t begin, int64_t end) {
            for_each_vector(end - begin, [&](size_t i, size_t count) {
                store_some(dwte + begin + i, load_some(dwte_sums + begin + i, count), count);
            });
        });
}
