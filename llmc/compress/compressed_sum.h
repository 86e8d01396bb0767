// The sum of compressed gradients over the processes, bucket by bucket, while the backward pass
// computes (gradient_codes.h). Three buckets are under way at once:
//
//     backward      layer 3   | layer 2    | layer 1    | layer 0    |
//     first hop               | codes of 3 | codes of 2 | codes of 1 | ...
//     second hop                           | sums of 3  | sums of 2  | ...     (not in ZeRO stage 1)
//
// so codes need the memory of one bucket for each hop, however many layers there are.
#pragma once
#include "llmc/compress/gradient_codes.h"

// Ends the hops that were started, and starts the next: the sums of the bucket whose codes have
// arrived, and the codes of bucket `next`, whose gradients are complete (-1: none). grads: those of
// all buckets; a bucket is done when it has been through both hops. rank: of this process. Device
// provides
//
//     wait()                                     until what was exchanged or gathered is there
//     encode(codes, residual, values, n)         values + residual; what the codes leave out is the new residual
//     add(out, codes, bytes, n, slice, bucket)   the sum of the values of P slices of codes
//     decode(out, codes, n, slice, bucket)       the values of a slice
//     exchange(to, from, bytes, bucket)          slice r of `from` goes to rank r
//     gather(data, bytes, bucket)                slice `rank` of data goes to all
template <class Device>
void advance_compressed(CompressedGradients& c, const ParameterLayout& layout, float* grads, int64_t rank, int64_t next,
                        Device device) {
    const int64_t P = layout.processes;
    const auto slice = [&](int64_t b, int64_t r) { return layout.bucket_begin[b] + r * layout.slice_elems(b); };
    device.wait();
    if (const int64_t b = c.gathering; b >= 0) {
        const int64_t n = layout.slice_elems(b), bytes = code_bytes(c.kind, n);
        for (int64_t r = 0; r < P; r++) device.decode(grads + slice(b, r), c.sums + r * bytes, n, r, b);
    }
    c.gathering = -1;
    if (const int64_t b = c.exchanging; b >= 0) {
        const int64_t n = layout.slice_elems(b), bytes = code_bytes(c.kind, n);
        float* const sum = grads + slice(b, rank);
        device.add(sum, c.received, bytes, n, rank, b);
        if (c.sum_residual) {
            device.encode(c.sums + rank * bytes, c.sum_residual + layout.bucket_begin[b] / P, sum, n);
            device.gather(c.sums, bytes, b);
            c.gathering = b;
        }
    }
    c.exchanging = next;
    if (next < 0) return;
    const int64_t n = layout.slice_elems(next), bytes = code_bytes(c.kind, n);
    for (int64_t r = 0; r < P; r++)
        device.encode(c.sent + r * bytes, c.residual + slice(next, r), grads + slice(next, r), n);
    device.exchange(c.received, c.sent, bytes, next);
}

// Takes the last buckets through their hops.
template <class Device>
void finish_compressed(CompressedGradients& c, const ParameterLayout& layout, float* grads, int64_t rank,
                       Device device) {
    while (c.exchanging >= 0 || c.gathering >= 0) advance_compressed(c, layout, grads, rank, -1, device);
}
