// Dropout; formula and sources: llmc/gpt2/dropout.h. One thread per Pack of 128 bits, 256 threads
// per block. It moves 2 values per element, and hashes one number for each.
#pragma once
#include "llmc/cuda/column_sums.cuh"
#include "llmc/gpt2/dropout.h"

template <class floatX>
__global__ void dropout_kernel(floatX* out, const floatX* inp, size_t n_elems, DropoutMask mask) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        PackFloats<floatX> x = load_some(inp + i, count);
        for (int k = 0; k < Pack<floatX>::size; k++) x[k] *= dropout_factor(mask, i + k);
        store_some(out + i, x, count);
    });
}

// out (n_elems) = inp (n_elems), those that the mask drops set to 0, the others scaled; written.
// out may be inp. Returns where the result is: out, or if the mask drops nothing inp, and out is
// not written. If not null, sums are those of the rows of inp: then they have to be computed anew.
template <class floatX>
const floatX* dropout(floatX* out, const floatX* inp, size_t n_elems, const DropoutMask& mask, cudaStream_t stream,
                      ColumnSums* sums = nullptr) {
    if (mask.threshold == 0) return inp;
    if (sums) sums->parts = 0;
    const StreamRange in_stream(work::dropout(n_elems, sizeof(floatX)), stream);
    launch("dropout", dropout_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream, out, inp, n_elems,
           mask);
    return out;
}
