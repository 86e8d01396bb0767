// --ema: an average of the weights beside them (Polyak & Juditsky 1992, doi:10.1137/0330046).
// After update t = 1, 2, ... the average a of weights w becomes
//
//     a = a + s (w - a),    s = max(1 - decay, 1/t)
//
// So it is the mean of all weights so far until 1/t falls to 1 - decay, and from then on the
// exponential moving average, in which the weights of n updates ago count decay^n: 1/(1 - decay)
// updates are its memory. Begun at the weights that were drawn instead, it would hold a part of
// them for as long.
//
// It is kept in fp32, each rank its slices of the buckets (gpt2/tensors.h), whatever -z is. Where
// it is to be evaluated or written, it takes the place of the weights: fp32 weights and it change
// places, 16-bit ones are rounded from it and, afterwards, again from their fp32 master.
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/base/host_device.h"

enum Averaging {
    BEGIN_AVERAGE,  // it becomes the weights
    ADD_TO_AVERAGE,
    USE_AVERAGE,  // it takes the weights' place
    USE_WEIGHTS   // they take it again
};

// s above.
inline float average_share(double decay, int64_t t) { return (float)std::max(1 - decay, 1 / (double)t); }
HOST_DEVICE inline float average_of(float average, float weight, float share) {
    return average + share * (weight - average);
}
