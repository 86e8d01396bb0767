// --sync-every N: processes train apart, each on its own gradients, and meet every N steps (local
// SGD, Stich 2019, arXiv:1805.09767; post-local SGD, Lin et al. 2020, arXiv:1808.07217). A meeting
// sends what the gradients of one step would, so a step sends 1/N of that.
//
// At a meeting the weights become the mean of all ranks' weights. Or, with --outer-lr a and
// --outer-momentum u (DiLoCo, Douillard et al. 2023, arXiv:2311.08105, algorithm 1), they go on
// from w, those of the last meeting, as if what was moved since were a gradient d, by Nesterov's
// momentum:
//
//     d = w - mean,    n = u n + d,    w = w - a (d + u n)
//
// Each rank does so in its slice of every bucket (gpt2/tensors.h): a reduce-scatter, this step, an
// all-gather. So w and n take 2/P of the weights' memory.
//
// AdamW's m and v stay each rank's own, as in DiLoCo. But a checkpoint has those of one model: it
// begins with a meeting, at which m and v become means, too. A run that goes on from there has the
// same bits as the one that saved it and went on.
#pragma once
#include "llmc/base/host_device.h"

enum Meeting {
    FIRST_MEETING,  // before the first step: w is noted
    MEET_WEIGHTS,
    MEET_STATES
};

// The outer step of one weight; a and u as above.
struct OuterStep {
    float rate = 1, momentum = 0;
    bool is_mean() const { return rate == 1 && momentum == 0; }
    HOST_DEVICE float operator()(float mean, float& w, float& n) const {
        const float d = w - mean;
        n = momentum * n + d;
        w = w - rate * (d + momentum * n);
        return w;
    }
};
