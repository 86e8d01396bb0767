// Distillation, --teacher: the loss and its gradients in naive loops and fast, and what runs with a
// teacher do. dev/test/distill.py compares them with PyTorch.
#include <cmath>
#include "dev/test/recorded.h"
#include "dev/test/several.h"
#include "llmc/base/random.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/reference.h"
#include "llmc/cpu/scratch.h"

using Floats = std::vector<float>;
static const std::string FLAGS = "-x 3 -l 3e-3 --overwrite 1 ";
static std::string in(const std::string& name) { return " -o " + dir(name) + " "; }
static std::string weights(const std::string& name, int step) { return model_path(dir(name), step); }
static std::string state(const std::string& name, int step, int rank = 0) { return state_path(dir(name), step, rank); }

static Floats random_values(int64_t n, uint64_t seed, float scale = 1) {
    MersenneTwister rng(seed);
    Floats values(n);
    for (float& value : values) value = scale * (2 * rng.uniform_float() - 1);
    return values;
}
static double error(const Floats& ours, const Floats& theirs) {
    double squares = 0, all = 1e-30;
    for (size_t i = 0; i < ours.size(); i++)
        squares += std::pow((double)ours[i] - (double)theirs[i], 2), all += std::pow((double)theirs[i], 2);
    return std::sqrt(squares / all);
}
template <class floatX>
static std::vector<floatX> as(const Floats& values) {
    std::vector<floatX> stored(values.size());
    for (size_t i = 0; i < values.size(); i++) stored[i] = floatX(values[i]);
    return stored;
}
template <class floatX>
static Floats floats(const std::vector<floatX>& values) {
    return Floats(values.begin(), values.end());
}

// ---- the kernels

struct Case {
    int64_t rows, C, teacher_C, V;
    float share, temperature, size;  // of the scores
};
struct Outputs {
    Floats losses, dinp, dwte;
};
// What a classifier computes of random inputs.
template <class floatX, class Classifier>
static Outputs computed(const Case& k, bool add, Classifier classifier) {
    const auto [rows, C, teacher_C, V, share, temperature, size] = k;
    const int64_t Vp = round_up(V, 128);
    const auto inp = as<floatX>(random_values(rows * C, 1)), wte = as<floatX>(random_values(Vp * C, 2, size)),
               lnf = as<floatX>(random_values(rows * teacher_C, 3)),
               their_wte = as<floatX>(random_values(Vp * teacher_C, 4, size));
    std::vector<floatX> logits(rows * Vp), their_logits(rows * Vp), dinp(rows * C);
    Floats losses(rows), dwte = random_values(Vp * C, 5);
    std::vector<int> targets(rows);
    for (int64_t i = 0; i < rows; i++) targets[i] = i % 5 == 3 ? IGNORED_TARGET : (int)((i * 31 + V - 1) % V);
    const Teacher<floatX> teacher{lnf.data(), their_wte.data(), their_logits.data(), teacher_C, share, temperature};
    classifier(losses.data(), dinp.data(), dwte.data(), logits.data(), inp.data(), wte.data(), targets.data(), rows, C,
               V, Vp, 0.25f, add, nullptr, teacher);
    return {losses, floats(dinp), dwte};
}
static const Case CASES[] = {{1, 48, 16, 50257, 0.5f, 2, 0.3f},
                             {7, 40, 64, 97, 0.3f, 1, 1},
                             {66, 33, 48, 300, 1, 4, 2},
                             {530, 16, 24, 129, 0.7f, 0.5f, 1},
                             {9, 16, 16, 5, 0.5f, 2, 30}};

static void by_differences() {
    start_test("the plain loops of a loss with a teacher: gradients by finite differences");
    for (const Case& k : {Case{7, 6, 4, 9, 0.4f, 2, 1}, Case{7, 6, 4, 9, 1, 0.7f, 1}}) {
        const int64_t rows = k.rows, V = k.V, Vp = 16;
        Floats inp = random_values(rows * k.C, 1), wte = random_values(Vp * k.C, 2), logits(rows * Vp), theirs = logits;
        const Floats lnf = random_values(rows * k.teacher_C, 3, 2), their_wte = random_values(Vp * k.teacher_C, 4, 2);
        Floats losses(rows), dinp(rows * k.C), dwte(Vp * k.C);
        const std::vector<int> targets = {0, 8, IGNORED_TARGET, 3, 4, 5, 6};
        const auto run = [&](float* d) {
            reference::classifier(
                losses.data(), d, dwte.data(), logits.data(), inp.data(), wte.data(), targets.data(), rows, k.C, V, Vp,
                0.5f, false, nullptr,
                Teacher<float>{lnf.data(), their_wte.data(), theirs.data(), k.teacher_C, k.share, k.temperature});
            double total = 0;
            for (float loss : losses) total += 0.5 * loss;
            return total;
        };
        run(dinp.data());
        EXPECT(losses[2] == 0 && losses[0] > 0);
        Floats of_wte = dwte;
        for (auto [x, gradient] : {std::pair{&inp, &dinp}, {&wte, &of_wte}}) {
            const Floats along = random_values((int64_t)x->size(), 10, 1e-2f), before = *x;
            double expected = 0;
            for (size_t i = 0; i < x->size(); i++) expected += (double)along[i] * (double)(*gradient)[i];
            const auto at = [&](float step) {
                for (size_t i = 0; i < x->size(); i++) (*x)[i] = before[i] + step * along[i];
                return run(nullptr);
            };
            const double found = (at(1) - at(-1)) / 2;
            *x = before;
            EXPECT(std::fabs(found - expected) < 1e-3 * std::fabs(expected) + 1e-6);
            EXPECT(std::fabs(found - 1.01 * expected) > 1e-3 * std::fabs(expected) + 1e-6);  // it can fail
        }
    }
}

#define ALL_ARGUMENTS(FUNCTION) [](auto... arguments) { FUNCTION(arguments...); }
static double largest_error(const Outputs& a, const Outputs& b) {
    return std::max({error(a.losses, b.losses), error(a.dinp, b.dinp), error(a.dwte, b.dwte)});
}
static bool same(const Outputs& a, const Outputs& b) {
    return a.losses == b.losses && a.dinp == b.dinp && a.dwte == b.dwte;
}
static void use_threads(int threads) {
    if (device.scratch) free_scratch();
    device.threads = threads, device.unit = UNIT_PORTABLE;
    device.scratch_elems = std::max(thread_scratch_elems<float>(16, 16), thread_scratch_elems<bf16>(16, 16));
    device.transposed_elems = classifier_transposed_elems<bf16>(530, 50304);
    allocate_scratch();
}
static void fast() {
    start_test("the fast loss with a teacher is that of the plain loops, and has the same bits on any threads");
    for (const Case& k : CASES) {
        use_threads(2);
        const bool add = k.rows > 1;
        const Outputs want = computed<float>(k, add, ALL_ARGUMENTS(reference::classifier)),
                      got = computed<float>(k, add, ALL_ARGUMENTS(classifier));
        if (largest_error(got, want) > 2e-5) printf("    V %d: %g\n", (int)k.V, largest_error(got, want));
        EXPECT(largest_error(got, want) < 2e-5);
        Case warmer = k;
        warmer.temperature *= 1.01f, warmer.share *= 0.99f;  // the comparison can fail
        EXPECT(largest_error(computed<float>(warmer, add, ALL_ARGUMENTS(classifier)), want) > 1e-4);
        use_threads(3);
        EXPECT(same(got, computed<float>(k, add, ALL_ARGUMENTS(classifier))));
    }
    start_test("in bf16 it is that to the rounding of scores and gradients");
    for (const Case& k : CASES) {
        if (k.size > 2) continue;  // scores of 30 are rounded by 0.1
        const Outputs want = computed<float>(k, false, ALL_ARGUMENTS(reference::classifier)),
                      got = computed<bf16>(k, false, ALL_ARGUMENTS(classifier));
        EXPECT(largest_error(got, want) < 0.03);
    }
    start_test("a teacher that is the student has no divergence, and a share of 0 is no teacher");
    const Case k{7, 40, 40, 97, 1, 2, 1};
    const int64_t Vp = 128;
    const Floats inp = random_values(k.rows * k.C, 1), wte = random_values(Vp * k.C, 2);
    const std::vector<int> targets(k.rows, 5);
    Floats logits(k.rows * Vp), theirs = logits, losses(k.rows), dinp(k.rows * k.C), dwte(Vp * k.C);
    classifier(losses.data(), dinp.data(), dwte.data(), logits.data(), inp.data(), wte.data(), targets.data(), k.rows,
               k.C, k.V, Vp, 1.0f, false, nullptr, Teacher<float>{inp.data(), wte.data(), theirs.data(), k.C, 1, 2});
    for (float loss : losses) EXPECT(std::fabs(loss) < 1e-5);
    for (float d : dwte) EXPECT(std::fabs(d) < 1e-5);
    free_scratch();
}

// ---- runs

static bool trains(const std::string& more) { return passed(run(tiny_run(CPU, FLAGS + more))); }
static std::string taught() { return "--teacher " + weights("teacher", 3) + " "; }
static void train_teacher() { EXPECT(passed(run(tiny_run(CPU, "-e L3C48H3T16V256 " + FLAGS + in("teacher"))))); }

static void same_bits() {
    for (const std::string flags : {"", "--precision bf16 ", "--lora 3 ", "--dropout 0.2 "}) {
        start_test(flags + "with a teacher: the same bits on 1 and 3 threads, at any -r, and when resumed");
        const std::string all = taught() + flags + "-d 64 ";
        EXPECT(trains(all + in("a")) && trains(flags + "-d 64 " + in("alone")));
        EXPECT(!same_files(weights("a", 3), weights("alone", 3)));
        for (const char* more : {"--threads 1", "--threads 3", "-r 0", "-r 3"}) {
            EXPECT(trains(all + more + in("b")));
            EXPECT(same_files(weights("a", 3), weights("b", 3)) && same_files(state("a", 3), state("b", 3)));
        }
        EXPECT(trains(all + "-x 2" + in("b")) && passed(run(CPU + " -y 1 -x 3" + in("b"))));
        EXPECT(same_files(weights("a", 3), weights("b", 3)) && same_files(state("a", 3), state("b", 3)));
        EXPECT(trains(all + "--distill 0" + in("b")) && same_files(weights("alone", 3), weights("b", 3)));
    }
}
static double difference(const std::string& a, const std::string& b) {
    double most = 0;
    for (int64_t step = 1; step <= 3; step++)
        for (Metric metric : {METRIC_LOSS, METRIC_NORM})
            most = std::max(most, std::fabs(at(b, step, metric) / at(a, step, metric) - 1));
    return most;
}
static void micro_steps() {
    start_test("with a teacher: the same numbers in one batch, in micro-batches, and in short sequences at first");
    EXPECT(trains(taught() + "-b 4 -d 64" + in("a")) && trains(taught() + "-b 1 -d 64" + in("b")));
    EXPECT(difference("a", "b") < 1e-5);
    EXPECT(trains(taught() + "-b 4 -d 64 --precision bf16" + in("b")) && difference("a", "b") < 0.02);
    EXPECT(trains(taught() + "-b 4 -d 64 --seq-warmup 2" + in("b")));
    start_test("a run's folder is its newest model");
    EXPECT(trains("--teacher " + dir("teacher") + " -b 4 -d 64" + in("b")));
    EXPECT(same_files(weights("a", 3), weights("b", 3)));
}
static void processes() {
    start_test("with a teacher: the same numbers with 1 and 3 processes, of any -z");
    EXPECT(passed(run(several(CPU, 1, FLAGS + taught() + in("one")))));
    for (int stage : {0, 1, 3})
        EXPECT(passed(run(several(CPU, 3, FLAGS + taught() + format("-z %d", stage) + in(format("z%d", stage))))));
    EXPECT(difference("one", "z0") < 1e-5 && same_files(weights("z0", 3), weights("z1", 3)));
    EXPECT(difference("one", "z3") < 1e-5);
}

static int64_t planned(const std::string& text, const std::string& row) {
    const size_t found = text.find("\n" + row);
    return found == text.npos ? -1 : atoll(text.c_str() + text.find_first_of("0123456789", found + 45));
}
static void plans() {
    start_test("--plan: the teacher's weights and what its forward pass needs, to the byte");
    for (const std::string precision : {"fp32", "bf16"}) {
        const std::string flags = "-x 1 --plan --precision " + precision + " ";
        const int64_t x = precision == "fp32" ? 4 : 2;
        const std::string text = run(tiny_run(CPU, flags + taught())).out, alone = run(tiny_run(CPU, flags)).out;
        const GPT2Config c{16, 256, 256, 3, 3, 48};
        Sizes s{c, 2, 16, 0, 0, 32, false};
        s.floatX_bytes = x;
        const int64_t bytes = parameter_layout(c, 1).total_elems() * x, acts = activation_layout(s).total_bytes;
        EXPECT(planned(text, "teacher        weights   ") == bytes);
        EXPECT(planned(text, "teacher        activations") == acts);
        EXPECT(planned(text, "teacher        = all") == bytes + acts + 256 * 48 * 4);
        const auto total = [](const std::string& plan) { return atoll(plan.c_str() + plan.find("\ntotal ") + 7); };
        EXPECT(total(text) - total(alone) == bytes + acts + 256 * 48 * 4);
        EXPECT(trains("-x 1 --precision " + precision + " " + taught() + in("planned")));
    }
}
static void refusals() {
    start_test("teachers that do not fit and flags without one: one sentence, and nothing is written");
    const auto refused = [&](const std::string& more, int status, const std::string& names) {
        const Outcome r = run(tiny_run(CPU, "-x 1 " + more + in("no")));
        const bool good = r.status == status && one_line(r.err) && contains(r.err, names) && !folder_exists(dir("no"));
        if (!good) printf("    %s: %d %s\n", more.c_str(), r.status, r.err.c_str());
        return good;
    };
    EXPECT(passed(run(tiny_run(CPU, "-e L1C16H1T8V256 -t 8 -x 1 --overwrite 1" + in("short")))));
    EXPECT(trains("--lora 2" + in("adapters")));
    EXPECT(refused("--teacher " + weights("short", 1), 2, "context of 8"));
    EXPECT(refused(taught() + "-e L1C16H1T16V255 ", 2, "vocabulary of 256"));
    EXPECT(refused("--teacher " + dir("nothing.bin"), 1, "nothing.bin"));
    EXPECT(refused("--teacher " + dir(""), 2, "no complete checkpoint"));
    EXPECT(refused("--teacher " + weights("adapters", 3), 2, "adapters alone"));
    EXPECT(refused("--distill 0.4", 2, "--teacher") && refused("--distill-temperature 3", 2, "--teacher"));
    for (const char* flags : {"--distill 1.5", "--distill -1", "--distill-temperature 0", "--distill-temperature x"})
        EXPECT(refused(taught() + flags, 2, "--distill"));
    EXPECT(refused(taught() + "-x 0", 2, "-x 0"));
    const std::string whole = read_whole(weights("teacher", 3));
    for (size_t length : {0, 100, 1024, 5000})
        write_whole(dir("cut.bin"), whole.substr(0, length)), EXPECT(refused("--teacher " + dir("cut.bin"), 1, "cut"));
    for (int field : {0, 1, 2, 3, 4, 5, 6, 7}) {
        std::string broken = whole;
        memset(&broken[field * 4], 0xff, 4);
        write_whole(dir("cut.bin"), broken), EXPECT(refused("--teacher " + dir("cut.bin"), 1, "cut.bin"));
    }
    std::string infinite = whole;
    memset(&infinite[5000], 0xff, 4);
    write_whole(dir("cut.bin"), infinite), EXPECT(refused("--teacher " + dir("cut.bin"), 1, "not finite"));
}
static void on_gpus() {
    start_test("with a teacher: the simulated GPU's numbers are the CPU's, the same bits at any -r and in a graph");
    for (const std::string flags : {"", "--distill 1 --distill-temperature 4 ", "--lora 3 "}) {
        const std::string all = taught() + flags + "-d 64 ";
        EXPECT(trains(all + in("a")) && passed(run(tiny_run(SIM32, FLAGS + all + in("b")))));
        EXPECT(difference("a", "b") < 3e-5);  // a divergence alone is a small difference of sums
    }
    const std::string all = FLAGS + taught() + "-d 64 ";
    EXPECT(trains(taught() + "-d 64 " + in("a")) && passed(run(tiny_run(SIM16, all + in("b")))));
    EXPECT(difference("a", "b") < 0.02);
    for (const char* more : {"-r 0", "-r 3", "--cuda-graph 1", "-x 2"}) {
        EXPECT(passed(run(tiny_run(SIM16, all + more + in("c")))));
        if (more == std::string("-x 2")) EXPECT(passed(run(SIM16 + " -y 1 -x 3" + in("c"))));
        EXPECT(same_files(weights("b", 3), weights("c", 3)) && same_files(state("b", 3), state("c", 3)));
    }
}

// test_distill [GROUP...]: all tests, or those of the functions named.
int main(int argc, char** argv) {
    make_test_folder();
    const auto wanted = [&](const char* group) { return wants_group(argc, argv, group); };
    if (wanted("kernels")) by_differences(), fast();
    train_teacher();
    if (wanted("refusals")) refusals();
    if (wanted("plans")) plans();
    if (wanted("micro_steps")) micro_steps();
    if (wanted("same_bits")) same_bits();
    if (wanted("on_gpus")) on_gpus();
    if (!wanted("processes")) return report_and_clean();
    if (run(std::string(MPIRUN) + "-np 2 true").status != 0 ||
        !contains(run(several(CPU, 2, "-x 1")).out, "step    1/1"))
        skip_test("runs under mpirun (apt-get install libopenmpi-dev openmpi-bin, then make clean test)");
    else processes();
    return report_and_clean();
}
