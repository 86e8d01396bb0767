// A small GPT-2 of which a process has a part: its first weights, its tokens, its update.
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

using Floats = std::vector<float>;

// ---- tokens

inline std::vector<int> read_tokens(const std::string& path) {
    FileReader file(path);
    const std::vector<uint32_t> tokens = read_tokens(file);
    if ((int64_t)tokens.size() <= T) runtime_failure("%s has too few tokens", path);
    return {tokens.begin(), tokens.end()};
}
// The inputs of micro-batch n of a run: the n-th window. Its targets begin one later.
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
// The first weights: of each tensor what keep(tensor, layer, all) returns, {} for none. All are
// drawn, in the order of llmc/model/initial_weights.h, whichever are kept.
template <class Keep>
Part first_weights(const GPT2Config& c, uint64_t seed, Keep keep) {
    Part part{c, {}, {}};
    MersenneTwister rng(seed);
    for (int64_t layer = -1; layer < c.L; layer++)
        for (int i = 0; i < NUM_TENSORS; i++) {
            if (TENSORS[i].per_layer != (layer >= 0)) continue;
            const int64_t n = tensor_elems(i, c), drawn = i == WTE ? c.V * c.C : n, l = std::max<int64_t>(layer, 0);
            const InitialValue init = TENSORS[i].init;
            const float std = init == INIT_NORMAL ? 0.02f : (float)(0.02 / std::sqrt(2.0 * c.L));
            Floats values(n, init == INIT_ONE ? 1.0f : 0.0f);
            if (init == INIT_NORMAL || init == INIT_NORMAL_RESIDUAL) normal_fill(rng, values.data(), drawn, std);
            const Floats mine = keep(i, l, std::move(values)), zeros(mine.size());
            if (!mine.empty()) part.parameters[{i, l}] = {mine, zeros, zeros, zeros};
        }
    if (part.parameters.count({WTE, 0})) part.dembedding.resize(part.parameters[{WTE, 0}].weight.size());
    return part;
}
// Update t = 1, 2, ... by AdamW, without clipping; afterwards the gradients are 0.
inline void update(Part& part, int64_t t, float rate = LEARNING_RATE) {
    const UpdateConstants k = update_constants(rate, 0.9f, 0.95f, 1e-8f, 0, 1, t);
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
