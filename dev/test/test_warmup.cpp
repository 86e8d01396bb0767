// The warmups of sequence length and batch size (warmup.h): which windows a step takes and how they
// are cut; on a CPU, in the simulator, with several processes, and resumed.
#include <cmath>
#include "dev/test/end_of_text.h"
#include "dev/test/recorded.h"
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/options/warmup.h"

static std::string tiny(const std::string& more) { return tiny_run(CPU, more); }
static std::string in(const std::string& name) { return " -o " + dir(name) + " "; }
static std::string weights(const std::string& name, int step) { return model_path(dir(name), step); }

static void functions() {
    start_test("sequences: powers of two, in time, multiples of 8, never fewer than the line from 0 to T asks for");
    for (int64_t T : {16, 48, 64, 1000, 1024})
        for (int64_t N : {0, 1, 2, 7, 64, 1000})
            for (int64_t s = 0; s < N + 3; s++) {
                const int64_t k = sequences_per_window(s, N, T), length = T / k;
                const bool on_line = length * N <= T * (s + 1), cuttable = length % 16 == 0;
                EXPECT((k & (k - 1)) == 0 && T % k == 0 && (k == 1 || length % 8 == 0));
                EXPECT(s + 1 >= N ? k == 1 : on_line || !cuttable);
                EXPECT(k == 1 || 2 * length * N > T * (s + 1));  // and not more
                EXPECT(k >= sequences_per_window(s + 1, N, T));
            }
    start_test("windows: ceil(W (s + 1) / N), their sums, and the steps that tokens suffice for");
    for (int64_t W : {1, 2, 7, 12, 100})
        for (int64_t N : {0, 1, 2, 7, 12, 50}) {
            int64_t sum = 0;
            for (int64_t s = 0; s < N + 5; s++) {
                EXPECT(windows_before(s, N, W) == sum);
                EXPECT(steps_within(sum * 16, N, W, 16) == s &&
                       (sum == 0 || steps_within(sum * 16 - 1, N, W, 16) == s - 1));
                const int64_t windows = windows_of_step(s, N, W);
                const double exact = N > s + 1 ? (double)(W * (s + 1)) / (double)N : (double)W;
                EXPECT((double)windows >= exact - 1e-9 && (double)windows < exact + 1);
                EXPECT(std::fabs(full_steps((double)(s + 1), N) * (double)W - (double)(sum + windows)) <=
                       (double)(N + 1));
                sum += windows;
            }
        }
    EXPECT(windows_of_step(4999999, 10000000, 9000000000000000) == 4500000000000000);
    start_test("what the log says of the lengths is what the steps have");
    EXPECT(sequence_warmup_text(8, 64) == "8 tokens, from step 2 on 16, from step 4 on 32, from step 8 on 64");
    EXPECT(sequence_warmup_text(7, 32) == "8 tokens, from step 4 on 16, from step 7 on 32");
    EXPECT(sequence_warmup_text(1, 64) == "64 tokens");
    for (int64_t N : {2, 3, 7, 100, 1000})
        for (int64_t s = 1; s < N + 2; s++) {
            const int64_t T = 512, now = T / sequences_per_window(s, N, T),
                          before = T / sequences_per_window(s - 1, N, T);
            const std::string change = format("from step %d on %d", s + 1, now);
            EXPECT(contains(sequence_warmup_text(N, T) + ",", change + ",") == (now != before) || now > 2 * before);
        }
}

// Windows of 64 that lie in a row, cut into 8, are windows of 8 in a row.
static void cut_windows() {
    const std::string model = "-e L2C32H2T64V256 -d 256 --shuffle 0 -x 3 -l 3e-3 -c 0.1 --overwrite 1 -f 0 ";
    for (const std::string& program : {CPU, CPU + " --precision bf16", SIM32, SIM16})
        for (const char* batch : {"-t 64 -b 4", "-t 64 -b 2"}) {
            start_test(format("windows cut into 8 train as windows of an eighth, to the bit: %s %s", program, batch));
            const std::string eighth = batch[9] == '4' ? "-t 8 -b 32" : "-t 8 -b 16";
            EXPECT(passed(run(tiny_run(program, model + batch + " --seq-warmup 1000000" + in("cut")))));
            EXPECT(passed(run(tiny_run(program, model + eighth + in("short")))));
            EXPECT(passed(run(tiny_run(program, model + batch + in("long")))));
            EXPECT(same_files(weights("cut", 3), weights("short", 3)));
            EXPECT(!same_files(weights("cut", 3), weights("long", 3)));
        }
    const std::string documents =
        "-e L2C32H2T64V257 -d 256 --shuffle 0 -x 3 -l 3e-3 --overwrite 1 -f 0 "
        "--document-mask 1 --tokenizer " +
        tokenizer_with(97) + " ";
    const std::string cut = "-t 64 -b 2 --seq-warmup 1000000 ";
    for (const std::string& program : {CPU, SIM16}) {
        start_test("so they do with a document mask, whose documents end at cuts as well: " + program);
        EXPECT(passed(run(tiny_run(program, documents + cut + in("cut")))));
        EXPECT(passed(run(tiny_run(program, documents + "-t 8 -b 16" + in("short")))));
        EXPECT(passed(run(tiny_run(program, documents + cut + "--document-mask 0" + in("unmasked")))));
        EXPECT(same_files(weights("cut", 3), weights("short", 3)));
        EXPECT(!same_files(weights("cut", 3), weights("unmasked", 3)));
    }
    start_test("warmups over one step are none, to the bit");
    const std::string flags = "-d 64 -x 3 -v 2 -m 2 ";
    EXPECT(passed(run(tiny(flags + in("plain")))));
    EXPECT(passed(run(tiny(flags + "--seq-warmup 1 --batch-warmup 1" + in("over_one")))));
    EXPECT(same_files(weights("plain", 3), weights("over_one", 3)) && same_records("plain", "over_one"));
}

static void resumed() {
    start_test("resumed within both warmups: the same bits and records");
    for (const std::string& program : {CPU, SIM16}) {
        const std::string flags =
            "-e L2C32H2T32V256 -t 32 -d 256 -x 8 -v 4 -m 2 -n 1 -l 3e-3 --seq-warmup 6 "
            "--batch-warmup 5 --noise-scale 1 --overwrite 1 ";
        EXPECT(passed(run(tiny_run(program, flags + in("whole")))));
        run("rm -rf " + dir("parts"));
        run("cp -r " + dir("whole") + " " + dir("parts"));
        for (int step = 8; step > 2; step--) remove_checkpoint(dir("parts"), step);
        const Outcome r = run(tiny_run(program, "-e L2C32H2T32V256 -t 32 -v 4 -m 2 -y 1 " + in("parts")));
        EXPECT(passed(r) && contains(r.out, "resumed at step 2") && same_records("whole", "parts"));
        EXPECT(same_files(weights("whole", 8), weights("parts", 8)));
        EXPECT(same_files(state_path(dir("whole"), 8, 0), state_path(dir("parts"), 8, 0)));
    }
}

static void batches() {
    start_test("a step of a batch warmup takes the windows after those of the step before it; its loss is their mean");
    // weights that do not change have the same loss for a window in any step
    const std::string frozen = "-l 0 --shuffle 0 ";
    const int64_t N = 5, W = 12, T = 16, steps = 7;
    const Outcome single = run(tiny(frozen + "-b 1 -d 16 -x 84"));
    const std::vector<double> losses = steps_of(single).losses;
    EXPECT(passed(single) && losses.size() == 84);
    for (const char* split : {"-b 1", "-b 2", "-b 4", "-b 12"}) {
        const Outcome r =
            run(tiny(frozen + format("-d 192 -x 7 --batch-warmup 5 --overwrite 1 %s ", split) + in("grow")));
        const Steps printed = steps_of(r);
        EXPECT(passed(r) && printed.losses.size() == (size_t)steps);
        for (int64_t s = 0, w = 0; s < steps; s++) {
            const int64_t end = w + windows_of_step(s, N, W);
            double mean = 0;
            for (int64_t i = w; i < end; i++) mean += losses[i] / (double)(end - w);
            EXPECT(std::fabs(printed.losses[s] - mean) < 3e-6);
            EXPECT(at("grow", s, METRIC_TOKENS) == (double)(end * T));
            EXPECT(near(at("grow", s, METRIC_TOKEN_RATE), (double)((end - w) * T) * 1e3 / at("grow", s, METRIC_STEP_MS),
                        1e-2));
            w = end;
        }
    }
    start_test("a batch warmup gives the same numbers for any number of processes and any -b");
    const std::string flags = "-x 8 -l 3e-3 -c 0.1 --batch-warmup 7 --seq-warmup 4 ";
    const Outcome one = run(several(CPU, 1, flags));
    EXPECT(agree(run(several(CPU, 1, flags + "-b 4")), one, 8, 1e-5, 1e-4));
    for (const char* stage : {"-z 0", "-z 1"}) EXPECT(agree(run(several(CPU, 3, flags + stage)), one, 8, 1e-5, 1e-4));
    EXPECT(agree(run(several(SIM32, 2, flags)), one, 8, 1e-4, 1e-4));
    EXPECT(!agree(run(several(CPU, 1, "-x 8 -l 3e-3 -c 0.1")), one, 8, 1e-5, 1e-4));
    start_test("-x -1, --epochs and --plan count the tokens of smaller batches");
    const Outcome epoch = run(tiny("-d 192 --batch-warmup 9 -k constant"));  // 3,000 tokens
    EXPECT(passed(epoch) && (int64_t)steps_of(epoch).losses.size() == steps_within(3000, 9, W, T));
    const Outcome plan = run(tiny("-d 192 --batch-warmup 9 --epochs 2 --plan"));
    const int64_t planned = steps_within(2 * 186 * T, 9, W, T), tokens = windows_before(planned, 9, W) * T;
    EXPECT(planned > 2 * 186 * T / 192 &&
           contains(plan.out, format("the run: %d steps, %s tokens seen", planned, grouped_text(tokens))));
}

static void refusals() {
    start_test("warmups that could have no effect are refused");
    EXPECT(refused(run(tiny("-x 1 -t 8 --seq-warmup 5")), 2, "multiples of 16 are accepted for -t"));
    EXPECT(refused(run(tiny("-x 1 -b 1 -d 16 --batch-warmup 5")), 2, "--batch-warmup 5 with -d 16"));
    EXPECT(refused(run(tiny("-x 1 --batch-warmup 10000001")), 2, "--batch-warmup"));
    EXPECT(refused(run(tiny("-x 1 --seq-warmup -1")), 2, "--seq-warmup"));
}

int main() {
    make_test_folder();
    functions();
    refusals();
    cut_windows();
    resumed();
    batches();
    return report_and_clean();
}
