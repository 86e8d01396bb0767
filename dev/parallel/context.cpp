// Context parallelism: every process has all weights, and a P-th of the positions of each sequence.
// All that is done to one position by itself needs nobody else; attention does (context.h).
//
//     mpirun -np 4 build/context --way zigzag
//     scripts/processes.sh -np 4 build/context --way ulysses      without MPI
//     build/context                                               one process
//
// Gradients of weights are sums over positions, so at the end of a step they are summed over the
// processes, as in data parallelism.
//
// With --slow-us N attention sleeps N microseconds for each pair of a query and a key, in place of
// computing: then the time in which processes are idle is that of the way and not of the machine.
#include "dev/parallel/context.h"
#include "dev/parallel/program.h"
#include "llmc/comm/all_reduce.h"

struct Model {
    Context context;
    Part part;
    std::vector<int> tokens;
    std::vector<Round> rounds{};
    double loss = 0, began = 0, end = 0;  // of the step
};
// f(row, position, positions) for the pieces of this process.
template <class F>
static void for_pieces(const Context& x, F f) {
    const int64_t n = x.piece();
    for (int64_t i = 0; i < x.rows() / n; i++) f(i * n, x.begins(x.rank, i), n);
}
// x (rows, C): from the last layer's output to its gradient.
static void classify(Model& m, Floats& x, const int* inp) {
    const GPT2Config& c = m.part.c;
    const int64_t rows = m.context.rows(), C = c.C;
    Floats lnf(rows * C), dlnf(rows * C), logits(classifier_chunk_rows(rows) * c.Vp), losses(rows), norms(2 * rows);
    const Floats residual3 = x;
    std::vector<int> targets(rows);
    for_pieces(m.context, [&](int64_t row, int64_t t, int64_t n) { std::copy_n(inp + t + 1, n, &targets[row]); });
    kernels::layernorm_forward(lnf.data(), norms.data(), norms.data() + rows, x.data(), m.part.weight(LNFW),
                               m.part.weight(LNFB), rows, C);
    kernels::classifier(losses.data(), dlnf.data(), m.part.gradient(WTE), logits.data(), lnf.data(), m.part.weight(WTE),
                        targets.data(), rows, C, c.V, c.Vp, 1.0f / (float)(T * MICRO_STEPS), true);
    for (const float loss : losses) m.loss += loss;
    std::fill(x.begin(), x.end(), 0.0f);
    kernels::layernorm_backward(x.data(), m.part.gradient(LNFW), m.part.gradient(LNFB), dlnf.data(), residual3.data(),
                                m.part.weight(LNFW), norms.data(), norms.data() + rows, rows, C, true);
}
static void micro_step(Model& m, const int* inp) {
    Part& p = m.part;
    const int64_t C = p.c.C;
    const DividedAttention attention{m.context};
    Floats x(m.context.rows() * C);
    std::vector<LayerRecord> kept;
    for_pieces(m.context, [&](int64_t row, int64_t t, int64_t n) {
        kernels::encoder_forward(&x[row * C], inp + t, p.weight(WTE), p.weight(WPE), 1, n, C, t);
    });
    for (int64_t l = 0; l < p.c.L; l++) {
        kept.push_back(layer_record(p.c, Counted(x.begin(), x.end())));
        layer_forward(p, l, kept.back(), x.data(), attention);
    }
    classify(m, x, inp);
    for (int64_t l = p.c.L - 1; l >= 0; l--, kept.pop_back()) {
        layer_backward_inputs(p, l, kept.back(), x.data(), attention);
        layer_backward_weights(p, l, kept.back());
    }
    for_pieces(m.context, [&](int64_t row, int64_t t, int64_t n) {
        kernels::encoder_backward(p.gradient(WTE), p.gradient(WPE) + t * C, &x[row * C], inp + t, 1, n, C, n, true);
    });
}
static void run_step(Model& m, int64_t step) {
    m.loss = 0, m.rounds.clear();
    comm_barrier("the step");
    m.began = now_seconds();
    for (int64_t micro = 0; micro < MICRO_STEPS; micro++) micro_step(m, window(m.tokens, step * MICRO_STEPS + micro));
    m.end = now_seconds();
    for (auto& [name, p] : m.part.parameters)
        comm_all_reduce(p.gradient.data(), (int64_t)p.gradient.size(), 0, everyone(), "the sum of the gradients");
    if (m.context.slow_us == 0) update(m.part, step + 1);
}

// ---- a run

struct Report {
    Counts counts;
    int64_t pairs;
};
static std::string beside_formula(const Report& found, const Report& wanted) {
    return format("pairs %d, by the formula %d | %s", found.pairs, wanted.pairs,
                  beside_formula(found.counts, wanted.counts));
}
// By the formulas: pairs of a micro-batch and a pass; what a process keeps at most, and sends in a
// step. A block of keys and values goes P - 1 times forward and P - 1 times backward, its gradient
// P times; an all-to-all sends (P - 1) / P of 4 C channels forward, of 5 C backward.
static Report formulas(const Model& m) {
    const Context& x = m.context;
    const GPT2Config& c = m.part.c;
    const int64_t P = x.P, rows = x.rows(), block = 2 * rows * c.C, record = rows * (16 * c.C + 4 + c.NH);
    const int64_t early = rows * (rows + 1) / 2 + x.rank * rows * rows, all = T * (T + 1) / 2;
    const int64_t attention = x.way == ULYSSES ? 9 * rows * c.C / P * (P - 1) : P > 1 ? (3 * P - 2) * block : 0;
    int64_t sums = 0;
    for (const auto& [name, p] : m.part.parameters) sums += 2 * ((int64_t)p.gradient.size() / P) * (P - 1);
    return {{4 * (c.L * record + 4 * block), 4 * (MICRO_STEPS * c.L * attention + sums)},
            x.way == RING ? early : all / P};
}
static Report measured(const Model& m) {
    Report r{counts(), 0};
    for (const Round& round : m.rounds) r.pairs += round.pairs;
    r.pairs /= 2 * MICRO_STEPS * m.part.c.L;
    return r;
}
static Busy busy(const Model& m) {
    Busy found{0, m.end - m.began};
    for (const Round& round : m.rounds) found.busy_s += round.end - round.begin;
    return found;
}
// The share of idle time by the formula: processes wait for the one that has most pairs.
static double idle_by_formula(const Report& mine) {
    double pairs = 0, most = 0;
    const std::vector<Report> all = comm_gather(mine, "the formulas");
    for (const Report& r : all) pairs += (double)r.pairs, most = std::max(most, (double)r.pairs);
    return 1 - pairs / (most * (double)all.size());
}
// One line for each round of each process: trace PROCESS ROUND PAIRS BEGIN END.
static void print_trace(const Model& m) {
    std::vector<Round> all(comm.processes * m.rounds.size());
    comm_gather(all.data(), m.rounds.data(), (int64_t)(m.rounds.size() * sizeof(Round)), "the trace");
    const double began = comm_gather(m.began, "the trace")[0];
    for (size_t i = 0; i < all.size() && comm.rank == 0; i++)
        printf("trace %lld %lld %lld %.6f %.6f\n", (long long)(i / m.rounds.size()), (long long)all[i].number,
               (long long)all[i].pairs, all[i].begin - began, all[i].end - began);
}

struct Settings {
    std::string way = "zigzag", data = BYTES_OF_TEXTS;
    int64_t steps = 20, layers = 2, slow_us = 0, trace = 0;
};
static Settings settings_of(int argc, char** argv) {
    Settings o;
    read_flags(argc, argv,
               {{{"--way", &o.way}, {"--data", &o.data}},
                {{"--steps", {&o.steps}},
                 {"--layers", {&o.layers}},
                 {"--slow-us", {&o.slow_us, 0}},
                 {"--trace", {&o.trace, 0, 1}}}});
    return o;
}
// The way, if it suits the number of processes; else exit 2.
static Way way_of(const Settings& o, int64_t P) {
    const auto* const found = std::find(std::begin(WAYS), std::end(WAYS), o.way);
    if (found == std::end(WAYS)) usage_error("--way %s is unknown; ring, zigzag, ulysses are accepted", o.way);
    const Way way = (Way)(found - WAYS);
    const int64_t pieces = way == ZIGZAG ? 2 * P : P, NH = small_model(o.layers).NH;
    if (T % pieces != 0) usage_error("%d positions do not divide into %d pieces for %d processes", T, pieces, P);
    if (way == ULYSSES && NH % P != 0) usage_error("%d heads do not divide among %d processes", NH, P);
    return way;
}

static int train(const Settings& o) {
    const CommSession session;
    const Way way = way_of(o, launched_processes());
    meet("context");
    const GPT2Config c = small_model(o.layers);
    Model m{{way, comm.processes, comm.rank, o.slow_us, nullptr},
            first_weights(c, 42, [](int, int64_t, Floats&& all) { return all; }),
            read_tokens(o.data)};
    m.context.rounds = &m.rounds;
    prepare_kernels(c);
    double least_idle = 1;
    for (int64_t step = 0; step < o.steps; step++) {
        counted_step([&] { run_step(m, step); });
        least_idle = std::min(least_idle, idle_share(busy(m)));
        const double loss = comm_sum(m.loss, "the loss") / (double)(T * MICRO_STEPS);
        if (comm.rank == 0 && !o.slow_us) printf("step %lld | loss %.9f\n", (long long)step + 1, loss), fflush(stdout);
    }
    if (o.trace) print_trace(m);
    checksum_of_weights(m.part);  // all have the same
    const Report wanted = formulas(m);
    print_reports("process", measured(m), wanted);
    const double idle = idle_by_formula(wanted);
    if (comm.rank == 0 && o.slow_us) printf("idle %.4f, by the formula %.4f\n", least_idle, idle);
    return 0;
}

int main(int argc, char** argv) {
    return run_program([&] { return train(settings_of(argc, argv)); });
}
