// Tensor parallelism: every layer is divided among P processes, which work on the same tokens. Of
// two products that follow each other, the first is split by its outputs, the second by its inputs
// (weights lie as (OC, C), so these are rows of the first and columns of the second):
//
//     column   Y_r = f(X A_r^T)        f: heads of attention, GELU. Nothing has to be sent.
//     row      Z = sum over r of Y_r B_r^T
//
// A layer has two such pairs, so two sums forward and, for the gradients of X, two backward. wte is
// split by tokens, and no process ever sees all logits of a row.
//
//     mpirun -np 4 build/tensor --sequence 1
//     scripts/processes.sh -np 4 build/tensor        without MPI
//     build/tensor                                   one process
//
// --sequence 1 splits what is between the products, too, by tokens (tensor.h): less is kept, the
// same bytes travel. With --sequence 2, of what column products read every process keeps its own
// rows, and gathers the others once more.
#include "dev/parallel/program.h"
#include "dev/parallel/tensor_layers.h"

struct Model : SharedLayers {
    std::vector<int> tokens;
};

static void micro_step(Model& m, int64_t number, float dloss) {
    const int* inp = window(m.tokens, number);
    Floats x(m.split.rows() * m.split.c.C);
    std::vector<LayerRecord> kept;
    embed(m, x, inp);
    for (int64_t l = 0; l < m.split.c.L; l++) {
        kept.push_back(record(m.split, x));
        layer_forward(m, l, kept.back(), x);
    }
    classify(m, x, inp + 1, dloss);
    for (int64_t l = m.split.c.L - 1; l >= 0; l--, kept.pop_back()) layer_backward(m, l, kept.back(), x.data());
    embed_backward(m, x, inp);
}

// Prints each kernel and each message of what work() does: trace NAME KEPT_BYTES SENT_BYTES.
template <class Work>
static void print_trace(Work work) {
    trace.at_end = [](const KernelWork& of) {
        if (comm.rank == 0 && (of.bytes > 0 || of.sent_bytes > 0))
            printf("trace %s %lld %.0f\n", of.name.text, (long long)held.bytes, of.sent_bytes);
    };
    work();
    trace.at_end = nullptr;
}

struct Report {
    Counts counts;
    int64_t weights;
};
static std::string beside_formula(const Report& found, const Report& wanted) {
    return format("has %d weights, by the formula %d | %s", found.weights, wanted.weights,
                  beside_formula(found.counts, wanted.counts));
}
// By the formulas: what a process has, keeps at most, and sends in a step. A sum, or a sum's two
// halves, of n numbers sends 2 (P - 1) / P n.
static Report formulas(const Split& s, int64_t micro) {
    const int64_t maxT = s.c.maxT, Vp = s.c.Vp, L = s.c.L, C = s.c.C;
    const int64_t P = s.P(), whole = L * 6 * C + 2 * C, cut = Vp * C + L * (12 * C * C + 7 * C);
    const int64_t sums = 4 * L + 2, again = s.sequence == 2 ? 2 * L : 0, norms = s.sequence ? (4 * L + 2) * C : 0;
    return {{4 * (L * record_elems(s) + s.rows() * (C + 2)),
             4 * (P - 1) * (micro * ((2 * sums + again) * ROWS * C / P + 3 * ROWS) + 2 * norms / P)},
            whole + (s.sequence ? maxT * C / P : maxT * C) + cut / P};
}
static Report measured(const Model& m) {
    Report r{counts(), 0};
    for (const auto& [name, p] : m.part.parameters) r.weights += (int64_t)p.weight.size();
    return r;
}

struct Settings {
    std::string data = BYTES_OF_TEXTS, weights;
    int64_t sequence = 0, micro = 4, layers = 4, channels = 32, heads = 4, steps = 20, trace = 0;
};
static Settings settings_of(int argc, char** argv) {
    Settings o;
    read_flags(argc, argv,
               {{{"--data", &o.data}, {"--weights", &o.weights}},
                {{"--sequence", {&o.sequence, 0, 2}},
                 {"--micro", {&o.micro}},
                 {"--layers", {&o.layers}},
                 {"--channels", {&o.channels}},
                 {"--heads", {&o.heads}},
                 {"--steps", {&o.steps}},
                 {"--trace", {&o.trace, 0, 1}}}});
    return o;
}
// Exit 2 if the model does not divide among P processes.
static void check_divides(const GPT2Config& c, int64_t P, bool sequence) {
    if (c.C % c.NH != 0) usage_error("--channels %d do not divide among --heads %d", c.C, c.NH);
    if (c.NH % P != 0) usage_error("--heads %d do not divide among %d processes", c.NH, P);
    if (c.Vp % P != 0) usage_error("a vocabulary of %d, with its padding, does not divide among %d processes", c.Vp, P);
    if (sequence && ROWS % P != 0)
        usage_error("--sequence: the %d tokens of a micro-batch do not divide among %d processes", ROWS, P);
}

static int tensor(const Settings& o) {
    const CommSession session;
    GPT2Config c = small_model(o.layers);
    c.C = o.channels, c.NH = o.heads;
    check_divides(c, launched_processes(), o.sequence);
    meet("tensor");
    const Split split{c, everyone(), o.sequence};
    const auto cut = [&](int tensor, int64_t, Floats&& all) { return part_of(split, tensor, std::move(all)); };
    Model m{{split, first_weights(c, 42, cut)}, read_tokens(o.data)};
    prepare_kernels(c);
    for (int64_t step = 0; step < o.steps; step++) {
        m.loss = 0;
        counted_step([&] {
            for (int64_t i = 0; i < o.micro; i++) micro_step(m, step * o.micro + i, 1.0f / (float)(ROWS * o.micro));
            sum_norms(split, m.part);
        });
        update(m.part, step + 1, RATE);
        if (comm.rank == 0) printf("step %lld | loss %.9f\n", (long long)step + 1, m.loss / (double)(ROWS * o.micro));
    }
    print_reports("process", measured(m), formulas(split, o.micro));
    write_weights(split, m.part, o.weights);
    if (o.trace) print_trace([&] { micro_step(m, 0, 1); });
    return 0;
}

int main(int argc, char** argv) {
    return run_program([&] { return tensor(settings_of(argc, argv)); });
}
