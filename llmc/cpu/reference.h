// Every layer of GPT-2 as plain loops, one line of mathematics a line of code: lesson one, and the
// oracle that all faster code is tested against. Nothing here is clever. Functions have the names
// and arguments of the fast ones, so that `make train_gpt2_cpu KERNELS=reference` trains with them;
// what each computes, and the shape of each pointer, is said in the header of that name in this
// folder. What a backward pass says is "added to" is added to here too.
//
// Sums are in fp32, in the order of the loops, but for the longest (losses and norms).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include "llmc/update_rule.h"

namespace reference {

template <class floatX>
void encoder_forward(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int64_t B, int64_t T, int64_t C,
                     int64_t first = 0) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < C; c++)
                out[(b * T + t) * C + c] = wte[inp[b * T + t] * C + c] + wpe[(first + t) * C + c];
}

template <class floatX>
void encoder_backward(floatX* dwte, floatX* dwpe, const floatX* dout, const int* inp, int64_t B, int64_t T, int64_t C,
                      int64_t maxT, bool add) {
    for (int64_t i = 0; i < maxT * C && !add; i++) dwpe[i] = 0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < C; c++) {
                dwte[inp[b * T + t] * C + c] += dout[(b * T + t) * C + c];
                dwpe[t * C + c] += dout[(b * T + t) * C + c];
            }
}

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

template <class floatX>
void residual_forward(floatX* out, const floatX* inp1, const floatX* inp2, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++) out[i] = inp1[i] + inp2[i];
}

template <class floatX>
void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* inp1,
                                const floatX* inp2, const floatX* weight, const floatX* bias, int64_t rows, int64_t C) {
    residual_forward(residual, inp1, inp2, rows * C);
    layernorm_forward(out, mean, rstd, residual, weight, bias, rows, C);
}

template <class floatX>
void layernorm_backward(floatX* dinp, floatX* dweight, floatX* dbias, const floatX* dout, const floatX* inp,
                        const floatX* weight, const float* mean, const float* rstd, int64_t rows, int64_t C, bool add) {
    for (int64_t c = 0; c < C && !add; c++) dweight[c] = dbias[c] = 0;
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
            dweight[c] += d[c] * xhat;
            dbias[c] += d[c];
            dinp[r * C + c] += rstd[r] * (g - g_mean - xhat * gx_mean);
        }
    }
}

// (1 + tanh u) / 2 is computed as 1 / (1 + e^(-2u)), in double: where tanh u is near -1 the sum
// would cancel.
inline double gelu_logistic(double x) {
    return 1 / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

template <class floatX>
void gelu_forward(floatX* out, const floatX* inp, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++) out[i] = (float)(inp[i] * gelu_logistic(inp[i]));
}

template <class floatX>
void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++) {
        const double x = inp[i], s = gelu_logistic(x), du = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
        dinp[i] = (float)(dout[i] * (s + x * 2 * s * (1 - s) * du));
    }
}

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

template <class floatX>
void matmul_backward(floatX* dinp, floatX* dweight, floatX* dbias, const floatX* dout, const floatX* inp,
                     const floatX* weight, int64_t rows, int64_t C, int64_t OC, bool add,
                     const floatX* pre_gelu = nullptr) {
    for (int64_t i = 0; i < OC * C && !add; i++) dweight[i] = 0;
    for (int64_t o = 0; o < OC && !add && dbias; o++) dbias[o] = 0;
    for (int64_t i = 0; i < rows * C && dinp; i++) dinp[i] = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < OC; o++) {
            float d = dout[r * OC + o];
            if (dbias) dbias[o] += d;
            for (int64_t c = 0; c < C; c++) {
                if (dinp) dinp[r * C + c] += d * weight[o * C + c];
                dweight[o * C + c] += d * inp[r * C + c];
            }
        }
    if (pre_gelu && dinp) gelu_backward(dinp, dinp, pre_gelu, rows * C);
}

// The score of query t for key t2 of head h, and its probability given the log of the sum over all
// keys.
template <class floatX>
float attention_score(const floatX* qkv, int64_t b, int64_t t, int64_t t2, int64_t h, int64_t T, int64_t C,
                      int64_t HS) {
    const floatX *q = qkv + (b * T + t) * 3 * C + h * HS, *k = qkv + (b * T + t2) * 3 * C + C + h * HS;
    float score = 0;
    for (int64_t i = 0; i < HS; i++) score += q[i] * k[i];
    return score / std::sqrt((float)HS);
}

template <class floatX>
void attention_forward(floatX* out, float* lse, const floatX* qkv, int64_t B, int64_t T, int64_t C, int64_t NH) {
    const int64_t HS = C / NH;
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < NH; h++)
            for (int64_t t = 0; t < T; t++) {
                float highest = -INFINITY, total = 0;
                for (int64_t t2 = 0; t2 <= t; t2++)
                    highest = std::fmax(highest, attention_score(qkv, b, t, t2, h, T, C, HS));
                for (int64_t t2 = 0; t2 <= t; t2++)
                    total += std::exp(attention_score(qkv, b, t, t2, h, T, C, HS) - highest);
                float log_sum = lse[(b * NH + h) * T + t] = highest + std::log(total);
                floatX* o = out + (b * T + t) * C + h * HS;
                for (int64_t i = 0; i < HS; i++) o[i] = 0;
                for (int64_t t2 = 0; t2 <= t; t2++) {
                    float p = std::exp(attention_score(qkv, b, t, t2, h, T, C, HS) - log_sum);
                    const floatX* v = qkv + (b * T + t2) * 3 * C + 2 * C + h * HS;
                    for (int64_t i = 0; i < HS; i++) o[i] += p * v[i];
                }
            }
}

template <class floatX>
void attention_backward(floatX* dqkv, const floatX* dout, const floatX* out, const float* lse, const floatX* qkv,
                        int64_t B, int64_t T, int64_t C, int64_t NH) {
    const int64_t HS = C / NH;
    const float scale = 1.0f / std::sqrt((float)HS);
    for (int64_t i = 0; i < B * T * 3 * C; i++) dqkv[i] = 0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < NH; h++)
            for (int64_t t = 0; t < T; t++) {
                const floatX *d_o = dout + (b * T + t) * C + h * HS, *o = out + (b * T + t) * C + h * HS,
                             *q = qkv + (b * T + t) * 3 * C + h * HS;
                floatX* dq = dqkv + (b * T + t) * 3 * C + h * HS;
                float D = 0;
                for (int64_t i = 0; i < HS; i++) D += d_o[i] * o[i];
                for (int64_t t2 = 0; t2 <= t; t2++) {
                    const floatX *k = qkv + (b * T + t2) * 3 * C + C + h * HS, *v = k + C;
                    floatX *dk = dqkv + (b * T + t2) * 3 * C + C + h * HS, *dv = dk + C;
                    float p = std::exp(attention_score(qkv, b, t, t2, h, T, C, HS) - lse[(b * NH + h) * T + t]), dp = 0;
                    for (int64_t i = 0; i < HS; i++) dp += d_o[i] * v[i];
                    float ds = p * (dp - D) * scale;
                    for (int64_t i = 0; i < HS; i++) {
                        dv[i] += p * d_o[i];
                        dq[i] += ds * k[i];
                        dk[i] += ds * q[i];
                    }
                }
            }
}

template <class floatX>
void attention_decode(floatX* out, floatX* keys, floatX* values, const floatX* qkv, float* scores, int64_t last,
                      int64_t maxT, int64_t C, int64_t NH) {
    const int64_t HS = C / NH;
    for (int64_t c = 0; c < C; c++) keys[last * C + c] = qkv[C + c], values[last * C + c] = qkv[2 * C + c];
    for (int64_t h = 0; h < NH; h++) {
        float *p = scores + h * maxT, highest = -INFINITY, total = 0;
        for (int64_t t = 0; t <= last; t++) {
            p[t] = 0;
            for (int64_t i = h * HS; i < (h + 1) * HS; i++) p[t] += qkv[i] * keys[t * C + i];
            p[t] /= std::sqrt((float)HS);
            highest = std::fmax(highest, p[t]);
        }
        for (int64_t t = 0; t <= last; t++) total += std::exp(p[t] - highest);
        for (int64_t i = h * HS; i < (h + 1) * HS; i++) {
            float mix = 0;
            for (int64_t t = 0; t <= last; t++) mix += std::exp(p[t] - highest) / total * values[t * C + i];
            out[i] = mix;
        }
    }
}

inline int64_t classifier_chunk_rows(int64_t rows) { return rows; }

template <class floatX>
void classifier(float* losses, floatX* dinp, floatX* dwte, floatX* logits, const floatX* inp, const floatX* wte,
                const int* targets, int64_t rows, int64_t C, int64_t V, int64_t Vp, float dloss, bool add,
                float* = nullptr) {
    matmul_forward(logits, inp, wte, (const floatX*)nullptr, rows, C, Vp);
    for (int64_t r = 0; r < rows; r++) {
        floatX* x = logits + r * Vp;
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

template <class floatX>
double global_norm_squared(const floatX* grads, size_t n_elems) {
    double total = 0;
    for (size_t i = 0; i < n_elems; i++) total += (double)grads[i] * (double)grads[i];
    return total;
}

template <class floatX>
void adamw_update(floatX* params, float* master, float* m, float* v, const floatX* grads, size_t n_elems,
                  const AdamW& k, uint64_t = 0, int64_t = 0) {
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
