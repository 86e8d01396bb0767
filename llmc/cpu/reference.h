// Every layer of GPT-2 as plain loops: lesson one, and the oracle that all faster code is tested
// against. Nothing here is clever. Above each function stand its formula, the shape of each
// pointer, and what happens to each output. Names and arguments are those of the fast functions in
// this folder, so `make train_gpt2_cpu KERNELS=reference` trains with these.
//
//     B   sequences in a batch                 V    tokens in the vocabulary
//     T   positions in a sequence              Vp   V rounded up to a multiple of 128: rows of wte, columns of logits
//     C   channels of a position               NH   attention heads, each of HS = C / NH channels
//     rows = B * T, all positions              OC   outputs of a linear layer, whose inputs are C
//
// x (rows, C) is a matrix stored row by row: element (r, c) is x[r * C + c]. Dx stands for
// dLoss/dx, in the code dx. A backward function takes the gradients of the outputs of its forward
// function and computes the gradients of the inputs and parameters.
//
// Outputs are written, whatever was there before. Gradients that have several contributions are
// the exception; these are added to:
//
//     residual stream   In out = x + branch(layernorm(x)), the gradient of x is that of out plus what comes back
//                       through the branch. layernorm_backward ends the branch: it adds to dinp, where the
//                       gradient of out already is.
//     tied weights      wte is the embedding table and also the weight of the classifier. The classifier's share is
//                       already in dwte when encoder_backward adds the embedding's.
//     micro-steps       A batch may pass through the model in several parts, one micro-step each. The first writes the
//                       gradients of parameters; with `add`, the later ones add to them.
//
// Sums are in fp32, in the order of the loops; GELU, the sum in the classifier's softmax and the
// norm of the gradient are computed in double. Denormals are what the calling thread takes them for
// (denormals.h); the fast functions take them for zero, and tests allow for that.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>
#include "llmc/cpu/reference_distill.h"
#include "llmc/gpt2/activation_codes.h"
#include "llmc/gpt2/constants.h"
#include "llmc/gpt2/dropout.h"
#include "llmc/optim/update_constants.h"

namespace reference {

// The embedding: the row of the token plus the row of the position.
//
//     out[b,t] = wte[inp[b,t]] + wpe[first + t]
//
// out (B,T,C) is written, from inp (B,T) token ids, wte (Vp,C), wpe (maxT,C). first is 0, or in
// generation the position of the first token of inp.
template <class floatX>
void encoder_forward(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int64_t B, int64_t T, int64_t C,
                     int64_t first = 0) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < C; c++)
                out[(b * T + t) * C + c] = wte[inp[b * T + t] * C + c] + wpe[(first + t) * C + c];
}

// The embedding, backward: each position adds to the row of its token and to its own.
//
//     Dwte[v] = sum of Dout[b,t] over all b, t where inp[b,t] = v
//     Dwpe[t] = sum of Dout[b,t] over all b
//
// dwte (Vp,C) is added to (tied weights). dwpe (maxT,C) is written, with zeros from T on, or added
// to if add. dout (B,T,C), inp (B,T).
template <class floatX>
void encoder_backward(floatX* dwte, floatX* dwpe, const floatX* dout, const int* inp, int64_t B, int64_t T, int64_t C,
                      int64_t maxT, bool add) {
    for (int64_t i = 0; i < maxT * C && !add && dwpe; i++) dwpe[i] = 0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < C; c++) {
                if (dwte) dwte[inp[b * T + t] * C + c] += dout[(b * T + t) * C + c];
                if (dwpe) dwpe[t * C + c] += dout[(b * T + t) * C + c];
            }
}

// Layer normalisation: each row is shifted and scaled to mean 0 and variance 1, then scaled and
// shifted by learned values for each channel.
//
//     mean[r] = sum over c of x[r,c] / C
//     rstd[r] = 1 / sqrt(sum over c of (x[r,c] - mean[r])^2 / C + 1e-5)
//     xhat    = (x[r,c] - mean[r]) rstd[r]
//     out     = xhat weight[c] + bias[c]
//
// out (rows,C), mean (rows) and rstd (rows) are written, from x = inp (rows,C), weight (C), bias
// (C). The backward pass needs mean and rstd.
template <class floatX>
void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight,
                       const floatX* bias, int64_t rows, int64_t C) {
    for (int64_t r = 0; r < rows; r++) {
        const floatX* x = inp + r * C;
        float m = 0, var = 0;
        for (int64_t c = 0; c < C; c++) m += x[c];
        m /= C;
        for (int64_t c = 0; c < C; c++) var += (x[c] - m) * (x[c] - m);
        var /= C;
        float s = 1.0f / std::sqrt(var + 1e-5f);
        for (int64_t c = 0; c < C; c++) out[r * C + c] = (x[c] - m) * s * weight[c] + bias[c];
        mean[r] = m;
        rstd[r] = s;
    }
}

// The residual stream: out (n_elems) = inp1 (n_elems) + inp2 (n_elems), written. out may be inp1 or
// inp2.
template <class floatX>
void residual_forward(floatX* out, const floatX* inp1, const floatX* inp2, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++) out[i] = inp1[i] + inp2[i];
}

// Dropout: out (n_elems) = inp (n_elems), those that the mask drops set to 0 and the others scaled,
// written. out may be inp. The gradient of inp is the same function of that of out. Returns where
// the result is: out.
template <class floatX>
const floatX* dropout(floatX* out, const floatX* inp, size_t n_elems, const DropoutMask& mask) {
    for (size_t i = 0; i < n_elems; i++) out[i] = inp[i] * dropout_factor(mask, i);
    return out;
}

// Compressed activations (gpt2/activation_codes.h): codes of inp (n_elems), written, behind its end
// codes of 0; and back, out (n_elems) written.
//
//     scale of a block of 64 = max |x| / 127      code = round(x / scale)      x = code scale
template <class floatX>
void encode_activations(ActivationCodes codes, const floatX* inp, size_t n_elems) {
    for (size_t first = 0; first < n_elems; first += CODE_BLOCK) {
        float x[CODE_BLOCK], largest = 0, not_finite = 0;
        for (size_t i = 0; i < CODE_BLOCK; i++) {
            x[i] = first + i < n_elems ? (float)inp[first + i] : 0.0f;
            largest = std::fmax(largest, std::fabs(x[i]));
            if (!std::isfinite(x[i])) not_finite = NAN;
        }
        const float scale = code_scale(largest, not_finite), inverse = inverse_scale(scale);
        for (size_t i = 0; i < CODE_BLOCK; i++)
            codes.codes[first + i] = std::isfinite(x[i]) ? (int8_t)std::nearbyint(x[i] * inverse) : 0;
        codes.scales[first / CODE_BLOCK] = scale;
    }
}
template <class floatX>
void decode_activations(floatX* out, ActivationCodes codes, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++) out[i] = codes.codes[i] * codes.scales[i / CODE_BLOCK];
}

// The residual stream and the layer norm that follows it: residual (rows,C) = inp1 (rows,C) + inp2
// (rows,C), then out, mean and rstd from residual. All four are written.
template <class floatX>
void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* inp1,
                                const floatX* inp2, const floatX* weight, const floatX* bias, int64_t rows, int64_t C) {
    residual_forward(residual, inp1, inp2, rows * C);
    layernorm_forward(out, mean, rstd, residual, weight, bias, rows, C);
}

// Layer normalisation, backward, with xhat as in layernorm_forward and g = Dout[r,c] weight[c]:
//
//     Dweight[c] = sum over r of Dout[r,c] xhat
//     Dbias[c]   = sum over r of Dout[r,c]
//     Dx[r,c]    = rstd[r] (g - mean over c of g - xhat (mean over c of g xhat))
//
// The two means are there because mean and rstd depend on every channel of x. dinp (rows,C) is
// added to (residual stream). dweight (C) and dbias (C) are written, or added to if add. dout
// (rows,C); inp, weight, mean and rstd are those of the forward pass.
template <class floatX>
void layernorm_backward(floatX* dinp, floatX* dweight, floatX* dbias, const floatX* dout, const floatX* inp,
                        const floatX* weight, const float* mean, const float* rstd, int64_t rows, int64_t C, bool add) {
    for (int64_t c = 0; c < C && !add && dweight; c++) dweight[c] = 0;
    for (int64_t c = 0; c < C && !add && dbias; c++) dbias[c] = 0;
    for (int64_t r = 0; r < rows; r++) {
        const floatX *x = inp + r * C, *d = dout + r * C;
        float g_mean = 0, gx_mean = 0;
        for (int64_t c = 0; c < C; c++) {
            float xhat = (x[c] - mean[r]) * rstd[r], g = d[c] * weight[c];
            g_mean += g;
            gx_mean += g * xhat;
        }
        g_mean /= C;
        gx_mean /= C;
        for (int64_t c = 0; c < C; c++) {
            float xhat = (x[c] - mean[r]) * rstd[r], g = d[c] * weight[c];
            if (dweight) dweight[c] += d[c] * xhat;
            if (dbias) dbias[c] += d[c];
            dinp[r * C + c] += rstd[r] * (g - g_mean - xhat * gx_mean);
        }
    }
}

// GELU, the nonlinearity between the two linear layers of the MLP:
//
//     gelu(x)  = x s(x),   s(x) = (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)),   u = sqrt(2/pi) (x + 0.044715 x^3)
//     gelu'(x) = s(x) + x s'(x),   s'(x) = 2 s (1 - s) du/dx,   du/dx = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
//
// s is computed in its second form: where tanh(u) is near -1, 1 + tanh(u) would lose all digits.
inline double gelu_logistic(double x) {
    return 1 / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// out (n_elems) = gelu(inp (n_elems)), written. out may be inp.
template <class floatX>
void gelu_forward(floatX* out, const floatX* inp, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++) out[i] = (float)(inp[i] * gelu_logistic(inp[i]));
}

// dinp (n_elems) = dout (n_elems) gelu'(inp (n_elems)), written. dinp may be dout.
template <class floatX>
void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++) {
        const double x = inp[i], s = gelu_logistic(x), du = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
        dinp[i] = (float)(dout[i] * (s + x * 2 * s * (1 - s) * du));
    }
}

// A linear layer:
//
//     out[r,o] = bias[o] + sum over c of inp[r,c] weight[o,c]            out = inp weight^T + bias
//
// out (rows,OC) is written, from inp (rows,C), weight (OC,C), and bias (OC) or null. If gelu_out
// (rows,OC) is not null, gelu(out) is written to it.
template <class floatX>
void matmul_forward(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int64_t rows, int64_t C,
                    int64_t OC, floatX* gelu_out = nullptr) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < OC; o++) {
            float value = bias ? (float)bias[o] : 0.0f;
            for (int64_t c = 0; c < C; c++) value += inp[r * C + c] * weight[o * C + c];
            out[r * OC + o] = value;
        }
    if (gelu_out) gelu_forward(gelu_out, out, rows * OC);
}

// A linear layer, backward:
//
//     Dinp[r,c]    = sum over o of Dout[r,o] weight[o,c]
//     Dweight[o,c] = sum over r of Dout[r,o] inp[r,c]
//     Dbias[o]     = sum over r of Dout[r,o]
//
// dinp (rows,C) is written. dweight (OC,C) and dbias (OC) are written, or added to if add. Each may
// be null if not wanted. dout (rows,OC); inp and weight are those of the forward pass. If inp
// was computed as gelu(pre_gelu), then with pre_gelu (rows,C) dinp becomes Dpre_gelu.
template <class floatX>
void matmul_backward(floatX* dinp, floatX* dweight, floatX* dbias, const floatX* dout, const floatX* inp,
                     const floatX* weight, int64_t rows, int64_t C, int64_t OC, bool add,
                     const floatX* pre_gelu = nullptr) {
    for (int64_t i = 0; i < OC * C && !add && dweight; i++) dweight[i] = 0;
    for (int64_t o = 0; o < OC && !add && dbias; o++) dbias[o] = 0;
    for (int64_t i = 0; i < rows * C && dinp; i++) dinp[i] = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < OC; o++) {
            float d = dout[r * OC + o];
            if (dbias) dbias[o] += d;
            for (int64_t c = 0; c < C; c++) {
                if (dinp) dinp[r * C + c] += d * weight[o * C + c];
                if (dweight) dweight[o * C + c] += d * inp[r * C + c];
            }
        }
    if (pre_gelu && dinp) gelu_backward(dinp, dinp, pre_gelu, rows * C);
}

// Causal self-attention, for each sequence and each head by itself. Position t has a query q[t], a
// key k[t] and a value v[t] of HS channels each; it sees itself and the positions before it, t2 <=
// t, and its output is their values, weighted by how well its query matches their keys.
//
//     s[t,t2] = q[t] . k[t2] / sqrt(HS)                                     the score
//     p[t,t2] = e^s[t,t2] / (sum over t2' <= t of e^s[t,t2'])               its softmax
//     out[t]  = sum over t2 <= t of p[t,t2] v[t2]
//     lse[t]  = log(sum over t2 <= t of e^s[t,t2]),                         so that p[t,t2] = e^(s[t,t2] - lse[t])
//
// The largest score is subtracted before e is raised to it, since e^89 is too large for fp32; p
// does not change by that.
//
// With a document mask t sees start(t) <= t2 <= t, where start(t) is the first position of its
// document (llmc/gpt2/documents.h), and with a window of W positions t-W+1 <= t2 <= t
// (llmc/gpt2/window.h): in all these sums, the positions before are left out.
inline int64_t first_seen(const int* starts, int64_t window, int64_t b, int64_t t, int64_t T) {
    const int64_t start = starts ? starts[b * T + t] : 0;
    return window > 0 ? std::max(start, t - window + 1) : start;
}

// Where a position's query, key and value of head h lie in qkv, counted from the position's row of
// `row` values: NH heads of queries, then NKV of keys, then NKV of values. Where NKV is less than
// NH, NH / NKV heads of queries share a head of keys and values (grouped queries).
struct HeadPlace {
    int64_t row, q, k, v;
    HeadPlace(int64_t h, int64_t HS, int64_t NH, int64_t NKV)
        : row((NH + 2 * NKV) * HS), q(h * HS), k((NH + h / (NH / NKV)) * HS), v(k + NKV * HS) {}
};

// The score of key t2 for query t, in sequence b and the head at `at`.
template <class floatX>
float attention_score(const floatX* qkv, int64_t b, int64_t t, int64_t t2, const HeadPlace& at, int64_t T, int64_t HS) {
    const floatX *q = qkv + (b * T + t) * at.row + at.q, *k = qkv + (b * T + t2) * at.row + at.k;
    float score = 0;
    for (int64_t i = 0; i < HS; i++) score += q[i] * k[i];
    return score / std::sqrt((float)HS);
}

// out (B,T,C) and lse (B,NH,T) are written from qkv (B,T,3C). A row of qkv holds the queries of all
// heads, NH times HS values, then all keys, then all values; a row of out holds all heads likewise.
// The backward pass recomputes p from lse, so that its T x T values need not be kept. starts (B,T)
// is the document mask, or null; window: of positions, or 0; NKV: heads of keys and of values, 0
// for NH.
template <class floatX>
void attention_forward(floatX* out, float* lse, const floatX* qkv, int64_t B, int64_t T, int64_t C, int64_t NH,
                       const int* starts = nullptr, int64_t window = 0, int64_t NKV = 0) {
    const int64_t HS = C / NH;
    std::vector<float> scores(T);  // of one query
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < NH; h++)
            for (int64_t t = 0; t < T; t++) {
                const HeadPlace at(h, HS, NH, NKV > 0 ? NKV : NH);
                const int64_t start = first_seen(starts, window, b, t, T);
                float highest = -INFINITY, total = 0;
                for (int64_t t2 = start; t2 <= t; t2++) {
                    scores[t2] = attention_score(qkv, b, t, t2, at, T, HS);
                    highest = std::fmax(highest, scores[t2]);
                }
                for (int64_t t2 = start; t2 <= t; t2++) total += std::exp(scores[t2] - highest);
                float log_sum = lse[(b * NH + h) * T + t] = highest + std::log(total);
                floatX* o = out + (b * T + t) * C + h * HS;
                for (int64_t i = 0; i < HS; i++) o[i] = 0;
                for (int64_t t2 = start; t2 <= t; t2++) {
                    float p = std::exp(scores[t2] - log_sum);
                    const floatX* v = qkv + (b * T + t2) * at.row + at.v;
                    for (int64_t i = 0; i < HS; i++) o[i] += p * v[i];
                }
            }
}

// Causal self-attention, backward:
//
//     Dv[t2]   = sum over t >= t2 of p[t,t2] Dout[t]
//     Dp[t,t2] = Dout[t] . v[t2]
//     Ds[t,t2] = p[t,t2] (Dp[t,t2] - delta[t]),   delta[t] = sum over t2 of p[t,t2] Dp[t,t2] = Dout[t] . out[t]
//     Dq[t]    = sum over t2 <= t of Ds[t,t2] k[t2] / sqrt(HS)
//     Dk[t2]   = sum over t >= t2 of Ds[t,t2] q[t] / sqrt(HS)
//
// dqkv, as qkv, is written, from dout (B,T,C) and from out, lse and qkv of the forward pass. In the
// code ds is Ds / sqrt(HS).
template <class floatX>
void attention_backward(floatX* dqkv, const floatX* dout, const floatX* out, const float* lse, const floatX* qkv,
                        int64_t B, int64_t T, int64_t C, int64_t NH, const int* starts = nullptr, int64_t window = 0,
                        int64_t NKV = 0) {
    const int64_t HS = C / NH, kv_heads = NKV > 0 ? NKV : NH;
    const float scale = 1.0f / std::sqrt((float)HS);
    for (int64_t i = 0; i < B * T * (NH + 2 * kv_heads) * HS; i++) dqkv[i] = 0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < NH; h++)
            for (int64_t t = 0; t < T; t++) {
                const HeadPlace at(h, HS, NH, kv_heads);
                const floatX *d_o = dout + (b * T + t) * C + h * HS, *o = out + (b * T + t) * C + h * HS,
                             *q = qkv + (b * T + t) * at.row + at.q;
                floatX* dq = dqkv + (b * T + t) * at.row + at.q;
                float delta = 0;
                for (int64_t i = 0; i < HS; i++) delta += d_o[i] * o[i];
                for (int64_t t2 = first_seen(starts, window, b, t, T); t2 <= t; t2++) {
                    const int64_t row = (b * T + t2) * at.row;
                    const floatX *k = qkv + row + at.k, *v = qkv + row + at.v;
                    floatX *dk = dqkv + row + at.k, *dv = dqkv + row + at.v;
                    float p = std::exp(attention_score(qkv, b, t, t2, at, T, HS) - lse[(b * NH + h) * T + t]), dp = 0;
                    for (int64_t i = 0; i < HS; i++) dp += d_o[i] * v[i];
                    float ds = p * (dp - delta) * scale;
                    for (int64_t i = 0; i < HS; i++) {
                        dv[i] += p * d_o[i];
                        dq[i] += ds * k[i];
                        dk[i] += ds * q[i];
                    }
                }
            }
}

// Attention in generation, for one new position `last` of one sequence. The keys and values of the
// positions before it are kept in a cache, to which its own are added: row `last` of each head of
// keys (NKV,maxT,HS) and values (NKV,maxT,HS) is written. out (C) is written from qkv (row). scores
// (NH,maxT) is scratch. It sees the last `window` positions, or with 0 all; NKV: as above.
template <class floatX>
void attention_decode(floatX* out, floatX* keys, floatX* values, const floatX* qkv, float* scores, int64_t last,
                      int64_t maxT, int64_t C, int64_t NH, int64_t window = 0, int64_t NKV = 0) {
    const int64_t HS = C / NH, first = window > 0 ? std::max<int64_t>(0, last + 1 - window) : 0;
    const int64_t group = NKV > 0 ? NH / NKV : 1;
    for (int64_t h = 0; h < NH; h++) {
        const HeadPlace at(h, HS, NH, NH / group);
        const floatX *q = qkv + at.q, *new_k = qkv + at.k, *new_v = qkv + at.v;
        floatX *k = keys + h / group * maxT * HS, *v = values + h / group * maxT * HS;
        float *p = scores + h * maxT, highest = -INFINITY, total = 0;
        for (int64_t i = 0; i < HS; i++) k[last * HS + i] = new_k[i], v[last * HS + i] = new_v[i];
        for (int64_t t = first; t <= last; t++) {
            p[t] = 0;
            for (int64_t i = 0; i < HS; i++) p[t] += q[i] * k[t * HS + i];
            p[t] /= std::sqrt((float)HS);
            highest = std::fmax(highest, p[t]);
        }
        for (int64_t t = first; t <= last; t++) total += std::exp(p[t] - highest);
        for (int64_t i = 0; i < HS; i++) {
            float mix = 0;
            for (int64_t t = first; t <= last; t++) mix += std::exp(p[t] - highest) / total * v[t * HS + i];
            out[h * HS + i] = mix;
        }
    }
}

// How many rows of logits the classifier needs memory for: here all.
static inline int64_t classifier_chunk_rows(int64_t rows) { return rows; }

// The end of the network: a score for each token of the vocabulary, the softmax, the cross-entropy
// with the token that came next, and the gradient of all three.
//
//     logits[r,v] = sum over c of inp[r,c] wte[v,c]                        for v < Vp
//     p[r,v]      = e^logits[r,v] / (sum over v' < V of e^logits[r,v'])    for v < V; columns V to Vp - 1 are padding
//     losses[r]   = -log p[r,targets[r]]
//     Loss        = dloss (sum over r of losses[r])                        dloss = 1 / rows makes it the mean
//
//     Dlogits[r,v] = dloss (p[r,v] - (1 if v = targets[r], else 0))        for v < V, else 0
//     Dinp         = Dlogits wte,   Dwte = Dlogits^T inp
//
// A row whose target is IGNORED_TARGET has no part in the Loss: its loss and its Dlogits are 0.
//
// losses (rows) is written, from inp (rows,C), wte (Vp,C), targets (rows). logits (rows,Vp) is
// scratch; with gradients, Dlogits replaces the logits there. If dinp (rows,C) is not null, it is
// written, and dwte (Vp,C) is written, or added to if add. The arguments without a name are for
// bf16 and for chunks of rows; a teacher changes the losses (adapt/distill.h).
template <class floatX>
void classifier(float* losses, floatX* dinp, floatX* dwte, floatX* logits, const floatX* inp, const floatX* wte,
                const int* targets, int64_t rows, int64_t C, int64_t V, int64_t Vp, float dloss, bool add,
                float* = nullptr, const Teacher<floatX>& teacher = {}, bool = false) {
    matmul_forward(logits, inp, wte, (const floatX*)nullptr, rows, C, Vp);
    if (teacher) matmul_forward(teacher.logits, teacher.lnf, teacher.wte, (const floatX*)nullptr, rows, teacher.C, Vp);
    for (int64_t r = 0; r < rows; r++) {
        floatX* x = logits + r * Vp;
        if (targets[r] == IGNORED_TARGET) {
            losses[r] = 0;
            for (int64_t v = 0; v < Vp && dinp; v++) x[v] = 0;
            continue;
        }
        if (teacher) {
            losses[r] = reference::distilled_loss_row(x, teacher.logits + r * Vp, targets[r], V, Vp,
                                                      dinp ? dloss : 0.0f, teacher);
            continue;
        }
        float highest = -INFINITY;
        double total = 0;
        for (int64_t v = 0; v < V; v++) highest = std::fmax(highest, x[v]);
        for (int64_t v = 0; v < V; v++) total += std::exp(x[v] - highest);
        losses[r] = (float)(std::log(total) - (x[targets[r]] - highest));
        if (!dinp) continue;
        for (int64_t v = 0; v < Vp; v++) {
            float p = v < V ? (float)(std::exp(x[v] - highest) / total) : 0.0f;
            x[v] = (p - (v == targets[r] ? 1.0f : 0.0f)) * dloss;
        }
    }
    if (dinp) matmul_backward(dinp, dwte, (floatX*)nullptr, logits, inp, wte, rows, C, Vp, add);
}

// The sum of the squares of grads (n_elems). Its root is the norm of the gradient, which clipping
// compares with its limit.
template <class floatX>
double global_norm_squared(const floatX* grads, size_t n_elems) {
    double total = 0;
    for (size_t i = 0; i < n_elems; i++) total += (double)grads[i] * (double)grads[i];
    return total;
}

// AdamW. With g = grad_scale grads (clipping sets the scale), and t = 1, 2, ... the number of the
// update:
//
//     m = beta1 m + (1 - beta1) g                 m_hat = m / (1 - beta1^t)      the mean of recent gradients
//     v = beta2 v + (1 - beta2) g^2               v_hat = v / (1 - beta2^t)      the mean of their squares
//     p = p - learning_rate (m_hat / (sqrt(v_hat) + eps) + weight_decay p)
//
// params, m and v (n_elems each) are updated in place. k.correction1 is 1 - beta1^t, k.correction2
// is 1 - beta2^t. If master (n_elems) is not null, the weights are updated there, and params gets
// them, rounded to its type. The last two arguments are for stochastic rounding, which is not done
// here.
template <class floatX>
void adamw_update(floatX* params, float* master, float* m, float* v, const floatX* grads, size_t n_elems,
                  const UpdateConstants& k, uint64_t = 0, int64_t = 0) {
    for (size_t i = 0; i < n_elems; i++) {
        float g = grads[i] * k.grad_scale;
        m[i] = k.beta1 * m[i] + (1.0f - k.beta1) * g;
        v[i] = k.beta2 * v[i] + (1.0f - k.beta2) * g * g;
        float m_hat = m[i] / k.correction1, v_hat = v[i] / k.correction2;
        float p = master ? master[i] : (float)params[i];
        p -= k.learning_rate * (m_hat / (std::sqrt(v_hat) + k.eps) + k.weight_decay * p);
        if (master) master[i] = p;
        params[i] = p;
    }
}

}  // namespace reference
