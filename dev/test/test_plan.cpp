// What --plan prints, against the literature and against plans of the flags that it proposes.
//
// The worked example: 12 layers of 768 channels and 12 heads, a context of 512, a vocabulary of
// 40512, in bf16 with AdamW. Korthikanti et al. 2022 (arXiv:2205.05198, equation 2, without tensor
// parallelism): a layer keeps s b h (10 + 24 + 5 a s / h) bytes of activations for the backward
// pass, where s is the sequence, b the batch, h the channels, a the heads. Rajbhandari et al. 2020
// (arXiv:1910.02054, section 3.1): mixed precision with Adam keeps 16 bytes per parameter.
#include <map>
#include <regex>
#include "dev/test/run_program.h"
#include "llmc/options/option_table.h"

static const std::string CPU = "./train_gpt2_cpu", SIM16 = "build/BF16/train_gpt2sim";
static const std::string EXAMPLE = " --plan -s 0 -r 0 -b 1 -e L12C768H12T512V40512 ";

// The bytes of each row of a plan by its name, "= all" preceded by its category.
static std::map<std::string, int64_t> plan_table(const std::string& plan) {
    std::map<std::string, int64_t> table;
    size_t at = 0;
    for (size_t end; (end = plan.find('\n', at)) != plan.npos; at = end + 1) {
        const std::string line = plan.substr(at, end - at);
        if (line.size() < 67) continue;
        const auto column = [&](size_t begin, size_t length) {
            const std::string text = line.substr(begin, length);
            return text.substr(0, text.find_last_not_of(' ') + 1);
        };
        const std::string category = column(0, 14), name = column(15, 16);
        table[name == "= all" ? category + " = all" : name] = atoll(line.c_str() + 51);
    }
    return table;
}
// The number that follows a text; NAN if the text is not there.
static double number_after(const std::string& text, const std::string& before) {
    const size_t at = text.find(before);
    return at == text.npos ? NAN : atof(text.c_str() + at + before.size());
}
static double total_bytes(const std::string& flags) { return number_after(run(flags).out, "\ntotal "); }

static void parameters_and_their_state() {
    start_test("the worked example has the parameters of the literature, but for tied embeddings; 16 bytes for each");
    const int64_t V = 40512, C = 768, L = 12, T = 512, untied = 2 * V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C;
    EXPECT(untied == 147675648);                    // 147.68M
    const int64_t tied = untied - V * C;            // the classifier is the embedding
    const int64_t padded = tied + (40576 - V) * C;  // the vocabulary is padded to a multiple of 128
    for (const std::string& program : {CPU + " --precision bf16", SIM16 + " --device H100"}) {
        const Outcome plan = run(program + EXAMPLE);
        auto bytes = plan_table(plan.out);
        EXPECT(contains(plan.out, format(": %d parameters\n", tied)));
        EXPECT(bytes["parameters = all"] == 2 * padded && bytes["gradients = all"] == 2 * padded);
        EXPECT(bytes["optimizer = all"] == 12 * padded && bytes["padding"] == 0);
    }
}

struct Difference {
    const char* why;
    int64_t bytes;
};
static void activations() {
    start_test("activations of the worked example: the literature's bytes and the differences to it add up exactly");
    const int64_t s = 512, b = 1, h = 768, a = 12, L = 12, n = s * b, Vp = 40576;
    const int64_t literature = n * h * L * (10 + 24) + L * 5 * a * s * n;
    EXPECT(literature == 349175808);
    const Difference differences[] = {
        {"flash attention: no softmax (2 a s), no mask of its dropout (a s), no output of that (2 a s)",
         -L * 5 * a * s * n},
        {"no dropout: no mask behind attention and none behind the MLP, 1 byte each", -2 * L * n * h},
        {"log-sum-exp of each row of scores, from which the backward pass recomputes the softmax", 4 * L * a * n},
        {"mean and 1/deviation of both layer norms, in fp32", 16 * L * n},
        {"the stream has one more tensor than layers read: the input of the last layer norm", 2 * n * h},
        {"the last layer norm: output, mean and 1/deviation", 2 * n * h + 8 * n},
        {"losses", 4 * n},
        {"scratch: the branch that is added to the stream", 2 * n * h},
        {"scratch: gradient of the stream, and of the widest tensor of a layer", 2 * n * h + 8 * n * h},
        {"logits, of one chunk of rows", 2 * n * Vp},
    };
    int64_t expected = literature;
    for (const Difference& d : differences) expected += d.bytes;
    EXPECT(plan_table(run(CPU + " --precision bf16" + EXAMPLE).out)["activations = all"] == expected);
    const Difference on_a_gpu[] = {
        {"tokens and targets", 8 * n},
        {"partial sums of column sums", 4 * 512 * 3 * h},
        {"partial sums of the gradient's norm", 4 * 2 * 1024},
        {"loss and norm, with room for one process", 256},
        {"scratch of cuBLASLt", 32 << 20},
        {"sums of products in the backward pass of attention", 4 * a * n},
        {"positions in the order of their tokens: 2 n + 1, rounded up to 256 bytes", 8 * n + 256},
        {"fp32 sums of the embedding's gradient", 4 * Vp * h},
    };
    for (const Difference& d : on_a_gpu) expected += d.bytes;
    const int64_t gpu = plan_table(run(SIM16 + " --device H100" + EXAMPLE).out)["activations = all"];
    if (!EXPECT(gpu == expected)) printf("    %lld, expected %lld\n", (long long)gpu, (long long)expected);
}

static void recompute_levels() {
    start_test("side by side: each recompute level has the bytes of the plan with that level");
    const std::string flags = CPU + " --plan -e L5C64H2T64 -b 8 --recompute-every 2 -r ";
    const std::string whole = run(flags + "4").out;
    const size_t at = whole.find("the whole run");
    double mib[5];
    EXPECT(at != whole.npos && sscanf(whole.c_str() + at, "the whole run %lf %lf %lf %lf %lf", &mib[0], &mib[1],
                                      &mib[2], &mib[3], &mib[4]) == 5);
    EXPECT(contains(whole, "-r 4: 2 layers at a time") && contains(whole, "-r 4*"));
    for (int level = 0; level < 5; level++) {
        const std::string alone = CPU + format(" --plan -e L5C64H2T64 -b 8 -r %d", level);
        EXPECT(std::fabs(total_bytes(alone) / MIB - mib[level]) <= 0.051);
    }
}

static void what_fits() {
    start_test("a run that does not fit: each flag proposed saves what the plan with it has less; the largest -b fits");
    // two processes on two machines, so that -z 1 saves, too
    for (const std::string& program : {CPU + " --precision bf16 -pg 1", SIM16}) {
        const double mib = contains(program, "sim") ? 1024 + 240 : 300;
        const std::string flags = program + format(" --plan -e d12 -t 256 -pn 2 --device 1,1,%g ", mib / 1024);
        const std::string plan = run(flags + "-b 8").out;
        const double bytes = number_after(plan, "\ntotal ");
        EXPECT(contains(plan, "does not fit"));
        int proposed = 0;
        const std::regex line("\n  (-[rbtwz] \\d+) +saves +([\\d.]+) (G|M)iB, leaves +([\\d.]+) (G|M)iB");
        for (std::sregex_iterator it(plan.begin(), plan.end(), line), end; it != end; ++it, proposed++) {
            const auto value = [&](int i) { return atof((*it)[i].str().c_str()) * ((*it)[i + 1] == "G" ? 1024 : 1); };
            const double lower = total_bytes(flags + "-b 8 " + (*it)[1].str());
            const double most_off = value(4) >= 1024 ? 52 : 0.051;
            EXPECT(std::fabs(lower / MIB - value(4)) <= most_off &&
                   std::fabs((bytes - lower) / MIB - value(2)) <= most_off);
        }
        EXPECT(proposed >= 7);
    }
    const std::string flags = CPU + " --plan -e L4C192H6T128V4096 --device 1,1,0.25 ";
    const double most_bytes = 0.25 * (1 << 30), B = number_after(run(flags).out, "batch that fits: -b ");
    EXPECT(B > 1 && total_bytes(flags + format("-b %.0f", B)) <= most_bytes &&
           total_bytes(flags + format("-b %.0f", B + 1)) > most_bytes);
    start_test("the largest batch of a run with -d divides it");
    const std::string plan = run(flags + "-b 1 -d 49152").out;
    const double divisor = number_after(plan, "and divides -d: -b ");
    EXPECT(divisor > 1 && divisor <= B && std::fmod(49152 / 128, divisor) == 0);
}

// The flags that a plan proposes where no batch fits; empty if it proposes none.
static std::string proposed_together(const std::string& plan) {
    const std::string before = "with these together one does: ";
    const size_t at = plan.find(before);
    return at == plan.npos ? "" : plan.substr(at + before.size(), plan.find('\n', at) - at - before.size());
}

static void what_fits_together() {
    const std::string flags = CPU + " --plan -e L8C64H2T512V512 -s 0 --device ";
    const auto with_mib = [](double mib) { return format("1,1,%.9g ", mib / 1024); };
    const auto mib_of = [&](const std::string& more) { return total_bytes(flags + "1,1,1 " + more) / MIB; };
    start_test("where no batch fits, flags are tried together: first -r and -b");
    const double one = mib_of("-r 3 -b 1"), two = mib_of("-r 3 -b 2");
    EXPECT(one < two && two < mib_of("-r 0 -b 1"));
    EXPECT(proposed_together(run(flags + with_mib((one + two) / 2) + "-r 0 -b 4").out) == "-r 3 -b 1");
    EXPECT(proposed_together(run(flags + with_mib(two + 0.001) + "-r 0 -b 4").out) == "-r 3 -b 2");
    start_test("what is proposed fits, and nothing is where nothing does");
    for (const char* more : {"--precision bf16 -r 1", "-pn 2 -pg 1", "-d 1024 -b 2", "-t 33 -d 66 -b 1"})
        for (double mib = mib_of(more); mib > 1; mib *= 0.8) {
            const std::string device = flags + with_mib(mib) + more + " ", tight = run(device).out;
            const std::string together = proposed_together(tight);
            if (!together.empty()) EXPECT(contains(run(device + together).out, "\nfits a device"));
            else
                EXPECT(contains(tight, "batch that fits") || contains(tight, "no batch fits, with any of these flags"));
        }
    EXPECT(proposed_together(run(flags + "1,1,0.001 ").out).empty());
}

static void what_memory_allows() {
    start_test("without -r a GPU recomputes GELU only where its output would leave less than 2 GiB");
    const std::string flags = SIM16 + " --plan -s 0 -e d12 -b 4 ", least = " --device 312,2039,";
    const double GIB = 1024.0 * 1024 * 1024, kept = total_bytes(flags + "-r 0"), dropped = total_bytes(flags + "-r 1");
    const auto with = [&](double gib) { return total_bytes(flags + least + format("%.6f", gib)); };
    const double of_card = total_bytes(flags + "-r 0" + least + "80");
    const double again = total_bytes(flags + "-r 1" + least + "80");
    EXPECT(dropped < kept && again < of_card);
    EXPECT(with(of_card / GIB + 2.001) == of_card && with(of_card / GIB + 1.999) == again);
    EXPECT(total_bytes("env CUSIM_DEVICES=0 " + flags) == dropped);
    EXPECT(total_bytes("env CUSIM_MEMORY_MIB=40000 " + flags) == kept);
    EXPECT(total_bytes("env CUSIM_MEMORY_MIB=4000 " + flags) == dropped);
    start_test("16384 rows of logits at a time where they take a sixteenth of the memory at most, whatever -r and -z");
    const std::string wide = SIM16 + " --plan -s 0 -e d12 -b 24 -d 196608 -pn 4 ";
    const double row = 2 * 50304;
    for (const char* more : {"-r 0 -z 0", "-r 3 -z 1"}) {
        const auto logits = [&](double gib) {
            return plan_table(run(wide + more + least + format("%.6f", gib)).out)["logits"];
        };
        const double enough = 16 * 16384 * row / GIB;
        EXPECT(logits(1.001 * enough) == 16384 * row && logits(0.999 * enough) == 8192 * row);
    }
}

static void human_times() {
    start_test("times are in the unit that fits; those of many days are in days, too");
    EXPECT(time_text(0.01355) == "13.55 ms" && time_text(9.9994) == "9999 ms" && time_text(13.55) == "13.55 s");
    EXPECT(time_text(1796) == "29.93 min" && time_text(86400) == "24 hours" && time_text(2, "%.2f") == "2000.00 ms");
    const std::string plan = run(CPU + " --plan -e d48 -x 1000 --device 0.001,1,80").out;
    const size_t at = plan.find("on a device of these peaks");
    EXPECT(at != plan.npos && plan.find("e+", at) == plan.npos);
    EXPECT(std::regex_search(plan, std::regex("a step takes at least [0-9.]+ hours, [0-9.]+ (s|min) of it")));
    EXPECT(std::regex_search(plan, std::regex("\\(h:mm:ss; [0-9.]+ and [0-9.]+ days\\)\n")));
}

static void time_and_cost() {
    start_test("time where bytes are free is FLOPs at the peak; what is recomputed adds its own");
    const double L = 5, C = 64, T = 64, n = 2 * T, V = 50304, peak = 1e9;
    const std::string flags =
        CPU + " --plan -e L5C64H2T64V50304 -b 2 -x 3600 --price 36 --device 0.001,1e9,1 ";  // 1 GFLOP/s
    const double layer = n * (24 * C * C + 2 * T * C), all = 3 * L * layer + 0.5 * n * 2 * T * C * L + 6 * n * C * V;
    const std::pair<const char*, double> cases[] = {{"-r 0", 0},
                                                    {"-r 1", 0},
                                                    {"-r 2", 0},
                                                    {"-r 3", 4},
                                                    {"-r 4 --recompute-every 2", 4},
                                                    {"-r 4 --recompute-every 3", 3}};
    for (auto [level, recomputed_layers] : cases) {
        const std::string plan = run(flags + level).out;
        const double expected = (all + recomputed_layers * layer) / peak;
        const double ms = number_after(plan, "a step takes at least "), cost = number_after(plan, "it costs at least ");
        EXPECT(std::fabs(ms / 1e3 / expected - 1) < 1e-3 && std::fabs(cost - 36 * expected) <= 0.006);
        EXPECT(std::fabs(number_after(plan, "FLOPs a step: ") / all - 1) < 1e-3);
    }
    start_test("time of adapters, and of a layer alone: what does not train has no gradient");
    const double R = 4, forward = L * layer + 4 * n * C * V;                              // with the gradient of lnf
    const double inputs = L * 24 * n * C * C - 6 * n * C * C, attention = 5 * n * T * C;  // not below the lowest layer
    const double low = 2 * n * R * (L * (16 + 7 + 2 * 16) * C - C);
    const std::pair<const char*, double> parts[] = {
        {"--lora 4", forward + inputs + L * attention + low},
        {"--train layers=4", forward + 48 * n * C * C + attention},
        {"--train layers=4 -r 3", forward + 48 * n * C * C + attention},  // the last segment is there
        {"--train fc=3", forward + (24 + 8 + 16 + 2) * n * C * C + 2 * attention}};
    for (auto [part, flops] : parts) {
        const double ms = number_after(run(flags + part).out, "a step takes at least ");
        EXPECT(std::fabs(ms / 1e3 / (flops / peak) - 1) < 1e-3);
    }
    start_test("GELU that is recomputed takes the time of its product where that computes it, by default nowhere");
    const auto gpu_ms = [](const std::string& more) {
        return number_after(run(SIM16 + " --plan " + more).out, "a step takes at least ");
    };
    const std::string tiny = "-e L5C64H2T64V256 -b 2 --device 0.001,1e9,1 ", h100 = "-e d12 -b 16 --device H100 ";
    for (const std::string level : {"-r 1 ", "-r 2 "}) {
        const double more_ms = gpu_ms(tiny + level + "-ge 1") - gpu_ms(tiny + level + "-ge 0");
        EXPECT(std::fabs(more_ms / (1e3 * 4 * 8 * n * C * C / peak) - 1) < 0.02);
        EXPECT(gpu_ms(h100 + level) == gpu_ms(h100 + level + "-ge 0"));
        EXPECT(gpu_ms(h100 + level) < gpu_ms(h100 + level + "-ge 2"));
    }
    EXPECT(gpu_ms(h100) == gpu_ms(h100 + "-r 0 -ge 0") && gpu_ms(h100) < gpu_ms(h100 + "-r 1"));
    EXPECT(gpu_ms(tiny + "-r 0 -ge 2") == gpu_ms(tiny + "-r 0 -ge 0") && gpu_ms(tiny) == gpu_ms(tiny + "-ge 0"));
    start_test("time where FLOPs are free is bytes at the bandwidth, the same at half of it twice");
    const auto ms_at = [&](const char* bandwidth) {
        const std::string plan = run(CPU + " --plan -e L5C64H2T64 --device 1e6," + bandwidth + ",1").out;
        return number_after(plan, "a step takes at least ");
    };
    EXPECT(ms_at("1") > 0 && std::fabs(ms_at("1") / ms_at("2") - 2) < 1e-3);
    start_test("tokens seen and epochs are those of the data");
    const std::string plan = run(tiny_run(CPU, "--plan -x 30 -d 320")).out;  // two shards of 1500 tokens
    EXPECT(contains(plan, "the run: 30 steps, 9,600 tokens seen, 3.20 epochs of 3,000 tokens"));
    EXPECT(contains(run(CPU + " --plan -i nothing.bin -x 3").out, "epochs unknown, -i nothing.bin matches no file"));
}

// What is said to take so long, or cost so much, "at 45% of the peak", in the line that has a text.
static double at_45_percent(const std::string& plan, const std::string& text) {
    const size_t line = plan.find(text), end = plan.find("at 45%", line);
    return line == plan.npos || end == plan.npos ? NAN : atof(plan.c_str() + plan.rfind(';', end) + 1);
}
static void estimates() {
    start_test("at 45% of the peak: the model's FLOPs and, with muon, those of the process that orthogonalises most");
    const double L = 2, C = 64, V = 256, T = 32, d = 4 * T, peak = 1e9;
    const double model = d * (6 * (V * C + 12 * L * C * C) + 7 * T * C * L), layer = C * C * C;
    const std::pair<int, double> processes[] = {{1, 280 * L}, {2, 160 * L}, {4, 90 * L}};
    for (auto [P, matrices] : processes)
        for (const std::string optimizer : {"muon", "lamb"}) {
            const bool muon = optimizer == "muon";
            const double expected = (model / P + (muon ? matrices * layer : 0)) / (0.45 * peak);
            const std::string plan =
                run(SIM16 + " --plan -e L2C64H2T32V256 -b 1 -d 128 -x 3600 --price 36 --device 0.001,1e9,1" +
                    format(" -pn %d --optimizer %s", P, optimizer))
                    .out;
            EXPECT(std::fabs(number_after(plan, "a step computes for ") / (1e3 * expected) - 1) < 1e-3);
            const double waits_s = 1e-3 * (number_after(plan, "communicates for ") - number_after(plan, "of which "));
            EXPECT(std::fabs(at_45_percent(plan, "a step takes") / (1e3 * (expected + waits_s)) - 1) < 1e-3);
            EXPECT(std::fabs(at_45_percent(plan, "it costs") - 36 * P * (expected + waits_s)) < 0.01);
            EXPECT(std::fabs(number_after(plan, "FLOPs a step: ") / model - 1) < 1e-4);
            const double more = number_after(plan, "Newton-Schulz (muon) takes ");
            EXPECT(muon ? std::fabs(more / (280 * L * layer) - 1) < 1e-4 : std::isnan(more));
        }
    start_test("no estimate is below the bound: few tokens, each optimizer with another work, recomputation");
    for (const char* flags :
         {"-b 1 -t 1024", "-b 1 -t 32", "-b 1 -t 32 -r 3", "-b 1 -t 64 -pn 8 -z 1", "-b 16 -t 1024"})
        for (const char* optimizer : {"adamw", "muon", "adafactor", "adamw8bit"}) {
            const std::string plan =
                run(SIM16 + " --plan -e d12 --device H100 --price 3 -x 1000000 --optimizer " + optimizer + " " + flags)
                    .out;
            const double least = number_after(plan, "a step takes at least ");
            EXPECT(least > 0 && least <= at_45_percent(plan, "a step takes"));
            EXPECT(number_after(plan, "it costs at least ") <= at_45_percent(plan, "it costs"));
        }
}

static void devices() {
    start_test("--device: a GPU of the table for a plan of GPUs, peaks for any; all else is refused");
    EXPECT(contains(run(SIM16 + " --plan -e d12 --device H100").out, "on H100 (989.4 TFLOP/s, 3350 GB/s)"));
    EXPECT(contains(run(SIM16 + " --plan -e d12 --device H100").out, "of the 79.0 GiB"));
    EXPECT(contains(run(SIM16 + " --plan -e d12 --device 'RTX 4090'").out, "on RTX 4090 (165.2"));
    for (const std::string& wrong :
         {SIM16 + " --plan --device H101", CPU + " --plan --device H100", CPU + " --plan --device 1,2",
          CPU + " --plan --device 1,2,3,4", CPU + " --plan --device 1,0,3", CPU + " --plan --device 1,nan,3",
          CPU + " --device 1,2,3", CPU + " --price 2", CPU + " --plan --price -1"}) {
        const Outcome r = run(wrong);
        if (!EXPECT(r.status == 2 && one_line(r.err) && r.out.empty()))
            printf("    %s: %s\n", wrong.c_str(), r.err.c_str());
    }
    start_test("--version names the number format that the program was built for");
    EXPECT(run(SIM16 + " --version").out == std::string(TRAINER_VERSION) + ", bf16, simulated GPU kernels\n");
    start_test("--device with another number of peaks: says that there are three, and which");
    const Outcome two = run(CPU + " --plan --device 312,2039");
    EXPECT(two.status == 2 && contains(two.err, "three numbers") && contains(two.err, "TFLOP/s, GB/s and GiB"));
    EXPECT(!contains(two.err, "H100"));
    start_test("the time of a run is in hours, minutes and seconds, and says so");
    const Outcome timed = run(CPU + " --plan -e d12 -i nothing.bin -x 100 --device 1,100,80");
    EXPECT(std::regex_search(timed.out, std::regex("the run takes at least [0-9]+:[0-9]{2}:[0-9]{2}; "
                                                   "[0-9]+:[0-9]{2}:[0-9]{2} at 45% of the peak \\(h:mm:ss\\)\n")));
    start_test("host memory of a GPU's process is in its plan; so is what the processes of a machine take together");
    const std::string plan = run(SIM16 + " --plan -e d12 -b 2 -t 64 -pn 4 --device H100").out;
    const double one = number_after(plan, "peak of a process: "),
                 four = number_after(plan, "4 processes of a machine: ");
    EXPECT(contains(plan, "tokens, pinned") && one > 0 && four > 0 && contains(plan, " GiB of GPUs, "));
    EXPECT(std::fabs(four - 4 * one) < 0.3);
}

int main() {
    make_test_folder();
    write_data();
    parameters_and_their_state();
    activations();
    recompute_levels();
    what_fits();
    what_fits_together();
    what_memory_allows();
    human_times();
    time_and_cost();
    estimates();
    devices();
    return report_and_clean();
}
