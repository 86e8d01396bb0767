// The memory that a run needs, row by row. --plan prints the rows; what a run allocates is their
// sum.
#pragma once
#include "llmc/base/text.h"
#include "llmc/gpt2/activations.h"
#include "llmc/comm/comm.h"
#include "llmc/model/teacher.h"

struct PlanRow {
    std::string category, name, shape;
    int64_t bytes;
    std::string lives_in = "";  // of activations: when they are needed (activations.h)
    bool elsewhere = false;     // takes none of this memory, but of a disk, or a GPU's of its host's
};

inline int64_t plan_bytes(const std::vector<PlanRow>& rows) {
    int64_t total = 0;
    for (const PlanRow& row : rows) total += row.elsewhere ? 0 : row.bytes;
    return total;
}

// The rows of all weights, or of all gradients: one if a process keeps all of them, called `name`.
inline void plan_buckets(std::vector<PlanRow>& rows, const char* category, const char* name, const BucketPlaces& places,
                         const ParameterLayout& layout, int64_t elem_bytes) {
    const char* const shape = layout.frozen_elems > 0 ? "of what trains" : "as parameters";
    if (!places.sharded) return rows.push_back({category, name, shape, places.elems(layout) * elem_bytes});
    const std::string share = format("1/%d of %s", layout.processes, category);
    rows.push_back({category, "own slices", share, places.slices_elems(layout) * elem_bytes});
    const char* const whole = places.borrows ? "2 layers" : places.wte_in_pieces ? "2 layers, wpe" : "2 layers, rest";
    rows.push_back({category, "whole buckets", whole, places.places_elems(layout) * elem_bytes});
}

// The rows of the parameters (tensors.h).
inline void plan_tensors(std::vector<PlanRow>& rows, const Sizes& s, const ParameterLayout& layout, bool in_codes) {
    int64_t tensors = 0;
    for (int i = 0; i < ALL_TENSORS; i++) {
        if (in_codes && is_product_matrix(i)) continue;
        const int64_t elems = tensor_elems(i, s.config) * tensor_layers(i, s.config);
        tensors += elems;
        if (elems == 0) continue;
        rows.push_back(
            {"parameters", TENSORS[i].name, TENSORS[i].per_layer ? "L layers" : "one", elems * s.floatX_bytes});
    }
    const int64_t padding = layout.total_elems() + layout.frozen_elems - tensors;
    rows.push_back({"parameters", "padding", "", padding * s.floatX_bytes});
}
// The elements of the largest tensor: weights are read one tensor at a time.
inline int64_t largest_tensor_elems(const GPT2Config& c) {
    int64_t largest = 0;
    for (int i = 0; i < NUM_TENSORS; i++) largest = std::max(largest, tensor_elems(i, c));
    return largest;
}
// Elements of the room for numbers that stand beside codes (--weights): of the largest matrix, on a
// CPU of a strip of one.
inline int64_t decoded_elems(const GPT2& model, const Sizes& s) {
    if (!model.codes) return 0;
    return s.gpu ? largest_tensor_elems(s.config) : model.codes.strip_elems(s.training);
}
// The rows of the weights: by tensor, if this process keeps all of them.
inline void plan_weights(std::vector<PlanRow>& rows, const GPT2& model, const Sizes& s) {
    const WeightCodes& codes = model.codes;
    for (int i = 0; codes && i < NUM_TENSORS; i++)
        if (is_product_matrix(i))
            rows.push_back({"parameters", TENSORS[i].name, WEIGHT_FORMAT_NAMES[codes.format], codes.bytes(i)});
    const int64_t frozen = model.weight_places.sharded ? model.layout.frozen_elems : 0;
    if (!model.weight_places.sharded) plan_tensors(rows, s, model.layout, (bool)codes);
    else plan_buckets(rows, "parameters", "", model.weight_places, model.layout, s.floatX_bytes);
    if (frozen > 0) rows.push_back({"parameters", "frozen", "in each process", frozen * s.floatX_bytes});
    if (codes) rows.push_back({"scratch", "decoded", "of a matrix", decoded_elems(model, s) * s.floatX_bytes});
}
// The state of the optimizer that this process keeps: in memory, or `elsewhere`.
inline void plan_optimizer(std::vector<PlanRow>& rows, const OptimizerInfo& optimizer, const ParameterLayout& layout,
                           const BucketSlice& slice, bool master, const char* elsewhere = nullptr) {
    for (OptimizerState state : states_of(optimizer, master)) {
        const StateLayout of_state = state_layout(layout, optimizer, state);
        const char* whole[] = {"", "as parameters", "outside layers", "as vectors", "rows, columns", "bf16", "8 bits"};
        const char* sliced[] = {"", " of parameters", " of those outside", "", "", ", bf16", ", 8 bits"};
        std::string shape = whole[of_state.kept];
        if (of_state.kept == KEEP_ALL && layout.frozen_elems > 0) shape = "of what trains";
        if (slice.parts > 1 && !of_state.replicated()) shape = format("1/%d%s", slice.parts, sliced[of_state.kept]);
        const char* name = state == STATE_MASTER ? "master weights" : STATE_NAMES[state];
        const bool offloaded = elsewhere && state != STATE_FACTORS;
        rows.push_back({offloaded ? "offloaded" : "optimizer", name, shape, of_state.held_bytes(slice),
                        offloaded ? elsewhere : "", offloaded});
    }
}
// What compressed gradients need: what waits of them, and the codes of a bucket on their way; and
// processes that train apart; and the average of the weights.
inline void plan_messages(std::vector<PlanRow>& rows, const GPT2& model) {
    const CompressedGradients& c = model.compressed;
    const std::string slices = format("1/%d of parameters", model.layout.processes);
    if (const int64_t bytes = outer_elems(model) * 4)
        rows.push_back({"compression", "outer weights", slices, bytes}),
            rows.push_back({"compression", "outer momentum", slices, bytes});
    if (const int64_t bytes = average_elems(model) * 4) rows.push_back({"average", "average", slices, bytes});
    if (c.kind == NOT_COMPRESSED) return;
    const bool whole = model.slice.parts == 1;  // the sums travel compressed, too
    const char* bits = c.kind == IN_8_BITS ? "8 bits" : "1 bit";
    rows.push_back({"compression", "residual", "as parameters", residual_elems(model) * 4});
    if (whole) rows.push_back({"compression", "residual of sums", slices, sum_residual_elems(model) * 4});
    rows.push_back({"compression", "codes", format("%d buckets, %s", whole ? 3 : 2, bits),
                    (whole ? 3 : 2) * bucket_code_bytes(c.kind, model.layout)});
}
// The rows of the activations that these sizes need.
inline void plan_activations(std::vector<PlanRow>& rows, const Sizes& s) {
    for (int a = 0; a < NUM_ACTIVATIONS; a++) {
        const int64_t copies = activation_copies(a, s), bytes = activation_bytes(a, s);
        if (copies * bytes > 0)
            rows.push_back({"activations", ACTIVATIONS[a].name, format("%d x %s", copies, ACTIVATIONS[a].shape),
                            bytes * copies, PURPOSE_NAMES[ACTIVATIONS[a].purpose]});
    }
}

// The teacher's rows, but for what reading its weights takes.
inline void plan_teacher(std::vector<PlanRow>& rows, const GPT2& teacher) {
    const GPT2Config& c = teacher.layout.config;
    rows.push_back({"teacher", "weights", format("L%dC%dH%d", c.L, c.C, c.NH), teacher_weight_bytes(teacher)});
    rows.push_back({"teacher", "activations", "of one layer", teacher.activations.total_bytes});
}

// The weights before an update, of which --log-tensors needs a copy, but with AdamW (tensor_log.h).
inline int64_t weights_before_bytes(const GPT2& model, const Options& o) {
    return o.log_tensors > 0 && model.optimizer != ADAMW ? model.layout.total_elems() / comm.shards.processes * 4 : 0;
}

// FLOPs of one token, forward and backward, where some tensors do not train: two for each parameter
// of a matrix forward; backward two where the gradient goes on below it, and two where it trains.
inline double partial_flops_per_token(const GPT2Config& c, int64_t T) {
    const ParameterLayout layout = parameter_layout(c, 1);
    const double wte = (double)c.V * (double)c.C;
    double flops = (4 + 2 * trains(c, WTE)) * wte;
    for (int64_t l = 0; l < c.L; l++) {
        const bool backward = l >= layout.lowest_trained();
        flops += 2 * twice_seen((double)T, (double)c.window.of_layer(l)) * (double)c.C * (backward ? 3.5 : 1);
        for (int i = 0; i < ALL_TENSORS; i++)
            if (is_layer_matrix(i))
                flops += (double)tensor_elems(i, c) * (2 + (backward ? 2 : 0) + (trains(c, i, l) ? 2 : 0));
    }
    return flops;
}
// FLOPs of one token, forward and backward: its matrix products, and causal attention at sequences
// of T (two products forward, five backward, each over half of the positions, or those of a
// window).
inline double flops_per_token(const GPT2Config& c, int64_t T) {
    if (!c.trained.empty()) return partial_flops_per_token(c, T);
    double matmul_params = (double)c.V * c.C + (double)c.L * 12 * c.C * c.C, seen = 0;
    for (int64_t l = 0; l < c.L; l++) seen += twice_seen((double)T, (double)c.window.of_layer(l));
    return 6 * matmul_params + 3.5 * 2 * seen * c.C;
}
// Of a model that is only evaluated.
inline double forward_flops_per_token(const GPT2Config& c, int64_t T) {
    double flops = 2 * ((double)c.V * c.C + (double)c.L * 12 * c.C * c.C);
    for (int64_t l = 0; l < c.L; l++) flops += 2 * twice_seen((double)T, (double)c.window.of_layer(l)) * (double)c.C;
    return flops;
}
// Of a token of a run, which may have a teacher.
inline double flops_per_token(const Sizes& s) { return flops_per_token(s.config, s.T) + s.teacher_flops; }

inline void print_plan_rows(FILE* out, const std::vector<PlanRow>& rows) {
    int64_t category_bytes = 0;
    fprintf(out, "%-14s %-16s %-18s %16s   %s\n", "category", "name", "shape", "bytes", "lives in");
    for (size_t i = 0; i < rows.size(); i++) {
        fprintf(out, "%-14s %-16s %-18s %16lld%s%s\n", rows[i].category.c_str(), rows[i].name.c_str(),
                rows[i].shape.c_str(), (long long)rows[i].bytes, rows[i].lives_in.empty() ? "" : "   ",
                rows[i].lives_in.c_str());
        category_bytes += rows[i].bytes;
        if (i + 1 == rows.size() || rows[i + 1].category != rows[i].category) {
            fprintf(out, "%-14s %-16s %-18s %16lld   %.1f MiB\n", rows[i].category.c_str(), "= all", "",
                    (long long)category_bytes, category_bytes / MIB);
            category_bytes = 0;
        }
    }
    fprintf(out, "total %lld bytes, %.1f MiB\n", (long long)plan_bytes(rows), plan_bytes(rows) / MIB);
}
