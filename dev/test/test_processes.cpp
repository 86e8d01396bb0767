// Runs of several processes under mpirun, on CPUs and in the simulator: the same numbers for any
// number of processes, stages that agree to the bit, checkpoints that any number of processes
// resumes, ranks that die, hang or were started differently.
#include <csignal>
#include "dev/test/recorded.h"
#include "dev/test/sent.h"
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/comm/tcp.h"

static void same_numbers() {
    const std::string training = "-l 3e-3 -u 3 -c 0.1 --grad-clip 0.8 -x 50 ";
    const Outcome one = run(several(CPU, 1, training));
    for (int n : {2, 3, 4})
        for (const char* stage : {"0", "1"}) {
            start_test(format("50 steps on %d CPU processes, stage %s, are those of one to 1e-4", n, stage));
            EXPECT(agree(run(several(CPU, n, training + "-z " + stage)), one, 50, 1e-4, 1e-4));
        }
    // In 20 steps: at so high a rate the norm of later ones answers to small differences of the
    // weights, and what is seen is no longer rounding alone (0.2% in step 15, 3 to 5% in step 25,
    // as the roundings fall).
    const std::string simulated = training + "-x 20 ";  // the last -x wins
    const Outcome one_of_20 = run(several(CPU, 1, simulated));
    for (int n : {2, 3}) {
        start_test(format("20 steps in bf16 on %d CPU processes are those of one in fp32, to its rounding", n));
        EXPECT(agree(run(several(CPU, n, simulated + "--precision bf16 -z " + (n == 3 ? "0" : "1"))), one_of_20, 20,
                     LOSS16, NORM16));
    }
    const Outcome sim32 = run(several(SIM32, 1, simulated)), sim16 = run(several(SIM16, 1, simulated));
    for (int n : {2, 3, 4}) {
        start_test(format("20 steps on %d simulated GPUs are those of one: fp32 to 1e-4, bf16 to its rounding", n));
        EXPECT(agree(run(several(SIM32, n, simulated + (n == 3 ? "-z 0" : "-z 1"))), sim32, 20, 1e-4, 1e-4));
        EXPECT(agree(run(several(SIM16, n, simulated + (n == 3 ? "-z 1" : "-z 0"))), sim16, 20, LOSS16, NORM16));
    }
    for (const std::string& program : {CPU, CPU + " --precision bf16", SIM32, SIM16})
        for (int n : {2, 3}) {
            start_test(
                format("stage 0 and stage 1 agree to the bit, and a second run without shared memory: %s, %d processes",
                       program, n));
            const char* names[] = {"stage0", "stage1", "again"};
            for (int i = 0; i < 3; i++)
                EXPECT(run(several(program, n,
                                   format("-x 4 -c 0.1 -z %d --overwrite 1 --shared-memory %d -o %s", i > 0, i < 2,
                                          dir(names[i]))))
                           .status == 0);
            for (int i = 1; i < 3; i++) {
                EXPECT(same_files(model_path(dir("stage0"), 4), model_path(dir(names[i]), 4)));
                for (int r = 0; r < n; r++)
                    EXPECT(same_files(state_path(dir("stage0"), 4, r), state_path(dir(names[i]), 4, r)));
            }
        }
    start_test("validation and HellaSwag: the same answer for any number of processes and any B");
    write_hellaswag(dir("hella.bin"));
    const std::string evaluation = "-x 0 -v 1 -m -1 -h 1 --hellaswag-data " + dir("hella.bin") + " ";
    const Outcome alone = run(several(CPU, 1, evaluation));
    auto answers = [](const Outcome& r) { return r.out.substr(std::min(r.out.find("val loss"), r.out.size())); };
    EXPECT(contains(answers(alone), "HellaSwag: "));
    for (int n : {2, 3, 4})
        EXPECT(answers(run(several(CPU, n, evaluation + "-b 2 -d " + std::to_string(32 * n)))) == answers(alone));
}

static void checkpoints() {
    start_test("a run goes on with another number of processes, another stage, on CPU and GPU alike");
    const std::string flags = "-c 0.1 -l 1e-3 -k constant ", out = "-o " + dir("moving") + " -y 1 ";
    const Outcome whole = run(several(CPU, 1, flags + "-x 12"));
    EXPECT(run(several(CPU, 2, flags + out + "-z 1 -x 3")).status == 0);
    EXPECT(run(several(CPU, 3, flags + out + "-z 0 -x 6")).status == 0);
    EXPECT(run(several(SIM32, 2, flags + out + "-z 1 -x 9")).status == 0);
    const Outcome last = run(several(CPU, 1, flags + out + "-x 12"));
    Steps late = steps_of(whole);
    late.losses.erase(late.losses.begin(), late.losses.begin() + std::min<size_t>(9, late.losses.size()));
    EXPECT(contains(last.out, "resumed at step 9") && apart(steps_of(last).losses, late.losses, 3) < 1e-4);
    start_test("bf16 with master weights through another number of processes");
    EXPECT(run(several(SIM16, 2, flags + "-z 1 -x 3 -o " + dir("moving16"))).status == 0);
    EXPECT(run(several(SIM16, 3, flags + "-z 1 -x 6 -y 1 -o " + dir("moving16"))).status == 0);
    EXPECT(contains(run(several(SIM16, 1, flags + "-x 7 -y 1 -o " + dir("moving16"))).out, "resumed at step 6"));
    start_test("without a rank's state the checkpoint is incomplete, and passed over");
    unlink(state_path(dir("moving"), 6, 1).c_str());
    StateHeader header;
    EXPECT(checkpoint_problem(dir("moving"), 6, header) != "" && checkpoint_problem(dir("moving"), 9, header) == "");
}

static void deaths() {
    start_test("kill -9 of one rank ends all within 30 s, says which, and the run goes on");
    kill_a_rank([](int n, const std::string& flags) { return several(CPU, n, "-z 1 " + flags); });
    start_test("a rank that hangs is noticed, and named by those who wait");
    const std::string endless = "-x 100000 -n 5 -nk 3 -z 1 -o ";
    pid_t all = start(several(CPU, 2, endless + dir("hanging") + " --comm-timeout 2"));
    EXPECT(wait_for_step("hanging", 3));
    const pid_t stopped = ranks_of(dir("hanging"), 2)[1];
    kill(stopped, SIGSTOP);
    usleep(6000000);
    kill(stopped, SIGCONT);
    Outcome r = finish(all);
    EXPECT(r.status != 0 && contains(r.err, "rank 0: waited 2 s in"));
    struct Stop {
        int processes, signal;
    };
    for (const Stop& stop : {Stop{1, SIGTERM}, {1, SIGINT}, {2, SIGTERM}}) {
        start_test(format("signal %d to mpirun itself, %d processes: saved", stop.signal, stop.processes));
        const std::string name = format("mpirun%d_%d", stop.processes, stop.signal);
        // by default mpirun waits 1 s, which may be too short on a busy machine
        all = start(MPIRUN + format("--mca odls_base_sigkill_timeout 3 -np %d %s", stop.processes, CPU) + " -i " +
                    dir("train_0.bin") + " -e L1C8H1V256T16 -b 1 -t 16 -v 0 -s 0 --threads 1 -x 100000000 -o " +
                    dir(name));
        const int soon = stop.processes == 1 ? 300 : 20;
        EXPECT(wait_for_step(name, soon));
        kill(all, stop.signal);
        EXPECT(finish(all).status != 0);
        const std::vector<int64_t> kept = finished_steps(dir(name));
        const int64_t step = kept.empty() ? 0 : kept.back();
        const Outcome on = run(CPU + format(" -x %d -y 1 -o ", step + 1) + dir(name));
        EXPECT(step >= soon && on.status == 0 && contains(on.out, format("resumed at step %d", step)));
    }
    start_test("a signal to any rank: all finish the step, save and end");
    for (int rank : {0, 1}) {
        all = start(several(CPU, 2, endless + dir(format("signal%d", rank))));
        EXPECT(wait_for_step(format("signal%d", rank), 3));
        kill(ranks_of(dir(format("signal%d", rank)), 2)[rank], rank ? SIGUSR1 : SIGTERM);
        r = finish(all);
        StateHeader header;
        EXPECT(r.status == (rank ? 0 : 128 + SIGTERM) && contains(r.out, "stopped at step ") &&
               newest_checkpoint(dir(format("signal%d", rank)), header) > 3);
    }
}

static void starts() {
    start_test("ranks with other flags, or other data, are named; nothing hangs");
    Outcome r =
        run(MPIRUN + std::string("-np 1 ") + tiny_run(CPU, "-x 2") + " : -np 1 " + tiny_run(CPU, "-x 2 --seed 7"));
    EXPECT(r.status != 0 && contains(r.err, "on rank 0, --seed is not that of rank 1: it is 42 here"));
    r = run(MPIRUN + std::string("-np 1 ") + tiny_run(CPU, "-x 2") + " : -np 1 " +
            tiny_run(CPU, "-x 2 --shared-memory 0"));
    EXPECT(r.status != 0 && contains(r.err, "on rank 0, --shared-memory is not that of rank 1: it is 1 here"));
    const std::string copied = dir("elsewhere/train_0.bin");
    run("mkdir -p " + dir("elsewhere"));
    std::string bytes = read_whole(dir("train_0.bin"));
    bytes[1100] ^= 1;  // another token, under the same flags
    write_whole(copied, bytes);
    const std::string here = "sh -c 'cd " + folder + " && exec $OLDPWD/train_gpt2_cpu -i train_0.bin -j " +
                             dir("val.bin") + " -e L2C32H2T16V256 -b 2 -t 16 -x 2 -v 0 -s 0'";
    const std::string there = "sh -c 'cd " + dir("elsewhere") + " && exec $OLDPWD/train_gpt2_cpu -i train_0.bin -j " +
                              dir("val.bin") + " -e L2C32H2T16V256 -b 2 -t 16 -x 2 -v 0 -s 0'";
    r = run(MPIRUN + std::string("-np 1 ") + here + " : -np 1 " + there);
    EXPECT(r.status != 0 && contains(r.err, "data and checkpoint of rank 1 are not those of rank 0"));
    start_test("shards that differ between machines in their middle are noticed");
    std::vector<uint16_t> tokens(200000, 7);
    write_tokens(dir("train_0.bin.large"), tokens.data(), tokens.size());
    std::fill(tokens.begin() + 80000, tokens.begin() + 110000, 8);
    write_tokens(dir("elsewhere/train_0.bin.large"), tokens.data(), tokens.size());
    auto large = [](std::string command) {
        return command.replace(command.find("train_0.bin"), 11, "train_0.bin.large");
    };
    r = run(MPIRUN + std::string("-np 1 ") + large(here) + " : -np 1 " + large(there));
    EXPECT(r.status != 0 && contains(r.err, "data of rank 1 are not those of rank 0"));
    start_test(
        "a shard that changes while several processes train: all save and end, one sentence from each that saw it");
    const std::string live = dir("live.bin"), whole = read_whole(dir("train_0.bin"));
    for (int n : {2, 3}) {
        write_whole(live, whole);
        const std::string name = format("live%d", n), out = "-z 1 -i " + live + " -o " + dir(name);
        const pid_t all = start(several(CPU, n, "-x 100000 " + out));
        EXPECT(wait_for_step(name, 5));
        FILE* file = fopen(live.c_str(), "r+b");
        fseek(file, 2000, SEEK_SET);
        fputc(whole[2000] ^ 1, file);
        fclose(file);
        r = finish(all);
        const std::vector<int64_t> steps = finished_steps(dir(name));
        EXPECT(r.status == 1 && contains(r.err, "live.bin has changed") && steps.size() == 1 && steps[0] > 5);
        write_whole(live, whole);
        r = run(several(CPU, 1, format("-x %d -y 1 ", (steps.empty() ? 0 : steps[0]) + 1) + out));
        EXPECT(r.status == 0 && contains(r.out, "resumed at step "));
    }
    start_test("a number of processes that the launcher did not start: exit 2, one sentence");
    EXPECT(refused(run(tiny_run(CPU, "-pn 2")), 2, "--num-processes 2"));
    EXPECT(refused(run(tiny_run(SIM16, "-pn 2")), 2, "--num-processes 2"));
    EXPECT(refused(run(tiny_run(CPU, "-pn 2 -pr 2")), 2, "--process-rank 2"));
    auto lines = [](const Outcome& r, const std::string& text) {
        size_t said = 0;
        for (size_t at = 0; (at = r.err.find(text, at)) != r.err.npos; at++) said++;
        return said;
    };
    // The ranks that say this, "013"; none if one says it twice, or anything else is said.
    auto speakers = [&](const Outcome& r, const std::string& sentence) {
        std::string ranks;
        for (int rank = 0; rank < 4; rank++)
            if (lines(r, format("error: rank %d: %s", rank, sentence)) == 1) ranks += std::to_string(rank);
        return ranks.size() == lines(r, "error:") ? ranks : "";
    };
    start_test("a mistake in a flag is said by the ranks that make it, before their launcher ends them");
    const std::string good = "-np 1 " + tiny_run(CPU, "-x 2"), bad = "-np 1 " + tiny_run(CPU, "-x 2 -b 0");
    r = run(several(CPU, 3, "-b 0"));
    EXPECT(r.status == 2 && !speakers(r, "-b 0").empty());
    r = run(MPIRUN + good + " : " + bad);
    EXPECT(r.status == 2 && speakers(r, "-b 0") == "1");
    r = run(MPIRUN + good + " : " + bad + " : " + bad + " : " + bad);
    EXPECT(r.status == 2 && !speakers(r, "-b 0").empty() && speakers(r, "-b 0")[0] != '0');
    r = run(MPIRUN + bad + " : " + good);
    EXPECT(r.status == 2 && speakers(r, "-b 0") == "0");
    start_test("a launcher that lets all ranks end by themselves: all say it");
    const std::string wrong = "SLURM_PROCID=\\$r SLURM_STEP_NUM_TASKS=4 " + tiny_run(CPU, "-b 0");
    for (const char* ranks : {"0 1 2 3", "1 2 3", "2"}) {
        r = run(format("sh -c \"for r in %s; do %s & done; wait\"", ranks, wrong));
        std::string expected = ranks;
        expected.erase(std::remove(expected.begin(), expected.end(), ' '), expected.end());
        EXPECT(speakers(r, "-b 0") == expected);
    }
    start_test("a process that never comes to MPI: noticed after --comm-timeout");
    r = run(MPIRUN + std::string("-np 1 ") + tiny_run(CPU, "-x 2 --comm-timeout 2") + " : -np 1 sleep 60");
    EXPECT(r.status == 1 && lines(r, "error: rank 0: waited 2 s for MPI to start") == 1);
    start_test("an mpirun that waits though its processes have ended is noticed, one whose processes run is not");
    const pid_t waits = start("sleep 60"), works = start("sh -c 'sleep 0.5; true'");
    EXPECT(glob_files("/proc/self/task/*/children").empty() || mpirun_hangs(waits, 0.1));
    EXPECT(!mpirun_hangs(works, 0.1));
    kill(waits, SIGKILL), finish(waits), finish(works);
    start_test("ranks of other programs are refused");
    for (const std::string& other : {tiny_run(CPU, "-x 2 --precision bf16"), tiny_run(SIM32, "-x 2")}) {
        r = run(MPIRUN + good + " : -np 1 " + other);
        EXPECT(r.status == 1 && contains(r.err, "version, precision and kernels of rank 1 are not those of rank 0"));
    }
}

static void order_and_bytes() {
    for (const std::string& program : {CPU, SIM32, SIM16})
        for (int n : {2, 3})
            for (int stage : {0, 1, 2, 3}) {
                // Two CPU processes send messages, three share memory, through which nothing goes
                // by itself.
                const bool shares = program == CPU && n == 3;
                start_test(format("%s, %d processes, stage %d: a layer's gradients leave %s; bytes sent are the plan's",
                                  program, n, stage,
                                  shares ? "when all are complete" : "before the next backward begins"));
                Sent sent;
                EXPECT(sends_as_planned(
                    program, n, format("-z %d --shared-memory %d%s", stage, (int)shares, n == 3 ? " -r 4" : ""), sent));
                if (stage > 1) continue;  // gradients leave in every micro-step
                // Weights arrive on GPUs in the order in which the next forward pass needs them.
                const bool weights_of_gpus = program != CPU && stage == 1;
                EXPECT(contains(sent.order, std::string(shares ? "backward 1, backward 0, reduce_scatter 1, "
                                                               : "backward 1, reduce_scatter 1, backward 0, ") +
                                                "reduce_scatter 0, reduce_scatter 2, " +
                                                (weights_of_gpus ? "all_gather 2, all_gather 0, all_gather 1, "
                                                                 : "all_gather 0, all_gather 1, all_gather 2, ")));
            }
    const std::pair<std::string, const char*> all_that_is_sent[] = {{CPU, "0"}, {CPU, "1"}, {SIM16, "1"}};
    for (const auto& [program, stage] : all_that_is_sent)
        for (const OptimizerInfo& optimizer : OPTIMIZERS) {
            if (!optimizer.whole_tensors) continue;
            start_test(
                format("%s, %s, 3 processes, stage %s: bytes sent are the plan's", program, optimizer.name, stage));
            Sent sent;
            EXPECT(sends_as_planned(program, 3, format("-z %s --optimizer %s", stage, optimizer.name), sent));
        }
    for (const char* shares : {"0", "1"}) {
        start_test(format("peak_bytes of two processes are the plan's, --shared-memory %s", shares));
        const std::string wide = format("-e L1C1024H4T16V256 --threads 1 -z 1 -b 1 --shared-memory %s ", shares);
        const std::string trained = "-x 3 --overwrite 1 -o " + dir("wide"), asked = "--plan -pn 2 --gpus-per-node 2";
        EXPECT(passed(run(std::string(MPIRUN) + "-np 2 " + tiny_run(CPU, wide + trained))));
        const std::string plan = run(tiny_run(CPU, wide + asked)).out;
        const double planned = atof(plan.c_str() + plan.rfind("\ntotal ") + 7), taken = at("wide", 2, METRIC_PEAK);
        EXPECT(taken > 0.85 * planned && taken < planned);
    }
    start_test("optimizer state of stage 1 is 1/N of stage 0's");
    auto optimizer = [](int n) {
        const std::string plan = run(tiny_run(SIM16, format("--plan -b 1 -d 192 -z 1 -pn %d", n))).out;
        return atof(plan.c_str() + plan.find("= all", plan.find("master weights")) + 5);
    };
    EXPECT(optimizer(1) > 0 && std::fabs(optimizer(1) / optimizer(4) - 4) < 0.05);
}

// test_processes [GROUP...]: all tests, or those of the functions named.
int main(int argc, char** argv) {
    make_test_folder();
    if (run(std::string(MPIRUN) + "-np 2 true").status != 0 ||
        !contains(run(several(CPU, 2, "-x 1")).out, "step    1/1")) {
        skip_test("runs under mpirun (apt-get install libopenmpi-dev openmpi-bin, then make clean test)");
        return report_and_clean();
    }
    const auto wanted = [&](const char* group) { return wants_group(argc, argv, group); };
    if (wanted("same_numbers")) same_numbers();
    if (wanted("checkpoints")) checkpoints();
    if (wanted("deaths")) deaths();
    if (wanted("starts")) starts();
    if (wanted("order_and_bytes")) order_and_bytes();
    return report_and_clean();
}
