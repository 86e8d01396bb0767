// The update of optimizers that look at whole tensors, on the CPU (llmc/optim/whole_tensors.h).
//
//     find_directions()            gradients become directions; returns the scale of every tensor
//         of each bucket:
//         collect_from_bucket()    Adafactor, SM3: what the rows and columns of all processes' slices have
//         renew_bucket()           Adafactor: the new factors; SM3: after the next step, which needs the old ones
//         directions_of_part()     of each tensor in the bucket; m and v; sums of squares
//         then:
//         scales_of_tensors()      from the sums of all processes
//     orthogonalize_directions()   Muon alone
//
// Then the trainer's pass over all parameters moves them along the directions.
#pragma once
#include "llmc/comm/comm.h"
#include "llmc/cpu/directions.h"
#include "llmc/cpu/factors.h"
#include "llmc/cpu/offload.h"
#include "llmc/model/model.h"
#include "llmc/optim/muon.h"

// The functions of directions.h and factors.h, or their references.
template <class floatX>
struct WholeTensorKernels {
    decltype(&::directions_from_state<floatX>) directions_from_state;
    decltype(&::collect_factors) collect_factors;
    decltype(&::directions_from_factors<floatX>) directions_from_factors;
};

// What all processes have collected over rows and columns of a bucket's gradients: into
// model.collected, one after the other, each as long as the bucket's factors.
inline void collect_from_bucket(GPT2& model, int64_t bucket, const UpdateConstants& k,
                                decltype(&::collect_factors) collect_factors) {
    const StateLayout layout = factor_layout(model.optimizer, model.layout);
    if (layout.kept != KEEP_FACTORED) return;
    const int64_t elems = layout.bucket_elems(bucket), begin = layout.bucket_begin(bucket);
    float* const mine = model.collected + comm.shards.rank * elems;
    float* const tiles = model.collected + comm.shards.processes * most_factors(layout);
    for_each_part_of(bucket, model.layout, {comm.shards.processes, comm.shards.rank}, {}, [&](const TensorPart& part) {
        const int64_t at = layout.factors_at(part.tensor, part.layer);
        const float* const grads = (float*)model.grads + model.gradient_places.at(model.layout, part);
        collect_factors(model.optimizer, mine + at - begin, grads, model.factors + at,
                        matrix_part(part, model.layout.config), k, tiles);
    });
    comm_all_gather_start(model.collected, elems, bucket);
    comm_wait("the collection of the factors");
}
// The new factors of a bucket, from what was collected.
inline void renew_bucket(GPT2& model, int64_t bucket, int64_t t) {
    const StateLayout layout = factor_layout(model.optimizer, model.layout);
    if (layout.kept != KEEP_FACTORED) return;
    for_each_part_of(bucket, model.layout, {}, {}, [&](const TensorPart& part) {
        const int64_t at = layout.factors_at(part.tensor, part.layer);
        renew_factors(model.optimizer, model.factors + at, model.collected + at - layout.bucket_begin(bucket),
                      comm.shards.processes, layout.bucket_elems(bucket), matrix_part(part, model.layout.config), t);
    });
}

// Turns the gradients of a part of a tensor into directions.
template <class floatX>
SquareSums directions_of_part(GPT2& model, const TensorPart& part, const UpdateConstants& constants,
                              const WholeTensorKernels<floatX>& kernels) {
    const Optimizer optimizer = model.optimizer;
    const UpdateConstants k = constants_for(part.tensor, constants);
    const auto from = [](void* all, int64_t at) { return all ? (float*)all + at : nullptr; };
    const floatX* const params = (const floatX*)model.params + model.weight_places.at(model.layout, part);
    float* const grads = (float*)model.grads + model.gradient_places.at(model.layout, part);
    float* const master = from(model.master, part.state);
    if (OPTIMIZERS[optimizer].keeps.factors == KEEP_FACTORED) {
        const int64_t at = factor_layout(optimizer, model.layout).factors_at(part.tensor, part.layer);
        const MatrixPart matrix = matrix_part(part, model.layout.config);
        return kernels.directions_from_factors(optimizer, grads, params, master, model.factors + at, matrix, k);
    }
    const PlaceOfV place = place_of_v(optimizer, model.layout, model.slice, part);
    float* const m = from(model.m, part.state);
    float* const v = place.state == STATE_V         ? from(model.v, place.at)
                     : place.state == STATE_FACTORS ? from(model.factors, place.at)
                                                    : nullptr;
    return kernels.directions_from_state(optimizer, grads, params, master, m, v, part.elems(), k);
}

// The scale of every tensor of every layer, by TensorPart::number, from the sums of their parts in
// the slices of all ranks, [rank][tensor].
inline std::vector<float> scales_of_tensors(Optimizer optimizer, const ParameterLayout& layout,
                                            const std::vector<SquareSums>& sums, const UpdateConstants& constants) {
    const GPT2Config& c = layout.config;
    const int64_t tensors = all_tensors(c);
    std::vector<float> scales(tensors);
    for_each_part(layout, {}, {}, [&](const TensorPart& part) {
        SquareSums total{};
        for (int64_t rank = 0; rank < comm.shards.processes; rank++) total.add(sums[rank * tensors + part.number]);
        const int64_t rows = real_rows(part.tensor, c), cols = dimension(TENSORS[part.tensor].cols, c);
        scales[part.number] = direction_scale(optimizer, total, rows, cols, constants_for(part.tensor, constants));
    });
    return scales;
}

// Turns the gradients of all that this process updates into directions. Returns the scale of every
// tensor of every layer, by TensorPart::number.
template <class floatX>
std::vector<float> find_directions(GPT2& model, const UpdateConstants& constants,
                                   const WholeTensorKernels<floatX>& kernels) {
    if (model.gradients_complete) model.gradients_complete();
    const ParameterLayout& layout = model.layout;
    const bool renew_first = !needs_old_factors(model.optimizer);
    const int64_t tensors = all_tensors(layout.config), P = comm.shards.processes;
    const RankRange ranks = updated_ranks(model.slice, P);
    std::vector<SquareSums> sums(P * tensors);  // [rank][tensor]
    for (int64_t b = 0; b < layout.buckets(); b++) {
        const StateInUse state(model, b);
        collect_from_bucket(model, b, constants, kernels.collect_factors);
        if (renew_first) renew_bucket(model, b, constants.t);
        for (int64_t rank = ranks.begin; rank < ranks.end; rank++)
            for_each_part_of(b, layout, {P, rank}, model.slice, [&](const TensorPart& part) {
                sums[rank * tensors + part.number] = directions_of_part(model, part, constants, kernels);
            });
        if (!renew_first) renew_bucket(model, b, constants.t);
    }
    if (model.slice.parts > 1) {
        const std::vector<SquareSums> mine(&sums[comm.shards.rank * tensors],
                                           &sums[comm.shards.rank * tensors] + tensors);
        comm_gather(comm.shards, sums.data(), mine.data(), tensors * (int64_t)sizeof(SquareSums),
                    "the norms of the tensors");
    }
    return scales_of_tensors(model.optimizer, layout, sums, constants);
}

// -------------------------------------------------------------------------------------------------
// Muon (llmc/optim/muon.h)

// What Muon needs of the CPU.
struct MuonOnCpu {
    std::function<void(float* d, int64_t rows, int64_t cols)> orthogonalize;

    void collect(float* data, int64_t slice_elems, int64_t bucket) const {
        comm_all_gather_start(data, slice_elems, bucket);
    }
    void sum(float* data, int64_t slice_elems, int64_t bucket) const {
        comm_reduce_scatter_start(data, slice_elems, bucket);
    }
    void wait() const { comm_wait("the directions of the matrices"); }
    void zero(float* data, int64_t elems) const { std::fill(data, data + elems, 0.0f); }
    void copy(float* to, const float* from, int64_t elems) const { memcpy(to, from, elems * sizeof(float)); }
};

inline void orthogonalize_directions(GPT2& model, const MuonOnCpu& device) {
    orthogonalize_matrices(model, (float*)model.grads, device);
    share_factors(model, device);
}
