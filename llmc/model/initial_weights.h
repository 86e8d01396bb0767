// The weights of a new model: the numbers that PyTorch draws from the same seed (random.h). One
// generator draws them all, first for the tensors outside the layers, then layer by layer.
#pragma once
#include <cmath>
#include "llmc/base/logger.h"
#include "llmc/model/model_state.h"
#include "llmc/base/random.h"

inline void initialize_weights(GPT2& model, uint64_t seed, Progress* progress = nullptr) {
    const GPT2Config& c = model.layout.config;
    MersenneTwister rng(seed);
    std::vector<float> values;
    auto fill = [&](int i, int64_t layer) {
        const int64_t elems = tensor_elems(i, c), drawn = i == WTE ? c.V * c.C : elems;  // the padding of wte is 0
        const InitialValue init = TENSORS[i].init;
        values.assign(elems, init == INIT_ONE ? 1.0f : 0.0f);
        if (init == INIT_NORMAL) normal_fill(rng, values.data(), drawn, 0.02f);
        if (init == INIT_NORMAL_RESIDUAL) normal_fill(rng, values.data(), drawn, (float)(0.02 / std::sqrt(2.0 * c.L)));
        set_tensor(model, i, layer, values.data());
        if (progress) progress->add(drawn);
    };
    for (int i = 0; i < NUM_TENSORS; i++)
        if (!TENSORS[i].per_layer) fill(i, 0);
    for (int64_t l = 0; l < c.L; l++)
        for (int i = 0; i < NUM_TENSORS; i++)
            if (TENSORS[i].per_layer) fill(i, l);
}

// The adapters of a model: A as PyTorch draws the matrix of a linear layer, layer by layer; B is 0,
// so that at first they add nothing.
inline void initialize_adapters(GPT2& model, uint64_t seed) {
    const GPT2Config& c = model.layout.config;
    MersenneTwister rng(seed);
    std::vector<float> values;
    for (int64_t l = 0; l < c.L; l++)
        for (int i = NUM_TENSORS; i < ALL_TENSORS; i++) {
            if (tensor_elems(i, c) == 0) continue;
            values.assign(tensor_elems(i, c), 0.0f);
            const float bound = 1 / std::sqrt((float)dimension(TENSORS[i].cols, c));
            for (float& value : values)
                if (TENSORS[i].init == INIT_UNIFORM) value = bound * (2 * rng.uniform_float() - 1);
            set_tensor(model, i, l, values.data());
        }
}
