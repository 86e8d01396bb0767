// The first step of optimizers that look at whole tensors (llmc/directions.h).
#pragma once
#include "llmc/comm.h"
#include "llmc/directions.h"
#include "llmc/cpu/adamw.h"

// Turns grads (n_elems), a part of a tensor, into directions by the rule of an optimizer, and
// updates m and v; these and master are as in optimizer_update(). Returns the sums of squares of
// weights and directions: of pieces of fixed size in fp32 lanes, of the pieces in order in fp64, so
// that the number of threads changes no bit.
template <class Rule, class floatX>
DirectionSums directions_by(float* grads, const floatX* params, const float* master, float* m, float* v,
                            int64_t n_elems, const UpdateConstants& constants) {
    const RuleConstants k = rule_constants(constants, true);
    const int64_t grain = 1 << 14;
    std::vector<DirectionSums> pieces(ceil_div(n_elems, grain));
    parallel_ranges(n_elems, grain, [&](int64_t begin, int64_t end) {
        vfloat weights{}, directions{};
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
        pieces[begin / grain] = {(double)sum(weights), (double)sum(directions)};
    });
    DirectionSums total{};
    for (const DirectionSums& piece : pieces) total.add(piece);
    return total;
}

template <class floatX>
DirectionSums directions(Optimizer optimizer, float* grads, const floatX* params, const float* master, float* m,
                         float* v, int64_t n_elems, const UpdateConstants& k) {
    const Range range(work::directions(OPTIMIZERS[optimizer], n_elems, master ? 4 : sizeof(floatX)));
    DirectionSums sums{};
    with_direction(optimizer, [&](auto constant) {
        sums = directions_by<RuleOf<constant.value>>(grads, params, master, m, v, n_elems, k);
    });
    return sums;
}

// Turns the gradients of all that this process updates into directions. Returns the scale of every
// tensor of every layer, by TensorPart::number. `kernel` is the function above or its reference.
template <class Model, class Kernel>
std::vector<float> find_directions(Model& model, const UpdateConstants& constants, Kernel kernel) {
    if (model.gradients_complete) model.gradients_complete();
    const ParameterLayout& layout = model.layout;
    const GPT2Config& c = layout.config;
    const bool own_slice = model.slice.parts > 1;
    const int64_t tensors = all_tensors(c), P = comm.processes, first = own_slice ? comm.rank : 0;
    const auto state = [](float* all, int64_t at) { return all ? all + at : nullptr; };
    std::vector<DirectionSums> sums(P * tensors);
    std::vector<float> scales(tensors);
    for (int64_t rank = first; rank < (own_slice ? first + 1 : P); rank++)
        for_each_part(layout, {P, rank}, model.slice, [&](const TensorPart& part) {
            const PlaceOfV v = place_of_v(model.optimizer, layout, model.slice, part);
            float* const of_state[] = {model.m, model.v, model.factors, model.master, nullptr};
            sums[rank * tensors + part.number] =
                kernel(model.optimizer, (float*)model.grads + part.index, model.params + part.index,
                       state(model.master, part.state), state(model.m, part.state), state(of_state[v.state], v.at),
                       part.elems(), constants_for(part.tensor, constants));
        });
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
