// The GPU trainer in the simulator, run as a user runs it, beside the CPU trainer: the same
// numbers, metrics, checkpoints that one writes and the other reads, errors. And the simulator
// itself: each of its checks finds the bug that was planted for it.
#include <regex>
#include "dev/test/end_of_text.h"
#include "dev/test/recorded.h"
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint.h"

static const char* TRAINING = "-x 20 -d 64 -l 3e-3 -u 3 -q 0.1 -c 0.1 --grad-clip 0.8 -f 0 ";

static void same_numbers() {
    const Outcome cpu = run(tiny_run(CPU, TRAINING));
    start_test("20 steps: loss and norm of the fp32 build, to 1e-4 those of the CPU trainer");
    EXPECT(agree(run(tiny_run(SIM32, TRAINING)), cpu, 20, 1e-4, 1e-4));
    start_test("20 steps: the bf16 build, within the rounding of bf16; fused GELU, recomputation and -w 0 too");
    const Outcome base = run(tiny_run(SIM16, TRAINING));
    EXPECT(agree(base, cpu, 20, LOSS16, NORM16));
    EXPECT(agree(run(tiny_run(SIM16, std::string(TRAINING) + "-ge 1 -r 1")), cpu, 20, LOSS16, NORM16));
    EXPECT(agree(run(tiny_run(SIM16, std::string(TRAINING) + "-ge 2 -r 0")), cpu, 20, LOSS16, NORM16));
    EXPECT(agree(run(tiny_run(SIM16, std::string(TRAINING) + "-w 0")), cpu, 20, 2 * LOSS16, 2 * NORM16));
    start_test("20 steps: where the library refuses to fuse GELU a kernel computes it, with the same bits as -ge 0");
    for (const std::string& sim : {SIM32, SIM16}) {
        const Outcome apart = run(tiny_run(sim, TRAINING));
        const std::string fused = tiny_run(sim, std::string(TRAINING) + "-ge 2 -r 0");
        for (const auto& [at, why] : {std::pair("algorithm", "NOT_SUPPORTED"),
                                      {"description", "INVALID_VALUE"},
                                      {"heuristic", "INVALID_VALUE"},
                                      {"run", "EXECUTION_FAILED"}}) {
            const Outcome refused = run(format("env CUSIM_NO_FUSED_GELU=%s ", at) + fused);
            EXPECT(agree(refused, apart, 20, 0, 0) && contains(refused.err, "cuBLASLt does not fuse GELU") &&
                   contains(refused.err, format("(CUBLAS_STATUS_%s): a kernel", why)));
        }
    }
    start_test("20 steps: the comparison sees another learning rate");
    EXPECT(!(apart(steps_of(run(tiny_run(SIM16, std::string(TRAINING) + "-l 4e-3"))).losses, steps_of(cpu).losses, 20) <
             LOSS16));
}

static const std::string FOUR_STEPS = std::string(TRAINING) + "-x 4 -o ";

static void same_bits() {
    start_test(
        "the same bits in any order of blocks, warps and lanes, on any number of threads, at any recompute level");
    EXPECT(run(tiny_run(SIM16, FOUR_STEPS + dir("order"))).status == 0);
    for (const char* variant :
         {"CUSIM_SEED=1", "CUSIM_SEED=2", "CUSIM_SEED=3", "CUSIM_THREADS=1", "CUSIM_SHARED_KIB=1"}) {
        EXPECT(run("env " + std::string(variant) + " " + tiny_run(SIM16, FOUR_STEPS + dir(variant))).status == 0);
        EXPECT(same_files(dir("order/model_00000004.bin"), dir(std::string(variant) + "/model_00000004.bin")));
    }
    for (const char* level : {"0", "3"}) {
        EXPECT(run(tiny_run(SIM16, FOUR_STEPS + dir(std::string("level") + level) + " -r " + level)).status == 0);
        EXPECT(same_files(dir("order/state_00000004_00000.bin"),
                          dir(std::string("level") + level + "/state_00000004_00000.bin")));
    }
    start_test("GELU in the epilogues: the same bits at any recompute level");
    const std::pair<const char*, std::string> fused[] = {
        {"ge0", tiny_run(SIM16, FOUR_STEPS + dir("ge0") + " -ge 2 -r 0")},
        {"ge1", tiny_run(SIM16, FOUR_STEPS + dir("ge1") + " -ge 2 -r 1")},
        {"ge2", tiny_run(SIM16, FOUR_STEPS + dir("ge2") + " -ge 2 -r 2")},
        {"ge3", tiny_run(SIM16, FOUR_STEPS + dir("ge3") + " -ge 2 -r 3")}};
    const auto model_of = [](const char* name) { return dir(std::string(name) + "/model_00000004.bin"); };
    for (const auto& [name, command] : fused)
        EXPECT(run(command).status == 0 && same_files(model_of(name), model_of("ge0")));
    EXPECT(!same_files(model_of("ge0"), model_of("order")));
    start_test("attention: the same bits however many heads are in a group");
    const std::string three_tiles = " -e L1C80H5T300V256 -t 300 -d 600 -x 2 -o ";  // of 10 heads
    for (const auto& [program, name] : {std::pair<std::string, std::string>{SIM16, "group16_"}, {SIM32, "group32_"}}) {
        for (const char* kib : {"1", "400", "700", "40960"})
            EXPECT(
                run(format("env CUSIM_CACHE_KIB=%s ", kib) + tiny_run(program, three_tiles + dir(name + kib))).status ==
                0);
        for (const char* kib : {"400", "700", "40960"})
            EXPECT(same_files(dir(name + kib + "/model_00000002.bin"), dir(name + "1/model_00000002.bin")));
    }
    start_test("stochastic rounding: the same seed gives the same bits, another seed others");
    for (const char* run_name : {"w0a", "w0b"})
        EXPECT(run(tiny_run(SIM16, FOUR_STEPS + dir(run_name) + " -w 0")).status == 0);
    EXPECT(same_files(dir("w0a/model_00000004.bin"), dir("w0b/model_00000004.bin")) &&
           !same_files(dir("w0a/model_00000004.bin"), dir("order/model_00000004.bin")));
}

// How many graphs a dry run launches, and how many lines of launches and copies it has in all.
static std::pair<int64_t, int64_t> launched(const std::string& more) {
    const std::string file = dir("dry");
    run("env CUSIM_DRY=" + file + " " + tiny_run(SIM16, "-d 192 -x 4 --cuda-graph 1 " + more));
    const std::string text = read_whole(file);
    int64_t graphs = 0;
    for (size_t at = 0; (at = text.find("graph ", at)) != text.npos; at++) graphs += at == 0 || text[at - 1] == '\n';
    return {graphs, std::count(text.begin(), text.end(), '\n') - graphs};
}

static void same_by_graphs() {
    const std::string flags = "-x 6 -d 192 -l 3e-3 -c 0.1 -f 0 --overwrite 1 -v 2 -m 1 -s 4 -g 4 ";
    const auto both_agree = [&](const std::string& program, const std::string& more) {
        start_test("--cuda-graph 1: the same bits as without: " + more);
        const std::string off = "--cuda-graph 0 -o " + dir("off"), on = "--cuda-graph 1 -o " + dir("on");
        for (const std::string& which : {off, on}) EXPECT(passed(run(tiny_run(program, flags + more + " " + which))));
        EXPECT(same_files(dir("off/model_00000006.bin"), dir("on/model_00000006.bin")));
        EXPECT(same_files(dir("off/state_00000006_00000.bin"), dir("on/state_00000006_00000.bin")));
        EXPECT(same_records("off", "on"));
        EXPECT(read_whole(dir("off/tensors.csv")) == read_whole(dir("on/tensors.csv")));
    };
    both_agree(SIM16, "-r 1");
    both_agree(SIM16, "--dropout 0.3 -r 3");
    both_agree(SIM16, "--document-mask 1 -e L2C32H2T16V257 -r 0 --tokenizer " + tokenizer_with(4));
    both_agree(SIM16, "--seq-warmup 4 --batch-warmup 4 -ge 2 -r 2");
    both_agree(SIM16, "--noise-scale 1 --log-tensors 2 -w 0 -r 4 -d 32");
    both_agree(SIM16, "--trace " + dir("trace.json") + " --trace-steps 3:4 --optimizer muon");
    both_agree(SIM32, "--dropout 0.3 -r 2");
    start_test("--cuda-graph 1: which micro-steps are graphs, and nothing is launched more or less often");
    // Six micro-steps: the first, those between, the last. The first of each kind is none.
    EXPECT(launched("") == std::pair(int64_t(2 * (4 * 6 - 3)), launched("--cuda-graph 0").second));
    EXPECT(launched("-d 32").first == 2 * 3 && launched("--cuda-graph 0").first == 0);
    EXPECT(launched("--trace " + dir("trace.json") + " --trace-steps 1:4").first == 0);
}

// Of the model that same_bits() saved.
static void same_evaluations() {
    start_test("validation, HellaSwag and samples agree with the CPU trainer's");
    write_hellaswag(dir("hella.bin"));
    const std::string evaluation = "-x 0 -v 1 -m -1 -h 1 --hellaswag-data " + dir("hella.bin") +
                                   " -s 1 -g 8 --top-k 1 -e " + dir("order/model_00000004.bin") + " -b 3 ";
    auto val = [](const Outcome& r) {
        return atof(r.out.c_str() + std::min(r.out.find("val loss") + 9, r.out.size()));
    };
    const Outcome a = run(tiny_run(CPU, evaluation)), b = run(tiny_run(SIM32, evaluation)),
                  c = run(tiny_run(SIM16, evaluation));
    auto from = [](const Outcome& r, const char* word) {
        return r.out.substr(std::min(r.out.find(word), r.out.size()));
    };
    // from there to the end, so the sample too: the most likely token each time
    EXPECT(!from(a, "HellaSwag:").empty() && from(a, "HellaSwag:") == from(b, "HellaSwag:"));
    EXPECT(a.status == 0 && val(a) > 1 && std::fabs(val(b) - val(a)) < 1e-5 * val(a) &&
           std::fabs(val(c) - val(a)) < LOSS16 * val(a));
}

// The columns of metrics.csv that have a value in a step. The noise scale needs positive means.
static std::set<std::string> filled(const std::string& name, int64_t step) {
    std::set<std::string> columns;
    for (const std::string& line : metrics(name))
        for (int m = 0; m < METRIC_NOISE_SCALE; m++)
            if (atoll(line.c_str()) == step && metric_of(line, (Metric)m)) columns.insert(METRICS[m].column);
    return columns;
}
// Whether the numbers that do not depend on time are those of the CPU trainer, within the rounding
// of bf16. The signal is a small difference of squared norms.
static bool same_values(const std::string& sim, const std::string& cpu, int64_t step) {
    const auto apart = [&](Metric m) { return std::fabs(at(sim, step, m) - at(cpu, step, m)); };
    const auto relative = [&](Metric m) { return apart(m) / at(cpu, step, m); };
    const double loss = relative(METRIC_LOSS), norm = relative(METRIC_NORM), noise = relative(METRIC_NOISE);
    const double signal = apart(METRIC_SIGNAL) / std::pow(at(cpu, step, METRIC_NORM), 2);
    const bool exact = apart(METRIC_STEP) == 0 && apart(METRIC_TOKENS) == 0 && apart(METRIC_RATE) == 0;
    const bool good = exact && loss <= LOSS16 && norm <= NORM16 && noise <= 2 * NORM16 && signal <= 2 * NORM16;
    if (!good) printf("    apart: loss %g, norm %g, noise %g, signal %g\n", loss, norm, noise, signal);
    return good;
}
static bool parts_add_up(const std::string& name, int64_t step) {
    double parts = 0;
    for (int m = METRIC_DATA; m <= METRIC_UPDATE; m++) parts += at(name, step, (Metric)m);
    const double all = at(name, step, METRIC_STEP_MS);
    const bool good = parts > 0.8 * all && parts <= all + 0.01;
    if (!good) printf("    the parts of step %d take %g of %g ms\n", (int)step, parts, all);
    return good;
}

static void metrics_of_both() {
    const std::string sim = "env CUSIM_NAMES='NVIDIA L40' " + SIM16, bf16 = " --precision bf16 ";
    const std::string flags = "-b 1 -d 64 -x 2 -v 2 -m 2 -l 1e-3 -f 0 --noise-scale 1 -o ";
    const auto same = [](const std::string& gpu, const std::string& cpu, size_t columns) {
        bool good = metrics(gpu).size() == 2 && metrics(cpu).size() == 2;
        for (int64_t step : {0, 1}) {
            good = good && filled(gpu, step).size() == columns && filled(gpu, step) == filled(cpu, step);
            good = good && same_values(gpu, cpu, step) && parts_add_up(gpu, step);
            good = good && at(gpu, step, METRIC_FORWARD) > 0 && at(gpu, step, METRIC_BACKWARD) > 0;
        }
        return good;
    };
    start_test("metrics.csv: columns and numbers of the CPU trainer, noise too; the parts of a step add up to it");
    EXPECT(run(tiny_run(sim, flags + dir("metrics-sim"))).status == 0);
    EXPECT(run(tiny_run(CPU, flags + dir("metrics-cpu") + bf16)).status == 0);
    constexpr int OF_PROCESSES = 2, OF_NVML = 4, NOISE_SCALE = 1, LOSS_SCALE = 1;  // fp16 alone has the last
    EXPECT(same("metrics-sim", "metrics-cpu", NUM_METRICS - OF_PROCESSES - OF_NVML - NOISE_SCALE - LOSS_SCALE));
    EXPECT(std::fabs(at("metrics-sim", 0, METRIC_NOISE) / at("metrics-cpu", 1, METRIC_NOISE) - 1) > 2 * NORM16);
    start_test("metrics.csv of two processes: the same");
    if (run(std::string(MPIRUN) + "-np 2 true").status != 0)
        return skip_test("runs under mpirun (apt-get install libopenmpi-dev openmpi-bin, then make clean test)");
    EXPECT(run(several(sim, 2, flags + dir("metrics-sim2"))).status == 0);
    EXPECT(run(several(CPU, 2, flags + dir("metrics-cpu2") + bf16)).status == 0);
    EXPECT(same("metrics-sim2", "metrics-cpu2", NUM_METRICS - OF_NVML - NOISE_SCALE - LOSS_SCALE));
}

static void one_to_the_other() {
    struct Pair {
        const char* name;
        std::string first, second;
        double loss, norm;
    };
    const std::string flags = "-d 64 -l 3e-3 -k constant -c 0.1 -f 0 -x ";
    for (const Pair& p : {Pair{"fp32 build to CPU", SIM32, CPU, 1e-4, 1e-4},
                          {"CPU to fp32 build", CPU, SIM32, 1e-4, 1e-4},
                          {"bf16 build to CPU", SIM16, CPU, LOSS16, NORM16},
                          {"CPU to bf16 build", CPU, SIM16, LOSS16, NORM16},
                          {"bf16 build to itself", SIM16, SIM16, 0, 0}}) {
        start_test(std::string("a run goes on with another trainer: ") + p.name);
        const std::string out = dir(std::string("pair ") + p.name);
        EXPECT(run(tiny_run(p.first, flags + "5 -o '" + out + "'")).status == 0);
        const Outcome rest = run(tiny_run(p.second, flags + "12 -y 1 -o '" + out + "'")),
                      whole = run(tiny_run(p.second, flags + "12 --overwrite 1 -o " + dir("whole")));
        Steps late = steps_of(whole);
        late.losses.erase(late.losses.begin(), late.losses.begin() + std::min<size_t>(5, late.losses.size()));
        EXPECT(rest.status == 0 && contains(rest.out, "resumed at step 5") &&
               apart(steps_of(rest).losses, late.losses, 7) <= p.loss);
        if (p.loss == 0)
            EXPECT(same_files(out + "/state_00000012_00000.bin", dir("whole/state_00000012_00000.bin")) &&
                   same_files(out + "/model_00000012.bin", dir("whole/model_00000012.bin")));
    }
}

static void errors() {
    start_test("what a GPU cannot do is refused with exit 2 and one sentence");
    EXPECT(refused(run(tiny_run(SIM16, "--precision fp32")), 2, "PRECISION=FP32"));
    EXPECT(refused(run(tiny_run(SIM32, "--precision bf16")), 2, "PRECISION=BF16"));
    EXPECT(refused(run(tiny_run(SIM16, "-e L1C36H3T16V256")), 2, "heads of 12"));
    EXPECT(refused(run(tiny_run(SIM16, "-e L1C264H1T16V256")), 2, "heads of 264"));
    EXPECT(refused(run(tiny_run(SIM16, "-b 0")), 2, "-b"));
    start_test("no GPU, an old driver: exit 1, one sentence, an earlier run in the out dir untouched");
    EXPECT(run(tiny_run(SIM16, "-x 1 -o " + dir("kept"))).status == 0);
    EXPECT(refused(run("env CUSIM_DEVICES=0 " + tiny_run(SIM16, "-x 1 --overwrite 1 -o " + dir("kept"))), 1,
                   "no CUDA-capable device"));
    EXPECT(refused(run("env CUSIM_DRIVER=11080 " + tiny_run(SIM16, "-x 1 --overwrite 1 -o " + dir("kept"))), 1,
                   "driver is too old"));
    EXPECT(refused(run("env CUSIM_DRIVER=0 " + tiny_run(SIM16, "-x 1 --overwrite 1 -o " + dir("kept"))), 1,
                   "no NVIDIA driver"));
    start_test("out of memory: the plan's table, then what to change");
    const Outcome memory =
        run("env CUSIM_MEMORY_MIB=1 " + tiny_run(SIM16, "-x 1 -b 8 --overwrite 1 -o " + dir("kept")));
    EXPECT(memory.status == 1 && contains(memory.err, "master weights") &&
           contains(memory.err, "out of memory: the run needs") && contains(memory.err, "-b, -t"));
    EXPECT(file_exists(dir("kept/DONE_00000001")));
    start_test(
        "free memory must hold the plan and 512 MiB for what libraries load later; with a MiB less nothing runs");
    const std::string plan = run(tiny_run(SIM16, "-x 1 --plan")).out;
    const size_t total = plan.find("\ntotal ");
    const int64_t mib = total == plan.npos ? 0 : ((atoll(plan.c_str() + total + 7) - 1) >> 20) + 1;
    const auto with_mib = [&](int64_t free) {
        return run(format("env CUSIM_MEMORY_MIB=%d ", free) + tiny_run(SIM16, "-x 1"));
    };
    EXPECT(mib > 0 && with_mib(mib + 512).status == 0);
    const Outcome less = with_mib(mib + 511);
    EXPECT(less.status == 1 && !contains(less.out, "| loss") &&
           contains(less.err, "and 512 more for kernels that are loaded later"));
    start_test("a loss that is not finite stops the run before the weights are touched");
    EXPECT(refused(run(tiny_run(SIM16, "-x 50 -n 1 -l 1e30 -k constant --grad-clip 0 -c 1 -o " + dir("nan"))), 1,
                   "not finite"));
    start_test("outliers are skipped, as on the CPU");
    const Outcome skip = run(tiny_run(SIM16, "-x 150 -b 1 -l 0 -sl 0.5"));
    EXPECT(skip.status == 0 && contains(skip.out, "update skipped, its loss") && contains(skip.out, "step  150/150"));
    start_test("-lg: a line on the GPU");
    const Outcome log = run(tiny_run(SIM16, "-x 4 -lg 2"));
    size_t lines = 0;
    for (size_t at = 0; (at = log.out.find("gpu: memory", at)) != log.out.npos; at++) lines++;
    EXPECT(log.status == 0 && lines == 2);
    start_test("bf16 checkpoints are files of version 5, and smaller");
    const std::string model = read_whole(dir("kept/model_00000001.bin"));
    EXPECT(model.size() > 1024 && model[4] == 5 &&
           model.size() < read_whole(dir("whole/model_00000012.bin")).size() + 1);
}

static std::string bug(const std::string& name, const std::string& environment = "") {
    return (environment.empty() ? "" : "env " + environment + " ") + "build/cusim_seeded_bugs " + name;
}

static void detectors() {
    start_test("correct kernels run, in any order");
    for (const char* name :
         {"good", "early_exit", "async_copy", "stream_wait", "stream_copy", "good_query", "graph", "nccl"})
        for (const char* seed : {"CUSIM_SEED=0", "CUSIM_SEED=1", "CUSIM_SEED=2"})
            EXPECT(run(bug(name, seed)).status == 0);
    struct Case {
        const char *name, *says;
    };
    for (const Case& c : {Case{"off_by_one", "wrote beyond its memory"},
                          {"shared_off_by_one", "shared variable values"},
                          {"divergent_barrier", "seeded_bugs.cu:"},
                          {"barrier_in_half_a_warp", "seeded_bugs.cu:"},
                          {"shuffle_masks_differ", "mask ffffff00"},
                          {"shuffle_not_in_mask", "does not name the calling lane"},
                          {"misaligned", "misaligned access of 16 bytes"},
                          {"hinted_store", "has an address in shared memory"},
                          {"fault", "no device memory"},
                          {"null", "thread (5,0,0)"},
                          {"host_access", "host code touches device memory"},
                          {"too_many_threads", "beyond what a GPU accepts"},
                          {"big_shared", "more than 49152 bytes"},
                          {"big_dynamic_shared", "dynamic shared memory"},
                          {"forgotten_query", "device not ready"},
                          {"wait_in_capture", "the host asks for a stream while a stream is captured"},
                          {"event_in_capture", "an event is recorded or waited for while a stream is captured"},
                          {"nccl_low_priority", "in a stream of low priority"},
                          {"nccl_two_calls", "a call is in progress"},
                          {"nccl_open_group", "a group is open"},
                          {"nccl_no_destroy", "has not ended NCCL"},
                          {"stack_overflow", "stack overflow"}}) {
        start_test(std::string("found with one sentence: ") + c.name);
        EXPECT(refused(run(bug(c.name)), 1, c.says));
    }
    for (const char* name : {"missing_barrier", "missing_barrier_hidden", "uninitialised", "missing_async_wait",
                             "missing_stream_wait", "pageable_copy", "copy_without_wait", "captured_value"}) {
        start_test(std::string("makes a wrong result, not a right one by luck: ") + name);
        EXPECT(run(bug(name)).status == 3);
    }
    start_test("exit() beside NCCL that waits for another process hangs, as on a GPU");
    EXPECT(run("timeout 2 " + bug("nccl_early_exit")).status == 124);
    start_test("blocks that race give other results in another order");
    EXPECT(run(bug("block_race", "CUSIM_SEED=1")).status == 3);
    start_test("streams that are not ordered run in another order");
    int wrong = 0;
    for (int seed = 1; seed <= 8; seed++)
        wrong += run(bug("missing_stream_wait", format("CUSIM_SEED=%d", seed))).status == 3;
    EXPECT(wrong > 0 && wrong < 8);
}

// Mistakes with Hopper's instructions (dev/cusim/test/hopper_bugs.cu).
static void hopper_detectors() {
    const auto with = [](const std::string& mistake, int seed) {
        return run(format("env CUSIM_SEED=%d build/cusim_hopper_bugs ", seed) + mistake);
    };
    start_test("a product with wgmma, TMA and mbarriers is right, in any order");
    for (int seed = 0; seed < 8; seed++) EXPECT(with("good", seed).status == 0);
    struct Case {
        const char *name, *says;
    };
    for (const Case& c : {Case{"no_wait", "more arrivals at an mbarrier than the 1"},
                          {"first_round_waits", "phase of parity 0 of an mbarrier, which misses 1 of 1 arrivals"},
                          {"no_release", "phase of parity 1 of an mbarrier, which misses 1 of 1 arrivals"},
                          {"more_bytes", "misses 0 of 1 arrivals and 2 bytes"},
                          {"fewer_bytes", "the block ends while this copy is on its way"},
                          {"more_arrivals", "of an mbarrier, which misses 1 of 1 arrivals"},
                          {"not_initialised", "this mbarrier is not initialised"},
                          {"no_init_fence", "a fence_async is missing"},
                          {"other_row", "begin at a multiple of 1024 bytes"},
                          {"unaligned", "lies at a multiple of 1024"},
                          {"no_register_fence", "a wgmma without a wgmma_fence"},
                          {"no_commit", "products of a warpgroup are on their way"},
                          {"other_parity", "more arrivals at an mbarrier than the 1"},
                          {"fewer_arrivals", "of an mbarrier, which misses 1 of 1 arrivals"},
                          {"half_a_warpgroup", "of an mbarrier, which misses 4 of 4 arrivals"},
                          {"no_store_wait", "without a tma_store_wait"},
                          {"outside_memory", "not in device memory"},
                          {"stride_of_tensor", "refuses the tensor"}}) {
        start_test(std::string("Hopper, found with one sentence: ") + c.name);
        EXPECT(refused(with(c.name, 0), 1, c.says));
    }
    for (const char* name : {"other_swizzle", "other_stride", "late_wait", "no_store_fence"}) {
        start_test(std::string("Hopper, makes a wrong result, not a right one by luck: ") + name);
        EXPECT(with(name, 0).status == 3);
    }
    start_test("Hopper, a wrong result in any other order: early_release");
    for (int seed = 1; seed < 8; seed++) EXPECT(with("early_release", seed).status == 3);
}

int main() {
    make_test_folder();
    same_numbers();
    same_bits();
    same_by_graphs();
    same_evaluations();
    metrics_of_both();
    one_to_the_other();
    errors();
    detectors();
    hopper_detectors();
    return report_and_clean();
}
