// Data, pipeline and tensor parallelism together, on a mesh of R x P x N processes (mesh.h): the
// micro-batches of a step are divided among R replicas, the layers of each among P stages, and each
// layer among N processes (tensor_layers.h). Stages take turns as 1F1B says (schedules.h).
//
//     scripts/processes.sh -np 8 build/together --data 2 --pipeline 2 --tensor 2
//     mpirun -np 8 build/together --data 2 --pipeline 2 --tensor 2
//     build/together                                     one process: the same losses, to rounding
//
// With --folder F a run ends with a checkpoint there, and one that begins with F goes on from it.
// It has a file for each stage and part, which all replicas read: so another --data goes on as
// well.
//
// With --slow-ms MS stages sleep in place of computing, as in pipeline.cpp, so that the time line
// of --trace is that of the mesh and not of the machine.
#include "dev/parallel/mesh.h"
#include "dev/parallel/program.h"
#include "dev/parallel/schedules.h"
#include "dev/parallel/tensor_layers.h"

struct Settings {
    std::string tokens = BYTES_OF_TEXTS, folder, weights;
    int64_t data = 1, pipeline = 1, tensor = 1, sequence = 0, micro = 8, layers = 4, steps = 20, slow_ms = 0, trace = 0;
};
// What a process keeps of a micro-batch between its passes. at_end: at the ends of the pipeline,
// where there is no neighbour, what goes into an action and comes out.
struct MicroBatch {
    std::vector<LayerRecord> layers;
    Floats at_end;
};
// F: forward, B: backward, S: the sums over the replicas.
struct Event {
    char kind;
    int64_t micro;
    double begin, end;
};
struct Model : SharedLayers {
    Mesh mesh;
    int64_t micro, slow_ms;  // micro: of a replica in a step
    std::vector<int> tokens;
    int64_t first_window = 0;
    double began = 0;  // the step
    std::deque<MicroBatch> kept{};
    Outbox outbox{};
    std::vector<Event> events{};
    int64_t sent_stages = 0, sent_parts = 0;  // bytes of the step, by axis of the mesh

    int64_t layers() const { return split.c.L / mesh.P; }
    int64_t message_elems() const { return split.rows() * split.c.C; }
};

// ---- a step

// x: from the input of a stage to its output; of the last stage, to its gradient.
static void forward(Model& m, MicroBatch& k, const int* inp, Floats& x) {
    if (m.mesh.first()) embed(m, x, inp);
    for (int64_t l = 0; l < m.layers(); l++) {
        k.layers.push_back(record(m.split, x));
        layer_forward(m, m.mesh.stage * m.layers() + l, k.layers.back(), x);
    }
    if (m.mesh.last()) classify(m, x, inp + 1, 1.0f / (float)(ROWS * m.micro * m.mesh.R));
}
// dx: from the gradient of a stage's output to that of its input.
static void backward(Model& m, MicroBatch& k, const int* inp, Floats& dx) {
    for (int64_t l = m.layers() - 1; l >= 0; l--, k.layers.pop_back())
        layer_backward(m, m.mesh.stage * m.layers() + l, k.layers.back(), dx.data());
    if (m.mesh.first()) embed_backward(m, dx, inp);
}
// Waits for what the action needs of a neighbour, does it, and sends on what comes out.
static void run_action(Model& m, const Action& a) {
    const bool is_forward = a.kind == 'F';
    const int64_t next = is_forward ? 1 : -1, from = m.mesh.stage - next, to = m.mesh.stage + next;
    if (is_forward) m.kept.push_back({{}, Floats(m.message_elems())});
    MicroBatch& k = is_forward ? m.kept.back() : m.kept.front();
    Floats x = m.mesh.has(from) ? receive_message(m.message_elems(), m.mesh.rank_of(from)) : std::move(k.at_end);
    const double begin = now_seconds();
    if (m.slow_ms) sleep_until(begin + 1e-3 * (double)(is_forward ? m.slow_ms : 2 * m.slow_ms));
    else (is_forward ? forward : backward)(m, k, window(m.tokens, m.first_window + a.micro), x);
    m.events.push_back({a.kind, a.micro, begin, now_seconds()});
    if (m.mesh.has(to)) m.outbox.send(std::move(x), m.mesh.rank_of(to));
    else k.at_end = std::move(x);
    if (!is_forward) m.kept.pop_front();
    m.outbox.forget_complete();
}
// wte is in the first stage, as the embedding, and in the last, as the classifier. Each sends the
// other its gradient; both add the classifier's, then the embedding's.
static void join_embedding(Model& m) {
    if (m.mesh.P == 1 || !(m.mesh.first() || m.mesh.last())) return;
    const int64_t n = m.split.vocabulary() * m.split.c.C, other = m.mesh.rank_of(m.mesh.first() ? m.mesh.P - 1 : 0);
    float* const mine = m.g(WTE);
    m.outbox.send({mine, mine + n}, other);
    const Floats theirs = receive_message(n, other);
    const float* const classifier = m.mesh.first() ? theirs.data() : mine;
    kernels::residual_forward(mine, classifier, m.mesh.first() ? mine : theirs.data(), n);
    m.outbox.wait();
}
// The bytes of messages from one process to another, and of collectives.
static int64_t sent_by(bool messages) {
    double bytes = 0;
    for (const Span& span : trace.tracks[trace.communication].spans)
        if ((strcmp(span.work.name.text, "send") == 0) == messages) bytes += span.work.sent_bytes;
    return (int64_t)bytes;
}
static void run_step(Model& m, int64_t step) {
    m.loss = 0, m.events.clear();
    m.first_window = (step * m.mesh.R + m.mesh.replica) * m.micro;
    comm_barrier("the step");
    m.began = now_seconds();
    for (const Action& a : one_f_one_b({m.mesh.P, m.micro, 1}, m.mesh.stage)) run_action(m, a);
    m.outbox.wait();
    sum_norms(m.split, m.part);
    m.sent_parts = sent_by(false);
    join_embedding(m);
    m.sent_stages = sent_by(true);
    const double begin = now_seconds();
    for (auto& [name, p] : m.part.parameters)
        comm_all_reduce(p.gradient.data(), (int64_t)p.gradient.size(), 0, m.mesh.replicas, "the sum of replicas");
    m.events.push_back({'S', 0, begin, now_seconds()});
    if (m.slow_ms == 0) update(m.part, step + 1, RATE);
}

// ---- a checkpoint: which step, of which mesh; and files of stages and parts, named by the step

struct Checkpoint {
    int64_t step, P, N, layers, sequence, micro;
};
static Checkpoint checkpoint_of(const Model& m, int64_t step) {
    return {step, m.mesh.P, m.mesh.N, m.split.c.L, m.split.sequence, m.micro * m.mesh.R};
}
static std::string latest_file(const Settings& o) { return o.folder + "/latest"; }
static std::string part_file(const Settings& o, const Model& m, int64_t step) {
    return format("%s/step_%d_stage_%d_part_%d", o.folder, step, m.mesh.stage, m.mesh.part);
}
// The steps that the run in the folder has behind it, 0 if there is none. Exit 2 if its mesh or its
// model is another.
static int64_t steps_before(const Settings& o, const Model& m) {
    if (o.folder.empty() || !file_exists(latest_file(o))) return 0;
    FileReader file(latest_file(o));
    Checkpoint found{};
    file.read(&found, sizeof(found), "the checkpoint");
    const Checkpoint wanted = checkpoint_of(m, found.step);
    if (memcmp(&found, &wanted, sizeof(found)) != 0)
        usage_error(
            "%s is of a run with --pipeline %d --tensor %d --layers %d --sequence %d --micro %d; only --data may be "
            "another",
            latest_file(o), found.P, found.N, found.layers, found.sequence, found.micro);
    return found.step;
}
// f(values) for all that a checkpoint has.
template <class F>
static void for_state(Part& part, F f) {
    for (auto& [name, p] : part.parameters) f(p.weight), f(p.m), f(p.v);
}
static void load(const Settings& o, Model& m, int64_t step) {
    FileReader file(part_file(o, m, step));
    for_state(m.part, [&](Floats& x) { file.read(x.data(), x.size() * sizeof(float), "the state"); });
}
// Each stage and part is written once; when all are there, `latest` says so.
static void save(const Settings& o, Model& m, int64_t step, int64_t before) {
    make_folder(o.folder);
    if (m.mesh.replica == 0) {
        FileWriter file(part_file(o, m, step));
        for_state(m.part, [&](Floats& x) { file.write(x.data(), x.size() * sizeof(float)); });
        file.commit();
    }
    comm_barrier("the checkpoint");
    if (comm.rank == 0) {
        FileWriter file(latest_file(o));
        const Checkpoint now = checkpoint_of(m, step);
        file.write(&now, sizeof(now)), file.commit();
    }
    comm_barrier("the checkpoint");
    if (m.mesh.replica == 0 && before > 0 && before != step) remove_file(part_file(o, m, before));
}

// ---- a run

struct Report {
    int64_t kept_bytes, parts_bytes, stages_bytes, replicas_bytes;  // the last three: sent, by axis
};
static std::string beside_formula(const Report& found, const Report& wanted) {
    return format(
        "keeps %d bytes, by the formula %d | sends to parts %d bytes, by the formula %d | to stages %d bytes, by the "
        "formula %d | to replicas %d bytes, by the formula %d",
        found.kept_bytes, wanted.kept_bytes, found.parts_bytes, wanted.parts_bytes, found.stages_bytes,
        wanted.stages_bytes, found.replicas_bytes, wanted.replicas_bytes);
}
// By the formulas: each axis is as if it were alone, with the layers of a stage and the
// micro-batches of a replica. 1F1B keeps at most P - stage of these.
static Report formulas(const Model& m) {
    const auto& [R, P, N, replica, stage, part, parts, replicas] = m.mesh;
    const Split& s = m.split;
    const int64_t C = s.c.C, ends = m.mesh.first() + m.mesh.last(), kept = std::min(P - stage, m.micro);
    const int64_t sums = 4 * m.layers() + ends, again = s.sequence == 2 ? 2 * m.layers() : 0;
    const int64_t softmax = m.mesh.last() ? 3 * ROWS : 0;
    const int64_t norms = s.sequence ? (4 * m.layers() + 2 * m.mesh.last()) * C : 0;
    const int64_t tied = P > 1 && ends ? s.vocabulary() * C : 0;
    int64_t gradients = 0;
    for (const auto& [name, p] : m.part.parameters) gradients += (int64_t)p.gradient.size() / R;
    const int64_t last = m.mesh.last() ? s.rows() * (C + 2) : 0;
    return {4 * (kept * m.layers() * record_elems(s) + last),
            4 * (N - 1) * (m.micro * ((2 * sums + again) * ROWS * C / N + softmax) + 2 * norms / N),
            4 * (m.micro * (2 - ends) * m.message_elems() + tied), 4 * 2 * (R - 1) * gradients};
}
static Report measured(const Model& m) {
    return {held.peak_bytes, m.sent_parts, m.sent_stages, sent_bytes() - m.sent_parts - m.sent_stages};
}
static Busy busy(const Model& m) {
    Busy found{0, 0};
    for (const Event& e : m.events)
        if (e.kind != 'S') found.busy_s += e.end - e.begin, found.end_s = e.end - m.began;
    return found;
}
// The mean loss of the step's tokens, from the last stage of each replica, for rank 0.
static double loss_of(const Model& m) {
    double loss = 0;
    const bool counts = m.mesh.last() && m.mesh.part == 0;
    for (const double one : comm_gather(counts ? m.loss : 0.0, "the loss")) loss += one;
    return loss / (double)(ROWS * m.micro * m.mesh.R);
}
// One line for each event of each process: trace RANK KIND MICRO-BATCH BEGIN END.
static void print_trace(const Model& m) {
    std::vector<Event> all(comm.processes * m.events.size());
    comm_gather(all.data(), m.events.data(), (int64_t)(m.events.size() * sizeof(Event)), "the trace");
    const double began = comm_gather(m.began, "the trace")[0];
    for (size_t i = 0; i < all.size() && comm.rank == 0; i++)
        printf("trace %zu %c %lld %.6f %.6f\n", i / m.events.size(), all[i].kind, (long long)all[i].micro,
               all[i].begin - began, all[i].end - began);
}

static Settings settings_of(int argc, char** argv) {
    Settings o;
    read_flags(argc, argv,
               {{{"--tokens", &o.tokens}, {"--folder", &o.folder}, {"--weights", &o.weights}},
                {{"--data", {&o.data}},
                 {"--pipeline", {&o.pipeline}},
                 {"--tensor", {&o.tensor}},
                 {"--sequence", {&o.sequence, 0, 2}},
                 {"--micro", {&o.micro}},
                 {"--layers", {&o.layers}},
                 {"--steps", {&o.steps}},
                 {"--slow-ms", {&o.slow_ms, 0}},
                 {"--trace", {&o.trace, 0, 1}}}});
    return o;
}
// Exit 2 if the mesh is not that of the processes, or does not suit the model.
static void check_divides(const Settings& o, const GPT2Config& c, int64_t processes) {
    const int64_t R = o.data, P = o.pipeline, N = o.tensor;
    if (R * P * N != processes)
        usage_error("--data %d --pipeline %d --tensor %d are %d processes, and there are %d", R, P, N, R * P * N,
                    processes);
    if (o.layers % P != 0) usage_error("--layers %d do not divide among --pipeline %d", o.layers, P);
    if (c.NH % N != 0) usage_error("%d heads do not divide among --tensor %d", c.NH, N);
    if (o.micro % R != 0) usage_error("--micro %d do not divide among --data %d", o.micro, R);
    if (o.micro / R < P) usage_error("--micro %d / --data %d do not keep %d stages busy", o.micro, R, P);
}
// What this process has of the whole model: the layers of its stage, and of these its part.
static Model model_of(const Settings& o, const GPT2Config& c, const Mesh& mesh) {
    const Split split{c, mesh.parts, o.sequence};
    const auto keep = [&](int tensor, int64_t layer, Floats&& all) {
        const bool outside = tensor == WPE ? mesh.first() : mesh.last() || (tensor == WTE && mesh.first());
        const bool here = TENSORS[tensor].per_layer ? layer / (c.L / mesh.P) == mesh.stage : outside;
        return here ? part_of(split, tensor, std::move(all)) : Floats();
    };
    return {{split, first_weights(c, 42, keep)}, mesh, o.micro / mesh.R, o.slow_ms, read_tokens(o.tokens)};
}

static int train(const Settings& o) {
    const CommSession session;
    const GPT2Config c = small_model(o.layers);
    check_divides(o, c, launched_processes());
    meet("together");
    Model m = model_of(o, c, make_mesh(o.data, o.pipeline, o.tensor));
    prepare_kernels(c);
    const int64_t before = steps_before(o, m);
    if (before > 0) load(o, m, before);
    double least_bubble = 1;
    for (int64_t step = before; step < o.steps; step++) {
        counted_step([&] { run_step(m, step); });
        if (o.slow_ms) least_bubble = std::min(least_bubble, idle_share(busy(m)));
        const double loss = loss_of(m);
        if (comm.rank == 0 && !o.slow_ms) printf("step %lld | loss %.9f\n", (long long)step + 1, loss), fflush(stdout);
    }
    if (o.trace) print_trace(m);
    print_reports("process", measured(m), formulas(m));
    if (m.mesh.replica == 0 && !o.weights.empty())
        write_weights(m.split, m.part, format("%s.%d", o.weights, m.mesh.stage));
    if (!o.folder.empty()) save(o, m, std::max(o.steps, before), before);
    const double formula = bubble_of_gpipe({m.mesh.P, m.micro, 1});
    if (comm.rank == 0 && o.slow_ms) printf("bubble %.4f, by the formula %.4f\n", least_bubble, formula);
    return 0;
}

int main(int argc, char** argv) {
    return run_program([&] { return train(settings_of(argc, argv)); });
}
