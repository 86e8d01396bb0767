// A test of test_gpt2.cu: Adafactor and SM3 on matrices of several tiles, with a padded vocabulary.
#pragma once
#include "llmc/cuda/whole_tensors.cuh"

// All tensors of a small model, and the factors of earlier steps.
struct FactoredModel {
    const ParameterLayout layout = parameter_layout({24, 290, 384, 1, 2, 136}, 1);
    const StateLayout state;
    Floats params = random_floatX(layout.total_elems()), grads = random_values(layout.total_elems(), 0.1),
           factors = random_values(state.total_elems(), 0.01);

    explicit FactoredModel(Optimizer o) : state(state_layout(layout, OPTIMIZERS[o], STATE_FACTORS)) {
        const GPT2Config& c = layout.config;
        for (float& x : factors) x = std::fabs(x);
        const int64_t padding = layout.offset(WTE) + c.V * c.C, of_padding = state.factors_at(WTE, 0) + c.V;
        for (Floats* all : {&params, &grads}) std::fill_n(all->begin() + padding, (c.Vp - c.V) * c.C, 0.0f);
        std::fill_n(factors.begin() + of_padding, c.Vp - c.V, 0.0f);
    }
};
// The update of such a model as plain loops.
static void reference_update(Optimizer o, FactoredModel& model, UpdateConstants k) {
    for_each_part(model.layout, {}, {}, [&](const TensorPart& part) {
        const MatrixPart matrix = matrix_part(part, model.layout.config);
        float *p = &model.params[part.index], *d = &model.grads[part.index];
        float* factors = &model.factors[model.state.factors_at(part.tensor, part.layer)];
        Floats collected(matrix.factors()), old(factors, factors + matrix.factors());
        k.weight_decay = TENSORS[part.tensor].decayed ? 0.1f : 0.0f;
        reference::collect_factors(o, collected.data(), d, factors, matrix, k, nullptr);
        reference::renew_factors(o, factors, collected.data(), 1, 0, matrix, k.t);
        const float* current = needs_old_factors(o) ? old.data() : factors;
        const SquareSums sums = reference::directions_from_factors(o, d, p, nullptr, current, matrix, k);
        const float scale = direction_scale(o, sums, matrix.rows, matrix.cols, k);
        reference::optimizer_update(o, p, (float*)nullptr, nullptr, nullptr, d, part.elems(),
                                    along_directions(k, scale));
    });
}

// Whether a weight is the rounding of its master copy, or of a neighbour of that. A compiler may
// compute keep p - along d twice, once for the copy and once for the weight, and fuse another of
// the two products with the difference each time; the middle of two bf16 numbers may lie between
// the results.
static bool rounds_to(float master, float weight) {
    for (float x : {std::nextafter(master, -INFINITY), master, std::nextafter(master, INFINITY)})
        if ((float)(floatX)x == weight) return true;
    return false;
}

static void factored_update(Optimizer o) {
    start_test(format("%s: factors, directions and weights of matrices of several tiles", OPTIMIZERS[o].name));
    FactoredModel model(o);
    UpdateSettings settings = clipping_rule();
    const double norm = std::sqrt(reference::global_norm_squared(model.grads.data(), model.grads.size()));
    settings.grad_clip = norm / 2;  // the squares of gradients are about as large as the factors
    Array d_params(model.params);
    Array32 d_master(model.params), d_grads(model.grads), d_factors(model.factors);
    WholeTensorTables tables = cut_into_pieces(o, model.layout, {});
    DeviceArray<char> memory(tables.bytes());
    tables.memory = memory.data;
    tables.upload(stream);
    StepResults results;
    DeviceResults* device = results.device.data;
    sum_squares(device, results.partials.data, d_grads.data, slice_map(model.layout, {}), 0, stream);
    finish_norm(device, 1, 1, settings, stream);
    const StateStretch all{slice_map(model.layout, {}), {}, nullptr, nullptr, HALF ? d_master.data : nullptr};
    const auto with_state = [&](auto f) { f(all); };
    whole_tensors_update(o, tables, d_params.data, HALF, d_factors.data, d_grads.data, {}, settings.constants, device,
                         7, stream, with_state, with_state, [] {});
    UpdateConstants k = settings.constants;
    k.grad_scale = results.copy().grad_scale;
    EXPECT(std::fabs(k.grad_scale - 0.5) < 1e-6);
    reference_update(o, model, k);
    const Floats after = d_params.values(), exact = HALF ? d_master.values() : after;
    EXPECT(relative_error(d_factors.values(), model.factors) < 1e-6);
    EXPECT(relative_error(exact, model.params) < 1e-6);
    for (size_t i = 0; i < after.size(); i++) EXPECT(rounds_to(exact[i], after[i]));
}
