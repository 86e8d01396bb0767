// Distillation, for --teacher: a model learns from what another, the teacher, expects to come next,
// beside what did (Hinton et al. 2015, arXiv:1503.02531). With z the scores of a row, u the
// teacher's, a the share of the teacher and t a temperature:
//
//     p      = softmax of z,   soft = softmax of z / t,   theirs = softmax of u / t
//     loss   = (a - 1) log p[target] + a t^2 (sum over v of theirs[v] log(theirs[v] / soft[v]))
//     Dz[v]  = (1 - a) (p[v] - (1 if v = target, else 0)) + a t (soft[v] - theirs[v])
//
// A temperature above 1 makes the teacher's small probabilities count, which say what else could
// have followed. t^2 undoes what the division by t does to the gradient, which falls as 1 / t^2.
//
// Neither model's scores are ever there for all rows: the teacher's forward pass, without
// gradients, ends with its lnf, and the classifier of the student computes both models' scores of a
// chunk of rows when it needs them.
#pragma once
#include <cstdint>

// What a classifier needs of the teacher. Both models have the same vocabulary.
template <class floatX>
struct Teacher {
    const floatX *lnf = nullptr, *wte = nullptr;  // (rows, C) and (Vp, C)
    floatX* logits = nullptr;                     // (classifier_chunk_rows(rows), Vp), scratch
    int64_t C = 0;
    float share = 0, temperature = 1;  // a and t

    explicit operator bool() const { return share > 0; }
};
