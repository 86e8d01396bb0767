// --compress-gradients on the CPU: what the trainer's backward pass calls in place of a
// reduce-scatter, and what its update waits for (compress/compressed_sum.h).
#pragma once
#include "llmc/comm/comm.h"
#include "llmc/compress/compressed_sum.h"
#include "llmc/cpu/gradient_codes.h"
#include "llmc/cpu/offload.h"
#include "llmc/model/model.h"

struct CompressOnCpu {
    const GPT2& model;

    void wait() const { comm_wait("the exchange of compressed gradients"); }
    void encode(char* codes, float* residual, const float* values, int64_t n) const {
        const Range range("compress");
        encode_slice(codes, residual, values, n, model.compressed.kind);
    }
    void add(float* out, const char* codes, int64_t bytes, int64_t n, int64_t slice, int64_t bucket) const {
        const Range range("add compressed");
        const float* const v = frozen_v(model, slice, bucket);
        decode_slices(out, codes, bytes, comm.processes, v, model.compressed.limit, n, model.compressed.kind);
        advise_v(model, v, n, MADV_DONTNEED);
    }
    void decode(float* out, const char* codes, int64_t n, int64_t slice, int64_t bucket) const {
        const float* const v = frozen_v(model, slice, bucket);
        decode_slices(out, codes, 0, 1, v, model.compressed.limit, n, model.compressed.kind);
        advise_v(model, v, n, MADV_DONTNEED);
    }
    void exchange(char* to, const char* from, int64_t bytes, int64_t bucket) const {
        comm_exchange_start(to, from, bytes, bucket);
        advise_v(model, frozen_v(model, comm.rank, bucket), model.layout.slice_elems(bucket), MADV_WILLNEED);
    }
    void gather(char* data, int64_t bytes, int64_t bucket) const {
        comm_all_gather_start(data, bytes, bucket);
        advise_v(model, frozen_v(model, 0, bucket), model.layout.bucket_elems(bucket), MADV_WILLNEED);
    }
};

// Sends a bucket's gradients on their way.
inline void send_compressed(GPT2& model, int64_t bucket) {
    if (comm.processes > 1)
        advance_compressed(model.compressed, model.layout, (float*)model.grads, comm.rank, bucket,
                           CompressOnCpu{model});
}
// Waits until the sums are there: of all slices in ZeRO stage 0, else of this process's own.
inline void receive_compressed(GPT2& model) {
    finish_compressed(model.compressed, model.layout, (float*)model.grads, comm.rank, CompressOnCpu{model});
}
