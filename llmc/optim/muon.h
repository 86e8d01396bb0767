// Muon: momentum for the matrices of the layers, whose directions are orthogonalised (Jordan et al.
// 2024, https://kellerjordan.github.io/posts/muon); AdamW for all else: vectors, and the
// embeddings, of which a step needs only some rows. An update has the steps of whole_tensors.h and
// one more:
//
//     direction       of a matrix     m = beta1 m + (1 - beta1) g
//                                     d = beta1 m + (1 - beta1) g                          (Nesterov's momentum)
//                     of all else     d = AdamW's step without its rate
//     orthogonalise   d of a matrix   d = about U V^T, where d = U S V^T                   (cpu/orthogonalize.h)
//     scale           of a matrix     0.2 sqrt(max(rows, cols)); of all else 1
//     update          p = (1 - rate decay) p - rate scale d
//
// The elements of an orthogonal matrix have a root mean square of 1 / sqrt(max(rows, cols)), so
// that of a step is 0.2 rate. AdamW's steps are about as large, so that one rate and one decay
// serve both (Liu et al. 2025, arXiv:2502.16982, section 2.2).
//
// v is kept of the last bucket, and as factors of the layers' vectors (optimizer_state.h).
//
// Matrix number i is orthogonalised by process i % P alone: the others need not compute it, and all
// get the same bits, though each may multiply in its own way (cuda/blas_choice.cuh). In ZeRO stage
// 1 a process has only its slices of the directions, so the processes collect them first.
// Afterwards every process sets to 0 what it has no result for, and the sum over the processes
// leaves each of them its slices; to add zeros is exact. In stage 0 they collect these.
#pragma once
#include "llmc/gpt2/bucket_places.h"
#include "llmc/gpt2/activations.h"
#include "llmc/comm/comm.h"
#include "llmc/optim/newton_schulz.h"
#include "llmc/optim/whole_tensors.h"
#include "llmc/trace/step_phases.h"

// The number of a layer's matrix among those of all layers.
inline int64_t matrix_number(int tensor, int64_t layer) {
    int64_t before = 0, matrices = 0;
    for (int i = 0; i < NUM_TENSORS; i++) before += is_layer_matrix(i) && i < tensor, matrices += is_layer_matrix(i);
    return layer * matrices + before;
}

// Calls zero(begin, end) for the elements of a layer's bucket for which this process has no result:
// matrices of others, and what lies outside its slice of the vectors.
template <class Zero>
inline void for_each_without_result(const ParameterLayout& layout, const BucketSlice& slice, int64_t layer, Zero zero) {
    const int64_t slice_begin = slice.begin(layout, layer), slice_end = slice.end(layout, layer);
    for (int i = 0; i < NUM_TENSORS; i++) {
        if (!TENSORS[i].per_layer) continue;
        const int64_t begin = layout.offset_in_bucket(i), end = begin + tensor_elems(i, layout.config);
        if (is_layer_matrix(i)) {
            if (matrix_number(i, layer) % slice.parts != slice.part) zero(begin, end);
            continue;
        }
        if (begin < slice_begin) zero(begin, std::min(end, slice_begin));
        if (end > slice_end) zero(std::max(begin, slice_end), end);
    }
}
// As for_each_without_result(), for the factors of all layers' vectors; begin and end count among
// all factors.
template <class Zero>
inline void for_each_factor_without_result(const StateLayout& factors, const BucketSlice& slice, Zero zero) {
    for_each_part(*factors.parameters, slice, slice, [&](const TensorPart& part) {
        const int64_t elems = factor_elems(factors.kept, part.tensor, factors.parameters->config);
        if (elems == 0) return;
        const int64_t begin = factors.factors_at(part.tensor, part.layer);
        if (part.first > 0) zero(begin, begin + std::min(part.first, elems));
        if (part.end < elems) zero(begin + part.end, begin + elems);
    });
}

// Scratch memory for the largest matrix: activations, of which no backward pass has need any more.
template <class floatX, class Model>
OrthogonalScratch<floatX> orthogonal_scratch(Model& model) {
    return {model.template act<floatX>(DWIDE), model.template act<floatX>(BRANCH),
            model.template act<floatX>(DRESIDUAL)};
}

// Orthogonalises the directions of all matrices, which lie as model.gradient_places says from
// `directions` on. Those in model.slice must be there, and are there afterwards. Where all buckets
// have a place all layers are collected, then multiplied, then summed; sharded, as many at a time
// as have places. The other functions are the device's:
//
//     collect(data, slice_elems, bucket)   gets all processes' slices; starts only
//     sum(data, slice_elems, bucket)       the sum over all processes, of this process's slice; starts only
//     wait()                               until what was started is complete
//     zero(data, elems), copy(to, from, elems)
//     orthogonalize(d, rows, cols)
template <class Model, class Device>
void orthogonalize_matrices(Model& model, float* directions, const Device& device) {
    const ParameterLayout& layout = model.layout;
    const BucketPlaces& places = model.gradient_places;
    const BucketSlice own{comm.shards.processes, comm.shards.rank};
    const int64_t L = layout.config.L, at_a_time = places.sharded ? BucketPlaces::LAYERS : L;
    const bool several = own.parts > 1, in_slices = model.slice.parts > 1;
    const auto bucket = [&](int64_t l) { return directions + places.whole(layout, l); };
    const auto own_in_bucket = [&](int64_t l) { return bucket(l) + comm.shards.rank * layout.slice_elems(l); };
    const auto kept = [&](int64_t l) { return directions + places.own(layout, l); };
    for (int64_t first = 0, end; first < L; first = end) {
        end = std::min(L, first + at_a_time);
        const auto collect = [&](bool wanted) {
            model.phases.enter(PHASE_COMMUNICATION);
            for (int64_t l = first; l < end && wanted; l++) device.collect(bucket(l), layout.slice_elems(l), l);
            device.wait();
            model.phases.enter(PHASE_UPDATE);
        };
        for (int64_t l = first; l < end && places.sharded; l++)
            device.copy(own_in_bucket(l), kept(l), layout.slice_elems(l));
        collect(in_slices);
        for (int64_t l = first; l < end; l++) {
            for (int i = 0; i < NUM_TENSORS; i++)
                if (is_layer_matrix(i) && matrix_number(i, l) % own.parts == own.part)
                    device.orthogonalize(bucket(l) + layout.offset_in_bucket(i),
                                         dimension(TENSORS[i].rows, layout.config),
                                         dimension(TENSORS[i].cols, layout.config));
            if (!several) continue;
            for_each_without_result(layout, own, l,
                                    [&](int64_t begin, int64_t end) { device.zero(bucket(l) + begin, end - begin); });
            model.phases.enter(PHASE_COMMUNICATION);
            device.sum(bucket(l), layout.slice_elems(l), l);
            model.phases.enter(PHASE_UPDATE);
        }
        model.phases.enter(PHASE_COMMUNICATION);
        device.wait();
        collect(several && !in_slices);
        for (int64_t l = first; l < end && places.sharded; l++)
            device.copy(kept(l), own_in_bucket(l), layout.slice_elems(l));
    }
}

// In stage 1 each process has the new factors of its slices; afterwards all have all of them.
template <class Model, class Device>
void share_factors(Model& model, const Device& device) {
    const StateLayout factors = factor_layout(model.optimizer, model.layout);
    const int64_t slice_elems = factors.total_elems() / model.slice.parts;
    if (model.slice.parts == 1) return;
    for_each_factor_without_result(
        factors, model.slice, [&](int64_t begin, int64_t end) { device.zero(model.factors + begin, end - begin); });
    model.phases.enter(PHASE_COMMUNICATION);
    device.sum(model.factors, slice_elems, -1);
    device.wait();
    device.collect(model.factors, slice_elems, -1);
    device.wait();
    model.phases.enter(PHASE_UPDATE);
}
