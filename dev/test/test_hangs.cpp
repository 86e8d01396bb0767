// Simulated GPUs one of whose processes hangs: the others say so and end in time, whatever they are
// waiting for, although their collectives never end. The simulator makes a process hang at a given
// call (CUSIM_HANG); its exit() waits for collectives, as a GPU's does.
#include <csignal>
#include <sstream>
#include "dev/test/several.h"
#include "llmc/comm/socket.h"

constexpr int TIMEOUT_S = 5;
constexpr size_t AT_ONCE = 4;

struct Hang {
    const char *phase, *at, *flags, *says;  // what rank 1 hangs at; what rank 0 waits in, one of those between |
    const char* environment = "";
};
// Where the device hangs, the host comes as far as it can without it. The sums of the norm are the
// first gather of a step, its results the first copy to the host.
#define IN_A_STEP \
    "the number of tokens that count|waiting for the step|the times of the step|agreeing to go on|" \
    "the weights of the other processes"
static const Hang HANGS[] = {
    {"the start", "ncclCommInitRankConfig:1", "", "the start of NCCL"},
    {"the gradients", "ncclReduceScatter:5", "", IN_A_STEP},
    {"the update", "adamw:1", "", IN_A_STEP},
    {"the parameters", "ncclAllGather:6", "", IN_A_STEP},
    {"the weights of a layer", "ncclAllGather:9", "-z 3", IN_A_STEP},
    {"validation", "encoder_forward:1", "-v 1", "agreeing to go on"},
    {"a checkpoint", "cudaMemcpyAsync to the host:2", "-n 1", ""},
    {"the end", "ncclCommFinalize:1", "", "the end of NCCL"},
    {"the gradients, and NCCL cannot be aborted", "ncclReduceScatter:5", "", "", "CUSIM_ABORT_HANGS=1"},
};

// Two processes by mpirun, the second of which hangs.
static pid_t start_hanging(const Hang& h, const std::string& name) {
    const std::string flags = format("-b 1 -d 192 -z 1 -x 4 --comm-timeout %d -o ", TIMEOUT_S) + dir(name);
    const std::string program = tiny_run(SIM16, flags + " " + h.flags), hangs = format("env 'CUSIM_HANG=%s' ", h.at);
    const std::string both = MPIRUN + ("-np 1 " + program) + " : -np 1 " + hangs + program;
    return start(format("env %s timeout 60 ", h.environment) + both, name);
}

static void every_phase() {
    const size_t all = std::size(HANGS);
    for (size_t first = 0; first < all; first += AT_ONCE) {
        const size_t end = std::min(all, first + AT_ONCE);
        std::vector<pid_t> runs;
        const auto name = [](size_t i) { return format("hang%d", (int)i); };
        for (size_t i = first; i < end; i++) runs.push_back(start_hanging(HANGS[i], name(i)));
        for (size_t i = first; i < end; i++) {
            start_test(format("a rank hangs in %s: the other says what it waits in, and ends", HANGS[i].phase));
            const Outcome r = finish(runs[i - first], name(i));
            bool said = false;
            std::stringstream all_of(HANGS[i].says);
            std::string says;
            do {
                std::getline(all_of, says, '|');
                said = said || contains(r.err, format("error: rank 0: waited %d s in %s", TIMEOUT_S, says));
            } while (all_of.good());
            if (!EXPECT(r.status == 1 && said)) printf("    %s\n", r.err.c_str());
        }
    }
}

// By TCP there is no launcher that ends the others.
static void death() {
    start_test("a rank that ends while another waits for its GPU: named by the other, long before the timeout");
    int port = 0;
    close(listen_on({htonl(INADDR_LOOPBACK)}, port));
    const std::string flags =
        format("-b 1 -d 192 -z 1 -x 4 -pn 2 -pi tcp -ps 127.0.0.1:%d --comm-timeout 50 -o ", port) + dir("death");
    const pid_t second = start("env CUSIM_HANG=ncclReduceScatter:5 " + tiny_run(SIM16, flags + " -pr 1"), "second");
    const pid_t first = start(tiny_run(SIM16, flags + " -pr 0"), "first");
    EXPECT(wait_for_step("death", 0));
    usleep(500000);
    const double begin = now_seconds();
    kill(second, SIGKILL);
    finish(second, "second");
    EXPECT(refused(finish(first, "first"), 1, "rank 1 has ended") && now_seconds() - begin < 20);
}

int main() {
    make_test_folder();
    if (run(std::string(MPIRUN) + "-np 2 true").status != 0)
        skip_test("runs under mpirun (apt-get install libopenmpi-dev openmpi-bin, then make clean test)");
    else every_phase();
    death();
    return report_and_clean();
}
