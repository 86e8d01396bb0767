// How runs start and how they are stopped: what is refused, what run.json brings back, signals,
// output that cannot be written.
#include <fcntl.h>
#include <sys/stat.h>
#include <csignal>
#include "dev/test/run_program.h"
#include "llmc/options/learning_rate.h"
#include "llmc/options/run_json.h"
#include "llmc/run/start.h"

static const std::string CPU = "./train_gpt2_cpu";
static std::string tiny(const std::string& more) { return tiny_run(CPU, more); }
static std::string in(const std::string& name) { return "-o " + dir(name) + " "; }
static const std::string SOON =
    "timeout 60 ";  // a run that lost its flags would be one of the defaults, which take days

static void folders() {
    start_test("a fresh run in a folder that holds one is refused with the two ways out, and touches nothing");
    EXPECT(passed(run(tiny("-x 4 -n 2 " + in("first")))));
    const std::string log = read_whole(dir("first/main.log")), json = read_whole(dir("first/run.json"));
    const Outcome again = run(tiny("-x 3 " + in("first")));
    EXPECT(refused(again, 2, "--overwrite 1") && contains(again.err, "-y 1") && contains(again.err, "step 4"));
    EXPECT(log == read_whole(dir("first/main.log")) && json == read_whole(dir("first/run.json")) &&
           file_exists(done_path(dir("first"), 4)));
    EXPECT(passed(run(tiny("-x 0 -v 1 " + in("first")))));  // writes nothing, so nothing is in its way
    EXPECT(refused(run(tiny("-x 4 -y 1 --overwrite 1 " + in("first"))), 2, "--overwrite"));
    start_test(
        "--overwrite 1 starts again: the earlier run stays until this one has saved, with a line that says so, and the "
        "log begins anew");
    const Outcome over = run(tiny("-x 3 --overwrite 1 " + in("first")));
    EXPECT(passed(over) && contains(over.out, "holds an earlier run, up to step 4") &&
           finished_steps(dir("first")) == std::vector<int64_t>{3});
    EXPECT(!contains(read_whole(dir("first/main.log")), "s:3 trl"));
    start_test("a file of a run's name that no run has written is not written over");
    for (const char* name : {"main.log", "metrics.csv", "evals.jsonl", "run.json", "shards.txt"}) {
        const std::string own = dir("own-" + std::string(name)), file = own + "/" + name;
        run("mkdir " + own);
        write_whole(file, "precious, since 1623\n");
        for (const char* way : {"", "--overwrite 1 "})
            EXPECT(refused(run(tiny(way + std::string("-x 1 -o ") + own)), 2, name));
        if (strcmp(name, "run.json") != 0)  // which -y 1 reads, and calls damaged
            EXPECT(refused(run(tiny("-x 1 -y 1 -o " + own)), 2, name));
        EXPECT(read_whole(file) == "precious, since 1623\n" && list_folder(own).size() == 3);
        write_whole(file, "");
        EXPECT(passed(run(tiny("-x 1 -o " + own))));
    }
    start_test("a main.log of llm.c, and the user's own models and states, are not written over either");
    run("mkdir " + dir("llmc"));
    write_whole(dir("llmc/main.log"), "s:0 tel:10.9512\ns:0 trl:10.9724 lr:0.000300 norm:18.33\n");
    EXPECT(refused(run(tiny("-x 1 " + in("llmc"))), 2, "main.log"));
    EXPECT(passed(run(tiny("-x 5 -n 5 " + in("own")))));
    for (const char* name : {"model_00000010.bin", "state_00000010_00000.bin", "state_00000010_00007.bin"}) {
        write_whole(dir("own/") + name, "precious, since 1623\n");
        for (const char* way : {"-y 1 -x 10 ", "-y 1 -x 20 -n 5 ", "--overwrite 1 -x 10 "})
            EXPECT(refused(run(tiny(way + in("own"))), 2, name));
        EXPECT(read_whole(dir("own/") + name) == "precious, since 1623\n");
        unlink((dir("own/") + name).c_str());
    }
    start_test("where a signal or a time limit saves, such a file is kept beside");
    for (int step = 6; step < 3000; step++) write_whole(model_path(dir("own"), step), "precious, since 1623\n");
    const pid_t child = start(tiny("-y 1 -x 1000000 -n 0 -k constant -b 16 -d 2816 " + in("own")));  // slow steps
    for (int tries = 0; tries < 1000 && !contains(read_whole(dir("own/main.log")), "s:5 trl"); tries++) usleep(20000);
    kill(child, SIGUSR1);
    const Outcome aside = finish(child);
    const size_t at = aside.out.find("stopped at step ");
    const int64_t step = at < aside.out.size() ? atoll(&aside.out[at + 16]) : 0;
    const std::string own = model_path(dir("own"), step);
    EXPECT(passed(aside) && step > 5 && step < 3000 && contains(aside.err, own + ".old"));
    EXPECT(read_whole(own + ".old") == "precious, since 1623\n" && file_bytes(own) > 1000);
    start_test("a folder with a log and no checkpoint is free");
    unlink(done_path(dir("first"), 3).c_str());
    EXPECT(passed(run(tiny("-x 2 " + in("first")))));
    start_test("-y 1 with another -e than the checkpoint's is refused; the same, and one that is gone, are not");
    EXPECT(refused(run(tiny("-x 3 -y 1 -e L1C32H2T16V256 " + in("first"))), 2, "-e L1C32H2T16V256"));
    EXPECT(passed(run(tiny("-x 3 -y 1 " + in("first")))));
    EXPECT(passed(run(tiny("-x 4 -y 1 -e " + dir("gone.bin") + " " + in("first")))));
    EXPECT(passed(run(tiny("-x 5 -y 1 -e " + model_path(dir("first"), 2) + " " + in("first")))));
}

static void run_json() {
    const std::string flags = "-d 64 -l 3e-3 -q 0.1 -u 3 -c 0.1 -x 12 -n 4 --prompt 'a\"b\\c' --precision bf16 ";
    start_test("-o DIR -y 1 alone goes on with the flags of the run, to the same weights");
    EXPECT(passed(run(tiny(flags + in("whole")))) && passed(run(tiny(flags + in("parts")))));
    remove_checkpoint(dir("parts"), 12);
    const Outcome r = run(SOON + CPU + " -y 1 " + in("parts"));
    EXPECT(passed(r) && contains(r.out, "resumed at step 8") &&
           same_files(model_path(dir("whole"), 12), model_path(dir("parts"), 12)));
    const std::string json = read_whole(dir("parts/run.json"));
    EXPECT(contains(json, TRAINER_VERSION) && contains(json, "-y 1") &&
           contains(json, "\"--learning-rate\": 0.0030000000000000001"));
    start_test("flags on the command line win over those of run.json");
    const Outcome more = run(SOON + CPU + " -y 1 -x 13 " + in("parts"));
    EXPECT(passed(more) && contains(more.out, "step   13/13"));
    EXPECT(refused(run(SOON + CPU + " -y 1 -x 14 -t 8 -b 4 " + in("parts")), 2, "-t 8"));
    start_test("data that run.json names by a relative path: resumed elsewhere, the sentence says so");
    char* here = getcwd(nullptr, 0);
    const std::string there = std::string("sh -c 'cd ") + folder + " && exec " + here + "/train_gpt2_cpu ";
    const std::string sizes = "-e L2C32H2T16V256 -b 2 -s 0 -v 5 -m 1 --threads 1 ";
    EXPECT(passed(run(SOON + there + sizes + "-i \"train_*.bin\" -j val.bin -x 2 " + in("roaming") + "'")));
    const std::string elsewhere = SOON + CPU + " -y 1 -x 3 " + in("roaming");
    const std::string data = "-i '" + dir("train_*.bin") + "' ", val = "-j " + dir("val.bin");
    EXPECT(refused(run(elsewhere), 1, "-i train_*.bin matches no file: it comes from"));
    EXPECT(refused(run(elsewhere + data), 1, "-j val.bin matches no file: it comes from"));
    EXPECT(refused(run(elsewhere + "-i lost.bin -v 0"), 1, "-i lost.bin matches no file; `make data`"));
    EXPECT(passed(run(SOON + there + "-y 1 -x 3 " + in("roaming") + "'")));
    EXPECT(passed(run(SOON + CPU + " -y 1 -x 4 " + in("roaming") + data + val)));
    free(here);
    start_test("a damaged run.json: exit 1, one sentence");
    const std::string good = read_whole(dir("parts/run.json"));
    auto with = [&](const std::string& from, const std::string& to) {
        return std::string(good).replace(good.find(from), from.size(), to);
    };
    for (const std::string& bad :
         {std::string(), good.substr(0, good.size() / 2), good + "x", good + std::string(1, '\0'), with("{", "["),
          with(": 2", ": \"2\""), with("\"--batch-size\"", "\"--big-batch\""),
          with("\"--batch-size\": 2", "\"--batch-size\": -2"), with("\"--batch-size\": 2", "\"--batch-size\": [2]"),
          with("\"--batch-size\": 2", "\"--batch-size\": "), with("\"--batch-size\"", "\"--seq-len\""),
          with("\"--batch-size\"", "\"--num-processes\""), with("a\\\"b", "a \\x"), with("a\\\"b", "\\ud83d"),
          with("a\\\"b", "\n"), std::string(2 << 20, ' ')}) {
        write_whole(dir("parts/run.json"), bad);
        EXPECT(refused(run(SOON + CPU + " -y 1 -x 14 " + in("parts")), 1, "run.json"));
    }
    start_test("every flag comes back from run.json as it was");
    Options o;
    o.out_dir = dir("");
    int64_t n = 1;
    for (const OptionRow& row : option_table()) {  // other values than the defaults, where there is a choice
        if (concerns_one_start(row)) continue;
        Options trial;
        const std::string value = row.text    ? "\t\"\\\x01 caf\xc3\xa9"
                                  : row.whole ? std::to_string(n++)
                                              : format("0.%d234567890123456", n++);
        if (option_problem(trial, row, value).empty()) option_problem(o, row, value);
    }
    write_run_json(o);
    Options back;
    back.out_dir = o.out_dir;
    take_over_flags(back, run_json_path(o.out_dir));
    for (const OptionRow& row : option_table())
        if (!concerns_one_start(row) && !EXPECT(option_value(o, row) == option_value(back, row)))
            printf("    %s\n", row.long_name);
    unlink(run_json_path(o.out_dir).c_str());
}

static void sizes() {
    start_test("products of flags that no integer holds: a sentence that names them, or a run that goes on");
    const std::string huge = CPU + " --plan -e L1000C65536H1T1048576V65536 -b 1048576 ";
    EXPECT(refused(run(huge + "-t 1048576"), 2, "-b 1048576") && refused(run(huge + "-r 0"), 2, "-b 1048576"));
    const Outcome counted = run(huge);
    EXPECT(passed(counted) && contains(counted.out, "total ") && !contains(counted.out, "total -"));
    EXPECT(passed(run(tiny("-b 3 -v 1 -x 1 -m 9000000000000000"))));
    EXPECT(passed(run(tiny("-x 1 --plan -n 9000000000000000 -nk 1 -nm 8999999999999999"))));
    start_test("out of memory anywhere: one sentence, exit 1");
    const std::string command = tiny("-x 1 -e L2C32H2T16 --prompt hello -s 1 --threads 1");
    EXPECT(passed(run("sh -c \"" + command + "\"")));
    for (int mib = 16; mib <= 96; mib += 8) {
        const Outcome r = run(format("sh -c \"ulimit -v %d; exec %s\"", mib * 1024, command));
        const bool loads = !contains(r.err, "shared lib") && r.status != 127 &&
                           r.status != 126;  // else the program did not even start
        if (loads && r.status != 0) EXPECT(refused(r, 1, "memory"));
    }
    start_test("-e takes a run's folder: its newest complete checkpoint");
    EXPECT(passed(run(tiny("-x 4 -n 2 -l 1e-2 " + in("source")))));
    auto val = [](const std::string& model) {
        const std::string out = run(tiny("-x 0 -v 1 -e " + model)).out;
        return out.substr(std::min(out.find("val loss"), out.size()));
    };
    EXPECT(contains(val(dir("source")), "val loss") && val(dir("source")) == val(model_path(dir("source"), 4)));
    unlink(done_path(dir("source"), 4).c_str());
    EXPECT(val(dir("source")) == val(model_path(dir("source"), 2)) &&
           val(dir("source")) != val(model_path(dir("source"), 4)));
    EXPECT(refused(run(tiny("-x 0 -e " + folder)), 2, "-e " + folder));
    run("mkdir d6");
    EXPECT(contains(run(CPU + " --plan -e d6").out, "L 6, C 384"));  // a descriptor is one whatever folders there are
    run("rmdir d6");
    start_test("nothing to generate is a mistake in -g, not a silent success");
    EXPECT(refused(run(tiny("-x 0 --prompt hello -g 0")), 2, "-g 0"));
    start_test("what a run leaves on the disk: in the plan, at its start, and as the files are");
    const Outcome r = run(tiny("-x 7 -n 2 -nk 2 " + in("disk"))), planned = run(tiny("--plan -x 7 -n 2 -nk 2"));
    const std::string bytes = read_whole(model_path(dir("disk"), 7)) + read_whole(state_path(dir("disk"), 7, 0));
    EXPECT(contains(planned.out, format("a checkpoint: %d bytes", bytes.size())) &&
           contains(planned.out, "up to 3 checkpoints"));
    EXPECT(!contains(r.err, "room") && contains(run(tiny("--plan -x 7 -n 2 -nk 1 -nm 4")).out, "up to 3 checkpoints"));
    EXPECT(contains(run(tiny("--plan -x 7 -n 2")).out, "up to 4 checkpoints") &&
           contains(run(tiny("--plan -x 7")).out, "up to 1 checkpoint,"));
    pid_t child = start(tiny("-x 9000000000000000 -n 1 " + in("full")));
    for (int tries = 0; tries < 1200 && !contains(read_whole(folder + "/err"), "-nk"); tries++) usleep(50000);
    kill(child, SIGKILL);
    EXPECT(contains(finish(child).err, "the run's checkpoints need up to"));
    start_test("a run without -o, and one of several epochs, say so in a line");
    EXPECT(contains(run(tiny("-x 200")).out, "nothing of this run is kept") &&
           contains(run(tiny("-x 200")).out, "gone through 2.1 times"));
    EXPECT(!contains(run(tiny("-x 2 " + in("quiet"))).out, "kept") &&
           !contains(run(tiny("-x 80")).out, "gone through"));
}

// Waits until the file has the text; false after 60 s.
static bool appears(const std::string& path, const std::string& text) {
    for (int tries = 0; tries < 1200; tries++, usleep(50000))
        if (contains(read_whole(path), text)) return true;
    return false;
}
// Without what an earlier program printed.
static pid_t start_anew(const std::string& command) {
    for (const char* name : {"/out", "/err"}) unlink((folder + name).c_str());
    return start(command);
}
static void signals() {
    signal(SIGHUP, SIG_DFL);  // also where nohup has started this program
    const std::string endless = "-x 1000000 -n 50 -nk 2 -y 1 ",
                      big = " -e L8C256H4T256 -i dev/data/shakespeare_train.bin ";
    const std::string slow = big + "-t 64 -b 1 -d 1048576 -x 2 ";  // a step of minutes
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
        start_test(format(
            "signal %d: said at once, the step finished and saved, the command that goes on printed; its exit status",
            signal));
        const std::string out = in(format("signal%d", signal));
        pid_t child = start_anew(tiny(endless + out));
        EXPECT(appears(folder + "/out", "step    3/"));
        kill(child, signal);
        const Outcome r = finish(child);
        EXPECT(r.status == (signal == SIGUSR1 ? 0 : 128 + signal) && one_line(r.err) &&
               contains(r.err, "once more to stop at once"));
        EXPECT(contains(r.out, "\nstopped at step ") &&
               contains(r.out, "to go on: ./train_gpt2_cpu " + out + "-y 1\n"));
        const int64_t step = atoll(r.out.c_str() + std::min(r.out.size(), r.out.rfind("stopped at step ") + 16));
        StateHeader header;
        EXPECT(step > 0 && newest_checkpoint(dir(format("signal%d", signal)), header) == step);
        EXPECT(
            contains(run(SOON + CPU + format(" -y 1 -x %d ", step + 1) + out).out, format("resumed at step %d", step)));
    }
    for (int signal : {SIGINT, SIGUSR1}) {
        start_test(format("signal %d a second time ends at once", signal));
        pid_t child = start_anew(tiny(slow + in("never")));
        EXPECT(appears(dir("never/run.json"), "flags") && appears(folder + "/out", "data: "));
        kill(child, signal);
        EXPECT(appears(folder + "/err", "once more to stop at once"));
        siginfo_t ended;
        for (ended.si_pid = 0; ended.si_pid == 0; usleep(100000)) {  // within 300 ms it counts as the same signal
            kill(child, signal);
            waitid(P_PID, child, &ended, WEXITED | WNOHANG | WNOWAIT);
        }
        EXPECT(finish(child).status == 128 + signal && finished_steps(dir("never")).empty());
    }
    start_test("a signal during validation or a sample is obeyed soon, and saved");
    struct Work {
        const char *name, *flags;
    };
    for (const Work& work :
         {Work{"validation", "-v 1 -m -1 -j dev/data/shakespeare_val.bin"}, {"sample", "-v 0 -s 1 -g 1000000"}}) {
        pid_t child = start_anew(tiny(work.flags + big + "-t 16 -b 1 -x 1000000 " + in(work.name)));
        if (contains(work.name, "sample")) EXPECT(appears(folder + "/out", "generating"));
        else EXPECT(appears(folder + "/out", "data: "));
        kill(child, SIGTERM);
        const Outcome r = finish(child);
        EXPECT(r.status == 128 + SIGTERM && contains(r.out, "stopped at step ") &&
               contains(r.err, "once more to stop at once"));
        EXPECT(!contains(r.out, "val loss"));
        if (!contains(r.out, "stopped at step ")) printf("    %s: %s %s\n", work.name, r.out.c_str(), r.err.c_str());
    }
    start_test("a run that nohup has started outlives its terminal");
    pid_t deaf = start_anew("nohup " + tiny(endless + in("nohup")));
    EXPECT(appears(folder + "/out", "step    3/"));
    kill(deaf, SIGHUP);
    usleep(200000);
    kill(deaf, SIGTERM);
    EXPECT(finish(deaf).status == 128 + SIGTERM);
    start_test("mpirun has stopped reading what the run prints: SIGTERM still saves, and main.log has every step");
    EXPECT(mkfifo(dir("fifo").c_str(), 0600) == 0);
    const int reader = open(dir("fifo").c_str(), O_RDONLY | O_NONBLOCK);
    const std::string as_by_mpirun = "exec env OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 " + SOON;
    pid_t unread = start_anew("sh -c '" + as_by_mpirun + CPU + " -i " + dir("train_0.bin") +
                              " -e L1C8H1V256T16 -b 1 -t 16 -v 0 -s 0 --threads 1 -x 100000000 " + in("unread") +
                              " > " + dir("fifo") + "'");
    EXPECT(appears(dir("unread/main.log"), "s:3 trl"));
    for (size_t before = 1, now = 0; now != before; now = read_whole(dir("unread/main.log")).size())
        before = now, usleep(500000);  // until the pipe is full, and the run waits
    kill(unread, SIGTERM);
    EXPECT(finish(unread).status == 128 + SIGTERM);
    close(reader);
    const std::vector<int64_t> kept = finished_steps(dir("unread"));
    EXPECT(kept.size() == 1 && contains(read_whole(dir("unread/main.log")), format("s:%d trl", kept[0] - 1)));
    start_test("without -o it is said that nothing is kept");
    pid_t child = start_anew(tiny("-x 1000000"));
    EXPECT(appears(folder + "/out", "step    3/"));
    kill(child, SIGINT);
    const Outcome r = finish(child);
    EXPECT(r.status == 130 && contains(r.err, "nothing is kept without -o") &&
           contains(r.out, "nothing is kept: there was no -o"));
}

static void quickstart() {
    const std::string here = dir("quick");
    run("sh -c 'mkdir -p " + here + "/build && ln -s $PWD/dev $PWD/train_gpt2_cpu $PWD/tokenize " + here +
        " && ln -s $PWD/scripts/quickstart.sh " + here + "/start'");
    write_whole(here + "/build/unigram", "#!/bin/sh\necho 6.4 3.2\n");
    run("chmod +x " + here + "/build/unigram");
    for (int signal : {SIGINT, SIGTERM, SIGUSR1}) {
        start_test(format("quickstart and signal %d: saved, no summary of an unfinished run, its exit status", signal));
        pid_t child = start_anew("sh -c 'cd " + here + " && exec ./start'");
        EXPECT(appears(folder + "/out", "step "));
        kill(child, signal);
        const Outcome r = finish(child);
        EXPECT(r.status == (signal == SIGUSR1 ? 0 : 128 + signal) && !contains(r.out, "Validation loss of"));
        EXPECT(contains(r.out, "to go on: ./train_gpt2_cpu -o log_quickstart -y 1"));
    }
}

static void lost_output() {
    for (const char* to : {"/dev/full", "&-"}) {
        start_test(format("stdout to %s: training and checkpoints safe, a sentence at the end, exit 1", to));
        const std::string name = format("lost%d", strlen(to)), command = tiny("-x 3 -v 1 -m 1 " + in(name));
        const Outcome r = run("sh -c \"exec " + command + " >" + to + "\"");
        StateHeader header;
        EXPECT(refused(r, 1, "stdout could not be written") && newest_checkpoint(dir(name), header) == 3);
        EXPECT(passed(run(tiny("-x 3 -v 1 -m 1 --overwrite 1 " + in(name)))));
        EXPECT(refused(run("sh -c \"exec " + CPU + " --plan >" + to + "\""), 1, "stdout"));
    }
    start_test("a reader of stdout that goes away does not take the run with it");
    run("sh -c \"" + tiny("-x 50 " + in("pipe")) + " | true\"");
    StateHeader header;
    EXPECT(newest_checkpoint(dir("pipe"), header) == 50);
    start_test("all three standard streams closed: files hold what belongs in them");
    run("sh -c \"exec " + tiny("-x 3 -v 1 -m 1 " + in("closed")) + " <&- >&- 2>&-\"");
    EXPECT(newest_checkpoint(dir("closed"), header) == 3 && same_files(dir("closed/main.log"), dir("lost2/main.log")));
}

static void going_on() {
    const std::string again = SOON + CPU + " -y 1 ";
    start_test("-o DIR -y 1 keeps the tokens of a step if B and the processes allow it, and says so if they do not");
    EXPECT(passed(run(tiny("-x 2 " + in("batch")))));
    const Outcome halved = run(again + "-b 1 -x 4 " + in("batch")), other = run(again + "-b 3 -x 6 " + in("batch"));
    EXPECT(passed(halved) && contains(halved.out, "of 32 tokens in 2 micro-steps") && halved.err.empty());
    EXPECT(passed(other) && contains(other.out, "of 48 tokens in 1 micro-step") && contains(other.err, "48"));
    start_test("a run goes on without the run that its first weights came from");
    EXPECT(passed(run(CPU + " -i '" + folder + "/train_*.bin' -e " + dir("batch") +
                      " -b 2 -t 16 -v 0 -s 0 --threads 1 "
                      "-x 2 " +
                      in("child"))));
    for (int64_t step : finished_steps(dir("batch"))) write_whole(model_path(dir("batch"), step), "damaged");
    EXPECT(passed(run(again + "-x 3 " + in("child"))));
    start_test("what -y 1 does not find is said: run.json, a checkpoint, the end of one");
    unlink((dir("child") + "/run.json").c_str());
    EXPECT(contains(run(tiny("-x 4 -y 1 " + in("child"))).err, "run.json is not there"));
    EXPECT(contains(run(tiny("-x 1 -y 1 " + in("new"))).out, "a new run begins"));
    unlink(done_path(dir("new"), 1).c_str());
    EXPECT(contains(run(tiny("-x 1 -y 1 " + in("new"))).err, "DONE_00000001 is not there"));
    start_test("-y 1 with other validation data says which; a copy of it, and none, are nothing to speak of");
    const std::string other_val = dir("other_val.bin"), copy = dir("copy_val.bin");
    run("cp " + dir("val.bin") + " " + copy);
    std::string tokens = read_whole(copy);
    tokens[tokens.size() / 2] ^= 1;
    write_whole(other_val, tokens);
    EXPECT(passed(run(tiny("-x 1 -v 1 " + in("judged")))));
    const Outcome same = run(again + "-x 2 -j " + copy + " " + in("judged"));
    EXPECT(passed(same) && same.err.empty());
    const Outcome judged = run(again + "-x 3 -j " + other_val + " " + in("judged"));
    EXPECT(passed(judged) && one_line(judged.err) && contains(judged.err, "-j " + other_val) &&
           contains(judged.err, copy));
    const Outcome since = run(again + "-x 4 " + in("judged")), none = run(again + "-x 5 -v 0 " + in("judged"));
    EXPECT(passed(since) && since.err.empty() && passed(none) && none.err.empty());
    start_test("a folder whose name is not UTF-8: the run goes on there");
    EXPECT(passed(run(tiny("-x 1 " + in("\xff\xfe")))) && passed(run(tiny("-x 2 -y 1 " + in("\xff\xfe")))));
    start_test("a folder that a pattern names as it is stands for itself alone");
    for (const char* name : {"d1", "d[1]"}) {
        EXPECT(mkdir(dir(name).c_str(), 0777) == 0);
        write_whole(dir(name) + "/t.bin", read_whole(dir("val.bin")));
    }
    EXPECT(contains(run(tiny("-x 1 -i '" + dir("d[1]/*.bin") + "'")).out, "data: 1 shard,"));
    start_test("a main.log that cannot be written: training ends whole, is saved, and exits 1");
    const Outcome cut = run("sh -c \"ulimit -f 600; exec " + tiny("-x 8000 " + in("cut")) + " > /dev/null\"");
    EXPECT(cut.status == 1 && contains(cut.err, "main.log") && contains(cut.err, "could not be written"));
    EXPECT(finished_steps(dir("cut")) == std::vector<int64_t>{8000});
}

// What a run of 20 steps is told about its rates and warmups.
static std::vector<std::string> rates_of(const std::string& flags, int64_t steps = 20) {
    std::vector<std::string> words = {CPU};
    for (size_t at = 0, end; at < flags.size(); at = end + 1) {
        end = std::min(flags.find(' ', at), flags.size());
        words.push_back(flags.substr(at, end - at));
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(&word[0]);
    return advice_on_rates(parse_options((int)argv.size(), argv.data()), steps);
}
static bool advises(const std::string& flags, const std::string& part) {
    const std::vector<std::string> advice = rates_of(flags);
    const bool good = advice.size() == 1 && contains(advice[0], part);
    for (const std::string& sentence : advice)
        if (!good) printf("    %s: %s\n", flags.c_str(), sentence.c_str());
    return good;
}
static void rates() {
    start_test("a schedule that -q 1 keeps flat, and a -q without effect, are said; nothing else is");
    for (const char* falling : {"linear", "cosine", "wsd", "exponential", "step"}) {
        const std::string k = format("-k %s", falling);
        EXPECT(advises(k, k + " ends at -q times the rate") && advises(k + " -l 1e-3", "stays at 0.001; -q 0.1"));
        EXPECT(rates_of(k + " -q 0.1").empty() && rates_of(k + " -q 1").empty() && rates_of(k, 0).empty());
    }
    EXPECT(advises("-k linear", "-q 0 to zero") && !contains(rates_of("-k step")[0], "-q 0 to"));
    for (const char* other : {"constant", "inverse-sqrt"}) {
        const std::string k = format("-k %s", other);
        EXPECT(rates_of(k).empty() && advises(k + " -q 0.1", "-q 0.1 has no effect with " + k));
    }
    EXPECT(rates_of("").empty() && rates_of("-q 0.1").empty());
    start_test("a warmup longer than the run is said");
    for (const char* flag : {"-u", "--seq-warmup", "--batch-warmup"}) {
        EXPECT(advises(format("%s 21", flag), format("%s 21 is longer than the run, 20 steps", flag)));
        EXPECT(rates_of(format("%s 20", flag)).empty() && rates_of(format("%s 21", flag), 0).empty());
    }
    start_test("the warnings reach stderr, one line each");
    const Outcome flat = run(tiny("-k linear -x 2 -u 3"));
    EXPECT(passed(flat) && std::count(flat.err.begin(), flat.err.end(), '\n') == 2);
    for (const char* part : {"warning: -k linear ends", "warning: -u 3 is longer"}) EXPECT(contains(flat.err, part));
    EXPECT(run(tiny("-k linear -q 0 -x 2 -u 2")).err.empty());
    start_test("-w 0 in fp32, where it has no effect, is said");
    const Outcome fp32 = run(tiny("-x 1 -w 0"));
    EXPECT(passed(fp32) && one_line(fp32.err) && contains(fp32.err, "warning: -w 0 has no effect in fp32"));
    EXPECT(run(tiny("-x 1 -w 0 --precision bf16")).err.empty() && run(tiny("-x 1 -w 1")).err.empty());
}

static void longer() {
    start_test(
        "-y 1 with more steps than the run was to have: the rate that rises is said, with the last and the first");
    const std::string again = SOON + CPU + " -y 1 ", falling = "-l 1e-3 -q 0.1 -u 2 -x 10 ";
    EXPECT(passed(run(tiny(falling + in("longer")))));
    const Outcome r = run(again + "-x 20 " + in("longer"));
    EXPECT(passed(r) && one_line(r.err));
    double last = 0, next = 0;
    const size_t at = r.err.find("rises from ");
    EXPECT(at != r.err.npos && sscanf(r.err.c_str() + at, "rises from %lf in step 10 to %lf", &last, &next) == 2);
    const std::string log = read_whole(dir("longer/main.log"));
    EXPECT(contains(log, format("lr:%f", last)) && contains(log, format("s:10 trl:")) &&
           contains(r.out, format("lr %.2e", next)) && next > 4 * last);
    EXPECT(contains(r.err, "10 before and 20 now; -k constant -l"));
    start_test("another -l is blamed where it is what makes the rate rise");
    EXPECT(passed(run(tiny("-x 3 -l 1e-3 " + in("other-l")))));
    const Outcome raised = run(again + "-x 5 -l 3e-3 " + in("other-l"));
    EXPECT(passed(raised) && contains(raised.err, "in the next: -l is 0.003 now and was 0.001\n"));
    start_test("what nobody has chosen is not among the settings of a run that goes on");
    for (const char* name : {"| seq-len", "| total-batch-size", "| beta1", "| eps", "| optimizer"})
        EXPECT(!contains(raised.out, name));
    EXPECT(contains(raised.out, "| learning-rate        | 0.003\n") &&
           contains(raised.out, "| max-steps            | 5\n"));
    start_test(
        "an optimizer has a rate of its own, which the settings, run.json and a resumed run have, unless -l is given");
    for (const OptimizerInfo& o : OPTIMIZERS) {
        const std::string out = in(std::string("own-") + o.name);
        const Outcome own = run(tiny(format("-x 1 --optimizer %s ", o.name) + out));
        EXPECT(passed(own) && contains(own.out, format("| lr %.2e |", o.rate).substr(1)));
        EXPECT(find_optimizer(o.name) == ADAMW || contains(own.out, format("| learning-rate        | %g\n", o.rate)));
        EXPECT(contains(run(again + "-x 2 " + out).out, format(" lr %.2e ", o.rate)));
    }
    const Outcome lower = run(tiny("-x 1 --optimizer lion -l 1e-5 " + in("own-lower")));
    EXPECT(passed(lower) && contains(lower.out, " lr 1.00e-05 "));
    EXPECT(contains(run("./train_gpt2_cpu --help").out, "[3e-4; adam: 0.001, sgd: 0.3,"));
    start_test("a default schedule that never lowers the rate says so, once");
    EXPECT(contains(lower.out, "learning rate: 1e-05 to the end, as -k cosine ends at -q times the rate"));
    EXPECT(!contains(run(tiny("-x 1 -q 0.1 " + in("falls"))).out, "to the end"));
    start_test(
        "nothing is said where the length is the same, or the schedule does not depend on it, or the rate is the last");
    remove_checkpoint(dir("longer"), 20);
    EXPECT(run(again + in("longer")).err.empty());
    const Outcome kept = run(again + "-x 30 -k constant -l 1e-4 " + in("longer"));
    EXPECT(passed(kept) && kept.err.empty());
    EXPECT(passed(run(tiny("-x 2 -k inverse-sqrt " + in("unending")))));
    EXPECT(run(again + "-x 4 " + in("unending")).err.empty());
    start_test("the lengths that --epochs give are compared, too");
    EXPECT(passed(run(tiny("-q 0.1 -d 320 --epochs 1 " + in("epochs")))));
    EXPECT(contains(run(again + "--epochs 2 " + in("epochs")).err, "9 before and 18 now"));
    start_test("-y 1 of a run that is beyond its -x says so");
    EXPECT(contains(run(again + "-x 6 " + in("longer")).out, "already at step 30, beyond the last one asked for, 6\n"));
    EXPECT(contains(run(again + "-x 30 " + in("longer")).out, "already at step 30 of 30\n"));
    start_test("-y 1 with another optimizer: refused, with the way to begin from the weights, which goes");
    const Outcome other = run(again + "-x 40 --optimizer lion " + in("longer"));
    EXPECT(refused(other, 2, "whose state is that of adamw") && contains(other.err, "--overwrite 1"));
    EXPECT(contains(other.err, "-e " + dir("longer") + " -o ANOTHER"));
    EXPECT(passed(run(CPU + " -i '" + folder + "/train_*.bin' -e " + dir("longer") +
                      " --optimizer lion -b 2 -t 16 -v 0 -s 0 -x 1 " + in("ANOTHER"))));
}

static void stopped() {
    start_test("a run that Ctrl-C, SIGUSR1 or --max-minutes stops validates, samples and sums up once it has saved");
    const std::string endless = tiny("-x 1000000 -v 1000000 -s 1000000 -g 4 -m 1 --tokenizer " + dir("none") + " ");
    for (int signal : {SIGINT, SIGUSR1, SIGTERM}) {
        const std::string name = format("stopped%d", signal);
        pid_t child = start_anew(endless + in(name));
        EXPECT(appears(folder + "/out", "step    3/"));
        kill(child, signal);
        const Outcome r = finish(child);
        const size_t end = std::min(r.out.size(), r.out.find("\nstopped at step "));
        EXPECT(r.status == (signal == SIGUSR1 ? 0 : 128 + signal) && end < r.out.size());
        const bool waited_for = signal != SIGTERM;
        EXPECT(contains(r.out.substr(end), "\nval loss ") == waited_for);
        EXPECT(contains(r.out.substr(end), "\ntrained ") == waited_for);
        // what a resumed run would validate again is not recorded
        EXPECT(!contains(read_whole(dir(name + "/main.log")).substr(6), "tel:"));
    }
    const Outcome late = run(endless + "--max-minutes 0.01 " + in("late"));
    const size_t end = std::min(late.out.size(), late.out.find("\nstopped at step "));
    EXPECT(passed(late) && contains(late.out.substr(end), "\nval loss "));
    start_test("a second signal ends what a stopped run still does, and what it has saved is whole");
    pid_t child = start_anew(tiny("-x 1000000 -s 1000000 -g 1000000 " + in("impatient")));
    EXPECT(appears(folder + "/out", "step    3/"));
    kill(child, SIGINT);
    EXPECT(appears(folder + "/out", "stopped at step "));
    usleep(400000);  // within 300 ms it counts as the same signal
    kill(child, SIGINT);
    EXPECT(finish(child).status == 130 && finished_steps(dir("impatient")).size() == 1);
}

static void patience() {
    start_test("--patience ends a run whose validation loss no longer falls, resumed or not, with status 0");
    const std::string rising = "-x 100 -l 1 -v 2 -m 1 -j '" + dir("val.bin") + "' ";
    const Outcome r = run(tiny(rising + "--patience 3 " + in("patience")));
    EXPECT(passed(r) && contains(r.out, "--patience 3: none of the last 3 validations was better than"));
    EXPECT(contains(r.out, "stopped at step ") && !contains(r.out, "step  100/100"));
    const std::string evals = read_whole(dir("patience/evals.jsonl"));
    EXPECT(passed(run(tiny(rising + "--patience 3 -y 1 " + in("patience")))));
    EXPECT(evals == read_whole(dir("patience/evals.jsonl")));
    const Outcome patient = run(tiny(rising + "--patience 4 -y 1 " + in("patience")));
    EXPECT(passed(patient) && contains(patient.out, "none of the last 4"));
    EXPECT(read_whole(dir("patience/evals.jsonl")).rfind(evals, 0) == 0);
    start_test("--patience does not end a run whose loss falls, and is refused where nothing is validated");
    // the windows that are trained again and again are those that validate
    const std::string falling = "-x 24 -l 3e-3 -a 1 --shuffle 0 -d 64 -v 4 -m 1 --patience 1 -j " + dir("train_0.bin");
    EXPECT(contains(run(tiny(falling)).out, "step   24/24"));
    EXPECT(refused(run(tiny("-x 2 -v 0 --patience 2 ")), 2, "--patience 2"));
}

static void config() {
    start_test("--config takes the flags of another run, but not its folder; those of the command line come first");
    const std::string flags = "-d 64 -l 3e-3 -q 0.1 -u 3 -x 6 ";
    EXPECT(passed(run(tiny(flags + in("model-run")))));
    const std::string config = SOON + CPU + " --config " + dir("model-run/run.json") + " ";
    EXPECT(passed(run(config + in("copy"))) && same_files(model_path(dir("model-run"), 6), model_path(dir("copy"), 6)));
    EXPECT(!contains(read_whole(dir("copy/run.json")), "--config\":"));
    const Outcome longer = run(config + "-x 7 " + in("other"));
    EXPECT(passed(longer) && contains(longer.out, "step    7/7"));
    start_test("--config with -y 1: the flags in -o come first, where there are any");
    EXPECT(contains(run(config + "-y 1 -x 8 " + in("other")).out, "step    8/8"));
    EXPECT(contains(run(config + "-y 1 " + in("fresh")).out, "step    6/6"));
    start_test("--config with a file that is not there, or is no run.json: one sentence");
    EXPECT(refused(run(SOON + CPU + " --config " + dir("gone.json")), 1, "gone.json"));
    write_whole(dir("no.json"), "{\"flags\": {\"--batch-size\": \"x\"}}");
    EXPECT(refused(run(SOON + CPU + " --config " + dir("no.json")), 1, "--batch-size x is of another kind"));
}

int main() {
    make_test_folder();
    stopped();
    patience();
    config();
    folders();
    rates();
    longer();
    run_json();
    going_on();
    sizes();
    signals();
    quickstart();
    lost_output();
    return report_and_clean();
}
