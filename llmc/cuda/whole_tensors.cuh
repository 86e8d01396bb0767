// The update of optimizers that look at whole tensors, on a GPU (llmc/optim/whole_tensors.h). The
// kernels are in factors.cuh and directions.cuh.
//
//     gradients, complete in what this process updates
//        | collect_factors()   Adafactor, SM3
//        | renew_factors()     Adafactor; SM3 only behind the next step, which needs the old factors
//        | directions          one pass over all parameters of the process
//     directions in the gradients' place; m and v; sums of squares of every piece
//        | tensor_sums
//     sums of squares of every tensor, in the slice of each rank
//        | all-gather          ZeRO stage 1; in stage 0 every process has the sums of all ranks
//        | between()           Muon: orthogonalize_directions()
//        | along               another pass: the scale of the tensor from its sums
//     weights
//
// The host only enqueues this, but in Muon's step it waits for the other processes.
#pragma once
#include "llmc/cuda/directions.cuh"
#include "llmc/cuda/orthogonalize.cuh"
#include "llmc/model/model.h"
#include "llmc/optim/muon.h"

// Cuts memory into arrays, one after the other, each from a multiple of 256 bytes on. Without
// memory it only counts the bytes.
struct ArrayCutter {
    char* memory;
    int64_t bytes = 0;

    template <class T>
    T* next(int64_t elems) {
        const int64_t begin = round_up(bytes, 256);
        bytes = begin + elems * (int64_t)sizeof(T);
        return (T*)((uintptr_t)memory + begin);
    }
};

// The tables of an optimizer, and the device's memory for them and for what the steps leave to each
// other.
struct WholeTensorTables {
    PieceTables tables;
    FactorTables factors;
    char* memory = nullptr;  // bytes()

    struct Arrays {
        Piece* pieces;
        PieceRange* ranges;
        SquareSums* sums;      // [rank][tensor]
        SquareSums* partials;  // of every piece
        FactorArrays factors;
        int64_t bytes;  // of all
    };
    Arrays arrays() const {
        ArrayCutter cutter{memory};
        Arrays a;
        a.pieces = cutter.next<Piece>(tables.pieces.size());
        a.ranges = cutter.next<PieceRange>(tables.ranges.size());
        a.sums = cutter.next<SquareSums>(tables.ranges.size());
        a.partials = cutter.next<SquareSums>(tables.pieces.size());
        a.factors.tensors = cutter.next<FactorTensor>(factors.tensors.size());
        a.factors.tiles = cutter.next<FactorTile>(factors.tiles.size());
        a.factors.row_scales = cutter.next<float>(factors.tensors.size());
        a.factors.tile_results = cutter.next<float>(factors.tile_results);
        a.factors.collected = cutter.next<float>(factors.collected_elems());
        a.bytes = cutter.bytes;
        return a;
    }
    int64_t bytes() const { return arrays().bytes; }

    void upload(cudaStream_t stream) {
        const auto send = [&](void* to, const auto& table) {
            const size_t bytes = table.size() * sizeof(table[0]);
            if (bytes == 0) return;
            check_cuda(cudaMemcpyAsync(to, table.data(), bytes, cudaMemcpyHostToDevice, stream), "copying the pieces");
        };
        const Arrays a = arrays();
        send(a.pieces, tables.pieces), send(a.ranges, tables.ranges);
        send(a.factors.tensors, factors.tensors), send(a.factors.tiles, factors.tiles);
    }
};

// Cuts what a process updates into pieces, and what it collects factors from into tiles.
inline WholeTensorTables cut_into_pieces(Optimizer optimizer, const ParameterLayout& layout, const BucketSlice& slice,
                                         const BucketPlaces& weights = {}, const BucketPlaces& gradients = {}) {
    WholeTensorTables d;
    d.tables = piece_tables(optimizer, layout, slice, weights, gradients);
    d.factors = factor_tables(optimizer, layout, gradients);
    return d;
}

// Turns grads, complete in what this process updates, into directions, and moves the weights along
// them. params is as in update_by(), factors as optimizer_state.h says, or null.
// with_moments(f) calls f(stretch) for stretches of the state, of which f changes m and v, and
// with_master(f) for those of which it changes the master weights. between() enqueues what else is
// done with the directions.
template <class floatX, class WithMoments, class WithMaster, class Between>
void whole_tensors_update(Optimizer optimizer, const WholeTensorTables& d, floatX* params, bool has_master,
                          float* factors, float* grads, const BucketSlice& slice, const UpdateConstants& k,
                          const DeviceResults* results, uint64_t seed, cudaStream_t stream, WithMoments with_moments,
                          WithMaster with_master, Between between) {
    const OptimizerInfo& info = OPTIMIZERS[optimizer];
    const PieceTables& tables = d.tables;
    const WholeTensorTables::Arrays device = d.arrays();
    const dim3 pieces((unsigned)tables.pieces.size()), ranges((unsigned)tables.ranges.size());
    const int tensors = (int)tables.tensors, processes = (int)ranges.x / tensors;
    const auto renew = [&] { renew_factors(optimizer, d.factors, device.factors, factors, k.t, results, stream); };
    collect_factors(optimizer, d.factors, device.factors, factors, grads, results, stream);
    if (!needs_old_factors(optimizer)) renew();
    with_direction(optimizer, [&](auto constant) {
        const int weight_bytes = has_master ? 4 : sizeof(floatX);
        const StreamRange in_stream(work::directions(info, tables.elems, tables.v_elems, weight_bytes), stream);
        with_moments([&](const StateStretch& state) {
            launch("directions", directions_kernel<constant.value, floatX>, pieces, PIECE_THREADS, 0, stream, grads,
                   params, state, factors, device.factors.tensors, device.factors.row_scales, device.pieces,
                   device.partials, k, results);
        });
        launch("tensor_sums", tensor_sums_kernel<SquareSums>, ranges, 256, 0, stream, device.sums, device.partials,
               device.ranges);
    });
    if (needs_old_factors(optimizer)) renew();
    if (slice.parts > 1) {
        gpu_all_gather((double*)device.sums, 2 * tables.tensors, -1, stream);
        gpu_comm_join(stream);
    }
    between();
    with_direction(optimizer, [&](auto constant) {
        const StreamRange in_stream(work::update(info, tables.elems, has_master, sizeof(floatX), 4), stream);
        with_master([&](const StateStretch& state) {
            launch(info.name, along_kernel<constant.value, floatX>, pieces, PIECE_THREADS, 0, stream, params, state,
                   grads, device.pieces, device.sums, processes, tensors, k, results, seed);
        });
    });
}

// -------------------------------------------------------------------------------------------------
// Muon (llmc/optim/muon.h)

// What Muon needs of a GPU.
template <class floatX>
struct MuonOnGpu {
    OrthogonalScratch<floatX> scratch;
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
    void copy(float* to, const float* from, int64_t elems) const {
        check_cuda(cudaMemcpyAsync(to, from, elems * sizeof(float), cudaMemcpyDeviceToDevice, stream),
                   "copying directions");
    }
    void orthogonalize(float* d, int64_t rows, int64_t cols) const {
        ::orthogonalize(d, rows, cols, scratch, partials, stream);
    }
};

template <class floatX>
void orthogonalize_directions(GPT2& model, float* directions, cudaStream_t stream) {
    const MuonOnGpu<floatX> device{orthogonal_scratch<floatX>(model), (double*)model.act32(NORM_PARTIALS), stream};
    orthogonalize_matrices(model, directions, device);
    share_factors(model, device);
}
