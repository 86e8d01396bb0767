// Runs with --dropout: the same bits at every recompute level, on any number of threads, resumed;
// the same numbers however a step is cut into micro-steps, on any number of processes, and in the
// simulator. What is dropped, and gradients: test_kernels.cpp, model_tests.h.
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/plan/plan_time.h"

static const std::string TRAINING = "--dropout 0.3 -d 192 -x 6 -l 3e-3 -c 0.1 -f 0 --overwrite 1 ";

static Outcome train(const std::string& program, const std::string& more) {
    return run(tiny_run(program, TRAINING + more));
}
static std::string in(const std::string& name) { return " -o " + dir(name) + " "; }
static std::string weights(const std::string& name) { return model_path(dir(name), 6); }

static void same_bits() {
    // Two micro-steps show what six do.
    const auto train = [](const std::string& program, const std::string& more) {
        return ::train(program, "-d 64 " + more);
    };
    const std::pair<const char*, std::string> programs[] = {
        {"fp32", CPU}, {"bf16", CPU + " --precision bf16"}, {"sim32", SIM32}, {"sim16", SIM16}};
    for (const auto& [name, program] : programs) {
        start_test(format("dropout: the same bits at every recompute level, on 1 and 2 threads, run again: %s", name));
        EXPECT(passed(train(program, "-r 1" + in("base"))));
        EXPECT(passed(train(program, "--dropout 0" + in("without"))) &&
               !same_files(weights("base"), weights("without")));
        for (const char* flags : {"-r 0", "-r 1", "-r 2", "-r 3", "-r 4", "--threads 1"}) {
            EXPECT(passed(train(program, flags + in("other"))));
            EXPECT(same_files(weights("base"), weights("other")) && same_records("base", "other"));
        }
        EXPECT(passed(train(program, "--seed 43" + in("other"))) && !same_files(weights("base"), weights("other")));
        start_test(format("dropout: resumed in the middle, by its folder alone: the same bits: %s", name));
        EXPECT(passed(train(program, "-x 3 -n 1" + in("parts"))));
        EXPECT(passed(run(program + " --threads 2 -y 1 -x 6" + in("parts"))));
        EXPECT(same_files(weights("base"), weights("parts")));
        EXPECT(same_files(state_path(dir("base"), 6, 0), state_path(dir("parts"), 6, 0)));
    }
    start_test("dropout: a run goes on with another P, or without");
    EXPECT(passed(train(CPU, "-x 3" + in("parts"))));
    EXPECT(passed(run(CPU + " -y 1 -x 6 --dropout 0" + in("parts"))) && !same_files(weights("base"), weights("parts")));
}

static void same_numbers() {
    const Outcome cpu = train(CPU, "-b 12"), sim32 = train(SIM32, "-b 12"), sim16 = train(SIM16, "-b 12");
    start_test("dropout: a step cut into 1, 2, 3, 6 or 12 micro-steps has the same loss and norm");
    for (const char* batch : {"-b 6", "-b 4", "-b 2", "-b 1"}) {
        EXPECT(agree(train(CPU, batch), cpu, 6, 1e-5, 1e-4));
        EXPECT(agree(train(SIM32, batch), sim32, 6, 1e-5, 1e-4));
        EXPECT(agree(train(SIM16, batch), sim16, 6, LOSS16, NORM16));
    }
    start_test("dropout: 2 and 3 processes, stages 0 and 1: the same");
    for (int n : {2, 3})
        for (const char* stage : {"-z 0", "-z 1"}) {
            EXPECT(agree(run(several(CPU, n, TRAINING + stage)), cpu, 6, 1e-5, 1e-4));
            EXPECT(agree(run(several(SIM32, n, TRAINING + stage)), sim32, 6, 1e-5, 1e-4));
        }
    start_test("dropout: the simulator's numbers are the CPU's; with GELU in the epilogues, too");
    EXPECT(agree(sim32, cpu, 6, 1e-4, 1e-4) && agree(sim16, cpu, 6, LOSS16, NORM16));
    EXPECT(agree(train(SIM16, "-b 12 -ge 2"), cpu, 6, LOSS16, NORM16));
    EXPECT(!(apart(steps_of(train(CPU, "-b 12 --dropout 0.31")).losses, steps_of(cpu).losses, 6) < 1e-4));
    start_test("dropout: sequences that are cut in a warmup train as short ones, to the bit");
    const std::string windows = "-e L2C32H2T64V256 -d 128 --shuffle 0 ";  // all in the first shard
    EXPECT(passed(train(CPU, windows + "-t 64 -b 2 --seq-warmup 1000000" + in("cut"))));
    EXPECT(passed(train(CPU, windows + "-t 8 -b 16" + in("short"))));
    EXPECT(same_files(weights("cut"), weights("short")));
}

// The plan counts the calls that a trace shows.
static void planned() {
    start_test("dropout: --plan has the same memory, and counts the calls that a traced step has");
    const GPT2Config config = config_from_descriptor("L5C32H2T16V256");
    const std::string flags = "-e L5C32H2T16V256 -x 2 --trace " + dir("trace.json") + " --trace-steps 2:2 ";
    for (int64_t level : {0, 1, 3, 4}) {
        Sizes sizes{config, 2, 16, level, 0, 256, true, 6};
        sizes.recompute_every = default_recompute_every(config.L), sizes.dropout = true;
        EXPECT(passed(train(CPU, flags + format("-r %d", level))));
        const std::string trace = read_whole(dir("trace.json")), slice = "\"name\":\"dropout\"";
        int64_t traced = 0, expected = 0;
        for (size_t at = 0; (at = trace.find(slice, at)) != trace.npos; at++) traced++;
        for (const KernelWork& kernel : step_kernels(sizes, ADAMW, 0, 0, false))
            if (kernel.name.str() == "dropout") expected += kernel.calls;
        EXPECT(expected > 0 && traced == expected);
    }
    const auto memory = [](const std::string& more) {
        const std::string plan = train(CPU, "--plan " + more).out;
        return plan.substr(0, plan.find("recompute"));
    };
    EXPECT(contains(memory(""), "dwide") && memory("") == memory("--dropout 0"));
}

static void only_in_training() {
    start_test("dropout: validation and samples drop nothing");
    for (const std::string& program : {CPU, SIM16}) {
        const std::string frozen = "-l 0 -x 2 -v 1 -m 2 -s 1 -g 8 --quiet 1 ";
        const Outcome with = train(program, frozen), without = train(program, frozen + "--dropout 0");
        const auto evaluated = [](const Outcome& r) {
            std::string kept;
            for (size_t at = 0, end; at < r.out.size(); at = end + 1) {
                end = std::min(r.out.find('\n', at), r.out.size());
                if (r.out.compare(at, 4, "step") != 0) kept += r.out.substr(at, end - at) + "\n";
            }
            return kept;
        };
        EXPECT(passed(with) && passed(without) && contains(evaluated(with), "val loss"));
        EXPECT(evaluated(with) == evaluated(without));
        EXPECT(steps_of(with).losses.size() == 2 && steps_of(with).losses != steps_of(without).losses);
    }
    start_test("dropout: shares that leave nothing, or are none, are refused");
    for (const char* p : {"1", "-0.1", "nan", "0.99999999999"})
        EXPECT(refused(run(tiny_run(CPU, std::string("-x 1 --dropout ") + p)), 2, "--dropout"));
}

int main() {
    make_test_folder();
    same_bits();
    same_numbers();
    planned();
    only_in_training();
    return report_and_clean();
}
