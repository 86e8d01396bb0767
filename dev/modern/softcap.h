// A soft cap of the logits (Gemma 2; arXiv:2408.00118): a score is squashed to stay between -cap
// and cap, and the softmax sees what comes out.
//
//     out    = cap tanh(x / cap)
//     Dx     = Dout (1 - (out / cap)^2)
//
// The rest is as in classifier.h: rows in chunks, whose gradients replace their logits.
#pragma once
#include "dev/modern/reference.h"
#include "llmc/cpu/classifier.h"

// tanh(x) of one vector. Near 0, where the exponential form loses digits, by its series.
VEC_INLINE vfloat tanh(vfloat x) {
    const vfloat square = x * x, limit = broadcast(0.1f);
    const vfloat series = x + x * square * (square * (square * (-17.0f / 315.0f) + 2.0f / 15.0f) - 1.0f / 3.0f);
    const vfloat far = 1.0f - 2.0f / (1.0f + exp(2.0f * x));
    return ((x < limit) & (x > -limit)) ? series : far;
}
template <class floatX>
void softcap_forward(floatX* x, float cap, size_t n_elems) {
    parallel_ranges(n_elems, 1 << 14, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            store_some(x + begin + i, tanh(load_some(x + begin + i, count) / cap) * cap, count);
        });
    });
}
// capped (classifier_chunk_rows(rows),Vp) is scratch, as logits; all else as in classifier().
template <class floatX, class floatG>
void capped_classifier(float* losses, floatX* dinp, floatG* dhead, floatX* logits, floatX* capped, const floatX* inp,
                       const floatX* head, const int* targets, int64_t rows, int64_t C, int64_t V, int64_t Vp,
                       float dloss, bool add, float cap) {
    const Range range(work::classifier(rows, C, Vp, dinp, sizeof(floatX), sizeof(floatG)));
    const int64_t chunk = classifier_chunk_rows(rows);
    for (int64_t r = 0; r < rows; r += chunk) {
        const int64_t n = std::min(chunk, rows - r);
        matmul_forward(logits, inp + r * C, head, (const floatX*)nullptr, n, C, Vp);
        softcap_forward(logits, cap, n * Vp);
        parallel_for(n, [&](int64_t i) {
            floatX *x = logits + i * Vp, *out = capped + i * Vp;
            if (dinp) copy_values(out, x, Vp);
            float* exps = sizeof(floatX) == 2 ? thread_scratch(V) : nullptr;
            losses[r + i] = softmax_loss_row(x, targets[r + i], V, Vp, dinp ? dloss : 0.0f, exps);
            for_each_vector(dinp ? Vp : 0, [&](size_t v, size_t count) {
                const vfloat slope = load_some(out + v, count) / cap;
                store_some(x + v, load_some(x + v, count) * (1.0f - slope * slope), count);
            });
        });
        if (dinp)
            matmul_backward(dinp + r * C, dhead, (floatG*)nullptr, logits, inp + r * C, head, n, C, Vp, add || r > 0);
    }
}
