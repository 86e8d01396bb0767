// Runs of several processes that meet by TCP or by a file: the same numbers as one process, errors,
// deaths, the memory of each stage, and two hosts.
#include <csignal>
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/comm/tcp.h"

// Runs all ranks of a run without a launcher, as shell jobs; returns what rank 0 printed and its
// status. rank: the flags or variables of rank $r.
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

// The peak memory of both ranks in a run of two processes, and what --plan says, in MiB.
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
    start_test("measured: each rank needs what the others need: the plan, and the program itself");
    for (const MemoryOfStage& m : {whole, shared}) {
        EXPECT(std::fabs(m.rank0 - m.rank1) < 8 && m.rank0 < m.plan + 32 && m.rank1 < m.plan + 32);
        if (!test_good) printf("    peaks %.1f %.1f, plan %.1f MiB\n", m.rank0, m.rank1, m.plan);
    }
}

// Two hosts: network namespaces with a virtual wire between them. Skipped without the rights to
// make them.
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
    return report_and_clean();
}
