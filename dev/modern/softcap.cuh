// A soft cap of the logits on a GPU; formulas: softcap.h. Around softmax_loss() of
// llmc/cuda/classifier.cuh, for each of its chunks:
//
//     softcap_forward      logits are capped in place; a copy stays, for the backward pass
//     softmax_loss         logits become the gradient of what was capped
//     softcap_backward     that becomes the gradient of the logits before
//
// One thread per Pack. Memory-bound: forward moves 3 values per logit (2 without the copy),
// backward 3.
#pragma once
#include "llmc/cuda/common.cuh"

template <class floatX>
__global__ void softcap_forward_kernel(floatX* x, floatX* copy, float cap, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        PackFloats<floatX> y = load_some(x + i, count);
        for (int k = 0; k < Pack<floatX>::size; k++) y[k] = cap * tanhf(y[k] / cap);
        store_some(x + i, y, count);
        if (copy) store_some(copy + i, y, count);
    });
}
template <class floatX>
__global__ void softcap_backward_kernel(floatX* dx, const floatX* out, float cap, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        PackFloats<floatX> d = load_some(dx + i, count);
        const PackFloats<floatX> y = load_some(out + i, count);
        for (int k = 0; k < Pack<floatX>::size; k++) d[k] *= 1.0f - (y[k] / cap) * (y[k] / cap);
        store_some(dx + i, d, count);
    });
}
// x (n_elems) is capped in place; copy (n_elems), which may be null, is written.
template <class floatX>
void softcap_forward(floatX* x, floatX* copy, float cap, size_t n_elems, cudaStream_t stream) {
    launch("softcap_forward", softcap_forward_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream, x,
           copy, cap, n_elems);
}
// dx (n_elems), the gradient of out (n_elems), becomes that of what was capped.
template <class floatX>
void softcap_backward(floatX* dx, const floatX* out, float cap, size_t n_elems, cudaStream_t stream) {
    launch("softcap_backward", softcap_backward_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream,
           dx, out, cap, n_elems);
}
