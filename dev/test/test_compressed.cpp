// Runs with --compress-activations 1: the same bits again, on any number of threads and resumed;
// the same numbers in the simulator, on several processes and in several micro-steps; losses near
// those without; memory and calls as --plan says. Gradients: compressed_tests.h, codes:
// code_tests.h.
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/plan/plan_time.h"

static const std::string TRAINING =
    "--compress-activations 1 -e L5C32H2T16V256 -d 96 -x 4 -l 3e-3 -c 0.1 -f 0 --overwrite 1 ";
static const char* const LEVELS[] = {"-r 0", "-r 1", "-r 2", "-r 3", "-r 4", "-r 4 --recompute-every 3"};

static Outcome train(const std::string& program, const std::string& more) {
    return run(tiny_run(program, TRAINING + more));
}
static std::string in(const std::string& name) { return " -o " + dir(name) + " "; }
static std::string weights(const std::string& name) { return model_path(dir(name), 4); }

static void same_bits() {
    const std::pair<const char*, std::string> programs[] = {
        {"fp32", CPU}, {"bf16", CPU + " --precision bf16"}, {"sim32", SIM32}, {"sim16", SIM16}};
    for (const auto& [name, program] : programs) {
        start_test(format("codes: run again, on 1 thread and resumed the same bits; others than without: %s", name));
        for (const std::string level : {"-r 1", "-r 4"}) {
            if (level == "-r 4" && contains(program, "sim")) continue;
            EXPECT(passed(train(program, level + in("base"))));
            EXPECT(passed(train(program, level + in("other") + "--threads 1")));
            EXPECT(same_files(weights("base"), weights("other")) && same_records("base", "other"));
            EXPECT(passed(train(program, level + in("parts") + "-x 2 -n 1")));
            EXPECT(passed(run(program + " --threads 2 -y 1 -x 4" + in("parts"))));
            EXPECT(same_files(weights("base"), weights("parts")));
            EXPECT(passed(train(program, level + in("other") + "--compress-activations 0")));
            EXPECT(!same_files(weights("base"), weights("other")));
        }
    }
}

// Codes jump by a whole scale where the values of two devices differ by rounding, of which some are
// near the middle between two codes: so norms agree less well than those of other runs.
static void same_numbers() {
    start_test("codes: the simulator's numbers are the CPU's, and near those without, at every recompute level");
    for (const std::string level : LEVELS) {
        const Outcome cpu = train(CPU, "-b 6 " + level);
        EXPECT(agree(train(SIM32, "-b 6 " + level), cpu, 4, 1e-5, 1e-3));
        if (level == "-r 2") EXPECT(agree(train(SIM16, "-b 6 " + level), cpu, 4, LOSS16, NORM16));
        EXPECT(agree(train(CPU, "-b 6 --compress-activations 0 " + level), cpu, 4, 1e-4, 1e-2));
    }
    start_test("codes: the same numbers with dropout, in 3 and 6 micro-steps, on 2 and 3 processes, in any stage");
    for (const std::string level : {"-r 1 --dropout 0.2 ", "-r 3 "}) {
        const Outcome whole = train(CPU, "-b 6 " + level);
        for (const char* batch : {"-b 2", "-b 1"}) EXPECT(agree(train(CPU, level + batch), whole, 4, 1e-5, 1e-3));
        for (const char* stage : {"-z 0", "-z 1", "-z 3"})
            EXPECT(agree(run(several(CPU, 2, TRAINING + level + stage)), whole, 4, 1e-5, 1e-3));
        EXPECT(agree(run(several(SIM32, 3, TRAINING + level)), whole, 4, 1e-5, 1e-3));
    }
}

static double number_after(const std::string& text, const std::string& what) {
    const size_t at = text.find(what);
    return at == text.npos ? NAN : atof(text.c_str() + at + what.size());
}
static void planned() {
    const GPT2Config config = config_from_descriptor("L5C32H2T16V256");
    const std::string flags = "-x 2 --trace " + dir("trace.json") + " --trace-steps 2:2 ";
    start_test("codes: a traced step encodes and decodes as often as --plan counts");
    for (int64_t level = 0; level <= 4; level++) {
        Sizes sizes{config, 2, 16, level, 0, 256, true, 3};
        sizes.recompute_every = default_recompute_every(config.L), sizes.compressed_activations = true;
        EXPECT(passed(train(CPU, flags + format("-r %d", level))));
        const std::string trace = read_whole(dir("trace.json"));
        for (const char* name : {"to codes", "from codes"}) {
            int64_t traced = 0, expected = 0;
            const std::string slice = format("\"name\":\"%s\"", name);
            for (size_t at = 0; (at = trace.find(slice, at)) != trace.npos; at++) traced++;
            for (const KernelWork& kernel : step_kernels(sizes, ADAMW, 0, 0, false))
                if (kernel.name.str() == name) expected += kernel.calls;
            EXPECT(expected > 0 && traced == expected);
        }
    }
    std::vector<uint16_t> tokens(1 << 17);
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = (uint16_t)(i * i % 251);
    write_tokens(dir("long.bin"), tokens.data(), tokens.size());
    for (const char* level :
         {"-r 0 -b 512", "-r 1 -b 512", "-r 2 -b 1024 --precision bf16", "-r 3 -b 1024", "-r 4 -b 512"}) {
        start_test(format("codes: peak memory is what --plan says, within 2%%, and less than without: %s", level));
        const std::string large =
            format("./train_gpt2_cpu -i %s -e L8C64H2T64V256 -t 64 -x 1 -v 0 -s 0 --threads 2 %s ",
                   dir("long.bin").c_str(), level);
        const auto mib = [&](const std::string& more) {
            return number_after(run(large + more + " --plan").out, "bytes, ");
        };
        const double with = mib("--compress-activations 1"), without = mib("");
        const Outcome r = run(large + "--compress-activations 1");
        if (!EXPECT(passed(r) && std::fabs(r.peak_mib - with) <= 0.02 * with) || !EXPECT(with < without))
            printf("    planned %.1f MiB, %.1f without codes, peak %.1f MiB\n", with, without, r.peak_mib);
    }
    start_test("codes: other values of the flag are refused");
    for (const char* value : {"2", "-1", "yes"})
        EXPECT(refused(run(tiny_run(CPU, std::string("-x 1 --compress-activations ") + value)), 2,
                       "--compress-activations"));
}

int main() {
    make_test_folder();
    same_bits();
    same_numbers();
    planned();
    return report_and_clean();
}
