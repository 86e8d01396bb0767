// Smaller and fewer messages (llmc/compress): codes and residuals against plain loops; runs that
// compress gradients or train apart, on CPUs and in the simulator: the same bits whatever carries
// them and wherever they are resumed, the plan's bytes, refusals.
#include "dev/test/sent.h"
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/cpu/gradient_codes.h"

typedef std::vector<float> Floats;

static Floats numbers_from(size_t n, uint64_t seed) {
    Floats values(n);
    for (size_t i = 0; i < n; i++)
        values[i] = (float)((double)(hash_bits(seed, (int64_t)i) % 20001) - 10000) * (i % 3 == 0 ? 1e-4f : 1e-7f);
    return values;
}
// What 1 bit makes of n values p, from the formula: the sign times the mean of |p| over each block.
static Floats sign_values(const Floats& p) {
    Floats values(p.size());
    for (size_t begin = 0; begin < p.size(); begin += 256) {
        const size_t end = std::min(p.size(), begin + 256);
        double sum = 0;
        for (size_t i = begin; i < end; i++) sum += std::fabs((double)p[i]);
        for (size_t i = begin; i < end; i++) values[i] = (float)((p[i] < 0 ? -1 : 1) * sum / (double)(end - begin));
    }
    return values;
}

// Gradients coded for so many steps; whether all that was sent, with the residual, is their sum.
static bool nothing_is_lost(Compression kind, size_t n, int steps, double wrong = 0) {
    std::vector<double> gradients(n), sent(n);
    Floats residual(n), values(n);
    std::vector<char> codes(code_bytes(kind, (int64_t)n));
    double largest = 0;
    for (int step = 0; step < steps; step++) {
        const Floats g = numbers_from(n, 7 + step);
        encode_slice(codes.data(), residual.data(), g.data(), (int64_t)n, kind);
        decode_slices(values.data(), codes.data(), 0, 1, nullptr, 0, (int64_t)n, kind);
        for (size_t i = 0; i < n; i++) gradients[i] += g[i], sent[i] += values[i] * (1 + wrong);
    }
    for (size_t i = 0; i < n; i++) {
        const double difference = std::fabs(sent[i] + residual[i] - gradients[i]);
        if (!(difference <= largest)) largest = difference;  // NaN stays
    }
    return largest < 1e-5;
}

static void codes() {
    for (size_t n : {16u, 256u, 272u, 4096u + 48u}) {
        start_test(format("codes of %d values: 1 bit is the formula's; in 8 bits the largest is exact", n));
        const Floats p = numbers_from(n, 1), expected = sign_values(p);
        Floats residual(n), values(n);
        std::vector<char> bytes(code_bytes(IN_1_BIT, (int64_t)n));
        encode_slice(bytes.data(), residual.data(), p.data(), (int64_t)n, IN_1_BIT);
        decode_slices(values.data(), bytes.data(), 0, 1, nullptr, 0, (int64_t)n, IN_1_BIT);
        bool same = true;
        for (size_t i = 0; i < n; i++)
            same = same && std::fabs(values[i] - expected[i]) <= 1e-6 * std::fabs(expected[i]);
        EXPECT(same && values != sign_values(numbers_from(n, 2)));
        bytes.resize(code_bytes(IN_8_BITS, (int64_t)n)), residual.assign(n, 0);
        encode_slice(bytes.data(), residual.data(), p.data(), (int64_t)n, IN_8_BITS);
        decode_slices(values.data(), bytes.data(), 0, 1, nullptr, 0, (int64_t)n, IN_8_BITS);
        double error = 0, most = 0;
        for (size_t i = 0; i < n; i++) error = std::max(error, (double)std::fabs(values[i] - p[i]));
        for (float x : p) most = std::max(most, (double)std::fabs(x));
        EXPECT(error > 0 && error <= 0.5001 * 0.9 / 64 * most);
    }
    start_test("all that was sent, with the residual, is the sum of all gradients; a wrong value is noticed");
    for (Compression kind : {IN_8_BITS, IN_1_BIT}) {
        EXPECT(nothing_is_lost(kind, 272, 40));
        EXPECT(!nothing_is_lost(kind, 272, 40, 1e-3));
    }
    start_test("sums are added in the order of slices, and held within the limit of v; 0 where v is 0");
    const size_t n = 272;
    std::vector<char> two(2 * code_bytes(IN_1_BIT, (int64_t)n));
    Floats a(n), b(n), sum(n), v(n, 1e-8f), none(n);
    v[5] = 0;
    for (int s = 0; s < 2; s++) {
        none.assign(n, 0);
        char* const at = &two[s * code_bytes(IN_1_BIT, (int64_t)n)];
        encode_slice(at, none.data(), numbers_from(n, 3 + s).data(), (int64_t)n, IN_1_BIT);
        decode_slices(s ? b.data() : a.data(), at, 0, 1, nullptr, 0, (int64_t)n, IN_1_BIT);
    }
    decode_slices(sum.data(), two.data(), code_bytes(IN_1_BIT, (int64_t)n), 2, v.data(), 20, (int64_t)n, IN_1_BIT);
    bool held = sum[5] == 0, cut = false;
    for (size_t i = 0; i < n; i++) {
        const float most = std::sqrt(v[i] * 20), whole = a[i] + b[i];
        held = held && sum[i] == std::max(-most, std::min(most, whole)), cut = cut || sum[i] != whole;
    }
    EXPECT(held && cut);
    start_test("a value that is not finite makes its block so");
    for (Compression kind : {IN_8_BITS, IN_1_BIT})
        for (float bad : {NAN, INFINITY, -INFINITY}) {
            Floats p = numbers_from(n, 1), values(n);
            std::vector<char> bytes(code_bytes(kind, (int64_t)n));
            p[3] = bad, none.assign(n, 0);
            encode_slice(bytes.data(), none.data(), p.data(), (int64_t)n, kind);
            decode_slices(values.data(), bytes.data(), 0, 1, nullptr, 0, (int64_t)n, kind);
            bool finite = false;
            for (int i = 0; i < 256; i++) finite = finite || std::isfinite(values[i]);
            EXPECT(!finite && std::isfinite(values[256]));
        }
    start_test("codes take at most 0.27 and 0.04 of fp32's bytes, scales included");
    const int64_t layer = parameter_layout(GPT2Config(), 8).slice_elems(0);
    EXPECT((double)code_bytes(IN_8_BITS, layer) < 0.27 * 4 * (double)layer);
    EXPECT((double)code_bytes(IN_1_BIT, layer) < 0.04 * 4 * (double)layer);
}

// ---- runs

const std::string SIGNS = "--compress-gradients 1bit --compress-warmup 3 ";
const std::pair<const char*, std::string> WAYS[] = {
    {"8bit", "--compress-gradients 8bit "},
    {"1bit", SIGNS},
    {"1bit -z 1", SIGNS + "-z 1 "},
    {"apart", "--sync-every 3 "},
    {"outer steps", "--sync-every 3 --outer-lr 0.7 --outer-momentum 0.9 "},
};
static bool same_checkpoint(const std::string& a, const std::string& b, int64_t step, int n) {
    bool same = same_files(model_path(dir(a), step), model_path(dir(b), step));
    for (int r = 0; r < n; r++) same = same && same_files(state_path(dir(a), step, r), state_path(dir(b), step, r));
    return same;
}

static void runs() {
    const std::string batch = "-d 96 ";  // of six windows
    const std::string training = batch + "-c 0.1 -l 1e-3 -k constant -x 8 -n 4 --overwrite 1 -o ";
    const Outcome plain = run(several(CPU, 3, training + dir("plain")));
    for (const auto& [name, flags] : WAYS) {
        start_test(format("%s: the same bits by MPI and by shared memory, and resumed; other ones than without", name));
        const Outcome whole = run(several(CPU, 3, flags + training + dir("whole")));
        EXPECT(passed(whole) && passed(run(several(CPU, 3, flags + "--shared-memory 0 " + training + dir("by_mpi")))));
        EXPECT(same_checkpoint("whole", "by_mpi", 8, 3));
        EXPECT(!same_files(model_path(dir("whole"), 8), model_path(dir("plain"), 8)));
        EXPECT(apart(steps_of(whole).losses, steps_of(plain).losses, 8) < 0.03);
        unlink(done_path(dir("by_mpi"), 8).c_str());
        EXPECT(contains(run(several(CPU, 3, batch + "-y 1 -o " + dir("by_mpi"))).out, "resumed at step 4"));
        EXPECT(same_checkpoint("whole", "by_mpi", 8, 3));
        start_test(format("%s: in the simulator the losses of the CPU, and its own bits when resumed", name));
        const Outcome simulated = run(several(SIM32, 3, flags + training + dir("sim")));
        EXPECT(agree(simulated, whole, 8, 1e-4, 1e-3));
        EXPECT(passed(run(several(SIM16, 2, flags + training + dir("sim16")))));
        const std::string once = model_path(dir("sim16"), 8), kept = dir("model_kept.bin");
        write_whole(kept, read_whole(once));
        unlink(done_path(dir("sim16"), 8).c_str());
        EXPECT(contains(run(several(SIM16, 2, batch + "-y 1 -o " + dir("sim16"))).out, "resumed at step 4"));
        EXPECT(same_files(once, kept));
    }
    start_test("TCP carries the same bits");
    const std::string flags = batch + SIGNS + "--shared-memory 0 -pn 3 -pi fs -n 4 -x 8 -c 0.1 -l 1e-3 -k constant ";
    std::vector<pid_t> ranks;
    for (int r = 0; r < 3; r++)
        ranks.push_back(
            start(tiny_run(CPU, format("-b 1 --threads 1 -pf %s -pr %d -o ", folder, r) + dir("tcp") + " " + flags),
                  format("rank%d", r)));
    for (int r = 0; r < 3; r++) EXPECT(passed(finish(ranks[r], format("rank%d", r))));
    EXPECT(passed(run(several(CPU, 3, SIGNS + training + dir("whole")))) && same_checkpoint("whole", "tcp", 8, 3));
}

// The sum of all ranks' residuals in a checkpoint, bucket by bucket, those of sums included.
static std::vector<double> sum_of_residuals(const std::string& name, int64_t step) {
    std::vector<double> sums;
    StateHeader h;
    for (int64_t rank = 0; rank == 0 || rank < h.processes; rank++) {
        FileReader file(state_path(dir(name), step, rank));
        EXPECT(try_read_header(file, h) && h.version == STATE_VERSION_RANK);
        GPT2Config config;
        FileReader model(model_path(dir(name), step));
        read_model_header(model, config);
        const ParameterLayout layout = parameter_layout(config, h.processes), alone = parameter_layout(config, 1);
        sums.resize(alone.total_elems());
        file.seek(h.bytes() + state_values(layout, OPTIMIZERS[ADAMW], has_master(h)) * 4);
        for_each_rank_piece(layout, h.rank_states, [&](RankState state, const RankPiece& piece) {
            Floats values(piece.elems);
            file.read(values.data(), piece.elems * 4, "residuals");
            const int64_t first = rank_piece_begin(layout, state, piece, rank);
            for (int64_t i = 0; i < piece.elems && first + i < alone.bucket_elems(piece.bucket); i++)
                sums[alone.bucket_begin[piece.bucket] + first + i] += values[i];
        });
    }
    return sums;
}
static double difference(const std::vector<double>& a, const std::vector<double>& b) {
    double most = a.size() == b.size() ? 0 : INFINITY;
    for (size_t i = 0; i < a.size() && i < b.size(); i++)
        if (!(std::fabs(a[i] - b[i]) <= most)) most = std::fabs(a[i] - b[i]);
    return most;
}
// Adds what rank r of n finds of the residuals of dir("moving"), which three ranks have saved.
static void add_residuals_of(std::vector<double>& after, int n, int r, int stage) {
    comm_count(n, r);
    GPT2 model;
    Backend backend{};
    backend.copy_in =
        backend.copy_out = [](GPT2&, void* to, const void* from, int64_t bytes) { memcpy(to, from, bytes); };
    GPT2Config config;
    FileReader weights(model_path(dir("moving"), 6));
    read_model_header(weights, config);
    model.layout = parameter_layout(config, n), model.backend = &backend, model.compressed.kind = IN_1_BIT;
    if (stage == 1) model.slice = {n, r};
    std::vector<Floats> memory(9);
    int taken = 0;
    allocate_messages(model, [&](int64_t bytes) {
        memory[taken].resize(bytes / 4 + 1);
        return memory[taken++].data();
    });
    const ParameterLayout saved = parameter_layout(config, 3), alone = parameter_layout(config, 1);
    for (int64_t old = 0; old < 3; old++) {
        FileReader file(state_path(dir("moving"), 6, old));
        StateHeader h;
        EXPECT(try_read_header(file, h));
        file.seek(h.bytes() + state_values(saved, OPTIMIZERS[ADAMW], false) * 4);
        for_each_rank_piece(saved, h.rank_states, [&](RankState state, const RankPiece& piece) {
            Floats values(piece.elems);
            file.read(values.data(), piece.elems * 4, "residuals");
            take_rank_piece(model, state, old, rank_piece_begin(saved, state, piece, old), piece, values.data());
        });
    }
    for_each_rank_piece(model.layout, kept_rank_states(model), [&](RankState state, const RankPiece& p) {
        const int64_t first = rank_piece_begin(model.layout, state, p, r);
        for (int64_t i = 0; i < p.elems && first + i < alone.bucket_elems(p.bucket); i++)
            after[alone.bucket_begin[p.bucket] + first + i] += rank_memory(model, state)[p.at + i];
    });
}
static void moving() {
    start_test("another number of processes, or another stage, goes on with the sum of the residuals");
    const std::string out = SIGNS + "-l 1e-3 -k constant -o " + dir("moving") + " -y 1 ";
    EXPECT(passed(run(several(CPU, 3, out + "-x 6"))));
    const std::vector<double> before = sum_of_residuals("moving", 6);
    double size = 0;
    for (double x : before) size = std::max(size, std::fabs(x));
    for (int n : {1, 2, 4})
        for (int stage : {0, 1}) {
            if (n == 1 && stage == 1) continue;
            std::vector<double> after(before.size());
            for (int r = 0; r < n; r++) add_residuals_of(after, n, r, stage);
            comm_count(1);
            EXPECT(size > 0 && difference(after, before) <= 1e-6 * size);
        }
    start_test("a run that goes on without compression says that residuals are dropped");
    const Outcome two = run(several(CPU, 2, out + "-x 8")), one = run(several(CPU, 1, out + "-x 9"));
    EXPECT(passed(two) && two.err.empty());
    EXPECT(one.status == 0 && contains(one.err, "the residual of the run to resume is dropped"));
}

static void refusals() {
    start_test("flags that cannot work together, or have no effect: one sentence before the first step");
    const std::pair<const char*, const char*> wrong[] = {
        {"--compress-gradients 1bit", "--compress-gradients 1bit needs --compress-warmup"},
        {"--compress-gradients 1bit --compress-warmup 2 --optimizer lion", "--optimizer lion"},
        {"--compress-gradients 8bit -z 2", "-z 2"},
        {"--compress-gradients 8bit --sync-every 2", "--sync-every 2"},
        {"--compress-warmup 2", "--compress-warmup 2 has no effect"},
        {"--outer-lr 0.7", "--outer-lr 0.7 has no effect"},
        {"--sync-every 2 -z 1", "-z 1"},
        {"--sync-every 2 --optimizer muon", "--optimizer muon"},
        {"--sync-every 2 --noise-scale 1 -b 1 -d 32 -o none_is_made", "--noise-scale 1"},
        {"--compress-gradients 2bit", "accepted: none, 8bit, 1bit"},
        {"--sync-every -1", "--sync-every -1 is out of range"},
    };
    for (const auto& [flags, said] : wrong) EXPECT(refused(run(tiny_run(CPU, format("-x 1 %s", flags))), 2, said));
    EXPECT(refused(run(tiny_run(CPU, "-x 1 --precision bf16 -w 0 --sync-every 2")), 2, "-w 0"));
    Outcome r = run(tiny_run(CPU, "-x 1 --compress-gradients 8bit"));
    EXPECT(r.status == 0 && contains(r.err, "has no effect on one process"));
    r = run(MPIRUN + std::string("-np 1 ") + tiny_run(CPU, "-x 2") + " : -np 1 " +
            tiny_run(CPU, "-x 2 --compress-gradients 8bit"));
    EXPECT(r.status != 0 && contains(r.err, "--compress-gradients is not that of rank 1"));
}

static void bytes() {
    for (const std::string& program : {CPU, SIM16})
        for (const char* flags : {"--compress-gradients 8bit -z 0", "--compress-gradients 8bit -z 1",
                                  "--compress-gradients 1bit --compress-warmup 1 -z 0"}) {
            start_test(format("%s, 3 processes, %s: bytes sent are the plan's", program, flags));
            Sent sent;
            EXPECT(sends_as_planned(program, 3, flags, sent, contains(flags, "1bit") ? 2 : 1));
            EXPECT(contains(sent.order, "all_to_all 1, backward 0, "));
        }
    start_test("the bytes of GPT-2 124M on 8 processes are at most 0.27 and 0.04 of fp32's");
    const auto planned = [](const std::string& flags) {
        const std::string plan = run(CPU + " --plan -e d12 -t 64 -pn 8 -x 10 " + flags).out;
        return atof(plan.c_str() + plan.find("wire a step: ") + 13);
    };
    const double fp32 = planned("");
    EXPECT(fp32 > 8e8 && planned("--compress-gradients 8bit") < 0.27 * fp32);
    EXPECT(planned("--compress-gradients 1bit --compress-warmup 2") < 0.04 * fp32);
    EXPECT(planned("--sync-every 100") < 0.0101 * fp32);
}

// test_messages [GROUP...]: all tests, or those of the functions named.
int main(int argc, char** argv) {
    make_test_folder();
    const auto wanted = [&](const char* group) { return wants_group(argc, argv, group); };
    if (wanted("codes")) codes();
    if (run(std::string(MPIRUN) + "-np 2 true").status != 0 ||
        !contains(run(several(CPU, 2, "-x 1")).out, "step    1/1")) {
        skip_test("runs under mpirun (apt-get install libopenmpi-dev openmpi-bin, then make clean test)");
        return report_and_clean();
    }
    if (wanted("refusals")) refusals();
    if (wanted("moving")) moving();
    if (wanted("bytes")) bytes();
    if (wanted("runs")) runs();
    return report_and_clean();
}
