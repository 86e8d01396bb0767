// Expert parallelism: every process has sequences of its own, as in data parallelism, but the MLP
// of each layer is a mixture of experts (experts.h), which are divided among the P processes.
//
//     mpirun -np 4 build/experts --experts 8 --top 2
//     scripts/processes.sh -np 4 build/experts --experts 8 --top 2      without MPI
//     build/experts --experts 8 --top 2                                 one process: the same bits
//     build/experts --experts 1 --top 1 --capacity 1                    the dense twin
//
// Gradients of what every process has, the router with it, are summed over the processes. Those of
// experts are not: tokens of all processes have been there.
//
// A router decides: a difference in the last bit may send a token elsewhere. So all sums are taken
// in the order of sequences, however these are divided: processes exchange their gradients after
// each micro-step, and process r adds slice r of them. Capacity is counted for each sequence by
// itself, so that the same tokens are dropped.
#include "dev/parallel/experts.h"
#include "dev/parallel/program.h"

constexpr int64_t SEQUENCES = 4;  // of a step

struct Settings {
    std::string data = BYTES_OF_TEXTS;
    int64_t experts = 8, top = 2, layers = 4, steps = 20, seed = 42, trace = 0;
    double capacity = 1.25, alpha = 0.01;
};
struct Model {
    Experts experts;
    Part part;
    std::vector<Part> own;  // the experts here
    std::vector<int> tokens;
    Floats sums{};                // of the gradients: (P, slice), of which the own slice counts
    double loss = 0, aux = 0;     // of the step
    std::vector<int64_t> load{};  // of the step: choices by layer and expert, then those that were dropped
    int64_t slice_elems() const { return (int64_t)sums.size() / experts.P; }
};

// x (T, C): from the last layer's output to its gradient.
static void classify(Model& m, Floats& x, const int* targets) {
    const GPT2Config& c = m.part.c;
    const int64_t C = c.C;
    Floats lnf(T * C), dlnf(T * C), logits(classifier_chunk_rows(T) * c.Vp), losses(T), norms(2 * T);
    const Floats residual3 = x;
    kernels::layernorm_forward(lnf.data(), norms.data(), norms.data() + T, x.data(), m.part.weight(LNFW),
                               m.part.weight(LNFB), T, C);
    kernels::classifier(losses.data(), dlnf.data(), m.part.gradient(WTE), logits.data(), lnf.data(), m.part.weight(WTE),
                        targets, T, C, c.V, c.Vp, 1.0f / (float)(T * SEQUENCES), true);
    for (const float loss : losses) m.loss += loss;
    std::fill(x.begin(), x.end(), 0.0f);
    kernels::layernorm_backward(x.data(), m.part.gradient(LNFW), m.part.gradient(LNFB), dlnf.data(), residual3.data(),
                                m.part.weight(LNFW), norms.data(), norms.data() + T, T, C, true);
}
static void count_loads(Model& m, int64_t l, const ExpertsRecord& r) {
    const std::vector<int64_t> n = loads(m.experts, r);
    for (int64_t e = 0; e < m.experts.E; e++) m.load[l * m.experts.E + e] += n[e];
    m.load.back() += std::count(r.places.begin(), r.places.end(), -1);
    m.aux += auxiliary_loss(m.experts, r);
}
static void micro_step(Model& m, const int* inp) {
    Part& p = m.part;
    const int64_t C = p.c.C;
    Floats x(T * C), dln2(T * C);
    std::vector<std::pair<LayerRecord, ExpertsRecord>> kept;
    kernels::encoder_forward(x.data(), inp, p.weight(WTE), p.weight(WPE), B, T, C);
    for (int64_t l = 0; l < p.c.L; l++) {
        kept.emplace_back(layer_record(p.c, Counted(x.begin(), x.end()), 0), experts_record(m.experts, p.c));
        auto& [k, r] = kept.back();
        attention_forward(p, l, k);
        experts_forward(m.experts, p, m.own, l, r, x.data(), k.residual2.data(), k.ln2.data());
        count_loads(m, l, r);
    }
    classify(m, x, inp + 1);
    for (int64_t l = p.c.L - 1; l >= 0; l--, kept.pop_back()) {
        auto& [k, r] = kept.back();
        experts_backward(m.experts, p, m.own, l, r, dln2.data(), x.data(), k.ln2.data(), 1.0f / SEQUENCES);
        attention_backward_inputs(p, l, k, x.data(), dln2.data());
        attention_backward_weights(p, l, k, T);
    }
    kernels::encoder_backward(p.gradient(WTE), p.gradient(WPE), x.data(), inp, B, T, C, p.c.maxT, true);
}
// Adds the gradients of this micro-step, in the order of processes, which is that of sequences.
// Process r adds slice r of all; the gradients are 0 again.
static void add_gradients(Model& m) {
    const int64_t n = m.slice_elems();
    Floats mine, all(m.sums.size());
    for (auto& [name, p] : m.part.parameters) {
        mine.insert(mine.end(), p.gradient.begin(), p.gradient.end());
        std::fill(p.gradient.begin(), p.gradient.end(), 0.0f);
    }
    mine.resize(m.sums.size());
    comm_wait(comm_exchange_start(all.data(), mine.data(), n * (int64_t)sizeof(float), 0), "the gradients");
    float* sum = &m.sums[m.experts.rank * n];
    for (size_t i = 0; i < all.size(); i++) sum[i % n] += all[i];
}
// Brings the sums of all slices back to where the gradients are.
static void collect_gradients(Model& m) {
    comm_wait(comm_all_gather_start(m.sums.data(), m.slice_elems(), 0), "the sums of the gradients");
    const float* next = m.sums.data();
    for (auto& [name, p] : m.part.parameters) {
        std::copy_n(next, p.gradient.size(), p.gradient.data());
        next += p.gradient.size();
    }
    std::fill(m.sums.begin(), m.sums.end(), 0.0f);
}
static void run_step(Model& m, int64_t step) {
    const Experts& x = m.experts;
    m.loss = m.aux = 0, m.load.assign(m.part.c.L * x.E + 1, 0);
    for (int64_t sequence = x.rank; sequence < SEQUENCES; sequence += x.P) {
        micro_step(m, window(m.tokens, step * SEQUENCES + sequence));
        add_gradients(m);
    }
    collect_gradients(m);
    update(m.part, step + 1);
    for (Part& expert : m.own) update(expert, step + 1);
}

// ---- a run

// By the formulas: what a process keeps at most, and sends in a step. Tokens travel to experts and
// back, forward and backward, so four times a layer; a process keeps a piece of P for itself.
static Counts formulas(const Model& m) {
    const Experts& x = m.experts;
    const GPT2Config& c = m.part.c;
    const int64_t attention = layer_record_elems(c) - T * 8 * c.C, micro_steps = SEQUENCES / x.P, others = x.P - 1;
    int64_t elems = 0;
    for (const auto& [name, p] : m.part.parameters) elems += (int64_t)p.weight.size();
    const int64_t slice_bytes = 4 * ceil_div(elems, x.P);
    return {4 * c.L * (attention + experts_record_elems(x, c)),
            others * (micro_steps * (4 * c.L * x.piece_bytes(c) + slice_bytes) + slice_bytes)};
}
// The losses of a step, what was dropped, and with --trace each layer's choices by expert.
static void print_step(const Model& m, int64_t step, bool traced) {
    const Experts& x = m.experts;
    const int64_t n = (int64_t)m.load.size(), L = m.part.c.L, choices = SEQUENCES * T * x.k;
    const std::vector<double> losses = comm_gather(m.loss, "the loss");
    const double aux = comm_sum(m.aux, "the loss") / (double)SEQUENCES;
    std::vector<int64_t> all(x.P * n), sums(n);
    comm_gather(all.data(), m.load.data(), n * (int64_t)sizeof(int64_t), "the loads");
    if (comm.rank > 0) return;
    double loss = 0;
    for (const double l : losses) loss += l;
    for (size_t i = 0; i < all.size(); i++) sums[i % n] += all[i];
    printf("step %lld | loss %.9f | aux %.6f | dropped %.4f\n", (long long)step + 1, loss / (double)(T * SEQUENCES),
           aux, (double)sums.back() / (double)(L * choices));
    for (int64_t i = 0; i < L * x.E && traced; i++)
        printf("%s%lld%s", i % x.E == 0 ? format("loads %d %d ", step + 1, i / x.E).c_str() : "", (long long)sums[i],
               i % x.E == x.E - 1 ? "\n" : " ");
    fflush(stdout);
}
// A checksum of the weights: of what all have, which must be the same, and then of the experts.
static uint64_t checksum_of(Model& m) {
    const auto sum_of = [](const Part& part) {
        Checksum sum;
        for (const auto& [name, p] : part.parameters) sum.add(p.weight.data(), p.weight.size() * sizeof(float));
        return sum.value();
    };
    const std::vector<uint64_t> shared = comm_gather(sum_of(m.part), "the weights");
    for (size_t r = 1; r < shared.size(); r++)
        if (shared[r] != shared[0]) runtime_failure("internal: rank %d has other weights than rank 0", r);
    std::vector<uint64_t> mine, all(m.experts.E);
    for (const Part& expert : m.own) mine.push_back(sum_of(expert));
    comm_gather(all.data(), mine.data(), (int64_t)(mine.size() * sizeof(uint64_t)), "the weights");
    Checksum whole;
    whole.add(shared.data(), sizeof(uint64_t)), whole.add(all.data(), all.size() * sizeof(uint64_t));
    return whole.value();
}

static Settings settings_of(int argc, char** argv) {
    Settings o;
    read_flags(argc, argv,
               {{{"--data", &o.data}},
                {{"--experts", {&o.experts}},
                 {"--top", {&o.top}},
                 {"--layers", {&o.layers}},
                 {"--steps", {&o.steps}},
                 {"--seed", {&o.seed}},
                 {"--trace", {&o.trace, 0, 1}}},
                {{"--capacity", &o.capacity}, {"--alpha", &o.alpha}}});
    return o;
}
// The experts, if they suit the number of processes; else exit 2.
static Experts experts_of(const Settings& o, int64_t P, int64_t rank) {
    if (o.experts % P != 0) usage_error("--experts %d do not divide among %d processes", o.experts, P);
    if (SEQUENCES % P != 0) usage_error("%d sequences do not divide among %d processes", SEQUENCES, P);
    if (o.top > 2) usage_error("--top %d: 1 or 2 are accepted", o.top);
    if (o.top > o.experts) usage_error("--top %d is more than --experts %d", o.top, o.experts);
    const int64_t capacity = capacity_of(o.capacity, o.top, o.experts);
    if (capacity < 1) usage_error("--capacity %g leaves no place for a token", o.capacity);
    return {P, rank, o.experts, o.top, capacity, (float)o.alpha};
}

static int train(const Settings& o) {
    const CommSession session;
    experts_of(o, launched_processes(), 0);
    meet("experts");
    const GPT2Config c = small_model(o.layers);
    const auto shared = [](int i, int64_t, Floats&& all) { return is_of_expert(i) ? Floats() : std::move(all); };
    Model m{experts_of(o, comm.processes, comm.rank), first_weights(c, o.seed, shared), {}, read_tokens(o.data)};
    const Experts& x = m.experts;
    add_routers(x, m.part, o.seed);
    int64_t elems = 0;
    for (const auto& [name, p] : m.part.parameters) elems += (int64_t)p.weight.size();
    m.sums.resize(round_up(elems, x.P));
    for (int64_t e = x.rank * x.own(); e < (x.rank + 1) * x.own(); e++) m.own.push_back(first_expert(x, c, o.seed, e));
    prepare_kernels(c);
    for (int64_t step = 0; step < o.steps; step++) {
        counted_step([&] { run_step(m, step); });
        print_step(m, step, o.trace);
    }
    print_reports("process", counts(), formulas(m));
    const uint64_t checksum = checksum_of(m);
    if (comm.rank == 0) printf("weights %016llx\n", (unsigned long long)checksum);
    return 0;
}

int main(int argc, char** argv) {
    return run_program([&] { return train(settings_of(argc, argv)); });
}
