// What is done to a model that is there: --train, which leaves tensors as they are, and --lora,
// which trains adapters beside them. On a CPU, in the simulator, with several processes, and
// resumed.
#include <cmath>
#include "dev/test/recorded.h"
#include "dev/test/several.h"
#include "llmc/adapt/lora.h"
#include "llmc/base/random.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/cpu/low_rank.h"
#include "llmc/cpu/reference_low_rank.h"
#include "llmc/cpu/scratch.h"

static const GPT2Config TINY{16, 256, 256, 2, 2, 32};  // of tiny_run()
static const std::string FLAGS = "-x 3 -l 3e-3 -c 0.1 --grad-clip 0 --overwrite 1 ";
static std::string in(const std::string& name) { return " -o " + dir(name) + " "; }
static std::string weights(const std::string& name, int step) { return model_path(dir(name), step); }
static std::string state(const std::string& name, int step, int rank = 0) { return state_path(dir(name), step, rank); }
static bool trains_by(const std::string& program, const std::string& more) {
    return passed(run(tiny_run(program, FLAGS + more)));
}
static GPT2Config config_of(const std::string& train) {
    GPT2Config c = TINY;
    return c.trained = trained_of(train, c), c;
}

static void names() {
    start_test("--train: what names and ranges of layers stand for");
    EXPECT(config_of("all").trained.empty() && config_of("wte,wpe,layers,lnf").trained.empty());
    EXPECT(config_of("head,wpe,layers=0,layers=1").trained.empty());
    const GPT2Config c = config_of("ln,qkv=1,lnf");
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0; l < 2; l++) {
            const bool ln = i == LN1W || i == LN1B || i == LN2W || i == LN2B, lnf = i == LNFW || i == LNFB;
            EXPECT(trains(c, i, l) == (ln || lnf || (l == 1 && (i == QKVW || i == QKVB))));
        }
    start_test("the lowest layer that trains, and what is below ln1");
    EXPECT(parameter_layout(config_of("all"), 1).lowest_trained() == -1);
    EXPECT(parameter_layout(config_of("wpe"), 3).lowest_trained() == -1);
    EXPECT(parameter_layout(config_of("layers"), 1).lowest_trained() == 0);
    EXPECT(parameter_layout(config_of("fc=1"), 2).lowest_trained() == 1);
    EXPECT(parameter_layout(config_of("lnf"), 1).lowest_trained() == 2);
    EXPECT(!parameter_layout(config_of("fc=1"), 1).goes_below(1) &&
           parameter_layout(config_of("ln=1"), 1).goes_below(1));
    start_test("the layout: no tensor overlaps another, and what does not train is behind all buckets");
    for (const char* train : {"all", "ln,qkv=1,lnf", "bias", "wte", "fc=0"})
        for (int64_t processes : {1, 3})
            for (int64_t rank : {0, 3}) {
                GPT2Config c = config_of(train);
                if (rank > 0) c.lora = {rank, ALL_ADAPTED, 1}, c.trained = only_adapters(c);
                const ParameterLayout layout = parameter_layout(c, processes);
                std::vector<bool> taken(layout.total_elems() + layout.frozen_elems);
                for (int i = 0; i < ALL_TENSORS; i++)
                    for (int64_t l = 0; l < tensor_layers(i, c); l++) {
                        EXPECT((layout.offset(i, l) >= layout.total_elems()) == !trains(c, i, l));
                        for (int64_t k = 0; k < tensor_elems(i, c); k++) {
                            EXPECT(!taken.at(layout.offset(i, l) + k));
                            taken[layout.offset(i, l) + k] = true;
                        }
                    }
            }
}

// The m of a tensor that a state file of one process has: a tenth of its gradient after one step.
static std::vector<float> moment_of(const std::string& path, const GPT2Config& c, int tensor, int64_t layer) {
    const ParameterLayout layout = parameter_layout(c, 1);
    const std::string bytes = read_whole(path);
    StateHeader header;
    FileReader file(path);
    EXPECT(try_read_header(file, header));
    const int64_t bucket = layout.bucket_of(tensor, layer);
    const int64_t at = header.bytes() + 4 * (2 * layout.bucket_begin[bucket] + layout.offset_in_bucket(tensor, layer));
    std::vector<float> values(tensor_elems(tensor, c));
    EXPECT(at + (int64_t)values.size() * 4 <= (int64_t)bytes.size());
    memcpy(values.data(), bytes.data() + at, values.size() * 4);
    return values;
}
// A tensor of a model file.
static std::vector<float> weight_of(const std::string& path, int tensor, int64_t layer) {
    FileReader file(path);
    GPT2Config c;
    std::vector<float> found;
    const int32_t version = read_model_header(file, c);
    read_model_tensors(file, version, c, [&](int i, int64_t l, const float* values) {
        if (i == tensor && l == layer) found.assign(values, values + tensor_elems(i, c));
    });
    return found;
}

static void frozen() {
    const char* const SETS[] = {"wte,ln,layers=1,head", "lnf", "layers=1", "bias", "qkv=1,fc=0", "wpe", "ln"};
    EXPECT(trains_by(CPU, "-n 1 -x 1" + in("whole")) && trains_by(CPU, "-x 0" + in("none")));
    EXPECT(passed(run(tiny_run(CPU, "-x 1 -l 0 -n 1 --overwrite 1" + in("begun")))));
    for (const char* train : SETS) {
        start_test(
            format("--train %s: gradients are those of a run that trains all, and the rest stays as it was", train));
        EXPECT(trains_by(CPU, format("-x 1 --train %s", train) + in("some")));
        const GPT2Config c = config_of(train);
        for (int i = 0; i < NUM_TENSORS; i++)
            for (int64_t l = 0; l < tensor_layers(i, c); l++) {
                const bool trained = trains(c, i, l);
                const std::vector<float> before = weight_of(weights("begun", 1), i, l);
                EXPECT((weight_of(weights("some", 1), i, l) != before) == trained);
                if (trained) EXPECT(moment_of(state("some", 1), c, i, l) == moment_of(state("whole", 1), TINY, i, l));
            }
        EXPECT(file_bytes(state("some", 1)) ==
               (int64_t)sizeof(StateHeader) + 8 * parameter_layout(c, 1).total_elems() + 8);
    }
}

// The same bits, whatever should not change them. flags: of --train or --lora; more: of one run.
static void same_bits() {
    for (const std::string flags : {"--train ln,layers=1,lnf ", "--train qkv=0 ", "--lora 3 --lora-on qkv,fcproj ",
                                    "--lora 4 ", "--lora 3 --weights nf4 "})
        for (const std::string& program : {CPU, CPU + " --precision bf16"}) {
            start_test(program + " " + flags + "has the same bits on 1 and 3 threads, at any -r, and when resumed");
            EXPECT(trains_by(program, flags + "-d 64" + in("a")));
            for (const char* more :
                 {"--threads 1", "--threads 3", "-r 0", "-r 2", "-r 3", "-r 4 --recompute-every 2"}) {
                EXPECT(trains_by(program, flags + "-d 64 " + more + in("b")));
                EXPECT(same_files(weights("a", 3), weights("b", 3)) && same_files(state("a", 3), state("b", 3)));
            }
            EXPECT(trains_by(program, flags + "-d 64 -x 2" + in("b")));
            EXPECT(passed(run(CPU + " -y 1 -x 3" + in("b"))));
            EXPECT(same_files(weights("a", 3), weights("b", 3)) && same_files(state("a", 3), state("b", 3)));
        }
}

static double difference(const std::string& a, const std::string& b) {
    double most = 0;
    for (int64_t step = 1; step <= 3; step++) {
        const double loss = at(a, step, METRIC_LOSS), norm = at(a, step, METRIC_NORM);
        most = std::max(
            {most, std::fabs(at(b, step, METRIC_LOSS) / loss - 1), std::fabs(at(b, step, METRIC_NORM) / norm - 1)});
    }
    return most;
}
static void processes() {
    for (const std::string flags : {"--train ln,layers=1,lnf ", "--lora 4 "}) {
        const bool alike = flags.find('=') == flags.npos;  // all layers
        start_test(flags + "has the same numbers with 1, 2 and 3 processes, and all -z that it can have the same bits");
        EXPECT(passed(run(several(CPU, 1, FLAGS + flags + in("one")))));
        for (int n : {2, 3}) {
            EXPECT(passed(run(several(CPU, n, FLAGS + flags + in("z0")))));
            EXPECT(difference("one", "z0") < 1e-5);
            const std::string once = format("%s%s-d %d ", FLAGS, flags, 16 * n);  // one micro-step
            EXPECT(passed(run(several(CPU, n, once + in("z0")))));
            for (int stage = 1; stage <= (alike ? 3 : 1); stage++) {
                EXPECT(passed(run(several(CPU, n, format("%s-z %d", once, stage) + in("z1")))));
                EXPECT(same_files(weights("z0", 3), weights("z1", 3)));
                for (int rank = 0; rank < n; rank++) EXPECT(same_files(state("z0", 3, rank), state("z1", 3, rank)));
            }
        }
        EXPECT(passed(run(several(CPU, 3, FLAGS + flags + (alike ? "-z 3 -x 2" : "-z 1 -x 2") + in("z1")))));
        EXPECT(passed(run(MPIRUN + ("-np 2 " + CPU) + " -y 1 -x 3" + in("z1"))));
        EXPECT(difference("one", "z1") < 1e-5);
    }
}

// Optimizers that look at whole tensors, or keep small state: sharded and resumed as without.
static void other_optimizers() {
    for (const char* optimizer : {"lamb", "adafactor", "sm3", "adamw8bit", "lion"})
        for (const char* train : {"--lora 4", "--train ln,qkv"}) {
            const std::string flags = format("%s --optimizer %s ", train, optimizer);
            start_test(flags + "has the same bits with any -z, and when resumed; the rest stays as it was");
            EXPECT(passed(run(several(CPU, 2, FLAGS + flags + "-d 32" + in("z0")))));
            EXPECT(passed(run(several(CPU, 2, FLAGS + flags + "-d 32 -z 3" + in("z3")))));
            EXPECT(same_files(weights("z0", 3), weights("z3", 3)));
            for (int rank = 0; rank < 2; rank++) EXPECT(same_files(state("z0", 3, rank), state("z3", 3, rank)));
            EXPECT(trains_by(CPU, flags + "-b 2 -d 32" + in("a")) &&
                   trains_by(CPU, flags + "-b 2 -d 32 -x 2" + in("b")));
            EXPECT(passed(run(CPU + " -y 1 -x 3" + in("b"))));
            EXPECT(same_files(weights("a", 3), weights("b", 3)) && same_files(state("a", 3), state("b", 3)));
            EXPECT(difference("a", "z0") < 1e-4);
        }
}

static void simulated_processes() {
    for (const std::string flags : {"--lora 4 ", "--lora 4 --optimizer adafactor ", "--lora 3 --optimizer adamw8bit ",
                                    "--lora 4 --weights nf4 ", "--train ln,qkv --optimizer lamb "}) {
        start_test("in the simulator " + flags + "has the same bits with any -z, and the CPU's losses");
        EXPECT(passed(run(several(SIM32, 2, FLAGS + flags + "-d 32" + in("z0")))));
        for (const char* stage : {"-z 2", "-z 3"}) {
            EXPECT(passed(run(several(SIM32, 2, FLAGS + flags + "-d 32 " + stage + in("z3")))));
            EXPECT(same_files(weights("z0", 3), weights("z3", 3)));
            for (int rank = 0; rank < 2; rank++) EXPECT(same_files(state("z0", 3, rank), state("z3", 3, rank)));
        }
        EXPECT(passed(run(several(SIM32, 2, FLAGS + flags + "-l 0.05 -d 32" + in("z0")))));
        EXPECT(trains_by(CPU, flags + "-l 0.05 -d 32" + in("cpu")));
        EXPECT(difference("cpu", "z0") < 1e-3);
    }
}

static void simulated() {
    for (const std::string flags :
         {"--train wte,ln,layers=1,head ", "--train bias ", "--train wpe,fc=0 ", "--train lnf ", "--lora 4 ",
          "--lora 3 --lora-on qkv,fcproj --lora-alpha 20 ", "--lora 4 --weights int8 ",
          "--lora 3 --lora-on qkv --weights int4 ", "--lora 2 --weights nf4 -r 3 "}) {
        start_test(flags + "has the CPU's losses and norms in the simulator");
        EXPECT(trains_by(CPU, flags + "-d 64" + in("cpu")) && trains_by(SIM32, flags + "-f 0 -d 64" + in("sim")));
        EXPECT(difference("cpu", "sim") < 1e-4);
        for (const char* more : {"-d 32", "-d 64"}) {
            EXPECT(trains_by(CPU, flags + more + in("cpu")) && trains_by(SIM16, flags + more + in("sim")));
            EXPECT(difference("cpu", "sim") < 0.05);
        }
    }
    start_test("in the simulator a run with --lora that is resumed has the same bits");
    EXPECT(trains_by(SIM16, "--lora 4" + in("a")) && trains_by(SIM16, "--lora 4 -x 2" + in("b")));
    EXPECT(passed(run(SIM16 + " -y 1 -x 3" + in("b"))));
    EXPECT(same_files(weights("a", 3), weights("b", 3)) && same_files(state("a", 3), state("b", 3)));
}

// The validation loss of a model that does not train.
static double val_loss(const std::string& program, const std::string& flags) {
    const std::string out = run(tiny_run(program, "-x 0 -v 1 -m 3 " + flags)).out;
    const size_t at = out.find("val loss ");
    return at == out.npos ? NAN : atof(out.c_str() + at + 9);
}
static void simulated_codes() {
    EXPECT(trains_by(CPU, "-l 1e-2" + in("base")));
    const std::string base = "-e " + weights("base", 3) + " ";
    EXPECT(trains_by(CPU, base + "--lora 4 -l 1e-2" + in("lora")));
    for (const std::string adapted : {"", "--adapter "})
        for (const char* format_of_weights : {"int8", "int4", "nf4"}) {
            start_test(format("in the simulator %s--weights %s has the CPU's losses", adapted, format_of_weights));
            const std::string plain = base + (adapted.empty() ? "" : adapted + dir("lora") + " "),
                              flags = plain + "--weights " + format_of_weights + " ";
            const double by_cpu = val_loss(CPU, flags);
            EXPECT(std::fabs(val_loss(SIM32, flags + "-f 0 ") - by_cpu) < 2e-5 && by_cpu != val_loss(CPU, plain));
            EXPECT(std::fabs(val_loss(SIM16, flags) - by_cpu) < 2e-2);
        }
}

static void adapter_files() {
    start_test("a run with --lora saves adapters alone; they go on with -e, --adapter, and by the run's folder");
    EXPECT(trains_by(CPU, in("base")) && trains_by(CPU, "-x 2" + in("other")));
    const std::string base = "-e " + weights("base", 3) + " ", flags = base + "--lora 4 ";
    EXPECT(trains_by(CPU, flags + in("lora")));
    GPT2Config c = TINY;
    c.lora = {4, ALL_ADAPTED, 8};
    EXPECT(file_bytes(weights("lora", 3)) == adapter_file_bytes(c, 4));
    const std::string once = "-x 0 -v 1 -m 3 ";
    const auto val_loss = [&](const std::string& model) {
        const std::string out = run(tiny_run(CPU, once + model)).out;
        return out.substr(std::min(out.find("val loss"), out.size()), 17);
    };
    const std::string by_file = val_loss(base + "--adapter " + weights("lora", 3)),
                      by_run = val_loss("-e " + dir("lora"));
    EXPECT(by_file.size() == 17 && by_file == by_run && by_file == val_loss(base + "--adapter " + dir("lora")));
    EXPECT(by_file != val_loss(base));
    start_test("adapters of another model, rank or shape, damaged files: one sentence, and nothing is written");
    const std::string adapter = " --adapter " + weights("lora", 3) + " ";
    const auto refused = [&](const std::string& more, int status) {
        const Outcome r = run(tiny_run(CPU, "-x 1 " + more + in("no")));
        const bool good = r.status == status && one_line(r.err) && !folder_exists(dir("no"));
        if (!good) printf("    %s: %d %s\n", more.c_str(), r.status, r.err.c_str());
        return good;
    };
    EXPECT(refused("-e " + weights("other", 2) + adapter, 1) && refused("-e L3C32H2T16V256" + adapter, 1));
    EXPECT(refused(base + adapter + "--lora 5", 2) && refused(base + adapter + "--lora-alpha 3", 2));
    EXPECT(refused(base + adapter + "--lora-on qkv", 2) && refused("-e " + weights("lora", 3), 2));
    EXPECT(refused(base + "--adapter " + weights("base", 3), 1) && refused(base + "--adapter " + dir("nothing"), 1));
    EXPECT(refused(base + "--lora-alpha 3", 2) && refused(base + "--lora 4 --train ln", 2));
    const std::string whole = read_whole(weights("lora", 3));
    for (size_t length : {0, 100, 1023, 1024, 5000})
        write_whole(dir("cut.bin"), whole.substr(0, length)), EXPECT(refused(base + "--adapter " + dir("cut.bin"), 1));
    for (int field : {1, 2, 4, 8, 9, 10, 13}) {
        std::string broken = whole;
        memset(&broken[field * 4], 0xff, 4);
        write_whole(dir("cut.bin"), broken), EXPECT(refused(base + "--adapter " + dir("cut.bin"), 1));
    }
    for (const char* more : {"--optimizer muon", "--sync-every 2", "-d 64 --noise-scale 1", "--compress-gradients 8bit",
                             "--offload optimizer", "--log-tensors 1"})
        EXPECT(refused(base + "--lora 4 " + more, 2) && refused(std::string("--train ln ") + more, 2));
    for (const char* more : {"-z 2", "-z 3", "--optimizer adafactor", "--optimizer adamw8bit"})
        EXPECT(refused(std::string("--train layers=1 ") + more, 2));
    for (const char* names : {"lm", "ln,,wte", "wte=1", "ln=2", "ln=1-0", "ln=", "ln=-1"})
        EXPECT(refused(format("--train '%s'", names), 2));
    for (const char* names : {"ln", "qkv,qkv", "qkv,"})
        EXPECT(refused(base + format("--lora 2 --lora-on '%s'", names), 2));
    start_test("a run is not resumed with other tensors to train");
    for (const char* more : {" --train ln --lora 0", " --weights nf4"}) {
        const Outcome r = run(CPU + " -y 1 -x 4" + more + in("lora"));
        EXPECT(r.status == 2 && one_line(r.err));
    }
}

static int64_t planned(const std::string& text, const std::string& row) {
    const size_t at = text.find("\n" + row);
    return at == text.npos ? -1 : atoll(text.c_str() + text.find_first_of("0123456789", at + 40));
}
static void plans() {
    start_test("--plan: gradients and state of what trains alone, and the bytes of a checkpoint");
    for (const std::string& program : {CPU, SIM32})
        for (const std::string flags : {"--lora 4 ", "--train ln,fc=1 "}) {
            const std::string text = run(tiny_run(program, "-x 1 --plan " + flags)).out;
            GPT2Config c = flags[2] == 't' ? config_of("ln,fc=1") : TINY;
            if (flags[2] == 'l') c.lora = {4, ALL_ADAPTED, 8}, c.trained = only_adapters(c);
            const int64_t elems = parameter_layout(c, 1).total_elems();
            EXPECT(planned(text, "gradients      = all") == 4 * elems &&
                   planned(text, "optimizer      = all") == 8 * elems);
            EXPECT(trains_by(program, "-x 1 " + flags + in("planned")));
            const int64_t bytes = file_bytes(weights("planned", 1)) + file_bytes(state("planned", 1));
            EXPECT(contains(text, format("a checkpoint: %d bytes", bytes)));
        }
}

// ---- the kernels

struct LowRankCase {
    int64_t rows, C, OC, R;
    bool gelu;
};
static std::vector<float> random_values(int64_t n, uint64_t seed, float scale = 1) {
    MersenneTwister rng(seed);
    std::vector<float> values(n);
    for (float& value : values) value = scale * (2 * rng.uniform_float() - 1);
    return values;
}
static double error(const std::vector<float>& ours, const std::vector<float>& theirs) {
    double squares = 0, all = 1e-30;
    for (size_t i = 0; i < ours.size(); i++)
        squares += std::pow((double)ours[i] - (double)theirs[i], 2), all += std::pow((double)theirs[i], 2);
    return std::sqrt(squares / all);
}
static void kernel_as_reference(const LowRankCase& k) {
    const auto [rows, C, OC, R, gelu] = k;
    const auto inp = random_values(rows * C, 1), weight = random_values(OC * C, 2, 0.2f), bias = random_values(OC, 3),
               A = random_values(R * C, 4), B = random_values(R * OC, 5), dout = random_values(rows * OC, 6),
               pre = random_values(rows * C, 7);
    const auto forward = [&](auto kernel, std::vector<float>& out, std::vector<float>& gelu_out) {
        std::vector<float> low(2 * round_up(rows * R, 16));
        kernel(out.data(), inp.data(), weight.data(), bias.data(), A.data(), B.data(), low.data(), rows, C, OC, R, 0.7f,
               gelu ? gelu_out.data() : nullptr);
    };
    std::vector<float> out(rows * OC), out_gelu(rows * OC), ref(rows * OC), ref_gelu(rows * OC);
    forward(low_rank_forward<float, const float*>, out, out_gelu);
    forward(reference::low_rank_forward<float>, ref, ref_gelu);
    EXPECT(error(out, ref) < 1e-5 && (!gelu || error(out_gelu, ref_gelu) < 1e-5));
    matmul_forward(out.data(), inp.data(), weight.data(), bias.data(), rows, C, OC);
    std::vector<float> low(rows * R);
    low_rank_add(out.data(), inp.data(), A.data(), B.data(), low.data(), rows, C, OC, R, 0.7f,
                 gelu ? out_gelu.data() : nullptr);
    EXPECT(error(out, ref) < 1e-5 && (!gelu || error(out_gelu, ref_gelu) < 1e-5));
    const auto backward = [&](auto kernel, std::vector<std::vector<float>>& d, bool add) {
        std::vector<float> low(2 * round_up(rows * R, 16));
        kernel(d[0].data(), d[1].data(), d[2].data(), dout.data(), inp.data(), (const float*)weight.data(), A.data(),
               B.data(), low.data(), rows, C, OC, R, 0.7f, add, gelu ? pre.data() : nullptr);
    };
    for (bool add : {false, true}) {
        std::vector<std::vector<float>> ours = {std::vector<float>(rows * C), random_values(R * C, 8),
                                                random_values(R * OC, 9)},
                                        theirs = ours;
        backward(low_rank_backward<float, float, const float*>, ours, add);
        backward(reference::low_rank_backward<float, float>, theirs, add);
        for (int i = 0; i < 3; i++) EXPECT(error(ours[i], theirs[i]) < 1e-5);
        theirs[1][0] += 1;  // the comparison can fail
        EXPECT(error(ours[1], theirs[1]) > 1e-5);
    }
}
// d of sum(dout out) by central differences, in the direction of random changes.
static void reference_by_differences() {
    const int64_t rows = 5, C = 7, OC = 6, R = 3;
    std::vector<float> inp = random_values(rows * C, 1), weight = random_values(OC * C, 2), bias = random_values(OC, 3),
                       A = random_values(R * C, 4), B = random_values(R * OC, 5), dout = random_values(rows * OC, 6);
    std::vector<float> out(rows * OC), low(32), dinp(rows * C), dA(R * C), dB(R * OC);
    const auto value = [&] {
        reference::low_rank_forward(out.data(), inp.data(), weight.data(), bias.data(), A.data(), B.data(), low.data(),
                                    rows, C, OC, R, 0.7f);
        double sum = 0;
        for (int64_t i = 0; i < rows * OC; i++) sum += (double)dout[i] * (double)out[i];
        return sum;
    };
    reference::low_rank_backward(dinp.data(), dA.data(), dB.data(), dout.data(), inp.data(), weight.data(), A.data(),
                                 B.data(), low.data(), rows, C, OC, R, 0.7f, false);
    for (auto [x, gradient] : {std::pair{&inp, &dinp}, {&A, &dA}, {&B, &dB}}) {
        const std::vector<float> along = random_values((int64_t)x->size(), 10, 1e-2f), before = *x;
        double expected = 0;
        for (size_t i = 0; i < x->size(); i++) expected += (double)along[i] * (double)(*gradient)[i];
        const auto at = [&](float step) {
            for (size_t i = 0; i < x->size(); i++) (*x)[i] = before[i] + step * along[i];
            return value();
        };
        const double found = (at(1) - at(-1)) / 2;
        *x = before;
        EXPECT(std::fabs(found - expected) < 1e-3 * std::fabs(expected) + 1e-6);
    }
}
static void kernels_of_adapters() {
    start_test("the plain loops of a layer with an adapter: gradients by finite differences");
    reference_by_differences();
    device.threads = 2, device.scratch_elems = thread_scratch_elems<float>(64, 64);
    allocate_scratch();
    start_test("the fast ones compute what the plain loops do, at awkward sizes");
    for (const LowRankCase& k : {LowRankCase{1, 48, 96, 3, true},
                                 {4, 48, 33, 1, false},
                                 {33, 40, 160, 8, true},
                                 {70, 160, 40, 16, false},
                                 {65, 64, 192, 5, true}})
        kernel_as_reference(k);
    free_scratch();
}

// test_adapt [GROUP...]: all tests, or those of the functions named.
int main(int argc, char** argv) {
    make_test_folder();
    const auto wanted = [&](const char* group) { return wants_group(argc, argv, group); };
    if (wanted("names")) names();
    if (wanted("kernels")) kernels_of_adapters();
    if (wanted("frozen")) frozen();
    if (wanted("same_bits")) same_bits();
    if (wanted("adapter_files")) adapter_files();
    if (wanted("plans")) plans();
    if (wanted("simulated")) simulated(), simulated_codes();
    if (run(std::string(MPIRUN) + "-np 2 true").status != 0 ||
        !contains(run(several(CPU, 2, "-x 1")).out, "step    1/1")) {
        skip_test("runs under mpirun (apt-get install libopenmpi-dev openmpi-bin, then make clean test)");
        return report_and_clean();
    }
    if (wanted("processes")) processes(), other_optimizers(), simulated_processes();
    return report_and_clean();
}
