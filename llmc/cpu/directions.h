// The first step of optimizers that look at whole tensors (llmc/optim/directions.h).
#pragma once
#include "llmc/optim/update_work.h"
#include "llmc/comm/comm.h"
#include "llmc/model/model_state.h"
#include "llmc/optim/directions.h"
#include "llmc/cpu/factors.h"

// Turns grads (n_elems), a part of a tensor, into directions by the rule of an optimizer, and
// updates m and v; these and master are as in optimizer_update(). Returns the sums of squares of
// weights and directions.
template <class Rule, class floatX>
DirectionSums directions_by(float* grads, const floatX* params, const float* master, float* m, float* v,
                            int64_t n_elems, const UpdateConstants& constants) {
    const RuleConstants k = rule_constants(constants, true);
    return sum_pieces(n_elems, [&](int64_t begin, int64_t end, vfloat& weights, vfloat& directions) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            i += begin;
            const vfloat g = load_some(grads + i, count) * constants.grad_scale;
            const vfloat p = master ? load_some(master + i, count) : load_some(params + i, count);
            vfloat mi = m ? load_some(m + i, count) : vfloat{}, vi = v ? load_some(v + i, count) : vfloat{};
            const vfloat d = Rule::direction(p, mi, vi, g, k);
            if (m) store_some(m + i, mi, count);
            if (v) store_some(v + i, vi, count);
            store_some(grads + i, d, count);
            weights += p * p, directions += d * d;
        });
    });
}

template <class floatX>
DirectionSums directions(Optimizer optimizer, float* grads, const floatX* params, const float* master, float* m,
                         float* v, int64_t n_elems, const UpdateConstants& k) {
    const Range range(work::directions(OPTIMIZERS[optimizer], n_elems, v ? n_elems : 0, master ? 4 : sizeof(floatX)));
    DirectionSums sums{};
    with_direction(optimizer, [&](auto constant) {
        sums = directions_by<RuleOf<constant.value>>(grads, params, master, m, v, n_elems, k);
    });
    return sums;
}

// The functions of directions.h and factors.h, or their references.
template <class floatX>
struct DirectionKernels {
    decltype(&::directions<floatX>) directions;
    decltype(&::collect_factors) collect_factors;
    decltype(&::factored_directions<floatX>) factored_directions;
};

// Turns the gradients of a part into directions.
template <class floatX, class Kernels>
DirectionSums directions_of_part(GPT2& model, const TensorPart& part, const UpdateConstants& constants,
                                 const Kernels& kernels) {
    const Optimizer optimizer = model.optimizer;
    const auto state = [](float* all, int64_t at) { return all ? all + at : nullptr; };
    const UpdateConstants k = constants_for(part.tensor, constants);
    const floatX* params = (const floatX*)model.params + part.index;
    float *grads = (float*)model.grads + part.index, *master = state(model.master, part.state);
    if (OPTIMIZERS[optimizer].keeps.factors == KEEP_FACTORED) {
        const int64_t at = state_layout(model, STATE_FACTORS).factors_at(part.tensor, part.layer);
        const MatrixPart matrix = matrix_part(part, model.layout.config);
        return kernels.factored_directions(optimizer, grads, params, master, model.factors + at, matrix, k);
    }
    const PlaceOfV v = place_of_v(optimizer, model.layout, model.slice, part);
    float* const of_state[] = {(float*)model.m, (float*)model.v, model.factors, model.master, nullptr};
    return kernels.directions(optimizer, grads, params, master, state((float*)model.m, part.state),
                              state(of_state[v.state], v.at), part.elems(), k);
}

// Turns the gradients of all that this process updates into directions. Returns the scale of every
// tensor of every layer, by TensorPart::number.
template <class floatX, class Kernels>
std::vector<float> find_directions(GPT2& model, const UpdateConstants& constants, const Kernels& kernels) {
    if (model.gradients_complete) model.gradients_complete();
    const ParameterLayout& layout = model.layout;
    const GPT2Config& c = layout.config;
    const bool own_slice = model.slice.parts > 1, by_old_factors = directs_by_old_factors(model.optimizer);
    const int64_t tensors = all_tensors(c), P = comm.processes, first = own_slice ? comm.rank : 0;
    std::vector<DirectionSums> sums(P * tensors);
    std::vector<float> scales(tensors);
    for (int64_t b = 0; b < layout.buckets(); b++) {
        collect_from_bucket(model, b, constants, kernels);
        if (!by_old_factors) renew_bucket(model, b, constants.t);
        for (int64_t rank = first; rank < (own_slice ? first + 1 : P); rank++)
            for_each_part_of(b, layout, {P, rank}, model.slice, [&](const TensorPart& part) {
                sums[rank * tensors + part.number] = directions_of_part<floatX>(model, part, constants, kernels);
            });
        if (by_old_factors) renew_bucket(model, b, constants.t);
    }
    if (own_slice) {
        const std::vector<DirectionSums> mine(&sums[first * tensors], &sums[first * tensors] + tensors);
        comm_gather(sums.data(), mine.data(), tensors * (int64_t)sizeof(DirectionSums), "the norms of the tensors");
    }
    for_each_part(layout, {}, {}, [&](const TensorPart& part) {
        DirectionSums total{};
        for (int64_t rank = 0; rank < P; rank++) total.add(sums[rank * tensors + part.number]);
        scales[part.number] =
            direction_scale(model.optimizer, total, real_rows(part.tensor, c), dimension(TENSORS[part.tensor].cols, c),
                            constants_for(part.tensor, constants));
    });
    return scales;
}
