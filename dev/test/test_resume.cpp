// Runs that are resumed: to the same bits after a stop, after kill -9 at any instant, from damaged
// checkpoints and full disks; and runs that cannot go on.
#include <csignal>
#include "dev/test/run_program.h"
#include "llmc/checkpoint/checkpoint.h"

static std::string tiny(const std::string& more) { return tiny_run("./train_gpt2_cpu", more); }
static std::string weights(const std::string& name, int step) { return model_path(dir(name), step); }

static void resuming() {
    const std::string flags = "-d 64 -l 3e-3 -q 0.1 -u 3 -c 0.1 ";
    EXPECT(run(tiny(flags + "-x 20 -v 5 -m 2 -s 7 -g 4 -n 4 -o " + dir("whole"))).status == 0);
    start_test("resumed, with other B, recompute level and threads allowed: same bits, same log");
    EXPECT(run(tiny(flags + "-x 20 -v 5 -m 2 -s 7 -g 4 -n 4 -o " + dir("parts") + "")).status == 0);
    for (int step = 20; step > 8; step -= 4) remove_checkpoint(dir("parts"), step);
    Outcome r = run(tiny(flags + "-x 20 -v 5 -m 2 -s 7 -g 4 -n 4 -y 1 -r 3 --threads 1 -o " + dir("parts")));
    EXPECT(r.status == 0 && contains(r.out, "resumed at step 8"));
    EXPECT(same_files(weights("whole", 20), weights("parts", 20)));
    EXPECT(same_records("whole", "parts"));
    r = run(tiny(flags + "-x 20 -y 1 -o " + dir("parts")));
    EXPECT(r.status == 0 && contains(r.out, "already at step 20"));
    EXPECT(same_records("whole", "parts"));  // nothing was done, nothing is changed
    start_test("resume refuses another T, seed, shuffle or data with exit 2 and the flag");
    for (const char* change : {"-t 8", "--seed 1", "--shuffle 0"})
        EXPECT(refused(run(tiny(flags + "-d 32 -x 30 -y 1 -o " + dir("parts") + " " + change)), 2,
                       std::string(change).substr(0, std::string(change).find(' '))));
    EXPECT(refused(run(tiny(flags + "-x 30 -y 1 -o " + dir("parts") + " -i " + dir("train_0.bin"))), 2, "-i"));
    start_test("a damaged or half-written checkpoint is named and passed over");
    auto damaged = [&](const std::string& file, auto change) {
        run("cp -r " + dir("whole") + " " + dir("hurt"));
        std::string bytes = read_whole(dir("hurt/") + file);
        change(bytes);
        write_whole(dir("hurt/") + file, bytes);
        Outcome o = run(tiny(flags + "-x 20 -v 5 -m 2 -s 7 -g 4 -n 4 -y 1 -o " + dir("hurt")));
        EXPECT(o.status == 0 && contains(o.err, file) && contains(o.out, "resumed at step 16"));
        EXPECT(same_files(weights("whole", 20), weights("hurt", 20)));
        run("rm -r " + dir("hurt"));
    };
    damaged("model_00000020.bin", [](std::string& b) { b[b.size() / 2] ^= 1; });
    damaged("model_00000020.bin", [](std::string& b) { b.resize(b.size() / 2); });
    damaged("state_00000020_00000.bin", [](std::string& b) { b[b.size() - 9] ^= 64; });
    damaged("state_00000020_00000.bin", [](std::string& b) { b[16] ^= 1; });
    damaged("state_00000020_00000.bin", [](std::string& b) { b.resize(100); });
    start_test("without DONE it is not there; -y 1 in an empty folder starts fresh");
    run("cp -r " + dir("whole") + " " + dir("undone"));
    unlink(done_path(dir("undone"), 20).c_str());
    EXPECT(contains(run(tiny(flags + "-x 20 -v 5 -n 4 -y 1 -o " + dir("undone"))).out, "resumed at step 16"));
    EXPECT(run(tiny("-x 2 -y 1 -o " + dir("fresh"))).status == 0 && file_exists(weights("fresh", 2)));
    start_test("-nk keeps the newest, -nm the major ones");
    EXPECT(run(tiny("-x 12 -n 2 -nk 2 -nm 6 -o " + dir("kept"))).status == 0);
    EXPECT((finished_steps(dir("kept")) == std::vector<int64_t>{6, 10, 12}) && !file_exists(weights("kept", 8)));
    start_test("the comparison of files sees one byte");
    std::string bytes = read_whole(weights("whole", 20));
    bytes[2000] ^= 1;
    write_whole(dir("changed.bin"), bytes);
    EXPECT(!same_files(weights("whole", 20), dir("changed.bin")) && !same_files(dir("none"), dir("none")));
}

static void kill_and_resume() {
    start_test("kill -9 at 40 random instants, resumed each time: the weights and the records of a run left alone");
    const std::string flags = "-x 4000 -n 20 -nk 2 -l 3e-3 -c 0.1 -v 30 -m 1 -s 50 -g 3 ";
    EXPECT(run(tiny(flags + "-o " + dir("calm"))).status == 0);
    unsigned random = 7;
    int killed = 0;
    Outcome r{};
    for (int attempt = 0; attempt < 40; attempt++) {
        pid_t child = start(tiny(flags + "-y 1 -o " + dir("rough")));
        random = random * 1103515245 + 12345;
        usleep(20000 + random / 65536 % 130000);
        kill(child, SIGKILL);
        r = finish(child);
        killed += r.status == 128 + SIGKILL;
        if (r.status != 128 + SIGKILL) EXPECT(r.status == 0);
        StateHeader header;
        for (int64_t step : finished_steps(dir("rough")))
            EXPECT(checkpoint_problem(dir("rough"), step, header).empty());
    }
    EXPECT(killed >= 10);
    EXPECT(run(tiny(flags + "-y 1 -o " + dir("rough"))).status == 0);
    EXPECT(same_files(weights("calm", 4000), weights("rough", 4000)) && same_records("calm", "rough"));
}

static void hard_times() {
    start_test("a full disk: exit 1, one sentence, the checkpoints there are whole and go on");
    EXPECT(run(tiny("-x 4 -n 2 -o " + dir("disk"))).status == 0);
    struct rlimit old, small = {100 * 1024, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);  // a write beyond the limit fails, as on a full disk
    Outcome r = run(tiny("-x 8 -n 2 -y 1 -o " + dir("disk")));
    setrlimit(RLIMIT_FSIZE, &old);
    EXPECT(refused(r, 1, "cannot write") &&
           contains(r.err, "; to go on: ./train_gpt2_cpu -o " + dir("disk") + " -y 1\n"));
    EXPECT(glob_files(dir("disk/*.tmp")).empty());
    small.rlim_cur = file_bytes(weights("disk", 4)) + 1024;  // room for the model, not for the state
    setrlimit(RLIMIT_FSIZE, &small);
    EXPECT(refused(run(tiny("-x 8 -n 2 -y 1 -o " + dir("disk"))), 1, "cannot write"));
    setrlimit(RLIMIT_FSIZE, &old);
    EXPECT(glob_files(dir("disk/*.tmp")).empty());
    StateHeader header;
    EXPECT(newest_checkpoint(dir("disk"), header) == 4 && run(tiny("-x 8 -n 2 -y 1 -o " + dir("disk"))).status == 0);
    start_test("an out dir that cannot be made: exit 1, one sentence, before training");
    r = run(tiny("-x 2 -o " + dir("val.bin/inside")));
    EXPECT(refused(r, 1, "val.bin") && !contains(r.out, "step "));
    start_test("a model larger than the machine: exit 1, one sentence, at once");
    EXPECT(refused(run("./train_gpt2_cpu -e gpt3:c12288 -x 1"), 1, "out of memory"));
    start_test("a loss that is not finite stops the run with the step and the last good checkpoint");
    r = run(tiny("-x 50 -n 1 -l 1e30 -k constant --grad-clip 0 -c 1 -o " + dir("nan")));
    EXPECT(refused(r, 1, "not finite") && contains(r.err, "of step ") && contains(r.err, "model_0000"));
    for (const char* more : {"", "--precision fp32x3", "--precision bf16", "--precision bf16 -w 0",
                             "--precision bf16 -b 4 -d 2048", "--precision bf16 -b 2 -t 200 -d 400"}) {
        start_test(format("peak memory is what --plan says, within 5%%: %s", more));
        const std::string flags =
            "./train_gpt2_cpu -e L4C256H4T256 -b 4 -t 256 -x 3 -v 0 -s 0 --threads 2 " + std::string(more);
        const std::string plan = run(flags + " --plan").out;
        const double planned = atof(plan.c_str() + plan.find("bytes, ") + 7);
        r = run(flags + " -n 1 --overwrite 1 -o " + dir("planned"));
        EXPECT(planned > 150 && r.status == 0 && r.peak_mib <= planned * 1.05 && r.peak_mib >= planned * 0.8);
        if (!(r.peak_mib <= planned * 1.05 && r.peak_mib >= planned * 0.8))
            printf("    planned %.1f MiB, peak %.1f MiB\n", planned, r.peak_mib);
    }
}

int main() {
    make_test_folder();
    start_test("runs to resume");
    resuming();
    kill_and_resume();
    hard_times();
    return report_and_clean();
}
