// Muon's step between directions and update, on the CPU (llmc/optim/muon.h).
#pragma once
#include "llmc/comm/comm.h"
#include "llmc/cpu/orthogonalize.h"
#include "llmc/optim/muon.h"

// `kernel` is orthogonalize() or its reference.
template <class Kernel>
struct MuonOnCpu {
    Kernel orthogonalize;

    void collect(float* data, int64_t slice_elems, int64_t bucket) const {
        comm_all_gather_start(data, slice_elems, bucket);
    }
    void sum(float* data, int64_t slice_elems, int64_t bucket) const {
        comm_reduce_scatter_start(data, slice_elems, bucket);
    }
    void wait() const { comm_wait("the directions of the matrices"); }
    void zero(float* data, int64_t elems) const { std::fill(data, data + elems, 0.0f); }
};

template <class floatX, class Model, class Kernel>
void orthogonalize_directions(Model& model, Kernel kernel) {
    const MuonOnCpu<Kernel> device{kernel};
    orthogonalize_directions<floatX>(model, (float*)model.grads, device);
    share_factors(model, device);
}
