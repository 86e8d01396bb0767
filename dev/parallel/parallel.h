// What the programs of this folder share: a small GPT-2 of which a process has a part, what its
// layers keep between their passes, its tokens, its update, and what is counted on the way.
//
// The model is that of the trainers, on the kernels of llmc/cpu: the same first weights, the same
// tokens in the same order, so one process has the losses of
//
//     ./train_gpt2_cpu -e L8C32H4T64V257 -b 1 -t 64 -d 512 --shuffle 0 -k constant -l 0.003 --grad-clip 0
//
// The backward pass of a layer is in two halves, which a schedule may pull apart:
//
//     inputs     d(output) to d(input), by way of every d of a matrix product's output, which it keeps
//     weights    from these and from what the forward pass has kept: Dweight += Dout^T inp
//
// What is no matrix product (layer norms, embeddings) is cheap, and done with the inputs. Gradients
// are added up in the order in which the micro-batches come: the bits depend on nothing else.
#pragma once
#include <map>
#include "llmc/base/parse.h"
#include "llmc/base/program.h"
#include "llmc/base/random.h"
#include "llmc/comm/comm_start.h"
#include "llmc/cpu/kernels.h"
#include "llmc/data/tokens_file.h"
#include "llmc/gpt2/tensors.h"

constexpr int64_t B = 1, T = 64, ROWS = B * T;  // of a micro-batch
constexpr float LEARNING_RATE = 3e-3f;
// L8C32H4T64V257: 256 bytes, and the end of a text.
inline GPT2Config small_model(int64_t layers) { return {T, 257, padded_vocab(257), layers, 4, 32}; }

// ---- memory: what a micro-batch keeps from its forward pass on is counted as it is allocated

struct Held {
    int64_t bytes = 0, peak_bytes = 0;
};
inline Held held;
template <class X>
struct CountingAllocator : std::allocator<X> {
    template <class Y>
    struct rebind {
        using other = CountingAllocator<Y>;
    };
    X* allocate(size_t n) {
        held.bytes += (int64_t)(n * sizeof(X)), held.peak_bytes = std::max(held.peak_bytes, held.bytes);
        return std::allocator<X>::allocate(n);
    }
    void deallocate(X* p, size_t n) {
        held.bytes -= (int64_t)(n * sizeof(X));
        std::allocator<X>::deallocate(p, n);
    }
};
using Counted = std::vector<float, CountingAllocator<float>>;
using Floats = std::vector<float>;

// ---- tokens

inline std::vector<int> read_tokens(const std::string& path) {
    FileReader file(path);
    std::vector<uint16_t> tokens(read_tokens_header(file));
    file.read(tokens.data(), 2 * tokens.size(), "the tokens");
    if ((int64_t)tokens.size() <= T) runtime_failure("%s has too few tokens", path);
    return {tokens.begin(), tokens.end()};
}
// The inputs of a micro-batch, of which number n of a run takes the n-th window; its targets begin
// one later.
inline const int* window(const std::vector<int>& tokens, int64_t n) {
    return tokens.data() + n % (((int64_t)tokens.size() - 1) / T) * T;
}

// ---- weights

struct Parameter {
    Floats weight, gradient, m, v;
};
// What a process has of the model. The gradient of wte as an embedding has a place of its own:
// it is added to the classifier's at the end of a step.
struct Part {
    GPT2Config c;
    std::map<std::pair<int, int64_t>, Parameter> parameters;  // by tensor and layer
    Floats dembedding;

    float* weight(int tensor, int64_t layer = 0) { return parameters.at({tensor, layer}).weight.data(); }
    float* gradient(int tensor, int64_t layer = 0) { return parameters.at({tensor, layer}).gradient.data(); }
};
// The first weights, of the tensors for which has(tensor, layer). All are drawn, in the order of
// llmc/model/initial_weights.h, whichever are kept.
template <class Has>
Part first_weights(const GPT2Config& c, uint64_t seed, Has has) {
    Part part{c, {}, Floats(has(WTE, 0) ? c.Vp * c.C : 0)};
    MersenneTwister rng(seed);
    for (int64_t layer = -1; layer < c.L; layer++)
        for (int i = 0; i < NUM_TENSORS; i++) {
            if (TENSORS[i].per_layer != (layer >= 0)) continue;
            const int64_t n = tensor_elems(i, c), drawn = i == WTE ? c.V * c.C : n;
            const InitialValue init = TENSORS[i].init;
            const float std = init == INIT_NORMAL ? 0.02f : (float)(0.02 / std::sqrt(2.0 * c.L));
            Floats values(n, init == INIT_ONE ? 1.0f : 0.0f);
            if (init == INIT_NORMAL || init == INIT_NORMAL_RESIDUAL) normal_fill(rng, values.data(), drawn, std);
            const int64_t l = std::max<int64_t>(layer, 0);
            if (has(i, l)) part.parameters[{i, l}] = {values, Floats(n), Floats(n), Floats(n)};
        }
    return part;
}
// Update t = 1, 2, ... by AdamW, without clipping; afterwards the gradients are 0.
inline void update(Part& part, int64_t t) {
    const UpdateConstants k = update_constants(LEARNING_RATE, 0.9f, 0.95f, 1e-8f, 0, 1, t);
    for (auto& [name, p] : part.parameters) {
        kernels::adamw_update(p.weight.data(), (float*)nullptr, p.m.data(), p.v.data(), p.gradient.data(),
                              p.weight.size(), k);
        std::fill(p.gradient.begin(), p.gradient.end(), 0.0f);
    }
    std::fill(part.dembedding.begin(), part.dembedding.end(), 0.0f);
}
// A checksum of the whole model's weights. Exit 1 if processes that have the same tensor differ.
inline uint64_t checksum_of_weights(Part& part) {
    std::vector<uint64_t> mine(part.c.L * NUM_TENSORS), all(comm.processes * mine.size());
    for (auto& [name, p] : part.parameters) {
        Checksum sum;
        sum.add(p.weight.data(), p.weight.size() * sizeof(float));
        mine[name.second * NUM_TENSORS + name.first] = sum.value();
    }
    comm_gather(all.data(), mine.data(), (int64_t)(mine.size() * sizeof(uint64_t)), "the weights");
    Checksum whole;
    for (size_t i = 0; i < mine.size(); i++) {
        uint64_t one = 0;
        for (int64_t r = 0; r < comm.processes; r++) {
            const uint64_t other = all[r * mine.size() + i];
            if (one && other && one != other)
                runtime_failure("internal: rank %d has another %s", r, TENSORS[i % NUM_TENSORS].name);
            one = one ? one : other;
        }
        whole.add(&one, sizeof(one));
    }
    return whole.value();
}

// ---- a layer

// What a layer keeps of a micro-batch. Between the two halves of the backward pass the gradients of
// its four products' outputs replace what nobody needs any more: qkv, fch, input, residual2.
struct LayerRecord {
    Counted input, ln1, qkv, atty, residual2, ln2, fch, gelu, norms, lse;  // norms: means and deviations
};
// Elements that a layer keeps: of C channels 1, 1, 3, 1, 1, 1, 4 and 4.
inline int64_t layer_record_elems(const GPT2Config& c) { return ROWS * (16 * c.C + 4 + c.NH); }

inline LayerRecord layer_record(const GPT2Config& c, Counted&& input) {
    const int64_t rows = (int64_t)input.size() / c.C;
    const auto wide = [&](int64_t n) { return Counted(rows * n * c.C); };
    return {std::move(input), wide(1), wide(3), wide(1),           wide(1),
            wide(1),          wide(4), wide(4), Counted(rows * 4), Counted(rows * c.NH)};
}
// Attention of a process that has all positions.
struct WholeAttention {
    void forward(const GPT2Config& c, LayerRecord& k) const {
        kernels::attention_forward(k.atty.data(), k.lse.data(), k.qkv.data(), B, T, c.C, c.NH);
    }
    void backward(const GPT2Config& c, float* dqkv, const float* datty, LayerRecord& k) const {
        kernels::attention_backward(dqkv, datty, k.atty.data(), k.lse.data(), k.qkv.data(), B, T, c.C, c.NH);
    }
};
// out (rows, C) = the layer's output, from k.input; the rest of k is written.
template <class Attention = WholeAttention>
void layer_forward(Part& part, int64_t l, LayerRecord& k, float* out, const Attention& attention = {}) {
    const int64_t C = part.c.C, rows = (int64_t)k.input.size() / C;
    const auto w = [&](int tensor) { return part.weight(tensor, l); };
    float* norms = k.norms.data();
    Floats branch(rows * C);
    kernels::layernorm_forward(k.ln1.data(), norms, norms + rows, k.input.data(), w(LN1W), w(LN1B), rows, C);
    kernels::matmul_forward(k.qkv.data(), k.ln1.data(), w(QKVW), w(QKVB), rows, C, 3 * C);
    attention.forward(part.c, k);
    kernels::matmul_forward(branch.data(), k.atty.data(), w(ATTPROJW), w(ATTPROJB), rows, C, C);
    kernels::residual_layernorm_forward(k.residual2.data(), k.ln2.data(), norms + 2 * rows, norms + 3 * rows,
                                        k.input.data(), branch.data(), w(LN2W), w(LN2B), rows, C);
    kernels::matmul_forward(k.fch.data(), k.ln2.data(), w(FCW), w(FCB), rows, C, 4 * C, k.gelu.data());
    kernels::matmul_forward(branch.data(), k.gelu.data(), w(FCPROJW), w(FCPROJB), rows, 4 * C, C);
    kernels::residual_forward(out, k.residual2.data(), branch.data(), rows * C);
}
// d (rows, C): from the gradient of the layer's output to that of its input.
template <class Attention = WholeAttention>
void layer_backward_inputs(Part& part, int64_t l, LayerRecord& k, float* d, const Attention& attention = {}) {
    const int64_t C = part.c.C, rows = (int64_t)k.input.size() / C;
    const auto w = [&](int tensor) { return part.weight(tensor, l); };
    const auto g = [&](int tensor) { return part.gradient(tensor, l); };
    float *const none = nullptr, *norms = k.norms.data();
    Floats branch(rows * C);
    Floats dfcproj(d, d + rows * C), dfch(rows * 4 * C), dqkv(rows * 3 * C);
    kernels::matmul_backward(dfch.data(), none, none, d, k.gelu.data(), w(FCPROJW), rows, 4 * C, C, true, k.fch.data());
    kernels::matmul_backward(branch.data(), none, none, dfch.data(), k.ln2.data(), w(FCW), rows, C, 4 * C, true);
    kernels::layernorm_backward(d, g(LN2W), g(LN2B), branch.data(), k.residual2.data(), w(LN2W), norms + 2 * rows,
                                norms + 3 * rows, rows, C, true);
    const Floats dattproj(d, d + rows * C);
    kernels::matmul_backward(branch.data(), none, none, d, k.atty.data(), w(ATTPROJW), rows, C, C, true);
    attention.backward(part.c, dqkv.data(), branch.data(), k);
    kernels::matmul_backward(branch.data(), none, none, dqkv.data(), k.ln1.data(), w(QKVW), rows, C, 3 * C, true);
    kernels::layernorm_backward(d, g(LN1W), g(LN1B), branch.data(), k.input.data(), w(LN1W), norms, norms + rows, rows,
                                C, true);
    const auto keep = [](Counted& place, const Floats& gradient) { place.assign(gradient.begin(), gradient.end()); };
    keep(k.qkv, dqkv), keep(k.fch, dfch), keep(k.input, dattproj), keep(k.residual2, dfcproj);
}
inline void layer_backward_weights(Part& part, int64_t l, LayerRecord& k) {
    const int64_t C = part.c.C, rows = (int64_t)k.ln1.size() / C;
    const auto product = [&](int weight, int bias, const Counted& dout, const Counted& inp, int64_t in, int64_t out) {
        kernels::matmul_backward((float*)nullptr, part.gradient(weight, l), part.gradient(bias, l), dout.data(),
                                 inp.data(), part.weight(weight, l), rows, in, out, true);
    };
    product(FCPROJW, FCPROJB, k.residual2, k.gelu, 4 * C, C);
    product(FCW, FCB, k.fch, k.ln2, C, 4 * C);
    product(ATTPROJW, ATTPROJB, k.input, k.atty, C, C);
    product(QKVW, QKVB, k.qkv, k.ln1, C, 3 * C);
}
