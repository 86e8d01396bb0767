// The layers of models after GPT-2 in naive loops, as llmc/cpu/reference.h has GPT-2's: the oracle
// of the fast kernels, on the CPU and in CUDA. The formulas are in the header of each layer.
#pragma once
#include "llmc/cpu/reference.h"
#include "llmc/gpt2/heads.h"

// table (T,2,HS/2) is written: cosines, then sines.
inline void rope_table(float* table, int64_t T, int64_t HS, float theta) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < HS / 2; i++) {
            const float frequency = 1.0f / (float)std::pow((double)theta, (double)(2 * i) / (double)HS);
            const float angle = (float)t * frequency;
            table[t * HS + i] = std::cos(angle), table[t * HS + HS / 2 + i] = std::sin(angle);
        }
}

namespace reference {

// ---- RMSNorm and QK norm: rmsnorm.h

// out (rows,C) and rstd (rows) are written, from inp (rows,C), weight (C).
template <class floatX>
void rmsnorm_forward(floatX* out, float* rstd, const floatX* inp, const floatX* weight, int64_t rows, int64_t C,
                     float eps) {
    for (int64_t r = 0; r < rows; r++) {
        const floatX* x = inp + r * C;
        float squares = 0;
        for (int64_t c = 0; c < C; c++) squares += (float)x[c] * (float)x[c];
        rstd[r] = 1.0f / std::sqrt(squares / C + eps);
        for (int64_t c = 0; c < C; c++) out[r * C + c] = x[c] * rstd[r] * weight[c];
    }
}

// residual (rows,C) = inp1 (rows,C) + inp2 (rows,C), then out and rstd from residual; all are
// written.
template <class floatX>
void residual_rmsnorm_forward(floatX* residual, floatX* out, float* rstd, const floatX* inp1, const floatX* inp2,
                              const floatX* weight, int64_t rows, int64_t C, float eps) {
    for (int64_t i = 0; i < rows * C; i++) residual[i] = inp1[i] + inp2[i];
    rmsnorm_forward(out, rstd, residual, weight, rows, C, eps);
}

// dinp (rows,C) is added to (residual stream). dweight (C) is written, or added to if add. dout
// (rows,C); inp, weight and rstd are those of the forward pass.
template <class floatX>
void rmsnorm_backward(floatX* dinp, float* dweight, const floatX* dout, const floatX* inp, const floatX* weight,
                      const float* rstd, int64_t rows, int64_t C, bool add) {
    for (int64_t c = 0; c < C && !add; c++) dweight[c] = 0;
    for (int64_t r = 0; r < rows; r++) {
        const floatX *x = inp + r * C, *d = dout + r * C;
        float gx_mean = 0;
        for (int64_t c = 0; c < C; c++) gx_mean += d[c] * weight[c] * (x[c] * rstd[r]) / C;
        for (int64_t c = 0; c < C; c++) {
            const float xhat = x[c] * rstd[r];
            dweight[c] += d[c] * xhat;
            dinp[r * C + c] += rstd[r] * (d[c] * weight[c] - xhat * gx_mean);
        }
    }
}

// The heads of queries and keys in qkv (rows,row) are normalised in place, with qw (HS) and kw
// (HS). What they were is written to raw (rows,NH+NKV,HS), and rstd (rows,NH+NKV).
template <class floatX>
void qk_norm_forward(floatX* qkv, floatX* raw, float* rstd, const floatX* qw, const floatX* kw, int64_t rows,
                     const Heads& heads, float eps) {
    const int64_t n = heads.NH + heads.NKV, HS = heads.HS;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < n; h++) {
            floatX *x = qkv + r * heads.qkv_row() + h * HS, *kept = raw + (r * n + h) * HS;
            for (int64_t c = 0; c < HS; c++) kept[c] = x[c];
            rmsnorm_forward(x, rstd + r * n + h, kept, h < heads.NH ? qw : kw, 1, HS, eps);
        }
}

// dqkv (rows,row): gradients of normalised queries and keys become those of raw ones. dqw (HS) and
// dkw (HS) are written, or added to if add.
template <class floatX>
void qk_norm_backward(floatX* dqkv, float* dqw, float* dkw, const floatX* raw, const float* rstd, const floatX* qw,
                      const floatX* kw, int64_t rows, const Heads& heads, bool add) {
    const int64_t n = heads.NH + heads.NKV, HS = heads.HS;
    for (int64_t c = 0; c < HS && !add; c++) dqw[c] = dkw[c] = 0;
    std::vector<floatX> dout(HS);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < n; h++) {
            floatX* d = dqkv + r * heads.qkv_row() + h * HS;
            for (int64_t c = 0; c < HS; c++) dout[c] = d[c], d[c] = floatX(0.0f);
            rmsnorm_backward(d, h < heads.NH ? dqw : dkw, dout.data(), raw + (r * n + h) * HS, h < heads.NH ? qw : kw,
                             rstd + r * n + h, 1, HS, true);
        }
}

// ---- rotary positions: rope.h

// The heads of queries and keys in qkv (rows,row), row r of which is position r % T, are turned in
// place, by the angles of the table or, if `back`, by their opposites.
template <class floatX>
void rope(floatX* qkv, const float* table, int64_t rows, int64_t T, const Heads& heads, bool back) {
    const int64_t half = heads.HS / 2;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads.NH + heads.NKV; h++)
            for (int64_t i = 0; i < half; i++) {
                floatX* x = qkv + r * heads.qkv_row() + h * heads.HS + i;
                const float a = x[0], b = x[half], cosine = table[r % T * heads.HS + i];
                const float sine = back ? -table[r % T * heads.HS + half + i] : table[r % T * heads.HS + half + i];
                x[0] = a * cosine - b * sine, x[half] = b * cosine + a * sine;
            }
}

// ---- SwiGLU and ReLU squared: swiglu.h

// out (rows,F) is written from inp (rows,2F), gates first.
template <class floatX>
void swiglu_forward(floatX* out, const floatX* inp, int64_t rows, int64_t F) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < F; i++) {
            const double gate = inp[r * 2 * F + i], up = inp[r * 2 * F + F + i];
            out[r * F + i] = (float)(gate / (1 + std::exp(-gate)) * up);
        }
}
// dinp (rows,2F) is written from dout (rows,F) and inp of the forward pass, which it may be.
template <class floatX>
void swiglu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int64_t rows, int64_t F) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < F; i++) {
            const double gate = inp[r * 2 * F + i], up = inp[r * 2 * F + F + i], s = 1 / (1 + std::exp(-gate));
            const double d = dout[r * F + i];
            dinp[r * 2 * F + i] = (float)(d * up * s * (1 + gate * (1 - s)));
            dinp[r * 2 * F + F + i] = (float)(d * gate * s);
        }
}
// out (n_elems) is written from inp (n_elems); dinp from dout and inp, which it may be.
template <class floatX>
void relu2_forward(floatX* out, const floatX* inp, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++) out[i] = inp[i] < 0.0f ? 0.0f : (float)inp[i] * (float)inp[i];
}
template <class floatX>
void relu2_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++) dinp[i] = inp[i] < 0.0f ? 0.0f : (float)dout[i] * 2.0f * (float)inp[i];
}

// ---- the soft cap: softcap.h

// x (n_elems) is capped in place.
template <class floatX>
void softcap_forward(floatX* x, float cap, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++) x[i] = (float)(cap * std::tanh((double)x[i] / cap));
}
// The classifier of reference.h with capped logits: its gradient is that of the loss of out, times
// what the cap's derivative is there. capped (rows,Vp) is scratch.
template <class floatX, class floatG>
void capped_classifier(float* losses, floatX* dinp, floatG* dhead, floatX* logits, floatX* capped, const floatX* inp,
                       const floatX* head, const int* targets, int64_t rows, int64_t C, int64_t V, int64_t Vp,
                       float dloss, bool add, float cap) {
    matmul_forward(logits, inp, head, (const floatX*)nullptr, rows, C, Vp);
    softcap_forward(logits, cap, rows * Vp);
    for (int64_t i = 0; i < rows * Vp; i++) capped[i] = logits[i];
    for (int64_t r = 0; r < rows; r++) {
        floatX* x = logits + r * Vp;
        double total = 0;
        for (int64_t v = 0; v < V; v++) total += std::exp((double)x[v]);
        const bool counts = targets[r] != IGNORED_TARGET;
        losses[r] = counts ? (float)(std::log(total) - (double)x[targets[r]]) : 0.0f;
        for (int64_t v = 0; v < Vp; v++) {
            const double p = v < V ? std::exp((double)x[v]) / total : 0, slope = (double)capped[r * Vp + v] / cap;
            x[v] = counts ? (float)((p - (v == targets[r])) * dloss * (1 - slope * slope)) : 0.0f;
        }
    }
    if (dinp) matmul_backward(dinp, dhead, (floatG*)nullptr, logits, inp, head, rows, C, Vp, add);
}

// ---- value residuals: values.h

// The heads of values in qkv (rows,row) are mixed in place with those of first, which lie likewise.
// What they were is written to raw (rows,NKV,HS).
template <class floatX>
void mix_values_forward(floatX* qkv, floatX* raw, const floatX* first, const floatX* share, int64_t rows,
                        const Heads& heads) {
    const int64_t row = heads.qkv_row(), n = heads.NKV * heads.HS, at = row - n;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            floatX& v = qkv[r * row + at + i];
            raw[r * n + i] = v;
            v = (float)v + (float)*share * ((float)first[r * row + at + i] - (float)v);
        }
}
// The gradients of mixed values in dqkv (rows,row) become those of the layer's own. dfirst
// (rows,NKV,HS) is added to; dshare (1) is written, or added to if add.
template <class floatX>
void mix_values_backward(floatX* dqkv, float* dfirst, float* dshare, const floatX* raw, const floatX* first,
                         const floatX* share, int64_t rows, const Heads& heads, bool add) {
    const int64_t row = heads.qkv_row(), n = heads.NKV * heads.HS, at = row - n;
    if (!add) *dshare = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            floatX& d = dqkv[r * row + at + i];
            *dshare += (float)d * ((float)first[r * row + at + i] - (float)raw[r * n + i]);
            dfirst[r * n + i] += (float)*share * (float)d;
            d = (1 - (float)*share) * (float)d;
        }
}
// In the first layer dqkv gets what the others have collected in dfirst.
template <class floatX>
void add_to_values(floatX* dqkv, const float* dfirst, int64_t rows, const Heads& heads) {
    const int64_t row = heads.qkv_row(), n = heads.NKV * heads.HS, at = row - n;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) dqkv[r * row + at + i] = (float)dqkv[r * row + at + i] + dfirst[r * n + i];
}

}  // namespace reference
