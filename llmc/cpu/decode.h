// Generation, position by position: the model of one position, whose attention reads the keys and
// values of those before it in the cache. The trainer's prefill() fills it from a prompt.
#pragma once
#include "llmc/cpu/linear.h"
#include "llmc/cpu/shard.h"

// Layer l for one position, from its qkv to its residual stream (C), which is updated. The cache
// has the keys and values of the positions before it; those of this one are added to it.
template <class floatX>
void layer_decode(GPT2& model, int64_t l, floatX* residual, const floatX* qkv, int64_t position) {
    const int64_t C = model.layout.config.C, NH = model.layout.config.NH;
    const auto [param, act, act32] = of_layer<floatX>(model, l);
    kernels::attention_decode(act(ATTY), act(KEYS), act(VALUES), qkv, act32(SCORES), position, model.sizes.cache_T, C,
                              NH, model.window(l));
    linear_forward(model, l, ATTPROJW, act(BRANCH), act(ATTY), 1, C, C);
    kernels::residual_layernorm_forward(residual, act(LN2), act32(LN2_MEAN), act32(LN2_RSTD), residual, act(BRANCH),
                                        param(LN2W), param(LN2B), 1, C);
    linear_forward(model, l, FCW, act(FCH), act(LN2), 1, C, 4 * C, act(FCH_GELU));
    linear_forward(model, l, FCPROJW, act(BRANCH), act(FCH_GELU), 1, 4 * C, C);
    kernels::residual_forward(residual, residual, act(BRANCH), C);
}

// The scores of all tokens (V) of what follows a position, from its residual stream (C).
template <class floatX>
const float* logits_of(GPT2& model, const floatX* residual) {
    const GPT2Config& c = model.layout.config;
    const auto [param, act, act32] = of_layer<floatX>(model, c.L - 1);
    fetch_weights<floatX>(model, c.L);
    kernels::layernorm_forward(act(LNF), act32(LNF_MEAN), act32(LNF_RSTD), residual, param(LNFW), param(LNFB), 1, c.C);
    linear_forward(model, 0, WTE, act(LOGITS), act(LNF), 1, c.C, c.Vp);
    return to_host(model, format_of<floatX>(), act(LOGITS), c.V);
}

// The logits (V) of what follows `token` at `position`, as layer_decode().
template <class floatX>
const float* decode(GPT2& model, int token, int64_t position) {
    const int64_t C = model.layout.config.C, L = model.layout.config.L;
    floatX* const residual = model.act<floatX>(ENCODED);
    fetch_weights<floatX>(model, L, 0);
    embed(model, residual, &token, 1, 1, position);
    for (int64_t l = 0; l < L; l++) {
        const auto [param, act, act32] = of_layer<floatX>(model, l);
        fetch_weights<floatX>(model, l, l + 1 < L ? l + 1 : -1);
        kernels::layernorm_forward(act(LN1), act32(LN1_MEAN), act32(LN1_RSTD), residual, param(LN1W), param(LN1B), 1,
                                   C);
        linear_forward(model, l, QKVW, act(QKV), act(LN1), 1, C, 3 * C);
        layer_decode<floatX>(model, l, residual, act(QKV), position);
    }
    return logits_of(model, residual);
}
