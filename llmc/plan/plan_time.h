// How long a step takes at least on a device, by the roofline (Williams et al. 2009,
// doi:10.1145/1498765.1498785): each kernel needs the time of its FLOPs at the peak, or that of its
// bytes at the bandwidth, whichever is longer; and how long it takes on several GPUs in all.
#pragma once
#include "llmc/optim/update_work.h"
#include "llmc/optim/muon.h"
#include "llmc/plan/plan.h"
#include "llmc/plan/plan_device.h"

inline KernelWork orthogonalize_tensor(int tensor, const GPT2Config& c, double x) {
    return work::orthogonalize((double)dimension(TENSORS[tensor].rows, c), (double)dimension(TENSORS[tensor].cols, c),
                               x);
}
// How many matrices the busiest process orthogonalises, by tensor: the one with the most FLOPs, for
// which the others wait. Matrix number i is process i % P's (muon.h), in both ZeRO stages.
inline std::array<int64_t, NUM_TENSORS> orthogonalized_matrices(const GPT2Config& c, int64_t processes, double x) {
    std::array<int64_t, NUM_TENSORS> busiest{};
    double most = 0;
    for (int64_t rank = 0; rank < processes; rank++) {
        std::array<int64_t, NUM_TENSORS> matrices{};
        double flops = 0;
        for (int64_t l = 0; l < c.L; l++)
            for (int i = 0; i < NUM_TENSORS; i++)
                if (is_layer_matrix(i) && matrix_number(i, l) % processes == rank)
                    matrices[i]++, flops += orthogonalize_tensor(i, c, x).flops;
        if (flops > most) most = flops, busiest = matrices;
    }
    return busiest;
}
// FLOPs of Newton-Schulz in a step, of the busiest process; with processes = 1, of all together.
inline double orthogonalize_flops(const Sizes& s, int64_t processes) {
    if (!s.training || !s.orthogonalizes) return 0;
    const double x = (double)s.floatX_bytes;
    const auto matrices = orthogonalized_matrices(s.config, processes, x);
    double flops = 0;
    for (int i = 0; i < NUM_TENSORS; i++) flops += (double)matrices[i] * orthogonalize_tensor(i, s.config, x).flops;
    return flops;
}
// The elements with v among `elems` that a process updates, where v is fp32.
inline double elems_with_v(const ParameterLayout& layout, Optimizer optimizer, int64_t elems) {
    const OptimizerInfo& info = OPTIMIZERS[optimizer];
    const int64_t in_v = state_layout(layout, info, STATE_V).total_elems();
    const int64_t in_factors =
        info.keeps.factors == KEEP_VECTORS ? state_layout(layout, info, STATE_FACTORS).total_elems() : 0;
    return (double)(in_v + in_factors) * (double)elems / (double)layout.total_elems();
}

// What a step encodes, and decodes again (model/kept_codes.h): a call is the average one.
inline void add_codes(std::vector<KernelWork>& kernels, const Sizes& s) {
    double elems = 0, activations = 0;
    for (int a = 0; a < NUM_ACTIVATIONS; a++)
        if (is_coded(a, s)) elems += (double)ACTIVATIONS[a].elems(s), activations++;
    const int64_t calls = s.micro_steps * activation_copies(CODES, s) * (int64_t)activations;
    if (calls == 0) return;
    const double average = elems / activations, x = (double)s.floatX_bytes;
    for (KernelWork kernel : {work::encode_activations(average, x), work::decode_activations(average, x)}) {
        kernel.calls = calls;
        kernels.push_back(kernel);
    }
}

// How many layers have a window, and how many have none; of these how many are computed again,
// which are `again` from layer `segment` on, and how many have a backward pass, from layer `lowest`
// on.
struct LayersOfWindow {
    int64_t window, count = 0, again = 0, backward = 0;
};
inline std::vector<LayersOfWindow> layers_by_window(const Sizes& s, int64_t segment, int64_t again, int64_t lowest) {
    LayersOfWindow whole{0}, local{s.config.window.positions};
    for (int64_t l = 0; l < s.config.L; l++) {
        LayersOfWindow& kind = s.config.window.of_layer(l) > 0 ? local : whole;
        kind.count++, kind.again += l >= segment && l < segment + again, kind.backward += l >= lowest;
    }
    return {whole, local};
}

// The products of a step with the matrices of the layers: forward in all layers and again in some,
// backward from the lowest layer that trains on, for what trains there (--train, --lora). Beside
// codes (--weights) a GPU turns matrices into numbers for each of them.
inline void add_products(std::vector<KernelWork>& kernels, const Sizes& s, const ParameterLayout& layout, int64_t again,
                         int64_t fused_gelus_again) {
    const GPT2Config& c = s.config;
    const double n = (double)s.rows(), x = (double)s.floatX_bytes, R = (double)c.lora.rank;
    const double g = s.gpu ? x : (double)s.gradient_bytes();
    const WeightCodes codes{s.gpu ? (WeightFormat)c.lora.beside : WEIGHTS_AS_FLOATS, c};
    const auto add = [&](KernelWork kernel, int64_t calls) {
        kernel.calls = calls * s.micro_steps;
        if (calls > 0) kernels.push_back(kernel);
    };
    for (int i = 0; i < NUM_TENSORS; i++) {
        if (!is_layer_matrix(i)) continue;
        const double OC = (double)dimension(TENSORS[i].rows, c), C = (double)dimension(TENSORS[i].cols, c);
        const bool adapted = is_adapted(i, c), gelu = i == FCW, gelu_before = i == FCPROJW;
        const int64_t forwards = c.L + again + (gelu ? fused_gelus_again : 0);
        add(adapted ? work::low_rank(n, C, OC, R, gelu, x) : work::matmul(n, C, OC, gelu, x), forwards);
        int64_t layers[2][2] = {}, decoded = forwards;  // with the gradient of the inputs, of the matrix
        for (int64_t l = std::max<int64_t>(layout.lowest_trained(), 0); l < c.L; l++) {
            const bool input = i != QKVW || layout.goes_below(l);
            layers[input][trains(c, i, l)]++, decoded += input;
        }
        for (bool input : {false, true})
            for (bool weight : {false, true})
                if (adapted) add(work::low_rank_backward(n, C, OC, R, x, g, input), layers[input][weight]);
                else if (input || weight)
                    add(work::matmul_backward(n, C, OC, gelu_before, x, g, input, weight), layers[input][weight]);
        if (codes) add(work::decode_weights((double)codes.matrix(i).bytes(), C * OC, x), decoded);
    }
    if (codes) add(work::decode_weights((double)codes.matrix(WTE).bytes(), (double)(c.Vp * c.C), x), 1);
}

// The kernels of one step. norm_elems and update_elems: parameters whose gradients this process
// sums the squares of, and which it updates. fuses_gelu: GELU is in the epilogue of the product
// before it, so that recomputing GELU takes this product.
inline std::vector<KernelWork> step_kernels(const Sizes& s, Optimizer optimizer, int64_t norm_elems,
                                            int64_t update_elems, bool master, bool fuses_gelu = false) {
    const GPT2Config& c = s.config;
    const double n = (double)s.rows(), C = (double)c.C, T = (double)s.T, x = (double)s.floatX_bytes;
    const double written = s.gpu ? x : (double)s.gradient_bytes(), g = (double)s.gradient_bytes();
    const ParameterLayout layout = parameter_layout(c, s.slices());
    const int64_t L = c.L, m = s.micro_steps, lowest = std::max<int64_t>(layout.lowest_trained(), 0);
    const int64_t k = s.segment_layers(), segment = lowest / k * k;  // of the lowest layer that trains
    const int64_t recomputed = std::max<int64_t>(0, s.recomputed_layers() - segment), segments = recomputed / k;
    const int64_t gelus_again = recomputed * (s.recompute == 1 || s.recompute == 2);
    const int64_t again = recomputed * (s.recompute >= 3), norms_again = recomputed * (s.recompute == 2);
    const bool embeddings = layout.lowest_trained() < 0;
    const bool above = lowest < L && !layout.goes_below(lowest);  // ln1 of the lowest layer has no backward pass
    std::vector<KernelWork> kernels;
    const auto add = [&](KernelWork kernel, int64_t calls) {
        kernel.calls = calls;
        if (calls > 0) kernels.push_back(kernel);
    };
    add(work::embedding(n, C, x), m);
    add(work::dropout(n * C, x), s.dropout ? m * (1 + embeddings + 2 * (L - lowest) + 2 * (L + again)) : 0);
    add(work::layernorm(n, C, x), m * (1 + 2 * norms_again + (again > 0 ? segments : 0)));
    add_products(kernels, s, layout, again, fuses_gelu ? gelus_again : 0);
    for (const auto& [window, count, counted_again, backward] : layers_by_window(s, segment, again, lowest)) {
        add(work::attention(n, twice_seen(T, (double)window), C, x), m * (count + counted_again));
        add(work::attention_backward(n, twice_seen(T, (double)window), C, x), m * backward);
    }
    add(work::residual_layernorm(n, C, x), m * (2 * L + (again > 0 ? 2 * again - segments : 0)));
    add(work::gelu(n * 4 * C, x), fuses_gelu ? 0 : m * gelus_again);
    add({{"teacher"}, n * s.teacher_flops}, s.teacher_flops > 0 ? m : 0);
    add(work::classifier(n, C, (double)c.Vp, true, x, written, trains(c, WTE)), m);
    add(work::layernorm_backward(n, C, x), m * (2 * (L - lowest) + 1 - above));
    add(work::embedding_backward(n, C, (double)c.maxT, x, written), m * embeddings);
    add_codes(kernels, s);
    add(work::gradient_sums((double)layout.total_elems(), x), m * (s.gpu && s.sums_gradients()));
    add(work::gradient_norm((double)norm_elems, g), 1);
    if (OPTIMIZERS[optimizer].keeps.factors == KEEP_FACTORED) add(work::collect_factors((double)norm_elems), 1);
    const double v_elems = elems_with_v(layout, optimizer, update_elems), p = master ? 4 : x;
    if (s.whole_tensors) add(work::directions(OPTIMIZERS[optimizer], (double)update_elems, v_elems, p), 1);
    if (s.orthogonalizes) {
        const auto matrices = orthogonalized_matrices(c, s.slices(), x);
        for (int i = 0; i < NUM_TENSORS; i++) add(orthogonalize_tensor(i, c, x), matrices[i]);
    }
    add(work::update(OPTIMIZERS[optimizer], (double)update_elems, master, x, g), 1);
    return kernels;
}

// The time of so many FLOPs and bytes at the peaks of a device; a peak that is unknown does not
// count.
inline double bound_seconds(double flops, double bytes, const PlanDevice& device) {
    return std::max(device.flops_s > 0 ? flops / device.flops_s : 0, device.bytes_s > 0 ? bytes / device.bytes_s : 0);
}

struct TimeBound {
    double seconds = 0, of_bytes_s = 0;  // in all; of the kernels whose bytes take longer than their FLOPs
    double from_host_s = 0;              // in which the update waits for state that lies on the host (--offload)
};
inline TimeBound time_bound(const std::vector<KernelWork>& kernels, const PlanDevice& device) {
    TimeBound bound;
    for (const KernelWork& kernel : kernels) {
        const double seconds = (double)kernel.calls * bound_seconds(kernel.flops, kernel.bytes, device);
        bound.seconds += seconds;
        if (bound_seconds(0, kernel.bytes, device) > kernel.flops / device.flops_s) bound.of_bytes_s += seconds;
    }
    return bound;
}

// Several GPUs: they compute at a fixed share of their peak, and communicate in rings (Patarasuk &
// Yuan 2009, doi:10.1016/j.jpdc.2008.09.002), in the alpha-beta model: P-1 messages, each at a
// fixed cost, and all bytes at the bandwidth of the slowest link.
struct Cluster {
    double flops = 312e12, utilisation = 0.45;            // of an A100, bf16 dense; the share that is reached
    double node_bytes_s = 240e9, network_bytes_s = 25e9;  // NVLink in a ring; 200 Gb/s for each GPU
    double message_s = 10e-6;
    double host_bytes_s =
        25e9;  // to the host, and from it at once: PCIe 4.0 with 16 lanes, 31.5 less what packets take
};
// What the stretches of state that come from the host and go back (--offload) add to an update,
// which computes for so long meanwhile; bytes: one way.
inline double offloaded_update_seconds(const Cluster& c, double bytes, double compute_s) {
    return std::max(0.0, bytes / c.host_bytes_s - compute_s);
}
// The seconds that a process computes in a step: at the cluster's share of the peak, or the bound
// where that is longer. model_flops: of all processes.
inline double usual_seconds(const Cluster& c, double model_flops, const Sizes& s, const TimeBound& bound) {
    const double flops = model_flops / (double)s.processes + orthogonalize_flops(s, s.slices());
    return std::max(bound.seconds - bound.from_host_s, flops / (c.flops * c.utilisation)) + bound.from_host_s;
}

struct ScalingEstimate {
    double compute_s, communicate_s, hidden_s;
    double step_s() const { return compute_s + communicate_s - hidden_s; }
};

// Bytes that each process sends in a step; of these to replicas of its slices (--shard-within).
struct WireBytes {
    int64_t all = 0, replicas = 0;
};
// Estimates a step of `processes` in groups of s.slices() with communication. compute_s: what it
// takes without. Half of what members of a group send each other, the reduce-scatter of the
// gradients, travels during the backward pass of the last micro-step, which takes two thirds of
// that micro-step. Sharded weights: a third in the forward, two thirds in the backward pass of each
// micro-step, all while it computes. Sums over replicas follow those of their groups.
inline ScalingEstimate estimate_scaling(const Cluster& c, double compute_s, const WireBytes& bytes, const Sizes& s,
                                        int64_t node_processes, bool sharded_weights) {
    const int64_t members = s.slices(), replicas = s.processes / members;
    const double buckets = (double)s.config.L + 1, micro_steps = (double)s.micro_steps;
    ScalingEstimate e;
    e.compute_s = compute_s;
    const auto seconds = [&](int64_t processes, double sent, bool on_a_node, double ways) {
        return ways * buckets * (double)(processes - 1) * c.message_s +
               sent / (on_a_node ? c.node_bytes_s : c.network_bytes_s);
    };
    const double ways = sharded_weights ? 3 * micro_steps : 2;
    const double in_group_s = seconds(members, (double)(bytes.all - bytes.replicas), members <= node_processes, ways);
    const double replicas_s = seconds(replicas, (double)bytes.replicas, s.processes <= node_processes, 2);
    e.communicate_s = in_group_s + replicas_s;
    e.hidden_s = sharded_weights ? std::min(e.communicate_s, compute_s)
                                 : std::min(in_group_s / ways + replicas_s, compute_s / micro_steps * 2 / 3);
    return e;
}
