// Pipeline parallelism: the layers of a model are divided among P processes, its stages. A batch
// passes through them in m micro-batches, so that several stages have work at the same time.
//
//     mpirun -np 4 build/pipeline --schedule 1f1b --micro 8
//     scripts/processes.sh -np 4 build/pipeline --schedule zb-h1 --micro 8      without MPI
//     build/pipeline --micro 8                                                  one process: the same bits
//
// A schedule is a list of actions for each stage (schedules.h). One executor runs any of them: it
// waits for what an action needs of another stage, does it, and sends on what comes out.
//
// With --slow-ms MS stages sleep in place of computing: MS for the forward pass of a micro-batch,
// twice as long for the backward pass. Then the bubble, the share of time in which stages have
// nothing to do, is that of the schedule and not that of the machine.
#include "dev/parallel/parallel.h"
#include "dev/parallel/program.h"
#include "dev/parallel/schedules.h"

// ---- a stage

// Chunk c of stage s is place c P + s of the model. A message brings a place its input, or the
// gradient of its output.
struct Message {
    bool forward;
    int64_t micro, place;
    bool operator<(const Message& other) const {
        return std::tie(forward, micro, place) < std::tie(other.forward, other.micro, other.place);
    }
};
// What a place keeps of a micro-batch; residual3, dlnf and norms are those of the last place.
struct Record {
    std::vector<LayerRecord> layers;
    Counted residual3, dlnf, norms;
};
struct Event {
    Action action;
    double begin, end;
};
struct Stage {
    Shape shape;
    int64_t stage, layers, slow_ms;  // layers: of a place
    Part part;
    std::vector<int> tokens;
    std::map<std::pair<int64_t, int64_t>, Record> kept{};  // by micro-batch and chunk
    std::map<Message, Floats> arrived{};
    std::map<int64_t, std::deque<Message>> expected{};  // what other ranks send to this one, in their order
    Outbox outbox{};
    int64_t first_window = 0;
    double loss = 0, began = 0;  // began: the step, and its events count from there
    std::vector<Event> events{};

    int64_t last_place() const { return shape.P * shape.v - 1; }
};

// The message that an action of a stage sends; place -1: none.
static Message sent_by(const Shape& shape, const Action& a, int64_t stage) {
    const int64_t place = a.chunk * shape.P + stage, to = a.kind == 'F' ? place + 1 : place - 1;
    return {a.kind == 'F', a.micro, a.kind == 'W' || to == shape.P * shape.v ? -1 : to};
}
// Sends what came out of an action to where it is needed, which may be another chunk here.
static void send(Stage& s, const Message& m, Floats&& data) {
    if (m.place < 0) return;
    const int64_t to = m.place % s.shape.P;
    if (to == s.stage) return s.arrived[m].swap(data);
    s.outbox.send(std::move(data), to);
}
// Waits for a message. Messages have no names, but the list of the other stage is known: they come
// in the order of its actions, and those that are early stay in s.arrived.
static Floats receive(Stage& s, const Message& wanted, int64_t from) {
    while (s.arrived.count(wanted) == 0) {
        if (s.expected[from].empty())
            runtime_failure("internal: no action of rank %d sends what rank %d needs", from, s.stage);
        const Message next = s.expected[from].front();
        s.expected[from].pop_front();
        s.arrived[next] = receive_message(ROWS * s.part.c.C, from);
    }
    const auto node = s.arrived.extract(wanted);
    return std::move(node.mapped());
}

// The end of the network: the loss, and the gradients of what the classifier reads and of wte,
// which it has at hand.
static void classify(Stage& s, Record& k, const Floats& out, const int* targets) {
    const GPT2Config& c = s.part.c;
    Floats lnf(ROWS * c.C), logits(classifier_chunk_rows(ROWS) * c.Vp), losses(ROWS);
    kernels::layernorm_forward(lnf.data(), k.norms.data(), k.norms.data() + ROWS, out.data(), s.part.weight(LNFW),
                               s.part.weight(LNFB), ROWS, c.C);
    kernels::classifier(losses.data(), k.dlnf.data(), s.part.gradient(WTE), logits.data(), lnf.data(),
                        s.part.weight(WTE), targets, ROWS, c.C, c.V, c.Vp, 1.0f / (float)(ROWS * s.shape.m), true);
    for (const float loss : losses) s.loss += loss;
}
// data: from the input of a place to its output.
static void forward(Stage& s, Record& k, const Action& a, int64_t place, Floats& data) {
    const bool computes = s.slow_ms == 0, last = place == s.last_place();
    const int64_t C = s.part.c.C;
    const int* x = window(s.tokens, s.first_window + a.micro);
    data.resize(ROWS * C);
    if (place == 0 && computes)
        kernels::encoder_forward(data.data(), x, s.part.weight(WTE), s.part.weight(WPE), B, T, C);
    for (int64_t i = 0; i < s.layers; i++) {
        k.layers.push_back(layer_record(s.part.c, Counted(data.begin(), data.end())));
        if (computes) layer_forward(s.part, place * s.layers + i, k.layers.back(), data.data());
        comm_progress();
    }
    if (last) k.residual3.assign(data.begin(), data.end()), k.dlnf.resize(ROWS * C), k.norms.resize(2 * ROWS);
    if (last && computes) classify(s, k, data, x + 1);
}
// data: from the gradient of a place's output to that of its input.
static void backward_inputs(Stage& s, Record& k, const Action& a, int64_t place, Floats& data) {
    Part& p = s.part;
    const bool computes = s.slow_ms == 0;
    const int64_t C = p.c.C;
    if (place == s.last_place()) {
        data.assign(ROWS * C, 0);
        if (computes)
            kernels::layernorm_backward(data.data(), p.gradient(LNFW), p.gradient(LNFB), k.dlnf.data(),
                                        k.residual3.data(), p.weight(LNFW), k.norms.data(), k.norms.data() + ROWS, ROWS,
                                        C, true);
        for (Counted* done : {&k.residual3, &k.dlnf, &k.norms}) Counted().swap(*done);
    }
    for (int64_t i = s.layers - 1; i >= 0 && computes; i--, comm_progress())
        layer_backward_inputs(p, place * s.layers + i, k.layers[i], data.data());
    if (place == 0 && computes)
        kernels::encoder_backward(p.dembedding.data(), p.gradient(WPE), data.data(),
                                  window(s.tokens, s.first_window + a.micro), B, T, C, p.c.maxT, true);
}
// What an action takes when stages sleep; a stage's work is divided among its chunks.
static double slow_seconds(const Stage& s, const Action& a) {
    return 1e-3 * (double)(s.slow_ms * (a.kind == 'B' ? 2 : 1)) / (double)s.shape.v;
}
static void run_action(Stage& s, const Action& a) {
    const int64_t place = a.chunk * s.shape.P + s.stage, source = a.kind == 'F' ? place - 1 : place + 1;
    Floats data;
    if (a.kind != 'W' && source >= 0 && source <= s.last_place())
        data = receive(s, {a.kind == 'F', a.micro, place}, source % s.shape.P);
    const double begin = now_seconds();
    Record& k = s.kept[{a.micro, a.chunk}];
    sleep_until(begin + slow_seconds(s, a));
    if (a.kind == 'F') forward(s, k, a, place, data);
    if (a.kind == 'B' || a.kind == 'I') backward_inputs(s, k, a, place, data);
    for (int64_t i = 0; i < s.layers && (a.kind == 'B' || a.kind == 'W') && s.slow_ms == 0; i++)
        layer_backward_weights(s.part, place * s.layers + i, k.layers[i]);
    if (a.kind == 'B' || a.kind == 'W') s.kept.erase({a.micro, a.chunk});
    s.events.push_back({a, begin - s.began, now_seconds() - s.began});
    send(s, sent_by(s.shape, a, s.stage), std::move(data));
    s.outbox.forget_complete();
}
// wte is in the first stage, as the embedding, and in the last, as the classifier. Each sends the
// other its gradient, and both add them in the same order: the classifier's, then the embedding's.
static void join_embedding(Stage& s) {
    const int64_t P = s.shape.P, bytes = (int64_t)(s.part.dembedding.size() * sizeof(float));
    if (bytes == 0) return;
    float *classifier = s.part.gradient(WTE), *embedding = s.part.dembedding.data();
    const bool first = s.stage == 0;
    if (P > 1) {
        comm_send_start(first ? embedding : classifier, bytes, P - 1 - s.stage);
        comm_receive_start(first ? classifier : embedding, bytes, P - 1 - s.stage);
        comm_wait("the gradient of wte");
    }
    kernels::residual_forward(classifier, classifier, embedding, s.part.dembedding.size());
}
static void run_step(Stage& s, const Schedule& schedule, int64_t step) {
    s.first_window = step * s.shape.m, s.loss = 0, s.events.clear();
    for (int64_t r = 0; r < s.shape.P; r++)
        for (const Action& a : schedule.actions(s.shape, r)) {
            const Message m = sent_by(s.shape, a, r);
            if (m.place >= 0 && m.place % s.shape.P == s.stage) s.expected[r].push_back(m);
        }
    comm_barrier("the step");
    s.began = now_seconds();
    for (const Action& a : schedule.actions(s.shape, s.stage)) run_action(s, a);
    s.outbox.wait();
    join_embedding(s);
    if (s.slow_ms == 0) update(s.part, step + 1);
}

// ---- a run

// By the formulas: what a stage keeps at most, and what it sends in a step.
static Counts formulas(const Stage& s, const Schedule& schedule) {
    const auto& [P, m, v] = s.shape;
    const GPT2Config& c = s.part.c;
    const bool first = s.stage == 0, last = s.stage == P - 1;
    const int64_t heads = last ? ROWS * (2 * c.C + 2) * (schedule.actions == gpipe ? m : 1) : 0;
    const int64_t messages = P > 1 ? m * (2 * v - first - last) : 0;
    const int64_t tied = P > 1 && (first || last) ? c.Vp * c.C : 0;
    return {4 * (schedule.kept(s.shape, s.stage) * s.layers * layer_record_elems(c) + heads),
            4 * (messages * ROWS * c.C + tied)};
}
static Busy busy(const Stage& s) {
    Busy found{0, s.events.back().end};
    for (const Event& e : s.events) found.busy_s += s.slow_ms ? slow_seconds(s, e.action) : e.end - e.begin;
    return found;
}
// One line for each action of each stage: trace STAGE KIND MICRO-BATCH CHUNK BEGIN END.
static void print_trace(const Stage& s) {
    std::vector<Event> all(comm.processes * s.events.size());
    comm_gather(all.data(), s.events.data(), (int64_t)(s.events.size() * sizeof(Event)), "the trace");
    for (size_t i = 0; i < all.size() && comm.rank == 0; i++)
        printf("trace %lld %c %lld %lld %.6f %.6f\n", (long long)(i / s.events.size()), all[i].action.kind,
               (long long)all[i].action.micro, (long long)all[i].action.chunk, all[i].begin, all[i].end);
}

struct Settings {
    std::string schedule = "1f1b", data = BYTES_OF_TEXTS;
    int64_t micro = 8, chunks = 1, layers = 8, steps = 20, slow_ms = 0, trace = 0;
};
static Settings settings_of(int argc, char** argv) {
    Settings o;
    read_flags(argc, argv,
               {{{"--schedule", &o.schedule}, {"--data", &o.data}},
                {{"--micro", {&o.micro}},
                 {"--chunks", {&o.chunks}},
                 {"--layers", {&o.layers}},
                 {"--steps", {&o.steps}},
                 {"--slow-ms", {&o.slow_ms, 0}},
                 {"--trace", {&o.trace, 0, 1}}}});
    return o;
}
// The schedule, if it suits the numbers; else exit 2.
static const Schedule& schedule_of(const Settings& o, int64_t P) {
    std::string names;
    for (const Schedule& s : SCHEDULES) {
        names += (names.empty() ? "" : ", ") + std::string(s.name);
        if (s.name != o.schedule) continue;
        if (o.chunks > 1 && s.actions != interleaved)
            usage_error("--chunks %d: only --schedule interleaved has chunks", o.chunks);
        if (o.layers % (P * o.chunks) != 0)
            usage_error("--layers %d do not divide among %d processes, --chunks %d each", o.layers, P, o.chunks);
        if (s.actions != naive && o.micro < P)
            usage_error("--micro %d: %s keeps %d stages busy with %d micro-batches or more", o.micro, s.name, P, P);
        if (s.actions == interleaved && o.micro % P != 0)
            usage_error("--micro %d: interleaved takes a multiple of its %d stages", o.micro, P);
        return s;
    }
    usage_error("--schedule %s is unknown; %s are accepted", o.schedule, names);
}

static int train(const Settings& o) {
    const CommSession session;
    const Schedule& schedule = schedule_of(o, launched_processes());
    meet("pipeline");
    const GPT2Config c = small_model(o.layers);
    const int64_t P = comm.processes, stage = comm.rank, layers = o.layers / (P * o.chunks);
    const auto keep = [=](int tensor, int64_t layer, Floats&& all) {
        const bool outside = tensor == WPE ? stage == 0 : stage == P - 1 || (tensor == WTE && stage == 0);
        return (TENSORS[tensor].per_layer ? layer / layers % P == stage : outside) ? all : Floats();
    };
    Stage s{{P, o.micro, o.chunks}, stage, layers, o.slow_ms, first_weights(c, 42, keep), read_tokens(o.data)};
    prepare_kernels(c);
    double least_bubble = 1;
    for (int64_t step = 0; step < o.steps; step++) {
        counted_step([&] { run_step(s, schedule, step); });
        least_bubble = std::min(least_bubble, idle_share(busy(s)));
        const double loss = comm_gather(s.loss, "the loss")[P - 1] / (double)(ROWS * o.micro);
        if (comm.rank == 0 && !o.slow_ms) printf("step %lld | loss %.9f\n", (long long)step + 1, loss), fflush(stdout);
    }
    if (o.trace) print_trace(s);
    print_reports("stage", counts(), formulas(s, schedule));
    const uint64_t checksum = checksum_of_weights(s.part);
    if (comm.rank == 0 && o.slow_ms)
        printf("bubble %.4f, by the formula %.4f\n", least_bubble, schedule.bubble(s.shape));
    else if (comm.rank == 0) printf("weights %016llx\n", (unsigned long long)checksum);
    return 0;
}

int main(int argc, char** argv) {
    return run_program([&] { return train(settings_of(argc, argv)); });
}
