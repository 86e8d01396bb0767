// ZeRO stages 2 and 3, on CPUs and in the simulator, and --offload: what stage 0 computes, saves,
// evaluates and prints, to the bit; with whatever carries the slices, and on the plan's memory.
#include <csignal>
#include "dev/test/recorded.h"
#include "dev/test/sent.h"
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint.h"

static std::string with(int o) { return std::string("--optimizer ") + OPTIMIZERS[o].name + " "; }
// A run of steps of one micro-step, or of two.
static std::string one_micro_step(const std::string& program, int n, const std::string& more) {
    return MPIRUN + format("-np %d ", n) + tiny_run(program, "-b 1 -f 0 --threads 1 -c 0.1 " + more);
}
static std::string two_micro_steps(const std::string& program, int n, const std::string& more) {
    return one_micro_step(program, n, format("-d %d ", 2 * 16 * n) + more);
}
// Whether two runs of n processes have left the same checkpoints, logs, samples and best models.
static bool same_runs(const std::string& a, const std::string& b, int64_t step, int n) {
    bool same = same_files(model_path(dir(a), step), model_path(dir(b), step)) && same_records(a, b);
    for (int r = 0; r < n; r++) same = same && same_files(state_path(dir(a), step, r), state_path(dir(b), step, r));
    return same && read_whole(dir(a) + "/model_best.bin") == read_whole(dir(b) + "/model_best.bin");
}

static void same_bits() {
    write_hellaswag(dir("hella.bin"));
    const std::string everything =
        "-e L5C32H2T16V256 -x 4 -v 2 -s 2 -g 5 --samples 2 -m 3 --keep-best 1 --dropout 0.1 "
        "--noise-scale 1 --log-tensors 2 -h 1 --hellaswag-data " +
        dir("hella.bin") + " -o ";
    for (const std::string& program : {CPU, CPU + " --precision bf16", SIM32, SIM16})
        for (int n : {2, 3}) {
            if (n == (program == SIM16 ? 3 : program == SIM32 ? 2 : 0)) continue;
            start_test(format("%s, %d processes: stages 2 and 3 have the bits of stage 0, at all recompute levels",
                              program, n));
            run("rm -rf " + dir("whole"));
            const Outcome whole = run(one_micro_step(program, n, everything + dir("whole")));
            EXPECT(passed(whole) && contains(whole.out, "HellaSwag: "));
            for (const char* flags : {"-z 2 -r 1 ", "-z 3 -r 0 ", "-z 3 -r 2 ", "-z 3 -r 4 --recompute-every 2 "}) {
                // each kind of simulated GPU with one number of processes, and two of the levels
                const bool simulated = program == SIM32 || program == SIM16;
                if (simulated && (flags[8] == '0' || flags[8] == '2')) continue;
                run("rm -rf " + dir("sharded"));
                const Outcome r = run(one_micro_step(program, n, flags + everything + dir("sharded")));
                EXPECT(passed(r) && same_runs("whole", "sharded", 4, n));
                // at -r 4 fewer activations are there to be logged
                const bool logs_less = contains(flags, "-r 4");
                EXPECT(logs_less || same_files(dir("whole/tensors.csv"), dir("sharded/tensors.csv")));
            }
        }
}

static void carriers() {
    start_test("MPI, TCP and shared memory carry slices alike; slow links between GPUs, in any order of work");
    const std::string flags = "-x 4 -z 3 ";
    EXPECT(passed(run(two_micro_steps(CPU, 3, flags + "-o " + dir("memory")))));
    EXPECT(passed(run(two_micro_steps(CPU, 3, flags + "--shared-memory 0 -o " + dir("mpi")))));
    const std::string alone = tiny_run(CPU, "-b 1 --threads 1 -c 0.1 -d 96 --shared-memory 0 -pn 3 -pi fs " + flags);
    std::vector<pid_t> ranks;
    for (int r = 0; r < 3; r++)
        ranks.push_back(start(alone + format("-pf %s -pr %d -o ", folder, r) + dir("tcp"), format("rank%d", r)));
    for (int r = 0; r < 3; r++) EXPECT(passed(finish(ranks[r], format("rank%d", r))));
    EXPECT(same_runs("memory", "mpi", 4, 3) && same_runs("memory", "tcp", 4, 3));
    EXPECT(passed(run(two_micro_steps(SIM32, 2, flags + "-o " + dir("fast")))));
    for (const char* seed : {"1", "2"}) {
        EXPECT(passed(
            run(MPIRUN + format("-x CUSIM_NCCL_MS=2 -x CUSIM_SEED=%s -np 2 ", seed) +
                tiny_run(SIM32, "-b 1 -f 0 --threads 1 -c 0.1 -d 64 --overwrite 1 " + flags + "-o " + dir("slow")))));
        EXPECT(same_runs("fast", "slow", 4, 2));
    }
}

static void accumulation() {
    for (const std::string& program : {CPU, SIM32, SIM16}) {
        start_test(program + ": of several micro-steps stages 2 and 3 have the same bits, and stage 0's to rounding");
        const std::string steps = "-x 6 -e L3C32H2T16V1024 -o ";  // embeddings larger than the places they borrow
        const Outcome whole = run(two_micro_steps(program, 3, steps + dir("stage0")));
        const Outcome two = run(two_micro_steps(program, 3, "-z 2 " + steps + dir("stage2")));
        const Outcome three = run(two_micro_steps(program, 3, "-z 3 -r 3 " + steps + dir("stage3")));
        EXPECT(passed(whole) && passed(two) && passed(three) && same_runs("stage2", "stage3", 6, 3));
        EXPECT(apart(steps_of(two).losses, steps_of(whole).losses, 6) < 1e-5);
        for (const char* name : {"stage0", "stage2", "stage3"}) run("rm -rf " + dir(name));
    }
}

// The gradient of wte in pieces that begin and end within its rows, and within places of layers.
static void wte_in_pieces() {
    const auto comes_in_pieces = [](const std::string& flags, int n) {
        const std::string plan = run(tiny_run(CPU, format("--plan -pn %d -o ", n) + dir("plan") + " " + flags)).out;
        return contains(plan, "2 layers, wpe") && !contains(plan, "2 layers, rest");
    };
    struct Case {
        const char *what, *shape;
        int processes;
        bool in_pieces;
    };
    const Case cases[] = {{"one layer", "-e L1C32H2T16V1000", 2, true},
                          {"several chunks of rows", "-e L2C64H2T16V700 -b 34", 2, true},
                          {"parts of many rows", "-e L3C16H1T16V3000", 2, true},
                          {"3 processes of 2 layers", "-e L2C48H3T16V600", 3, true},
                          {"evaluation, samples, dropout and a log of tensors",
                           "-e L5C32H2T16V1000 -v 2 -s 2 -g 5 --samples 2 -m 3 --keep-best 1 --dropout 0.1 "
                           "--log-tensors 2",
                           3, true},
                          {"factors that are larger than it", "-e L2C32H2T16V2000 -b 36", 2, false}};
    for (const Case& c : cases)
        for (const char* precision : {"fp32", "bf16", "fp32x3"}) {
            start_test(
                format("%s, %s: the gradient of wte, in pieces or not, has the bits of stage 0", precision, c.what));
            const std::string flags =
                format("--threads 2 -f 0 -c 0.1 -x 3 -b 1 --overwrite 1 %s --precision %s ", c.shape, precision);
            const auto trains_at = [&](const char* stage) {
                const std::string of_stage = flags + "-z " + stage + " -o " + dir(std::string("pieces") + stage);
                return passed(run(MPIRUN + format("-np %d ", c.processes) + tiny_run(CPU, of_stage)));
            };
            EXPECT(trains_at("0") && trains_at("2") && trains_at("3"));
            EXPECT(same_runs("pieces0", "pieces2", 3, c.processes) && same_runs("pieces0", "pieces3", 3, c.processes));
            EXPECT(comes_in_pieces(flags + "-z 2", c.processes) == c.in_pieces);
        }
    start_test("for the noise scale it is whole");
    EXPECT(comes_in_pieces("-e L1C32H2T16V1000 -d 64 -z 2", 2));
    EXPECT(!comes_in_pieces("-e L1C32H2T16V1000 -d 64 -z 2 --noise-scale 1", 2));
}

static void optimizers() {
    for (int o = 0; o < NUM_OPTIMIZERS; o++) {
        const OptimizerInfo& info = OPTIMIZERS[o];
        const bool has_own_kernels = info.whole_tensors || info.keeps.m == KEEP_8BIT || info.keeps.m == KEEP_BF16;
        for (const std::string& program : {CPU, SIM16}) {
            if (program == SIM16 && !has_own_kernels) continue;
            const int n = 2 + o % 2;
            start_test(format("%s, %s, %d processes: stage 3 has the bits of stage 0", program, info.name, n));
            const std::string flags = with(o) + "-x 3 -e L3C32H2T16V300 --overwrite 1 -o ";
            EXPECT(passed(run(one_micro_step(program, n, flags + dir("of0")))));
            EXPECT(passed(run(one_micro_step(program, n, "-z 3 " + flags + dir("of3")))));
            EXPECT(same_runs("of0", "of3", 3, n));
        }
    }
}

static void resuming() {
    start_test("a run goes on at any stage, to the bits of one that was not stopped");
    const std::string flags = "-n 1 ";
    EXPECT(passed(run(one_micro_step(CPU, 3, flags + "-x 6 -z 0 -o " + dir("straight")))));
    int steps = 0;
    for (const char* stage : {"3", "2", "1", "3", "0", "2"})
        EXPECT(passed(
            run(one_micro_step(CPU, 3, flags + format("-x %d -y 1 -z %s -o ", ++steps, stage) + dir("stages")))));
    EXPECT(same_runs("straight", "stages", 6, 3));
    start_test("and with another number of processes, on CPU and GPU alike");
    const std::string out = "-d 192 -o " + dir("moving") + " -y 1 ";
    const Outcome whole = run(one_micro_step(CPU, 1, "-d 192 -x 8"));
    EXPECT(passed(run(one_micro_step(CPU, 2, out + "-z 3 -x 2"))));
    EXPECT(passed(run(one_micro_step(SIM32, 3, out + "-z 2 -x 4"))));
    EXPECT(passed(run(one_micro_step(SIM32, 2, out + "-z 3 -x 6"))));
    const Outcome last = run(one_micro_step(CPU, 3, out + "-z 3 -x 8"));
    Steps late = steps_of(whole);
    late.losses.erase(late.losses.begin(), late.losses.begin() + std::min<size_t>(6, late.losses.size()));
    EXPECT(contains(last.out, "resumed at step 6") && apart(steps_of(last).losses, late.losses, 2) < 1e-4);
}

// Bytes that a plan says; those that the process that took most had at its peak.
static double planned(const std::string& flags) {
    const std::string plan = run(CPU + " --plan -pn 3 --gpus-per-node 3 " + flags).out;
    const size_t at = plan.find("total ");
    return at == plan.npos ? NAN : atof(plan.c_str() + at + 6);
}
static void memory() {
    start_test("each stage takes the memory of its plan, which is less than that of the one before");
    const auto plan_that_holds = [](const std::string& of_run) {
        const std::string data = format("-i '%s/train_*.bin' -j %s/val.bin ", folder, folder),
                          flags = data + "-b 1 -t 16 -v 0 -s 0 --threads 1 -x 2 --overwrite 1 " + of_run + " -o " +
                                  dir("memory_of");
        EXPECT(passed(run(MPIRUN + std::string("-np 3 ") + CPU + " --gpus-per-node 3 " + flags)));
        const double plan = planned(flags), peak = at("memory_of", 1, METRIC_PEAK);
        printf("    %s: %.0f bytes planned, %.0f taken\n", of_run.c_str(), plan, peak);
        EXPECT(std::fabs(peak / plan - 1) < 0.02);
        return plan;
    };
    double before = INFINITY;
    for (const char* stage : {"0", "1", "2", "3"}) {
        const double plan = plan_that_holds(std::string("-e L8C384H6T16V256 -z ") + stage);
        EXPECT(plan < before);
        before = plan;
    }
    start_test("at stage 3 embeddings borrow the places of the layers, and what is beyond these");
    plan_that_holds("-e L4C384H6T16V12000 -z 3");
    const std::string plan = run(CPU + " --plan -e d24 -b 1 -t 64 -z 3 -pn 4").out;
    const int64_t layer = 4 * (12 * 1024 + 13) * 1024, embeddings = 4 * ((50304 + 1024 + 2) * 1024);
    const auto row = [](const char* category, const char* of, int64_t bytes) {
        return format("%-14s %-16s %-18s %16lld\n", category, "whole buckets", of, bytes);
    };
    EXPECT(contains(plan, row("parameters", "2 layers", 2 * layer)));
    EXPECT(contains(plan, row("gradients", "2 layers, wpe", embeddings - 2 * layer + 4 * (1024 + 2) * 1024)));
}

// Whether nothing with this name is left in a folder.
static bool nothing_left(const std::string& in) { return glob_files(in + "/offloaded*").empty(); }
static void offloading() {
    run("mkdir -p " + dir("disk"));
    const std::string file = "--offload both --offload-dir " + dir("disk") + " ";
    for (int o : {(int)ADAMW, (int)MUON, (int)ADAMW8BIT, (int)ADAFACTOR, (int)ADAMW16BIT, (int)LAMB}) {
        start_test(std::string(OPTIMIZERS[o].name) +
                   ": state and residual stream in a file, the same bits; resumed, in stage 3");
        const std::string flags = with(o) + "-e L5C32H2T16V300 --precision bf16 -c 0.1 -n 2 ";
        for (const char* name : {"inside", "outside", "moved"}) run("rm -rf " + dir(name));
        EXPECT(passed(run(tiny_run(CPU, flags + "-x 4 -r 3 -o " + dir("inside")))));
        EXPECT(passed(run(tiny_run(CPU, flags + "-x 4 -r 4 --recompute-every 2 " + file + "-o " + dir("outside")))));
        EXPECT(same_runs("inside", "outside", 4, 1) && nothing_left(dir("disk")));
        EXPECT(passed(run(tiny_run(CPU, flags + "-x 2 -r 3 " + file + "-o " + dir("moved")))));
        EXPECT(passed(run(tiny_run(CPU, flags + "-x 4 -r 3 -y 1 " + file + "-o " + dir("moved")))));
        EXPECT(same_runs("inside", "moved", 4, 1));
        for (const char* name : {"inside", "outside"}) run("rm -rf " + dir(name));
        EXPECT(passed(run(one_micro_step(CPU, 2, flags + "-x 4 -r 3 -o " + dir("inside")))));
        EXPECT(passed(run(one_micro_step(CPU, 2, flags + "-x 4 -z 3 -r 3 " + file + "-o " + dir("outside")))));
        EXPECT(same_runs("inside", "outside", 4, 2) && nothing_left(dir("disk")));
    }
    start_test("what lies in a file takes no more memory than the plan says");
    const std::string shape = format(
        "-i '%s/train_*.bin' -j %s/val.bin -e L8C384H6T256V256 -b 4 -t 256 -v 0 -s 0 "
        "--threads 1 -x 2 -r 3 ",
        folder, folder);
    double inside = 0;
    for (const std::string& where : {std::string(), file}) {
        const Outcome r = run(CPU + " " + shape + where);
        const std::string plan = run(CPU + " --plan " + shape + where).out;
        const double mib = atof(plan.c_str() + plan.find("total ") + 6) / (1 << 20);
        EXPECT(passed(r) && r.peak_mib <= mib && r.peak_mib > 0.95 * mib);
        if (inside == 0) inside = r.peak_mib;
        else EXPECT(r.peak_mib < 0.7 * inside);
    }
    start_test(
        "a folder that is not there, a disk that is full, nothing to offload: one sentence before the first step");
    EXPECT(refused(run(tiny_run(CPU, "-x 1 --offload optimizer --offload-dir " + dir("nowhere"))), 1, "--offload-dir"));
    write_whole(dir("full.sh"),
                "trap '' XFSZ; ulimit -f 64; exec " + tiny_run(CPU, "-x 1 -r 3 -e L2C64H2T16V256 " + file));
    const Outcome full = run("sh " + dir("full.sh"));
    EXPECT(full.status == 1 && contains(full.err, "cannot keep m in a file") && nothing_left(dir("disk")));
    EXPECT(refused(run(tiny_run(CPU, "-x 1 --offload activations")), 2, "-r 3 and -r 4"));
    EXPECT(refused(run(tiny_run(CPU, "-x 1 --offload-dir " + folder)), 2, "without --offload"));
    for (const auto& [flags, sentence] : {std::pair("--offload optimizer --offload-dir .", "is for CPUs"),
                                          {"--offload both", "-r 3 and -r 4"},
                                          {"-r 3 --offload activations --cuda-graph 1", "--cuda-graph"},
                                          {"--offload optimizer --sync-every 2 -pn 2", "--sync-every"}})
        EXPECT(refused(run(tiny_run(SIM32, std::string("--plan -x 1 ") + flags)), 2, sentence));
    start_test("kill -9 leaves no file, and the run goes on to the same bits");
    const std::string flags = "-e L3C32H2T16V256 -r 3 -n 5 -k constant " + file;
    const pid_t killed = start(tiny_run(CPU, flags + "-x 100000 -nk 2 -o " + dir("shot")));
    EXPECT(wait_for_step("shot", 12));
    kill(killed, SIGKILL);
    finish(killed);
    EXPECT(nothing_left(dir("disk")));
    StateHeader header;
    const int64_t step = newest_checkpoint(dir("shot"), header) + 3;
    EXPECT(passed(run(tiny_run(CPU, flags + format("-x %d -y 1 -o ", step) + dir("shot")))));
    EXPECT(passed(run(tiny_run(CPU, format("-e L3C32H2T16V256 -x %d -k constant -o ", step) + dir("unshot")))));
    EXPECT(same_files(model_path(dir("shot"), step), model_path(dir("unshot"), step)));
}

// Runs on simulated GPUs: how many, how they share, and what they train.
struct Offloaded {
    const std::string& program;
    int processes;
    const char* flags;
};
static void offloading_on_gpus() {
    // V 1024: what is outside the layers is several stretches
    const Offloaded runs[] = {{SIM16, 1, "-r 4 --recompute-every 2 -d 64 -e L7C32H2T16V1024 --optimizer adamw "},
                              {SIM32, 2, "-r 3 -z 2 --optimizer adamw "},
                              {SIM32, 1, "-r 3 -e L1C32H2T16V256 --optimizer adamw "},
                              {SIM16, 2, "-r 3 -z 3 -w 0 --optimizer adamw16bit "},
                              {SIM16, 3, "-r 4 --recompute-every 2 -z 1 --optimizer muon "},
                              {SIM16, 2, "-r 3 -z 0 --optimizer adamw8bit "},
                              {SIM16, 2, "-r 3 -z 3 --optimizer lamb --compress-activations 1 "},
                              {SIM32, 1, "-r 4 --recompute-every 3 -e L8C32H2T16V300 --optimizer adafactor "},
                              {SIM32, 2, "-r 3 -z 1 --compress-gradients 1bit --compress-warmup 1 "}};
    for (const auto& [program, n, flags] : runs) {
        start_test(format("%s, %d GPUs, %s: state and inputs on the host, the same bits; resumed there and back",
                          program, n, flags));
        const std::string first = "-e L5C32H2T16V1024 -c 0.1 -k constant -n 1 ";
        const auto trained = [&](const char* name, const std::string& more) {
            const std::string seed = contains(more, "-y 1 --offload") ? "-x CUSIM_SEED=3 " : "";
            return passed(run(MPIRUN + seed + format("-np %d ", n) +
                              tiny_run(program, "-b 1 -f 0 --threads 1 " + first + flags + more + "-o " + dir(name))));
        };
        for (const char* name : {"inside", "moved"}) run("rm -rf " + dir(name));
        EXPECT(trained("inside", "-x 5 "));
        EXPECT(trained("moved", "-x 2 --offload both ") && trained("moved", "-x 3 -y 1 "));
        EXPECT(trained("moved", "-x 5 -y 1 --offload both ") && same_runs("inside", "moved", 5, n));
    }
    start_test("--plan: 12 bytes a parameter come from the host and go back in a step, at 25 GB/s each way");
    const std::string plan = run(SIM16 + " --plan -e d48 -b 4 -r 3 --device A100 --offload both").out;
    EXPECT(contains(plan, format("state from the host a step: %lld bytes, and back: %.1f ms", 12 * 1557686400LL,
                                 12 * 1557686.4 / 25e3)));
    EXPECT(contains(plan, "optimizer      =") == false && contains(plan, "host           inputs, pinned   of 46"));
}

// 1-bit Adam reads v in the backward pass, before an update does.
static void offloading_compressed() {
    start_test("1-bit gradients and codes of inputs with state in a file: the same bits, and the memory of the plan");
    run("mkdir -p " + dir("disk"));
    const std::string flags = "--compress-gradients 1bit --compress-warmup 1 --compress-activations 1 -r 3 ";
    const std::string file = "--offload both --offload-dir " + dir("disk") + " ";
    for (const char* stage : {"-z 0 ", "-z 1 "}) {
        for (const char* name : {"inside", "outside"}) run("rm -rf " + dir(name));
        EXPECT(passed(run(two_micro_steps(CPU, 3, flags + stage + "-x 4 -o " + dir("inside")))));
        EXPECT(passed(run(two_micro_steps(CPU, 3, flags + stage + file + "-x 4 -o " + dir("outside")))));
        EXPECT(same_runs("inside", "outside", 4, 3));
    }
    const std::string shape =
        format(
            "-i '%s/train_*.bin' -j %s/val.bin -e L8C384H6T16V256 -b 1 -t 16 -v 0 -s 0 --threads 1 -x 4 -r 3 "
            "--compress-gradients 1bit --compress-warmup 2 --offload optimizer --overwrite 1 -o ",
            folder, folder) +
        dir("memory_of");
    EXPECT(passed(run(MPIRUN + std::string("-np 3 ") + CPU + " --gpus-per-node 3 " + shape)));
    const double plan = planned(shape), peak = at("memory_of", 3, METRIC_PEAK);
    printf("    %.0f bytes planned, %.0f taken\n", plan, peak);
    EXPECT(std::fabs(peak / plan - 1) < 0.02);
}

// --shard-within: what 4 processes compute in one micro-step, 2 neighbours compute in two, which
// add the same numbers in the same order.
static void replicas() {
    const std::string shape = "-e L3C32H2T16V256 -x 4 -s 2 -g 5 --dropout 0.1 --noise-scale 0 ";
    for (const std::string& program : {CPU, CPU + " --precision bf16", SIM32}) {
        start_test(program + ": slices among 2 neighbours, of 4: the bits of 2 processes, at all stages");
        for (const char* name : {"two", "four"}) run("rm -rf " + dir(name));
        EXPECT(passed(run(two_micro_steps(program, 2, shape + "-z 3 -o " + dir("two")))));
        for (const char* stage : {"1", "2", "3"}) {
            if (program == SIM32 && stage[0] == '2') continue;
            const std::string flags = format("-z %s --shard-within 2 --overwrite 1 -o ", stage);
            EXPECT(passed(run(one_micro_step(program, 4, shape + flags + dir("four")))));
            EXPECT(same_files(model_path(dir("two"), 4), model_path(dir("four"), 4)));
            for (int r : {0, 1}) EXPECT(same_files(state_path(dir("two"), 4, r), state_path(dir("four"), 4, r)));
            EXPECT(!name_exists(state_path(dir("four"), 4, 2)));
        }
    }
    start_test("MPI and TCP carry what shared memory carries, also for three replicas");
    const std::string six = "-b 1 --threads 1 -c 0.1 -x 3 -z 2 --shard-within 2 -e L3C48H2T16V300 -o ";
    EXPECT(passed(run(MPIRUN + std::string("-np 6 ") + tiny_run(CPU, six + dir("memory6")))));
    EXPECT(passed(run(MPIRUN + std::string("-np 6 ") + tiny_run(CPU, "--shared-memory 0 " + six + dir("mpi6")))));
    std::vector<pid_t> ranks;
    for (int r = 0; r < 6; r++)
        ranks.push_back(
            start(tiny_run(CPU, format("--shared-memory 0 -pn 6 -pi fs -pf %s -pr %d ", folder, r) + six + dir("tcp6")),
                  format("rank%d", r)));
    for (int r = 0; r < 6; r++) EXPECT(passed(finish(ranks[r], format("rank%d", r))));
    EXPECT(same_runs("memory6", "mpi6", 3, 2) && same_runs("memory6", "tcp6", 3, 2));
    for (int o : {(int)MUON, (int)ADAMW8BIT, (int)ADAFACTOR, (int)LAMB})
        for (const std::string& program : {CPU, SIM16}) {
            start_test(format("%s, %s: replicas have what stage 0 computes, to rounding", program, OPTIMIZERS[o].name));
            const std::string flags = with(o) + "-x 3 -e L3C32H2T16V300 --log-tensors 3 --overwrite 1 ";
            const Outcome whole = run(one_micro_step(program, 4, flags + "-o " + dir("whole4")));
            const Outcome r = run(one_micro_step(program, 4, flags + "-z 3 --shard-within 2 -o " + dir("pairs")));
            EXPECT(passed(whole) && passed(r));
            EXPECT(apart(steps_of(r).losses, steps_of(whole).losses, 3) < (program == CPU ? 1e-5 : 1e-3));
        }
    start_test("a run with replicas goes on without, and the reverse; what cannot be divided is refused");
    EXPECT(passed(run(one_micro_step(CPU, 4, "-d 64 -x 2 -n 1 -z 2 --shard-within 2 -o " + dir("changes")))));
    EXPECT(passed(run(one_micro_step(CPU, 2, "-d 64 -x 4 -n 1 -y 1 -z 3 -o " + dir("changes")))));
    EXPECT(passed(run(one_micro_step(CPU, 4, "-d 64 -x 6 -n 1 -y 1 -z 3 --shard-within 2 -o " + dir("changes")))));
    EXPECT(passed(run(one_micro_step(CPU, 2, "-d 64 -x 6 -n 1 -z 3 -o " + dir("unchanged")))));
    EXPECT(same_files(model_path(dir("unchanged"), 6), model_path(dir("changes"), 6)));
    const std::pair<const char*, const char*> not_possible[] = {
        {"-z 3 --shard-within 3", "groups of 3"},
        {"-z 3 --shard-within 1", "2.. is accepted"},
        {"--shard-within 2", "-z 1, 2 and 3 are accepted"},
        {"-z 1 --shard-within 2 --compress-gradients 8bit", "8bit"}};
    for (const auto& [flags, why] : not_possible) {
        const Outcome r = run(one_micro_step(CPU, 4, flags));
        EXPECT(r.status == 2 && contains(r.err, why));
    }
    for (const std::string& program : {CPU, SIM16})
        for (const char* stage : {"1", "2", "3"}) {
            start_test(program + ", stage " + stage + ": neighbours and replicas send the bytes of the plan");
            Sent sent;
            EXPECT(sends_as_planned(program, 4, format("-z %s --shard-within 2", stage), sent));
        }
}

static void faults() {
    start_test("stage 4: exit 2; ranks at other stages, or that offload, are named");
    EXPECT(refused(run(tiny_run(CPU, "-z 4")), 2, "0, 1, 2, 3"));
    const Outcome other =
        run(MPIRUN + std::string("-np 1 ") + tiny_run(CPU, "-x 2 -z 3") + " : -np 1 " + tiny_run(CPU, "-x 2 -z 2"));
    EXPECT(other.status != 0 && contains(other.err, "--zero-stage is not that of rank 1"));
    const Outcome offloads = run(MPIRUN + std::string("-np 1 ") + tiny_run(CPU, "-x 2 -r 3") + " : -np 1 " +
                                 tiny_run(CPU, "-x 2 -r 3 --offload both"));
    EXPECT(offloads.status != 0 && contains(offloads.err, "--offload is not that of rank 1"));
    start_test("a single process keeps everything: stage 3 is stage 0");
    EXPECT(passed(run(tiny_run(CPU, "-x 3 -z 3 -o " + dir("alone3")))) &&
           passed(run(tiny_run(CPU, "-x 3 -o " + dir("alone0")))) && same_runs("alone3", "alone0", 3, 1));
    for (const std::string& program : {CPU, SIM16}) {
        start_test(program + ": a loss that is not finite is traced to its beginning in stage 3, by all processes");
        const Outcome r = run(two_micro_steps(program, 3, "-x 40 -l 1e30 --grad-clip 0 -z 3"));
        EXPECT(r.status == 1 && contains(r.out, "first not finite: ") && contains(r.err, "not finite"));
    }
    start_test("kill -9 of a rank in stage 3 ends all, and the run goes on");
    kill_a_rank([](int n, const std::string& flags) { return one_micro_step(CPU, n, "-z 3 " + flags); });
}

// test_shards [GROUP...]: all tests, or those of the functions named.
int main(int argc, char** argv) {
    make_test_folder();
    if (run(std::string(MPIRUN) + "-np 2 true").status != 0) {
        skip_test("runs under mpirun (apt-get install libopenmpi-dev openmpi-bin, then make clean test)");
        return report_and_clean();
    }
    const auto wanted = [&](const char* group) { return wants_group(argc, argv, group); };
    if (wanted("same_bits")) same_bits();
    if (wanted("carriers")) carriers();
    if (wanted("accumulation")) accumulation();
    if (wanted("wte_in_pieces")) wte_in_pieces();
    if (wanted("optimizers")) optimizers();
    if (wanted("resuming")) resuming();
    if (wanted("memory")) memory();
    if (wanted("offloading")) offloading();
    if (wanted("offloading_on_gpus")) offloading_on_gpus();
    if (wanted("offloading_compressed")) offloading_compressed();
    if (wanted("replicas")) replicas();
    if (wanted("faults")) faults();
    return report_and_clean();
}
