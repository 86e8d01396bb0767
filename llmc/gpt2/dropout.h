// Dropout: in training a share p of the activations is set to 0, others in every step, and what is
// left is divided by 1 - p, so that the mean stays. No channel can rely on another being there,
// which keeps a model from learning its training text by heart (overfitting).
//
//     out = in keep / (1 - p)      Din = Dout keep / (1 - p)      keep = 1 with probability 1 - p, else 0
//
// It drops of the sum of the embeddings, and of both branches of a layer before they are added to
// the residual stream. GPT-2 was also built to drop of attention's weights; these are not dropped
// here, for flash attention never has them in memory.
//
// No mask is stored. What is dropped follows from a hash of the run's seed, the step, the place in
// the model and the number of the element in the step. So backward pass and recomputation ask again
// and get the same answer, and no answer depends on threads, on processes or on how the step is cut
// into micro-batches: a generator with a state would have to be saved and wound back.
//
// Source: Srivastava et al. 2014, JMLR 15; random numbers of a counter: Salmon et al. 2011,
// doi:10.1145/2063384.2063405.
#pragma once
#include "llmc/base/bf16.h"
#include "llmc/base/random.h"

// Where it drops: of the embeddings, or of a branch of a layer.
enum DropoutPlace { DROP_EMBEDDINGS, DROP_ATTENTION, DROP_MLP, NUM_DROPOUT_PLACES };

// What is dropped of one tensor (rows, C): element i is number first + i of those in the step.
struct DropoutMask {
    uint64_t seed = 0;
    int64_t first = 0;
    uint32_t threshold = 0;  // elements whose 32 random bits are below it are dropped: p of all; 0: none
    float scale = 1;         // what the others are multiplied by, 1 / (1 - p)
};
// What element i is multiplied by.
HOST_DEVICE inline float dropout_factor(const DropoutMask& mask, int64_t i) {
    return hash_bits(mask.seed, mask.first + i) < mask.threshold ? 0.0f : mask.scale;
}

// Dropout in one micro-batch.
struct Dropout {
    double p = 0;           // 0: none
    uint64_t seed = 0;      // of the run
    int64_t step = 0;       // counted from 0
    int64_t first_row = 0;  // the number in the whole step of the micro-batch's first position

    DropoutMask mask(DropoutPlace place, int64_t layer, int64_t C) const {
        if (p == 0) return {};
        MersenneTwister generator = generator_for(seed, RANDOM_DROPOUT, step, layer * NUM_DROPOUT_PLACES + place);
        return {generator.bits64(), first_row * C, (uint32_t)(p * 4294967296.0), (float)(1 / (1 - p))};
    }
};
