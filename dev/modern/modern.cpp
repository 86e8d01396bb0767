// A model after GPT-2 on the CPU: forward and backward pass, update and main, section by section as
// in train_gpt2_cpu.cpp, to be read beside it.
//
// What seven years changed in the block, each a switch of the config (config.h):
//
//     positions      turned into queries and keys in every layer (rope.h), not added at the bottom
//     norms          divide by the root mean square alone (rmsnorm.h)
//     the MLP        has a gate (swiglu.h), or the square of ReLU
//     attention      has fewer heads of keys and values than of queries, and may norm both
//     biases         there are none
//     the head       may have a matrix of its own, and its logits a soft cap (softcap.h)
//     values         of later layers may be mixed with those of the first (values.h)
//
// All else is GPT-2's: a residual stream of C channels to which each layer adds twice. Kernels,
// token shards, schedules and files' manners are those of llmc; what it needs beside them is in
// model.h (tables, plan), files.h (checkpoints) and run.h (data, the log, and what it includes).
// Weights and activations are fp32 or bf16, gradients and the optimizer's state fp32.
//
//     make build/modern data && build/modern -e L6C192H6K2 -b 4 -t 128 -x 100
#include <numeric>
#include "dev/modern/muon.h"
#include "dev/modern/run.h"

namespace modern {

// Sequences x (B,T) with their targets y; the gradient of the Loss by each position's loss; whether
// gradients of parameters are added to; how many positions one sees, 0 = all before it. In
// generation x is one token, at this position, and those before it are in the cache.
struct Batch {
    const int *x, *y;
    float dloss = 0;
    bool add = false;
    int64_t window = 0, position = 0;
};

// -------------------------------------------------------------------------------------------------
// the parts that a switch chooses

// Which norm of a layer, or the last one: its weight, what it reads and writes, what it keeps.
struct NormPlace {
    Tensor weight;
    Activation out, rstd, mean;
};
constexpr NormPlace FIRST{NORM1W, NORM1, RSTD1, MEAN1}, SECOND{NORM2W, NORM2, RSTD2, MEAN2},
    LAST{NORMFW, NORMF, RSTDF, MEANF};

// out = norm of inp1 + inp2, which is written to `sum`, in one pass over memory; without inp2, of
// inp1.
template <class floatX>
void norm_forward(Model& model, NormPlace at, int64_t l, floatX* sum, const floatX* inp1, const floatX* inp2) {
    const Config& c = model.config;
    const int64_t rows = model.B * model.T;
    const floatX *weight = model.param<floatX>(at.weight, l), *no_bias = model.act<floatX>(ZEROS);
    floatX* out = model.act<floatX>(at.out, l);
    float *rstd = model.act<float>(at.rstd, l), *mean = model.act<float>(at.mean, l);
    if (c.norm == RMS && inp2) kernels::residual_rmsnorm_forward(sum, out, rstd, inp1, inp2, weight, rows, c.C, c.eps);
    else if (c.norm == RMS) kernels::rmsnorm_forward(out, rstd, inp1, weight, rows, c.C, c.eps);
    else if (inp2) kernels::residual_layernorm_forward(sum, out, mean, rstd, inp1, inp2, weight, no_bias, rows, c.C);
    else kernels::layernorm_forward(out, mean, rstd, inp1, weight, no_bias, rows, c.C);
}
// dresidual += what comes back through the norm of inp, from the gradient of its output.
template <class floatX>
void norm_backward(Model& model, NormPlace at, int64_t l, const floatX* dout, const floatX* inp, bool add) {
    const Config& c = model.config;
    const int64_t rows = model.B * model.T;
    const floatX* weight = model.param<floatX>(at.weight, l);
    floatX* dresidual = model.act<floatX>(DRESIDUAL);
    float *dweight = model.grad(at.weight, l), *none = nullptr;
    const float *rstd = model.act<float>(at.rstd, l), *mean = model.act<float>(at.mean, l);
    if (c.norm == RMS) kernels::rmsnorm_backward(dresidual, dweight, dout, inp, weight, rstd, rows, c.C, add);
    else kernels::layernorm_backward(dresidual, dweight, none, dout, inp, weight, mean, rstd, rows, c.C, add);
}

// hidden (rows, F) from the first product's output fc (rows, F or 2F).
template <class floatX>
void activation_forward(const Config& c, floatX* hidden, const floatX* fc, int64_t rows) {
    if (c.mlp == SWIGLU) kernels::swiglu_forward(hidden, fc, rows, c.F);
    else if (c.mlp == RELU2) kernels::relu2_forward(hidden, fc, rows * c.F);
    else kernels::gelu_forward(hidden, fc, rows * c.F);
}
// fc becomes its own gradient.
template <class floatX>
void activation_backward(const Config& c, floatX* fc, const floatX* dhidden, int64_t rows) {
    if (c.mlp == SWIGLU) kernels::swiglu_backward(fc, dhidden, fc, rows, c.F);
    else if (c.mlp == RELU2) kernels::relu2_backward(fc, dhidden, fc, rows * c.F);
    else kernels::gelu_backward(fc, dhidden, fc, rows * c.F);
}

// The first thing in the residual stream: the token's row, and if positions are learned theirs.
template <class floatX>
void embed(Model& model, const Batch& batch) {
    const Config& c = model.config;
    const int* x = batch.x;
    floatX* out = model.act<floatX>(ENCODED);
    const floatX* wte = model.param<floatX>(WTE);
    if (c.positions == LEARNED)
        return kernels::encoder_forward(out, x, wte, model.param<floatX>(WPE), model.B, model.T, c.C, batch.position);
    parallel_ranges(model.B * model.T, 16, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) std::copy_n(wte + x[r] * c.C, c.C, out + r * c.C);
    });
}

// The losses (rows), and with gradients that of NORMF, in BRANCH, and of the head's matrix.
template <class floatX>
void classify(Model& model, float* losses, floatX* dinp, const Batch& batch) {
    const Config& c = model.config;
    const int64_t rows = model.B * model.T;
    const Tensor head = c.tied ? WTE : HEADW;
    floatX *logits = model.act<floatX>(LOGITS), *inp = model.act<floatX>(NORMF);
    const floatX* weight = model.param<floatX>(head);
    float* dhead = model.grads ? model.grad(head) : nullptr;
    if (c.softcap > 0)
        kernels::capped_classifier(losses, dinp, dhead, logits, model.act<floatX>(CAPPED), inp, weight, batch.y, rows,
                                   c.C, c.V, c.Vp, batch.dloss, batch.add, c.softcap);
    else
        kernels::classifier(losses, dinp, dhead, logits, inp, weight, batch.y, rows, c.C, c.V, c.Vp, batch.dloss,
                            batch.add, (float*)nullptr);
}

// -------------------------------------------------------------------------------------------------
// forward

template <class floatX>
floatX* layer_input(const Model& model, int64_t l) {
    return l == 0 ? model.act<floatX>(ENCODED) : model.act<floatX>(RESIDUAL3, l - 1);
}

// Layer l: from norm1, which is there already, to the branch that its MLP adds to the residual
// stream.
template <class floatX>
void layer_forward(Model& model, int64_t l, const Batch& batch) {
    const Range range("layer_forward", l);
    const Config& c = model.config;
    const int64_t B = model.B, T = model.T, rows = B * T, C = c.C, wide = c.NH * c.HS;
    const Heads heads = model.heads();
    const auto param = [&](Tensor i) { return model.param<floatX>(i, l); };
    const auto act = [&](Activation i) { return model.act<floatX>(i, l); };
    const floatX* none = nullptr;
    kernels::matmul_forward(act(QKV), act(NORM1), param(QKVW), none, rows, C, c.qkv_row());
    if (c.qk_norm)
        kernels::qk_norm_forward(act(QKV), act(QK_RAW), model.act<float>(QK_RSTD, l), param(QW), param(KW), rows, heads,
                                 c.eps);
    if (c.positions == ROTARY)
        kernels::rope(act(QKV), model.act<float>(ROPE) + batch.position * c.HS, rows, T, heads, false);
    if (c.value_residual && l > 0)
        kernels::mix_values_forward(act(QKV), act(V_RAW), model.act<floatX>(QKV), param(SHAREW), rows, heads);
    if (batch.position > 0)
        kernels::attention_decode(act(ATTY), model.keys<floatX>(l), model.values<floatX>(l), act(QKV), model.scores(),
                                  batch.position, model.cache_T, wide, c.NH, batch.window, c.NKV);
    else
        kernels::attention_forward(act(ATTY), model.act<float>(LSE, l), act(QKV), B, T, wide, c.NH, nullptr,
                                   batch.window, c.NKV);
    kernels::matmul_forward(act(BRANCH), act(ATTY), param(ATTPROJW), none, rows, wide, C);
    norm_forward(model, SECOND, l, act(RESIDUAL2), layer_input<floatX>(model, l), act(BRANCH));
    kernels::matmul_forward(act(FC), act(NORM2), param(FCW), none, rows, C, c.fc_row());
    activation_forward(c, act(HIDDEN), act(FC), rows);
    kernels::matmul_forward(act(BRANCH), act(HIDDEN), param(FCPROJW), none, rows, c.F, C);
}

// The tokens (B,T) to normf (B,T,C).
template <class floatX>
void forward_to_normf(Model& model, const Batch& batch) {
    const int64_t L = model.config.L;
    const floatX* none = nullptr;
    embed<floatX>(model, batch);
    norm_forward(model, FIRST, 0, model.act<floatX>(ENCODED), model.act<floatX>(ENCODED), none);
    for (int64_t l = 0; l < L; l++) {
        layer_forward<floatX>(model, l, batch);
        // residual3 = residual2 + branch; the norm that reads it is the next layer's first, or the
        // last
        norm_forward(model, l + 1 < L ? FIRST : LAST, l + 1 < L ? l + 1 : 0, model.act<floatX>(RESIDUAL3, l),
                     model.act<floatX>(RESIDUAL2, l), model.act<floatX>(BRANCH));
    }
}

// The loss of every position, and what the backward pass needs of the classifier.
template <class floatX>
void forward(Model& model, const Batch& batch) {
    const Range range("forward");
    float* losses = model.act<float>(LOSSES);
    forward_to_normf<floatX>(model, batch);
    classify(model, losses, model.act<floatX>(BRANCH), batch);
    if (!batch.add) model.loss_sum = 0;
    model.loss_sum += std::accumulate(losses, losses + model.B * model.T, 0.0);
}
// The sum of the losses of x, y (B,T), without gradients.
template <class floatX>
double evaluate(Model& model, const int* x, const int* y) {
    const Range range("evaluate");
    float* losses = model.act<float>(LOSSES);
    forward_to_normf<floatX>(model, {x, y});
    classify<floatX>(model, losses, nullptr, {x, y});
    return std::accumulate(losses, losses + model.B * model.T, 0.0);
}

// -------------------------------------------------------------------------------------------------
// backward

// Layer l, from the gradient of its output to that of its input. The same buffers serve all layers;
// d(x) is the gradient of x:
//
//     line         DRESIDUAL       BRANCH     DWIDE       FC
//     (before)     d(residual3)    free       free        fc         d(branch) = d(residual3)
//     fcproj       d(residual3)    free       d(hidden)   fc
//     activation   d(residual3)    free       free        d(fc)
//     fc           d(residual3)    d(norm2)   free        free
//     norm2        d(residual2)    free       free        free       adds what came through norm2
//     attproj      d(residual2)    d(atty)    free        free
//     attention    d(residual2)    free       d(qkv)      free       of turned, normed queries and keys
//     values,      d(residual2)    free       d(qkv)      free       of those that the product wrote; what the
//     rope, norm                                                     first layer's values get is kept in DFIRST
//     qkv          d(residual2)    d(norm1)   free        free
//     norm1        d(input)        free       free        free       adds what came through norm1
template <class floatX>
void layer_backward(Model& model, int64_t l, const Batch& batch) {
    const Range range("layer_backward", l);
    const Config& c = model.config;
    const int64_t B = model.B, T = model.T, rows = B * T, C = c.C, wide = c.NH * c.HS;
    const bool add = batch.add;
    const Heads heads = model.heads();
    const auto param = [&](Tensor i) { return model.param<floatX>(i, l); };
    const auto grad = [&](Tensor i) { return model.grad(i, l); };
    const auto act = [&](Activation i) { return model.act<floatX>(i, l); };
    floatX *dresidual = act(DRESIDUAL), *dbranch = act(BRANCH), *dwide = act(DWIDE);
    const auto product = [&](Tensor weight, floatX* dinp, const floatX* dout, Activation inp, int64_t in, int64_t out) {
        const floatX* no_gelu = nullptr;
        kernels::matmul_backward(dinp, grad(weight), (float*)nullptr, dout, act(inp), param(weight), rows, in, out, add,
                                 no_gelu);
    };
    product(FCPROJW, dwide, dresidual, HIDDEN, c.F, C);
    activation_backward(c, act(FC), dwide, rows);
    product(FCW, dbranch, act(FC), NORM2, C, c.fc_row());
    norm_backward(model, SECOND, l, dbranch, act(RESIDUAL2), add);
    product(ATTPROJW, dbranch, dresidual, ATTY, wide, C);
    kernels::attention_backward(dwide, dbranch, act(ATTY), model.act<float>(LSE, l), act(QKV), B, T, wide, c.NH,
                                nullptr, batch.window, c.NKV);
    float* const dfirst = model.act<float>(DFIRST);
    if (c.value_residual && l == 0) kernels::add_to_values(dwide, dfirst, rows, heads);
    if (c.value_residual && l > 0)
        kernels::mix_values_backward(dwide, dfirst, grad(SHAREW), act(V_RAW), model.act<floatX>(QKV), param(SHAREW),
                                     rows, heads, add);
    if (c.positions == ROTARY) kernels::rope(dwide, model.act<float>(ROPE), rows, T, heads, true);
    if (c.qk_norm)
        kernels::qk_norm_backward(dwide, grad(QW), grad(KW), act(QK_RAW), model.act<float>(QK_RSTD, l), param(QW),
                                  param(KW), rows, heads, add);
    product(QKVW, dbranch, dwide, NORM1, C, c.qkv_row());
    norm_backward(model, FIRST, l, dbranch, layer_input<floatX>(model, l), add);
}

// The gradients of all parameters, from what forward() has left. Where the head is tied, the
// classifier has written its share of the gradient of wte, and the embedding's is added.
template <class floatX>
void backward(Model& model, const Batch& batch) {
    const Range range("backward");
    const Config& c = model.config;
    const int64_t L = c.L, rows = model.B * model.T;
    memset((void*)model.act<floatX>(DRESIDUAL), 0, rows * c.C * sizeof(floatX));  // norms add to it
    norm_backward(model, LAST, 0, model.act<floatX>(BRANCH), layer_input<floatX>(model, L), batch.add);
    if (c.value_residual) {  // later layers add to DFIRST; the first has no share
        memset(model.act<float>(DFIRST), 0, rows * c.NKV * c.HS * sizeof(float));
        *model.grad(SHAREW) = 0;
    }
    for (int64_t l = L - 1; l >= 0; l--) layer_backward<floatX>(model, l, batch);
    if (!c.tied && !batch.add) memset(model.grad(WTE), 0, c.Vp * c.C * sizeof(float));
    kernels::encoder_backward(model.grad(WTE), c.positions == LEARNED ? model.grad(WPE) : nullptr,
                              model.act<floatX>(DRESIDUAL), batch.x, model.B, model.T, c.C, c.maxT, batch.add);
}

// -------------------------------------------------------------------------------------------------
// update

// The loss of the step, its mean over all tokens, and the norm of its gradient.
inline StepResult loss_and_norm(const Model& model, const UpdateSettings& settings) {
    const double loss = mean_loss(model.loss_sum, settings);
    const double norm = gradient_norm(kernels::global_norm_squared(model.grads, model.weights), settings);
    return {loss, norm, update_wanted(loss, norm, settings)};
}

// AdamW, each tensor of all layers in one call, or Muon for the matrices. Norms' weights do not
// decay.
template <class floatX>
void update(Model& model, const UpdateSettings& settings, const StepResult& result, int64_t seed) {
    const Range range("update");
    UpdateConstants constants = settings.constants;
    constants.grad_scale = gradient_factor(result.norm, settings);  // clips
    for (int i = 0; i < TENSORS; i++) {
        const TensorShape shape = shape_of(i, model.config);
        const int64_t n = shape.elems() * shape.layers, at = model.begin[i];
        UpdateConstants k = constants;
        if (!shape.decayed) k.weight_decay = 0;
        if (n == 0) continue;
        if (model.optimizer == MUON && is_layer_matrix(i, model.config)) {
            for (int64_t l = 0; l < shape.layers; l++) muon_update<floatX>(model, i, l, k, (uint64_t)seed);
            continue;
        }
        kernels::adamw_update(model.param<floatX>(i), model.master ? model.master + at : nullptr, model.m + at,
                              model.v + at, model.grads + at, n, k, (uint64_t)seed, at);
    }
    model.updates++;
}

// -------------------------------------------------------------------------------------------------
// generation

// The logits (V) of what follows n tokens. The cache has the keys and values of `cached` of them:
// of none, and all n go through the model at once, or of all but the last.
template <class floatX>
void logits_after(const Model& model, const int* tokens, int64_t n, int64_t cached, std::vector<float>& logits) {
    const Config& c = model.config;
    const int64_t rows = n - cached;
    const floatX* none = nullptr;
    Model seen = model;  // the same memory, for fewer tokens
    seen.B = 1, seen.T = rows;
    Batch batch{tokens + cached, nullptr};
    batch.position = cached;
    forward_to_normf<floatX>(seen, batch);
    for (int64_t l = 0; l < c.L && cached == 0; l++)
        fill_cache(seen.keys<floatX>(l), seen.values<floatX>(l), seen.act<floatX>(QKV, l), n, model.cache_T,
                   c.NH * c.HS, c.NH, c.NKV);
    floatX* last = seen.act<floatX>(LOGITS);
    kernels::matmul_forward(last, seen.act<floatX>(NORMF) + (rows - 1) * c.C, seen.param<floatX>(c.tied ? WTE : HEADW),
                            none, (int64_t)1, c.C, c.Vp);
    if (c.softcap > 0) kernels::softcap_forward(last, c.softcap, c.Vp);
    logits.assign(last, last + c.V);
}

// -------------------------------------------------------------------------------------------------
// main

// A training run. What is not in this file is in run.h.
template <class floatX>
int train(Run& run) {
    Model& model = run.model;
    if (!begin_run<floatX>(run)) return 0;
    const auto losses_of = [&](const int* x, const int* y) { return evaluate<floatX>(model, x, y); };
    for (;; run.step++) {
        const bool over = run_is_over(run);  // the last step is done, or the minutes are
        validate_when_due(run, over, losses_of);
        save_when_due<floatX>(run, over);
        if (over) return generate(run.settings, model, run.prompt, run.step, logits_after<floatX>), 0;  // -g
        const double begin = now_seconds();
        for (int64_t micro = 0; micro < run.micro_steps; micro++) {
            next_batch(run, micro);
            const Batch batch{run.x.data(), run.y.data(), 1.0f / (float)run.settings.tokens, micro > 0,
                              window_of_step(run)};
            forward<floatX>(model, batch);   // the loss of every position
            backward<floatX>(model, batch);  // adds to the gradients
        }
        const UpdateSettings settings = update_settings(run);  // learning rate, clipping
        const StepResult result = loss_and_norm(model, settings);
        if (result.wanted) update<floatX>(model, settings, result, run.settings.seed);  // AdamW or Muon
        log_step(run, settings, result, now_seconds() - begin);
    }
}

}  // namespace modern

#ifndef MODERN_WITHOUT_MAIN
int main(int argc, char** argv) {
    return run_program([&] {
        const DenormalsAreZero mode;
        modern::Run run;
        modern::read_settings(run.settings, argc, argv);
#ifndef KERNELS_REFERENCE
        if (run.settings.precision == "bf16") return modern::train<bf16>(run);
#endif
        return modern::train<float>(run);
    });
}
#endif
