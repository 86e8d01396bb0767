// Attention over one sequence whose positions are divided among P processes: ways to divide them,
// and two ways for queries to meet the keys of other processes.
//
//     ring      process r has the r-th of P pieces. Keys and values go around: in round i it meets those of
//               process r - i. Queries of early positions wait for nobody: most of their keys come later.
//     zigzag    two pieces of half the size, number r and number 2P - 1 - r: one early, one late. In each round
//               every process has as many pairs of a query and a key before it as any other.
//     ulysses   pieces as of ring. All-to-all: from T/P positions of all heads to all positions of NH/P heads,
//               attention as always, and back. No rounds, but never more processes than heads.
//
// In the rounds of a ring the softmax is online: for each query the largest score m so far, the sum
// l of e^(score - m), and the sum of e^(score - m) v. A larger m scales both sums down. The
// backward pass has lse = m + log l, with which each p = e^(score - lse) is known at once; the
// gradients of keys and values travel with these, and are home after P rounds.
//
// Sources: Liu et al. 2023, arXiv:2310.01889 (ring); Brandon et al. 2023, arXiv:2311.09431
// (balance); Llama 3 2024, arXiv:2407.21783, section 3.3.2 (pieces r and 2P - 1 - r); Jacobs et al.
// 2023, arXiv:2309.14509 (Ulysses).
#pragma once
#include "dev/parallel/parallel.h"

constexpr int64_t MICRO_STEPS = 4;  // sequences of a step

enum Way { RING, ZIGZAG, ULYSSES };
constexpr const char* WAYS[] = {"ring", "zigzag", "ulysses"};

// A round of the ring: pairs of a query and a key that were met, and when.
struct Round {
    int64_t number, pairs;
    double begin, end;
};
struct Context {
    Way way;
    int64_t P, rank, slow_us;  // slow_us: sleeps so long for each pair, in place of computing with it
    std::vector<Round>* rounds;

    int64_t rows() const { return T / P; }
    int64_t piece() const { return way == ZIGZAG ? rows() / 2 : rows(); }  // positions that follow each other
    // The first position of piece i of process r, of which there are rows() / piece().
    int64_t begins(int64_t r, int64_t i) const { return (i == 0 ? r : 2 * P - 1 - r) * piece(); }
    int64_t position(int64_t r, int64_t row) const { return begins(r, row / piece()) + row % piece(); }
};

// ---- the ring

// f(query row, key row) for all queries of process q and keys of process k that are not after them.
template <class F>
int64_t for_pairs(const Context& x, int64_t q, int64_t k, F f) {
    int64_t pairs = 0;
    for (int64_t i = 0; i < x.rows(); i++)
        for (int64_t j = 0; j < x.rows(); j++)
            if (x.position(k, j) <= x.position(q, i)) f(i, j), pairs++;
    return pairs;
}
inline float dot(const float* a, const float* b, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}
// Calls meet(number, i) for rounds 0 to P-1, in which this process has the keys of process (rank -
// i) mod P, and notes them. It returns its pairs.
template <class Meet>
void in_round(const Context& x, int64_t i, Meet meet) {
    Round round{i, 0, now_seconds(), 0};
    round.pairs = meet((x.rank + x.P - i) % x.P);
    for (const double end = round.begin + 1e-6 * (double)(x.slow_us * round.pairs); now_seconds() < end; usleep(200))
        comm_progress();
    round.end = now_seconds();
    x.rounds->push_back(round);
}
// Starts sending a block to the next process, and receiving that of the one before.
inline void pass_on(const Context& x, const Counted& sent, Counted& received) {
    const int64_t bytes = (int64_t)(sent.size() * sizeof(float));
    comm_send_start(sent.data(), bytes, (x.rank + 1) % x.P);
    comm_receive_start(received.data(), bytes, (x.rank + x.P - 1) % x.P);
}
// Keys and values (rows, 2, C) of qkv (rows, 3, C).
inline Counted keys_and_values(const Counted& qkv, int64_t rows, int64_t C) {
    Counted block(rows * 2 * C);
    for (int64_t i = 0; i < rows; i++) std::copy_n(&qkv[i * 3 * C + C], 2 * C, &block[i * 2 * C]);
    return block;
}

// atty (rows, C) and lse (rows, NH) from qkv (rows, 3, C).
inline void ring_forward(const Context& x, const GPT2Config& c, LayerRecord& k) {
    const int64_t C = c.C, NH = c.NH, hs = C / NH, rows = x.rows();
    const float scale = 1 / std::sqrt((float)hs);
    Floats most(rows * NH, -INFINITY), sums(rows * NH);
    std::fill(k.atty.begin(), k.atty.end(), 0.0f);
    Counted here = keys_and_values(k.qkv, rows, C), next(here.size());
    for (int64_t i = 0; i < x.P; i++) {
        if (i + 1 < x.P) pass_on(x, here, next);
        in_round(x, i, [&](int64_t from) {
            return for_pairs(x, x.rank, from, [&](int64_t t, int64_t u) {
                for (int64_t h = 0; h < NH; h++) {
                    const float *q = &k.qkv[t * 3 * C + h * hs], *key = &here[u * 2 * C + h * hs], *value = key + C;
                    float &m = most[t * NH + h], &l = sums[t * NH + h], *out = &k.atty[t * C + h * hs];
                    const float score = scale * dot(q, key, hs), larger = std::max(m, score);
                    const float shrink = std::exp(m - larger), e = std::exp(score - larger);
                    m = larger, l = l * shrink + e;
                    for (int64_t n = 0; n < hs; n++) out[n] = out[n] * shrink + e * value[n];
                }
            });
        });
        comm_wait("the keys and values of another process");
        here.swap(next);
    }
    for (int64_t t = 0; t < rows * NH; t++) {
        k.lse[t] = most[t] + std::log(sums[t]);
        for (int64_t n = 0; n < hs; n++) k.atty[t * hs + n] /= sums[t];
    }
}
// dqkv (rows, 3, C), which is 0, from datty (rows, C). With the
// gradient of x called Dx, and delta the sum over n of Datty[n] atty[n],
//
//     Dv += p Datty,   Dp = Datty . v,   Ds = p (Dp - delta) / sqrt(hs),   Dq += Ds k,   Dk += Ds q
inline void ring_backward(const Context& x, const GPT2Config& c, float* dqkv, const float* datty, LayerRecord& k) {
    const int64_t C = c.C, NH = c.NH, hs = C / NH, rows = x.rows();
    const float scale = 1 / std::sqrt((float)hs);
    Counted here = keys_and_values(k.qkv, rows, C), next(here.size()), gradient(here.size()), before(here.size());
    for (int64_t i = 0; i < x.P; i++) {
        if (i + 1 < x.P) pass_on(x, here, next);
        Floats own(here.size());
        in_round(x, i, [&](int64_t from) {
            return for_pairs(x, x.rank, from, [&](int64_t t, int64_t u) {
                for (int64_t h = 0; h < NH; h++) {
                    const float *q = &k.qkv[t * 3 * C + h * hs], *key = &here[u * 2 * C + h * hs], *value = key + C;
                    const float *dout = datty + t * C + h * hs, *out = &k.atty[t * C + h * hs];
                    float *dq = dqkv + t * 3 * C + h * hs, *dkey = &own[u * 2 * C + h * hs], *dvalue = dkey + C;
                    const float p = std::exp(scale * dot(q, key, hs) - k.lse[t * NH + h]);
                    const float ds = p * (dot(dout, value, hs) - dot(dout, out, hs)) * scale;
                    for (int64_t n = 0; n < hs; n++)
                        dvalue[n] += p * dout[n], dq[n] += ds * key[n], dkey[n] += ds * q[n];
                }
            });
        });
        comm_wait("the gradients of keys and values");
        here.swap(next);
        gradient.swap(before);  // of these keys, as far as the processes before have added to it
        kernels::residual_forward(gradient.data(), gradient.data(), own.data(), own.size());
        if (x.P > 1) pass_on(x, gradient, before);
    }
    comm_wait("the gradients of keys and values");
    const Counted& home = x.P > 1 ? before : gradient;
    for (int64_t t = 0; t < rows; t++) std::copy_n(&home[t * 2 * C], 2 * C, dqkv + t * 3 * C + C);
}

// ---- all-to-all

// Between `parts` tensors of C channels side by side, of this process's positions (rows, parts, C),
// and of its heads (T, parts, C / P). Piece r of what is sent goes to process r.
inline void to_heads(const Context& x, float* heads, const float* own, int64_t parts, int64_t C) {
    const int64_t rows = x.rows(), W = C / x.P;
    Counted pieces(rows * parts * C);
    for (int64_t r = 0; r < x.P; r++)
        for (int64_t i = 0; i < rows * parts; i++)
            std::copy_n(own + i * C + r * W, W, &pieces[(r * rows * parts + i) * W]);
    comm_wait(comm_exchange_start(heads, pieces.data(), rows * parts * W * 4, 0), "the heads");
}
inline void to_positions(const Context& x, float* own, const float* heads, int64_t parts, int64_t C) {
    const int64_t rows = x.rows(), W = C / x.P;
    Counted pieces(rows * parts * C);
    comm_wait(comm_exchange_start(pieces.data(), heads, rows * parts * W * 4, 0), "the positions");
    for (int64_t r = 0; r < x.P; r++)
        for (int64_t i = 0; i < rows * parts; i++)
            std::copy_n(&pieces[(r * rows * parts + i) * W], W, own + i * C + r * W);
}

// What a layer calls (parallel.h). With Ulysses, qkv and atty of a record become those of all
// positions of own heads between the passes.
struct DividedAttention {
    const Context& x;

    void forward(const GPT2Config& c, LayerRecord& k) const {
        if (x.way != ULYSSES) return ring_forward(x, c, k);
        const int64_t W = c.C / x.P;
        Counted heads(T * 3 * W);
        to_heads(x, heads.data(), k.qkv.data(), 3, c.C);
        k.qkv.swap(heads);
        in_round(x, 0, [&](int64_t) {
            Floats out(T * W);
            kernels::attention_forward(out.data(), k.lse.data(), k.qkv.data(), 1, T, W, c.NH / x.P);
            to_positions(x, k.atty.data(), out.data(), 1, c.C);
            return T * (T + 1) / 2 / x.P;
        });
    }
    void backward(const GPT2Config& c, float* dqkv, const float* datty, LayerRecord& k) const {
        if (x.way != ULYSSES) return ring_backward(x, c, dqkv, datty, k);
        const int64_t W = c.C / x.P;
        Counted dout(T * W), out(T * W), gradient(T * 3 * W);
        to_heads(x, dout.data(), datty, 1, c.C), to_heads(x, out.data(), k.atty.data(), 1, c.C);
        in_round(x, 0, [&](int64_t) {
            kernels::attention_backward(gradient.data(), dout.data(), out.data(), k.lse.data(), k.qkv.data(), 1, T, W,
                                        c.NH / x.P);
            return T * (T + 1) / 2 / x.P;
        });
        to_positions(x, dqkv, gradient.data(), 3, c.C);
    }
};
