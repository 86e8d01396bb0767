// What the layers that ship compute, in numbers: for each chapter, small inputs and their results,
// one array per line as JSON. The PyTorch twins of the chapters compute the same (twin.py).
//
//     build/course_numbers layer-norm
#include <sys/wait.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include "dev/course/show.h"
#include "dev/data/bpe_trainer.h"
#include "llmc/gpt2/config.h"
#include "llmc/cpu/optimizer_passes.h"
#include "llmc/optim/update_settings.h"
#include "llmc/cpu/attention.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/factors.h"
#include "llmc/cpu/gelu.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/orthogonalize.h"
#include "llmc/cpu/scratch.h"
#include "llmc/base/file.h"
#include "llmc/optim/average.h"
#include "llmc/optim/noise_scale.h"
#include "llmc/base/random.h"
#include "llmc/optim/schedule.h"

namespace lesson {
#define main lesson_main
#include "dev/course/gpt2.cpp"
#undef main
}  // namespace lesson

static MersenneTwister rng(1);

// An array of its own, filled with normally distributed numbers, which is shown.
static std::vector<float> random_array(const char* name, const Shape& shape, float deviation = 1) {
    int64_t n = 1;
    for (int64_t size : shape) n *= size;
    std::vector<float> values(n);
    normal_fill(rng, values.data(), n, deviation);
    show(name, shape, values);
    return values;
}
static std::vector<float> zeros(int64_t n) { return std::vector<float>(n, 0.0f); }

// Lesson zero: the loss of a small model, the gradient of each parameter, in the order of a model
// file.
static void lesson_zero() {
    const int64_t B = 2, T = 7, V = 50, L = 2, NH = 3, C = 12;
    lesson::Model model(lesson::Config{T + 2, V, L, NH, C, V + 14});
    int64_t number = 0;
    for (lesson::Parameter* p : model.parameters())
        p->value = random_array(("parameter" + std::to_string(number++)).c_str(), {p->rows, p->cols}, 0.5f);
    lesson::Tokens tokens, targets;
    for (int64_t i = 0; i < B * T; i++) tokens.push_back((int)(i * i % V)), targets.push_back((int)(i * 7 % V));
    lesson::Activations act(model.config, B, T);
    lesson::forward(model, act, tokens);
    const float loss = lesson::cross_entropy_forward(act.logits, act.probs, targets, V);
    lesson::backward(model, act, tokens, targets);
    show("L", L), show("NH", NH), show("V", V), show("tokens", {B, T}, tokens), show("targets", {B, T}, targets);
    show("loss", {}, std::vector<float>{loss});
    number = 0;
    for (lesson::Parameter* p : model.parameters())
        show("gradient" + std::to_string(number++), {p->rows, p->cols}, p->grad);
}

static void linear() {
    const int64_t rows = 5, C = 7, OC = 3;
    const auto x = random_array("x", {rows, C}), weight = random_array("weight", {OC, C}),
               bias = random_array("bias", {OC}), dy = random_array("dy", {rows, OC});
    auto y = zeros(rows * OC), dx = zeros(rows * C), dweight = zeros(OC * C), dbias = zeros(OC);
    matmul_forward(y.data(), x.data(), weight.data(), bias.data(), rows, C, OC);
    matmul_backward(dx.data(), dweight.data(), dbias.data(), dy.data(), x.data(), weight.data(), rows, C, OC, false);
    show("y", {rows, OC}, y), show("dx", {rows, C}, dx), show("dweight", {OC, C}, dweight), show("dbias", {OC}, dbias);
}

static void embedding() {
    const int64_t B = 2, T = 4, C = 6, V = 5, maxT = 8;
    const std::vector<int> tokens = {3, 0, 3, 3, 4, 0, 2, 3};  // token 3 occurs four times
    show("tokens", {B, T}, tokens);
    const auto wte = random_array("wte", {V, C}), wpe = random_array("wpe", {maxT, C}),
               dout = random_array("dout", {B, T, C});
    auto out = zeros(B * T * C), dwte = zeros(V * C), dwpe = zeros(maxT * C);
    encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C);
    encoder_backward(dwte.data(), dwpe.data(), dout.data(), tokens.data(), B, T, C, maxT, false);
    show("out", {B, T, C}, out), show("dwte", {V, C}, dwte), show("dwpe", {maxT, C}, dwpe);
}

static void layer_norm() {
    const int64_t rows = 4, C = 6;
    const auto x = random_array("x", {rows, C}), weight = random_array("weight", {C}), bias = random_array("bias", {C}),
               dy = random_array("dy", {rows, C});
    auto y = zeros(rows * C), mean = zeros(rows), rstd = zeros(rows), dx = zeros(rows * C), dweight = zeros(C),
         dbias = zeros(C);
    layernorm_forward(y.data(), mean.data(), rstd.data(), x.data(), weight.data(), bias.data(), rows, C);
    layernorm_backward(dx.data(), dweight.data(), dbias.data(), dy.data(), x.data(), weight.data(), mean.data(),
                       rstd.data(), rows, C, false);
    show("y", {rows, C}, y), show("mean", {rows}, mean), show("rstd", {rows}, rstd);
    show("dx", {rows, C}, dx), show("dweight", {C}, dweight), show("dbias", {C}, dbias);
}

static void attention_within(int64_t window) {
    const int64_t B = 2, T = 9, C = 8, NH = 2;
    const auto qkv = random_array("qkv", {B, T, 3 * C}), dout = random_array("dout", {B, T, C});
    auto out = zeros(B * T * C), lse = zeros(B * NH * T), dqkv = zeros(B * T * 3 * C);
    attention_forward(out.data(), lse.data(), qkv.data(), B, T, C, NH, nullptr, window);
    attention_backward(dqkv.data(), dout.data(), out.data(), lse.data(), qkv.data(), B, T, C, NH, nullptr, window);
    show("out", {B, T, C}, out), show("lse", {B, NH, T}, lse), show("dqkv", {B, T, 3 * C}, dqkv);
}

static void attention() { attention_within(0); }
static void window() { attention_within(4); }

static void weight_average() {
    const int64_t T = 6, n = 5;
    const auto weights = random_array("weights", {T, n});
    auto average = zeros(n);
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < n; i++)
            average[i] = average_of(average[i], weights[t * n + i], average_share(0.6, t + 1));
    show("average", {n}, average);
}

static void gelu_layer() {
    const auto x = random_array("x", {16}, 2), dy = random_array("dy", {16});
    auto y = zeros(16), dx = zeros(16);
    gelu_forward(y.data(), x.data(), 16);
    gelu_backward(dx.data(), dy.data(), x.data(), 16);
    show("y", {16}, y), show("dx", {16}, dx);
}

static void cross_entropy() {
    const int64_t rows = 6, C = 8, V = 11, Vp = 16;
    const auto x = random_array("x", {rows, C});
    const std::vector<int> targets = {1, 10, 4, 4, 0, 7};
    show("targets", {rows}, targets);
    auto wte = random_array("wte", {V, C});
    wte.resize(Vp * C);  // the rows of the padding are zeros
    auto losses = zeros(rows), logits = zeros(rows * Vp), dx = zeros(rows * C), dwte = zeros(Vp * C);
    classifier(losses.data(), dx.data(), dwte.data(), logits.data(), x.data(), wte.data(), targets.data(), rows, C, V,
               Vp, 1.0f / rows, false);
    dwte.resize(V * C);
    show("losses", {rows}, losses), show("dx", {rows, C}, dx), show("dwte", {V, C}, dwte);
}

// The tokens of a sentence in GPT-2's vocabulary, and the first ten that are learned from another.
// Texts are shown as bytes.
static std::vector<int> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
static void tokens() {
    Tokenizer gpt2;
    tokenizer_load(gpt2, "dev/data/gpt2_tokenizer.bin");
    const std::string text = "unbelievable",
                      learned_from = "she sells sea shells by the sea shore and the shells she sells";
    std::vector<int> ids;
    encode(gpt2, text, ids);
    show("text", {(int64_t)text.size()}, bytes_of(text)), show("ids", {(int64_t)ids.size()}, ids);
    show("learned_from", {(int64_t)learned_from.size()}, bytes_of(learned_from));
    WordCounts words;
    for (size_t at = 0; at < learned_from.size();) {
        const size_t end = next_piece(gpt2, learned_from, at);
        words.add(learned_from.substr(at, end - at));
        at = end;
    }
    BpeTrainer trainer(words);
    for (int i = 0; i < 10 && trainer.learn_token(); i++) {
        const std::string& token = trainer.tokens.back();
        show("learned" + std::to_string(i), {(int64_t)token.size()}, bytes_of(token));
    }
}

// Rounding to bf16: to nearest, and the mean of 4096 stochastic roundings.
static void rounding() {
    const auto x = random_array("x", {16});
    std::vector<float> nearest, mean;
    for (float value : x) {
        uint32_t bits;
        memcpy(&bits, &value, 4);
        double total = 0;
        for (uint64_t i = 0; i < 4096; i++) {
            bf16 rounded;
            rounded.bits = stochastic_bits(bits, hash_bits(1, i));
            total += (float)rounded;
        }
        nearest.push_back((float)bf16(value)), mean.push_back((float)(total / 4096));
    }
    show("nearest", {16}, nearest), show("mean", {16}, mean);
}

// Whether a multiplication and an addition of vectors are one instruction, which rounds once.
static bool rounds_once() {
    volatile float a = 1 + 1.0f / 4096, square = a * a;
    vfloat rest = broadcast(-square);
    rest += broadcast(a) * broadcast(a);
    return rest[0] != 0;
}

// A product whose inner dimension, C, takes two blocks, and its operand B, packed into panels. The
// work is that of llmc/trace/work.h.
static void matmul() {
    const int64_t rows = 13, C = GEMM_IN_PLACE.KC + 232, OC = 3 * GEMM_NR + 5;
    const auto x = random_array("x", {rows, C}), weight = random_array("weight", {OC, C});
    auto y = zeros(rows * OC);
    matmul_forward(y.data(), x.data(), weight.data(), (const float*)nullptr, rows, C, OC);
    show("y", {rows, OC}, y);
    const int64_t panels = ceil_div(OC, (int64_t)GEMM_NR);
    auto packed = zeros(panels * C * GEMM_NR);
    pack_panels<GEMM_NR>(packed.data(), MatrixView<float>{weight.data(), 1, C}, 0, C, 0, OC);
    show("panels", {panels, C, GEMM_NR}, packed);
    show("KC", GEMM_IN_PLACE.KC), show("flops", (int64_t)work::matmul(rows, C, OC, false, sizeof(float)).flops);
    show("fused", rounds_once());
}

// Three steps of AdamW after clipping.
static void adamw() {
    const int64_t n = 20;
    auto params = random_array("params", {n});
    const auto grads = random_array("grads", {3, n});
    auto m = zeros(n), v = zeros(n);
    UpdateSettings settings{};
    settings.grad_clip = 1;
    for (int64_t t = 1; t <= 3; t++) {
        const float* g = grads.data() + (t - 1) * n;
        const double norm = std::sqrt((double)global_norm_squared(g, n));
        const UpdateConstants k = update_constants(0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, clipping_scale(norm, settings), t);
        adamw_update(params.data(), nullptr, m.data(), v.data(), g, n, k);
    }
    show("updated", {n}, params);
}

// A matrix after ten updates by an optimizer with its own constants.
struct MatrixUpdates {
    Optimizer optimizer;
    int64_t rows, cols;
    std::vector<float> params;
    int64_t n = rows * cols, least = std::min(rows, cols);
    std::vector<float> m = zeros(n), v = zeros(n), factors = zeros(rows + cols);

    // Adafactor's: renews the factors, and turns the gradients d into directions.
    SquareSums factored(std::vector<float>& d, const UpdateConstants& k) {
        const MatrixPart whole{rows, cols, 0, n, rows};
        auto collected = zeros(rows + cols), tiles = zeros(FACTOR_TILES * cols);
        collect_factors(optimizer, collected.data(), d.data(), factors.data(), whole, k, tiles.data());
        renew_factors(optimizer, factors.data(), collected.data(), 1, rows + cols, whole, k.t);
        return directions_from_factors(optimizer, d.data(), params.data(), nullptr, factors.data(), whole, k);
    }
    UpdateConstants find_directions(std::vector<float>& d, const UpdateConstants& k) {
        const bool by_factors = OPTIMIZERS[optimizer].keeps.factors == KEEP_FACTORED;
        const SquareSums sums =
            by_factors ? factored(d, k)
                       : directions_from_state(optimizer, d.data(), params.data(), nullptr, m.data(), v.data(), n, k);
        auto x = zeros(n), gram = zeros(least * least), polynomial = gram;
        if (optimizer == MUON)
            orthogonalize(d.data(), rows, cols, OrthogonalScratch<float>{x.data(), gram.data(), polynomial.data()});
        return along_directions(k, direction_scale(optimizer, sums, rows, cols, k));
    }
    void update(std::vector<float> grads, float rate, int64_t t) {
        const OptimizerInfo& info = OPTIMIZERS[optimizer];
        UpdateConstants k =
            update_constants(rate, (float)info.beta1, (float)info.beta2, (float)info.eps, 0.1f, 1.0f, t);
        k.matrix = true;
        if (info.whole_tensors) k = find_directions(grads, k);
        optimizer_update(optimizer, params.data(), nullptr, m.data(), v.data(), grads.data(), n, k);
    }
};
static void optimizers() {
    const int64_t rows = 6, cols = 8, steps = 10;
    const auto params = random_array("params", {rows, cols}), grads = random_array("grads", {steps, rows, cols});
    for (const Optimizer optimizer : {ADAMW, MOMENTUM, LION, MUON, ADAFACTOR}) {
        MatrixUpdates matrix{optimizer, rows, cols, params};
        for (int64_t t = 1; t <= steps; t++) {
            const float* g = grads.data() + (t - 1) * rows * cols;
            matrix.update({g, g + rows * cols}, 0.01f, t);
        }
        show(OPTIMIZERS[optimizer].name, {rows, cols}, matrix.params);
    }
}

// The noise scale of a linear model with squared errors: of a step of 64 tokens whose first
// micro-batch has 16, and of one whose micro-batches are single tokens, each the first of a
// process.
static void noise_scale() {
    const int64_t n = 8, tokens = 64, first_tokens = 16;
    const auto x = random_array("x", {tokens, n}), y = random_array("y", {tokens}), w = random_array("w", {n});
    std::vector<double> sum(n), first(n);
    std::vector<FirstGradient> singles;
    const auto squares = [&](const std::vector<double>& of_sum) {  // of a sum of gradients, divided as by a step
        double total = 0;
        for (double g : of_sum) total += g / (double)tokens * (g / (double)tokens);
        return total;
    };
    for (int64_t t = 0; t < tokens; t++) {
        double error = -y[t];
        for (int64_t i = 0; i < n; i++) error += (double)x[t * n + i] * w[i];
        std::vector<double> gradient(n);
        for (int64_t i = 0; i < n; i++) sum[i] += gradient[i] = error * x[t * n + i];
        if (t < first_tokens)
            for (int64_t i = 0; i < n; i++) first[i] += gradient[i];
        singles.push_back({1, squares(gradient)});
    }
    const NoiseEstimate one = noise_estimate({{(double)first_tokens, squares(first)}}, squares(sum), (double)tokens);
    const NoiseEstimate all = noise_estimate(singles, squares(sum), (double)tokens);
    show("estimate", {2}, std::vector<double>{one.noise, one.signal});
    show("estimate_of_singles", {2}, std::vector<double>{all.noise, all.signal});
}

// A run of a few updates: what it holds, and what it reads and writes to go on later.
struct Run {
    static constexpr int64_t n = 20, steps = 6;
    std::vector<float> params, m = zeros(n), v = zeros(n);
    int64_t step = 0;

    // The gradient of a step is chosen as the trainer chooses data: by seed and step alone.
    void update(const std::vector<float>& grads, const std::vector<uint32_t>& order) {
        const UpdateConstants k = update_constants(0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, ++step);
        adamw_update(params.data(), nullptr, m.data(), v.data(), grads.data() + order[step - 1] * n, n, k);
    }
    void write(FileWriter& file) const {
        file.write(&step, sizeof(step));
        for (auto* array : {&params, &m, &v}) file.write(array->data(), n * sizeof(float));
    }
    void read(FileReader& file) {
        file.read(&step, sizeof(step), "the step");
        for (auto* array : {&params, &m, &v}) file.read(array->data(), n * sizeof(float), "the arrays");
    }
};

// A run that is left alone, and one that saves after each step and dies in the middle of saving,
// then goes on from what it finds.
static void resume() {
    char folder[] = "/tmp/course_XXXXXX";
    if (!mkdtemp(folder)) runtime_failure("cannot make a folder in /tmp: %s", strerror(errno));
    const std::string path = folder + std::string("/state.bin");
    const uint64_t seed = 1, epoch = 0;
    Run alone;
    alone.params = random_array("params", {Run::n});
    const auto grads = random_array("grads", {Run::steps, Run::n});
    const auto order = permutation(Run::steps, generator_for(seed, RANDOM_WINDOWS, epoch));
    show("order", {Run::steps}, order);
    const Run begin = alone;
    while (alone.step < Run::steps) alone.update(grads, order);

    const pid_t child = fork();
    if (child == 0) {
        Run run = begin;
        for (;;) {
            run.update(grads, order);
            FileWriter file(path);
            run.write(file);
            if (run.step == 4) _exit(0);  // written, but neither flushed nor renamed
            file.commit();
        }
    }
    waitpid(child, nullptr, 0);
    Run resumed;
    resumed.params = zeros(Run::n);
    FileReader file(path);
    resumed.read(file);
    show("resumed_from", resumed.step);
    while (resumed.step < Run::steps) resumed.update(grads, order);
    show("alone", {Run::n}, alone.params), show("resumed", {Run::n}, resumed.params);
    unlink(path.c_str()), unlink((path + ".tmp").c_str()), rmdir(folder);
}

// An MLP, forward and backward, which the twin divides among processes.
static void mlp() {
    const int64_t rows = 6, C = 8, OC = 4 * C;
    const auto x = random_array("x", {rows, C}), fcw = random_array("fcw", {OC, C}, 0.3f),
               fcb = random_array("fcb", {OC}, 0.1f), fcprojw = random_array("fcprojw", {C, OC}, 0.3f),
               fcprojb = random_array("fcprojb", {C}, 0.1f), dout = random_array("dout", {rows, C});
    auto fch = zeros(rows * OC), gelu = fch, dfch = fch, out = zeros(rows * C), dx = out, dfcw = zeros(OC * C),
         dfcb = zeros(OC), dfcprojw = dfcw, dfcprojb = zeros(C);
    matmul_forward(fch.data(), x.data(), fcw.data(), fcb.data(), rows, C, OC, gelu.data());
    matmul_forward(out.data(), gelu.data(), fcprojw.data(), fcprojb.data(), rows, OC, C);
    matmul_backward(dfch.data(), dfcprojw.data(), dfcprojb.data(), dout.data(), gelu.data(), fcprojw.data(), rows, OC,
                    C, false, fch.data());
    matmul_backward(dx.data(), dfcw.data(), dfcb.data(), dfch.data(), x.data(), fcw.data(), rows, C, OC, false);
    show("out", {rows, C}, out), show("dx", {rows, C}, dx), show("dfcw", {OC, C}, dfcw), show("dfcb", {OC}, dfcb);
    show("dfcprojw", {C, OC}, dfcprojw);
}

static const Part CHAPTERS[] = {{"lesson", lesson_zero},
                                {"linear", linear},
                                {"tokens", tokens},
                                {"rounding", rounding},
                                {"embedding", embedding},
                                {"layer-norm", layer_norm},
                                {"attention", attention},
                                {"window", window},
                                {"average", weight_average},
                                {"gelu", gelu_layer},
                                {"cross-entropy", cross_entropy},
                                {"adamw", adamw},
                                {"optimizers", optimizers},
                                {"matmul", matmul},
                                {"noise-scale", noise_scale},
                                {"resume", resume},
                                {"tensor", mlp}};

int main(int argc, char** argv) {
    device.scratch_elems = std::max(thread_scratch_elems<float>(64, 64), thread_scratch_elems<bf16>(64, 64));
    device.transposed_elems = 1 << 16;
    allocate_scratch();
    return show_part(CHAPTERS, argc, argv);
}
