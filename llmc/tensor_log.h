// tensors.csv in the out dir (--log-tensors N): the tensors of the model after every N-th step. A
// header, then one line per step and tensor:
//
//     step      counted from 0, as in metrics.csv: the multiples of N
//     what      weight    after the update; the fp32 master weights where there are some
//               gradient  of the step's mean loss, before clipping
//               update    what AdamW has added to the weight, before stochastic rounding (-w 0); 0 if it was skipped
//               residual  the residual stream of the last micro-step of each process: `encoded`, which layer 0 reads,
//                         and `residual3`, which each layer leaves; with -r 4 of the last layer of each segment
//     tensor    its name in tensors.h or activations.h
//     layer     counted from 0; empty for what is outside the layers
//     elems     its elements, without the padding of the vocabulary
//     norm      the square root of the sum of squares; norm / sqrt(elems) is the root mean square
//     max       the largest absolute value
//     zeros     the share of elements that are zero
//     ratio     of an update: its norm relative to the norm of the weight before it
//
// No copy of the weights is needed for the update. It follows from AdamW's state and the weight p
// after it (cpu/adamw.h), to rounding:
//
//     s = lr mhat / (sqrt(vhat) + eps)      p = keep before - s,   keep = 1 - lr weight_decay
//     before = (p + s) / keep               update = -s - (1 - keep) before
//
// Each process measures its slice of every bucket, in any ZeRO stage; the sums over the slices are
// added in the order of ranks. The values pass through a small buffer on the host. So a step that
// is logged takes longer, by about the time that it takes to copy weights, gradients and AdamW's
// state from a GPU; other steps take no longer.
#pragma once
#include "llmc/run.h"
#include "llmc/update_rule.h"

inline std::string tensor_log_header() { return "step,what,tensor,layer,elems,norm,max,zeros,ratio\n"; }

// Of some values: the sum of squares, the largest magnitude (NaN if any value is), and the zeros.
struct TensorSums {
    double squares = 0, max = 0, zeros = 0;

    void add(double value) {
        const double magnitude = std::fabs(value);
        squares += value * value, zeros += value == 0;
        if (magnitude > max || std::isnan(magnitude)) max = magnitude;
    }
    void add(const TensorSums& other) {
        squares += other.squares, zeros += other.zeros;
        if (other.max > max || std::isnan(other.max)) max = other.max;
    }
    template <class T>
    void add(const T* values, int64_t n) {
        for (int64_t i = 0; i < n; i++) add((double)values[i]);
    }
};

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
    std::string text =
        format("%lld,%s,%s,%s,%.0f,", (long long)step, line.what, line.tensor, layer.c_str(), line.elems);
    text += number(norm) + "," + number(line.sums.max) + "," + number(line.sums.zeros / line.elems) + ",";
    const bool moves = line.before.squares > 0;
    return moves ? text + number(norm / std::sqrt(line.before.squares)) : text;
}

constexpr int64_t TENSOR_LOG_PIECE = 1 << 16;  // values that are on the host at a time

// Calls each(values, first, n) with pieces of n values at `from`, in fp32 on the host.
template <class Model, class T, class Each>
inline void for_each_piece(Model& model, const T* from, int64_t elems, Each each) {
    for (int64_t at = 0; at < elems; at += TENSOR_LOG_PIECE) {
        const int64_t n = std::min(TENSOR_LOG_PIECE, elems - at);
        each(to_host(model, from + at, n), at, n);
    }
}

// Measures elements first to end of a tensor: weight, gradient and update are lines[0] to lines[2].
template <class Model>
inline void measure_tensor(Model& model, int tensor, int64_t layer, int64_t first, int64_t end, const UpdateRule& rule,
                           bool updated, TensorLine* lines) {
    const ParameterLayout& layout = model.layout;
    const int64_t bucket = layout.bucket_of(tensor, layer), in_bucket = layout.offset_in_bucket[tensor] + first;
    const int64_t state = model.slice.state_begin(layout, bucket) + in_bucket - model.slice.begin(layout, bucket);
    const AdamW& k = rule.adamw;
    const double step = k.learning_rate / k.correction1, root = 1 / std::sqrt((double)k.correction2);
    const double decay = TENSORS[tensor].decayed ? (double)k.learning_rate * k.weight_decay : 0.0;
    std::vector<float> p, m;
    const auto measure = [&](const float* weights, int64_t at, int64_t n) {
        p.assign(weights, weights + n);
        lines[0].sums.add(p.data(), n);
        lines[1].sums.add(gradient_data(model, tensor, layer, first + at, n), n);
        const float* values = to_host(model, model.m + state + at, n);
        m.assign(values, values + n);
        const float* v = to_host(model, model.v + state + at, n);
        for (int64_t i = 0; i < n; i++) {
            const double s = updated ? step * m[i] / (std::sqrt((double)v[i]) * root + k.eps) : 0;
            const double before = updated ? (p[i] + s) / (1 - decay) : p[i];
            lines[2].sums.add(updated ? -s - decay * before : 0.0);
            lines[2].before.add(before);
        }
    };
    if (model.master) for_each_piece(model, model.master + state, end - first, measure);
    else for_each_piece(model, model.param(tensor, layer) + first, end - first, measure);
}

// This process's slices of all parameters.
template <class Model>
inline void measure_parameters(Model& model, const UpdateRule& rule, bool updated, std::vector<TensorLine>& lines) {
    const ParameterLayout& layout = model.layout;
    const GPT2Config& c = layout.config;
    const BucketSlice own{comm.processes, comm.rank};
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0; l < tensor_layers(i, c); l++) {
            const int64_t elems = i == WTE ? c.V * c.C : tensor_elems(i, c), bucket = layout.bucket_of(i, l);
            const int64_t begin = layout.offset_in_bucket[i], layer = TENSORS[i].per_layer ? l : -1;
            const int64_t low = std::max(begin, own.begin(layout, bucket)) - begin;
            const int64_t high = std::min(begin + elems, own.end(layout, bucket)) - begin;
            for (const char* what : {"weight", "gradient", "update"})
                lines.push_back({what, TENSORS[i].name, layer, (double)elems});
            if (low < high) measure_tensor(model, i, l, low, high, rule, updated, &lines[lines.size() - 3]);
        }
}

// The residual stream that the last micro-step has left in memory.
template <class Model>
inline void measure_residuals(Model& model, std::vector<TensorLine>& lines) {
    const Sizes& s = model.sizes;
    const int64_t elems = s.rows() * s.config.C, k = s.segment_layers();
    const auto measure = [&](int a, int64_t layer) {
        const int64_t number = a == ENCODED ? -1 : layer;
        lines.push_back({"residual", ACTIVATIONS[a].name, number, (double)(elems * comm.processes)});
        TensorSums& sums = lines.back().sums;
        for_each_piece(model, model.act(a, layer), elems,
                       [&](const float* values, int64_t, int64_t n) { sums.add(values, n); });
    };
    measure(ENCODED, 0);
    for (int64_t l = k - 1; l < s.config.L; l += k) measure(RESIDUAL3, l);
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
// call it.
template <class Model>
inline void log_tensors(Run<Model>& run, const UpdateRule& rule, bool updated) {
    const int64_t every = run.options.log_tensors, step = run.state.step;
    if (every == 0 || step % every != 0) return;
    const Range range("log tensors");
    std::vector<TensorLine> lines;
    measure_parameters(run.model, rule, updated, lines);
    measure_residuals(run.model, lines);
    sum_over_processes(lines);
    std::string text;
    for (const TensorLine& line : lines) text += (text.empty() ? "" : "\n") + tensor_line_text(step, line);
    run.files.tensors.record(text);
}
