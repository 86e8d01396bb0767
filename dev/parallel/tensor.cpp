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
#include "dev/parallel/tensor.h"

struct Model {
    Split split;
    Part part;
    std::vector<int> tokens;
    double loss = 0;

    float* w(int tensor, int64_t layer = 0) { return part.weight(tensor, layer); }
    float* g(int tensor, int64_t layer = 0) { return part.gradient(tensor, layer); }
};
float* const none = nullptr;
// At three times this rate, rounding alone takes weights more than 1e-5 apart within 200 steps.
constexpr float RATE = 1e-3f;

// ---- a layer

// The elements that a layer keeps of a micro-batch: of all C channels, and of those of the heads
// of this process.
static int64_t record_elems(const Split& s) {
    return s.rows() * (2 * s.c.C + 4) + s.kept_rows() * 2 * s.c.C + ROWS * (12 * s.width() + s.c.NH / s.P());
}
static LayerRecord record(const Split& s, const Floats& x) {
    const int64_t C = s.c.C, W = s.width(), rows = s.rows(), kept = s.kept_rows();
    return {Counted(x.begin(), x.end()), Counted(kept * C),
            Counted(ROWS * 3 * W),       Counted(ROWS * W),
            Counted(rows * C),           Counted(kept * C),
            Counted(ROWS * 4 * W),       Counted(ROWS * 4 * W),
            Counted(rows * 4),           Counted(ROWS * s.c.NH / s.P())};
}
// all (ROWS, C) from own (rows, C), of which kept has as much as the backward pass is to find.
static void gather_and_keep(const Split& s, float* all, Counted& kept, const float* own) {
    all_rows(s, all, own);
    std::copy_n(s.sequence == 2 ? own : all, kept.size(), kept.begin());
}
// x (rows, C): from the layer's input to its output. k is written. The bias of a row product is in
// one part of the sum.
static void layer_forward(Model& m, int64_t l, LayerRecord& k, Floats& x) {
    const Split& s = m.split;
    const int64_t C = s.c.C, W = s.width(), rows = s.rows();
    const auto bias = [&](int tensor) { return s.group.rank == 0 ? m.w(tensor, l) : none; };
    float* norms = k.norms.data();
    Floats all(ROWS * C), own(rows * C);
    kernels::layernorm_forward(own.data(), norms, norms + rows, x.data(), m.w(LN1W, l), m.w(LN1B, l), rows, C);
    gather_and_keep(s, all.data(), k.ln1, own.data());
    kernels::matmul_forward(k.qkv.data(), all.data(), m.w(QKVW, l), m.w(QKVB, l), ROWS, C, 3 * W);
    kernels::attention_forward(k.atty.data(), k.lse.data(), k.qkv.data(), B, T, W, s.c.NH / s.P());
    kernels::matmul_forward(all.data(), k.atty.data(), m.w(ATTPROJW, l), bias(ATTPROJB), ROWS, W, C);
    sum_rows(s, own.data(), all.data());
    kernels::residual_layernorm_forward(k.residual2.data(), x.data(), norms + 2 * rows, norms + 3 * rows,
                                        k.input.data(), own.data(), m.w(LN2W, l), m.w(LN2B, l), rows, C);
    gather_and_keep(s, all.data(), k.ln2, x.data());
    kernels::matmul_forward(k.fch.data(), all.data(), m.w(FCW, l), m.w(FCB, l), ROWS, C, 4 * W, k.gelu.data());
    kernels::matmul_forward(all.data(), k.gelu.data(), m.w(FCPROJW, l), bias(FCPROJB), ROWS, 4 * W, C);
    sum_rows(s, own.data(), all.data());
    kernels::residual_forward(x.data(), k.residual2.data(), own.data(), rows * C);
}
// Backward through a column product that read the layer norm of inp: dout (ROWS, OC) becomes a
// gradient of inp, which is added to d (rows, C).
static void column_backward(Model& m, int64_t l, float* d, const Floats& dout, const Counted& kept, int weight,
                            int bias, const Counted& inp, int norm_weight, int norm_bias, const float* norms) {
    const Split& s = m.split;
    const int64_t C = s.c.C, rows = s.rows();
    Floats all, part(ROWS * C), own(rows * C);
    if (s.sequence == 2) all.resize(ROWS * C), all_rows(s, all.data(), kept.data());
    kernels::matmul_backward(part.data(), m.g(weight, l), m.g(bias, l), dout.data(),
                             s.sequence == 2 ? all.data() : kept.data(), m.w(weight, l), ROWS, C,
                             (int64_t)dout.size() / ROWS, true);
    sum_rows(s, own.data(), part.data());
    kernels::layernorm_backward(d, m.g(norm_weight, l), m.g(norm_bias, l), own.data(), inp.data(), m.w(norm_weight, l),
                                norms, norms + rows, rows, C, true);
}
// d (rows, C): from the gradient of the layer's output to that of its input.
static void layer_backward(Model& m, int64_t l, LayerRecord& k, float* d) {
    const Split& s = m.split;
    const int64_t C = s.c.C, W = s.width();
    Floats all(ROWS * C), dfch(ROWS * 4 * W), datty(ROWS * W), dqkv(ROWS * 3 * W);
    all_rows(s, all.data(), d);
    kernels::matmul_backward(dfch.data(), m.g(FCPROJW, l), m.g(FCPROJB, l), all.data(), k.gelu.data(), m.w(FCPROJW, l),
                             ROWS, 4 * W, C, true, k.fch.data());
    column_backward(m, l, d, dfch, k.ln2, FCW, FCB, k.residual2, LN2W, LN2B, k.norms.data() + 2 * s.rows());
    all_rows(s, all.data(), d);
    kernels::matmul_backward(datty.data(), m.g(ATTPROJW, l), m.g(ATTPROJB, l), all.data(), k.atty.data(),
                             m.w(ATTPROJW, l), ROWS, W, C, true);
    kernels::attention_backward(dqkv.data(), datty.data(), k.atty.data(), k.lse.data(), k.qkv.data(), B, T, W,
                                s.c.NH / s.P());
    column_backward(m, l, d, dqkv, k.ln1, QKVW, QKVB, k.input, LN1W, LN1B, k.norms.data());
}

// ---- the embedding and the classifier, split by tokens of the vocabulary

// x (rows, C) = wte + wpe. The process that has a token's row brings it to the sum, the others 0.
static void embed(Model& m, Floats& x, const int* inp) {
    const Split& s = m.split;
    const int64_t C = s.c.C;
    Floats all(ROWS * C);
    for_own_tokens(s, inp, [&](int64_t t, int64_t row) { std::copy_n(m.w(WTE) + row * C, C, &all[t * C]); });
    sum_rows(s, x.data(), all.data());
    kernels::residual_forward(x.data(), x.data(), m.w(WPE), x.size());
}
static void embed_backward(Model& m, const Floats& d, const int* inp) {
    const Split& s = m.split;
    const int64_t C = s.c.C;
    Floats all(ROWS * C);
    all_rows(s, all.data(), d.data());
    for_own_tokens(s, inp, [&](int64_t t, int64_t row) {
        kernels::residual_forward(m.g(WTE) + row * C, m.g(WTE) + row * C, &all[t * C], C);
    });
    kernels::residual_forward(m.g(WPE), m.g(WPE), d.data(), d.size());
}

// x (rows, C): from the last layer's output to its gradient.
static void classify(Model& m, Floats& x, const int* targets, float dloss) {
    const Split& s = m.split;
    const int64_t C = s.c.C, rows = s.rows();
    const Counted residual3(x.begin(), x.end());
    Counted norms(2 * rows);
    Floats all(ROWS * C), lnf(ROWS * C), logits(ROWS * s.vocabulary());
    kernels::layernorm_forward(x.data(), norms.data(), norms.data() + rows, residual3.data(), m.w(LNFW), m.w(LNFB),
                               rows, C);
    all_rows(s, lnf.data(), x.data());
    kernels::matmul_forward(logits.data(), lnf.data(), m.w(WTE), none, ROWS, C, s.vocabulary());
    m.loss += softmax_losses(s, logits.data(), targets, dloss);
    kernels::matmul_backward(all.data(), m.g(WTE), none, logits.data(), lnf.data(), m.w(WTE), ROWS, C, s.vocabulary(),
                             true);
    Floats dlnf(rows * C);
    sum_rows(s, dlnf.data(), all.data());
    std::fill(x.begin(), x.end(), 0.0f);
    kernels::layernorm_backward(x.data(), m.g(LNFW), m.g(LNFB), dlnf.data(), residual3.data(), m.w(LNFW), norms.data(),
                                norms.data() + rows, rows, C, true);
}

// ---- a run

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
    int64_t weights, kept_bytes, sent_bytes;
};
// By the formulas: what a process has, keeps at most, and sends in a step. A sum, or a sum's two
// halves, of n numbers sends 2 (P - 1) / P n.
static Report formulas(const Split& s, int64_t micro) {
    const auto& [maxT, V, Vp, L, NH, C] = s.c;
    const int64_t P = s.P(), whole = L * 6 * C + 2 * C, cut = Vp * C + L * (12 * C * C + 7 * C);
    const int64_t sums = 4 * L + 2, again = s.sequence == 2 ? 2 * L : 0, norms = s.sequence ? (4 * L + 2) * C : 0;
    return {whole + (s.sequence ? maxT * C / P : maxT * C) + cut / P, 4 * (L * record_elems(s) + s.rows() * (C + 2)),
            4 * (P - 1) * (micro * ((2 * sums + again) * ROWS * C / P + 3 * ROWS) + 2 * norms / P)};
}
static Report measured(const Model& m) {
    Report r{0, held.peak_bytes, 0};
    for (const auto& [name, p] : m.part.parameters) r.weights += (int64_t)p.weight.size();
    for (const Span& span : trace.tracks[1].spans) r.sent_bytes += (int64_t)span.work.sent_bytes;
    return r;
}

struct Settings {
    std::string data = "build/parallel/bytes_train.bin", weights;
    int64_t sequence = 0, micro = 4, layers = 4, channels = 32, heads = 4, steps = 20, trace = 0;
};
static Settings settings_of(int argc, char** argv) {
    Settings o;
    const std::map<std::string, int64_t*> numbers = {
        {"--sequence", &o.sequence}, {"--micro", &o.micro}, {"--layers", &o.layers}, {"--channels", &o.channels},
        {"--heads", &o.heads},       {"--steps", &o.steps}, {"--trace", &o.trace}};
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
        const auto number = numbers.find(name);
        const int64_t least = name == "--sequence" || name == "--trace" ? 0 : 1;
        const int64_t most = name == "--sequence" ? 2 : name == "--trace" ? 1 : 100000;
        if (name == "--data") o.data = value;
        else if (name == "--weights") o.weights = value;
        else if (number == numbers.end())
            usage_error(
                "%s is unknown; --sequence, --data, --micro, --layers, --channels, --heads, --steps, --trace and "
                "--weights are accepted",
                name);
        else if (!parse_whole(value, *number->second) || *number->second < least || *number->second > most)
            usage_error("%s \"%s\": whole numbers from %d to %d are accepted", name, value, least, most);
    }
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
    check_divides(c, std::max<int64_t>(launcher_value(LAUNCHER_SIZES), 1), o.sequence);
    comm_start(-1, -1, "mpi", "", "", 60, "tensor");
    const Split split{c, everyone(), o.sequence};
    const auto cut = [&](int tensor, int64_t, Floats&& all) { return part_of(split, tensor, std::move(all)); };
    Model m{split, first_weights(c, 42, cut), read_tokens(o.data)};
    device.scratch_elems = thread_scratch_elems<float>(T, c.C / c.NH);
    allocate_scratch();
    trace.communication = 1;
    for (int64_t step = 0; step < o.steps; step++) {
        trace.tracks = {{"work", {}}, {"messages", {}}}, trace.on = true;
        m.loss = 0;
        for (int64_t i = 0; i < o.micro; i++) micro_step(m, step * o.micro + i, 1.0f / (float)(ROWS * o.micro));
        sum_norms(split, m.part);
        update(m.part, step + 1, RATE);
        trace.on = false;
        if (comm.rank == 0) printf("step %lld | loss %.9f\n", (long long)step + 1, m.loss / (double)(ROWS * o.micro));
    }
    const Report wanted = formulas(split, o.micro);
    const std::vector<Report> found = comm_gather(measured(m), "the reports");
    for (int64_t r = 0; r < comm.processes && comm.rank == 0; r++)
        printf(
            "process %lld | has %lld weights, by the formula %lld | keeps %lld bytes, by the formula %lld | sends "
            "%lld bytes, by the formula %lld\n",
            (long long)r, (long long)found[r].weights, (long long)wanted.weights, (long long)found[r].kept_bytes,
            (long long)wanted.kept_bytes, (long long)found[r].sent_bytes, (long long)wanted.sent_bytes);
    write_weights(split, m.part, o.weights);
    if (o.trace) print_trace([&] { micro_step(m, 0, 1); });
    return 0;
}

int main(int argc, char** argv) {
    return run_program([&] { return tensor(settings_of(argc, argv)); });
}
