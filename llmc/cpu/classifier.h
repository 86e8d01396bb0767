// The end of the network: a score for each token of the vocabulary (logit), the softmax of the
// scores, its cross-entropy with the token that came next, and the gradient of all three, fused:
//
//     logits  = inp wte^T
//     p       = softmax of the first V columns of the logits
//     loss    = -log p[target]
//     Dlogits = dloss (p - onehot(target))
//     Dinp    = Dlogits wte,   Dwte = Dlogits^T inp
//
// Rows whose target is IGNORED_TARGET have no loss and no gradient.
//
// The logits are the largest activation (V is 50257), and no other layer reads them. So the rows
// are processed in chunks. In each chunk the gradients replace the logits in place, both products
// with them follow, and the next chunk uses the same memory. Columns V to Vp - 1 are there only for
// alignment: they take no part in the softmax, and their gradient is 0. 6 rows C Vp FLOPs with
// gradients, 2 without.
#pragma once
#include <cmath>
#include "llmc/gpt2/constants.h"
#include "llmc/cpu/distill.h"
#include "llmc/cpu/matmul.h"

// The rows of a chunk: enough that reading wte and adding to dwte takes little time beside the
// arithmetic, few enough that their logits take little memory.
static inline int64_t classifier_chunk_rows(int64_t rows) { return std::min<int64_t>(rows, 512); }

// Elements of device.transposed that classifier needs: for the gradients of one chunk's logits.
template <class floatX>
int64_t classifier_transposed_elems(int64_t rows, int64_t Vp) {
    return matmul_transposed_elems<floatX>(classifier_chunk_rows(rows), Vp);
}

// The loss of one row. Its logits (Vp) are replaced by their gradients, dloss (p - onehot(target)),
// or left as they are if dloss is 0. If the target is IGNORED_TARGET, loss and gradient are 0. exps
// (V) is scratch, if floatX is bf16.
template <class floatX>
VEC_INLINE float softmax_loss_row(floatX* logits, int target, int64_t V, int64_t Vp, float dloss,
                                  float* exps = nullptr) {
    if (target == IGNORED_TARGET) {
        if (dloss != 0) std::fill(logits, logits + Vp, floatX(0.0f));
        return 0;
    }
    const int64_t whole = V / VEC_FLOATS * VEC_FLOATS;
    const float top = highest_score(logits, V), target_logit = logits[target];
    vfloat total{};
    // The exponentials are kept until their sum is known: in the logits' place, or where that has
    // 16 bits and would round them, in exps.
    float* kept = exps;
    if constexpr (sizeof(floatX) == 4)
        if (dloss != 0) kept = logits;
    for (int64_t i = 0; i < whole; i += VEC_FLOATS) {
        const vfloat e = exp(load(logits + i) - top);
        if (dloss != 0) store(kept + i, e);
        total += e;
    }
    vfloat last = exp(load_first(logits + whole, V - whole) - top), tail{};  // 0 from V on
    memcpy(&tail, &last, (V - whole) * sizeof(float));
    const float denominator = sum(total + tail), scale = dloss / denominator,
                loss = std::log(denominator) - (target_logit - top);
    if (dloss == 0) return loss;
    for (int64_t i = 0; i < whole; i += VEC_FLOATS) store(logits + i, load(kept + i) * scale);
    store_first(logits + whole, tail * scale, V - whole);
    for (int64_t i = V; i < Vp; i++) logits[i] = 0.0f;
    logits[target] = std::exp(target_logit - top) * scale - dloss;
    return loss;
}

// losses (n) is written, from targets (n) and logits (n, Vp), which are replaced by their gradients
// unless dloss is 0. The chunk begins at row `first` of the teacher's.
template <class floatX>
void chunk_losses(float* losses, floatX* logits, const int* targets, int64_t first, int64_t n, int64_t V, int64_t Vp,
                  float dloss, const Teacher<floatX>& teacher) {
    if (teacher)
        matmul_forward(teacher.logits, teacher.lnf + first * teacher.C, teacher.wte, (const floatX*)nullptr, n,
                       teacher.C, Vp);
    parallel_for(n, [&](int64_t i) {
        floatX* const row = logits + i * Vp;
        float* exps = sizeof(floatX) == 2 ? thread_scratch(V) : nullptr;
        losses[i] = teacher && targets[i] != IGNORED_TARGET
                        ? distilled_loss_row(row, teacher.logits + i * Vp, targets[i], V, Vp, dloss, teacher)
                        : softmax_loss_row(row, targets[i], V, Vp, dloss, exps);
    });
}

// losses (rows) is written, from inp (rows, C), wte (Vp, C) and targets (rows). logits
// (classifier_chunk_rows(rows), Vp) is scratch. If dinp (rows, C) is not null, gradients are
// computed too: dinp is written, and unless dwte (Vp, C) is null it is written, or added to if add.
// If dwte_sums (Vp, C), fp32 scratch, is not null, dwte is summed over the chunks there and then
// written, so that it is rounded once; add has no effect then. With a teacher (adapt/distill.h) the
// loss is a mixture. keep: logits (rows, Vp) has place for all, which is left with their gradients.
template <class floatX, class floatG>
void classifier(float* losses, floatX* dinp, floatG* dwte, floatX* logits, const floatX* inp, const floatX* wte,
                const int* targets, int64_t rows, int64_t C, int64_t V, int64_t Vp, float dloss, bool add,
                float* dwte_sums = nullptr, const Teacher<floatX>& teacher = {}, bool keep = false) {
    const Range range(work::classifier(rows, C, Vp, dinp, sizeof(floatX), sizeof(floatG), dwte));
    const int64_t chunk = classifier_chunk_rows(rows);
    for (int64_t r = 0; r < rows; r += chunk, logits += keep ? chunk * Vp : 0) {
        const int64_t n = std::min(chunk, rows - r);
        matmul_forward(logits, inp + r * C, wte, (const floatX*)nullptr, n, C, Vp);
        chunk_losses(losses + r, logits, targets + r, r, n, V, Vp, dinp ? dloss : 0.0f, teacher);
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
