// Muon's step between directions and update, on a GPU (llmc/optim/muon.h).
#pragma once
#include "llmc/optim/muon.h"
#include "llmc/cuda/comm.cuh"
#include "llmc/cuda/orthogonalize.cuh"

struct MuonOnGpu {
    double* partials;
    cudaStream_t stream;

    void collect(float* data, int64_t slice_elems, int64_t bucket) const {
        gpu_all_gather(data, slice_elems, bucket, stream);
    }
    void sum(float* data, int64_t slice_elems, int64_t bucket) const {
        gpu_reduce_scatter(data, slice_elems, bucket, stream);
    }
    // The host waits as well: what follows may be thousands of launches (gpu_comm_wait() says why).
    void wait() const {
        gpu_comm_wait("the directions of the matrices");
        gpu_comm_join(stream);
    }
    void zero(float* data, int64_t elems) const {
        check_cuda(cudaMemsetAsync(data, 0, elems * sizeof(float), stream), "clearing directions");
    }
    template <class floatX>
    void orthogonalize(float* d, int64_t rows, int64_t cols, const OrthogonalScratch<floatX>& scratch) const {
        ::orthogonalize(d, rows, cols, scratch, partials, stream);
    }
};

template <class floatX, class Model>
void orthogonalize_directions(Model& model, float* directions, cudaStream_t stream) {
    const MuonOnGpu device{(double*)model.act32(NORM_PARTIALS), stream};
    orthogonalize_directions<floatX>(model, directions, device);
    share_factors(model, device);
}
