// GPUs that are absent, too old, or have similar names; what NVML tells of a GPU; and the lab's
// collectives, which must carry data from one process to another.
#include "dev/test/recorded.h"
#include "llmc/plan/mfu.h"

static const std::string TRAINER = "build/BF16/train_gpt2sim", TRAINER32 = "build/FP32/train_gpt2sim",
                         LAB = "build/cuda/all_reduce --check";

static double bf16_tflops(const char* name) { return 1e-12 * gpu_peak_flops(name, true, false); }
static bool near(double a, double b) { return near(a, b, 1e-6); }

static void peaks() {
    start_test("the peak of a GPU is that of the longest name in the table which is part of its own");
    EXPECT(near(bf16_tflops("NVIDIA L4"), 121) && near(bf16_tflops("NVIDIA L40"), 181) &&
           near(bf16_tflops("NVIDIA L40S"), 362));
    EXPECT(near(bf16_tflops("NVIDIA A10"), 125) && near(bf16_tflops("NVIDIA A10G"), 70));
    EXPECT(near(bf16_tflops("NVIDIA A100-SXM4-80GB"), 312) && near(bf16_tflops("NVIDIA A40"), 149.7));
    EXPECT(near(bf16_tflops("NVIDIA H100 80GB HBM3"), 989.4) && near(bf16_tflops("NVIDIA H100 PCIe"), 756));
    EXPECT(near(bf16_tflops("NVIDIA H200 NVL"), 835) && near(bf16_tflops("NVIDIA GH200 480GB"), 989.4));
    EXPECT(near(bf16_tflops("NVIDIA B200"), 2250) && near(bf16_tflops("NVIDIA GB200"), 2500));
    EXPECT(near(bf16_tflops("NVIDIA B100"), 1750));
    EXPECT(near(bf16_tflops("NVIDIA GeForce RTX 5070"), 61.7) && near(bf16_tflops("NVIDIA GeForce RTX 5070 Ti"), 87.9));
    EXPECT(near(bf16_tflops("NVIDIA GeForce RTX 5090"), 209.5));
    EXPECT(near(bf16_tflops("NVIDIA RTX PRO 6000 Blackwell Workstation Edition"), 504));
    EXPECT(near(bf16_tflops("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"), 440));
    start_test("a GPU that only resembles one in the table has no peak");
    for (const char* name :
         {"NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 5090 D", "NVIDIA A10M", "NVIDIA L20",
          "NVIDIA GeForce RTX 5070 Ti Laptop GPU", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "Tesla T4", ""})
        EXPECT(bf16_tflops(name) == 0);
    start_test("the peak is that of the arithmetic asked for");
    EXPECT(near(gpu_peak_flops("NVIDIA B200", false, true), 1125e12));
    EXPECT(near(gpu_peak_flops("NVIDIA B200", false, false), 75e12));
    for (const GpuPeak& p : GPU_PEAKS) EXPECT(p.bf16_tflops > p.tf32_tflops && p.tf32_tflops >= p.fp32_tflops);
}

static void chosen() {
    start_test("the GPU that is asked for its name is the one chosen");
    const std::string second = "env CUSIM_DEVICES=2 LOCAL_RANK=1 ", run_two = tiny_run(TRAINER, "-x 2");
    const Outcome known = run(second + "CUSIM_NAMES='Tesla T4,NVIDIA L40' " + run_two);
    EXPECT(known.status == 0 && contains(known.out, "% bf16 MFU") && !contains(known.out, "n/a MFU"));
    const Outcome unknown = run(second + "CUSIM_NAMES='NVIDIA L40,Tesla T4' " + run_two);
    EXPECT(unknown.status == 0 && contains(unknown.out, "n/a MFU") && !contains(unknown.out, "% bf16 MFU"));
}

static void refusals() {
    start_test("a GPU that is too old, no GPU, no driver: exit 1 and one sentence, from the trainer and from the lab");
    for (const std::string& program : {tiny_run(TRAINER, "-x 2"), LAB}) {
        const Outcome old = run("env CUSIM_CAPABILITY=75 CUSIM_NAMES='Tesla T4' " + program);
        EXPECT(old.status == 1 && one_line(old.err) &&
               contains(old.err, "Tesla T4, is too old: its compute capability is 7.5"));
        const Outcome hidden = run("env CUSIM_DEVICES=0 CUDA_VISIBLE_DEVICES= " + program);
        EXPECT(hidden.status == 1 && one_line(hidden.err) && contains(hidden.err, "CUDA_VISIBLE_DEVICES"));
        const Outcome none = run("env CUSIM_DEVICES=0 " + program);
        EXPECT(none.status == 1 && one_line(none.err) && contains(none.err, "no CUDA-capable device"));
        const Outcome driver = run("env CUSIM_DRIVER=0 " + program);
        EXPECT(driver.status == 1 && one_line(driver.err) && contains(driver.err, "no GPU: no NVIDIA driver"));
        const Outcome old_driver = run("env CUSIM_DRIVER=11080 " + program);
        EXPECT(old_driver.status == 1 && one_line(old_driver.err) && contains(old_driver.err, "driver is too old"));
    }
}

// The blocks (`threads` false) or threads of the first launch of a kernel in a step of this run.
static int64_t of_launch(const std::string& environment, const std::string& flags, const std::string& kernel,
                         bool threads) {
    const std::string file = dir("launches");
    if (!EXPECT(
            run("env CUSIM_MEMORY_MIB=4000000 CUSIM_DRY=" + file + " " + environment + " " + tiny_run(TRAINER, flags))
                .status == 0))
        return 0;
    const std::string record = read_whole(file);
    const size_t at = record.find("\nkernel " + kernel + " ");
    unsigned grid[3], block[3];
    if (!EXPECT(at != record.npos && sscanf(record.c_str() + at, "\nkernel %*s %*s %u %u %u %u %u %u", &grid[0],
                                            &grid[1], &grid[2], &block[0], &block[1], &block[2]) == 6))
        return 0;
    return threads ? block[0] * block[1] * block[2] : grid[0] * grid[1] * grid[2];
}

static void residency() {
    start_test("layer norm's backward pass has no more blocks than the GPU holds at once, and 512 at most");
    const auto blocks = [](int multiprocessors, const std::string& flags) {
        return of_launch(format("CUSIM_MULTIPROCESSORS=%d", multiprocessors), flags, "layernorm_backward", false);
    };
    // A block has 128 threads and two rows of 3 values of 4 teams in shared memory; a
    // multiprocessor has 164 KB: of 768 channels, 36 KB, it holds 4 blocks, of 64 channels, 12 KB,
    // 12. A team has at least 8 rows.
    write_tokens(dir("many.bin"), std::vector<uint16_t>(70000).data(), 70000);
    const std::string wide = "-x 1 -e L1C768H12T1024V256 -t 1024 -b 64 -i " + dir("many.bin"),
                      narrow = "-e L1C64H2T64V256 -t 64 -b 8 -x 3";
    EXPECT(blocks(108, wide) == 432 && blocks(132, wide) == 512 && blocks(20, wide) == 80);
    EXPECT(blocks(1, narrow) == 12 && blocks(2, narrow) == 16);
    start_test("two blocks of the softmax fit a multiprocessor, whether it holds 2048 threads or 1536");
    const auto threads = [](const char* capability, int V) {
        return of_launch(std::string("CUSIM_CAPABILITY=") + capability, format("-x 1 -e L1C16H1T16V%d", V),
                         "softmax_loss", true);
    };
    for (const char* capability : {"80", "90", "100"}) EXPECT(threads(capability, 50257) == 1024);
    for (const char* capability : {"86", "89", "120"}) EXPECT(threads(capability, 50257) == 768);
    EXPECT(threads("86", 5000) == 320);
    start_test("a GPU's sums have the same bits in every run, and another GPU's are as near as rounding allows");
    const std::string small = "CUSIM_CAPABILITY=86 CUSIM_MULTIPROCESSORS=1 ";
    const auto fp32_run = [&](const std::string& environment, const char* name) {
        return run(environment + tiny_run(TRAINER32, narrow + " -o " + dir(name)));
    };
    const Outcome one = fp32_run("env " + small, "one"), same = fp32_run("env CUSIM_SEED=3 " + small, "same"),
                  other = fp32_run("", "other");
    EXPECT(one.status == 0 && same.status == 0 && other.status == 0);
    const auto state = [](const char* name) {
        return read_whole(dir(std::string(name) + "/state_00000003_00000.bin"));
    };
    EXPECT(!state("one").empty() && state("one") == state("same") && state("one") != state("other"));
    EXPECT(near(at("one", 0, METRIC_NORM), at("other", 0, METRIC_NORM), 1e-3));
}

static void failures() {
    start_test("a GPU whose memory fails: exit 1, one sentence with a hint, and the run can be resumed");
    const std::string flags = " -o " + dir("ecc");
    EXPECT(run(tiny_run(TRAINER, "-x 1" + flags)).status == 0);
    EXPECT(refused(run("env CUSIM_FAILS=214 " + tiny_run(TRAINER, "-x 2 -y 1" + flags)), 1, "nvidia-smi -q -d ECC"));
    EXPECT(contains(run(tiny_run(TRAINER, "-x 2 -y 1" + flags)).out, "resumed at step 1"));
    start_test("two processes on one GPU: exit 1, and a sentence that names them");
    if (run("sh -c 'command -v mpirun'").status != 0)
        return skip_test("two processes (apt-get install openmpi-bin libopenmpi-dev)");
    const std::string two = "mpirun -np 2 --oversubscribe --allow-run-as-root " + tiny_run(TRAINER, "-x 1 -b 1 -d 32");
    const Outcome same = run("env CUSIM_DEVICES=1 " + two);
    EXPECT(same.status == 1 && contains(same.err, "ranks 0 and 1 have the same GPU, number 0"));
    EXPECT(run("env CUSIM_DEVICES=2 " + two).status == 0);
}

// A run with the NVML of fake_nvml.cpp: of about a second, or of as many steps as `length` says.
static Outcome with_nvml(const std::string& name, const std::string& environment,
                         const std::string& length = "-x 100000 --max-minutes 0.02") {
    const std::string env = "env LD_LIBRARY_PATH=build/fake_nvml:$LD_LIBRARY_PATH " + environment + " ";
    const std::string quick = " -e L1C16H1T16V256 -b 1 -k constant -lg 1 -o ";  // many steps in 100 ms
    return run(env + tiny_run(TRAINER, length + quick + dir(name)));
}
// The lines of metrics.csv that have this column.
static std::vector<std::string> lines_with(const std::string& name, Metric metric) {
    std::vector<std::string> found;
    for (const std::string& line : metrics(name))
        if (metric_of(line, metric)) found.push_back(line);
    return found;
}

static void nvml() {
    start_test("NVML: clock, power and temperature of the GPU that computes, joules as differences");
    const Outcome r = with_nvml("nvml", "CUSIM_DEVICES=3 LOCAL_RANK=2");
    const std::vector<std::string> read = lines_with("nvml", METRIC_CLOCK);
    EXPECT(r.status == 0 && read.size() >= 3);
    EXPECT(contains(r.out, "\ndevice: cusim (compute capability 8.0), GPU 2 of 3, ") &&
           contains(r.out, "flash attention"));
    EXPECT(contains(r.out, ", clock 1410 MHz, memory clock 1215 MHz, power 212.5 W, 43 C, busy 87%"));
    for (size_t n = 0; n < read.size(); n++) {
        const auto is = [&](Metric m) { return metric_of(read[n], m).value_or(NAN); };
        EXPECT(is(METRIC_CLOCK) == 1410 && is(METRIC_POWER) == 212.5 && is(METRIC_CELSIUS) == 43);
        EXPECT(n == 0 ? std::isnan(is(METRIC_JOULES)) : is(METRIC_JOULES) == 2.0 * (double)n - 1);
    }
    start_test("NVML is asked at most ten times per second; in between the columns are empty");
    const double seconds = metric_of(metrics("nvml").back(), METRIC_SECONDS).value_or(NAN);
    EXPECT((double)read.size() <= 10 * seconds + 2);
    int64_t quick_steps = 0;
    for (const std::string& line : metrics("nvml")) quick_steps += metric_of(line, METRIC_STEP_MS).value_or(NAN) < 50;
    EXPECT(metrics("nvml").size() > read.size() || quick_steps < 2);
    for (const Metric m : {METRIC_POWER, METRIC_CELSIUS}) EXPECT(lines_with("nvml", m) == read);
    EXPECT(lines_with("nvml", METRIC_JOULES).size() == read.size() - 1);
    start_test("what NVML does not tell is empty, the rest is not");
    EXPECT(with_nvml("no-joules", "FAKE_NVML_FAILS=nvmlDeviceGetTotalEnergyConsumption", "-x 2").status == 0);
    EXPECT(lines_with("no-joules", METRIC_JOULES).empty() && lines_with("no-joules", METRIC_POWER).size() >= 1);
    EXPECT(with_nvml("no-power", "FAKE_NVML_FAILS=nvmlDeviceGetPowerUsage").status == 0);
    EXPECT(lines_with("no-power", METRIC_POWER).empty() && lines_with("no-power", METRIC_JOULES).size() >= 2);
    start_test("NVML that does not start: the columns are empty, -lg says so");
    const Outcome none = with_nvml("no-nvml", "FAKE_NVML_FAILS=nvmlInit_v2", "-x 2");
    EXPECT(none.status == 0 && contains(none.out, "(no NVML: nothing on clocks"));
    for (int m = METRIC_CLOCK; m <= METRIC_JOULES; m++) EXPECT(lines_with("no-nvml", (Metric)m).empty());
}

static void collectives() {
    start_test("the lab's sum of two processes is right, and sends every byte that it must");
    if (run("sh -c 'command -v mpirun'").status != 0)
        return skip_test("two processes (apt-get install openmpi-bin libopenmpi-dev)");
    const Outcome two = run("mpirun -np 2 --oversubscribe --allow-run-as-root " + LAB);
    EXPECT(two.status == 0 && contains(two.out, "4 passed, 0 failed"));
    // Two variants, each on 1024 and 3680 floats (3696 rounded down to whole slices). Each process
    // sends half of the values, to be summed, and then half of the sums.
    EXPECT(contains(two.out, format("each process has sent %d bytes\n", 2 * 4 * (1024 + 3680))));
}

// The optimizer's state of all ranks after two steps of three processes, which evaluate, sample and
// save in between.
static std::string state_of_three(const std::string& environment, const std::string& flags, const std::string& name) {
    const std::string out = dir(name),
                      program = tiny_run(TRAINER32, "-e L10C16H1T16V256 -b 1 -d 96 -x 2 -v 1 -s 1 -g 4 -n 1 -o " + out);
    const Outcome r =
        run("env " + environment + " mpirun -np 3 --oversubscribe --allow-run-as-root " + program + flags);
    if (r.status != 0) return printf("    %s\n", r.err.c_str()), "";
    const std::string samples = read_whole(out + "/samples.txt");
    return samples + read_whole(out + "/model_00000001.bin") + read_whole(out + "/model_00000002.bin");
}

static void weights_on_their_way() {
    if (run("sh -c 'command -v mpirun'").status != 0)
        return skip_test("three processes (apt-get install openmpi-bin libopenmpi-dev)");
    start_test(
        "weights that arrive while the next forward pass computes: the bits of -z 0, on slow links, in any order");
    const std::string whole = state_of_three("", "", "whole");
    EXPECT(!whole.empty() && state_of_three("CUSIM_NCCL_MS=5", " -z 1", "slow") == whole);
    for (const char* seed : {"1", "2"})
        EXPECT(state_of_three(std::string("CUSIM_NCCL_MS=2 CUSIM_SEED=") + seed, " -z 1", std::string("seed") + seed) ==
               whole);
    start_test("sums that switches add have other bits each time; they do so only if they are asked");
    EXPECT(state_of_three("NCCL_ALGO=Ring", "", "ring") == whole);
    const std::string once = state_of_three("NCCL_NVLS_ENABLE=1", "", "nvls"),
                      again = state_of_three("NCCL_NVLS_ENABLE=1", "", "nvls2");
    EXPECT(!once.empty() && !again.empty() && once != again);
}

int main() {
    make_test_folder();
    peaks();
    chosen();
    refusals();
    residency();
    failures();
    nvml();
    collectives();
    weights_on_their_way();
    return report_and_clean();
}
