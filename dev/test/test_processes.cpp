// Runs of several processes, on CPUs and in the simulator: the same numbers for any number of them,
// stages that agree to the bit, checkpoints that any number goes on from, ranks that die, hang or
// were started differently.
#include <csignal>
#include "dev/test/run_program.h"
#include "llmc/checkpoint.h"
#include "llmc/tcp.h"

static const std::string CPU = "./train_gpt2_cpu", SIM32 = "build/FP32/train_gpt2sim",
                         SIM16 = "build/BF16/train_gpt2sim";
static const char* MPIRUN = "mpirun --oversubscribe --allow-run-as-root ";

// A tiny run of 12 windows a step, as n processes with B 1: 12 / n micro-steps.
static std::string several(const std::string& program, int n, const std::string& more) {
    return MPIRUN + format("-np %d ", n) + tiny_run(program, "-b 1 -d 192 -f 0 --threads 1 " + more);
}

static void same_numbers() {
    const std::string training = "-x 50 -l 3e-3 -u 3 -c 0.1 --grad-clip 0.8 ";
    const Outcome one = run(several(CPU, 1, training));
    for (int n : {2, 3, 4})
        for (const char* stage : {"0", "1"}) {
            start_test(format("50 steps on %d CPU processes, stage %s, are those of one to 1e-4", n, stage));
            EXPECT(agree(run(several(CPU, n, training + "-z " + stage)), one, 50, 1e-4, 1e-4));
        }
    for (int n : {2, 3}) {
        start_test(format("50 steps in bf16 on %d CPU processes are those of one in fp32, to its rounding", n));
        EXPECT(agree(run(several(CPU, n, training + "--precision bf16 -z " + (n == 3 ? "0" : "1"))), one, 50, LOSS16,
                     NORM16));
    }
    const Outcome sim32 = run(several(SIM32, 1, training)), sim16 = run(several(SIM16, 1, training));
    for (int n : {2, 3, 4}) {
        start_test(format("50 steps on %d simulated GPUs are those of one: fp32 to 1e-4, bf16 to its rounding", n));
        EXPECT(agree(run(several(SIM32, n, training + (n == 3 ? "-z 0" : "-z 1"))), sim32, 50, 1e-4, 1e-4));
        EXPECT(agree(run(several(SIM16, n, training + (n == 3 ? "-z 1" : "-z 0"))), sim16, 50, LOSS16, NORM16));
    }
    for (const std::string& program : {CPU, CPU + " --precision bf16", SIM32, SIM16})
        for (int n : {2, 3}) {
            start_test(format("stage 0 and stage 1 agree to the bit, and a second run with the first: %s, %d processes",
                              program.c_str(), n));
            const char* names[] = {"stage0", "stage1", "again"};
            for (int i = 0; i < 3; i++)
                EXPECT(run(several(program, n,
                                   format("-x 4 -c 0.1 -z %d --overwrite 1 -o %s", i > 0, dir(names[i]).c_str())))
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

// The process ids of the ranks of a run that is under way, by rank.
static std::vector<pid_t> ranks_of(const std::string& mark, int n) {
    std::vector<pid_t> pids(n, 0);
    for (int tries = 0; tries < 100; tries++) {
        for (const std::string& path : glob_files("/proc/[0-9]*/cmdline")) {
            const std::string command = read_whole(path);
            if (!contains(command, mark) || contains(command, "mpirun") || contains(command.substr(0, 3), "sh"))
                continue;
            const pid_t pid = (pid_t)atoi(path.c_str() + 6);
            const std::string environment = read_whole(format("/proc/%d/environ", (int)pid));
            const size_t at = environment.find("OMPI_COMM_WORLD_RANK=");
            if (at < environment.size()) pids[atoi(environment.c_str() + at + 21) % n] = pid;
        }
        if (std::count(pids.begin(), pids.end(), 0) == 0) return pids;
        usleep(100000);
    }
    return pids;
}
static bool wait_for_step(const std::string& name, int step) {
    for (int tries = 0; tries < 200; tries++, usleep(50000))
        if (contains(read_whole(dir(name) + "/main.log"), format("s:%d trl", step))) return true;
    return false;
}
static void deaths() {
    const std::string endless = "-x 100000 -n 5 -nk 3 -z 1 -o ";
    start_test("kill -9 of one rank ends all within 30 s, says which, and the run goes on");
    pid_t all = start(several(CPU, 3, endless + dir("killed")));
    EXPECT(wait_for_step("killed", 7));
    kill(ranks_of(dir("killed"), 3)[1], SIGKILL);
    double begin = now_seconds();
    Outcome r = finish(all);
    EXPECT(r.status != 0 && now_seconds() - begin < 30 && contains(r.out + r.err, "rank 1"));
    // it is past step 1, and found
    EXPECT(contains(run(several(CPU, 2, "-x 1 -y 1 -z 1 -o " + dir("killed"))).out, "the run in"));
    start_test("a rank that hangs is noticed, and named by those who wait");
    all = start(several(CPU, 2, endless + dir("hanging") + " --comm-timeout 2"));
    EXPECT(wait_for_step("hanging", 3));
    const pid_t stopped = ranks_of(dir("hanging"), 2)[1];
    kill(stopped, SIGSTOP);
    usleep(6000000);
    kill(stopped, SIGCONT);
    r = finish(all);
    EXPECT(r.status != 0 && contains(r.err, "rank 0: waited 2 s in"));
    struct Stop {
        int processes, signal;
    };
    for (const Stop& stop : {Stop{1, SIGTERM}, {1, SIGINT}, {2, SIGTERM}}) {
        start_test(format("signal %d to mpirun itself, %d processes: saved", stop.signal, stop.processes));
        const std::string name = format("mpirun%d_%d", stop.processes, stop.signal);
        // the patience that mpirun has, 1 s by default, may be short on a machine that does other
        // things beside
        all = start(MPIRUN + format("--mca odls_base_sigkill_timeout 3 -np %d %s", stop.processes, CPU.c_str()) +
                    " -i " + dir("train_0.bin") +
                    " -e L1C8H1V256T16 -b 1 -t 16 -v 0 -s 0 --threads 1 -x 100000000 -o " + dir(name));
        const int soon = stop.processes == 1 ? 300 : 20;
        EXPECT(wait_for_step(name, soon));
        kill(all, stop.signal);
        EXPECT(finish(all).status != 0);
        const std::vector<int64_t> kept = finished_steps(dir(name));
        const int64_t step = kept.empty() ? 0 : kept.back();
        const Outcome on = run(CPU + format(" -x %lld -y 1 -o ", (long long)step + 1) + dir(name));
        EXPECT(step >= soon && on.status == 0 && contains(on.out, format("resumed at step %lld", (long long)step)));
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
    EXPECT(r.status != 0 && contains(r.err, "flags and model of rank 1 are not those of rank 0"));
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
    start_test("a number of processes that the launcher did not start: exit 2, one sentence");
    EXPECT(refused(run(tiny_run(CPU, "-pn 2")), 2, "--num-processes 2"));
    EXPECT(refused(run(tiny_run(SIM16, "-pn 2")), 2, "--num-processes 2"));
    EXPECT(refused(run(tiny_run(CPU, "-pn 2 -pr 2")), 2, "--process-rank 2"));
    start_test("a mistake in a flag is said once");
    r = run(several(CPU, 3, "-b 0"));
    size_t said = 0;
    for (size_t at = 0; (at = r.err.find("error: -b 0", at)) != r.err.npos; at++) said++;
    EXPECT(r.status == 2 && said == 1);
    start_test("a mistake in one rank's flags, or one of their own each, is said");
    auto lines = [](const Outcome& r, const std::string& text) {
        size_t said = 0;
        for (size_t at = 0; (at = r.err.find(text, at)) != r.err.npos; at++) said++;
        return said;
    };
    const std::string good = "-np 1 " + tiny_run(CPU, "-x 2"), bad = "-np 1 " + tiny_run(CPU, "-x 2 -b 0");
    r = run(MPIRUN + good + " : " + bad);
    EXPECT(r.status == 2 && lines(r, "error:") == 1 && lines(r, "error: rank 1: -b 0") == 1);
    r = run(MPIRUN + good + " : " + bad + " : " + bad + " : " + bad);
    EXPECT(r.status == 2 && lines(r, "error:") == 1 && lines(r, ": -b 0") == 1);
    r = run(MPIRUN + bad + " : " + good);
    EXPECT(r.status == 2 && lines(r, "error:") == 1 && lines(r, "error: -b 0") == 1);
    start_test("a launcher that lets all ranks end by themselves: said once, whoever has the mistake");
    const std::string wrong = "SLURM_PROCID=\\$r SLURM_STEP_NUM_TASKS=4 " + tiny_run(CPU, "-b 0");
    for (const char* ranks : {"0 1 2 3", "1 2 3", "2"}) {
        r = run(format("sh -c \"for r in %s; do %s & done; wait\"", ranks, wrong.c_str()));
        EXPECT(lines(r, "error:") == 1 && lines(r, "-b 0") == 1);
    }
    start_test("a process that never comes to MPI: noticed after --comm-timeout");
    r = run(MPIRUN + std::string("-np 1 ") + tiny_run(CPU, "-x 2 --comm-timeout 2") + " : -np 1 sleep 60");
    EXPECT(r.status == 1 && lines(r, "error: rank 0: waited 2 s for MPI to start") == 1);
    start_test("ranks of other programs are refused");
    for (const std::string& other : {tiny_run(CPU, "-x 2 --precision bf16"), tiny_run(SIM32, "-x 2")}) {
        r = run(MPIRUN + good + " : -np 1 " + other);
        EXPECT(r.status == 1 && contains(r.err, "version, precision and kernels of rank 1 are not those of rank 0"));
    }
}

static void order_and_bytes() {
    for (const std::string& program : {CPU, SIM32, SIM16})
        for (int n : {2, 3})
            for (int stage : {0, 1}) {
                start_test(
                    format("%s, %d processes, stage %d: a layer's gradients leave before the next backward begins; "
                           "bytes sent are the plan's",
                           program.c_str(), n, stage));
                const std::string flags = format("-x 1 -z %d", stage), trace_file = dir("trace");
                unlink(trace_file.c_str());
                EXPECT(run("env COMM_TRACE=" + trace_file + " " + several(program, n, flags)).status == 0);
                const std::string trace = read_whole(trace_file);
                EXPECT(contains(trace,
                                "backward 1\nreduce_scatter 1\nbackward 0\nreduce_scatter 0\nreduce_scatter "
                                "2\nall_gather 0\nall_gather 1\nall_gather 2\nwire_bytes "));
                const std::string plan =
                    run(tiny_run(program, format("-b 1 -d 192 --plan -pn %d %s", n, flags.c_str()))).out;
                const long long sent = atoll(trace.c_str() + trace.find("wire_bytes ") + 11),
                                planned = atoll(plan.c_str() + plan.find("wire a step: ") + 13);
                EXPECT(sent > 0 && sent == planned);
            }
    start_test("optimizer state of stage 1 is 1/N of stage 0's");
    auto optimizer = [](int n) {
        const std::string plan = run(tiny_run(SIM16, format("--plan -b 1 -d 192 -z 1 -pn %d", n))).out;
        return atof(plan.c_str() + plan.find("= all", plan.find("master weights")) + 5);
    };
    EXPECT(optimizer(1) > 0 && std::fabs(optimizer(1) / optimizer(4) - 4) < 0.05);
}

// All ranks of a run without a launcher, as shell jobs; what rank 0 printed, and its status. rank:
// the flags or variables of rank $r.
static Outcome without_launcher(const std::string& program, int n, const std::string& rank, const std::string& more,
                                const std::string& environment = "") {
    const std::string one =
        environment + " timeout 60 " + tiny_run(program, "-b 1 -d 192 -f 0 --threads 1 " + more + " " + rank);
    return run(format("sh -c \"for r in \\$(seq 1 %d); do ", n - 1) + one + " > " + dir("others") +
               "\\$r 2>&1 & done; r=0; " + one + "; status=\\$?; wait; exit \\$status\"");
}
static int free_port() {
    int port = 0;
    close(listen_on({htonl(INADDR_LOOPBACK)}, port));
    return port;
}

static void meeting_without_mpi() {
    const Outcome alone = run(tiny_run(CPU, "-b 1 -d 192 -x 6"));
    auto tcp_flags = [](int n) {
        return format("-pn %d -pr \\$r -pi tcp -ps 127.0.0.1:%d --comm-timeout 20", n, free_port());
    };
    start_test("three processes by TCP, no launcher: the numbers of one, stages 0 and 1, CPU and simulator");
    EXPECT(agree(without_launcher(CPU, 3, tcp_flags(3), "-x 6 -z 0"), alone, 6, 1e-4, 1e-4) &&
           agree(without_launcher(CPU, 3, tcp_flags(3), "-x 6 -z 1"), alone, 6, 1e-4, 1e-4));
    EXPECT(agree(without_launcher(SIM32, 2, tcp_flags(2), "-x 6 -z 1"), alone, 6, 1e-4, 1e-4) &&
           agree(without_launcher(SIM16, 3, tcp_flags(3), "-x 6 -z 1"), alone, 6, LOSS16, NORM16));
    start_test("two processes by a shared folder, over a file that an earlier run left");
    run("mkdir -p " + dir("meet"));
    write_whole(dir("meet/rendezvous.txt"), "127.0.0.1 9\n");
    const std::string fs_flags = "-pn 2 -pr \\$r -pi fs -pf " + dir("meet") + " --comm-timeout 20";
    EXPECT(agree(without_launcher(SIM32, 2, fs_flags, "-x 6 -z 1"), alone, 6, 1e-4, 1e-4) &&
           !file_exists(dir("meet/rendezvous.txt")));
    start_test("two processes as torchrun starts them, and as srun does without PMIx");
    for (const char* where : {"MASTER_ADDR=127.0.0.1", "MASTER_ADDR=a.name.of.this.machine LOCAL_WORLD_SIZE=2"}) {
        const std::string ranks = "env RANK=\\$r WORLD_SIZE=2 LOCAL_RANK=\\$r ";
        const std::string torchrun = ranks + format("%s MASTER_PORT=%d", where, free_port());
        EXPECT(agree(without_launcher(CPU, 2, "", "-x 6", torchrun), alone, 6, 1e-4, 1e-4));
    }
    EXPECT(agree(without_launcher(SIM32, 2, format("-pi tcp -ps 127.0.0.1:%d", free_port()), "-x 6",
                                  "env SLURM_PROCID=\\$r SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=\\$r"),
                 alone, 6, 1e-4, 1e-4));
    start_test("nobody there, a port in use, a stale file, other numbers of processes: one sentence, no hanging");
    const std::string patience = " --comm-timeout 2 -x 1";
    EXPECT(refused(run(tiny_run(CPU, format("-pn 2 -pr 1 -pi tcp -ps 127.0.0.1:%d", free_port()) + patience)), 1,
                   "waited 2 s for rank 0"));
    EXPECT(refused(run(tiny_run(CPU, format("-pn 2 -pr 0 -pi tcp -ps 127.0.0.1:%d", free_port()) + patience)), 1,
                   "rank 1 did not connect"));
    const std::string lost = "-pn 2 -pr 1 -pi tcp -ps no.such.host.invalid" + patience;
    EXPECT(refused(run("env COMM_TOKEN=sixteen-characters " + tiny_run(CPU, lost)), 1, "waited 2 s for rank 0"));
    int port = 0;
    const int listener = listen_on({htonl(INADDR_LOOPBACK)}, port);
    EXPECT(refused(run(tiny_run(CPU, format("-pn 2 -pr 0 -pi tcp -ps 127.0.0.1:%d", port) + patience)), 1,
                   "cannot listen on port"));
    close(listener);
    write_whole(dir("meet/rendezvous.txt"), "127.0.0.1 9\n");
    EXPECT(refused(run(tiny_run(CPU, "-pn 2 -pr 1 -pi fs -pf " + dir("meet") + patience)), 1, "an earlier run's"));
    EXPECT(refused(run(tiny_run(CPU, "-pn 2 -pr 1 -pi fs -pf " + dir("nowhere") + patience)), 1, "is no folder"));
    EXPECT(refused(run(tiny_run(CPU, "-pn 2 -pr 0 -pi tcp")), 2, "needs -ps") &&
           refused(run(tiny_run(CPU, "-pn 2 -pr 0 -pi fs")), 2, "needs -pf") &&
           refused(run(tiny_run(CPU, "-pn 2 -pr 0 -pi tcp -ps x:99999")), 2, "no address"));
    const Outcome disagree = without_launcher(
        CPU, 2, format("-pn \\$((2 + r)) -pr \\$r -pi tcp -ps 127.0.0.1:%d --comm-timeout 5", free_port()), "-x 1");
    EXPECT(disagree.status == 1 && contains(disagree.err, "rank 1 of 3"));
    start_test("kill -9 of one rank ends the others, who name it, without any launcher");
    const std::string flags = "-b 1 -d 192 --threads 1 -x 100000 -z 1 -o " + dir("tcp_killed") +
                              format(" -pn 2 -pi tcp -ps 127.0.0.1:%d --comm-timeout 20 -pr ", free_port());
    const pid_t other = fork();
    if (other == 0) {
        execl("/bin/sh", "sh", "-c", ("exec " + tiny_run(CPU, flags + "1") + " > /dev/null 2>&1").c_str(),
              (char*)nullptr);
        _exit(127);
    }
    const pid_t first = start(tiny_run(CPU, flags + "0"));
    EXPECT(wait_for_step("tcp_killed", 5));
    kill(other, SIGKILL);
    waitpid(other, nullptr, 0);
    EXPECT(refused(finish(first), 1, "rank 1 has ended"));
}

// The peaks of both ranks' memory in a run of two processes, MiB, and what --plan says.
struct MemoryOfStage {
    double rank0, rank1, plan;
};
static MemoryOfStage memory_of_stage(int stage) {
    const std::string flags = tiny_run(
        CPU, format("-e L4C256H4T64 -i dev/data/shakespeare_train.bin -b 1 -t 64 -d 128 -x 2 --threads 1 -z %d -pn 2 ",
                    stage));
    const std::string meet = format("-pi tcp -ps 127.0.0.1:%d --comm-timeout 20 -pr ", free_port());
    const pid_t first = start(flags + meet + "0", "zero");
    const Outcome one = run(flags + meet + "1"), zero = finish(first, "zero");
    const std::string plan = run(flags + "--plan").out;
    const bool good = zero.status == 0 && one.status == 0;
    return {good ? zero.peak_mib : NAN, one.peak_mib, atof(plan.c_str() + plan.find("bytes, ") + 7)};
}
static void memory() {
    const MemoryOfStage whole = memory_of_stage(0), shared = memory_of_stage(1);
    const double saved = whole.plan - shared.plan;
    start_test("measured: stage 1 saves on each of two processes what the plan says, half of AdamW's state");
    EXPECT(saved > 50 && std::fabs(whole.rank0 - shared.rank0 - saved) < 0.1 * saved);
    EXPECT(std::fabs(whole.rank1 - shared.rank1 - saved) < 0.1 * saved);
    start_test(
        "measured: rank 0, through which all goes, needs what the others need: the plan, and the program itself");
    for (const MemoryOfStage& m : {whole, shared}) {
        EXPECT(std::fabs(m.rank0 - m.rank1) < 8 && m.rank0 < m.plan + 32 && m.rank1 < m.plan + 32);
        if (!test_good) printf("    peaks %.1f %.1f, plan %.1f MiB\n", m.rank0, m.rank1, m.plan);
    }
}

// Two hosts, as network namespaces with a wire between them; needs the rights to make them.
static void two_hosts() {
    const std::string a = format("gpt2a%d", (int)getpid()), b = format("gpt2b%d", (int)getpid());
    auto clean = [&] { run("sh -c 'ip netns del " + a + "; ip netns del " + b + "' "); };
    const bool possible =
        run("sh -c 'ip netns add " + a + " && ip netns add " + b + " && ip link add va netns " + a +
            " type veth peer name vb netns " + b + " && ip -n " + a + " addr add 10.77.0.1/24 dev va && ip -n " + b +
            " addr add 10.77.0.2/24 dev vb && ip -n " + a + " link set va up && ip -n " + b + " link set vb up'")
            .status == 0;
    if (!possible) {
        clean();
        return skip_test("two hosts as network namespaces (run as root with iproute2 installed)");
    }
    start_test("two hosts that meet by TCP");
    const std::string flags =
        "-b 1 -d 192 -f 0 --threads 1 -x 6 -z 1 -pn 2 -pi tcp -ps 10.77.0.1 --comm-timeout 20 -pr ";
    const Outcome alone = run(tiny_run(CPU, "-b 1 -d 192 -x 6"));
    for (const std::string& program : {CPU, SIM32}) {
        const std::string first = "ip netns exec " + a + " timeout 60 " + tiny_run(program, flags + "0");
        const std::string second = "ip netns exec " + b + " timeout 60 " + tiny_run(program, flags + "1");
        const std::string both = second + " > /dev/null 2>&1 & " + first + "; status=\\$?; wait; exit \\$status";
        const Outcome two = run("env COMM_TOKEN=known-to-both-hosts sh -c \"" + both + "\"");
        EXPECT(agree(two, alone, 6, 1e-4, 1e-4));
    }
    finish_test();
    test_name.clear();
    clean();
}

int main() {
    make_test_folder();
    meeting_without_mpi();
    memory();
    two_hosts();
    if (run(std::string(MPIRUN) + "-np 2 true").status != 0 ||
        !contains(run(several(CPU, 2, "-x 1")).out, "step    1/1")) {
        skip_test("runs under mpirun (apt-get install libopenmpi-dev openmpi-bin, then make clean test)");
        return report_and_clean();
    }
    same_numbers();
    checkpoints();
    deaths();
    starts();
    order_and_bytes();
    return report_and_clean();
}
