// How tensor.cpp splits a model: which part of each weight a process has, the two operations by
// which what a process has of the activations becomes what the next product needs, and a softmax of
// which no process has all columns.
//
// Between the layers, activations are rows (tokens) of C channels. Without --sequence every process
// has all rows, with it a P-th of them. Into a column product go all rows; out of a row product
// comes a part of a sum for all rows:
//
//                          without           --sequence 1, 2
//     all_rows             nothing           all-gather
//     sum_rows             all-reduce        reduce-scatter
//
// Each is what the other's backward pass takes: the gradient of all_rows() is sum_rows(), and that
// of sum_rows() all_rows(). An all-reduce is a reduce-scatter and an all-gather, so both columns
// send the same bytes.
//
// Sources: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022,
// arXiv:2205.05198, section 4.2.
#pragma once
#include "dev/parallel/parallel.h"
#include "llmc/comm/all_reduce.h"

// Of a tensor's elements as (outer, n, inner), process r has those from r n / P on, n / P of n; all
// of them if n is 0.
struct Cut {
    int64_t outer, n, inner;
};
// qkvw has three matrices, one below the other, and heads are rows of each: so 3, and not 1.
inline Cut cut_of(int tensor, const GPT2Config& c, bool sequence) {
    const int64_t C = c.C;
    switch (tensor) {
        case WTE: return {1, c.Vp, C};
        case WPE: return {1, sequence ? c.maxT : 0, C};
        case QKVW: return {3, C, C};
        case QKVB: return {3, C, 1};
        case FCW: return {1, 4 * C, C};
        case FCB: return {1, 4 * C, 1};
        case ATTPROJW: return {C, C, 1};
        case FCPROJW: return {C, 4 * C, 1};
        default: return {1, 0, 1};
    }
}

struct Split {
    GPT2Config c;
    CommGroup group;   // the processes that share every layer
    int64_t sequence;  // 1: rows are split between layers. 2: and gathered again in the backward pass

    int64_t P() const { return group.processes; }
    int64_t rows() const { return sequence ? ROWS / P() : ROWS; }        // between layers
    int64_t kept_rows() const { return sequence == 2 ? rows() : ROWS; }  // of what column products read
    int64_t first_row() const { return sequence ? rows() * group.rank : 0; }
    int64_t width() const { return c.C / P(); }  // channels of the heads of this process
    int64_t vocabulary() const { return c.Vp / P(); }
    int64_t first_token() const { return vocabulary() * group.rank; }
};

// Copies the part of process r from a whole tensor, or to it.
inline void copy_part(const Split& s, int tensor, int64_t r, float* whole, float* part, bool to_whole) {
    const Cut cut = cut_of(tensor, s.c, s.sequence);
    const int64_t block = cut.n / s.P() * cut.inner;
    for (int64_t o = 0; o < cut.outer; o++) {
        float *there = whole + o * cut.n * cut.inner + r * block, *here = part + o * block;
        std::copy_n(to_whole ? here : there, block, to_whole ? there : here);
    }
}
inline Floats part_of(const Split& s, int tensor, Floats&& whole) {
    if (cut_of(tensor, s.c, s.sequence).n == 0) return std::move(whole);
    Floats part(whole.size() / s.P());
    copy_part(s, tensor, s.group.rank, whole.data(), part.data(), false);
    return part;
}

// all (ROWS, C) = the own (rows, C) of all processes.
inline void all_rows(const Split& s, float* all, const float* own) {
    const int64_t n = s.rows() * s.c.C;
    std::copy_n(own, n, all + s.first_row() * s.c.C);
    if (s.sequence) comm_wait(comm_all_gather_start(all, n, 0, s.group), "the rows");
}
// own (rows, C) = its rows of the sum of what all processes have in part (ROWS, C), which is
// undefined afterwards.
inline void sum_rows(const Split& s, float* own, float* part) {
    const int64_t n = s.rows() * s.c.C;
    if (s.sequence) comm_wait(comm_reduce_scatter_start(part, n, 0, s.group), "the sums");
    else comm_all_reduce(part, n, 0, s.group, "the sums");
    std::copy_n(part + s.first_row() * s.c.C, n, own);
}

// ---- the vocabulary

// f(position, row of wte) for the inputs whose row this process has.
template <class F>
void for_own_tokens(const Split& s, const int* inp, F f) {
    for (int64_t t = 0; t < ROWS; t++) {
        const int64_t row = inp[t] - s.first_token();
        if (row >= 0 && row < s.vocabulary()) f(t, row);
    }
}

// What processes tell each other of a row's logits: the maximum of those that they have, the sum of
// e^(logit - maximum), and the logit of the target, 0 where it is not.
struct RowLogits {
    float maximum, sum, target;
};
// Replaces the logits (ROWS, Vp / P) by their gradients. With M = max over r of m_r,
//
//     S = sum over r of s_r e^(m_r - M),    loss = log S + M - logit[target],    p = e^(logit - M) / S
inline double softmax_losses(const Split& s, float* logits, const int* targets, float dloss) {
    const int64_t n = s.vocabulary(), here = std::clamp<int64_t>(s.c.V - s.first_token(), 0, n);  // not padding
    std::vector<RowLogits> all(s.P() * ROWS);
    for (int64_t t = 0; t < ROWS; t++) {
        RowLogits& row = all[s.group.rank * ROWS + t] = {-INFINITY, 0, 0};
        const float* x = logits + t * n;
        for (int64_t v = 0; v < here; v++) row.maximum = std::max(row.maximum, x[v]);
        for (int64_t v = 0; v < here; v++) row.sum += std::exp(x[v] - row.maximum);
    }
    for_own_tokens(s, targets, [&](int64_t t, int64_t v) { all[s.group.rank * ROWS + t].target = logits[t * n + v]; });
    comm_wait(comm_all_gather_start(all.data(), ROWS, 0, s.group), "the softmax");
    double loss = 0;
    for (int64_t t = 0; t < ROWS; t++) {
        float M = -INFINITY, S = 0, target = 0;
        for (int64_t r = 0; r < s.P(); r++) M = std::max(M, all[r * ROWS + t].maximum);
        for (int64_t r = 0; r < s.P(); r++) {
            const RowLogits& row = all[r * ROWS + t];
            S += row.sum * std::exp(row.maximum - M), target += row.target;
        }
        loss += std::log(S) + M - target;
        for (int64_t v = 0; v < n; v++) logits[t * n + v] = v < here ? dloss * std::exp(logits[t * n + v] - M) / S : 0;
    }
    for_own_tokens(s, targets, [&](int64_t t, int64_t v) { logits[t * n + v] -= dloss; });
    return loss;
}

// ---- the end of a step, and of a run

// The gradients of layer norms, with --sequence: each process has them from its own rows, so the
// sum over processes is missing. Whatever else has no cut comes from all rows.
inline void sum_norms(const Split& s, Part& part) {
    if (!s.sequence) return;
    Floats together;
    const auto is_norm = [](int i) {
        return i == LN1W || i == LN1B || i == LN2W || i == LN2B || i == LNFW || i == LNFB;
    };
    for (auto& [name, p] : part.parameters)
        if (is_norm(name.first)) together.insert(together.end(), p.gradient.begin(), p.gradient.end());
    comm_all_reduce(together.data(), (int64_t)together.size(), 0, s.group, "the gradients of layer norms");
    const float* sum = together.data();
    for (auto& [name, p] : part.parameters)
        if (is_norm(name.first)) std::copy_n(sum, p.gradient.size(), p.gradient.begin()), sum += p.gradient.size();
}

// Writes the whole weights to a file, "" for none: of each tensor a line with its name, layer and
// number of elements, then these. Exit 1 if processes differ in what all of them have. All of the
// group call it.
inline void write_weights(const Split& s, Part& part, const std::string& path) {
    FILE* file = path.empty() || s.group.rank ? nullptr : fopen(path.c_str(), "wb");
    if (!path.empty() && s.group.rank == 0 && !file) runtime_failure("%s could not be written", path);
    for (auto& [name, p] : part.parameters) {
        const int64_t n = (int64_t)p.weight.size(), P = s.P();
        Floats all(P * n), whole = p.weight;
        comm_gather(s.group, all.data(), p.weight.data(), n * (int64_t)sizeof(float), "the weights");
        const bool is_cut = cut_of(name.first, s.c, s.sequence).n > 0;
        if (is_cut) whole.resize(P * n);
        for (int64_t r = 0; r < P; r++) {
            if (is_cut) copy_part(s, name.first, r, whole.data(), all.data() + r * n, true);
            else if (memcmp(all.data() + r * n, p.weight.data(), n * sizeof(float)) != 0)
                runtime_failure("internal: rank %d has another %s", r, TENSORS[name.first].name);
        }
        if (!file) continue;
        fprintf(file, "%s %lld %zu\n", TENSORS[name.first].name, (long long)name.second, whole.size());
        fwrite(whole.data(), sizeof(float), whole.size(), file);
    }
    if (file && (ferror(file) | fclose(file))) runtime_failure("%s could not be written", path);
}
