// tensors.csv in the out dir (--log-tensors N): the tensors of the model after every N-th step. A
// header, then one line per step and tensor:
//
//     step      counted from 0, as in metrics.csv: the multiples of N
//     what      weight    after the update; the fp32 master weights where there are some
//               gradient  of the step's mean loss, before clipping
//               update    what the optimizer has added to the weight; that of AdamW before stochastic rounding (-w 0);
//                         0 if it was skipped
//               residual  the residual stream of the last micro-step of each process: `encoded`, which layer 0 reads,
//                         and `residual3`, which each layer leaves; with -r 4 of the last layer of each segment; with
//                         --compress-activations 1 what codes stand for, not of the last layer, which has none
//     tensor    its name in tensors.h or activations.h
//     layer     counted from 0; empty for what is outside the layers
//     elems     its elements, without the padding of the vocabulary
//     norm      the square root of the sum of squares; norm / sqrt(elems) is the root mean square
//     max       the largest absolute value
//     zeros     the share of elements that are zero
//     ratio     of an update: its norm relative to the norm of the weight before it
//
// With AdamW, no copy of the weights is needed for the update. It follows from AdamW's state and
// the weight p after it (cpu/adamw.h), to rounding:
//
//     s = lr mhat / (sqrt(vhat) + eps)      p = keep before - s,   keep = 1 - lr weight_decay
//     before = (p + s) / keep               update = -s - (1 - keep) before
//
// With another optimizer, a step that is logged begins with a copy of the weights on the host.
//
// Each process measures its slice of every bucket, in any ZeRO stage; the sums over the slices are
// added in the order of ranks. The values pass through a small buffer on the host. So a step that
// is logged takes longer, by about the time that it takes to copy weights, gradients and AdamW's
// state from a GPU; other steps take no longer.
#pragma once
#include "llmc/model/kept_codes.h"
#include "llmc/run/run.h"
#include "llmc/run/tensor_sums.h"
#include "llmc/gpt2/tensor_parts.h"
#include "llmc/optim/update_settings.h"

inline std::string tensor_log_header() { return "step,what,tensor,layer,elems,norm,max,zeros,ratio\n"; }

// A line of the file. `before`: of an update, the weight before it.
struct TensorLine {
    const char *what, *tensor;
    int64_t layer;  // -1: outside the layers
    double elems;
    TensorSums sums{}, before{};
};

inline std::string tensor_line_text(int64_t step, const TensorLine& line) {
    const auto number = [](double value) { return loss_text("%.9g", value); };
    const std::string layer = line.layer < 0 ? "" : std::to_string(line.layer);
    const double norm = std::sqrt(line.sums.squares);
    std::string text = format("%d,%s,%s,%s,%.0f,", step, line.what, line.tensor, layer, line.elems);
    text += number(norm) + "," + number(line.sums.max) + "," + number(line.sums.zeros / line.elems) + ",";
    const bool moves = line.before.squares > 0;
    return moves ? text + number(norm / std::sqrt(line.before.squares)) : text;
}

constexpr int64_t TENSOR_LOG_PIECE = 1 << 16;  // values that are on the host at a time

// Calls each(values, at, n) with pieces of elems values, which get(at, n) returns, on the host.
template <class Get, class Each>
inline void for_each_piece(int64_t elems, Get get, Each each) {
    for (int64_t at = 0; at < elems; at += TENSOR_LOG_PIECE) {
        const int64_t n = std::min(TENSOR_LOG_PIECE, elems - at);
        each(get(at, n), at, n);
    }
}

// Calls each(values, at, n) with pieces of the weights of a part.
template <class Each>
inline void for_each_weight(GPT2& model, const TensorPart& part, Each each) {
    const auto get = [&](int64_t at, int64_t n) {
        return model.master ? to_host(model, FORMAT_FP32, model.master + part.state + at, n)
                            : tensor_data(model, part.tensor, part.layer, part.first + at, n);
    };
    for_each_piece(part.elems(), get, each);
}

// Whether a step that begins after so many is logged.
inline bool logs_tensors(const Run& run) {
    return run.options.log_tensors > 0 && run.state.step % run.options.log_tensors == 0;
}
// The gradient of the loss, in elements of a part.
inline TensorSums measure_gradient(GPT2& model, const TensorPart& part, double loss_scale) {
    TensorSums sums;
    for (int64_t at = 0; at < part.elems(); at += TENSOR_LOG_PIECE) {
        const int64_t n = std::min(TENSOR_LOG_PIECE, part.elems() - at);
        const float* gradient = summed_gradient_data(model, part, at, n);
        sums.add(gradient, n, 1 / loss_scale);
    }
    return sums;
}
template <class Each>
inline void for_each_own_part(GPT2& model, Each each) {
    for_each_part(model.layout, {comm.shards.processes, comm.shards.rank}, model.slice, each);
}
inline void measure_before_update(Run& run, double loss_scale, BeforeUpdate& before) {
    GPT2& model = run.model;
    if (!logs_tensors(run) || model.optimizer == ADAMW) return;
    before.weights.reserve(model.layout.total_elems() / comm.shards.processes);
    for_each_own_part(model, [&](const TensorPart& part) {
        for_each_weight(model, part, [&](const float* values, int64_t, int64_t n) {
            before.weights.insert(before.weights.end(), values, values + n);
        });
    });
    model.gradients_complete = [&model, &before, loss_scale] {
        for_each_own_part(model, [&](const TensorPart& part) {
            before.gradients.push_back(measure_gradient(model, part, loss_scale));
        });
    };
}

// n updates by AdamW and the weights before them, as above: s = step m / (root sqrt(v) + eps).
HOT_LOOP inline void undo_adamw(double* updates, double* before, const float* p, const float* m, const float* v,
                                int64_t n, double step, double root, double eps, double decay) {
    const double grows = 1 / (1 - decay);
    for (int64_t i = 0; i < n; i++) {
        const double s = step * m[i] / (std::sqrt((double)v[i]) * root + eps);
        before[i] = (p[i] + s) * grows, updates[i] = -s - decay * before[i];
    }
}
// Weight, gradient and update of a part are lines[0] to lines[2].
inline void measure_adamw(GPT2& model, const TensorPart& part, const UpdateSettings& settings, bool updated,
                          TensorLine* lines) {
    const UpdateConstants& k = settings.constants;
    const double step = k.learning_rate / k.correction1, root = 1 / std::sqrt((double)k.correction2);
    const double decay = TENSORS[part.tensor].decayed ? (double)k.learning_rate * k.weight_decay : 0.0;
    std::vector<float> p, m;
    std::vector<double> updates(std::min(TENSOR_LOG_PIECE, part.elems())), before(updates.size());
    const auto measure = [&](const float* weights, int64_t at, int64_t n) {
        if (!updated) {
            lines[2].sums.zeros += (double)n, lines[2].before.add(weights, n);
            return;
        }
        p.assign(weights, weights + n);
        const float* values = to_host(model, FORMAT_FP32, (float*)model.m + part.state + at, n);
        m.assign(values, values + n);
        const float* v = to_host(model, FORMAT_FP32, (float*)model.v + part.state + at, n);
        undo_adamw(updates.data(), before.data(), p.data(), m.data(), v, n, step, root, k.eps, decay);
        lines[2].sums.add(updates.data(), n), lines[2].before.add(before.data(), n);
    };
    for_each_weight(model, part, measure);
}
// The update by any optimizer, lines[2]; before: the weights of the part before it.
inline void measure_change(GPT2& model, const TensorPart& part, const float* before, TensorLine* lines) {
    for_each_weight(model, part, [&](const float* weights, int64_t at, int64_t n) {
        lines[2].sums.add_differences(weights, before + at, n);
        lines[2].before.add(before + at, n);
    });
}
inline void measure_weights(GPT2& model, const TensorPart& part, TensorLine* lines) {
    for_each_weight(model, part, [&](const float* weights, int64_t, int64_t n) { lines[0].sums.add(weights, n); });
}

// This process's slices of all parameters.
inline void measure_parameters(GPT2& model, const UpdateSettings& settings, bool updated, const BeforeUpdate& before,
                               std::vector<TensorLine>& lines) {
    int64_t at = 0;  // in before.weights
    for_each_own_part(model, [&](const TensorPart& part) {
        const TensorInfo& info = TENSORS[part.tensor];
        const GPT2Config& c = model.layout.config;
        const int64_t layer = info.per_layer ? part.layer : -1;
        const double elems = (double)real_rows(part.tensor, c) * (double)dimension(info.cols, c);
        for (const char* what : {"weight", "gradient", "update"}) lines.push_back({what, info.name, layer, elems});
        TensorLine* three = &lines[lines.size() - 3];
        measure_weights(model, part, three);
        three[1].sums = before.gradients.empty() ? measure_gradient(model, part, settings.loss_scale)
                                                 : before.gradients[part.number];
        if (before.weights.empty()) measure_adamw(model, part, settings, updated, three);
        else measure_change(model, part, before.weights.data() + at, three);
        at += part.elems();
    });
}

// The residual stream that the last micro-step has left in memory: with --offload activations a GPU
// has no more of it than its beginning.
inline void measure_residuals(GPT2& model, std::vector<TensorLine>& lines) {
    const Sizes& s = model.sizes;
    const int64_t elems = s.rows() * s.config.C, k = s.segment_layers();
    const auto measure = [&](int a, int64_t layer) {
        const int64_t number = a == ENCODED ? -1 : layer;
        lines.push_back({"residual", ACTIVATIONS[a].name, number, (double)(elems * comm.processes)});
        TensorSums& sums = lines.back().sums;
        for_each_piece(
            elems,
            [&](int64_t at, int64_t n) {
                return is_coded(a, s) ? decoded_data(model, a, layer, at, n) : activation_data(model, a, layer, at, n);
            },
            [&](const float* values, int64_t, int64_t n) { sums.add(values, n); });
    };
    measure(ENCODED, 0);
    const int64_t end = s.compressed_activations ? s.recomputed_layers() : s.config.L;
    for (int64_t l = k - 1; l < end && !s.inputs_on_host; l += k) measure(RESIDUAL3, l);
}

// Adds what all processes have measured.
inline void sum_over_processes(std::vector<TensorLine>& lines) {
    std::vector<TensorSums> mine, all(2 * lines.size() * comm.processes);
    for (const TensorLine& line : lines) mine.push_back(line.sums), mine.push_back(line.before);
    comm_gather(all.data(), mine.data(), (int64_t)(mine.size() * sizeof(TensorSums)), "the norms of the tensors");
    for (size_t i = 0; i < lines.size(); i++) {
        lines[i].sums = lines[i].before = {};
        for (int64_t r = 0; r < comm.processes; r++) {
            lines[i].sums.add(all[r * mine.size() + 2 * i]);
            lines[i].before.add(all[r * mine.size() + 2 * i + 1]);
        }
    }
}

// Records the lines of the step that has just ended, if it is one that is logged. All processes
// call it. before: what measure_before_update() has measured.
inline void log_tensors(Run& run, const UpdateSettings& settings, bool updated, const BeforeUpdate& before) {
    const int64_t step = run.state.step;
    run.model.gradients_complete = nullptr;
    if (!logs_tensors(run)) return;
    const Range range("log tensors");
    std::vector<TensorLine> lines;
    measure_parameters(run.model, settings, updated, before, lines);
    if (comm.replicas.rank > 0)  // its slices are measured by another
        for (TensorLine& line : lines) line.sums = line.before = {};
    measure_residuals(run.model, lines);
    sum_over_processes(lines);
    std::string text;
    for (const TensorLine& line : lines) text += (text.empty() ? "" : "\n") + tensor_line_text(step, line);
    run.files.tensors.record(text);
}
