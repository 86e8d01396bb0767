// Dropout, forward and backward: out = inp keep / (1 - p); what is kept, why and where:
// gpt2/dropout.h. The backward pass is the function itself, of the gradient.
//
// Elementwise. It moves 2 values per element, and hashes one number for each.
#pragma once
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"
#include "llmc/gpt2/dropout.h"

// out (n_elems) = inp (n_elems), those that the mask drops set to 0, the others scaled; written.
// out may be inp. Returns where the result is: out, or if the mask drops nothing inp, and out is
// not written.
template <class floatX>
const floatX* dropout(floatX* out, const floatX* inp, size_t n_elems, const DropoutMask& mask) {
    if (mask.threshold == 0) return inp;
    const Range range(work::dropout(n_elems, sizeof(floatX)));
    parallel_ranges(n_elems, 1 << 14, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t first, size_t count) {
            const int64_t i = begin + first;
            float factors[VEC_FLOATS];
            for (int j = 0; j < VEC_FLOATS; j++) factors[j] = dropout_factor(mask, i + j);
            store_some(out + i, load_some(inp + i, count) * load(factors), count);
        });
    });
    return out;
}
