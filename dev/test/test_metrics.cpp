// What a run records and how long it lasts: metrics.csv, evals.jsonl, the gradient noise scale,
// --max-minutes, --epochs, --keep-best, --from-step.
#include <cmath>
#include "dev/test/masks.h"
#include "dev/test/recorded.h"
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/base/json_text.h"
#include "llmc/run/keep_best.h"
#include "llmc/optim/noise_scale.h"
#include "llmc/base/random.h"

static std::string tiny(const std::string& more) { return tiny_run(CPU, more); }
static std::string in(const std::string& name) { return " -o " + dir(name) + " "; }

static void columns() {
    start_test("metrics.csv: one header, one line per step, every number one that can be right");
    const Outcome r = run(tiny("-x 5 -d 64 -v 2 -m 2 -l 1e-3" + in("columns")));
    EXPECT(passed(r) && metrics("columns").size() == 5);
    EXPECT(!unmeasured_metrics(dir("columns/metrics.csv")).empty());
    const Steps printed = steps_of(r);
    double before = 0;
    for (int64_t s = 0; s < 5; s++) {
        const auto is = [&](Metric m) { return at("columns", s, m); };
        double parts = 0;
        for (int m = METRIC_DATA; m <= METRIC_UPDATE; m++) parts += is((Metric)m);
        EXPECT(is(METRIC_TOKENS) == 64.0 * (double)(s + 1) && is(METRIC_SECONDS) >= before);
        EXPECT(std::fabs(is(METRIC_LOSS) - printed.losses[s]) < 1e-6);
        EXPECT(std::fabs(is(METRIC_NORM) - printed.norms[s]) < 1e-4 && near(is(METRIC_RATE), 1e-3, 1e-8));
        EXPECT(parts <= is(METRIC_STEP_MS) + 0.01 && is(METRIC_FORWARD) > 0 && is(METRIC_BACKWARD) > 0);
        EXPECT(near(is(METRIC_TOKEN_RATE), 64e3 / is(METRIC_STEP_MS), 1e-2));
        EXPECT((is(METRIC_VALIDATION) > 0) == (s % 2 == 0) || is(METRIC_VALIDATION) < 0.1);
        EXPECT(is(METRIC_PEAK) > 1 << 20 && std::isnan(is(METRIC_SLOWEST)) && std::isnan(is(METRIC_POWER)));
        before = is(METRIC_SECONDS);
    }
    start_test("a resumed run's time goes on");
    EXPECT(passed(run(tiny("-x 6 -d 64 -v 2 -m 2 -l 1e-3 -y 1" + in("columns")))));
    EXPECT(metrics("columns").size() == 6 && at("columns", 5, METRIC_SECONDS) > before);
    start_test("columns of another version are kept beside, not mixed");
    write_whole(dir("columns/metrics.csv"), "step,mood\n0,good\n");
    const Outcome other = run(tiny("-x 7 -d 64 -v 2 -m 2 -l 1e-3 -y 1" + in("columns")));
    EXPECT(passed(other) && contains(other.err, "metrics.csv.old") && metrics("columns").size() == 1);
    EXPECT(read_whole(dir("columns/metrics.csv.old")) == "step,mood\n0,good\n");
    start_test("two processes: the slowest is one of them");
    EXPECT(passed(run(several(CPU, 2, "-x 3" + in("two")))));
    for (int64_t s = 0; s < 3; s++) {
        const double rank = at("two", s, METRIC_SLOWEST);
        EXPECT((rank == 0 || rank == 1) && at("two", s, METRIC_SLOWER_BY) >= 0);
    }
}

static void evaluations() {
    start_test("evals.jsonl: each line is JSON; losses, HellaSwag and samples are those printed");
    write_hellaswag(dir("hella.bin"));
    const std::string flags = "-x 4 -v 2 -m 2 -h 1 -s 2 -g 5 --samples 2 --prompt 'a\"\\b' --tokenizer ";
    const std::string own = "dev/data/gpt2_tokenizer.bin --hellaswag-data " + dir("hella.bin") + " -e L2C32H2T16 ";
    const Outcome r = run(tiny(flags + own + in("evals")));
    EXPECT(passed(r));
    int losses = 0, answers = 0, samples = 0;
    for (std::string line : lines_of(dir("evals/evals.jsonl"), "{\"step\": ")) {
        line.pop_back();
        JsonReader json{line};
        std::vector<JsonField> fields{{"sample", ""}, {"prompt", ""}};
        EXPECT(json_fields(json, fields));
        const bool is_sample = fields[0].found;
        samples += is_sample, losses += val_loss_of(line) < 20, answers += contains(line, "\"questions\": 10");
        if (is_sample) EXPECT(contains(r.out, fields[0].text) && fields[1].text == "a\"\\b");
    }
    EXPECT(losses == 3 && answers == 3 && samples == 4);
}

// The mean of n numbers from a normal distribution of variance 1 around `mean`, in each of `dims`.
static double squares_of_mean(MersenneTwister& rng, int n, int dims, double mean) {
    double squares = 0;
    for (int d = 0; d < dims; d++) {
        double sum = 0;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < 12; k++) sum += rng.uniform_double() - 0.5;
        squares += (mean + sum / n) * (mean + sum / n);
    }
    return squares;
}

// Whether the first line has the estimates of these numbers, by the formulas of the paper: the
// squared norm of the mean gradient of `small` tokens, and the norm that the line has, of `big`.
static bool noise_is(const std::string& name, double small_squares, double small, double big) {
    const double noise = at(name, 0, METRIC_NOISE), signal = at(name, 0, METRIC_SIGNAL);
    const double big_squares = std::pow(at(name, 0, METRIC_NORM), 2);
    const double true_noise = (small_squares - big_squares) / (1 / small - 1 / big);
    const double true_signal = (big * big_squares - small * small_squares) / (big - small);
    if (near(noise, true_noise, 1e-3) && near(signal, true_signal, 1e-3)) return true;
    printf("    %s: noise %g, not %g; signal %g, not %g\n", name.c_str(), noise, true_noise, signal, true_signal);
    return false;
}

static void noise() {
    start_test("noise scale: the estimates have no bias");
    MersenneTwister rng = generator_for(7, RANDOM_SAMPLE, 0);
    NoiseEstimate mean{};
    const int trials = 4000, dims = 8;
    for (int i = 0; i < trials; i++) {
        // two processes, of which one counts 4 tokens, the other 2, of 16
        const double small4 = squares_of_mean(rng, 4, dims, 0.5) * (4.0 / 16) * (4.0 / 16);
        const double small2 = squares_of_mean(rng, 2, dims, 0.5) * (2.0 / 16) * (2.0 / 16);
        const double big = squares_of_mean(rng, 16, dims, 0.5);
        const NoiseEstimate e = noise_estimate({{4, small4}, {0, 0}, {2, small2}}, big, 16);
        mean.noise += e.noise / trials, mean.signal += e.signal / trials;
    }
    EXPECT(near(mean.noise, dims, 0.05) && near(mean.signal, dims * 0.25, 0.05));
    EXPECT(!std::isfinite(noise_estimate({{49, 3}}, 3, 49).noise) && !std::isfinite(noise_estimate({}, 3, 49).noise));
    start_test("noise scale: that of the gradients of each micro-batch alone; training is the same to the bit");
    const std::string still = "-l 0 -k constant ";
    EXPECT(passed(run(tiny(still + "-b 1 -d 16 -x 4" + in("single")))));
    const auto squares = [&](int64_t window) { return std::pow(at("single", window, METRIC_NORM), 2); };
    EXPECT(passed(run(tiny(still + "-b 1 -d 64 -x 1 --noise-scale 1" + in("micro")))));
    EXPECT(noise_is("micro", squares(0), 16, 64));
    EXPECT(passed(run(MPIRUN + ("-np 2 " + tiny(still + "-b 1 -d 32 -x 1 --noise-scale 1" + in("ranks"))))));
    EXPECT(noise_is("ranks", (squares(0) + squares(1)) / 2, 16, 32));
    for (const char* precision : {"fp32", "bf16"}) {
        const std::string flags = std::string("-d 64 -l 3e-3 -x 8 -n 8 --precision ") + precision;
        EXPECT(passed(run(tiny(flags + in(std::string("off-") + precision)))));
        EXPECT(passed(run(tiny(flags + " --noise-scale 1" + in(std::string("on-") + precision)))));
        EXPECT(same_files(model_path(dir("off-") + precision, 8), model_path(dir("on-") + precision, 8)));
    }
    start_test("noise scale: the running means go on where a run is resumed");
    const std::string flags = "-b 1 -d 64 -x 30 -n 10 -v 0 --noise-scale 1 ";
    EXPECT(passed(run(tiny(flags + in("whole")))) && passed(run(tiny(flags + in("parts")))));
    for (int64_t step : {20, 30}) remove_checkpoint(dir("parts"), step);
    EXPECT(passed(run(tiny(flags + "-y 1" + in("parts")))) && same_records("whole", "parts"));
    EXPECT(at("whole", 29, METRIC_NOISE) > 0);
}

static void masked_noise() {
    start_test("noise scale with a loss mask: in tokens that count, other numbers in each micro-batch");
    const auto counts = [](int64_t i) { return i <= 16 ? i % 4 == 0 : i <= 32 ? i % 3 > 0 : i % 2 == 0; };
    const auto counted = [&](int64_t windows) {
        double n = 0;
        for (int64_t i = 1; i <= 16 * windows; i++) n += counts(i);  // the targets of the first windows
        return n;
    };
    for (const char* name : {"train_0.bin", "train_1.bin"}) write_mask(dir(name), counts);
    const std::string still = "-l 0 -k constant --shuffle 0 -b 1 --loss-mask '" + folder + "/train_*.mask' ";
    EXPECT(passed(run(tiny(still + "-d 16 -x 2" + in("masked-single")))));
    EXPECT(passed(run(tiny(still + "-d 64 -x 1 --noise-scale 1" + in("masked-micro")))));
    const double first = std::pow(at("masked-single", 0, METRIC_NORM), 2), n = counted(1), m = counted(2) - counted(1);
    const double second = std::pow(at("masked-single", 1, METRIC_NORM), 2);
    EXPECT(n == 4 && m == 11 && noise_is("masked-micro", first, n, counted(4)));
    EXPECT(passed(run(MPIRUN + ("-np 2 " + tiny(still + "-d 64 -x 1 --noise-scale 1" + in("masked-ranks"))))));
    EXPECT(noise_is("masked-ranks", (first + second) / 2, 2 / (1 / n + 1 / m), counted(4)));
    start_test("noise scale with a loss mask that counts tokens in one micro-batch alone, or in none: no estimate");
    for (const char* name : {"train_0.bin", "train_1.bin"})
        write_mask(dir(name), [](int64_t i) { return i <= 8 || i > 192; });
    EXPECT(passed(run(tiny(still + "-d 64 -x 4 --noise-scale 1" + in("masked-alone")))));
    const auto noise_at = [](int64_t step) { return at("masked-alone", step, METRIC_NOISE); };
    EXPECT(std::isnan(noise_at(0)) && std::isnan(noise_at(1)) && std::isnan(noise_at(2)) && noise_at(3) > 0);
    for (const char* name : {"train_0.mask", "train_1.mask"}) unlink(dir(name).c_str());
    start_test("--noise-scale 1 with nothing to compute, or nowhere to write it: one sentence");
    const Outcome alone = run(tiny("-x 2 --noise-scale 1" + in("one-micro"))),
                  nowhere = run(tiny("-x 2 -d 64 --noise-scale 1"));
    EXPECT(passed(alone) && one_line(alone.err) && contains(alone.err, "--noise-scale 1"));
    EXPECT(metrics("one-micro").size() == 2 && std::isnan(at("one-micro", 0, METRIC_NOISE)));
    EXPECT(passed(nowhere) && one_line(nowhere.err) && contains(nowhere.err, "--noise-scale 1 without -o"));
    EXPECT(run(tiny("-x 2 -d 64 --noise-scale 1" + in("two-micro"))).err.empty());
}

static void lengths() {
    start_test(
        "--epochs E is E passes over the 186 windows; -x beside it is refused, and either replaces that of run.json");
    const auto steps_in = [](const Outcome& r) { return steps_of(r).losses.size(); };
    const Outcome one = run(tiny("-d 256"));
    EXPECT(passed(one) && steps_in(one) == 3000 / 256);
    EXPECT(steps_in(run(tiny("-d 256 --epochs 3" + in("epochs")))) == 3 * 186 / 16);
    EXPECT(steps_in(run(tiny("-d 32 --epochs 1"))) == 93 && steps_in(run(tiny("-d 32 -x -1"))) == 3000 / 32);
    EXPECT(steps_in(run(tiny("-b 1 -d 16 --epochs 1"))) == 186 && steps_in(run(tiny("-b 1 -d 16 -x -1"))) == 187);
    EXPECT(refused(run(tiny("--epochs 2 -x 7")), 2, "--epochs 2"));
    EXPECT(steps_in(run(tiny("-y 1 -x 40" + in("epochs")))) == 40 - 3 * 186 / 16);
    EXPECT(steps_in(run(tiny("-y 1 --epochs 4" + in("epochs")))) == 4 * 186 / 16 - 40);
    EXPECT(passed(run(tiny("--epochs 2 -x -1 -d 512"))));
    start_test("--max-minutes: saves, exits 0, and says how to go on; the weights are those of a run in one piece");
    const std::string flags = "-x 6000 -l 1e-3 ";
    Outcome r = run(tiny(flags + "--max-minutes 0.005" + in("boxed")));
    EXPECT(passed(r) && contains(r.out, "--max-minutes 0.005 is over") && contains(r.out, "to go on: "));
    const int64_t stopped = finished_steps(dir("boxed")).back();
    EXPECT(stopped > 0 && stopped < 6000 && contains(r.out, format("stopped at step %d", stopped)));
    EXPECT(!contains(read_whole(dir("boxed/run.json")), "\"--max-minutes\":"));
    EXPECT(passed(run(tiny("-y 1" + in("boxed")))) && passed(run(tiny(flags + in("unboxed")))));
    EXPECT(same_files(model_path(dir("boxed"), 6000), model_path(dir("unboxed"), 6000)));
    EXPECT(same_records("boxed", "unboxed"));
    start_test("--max-minutes ends several processes together");
    r = run(several(CPU, 2, "-x 100000 -k constant --max-minutes 0.01" + in("boxed2")));
    EXPECT(passed(r) && contains(r.out, "stopped at step ") && finished_steps(dir("boxed2")).size() == 1);
}

static void removed() {
    start_test("metrics.csv that is removed while the run goes on comes back with its header");
    const pid_t child = start(tiny("-x 100000000 --max-minutes 0.03 -k constant" + in("removed")));
    const std::string metrics = dir("removed/metrics.csv");
    for (int tries = 0; tries < 400 && file_bytes(metrics) < 1000; tries++) usleep(10000);
    EXPECT(unlink(metrics.c_str()) == 0 && passed(finish(child)));
    EXPECT(read_whole(metrics).rfind(metrics_header(), 0) == 0 && read_whole(metrics).size() > 1000);
    EXPECT(read_whole(metrics).rfind(metrics_header()) == 0);
}

static void best() {
    start_test("--keep-best: the model of the lowest validation loss, also where the run was killed and resumed");
    // with which the loss is lowest at step 12
    const std::string flags = "-x 16 -v 4 -m 1 -n 5 -l 3e-3 -k constant --keep-best 1 -d 64 ";
    EXPECT(passed(run(tiny(flags + in("best")))));
    double lowest = INFINITY;
    int64_t step = -1;
    for (const std::string& line : lines_of(dir("best/evals.jsonl"), "{\"step\": "))
        if (val_loss_of(line) < lowest) lowest = val_loss_of(line), step = atoll(line.c_str() + 9);
    EXPECT(step == 12);
    const Outcome again = run(tiny("-x 0 -v 1 -m 1 -d 64 -e " + dir("best/model_best.bin")));
    EXPECT(passed(again) && contains(again.out, format("val loss %f", lowest)));
    EXPECT(passed(run(tiny(flags + in("best-parts")))));
    for (const int64_t resumed : {15, 5}) {  // after the best step, before it
        for (int64_t s : finished_steps(dir("best-parts")))
            if (s > resumed) remove_checkpoint(dir("best-parts"), s);
        write_whole(dir("best-parts/model_best.bin.tmp"), "half");
        EXPECT(passed(run(tiny(flags + "-y 1" + in("best-parts")))) && same_records("best", "best-parts"));
        EXPECT(same_files(dir("best/model_best.bin"), dir("best-parts/model_best.bin")));
        EXPECT(!file_exists(dir("best-parts/model_best.bin.tmp")));
    }
    start_test("--keep-best where it has no effect: a warning");
    EXPECT(contains(run(tiny("-x 1 --keep-best 1")).err, "--keep-best 1 without -o"));
    EXPECT(contains(run(tiny("-x 1 -v 0 --keep-best 1" + in("unkept"))).err, "--keep-best 1 with -v 0"));
    start_test("a model_best.bin of the user's own is not written over");
    run("mkdir " + dir("mine"));
    write_whole(dir("mine/model_best.bin"), "mine");
    EXPECT(refused(run(tiny("-x 2 -v 1 --keep-best 1" + in("mine"))), 2, "model_best.bin"));
}

static void older() {
    start_test("--from-step: goes on from an older checkpoint; later ones are marked, and removed after a save");
    const std::string flags = "-x 12 -n 3 -v 3 -m 1 -l 1e-3 ";
    EXPECT(passed(run(tiny(flags + in("older")))) && passed(run(tiny(flags + in("straight")))));
    EXPECT(refused(run(tiny("-y 1 --from-step 5" + in("older"))), 2, "3, 6, 9, 12"));
    EXPECT(refused(run(tiny("--from-step 6" + in("older"))), 2, "-y 1"));
    EXPECT((finished_steps(dir("older")) == std::vector<int64_t>{3, 6, 9, 12}));
    const Outcome r = run(tiny(flags + "-y 1 --from-step 6 -n 4 -x 11 " + in("older")));
    EXPECT(passed(r) && contains(r.out, "resumed at step 6") && contains(r.out, "2 checkpoints are marked incomplete"));
    EXPECT((finished_steps(dir("older")) == std::vector<int64_t>{3, 6, 8, 11}) &&
           !file_exists(state_path(dir("older"), 12, 0)));
    EXPECT(passed(run(tiny(flags + "-y 1 --from-step 3" + in("older")))));
    EXPECT(same_records("older", "straight") &&
           same_files(model_path(dir("older"), 12), model_path(dir("straight"), 12)));
    EXPECT(!contains(read_whole(dir("older/run.json")), "\"--from-step\":"));
    start_test("--from-step with a damaged checkpoint is refused and changes nothing");
    std::string bytes = read_whole(model_path(dir("older"), 6));
    bytes[bytes.size() / 2] ^= 1;
    write_whole(model_path(dir("older"), 6), bytes);
    EXPECT(refused(run(tiny("-y 1 --from-step 6" + in("older"))), 1, "model_00000006.bin is damaged"));
    EXPECT(file_exists(done_path(dir("older"), 12)));
}

static void best_discarded() {
    const std::string flags = "-x 16 -v 4 -m 1 -n 2 -l 3e-3 -k constant --keep-best 1 -d 64 ";
    const std::string best = dir("branch/model_best.bin"), old = best + ".old";
    EXPECT(passed(run(tiny(flags + in("branch")))));  // its best is step 12, as in best()
    const std::string of_12 = read_whole(best);
    EXPECT(!of_12.empty() && of_12 == read_whole(model_path(dir("branch"), 12)));
    start_test("--from-step after the best step leaves model_best.bin alone");
    for (const char* step : {"14", "12"}) {
        EXPECT(passed(run(tiny(flags + "-y 1 --from-step " + step + in("branch")))));
        EXPECT(read_whole(best) == of_12 && !file_exists(old));
    }
    start_test("--from-step before the best step: model_best.bin is kept beside, and never of a step that is gone");
    const std::string again = flags + "-y 1 --from-step 8 " + in("branch");
    const Outcome worse = run(tiny(again + "-l 0.3"));  // so that its losses rise
    EXPECT(passed(worse) && contains(worse.out, "model_best.bin is of step 12") && read_whole(old) == of_12);
    // of the steps kept, 4 is the best
    EXPECT(same_files(best, model_path(dir("branch"), 4)) &&
           val_loss_of(lines_of(dir("branch/evals.jsonl"), "{\"step\": ").back()) > 6);
    EXPECT(passed(run(tiny(again))) && read_whole(best) == of_12 && read_whole(old) == of_12);
    start_test(
        "a run that goes on with other rates after a kill: model_best.bin is the best of the course that is kept");
    const std::string few = "-v 4 -m 1 -l 3e-3 -k constant --keep-best 1 -d 64 ";
    EXPECT(passed(run(tiny(few + "-x 6 -n 4 " + in("four")))) && passed(run(tiny(few + "-x 6 " + in("course")))));
    const std::string of_4 = read_whole(model_path(dir("four"), 4)), kept = dir("course/model_best.bin");
    EXPECT(same_files(kept, model_path(dir("course"), 6)));  // validated as the last, not as every fourth
    EXPECT(passed(run(tiny(few + "-x 16 -y 1 -l 0.3 " + in("course")))) && read_whole(kept) == of_4);
    EXPECT(contains(read_whole(dir("course/evals.jsonl")), "{\"step\": 16, ") &&
           list_folder(dir("course")).size() == 15);
    EXPECT(passed(run(tiny(few + "-x 17 -y 1 -l 3e-3 " + in("course")))) && read_whole(kept) == of_4);
    start_test("where the best of the steps kept is gone, there is none, and a line says so");
    EXPECT(passed(run(tiny(few + "-x 6 " + in("gone")))));
    EXPECT(unlink(dir("gone/model_best_before_00000006.bin").c_str()) == 0);
    const Outcome none = run(tiny(few + "-x 16 -y 1 -l 0.3 " + in("gone")));
    EXPECT(passed(none) && contains(none.out, "is that of step 4, whose model is not there"));
    EXPECT(!file_exists(dir("gone/model_best.bin")));
}

int main() {
    make_test_folder();
    columns();
    evaluations();
    noise();
    lengths();
    removed();
    best();
    best_discarded();
    older();
    masked_noise();  // last: it writes masks beside the data
    return report_and_clean();
}
