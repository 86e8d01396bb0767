// Checkpoints that are damaged, half-removed, replaced while in use, in folders with odd names;
// disks that fail at every call, and runs that are killed at every call. A run either goes on to
// the same bits, or says why not and removes nothing.
#include <sys/stat.h>
#include <csignal>
#include <map>
#include "dev/test/run_program.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/checkpoint/earlier_run.h"

static std::string tiny(const std::string& more) {
    return tiny_run("./train_gpt2_cpu", "-b 1 -k constant --threads 1 " + more);
}
static const std::string brief = "timeout -s KILL 20 ";  // what comes after it must end by itself
static std::string weights(const std::string& name, int step) { return model_path(dir(name), step); }

static std::map<std::string, std::string> contents(const std::string& name) {
    std::map<std::string, std::string> files;
    for (const std::string& file : list_folder(dir(name)))  // run.json has the command line
        if (file != "run.json" && file != "run.lock" && file_exists(dir(name) + "/" + file))
            files[file] = read_whole(dir(name) + "/" + file);
    if (files.count("metrics.csv")) files["metrics.csv"] = unmeasured_metrics(dir(name) + "/metrics.csv");
    return files;
}
static std::vector<int64_t> steps_in(const std::string& name) { return finished_steps(dir(name)); }
static void flip_bit(const std::string& path) {
    std::string bytes = read_whole(path);
    bytes[bytes.size() / 2] ^= 1;
    write_whole(path, bytes);
}
// A copy of a finished run, in a fresh folder.
static void copy_run(const std::string& from, const std::string& to) {
    run("sh -c 'rm -rf " + dir(to) + " && cp -r " + dir(from) + " " + dir(to) + "'");
}

static void unusable() {
    EXPECT(run(tiny("-x 5 -o " + dir("five"))).status == 0);
    struct Damage {
        const char* what;
        void (*harm)();
    };
    for (const Damage& damage : {Damage{"its model damaged", [] { flip_bit(weights("hurt", 5)); }},
                                 {"its model missing", [] { unlink(weights("hurt", 5).c_str()); }},
                                 {"its state damaged", [] { flip_bit(state_path(dir("hurt"), 5, 0)); }},
                                 {"its state missing", [] { unlink(state_path(dir("hurt"), 5, 0).c_str()); }},
                                 {"a pipe in its place", [] {
                                      unlink(weights("hurt", 5).c_str());
                                      mkfifo(weights("hurt", 5).c_str(), 0600);
                                  }}})
        for (const char* flags : {"-x 5 ", "-x 10 "}) {
            start_test(format("the only checkpoint, %s: -y 1 %sis refused, nothing changes", damage.what, flags));
            copy_run("five", "hurt");
            damage.harm();
            const auto before = contents("hurt");
            const Outcome r = run(brief + tiny(std::string(flags) + "-y 1 -o " + dir("hurt")));
            EXPECT(r.status == 1 && contains(r.err, "none of the 1 checkpoints") && contains(r.err, "_00000005"));
            EXPECT(r.out.empty() && contents("hurt") == before);
        }
}

static void pruning() {
    EXPECT(run(tiny("-x 20 -n 5 -o " + dir("twenty"))).status == 0);
    start_test("-nk counts whole checkpoints only: a damaged one does not take the place of a good one");
    copy_run("twenty", "nk1");
    flip_bit(weights("nk1", 20));
    EXPECT(run(tiny("-x 18 -n 3 -nk 1 -y 1 -o " + dir("nk1"))).status == 0);
    StateHeader header;
    EXPECT((steps_in("nk1") == std::vector<int64_t>{18, 20}) && checkpoint_problem(dir("nk1"), 18, header).empty());
    EXPECT(run(tiny("-x 20 -n 1 -nk 1 -y 1 -o " + dir("nk1"))).status == 0);
    EXPECT((steps_in("nk1") == std::vector<int64_t>{20}) && checkpoint_problem(dir("nk1"), 20, header).empty());
    start_test("an older one that is damaged does not count either, and is named once");
    copy_run("twenty", "nk2");
    flip_bit(weights("nk2", 15));
    const Outcome r = run(tiny("-x 22 -n 1 -nk 3 -y 1 -o " + dir("nk2")));
    EXPECT((steps_in("nk2") == std::vector<int64_t>{20, 21, 22}) && one_line(r.err) && contains(r.err, "step 15"));
    start_test("-nk holds over many short runs, each of which saves once");
    for (int x = 1; x <= 7; x++) EXPECT(run(tiny(format("-x %d -nk 3 -y 1 -o ", x) + dir("short"))).status == 0);
    EXPECT((steps_in("short") == std::vector<int64_t>{5, 6, 7}));
    start_test("what an interrupted removal left goes with the next one; other model files stay");
    copy_run("twenty", "rest");
    unlink(done_path(dir("rest"), 5).c_str());
    unlink(done_path(dir("rest"), 10).c_str());
    unlink(model_path(dir("rest"), 10).c_str());
    write_whole(model_path(dir("rest"), 7), "the user's own");
    EXPECT(run(tiny("-x 21 -nk 2 -y 1 -o " + dir("rest"))).status == 0);
    std::vector<std::string> left;
    for (const auto& file : contents("rest")) left.push_back(file.first);
    EXPECT((steps_in("rest") == std::vector<int64_t>{20, 21}) && left.size() == 11);
    EXPECT(read_whole(model_path(dir("rest"), 7)) == "the user's own");
}

static void orphans() {
    start_test("a removal that was cut off at the last step is finished by -y 1, though nothing is left to train");
    copy_run("twenty", "cutoff");
    for (int step : {5, 10}) unlink(done_path(dir("cutoff"), step).c_str());
    unlink(weights("cutoff", 10).c_str());
    EXPECT(contains(run(tiny("-x 20 -nk 2 -y 1 -o " + dir("cutoff"))).out, "already at step 20"));
    EXPECT((steps_in("cutoff") == std::vector<int64_t>{15, 20}) && contents("cutoff").size() == 10);
    start_test("--from-step killed before it saved: what is left of later steps goes with the next save");
    copy_run("twenty", "cutoff");
    for (int step : {15, 20}) unlink(done_path(dir("cutoff"), step).c_str());
    EXPECT(run(tiny("-x 17 -n 0 -y 1 -o " + dir("cutoff"))).status == 0);
    EXPECT((steps_in("cutoff") == std::vector<int64_t>{5, 10, 17}) && !file_exists(weights("cutoff", 15)) &&
           !file_exists(weights("cutoff", 20)));
}

static void odd_names() {
    for (const char* name : {"log[1]", "run*", "a[b", "qu?ry", "back\\slash", "[", "a b"}) {
        start_test(std::string("an out dir with characters of patterns resumes and prunes: ") + name);
        const std::string quoted = "'" + dir(name) + "'";
        EXPECT(run(tiny("-x 3 -n 1 -nk 1 -o " + quoted)).status == 0);
        const Outcome r = run(tiny("-x 6 -n 1 -nk 1 -y 1 -o " + quoted));
        EXPECT(r.status == 0 && contains(r.out, "resumed at step 3") && (steps_in(name) == std::vector<int64_t>{6}));
        EXPECT(contents(name).size() <= 8);
    }
    start_test("a folder whose name would match another's does not touch that one's files");
    EXPECT(run(tiny("-x 3 -n 1 -o " + dir("runA"))).status == 0);
    const auto before = contents("runA");
    EXPECT(run(tiny("-x 9 -n 1 -nk 1 -y 1 -o '" + dir("run*") + "'")).status == 0 && contents("runA") == before);
    start_test("only the program's own temporary files are removed");
    run("mkdir -p " + dir("mine"));
    for (const char* name : {"thesis.tmp", "model_1.bin.tmp", "model_00000001.bin.tmp", "state_00000009_00002.bin.tmp"})
        write_whole(dir("mine/") + name, "x");
    EXPECT(run(tiny("-x 1 -o " + dir("mine"))).status == 0);
    EXPECT(file_exists(dir("mine/thesis.tmp")) && file_exists(dir("mine/model_1.bin.tmp")));
    EXPECT(!file_exists(dir("mine/model_00000001.bin.tmp")) && !file_exists(dir("mine/state_00000009_00002.bin.tmp")));
}

static void shards() {
    start_test("-i: a name that exists stands for itself; patterns as before");
    const std::string bytes = read_whole(dir("train_0.bin"));
    run("mkdir -p " + dir("shards/deep"));
    write_whole(dir("shards/d[1].bin"), bytes);
    write_whole(dir("shards/d1.bin"), bytes.substr(0, 100));  // no shard at all
    EXPECT(run(tiny("-x 1 -i '" + dir("shards/d[1].bin") + "'")).status == 0);
    write_whole(dir("shards/deep/a.bin"), bytes);
    write_whole(dir("shards/deep/b.bin"), bytes);
    run("mkdir -p " + dir("shards/deep/c.bin"));
    const std::vector<std::string> both = {dir("shards/deep/a.bin"), dir("shards/deep/b.bin")};
    EXPECT(glob_files(folder + "/sh*s/d??p/[a-c].bin") == both && glob_files(dir("shards/*.txt")).empty());
    EXPECT(glob_files(dir("nowhere/*.bin")).empty() && glob_files(dir("shards/d1.bin/*")).empty());
    start_test("-i: a link that leads nowhere, and a pipe, are named, not dropped");
    EXPECT(symlink("gone.bin", dir("shards/deep/link.bin").c_str()) == 0);
    EXPECT(refused(run(tiny("-x 1 -i '" + dir("shards/deep/*.bin") + "'")), 1, "link.bin"));
    unlink(dir("shards/deep/link.bin").c_str());
    EXPECT(mkfifo(dir("shards/deep/pipe.bin").c_str(), 0600) == 0);
    EXPECT(refused(run(brief + tiny("-x 1 -i '" + dir("shards/deep/*.bin") + "'")), 1, "pipe.bin is not a regular"));
}

static void pipes() {
    start_test("a pipe in the place of any file is refused at once");
    EXPECT(mkfifo(dir("pipe.bin").c_str(), 0600) == 0);
    const std::string pipe = dir("pipe.bin");
    for (const std::string& flags : {"-i " + pipe, "-j " + pipe + " -v 1", "-e " + pipe, "-e " + pipe + " --plan"})
        EXPECT(refused(run(brief + tiny("-x 1 " + flags)), 1, "pipe.bin is not a regular file"));
    EXPECT(refused(run(brief + tiny("-x 0 --prompt hi --tokenizer " + pipe)), 1, "pipe.bin is not a regular file"));
    EXPECT(refused(run(brief + "./tokenize --ids --tokenizer " + pipe), 1, "pipe.bin is not a regular file"));
    EXPECT(refused(run(brief + "./tokenize " + pipe + " -o " + dir("never")), 1, "pipe.bin is not a regular file"));
    run("mkdir -p " + dir("piped"));
    EXPECT(mkfifo(dir("piped/main.log").c_str(), 0600) == 0);
    EXPECT(run(brief + tiny("-x 1 -y 1 -o " + dir("piped"))).status <= 1);
}

static void not_finite() {
    start_test("a model file with a NaN or an infinity is refused with the tensor's name, -x 0 too; --plan reads none");
    const std::string good = read_whole(weights("five", 5));
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        std::string bytes = good;
        memcpy(&bytes[bytes.size() - 4 * (32 + 5 + i)], &bad[i], 4);  // lnfw, before the 32 of lnfb
        write_whole(dir("bad.bin"), bytes);
        for (const char* flags : {"-x 1 ", "-x 0 -v 1 ", "-x 1 --precision bf16 "})
            EXPECT(refused(run(tiny(flags + ("-e " + dir("bad.bin")))), 1, "bad.bin is damaged: lnfw has values"));
        EXPECT(run(tiny("-x 1 --plan -e " + dir("bad.bin"))).status == 0);
    }
    start_test("weights that are not finite are not saved: exit 1 with the tensor's name, the checkpoint before stays");
    EXPECT(run(tiny("-x 1 -o " + dir("inf"))).status == 0);
    const auto before = contents("inf");
    const Outcome r = run(tiny("-x 2 -l 3e38 -c 1e5 -y 1 -o " + dir("inf")));
    EXPECT(refused(r, 1, "has values that are not finite") && contains(r.err, "wte"));
    auto after = contents("inf");
    for (const char* file : {"main.log", "metrics.csv"}) after[file] = before.at(file);
    EXPECT(after == before);
}

static void as_used() {
    start_test("AdamW's constants and rates are checked as the fp32 that they are used as");
    const char* refused_flags[] = {
        "--eps 1e-50", "--beta1 0.99999999", "--beta2 0.99999999", "-l 1e39", "-l 1e300",
        "-c 1e39",     "--eps 1e-40"};  // a denormal, which this trainer takes for zero (denormals.h)
    for (const char* flags : refused_flags)
        EXPECT(refused(run(tiny(std::string("-x 1 ") + flags)), 2, std::string(flags).substr(0, strcspn(flags, " "))));
    EXPECT(run(tiny("-x 1 --eps 1e-37 --beta1 0 --beta2 0.9999999 -l 1e-60 -q 1e-60")).status == 0);
}

static void one_run_a_folder() {
    start_test("a second run in the folder of one that is going on is refused; kill -9 frees it");
    const std::string flags = "-n 1000 -nk 1 -o " + dir("busy");
    const pid_t first = start(tiny("-x 100000000 " + flags));
    for (int tries = 0; tries < 400 && steps_in("busy").empty(); tries++) usleep(50000);
    for (const char* way : {"-y 1 ", "-y 0 ", "-y 0 --overwrite 1 "})
        EXPECT(refused(run(tiny("-x 100000000 " + (way + flags))), 2, "is going on now"));
    EXPECT(run(tiny("-x 0 -v 1 -y 1 -o " + dir("busy"))).status == 0);  // looking on is not writing
    kill(first, SIGKILL);
    finish(first);
    const Outcome r = run(tiny(format("-x %d -y 1 ", steps_in("busy").back() + 1) + flags));
    EXPECT(r.status == 0 && contains(r.out, "resumed at step "));
    start_test("run.lock is removed while the run goes on: the run takes it again, a second run is refused");
    const std::string lock = dir("busy/run.lock"), on = tiny("-x 100000000 -y 1 " + flags);
    auto until = [](auto is_so) {
        for (int tries = 0; tries < 400 && !is_so(); tries++) usleep(50000);
        return is_so();
    };
    unlink(dir("out").c_str());  // an earlier run's
    const pid_t robbed = start(on);
    EXPECT(until([&] { return contains(read_whole(dir("out")), "step "); }));
    unlink(lock.c_str());
    EXPECT(until([&] { return file_exists(lock); }));
    const pid_t late = start(brief + on, "late");
    EXPECT(refused(finish(late, "late"), 2, "is going on now"));
    start_test("run.lock is removed while the run is stopped, and another begins: the first leaves the folder to it");
    kill(robbed, SIGSTOP);
    unlink(lock.c_str());
    const pid_t heir = start(on, "heir");
    EXPECT(until([&] { return contains(read_whole(dir("heirout")), "step "); }));
    const auto kept = steps_in("busy");
    kill(robbed, SIGCONT);
    EXPECT(refused(finish(robbed), 1, "another run has begun in"));
    kill(heir, SIGTERM);
    EXPECT(finish(heir, "heir").status == 128 + SIGTERM && steps_in("busy").back() > kept.back());
    start_test("processes whose -o are different folders: no checkpoint that lacks a state is called complete");
    run("mkdir -p " + dir("here") + " " + dir("there") + " " + dir("meet"));
    char* cwd = getcwd(nullptr, 0);
    const std::string program = std::string(cwd) + "/train_gpt2_cpu";
    free(cwd);
    const std::string flags2 = "-b 1 -x 2 -o out --threads 1 -pn 2 -pi fs --comm-timeout 20 -pf ";
    const std::string rank = tiny_run(program, flags2 + dir("meet"));
    const std::string other = "(cd " + dir("there") + " && exec timeout 60 " + rank + " -pr 1 > log 2>&1)";
    const std::string zero = "(cd " + dir("here") + " && exec timeout 60 " + rank + " -pr 0)";
    const Outcome both = run("sh -c \"" + other + " & " + zero + "; status=\\$?; wait; exit \\$status\"");
    EXPECT(refused(both, 1, "state_00000002_00001.bin: -o must be one folder") && steps_in("here/out").empty());
    start_test("--overwrite 1: the earlier run's checkpoints go when the new run has saved one, not before");
    copy_run("twenty", "over");
    unlink(done_path(dir("over"), 15).c_str());  // not complete: goes as well
    write_whole(model_path(dir("over"), 7), "the user's own");
    EXPECT(run(tiny("-x 12 -n 10 -l 3e38 -c 1e5 --overwrite 1 -o " + dir("over"))).status == 1);
    const std::string aside = earlier_run_path(dir("over"));
    EXPECT(file_exists(model_path(aside, 20)) && file_exists(model_path(aside, 5)) && steps_in("over").empty());
    EXPECT(contains(run(tiny("-x 0 -v 1 -e " + dir("over"))).out, "val loss"));
    EXPECT(contains(run(tiny("-x 20 -y 1 -o " + dir("over"))).out, "already at step 20"));
    EXPECT(same_records("over", "twenty") && file_exists(weights("over", 20)) && !name_exists(aside));
    EXPECT(run(tiny("-x 12 -n 10 --overwrite 1 -o " + dir("over"))).status == 0);
    std::vector<std::string> left;
    for (const auto& file : contents("over")) left.push_back(file.first);
    EXPECT((steps_in("over") == std::vector<int64_t>{10, 12}) && left.size() == 11);
    EXPECT(read_whole(model_path(dir("over"), 7)) == "the user's own");
    start_test("a model that cannot be loaded does not cost the earlier run its checkpoints");
    const Outcome bad = run(tiny("-x 9 --overwrite 1 -e " + dir("bad.bin") + " -o " + dir("five")));
    EXPECT(refused(bad, 1, "bad.bin is damaged") && steps_in("five") == std::vector<int64_t>{5});
}

static void changed_data() {
    struct Case {
        const char *what, *flags;
    };
    const std::string good = read_whole(dir("train_0.bin")), live = dir("live.bin");
    for (const Case& c : {Case{"training", "-v 0 -i "}, {"validation", "-v 10 -j "}}) {
        start_test(
            format("a %s shard changes while the run goes on: saved, one sentence, exit 1, and it goes on", c.what));
        const std::string name = format("live_%s", c.what), flags = c.flags + live + " -o " + dir(name);
        write_whole(live, good);
        const pid_t child = start(brief + tiny("-x 100000000 " + flags));
        for (int tries = 0; tries < 400 && !contains(read_whole(dir(name + "/main.log")), "s:20 trl"); tries++)
            usleep(50000);
        FILE* file = fopen(live.c_str(), "r+b");
        fseek(file, good.size() / 2, SEEK_SET);
        fputc(good[good.size() / 2] ^ 1, file);
        fclose(file);
        const Outcome r = finish(child);
        const std::vector<int64_t> steps = steps_in(name);
        EXPECT(refused(r, 1, "live.bin has changed") && steps.size() == 1 && steps[0] > 20);
        EXPECT(!steps.empty() && contains(r.out, format("stopped at step %d\n", steps[0])));
        write_whole(live, good);
        const Outcome on = run(tiny(format("-x %d -y 1 ", (steps.empty() ? 0 : steps[0]) + 1) + flags));
        EXPECT(on.status == 0 && contains(on.out, "resumed at step "));
    }
}

static void last_lines() {
    start_test("killed between the last checkpoint and the last validation: -y 1 writes the line that is missing");
    write_hellaswag(dir("hella.bin"));
    const std::string flags = "-x 5 -v 5 -m 2 -h 1 -s 1000 --hellaswag-data " + dir("hella.bin") + " -o " + dir("last");
    EXPECT(run(tiny(flags)).status == 0);
    const std::string log = read_whole(dir("last/main.log")), evals = read_whole(dir("last/evals.jsonl"));
    const size_t tel = log.find("s:5 tel:"), eval = log.find("s:5 eval:");
    EXPECT(tel < log.size() && eval < log.size());
    for (size_t cut : {tel, tel + 5, eval, eval + 8, log.size() - 1}) {
        write_whole(dir("last/main.log"), log.substr(0, cut));
        const Outcome r = run(tiny(flags + " -y 1"));
        EXPECT(r.status == 0 && contains(r.out, "HellaSwag: ") && read_whole(dir("last/main.log")) == log);
    }
    const size_t sample = evals.find("{\"step\": 5, \"sample\"");
    EXPECT(sample < evals.size());
    for (size_t cut : {sample, sample + 30, evals.size() - 1}) {
        write_whole(dir("last/evals.jsonl"), evals.substr(0, cut));
        EXPECT(run(tiny(flags + " -y 1")).status == 0 && read_whole(dir("last/evals.jsonl")) == evals);
    }
    const Outcome r = run(tiny(flags + " -y 1"));
    EXPECT(r.status == 0 && contains(r.out, "already at step 5") && read_whole(dir("last/main.log")) == log);
}

// ---- with the library that makes calls fail (fail_calls.cpp)

static std::string with_library(const std::string& settings) {
    return "env LD_PRELOAD=" + dir("fail_calls.so") + " " + settings + " ";
}
static bool build_library() {
    const char* compiler = getenv("CXX");
    const std::string build = std::string(compiler ? compiler : "c++") + " -std=c++17 -shared -fPIC -O1 ";
    return run(build + "dev/test/fail_calls.cpp -o " + dir("fail_calls.so") + " -ldl").status == 0 &&
           run(with_library("FAIL_PATH=none") + "true").status == 0;
}

static std::string failing(const std::string& path, int n, const char* how) {
    return with_library(format("FAIL_PATH=%s FAIL_AT=%d FAIL_HOW=%s FAIL_MARK=%s", dir(path), n, how, dir("mark")));
}

// A run resumes at step 3, saves step 4 and prunes, while the n-th file call in its out dir fails;
// for every n.
static void failing_calls() {
    const std::string flags = "-n 1 -nk 2 -l 3e-3 -v 2 -m 1 ";
    EXPECT(run(tiny(flags + "-x 4 -o " + dir("calm4"))).status == 0);
    EXPECT(run(tiny(flags + "-x 5 -o " + dir("calm"))).status == 0);
    EXPECT(run(tiny(flags + "-x 3 -o " + dir("start"))).status == 0);
    for (const char* how : {"EIO", "KILL"}) {
        start_test(std::string(how) + " at any file call of -y 1: no fresh start, nothing lost, the same bits later");
        int failures = 0;
        for (int n = 1, fired = 1; fired; n++) {
            copy_run("start", "end");
            unlink(dir("mark").c_str());
            const Outcome r = run(failing("end", n, how) + tiny(flags + "-x 4 -y 1 -o " + dir("end")));
            fired = file_exists(dir("mark"));
            const bool ended = r.status == 0 || r.status == (*how == 'K' ? 128 + SIGKILL : 1);
            const bool same4 = *how != 'K' || (run(tiny(flags + "-x 4 -y 1 -o " + dir("end"))).status == 0 &&
                                               same_records("end", "calm4"));
            const Outcome on = run(tiny(flags + "-x 5 -y 1 -o " + dir("end")));
            const bool good = ended && !contains(r.out, "step    1/") && same4 && on.status == 0 &&
                              contains(on.out, "resumed at step ") && contents("end") == contents("calm");
            failures += !good;
            if (!good) printf("    call %d: status %d, then %d; %s\n", n, r.status, on.status, r.err.c_str());
        }
        EXPECT(failures == 0);
    }
    start_test("killed at any file call while it saves: no model file is left that a later -nk does not remove");
    for (int n = 1, fired = 1; fired; n++) {
        copy_run("start", "cut");
        unlink(dir("mark").c_str());
        run(failing("cut", n, "KILL") + tiny("-x 4 -y 1 -o " + dir("cut")));
        fired = file_exists(dir("mark"));
        EXPECT(run(tiny("-x 6 -n 6 -nk 1 -y 1 -o " + dir("cut"))).status == 0);
        // model, state, DONE, shards.txt, and three files of records
        if (!EXPECT(contents("cut").size() == 7)) break;
    }
    start_test("a folder of shards that cannot be read, in whatever call: never a run on fewer of them");
    const std::string flags3 = "-x 3 -i '" + dir("shards/deep/[ab].bin") + "'";
    const Outcome whole = run(tiny(flags3));
    for (int n = 1, fired = 1; fired; n++) {
        unlink(dir("mark").c_str());
        const Outcome r = run(failing("shards", n, "EIO") + tiny(flags3));
        fired = file_exists(dir("mark"));
        EXPECT(r.status == 0 ? steps_of(r).losses == steps_of(whole).losses : refused(r, 1, "shards"));
    }
}

// A run is overwritten, while the n-th file call in its out dir is the last; for every n.
static void overwritten() {
    start_test("--overwrite 1 killed at any file call: -y 1 goes on with the earlier run, whole, or with the new one");
    const std::string flags = "-l 3e-3 -v 2 -m 1 ", again = "-x 2 --seed 7 --overwrite 1 " + flags;
    EXPECT(run(tiny("-x 3 -n 1 " + flags + "-o " + dir("first"))).status == 0);
    copy_run("first", "second");
    EXPECT(run(tiny(again + "-o " + dir("second"))).status == 0 && list_folder(dir("second")).size() == 11);
    int earlier = 0, newer = 0;
    for (int n = 1, fired = 1; fired; n++) {
        copy_run("first", "over");
        unlink(dir("mark").c_str());
        run(failing("over", n, "KILL") + tiny(again + "-o " + dir("over")));
        fired = file_exists(dir("mark"));
        const bool same = run(tiny("-v 2 -m 1 -y 1 -o " + dir("over"))).status == 0;
        run("sh -c 'rm -f " + dir("over/*.tmp") + "'");
        earlier += same && contents("over") == contents("first");
        newer += same && contents("over") == contents("second");
        if (!EXPECT(earlier + newer == n)) break;
        EXPECT(!name_exists(earlier_run_path(dir("over"))));
    }
    EXPECT(earlier >= 10 && newer >= 2);
    start_test("a folder of the user's own that has the name of the earlier run's: refused, and left alone");
    copy_run("first", "over");
    run("mkdir " + earlier_run_path(dir("over")));
    write_whole(model_path(earlier_run_path(dir("over")), 1), "the user's own");
    EXPECT(refused(run(tiny(again + "-o " + dir("over"))), 2, "earlier_run is in the way"));
    EXPECT(run(tiny("-x 4 -y 1 -o " + dir("over"))).status == 0);
    EXPECT(read_whole(model_path(earlier_run_path(dir("over")), 1)) == "the user's own");
}

// Another file takes the name of a checkpoint's file after it was verified and before it is loaded.
static void swapped() {
    start_test("a model file that is replaced while it is loaded: what was opened is what is loaded");
    EXPECT(run(tiny("-x 5 -o " + dir("right"))).status == 0);
    EXPECT(run(tiny("-x 1 -e L3C64H2T16V256 -o " + dir("larger"))).status == 0);
    auto validation = [](const Outcome& r) { return r.out.substr(std::min(r.out.find("val loss"), r.out.size())); };
    const std::string right = validation(run(tiny("-x 0 -v 1 -e " + weights("right", 5))));
    auto swap = [&](const std::string& first, const std::string& second) {
        run("cp " + first + " " + dir("first.bin"));
        run("cp " + second + " " + dir("second.bin"));
        return with_library("SWAP_PATH=" + dir("first.bin") + " SWAP_WITH=" + dir("second.bin"));
    };
    const Outcome s = run(swap(weights("right", 5), weights("larger", 1)) + tiny("-x 0 -v 1 -e " + dir("first.bin")));
    EXPECT(s.status == 0 && right.size() > 9 && validation(s) == right);
    start_test("a checkpoint whose model is replaced after it was verified goes on with what was verified");
    copy_run("calm", "end");
    run("cp " + weights("larger", 1) + " " + dir("second.bin"));
    const std::string model = "SWAP_PATH=" + weights("end", 5) + " SWAP_WITH=" + dir("second.bin");
    EXPECT(run(with_library(model) + tiny("-x 9 -l 3e-3 -y 1 -o " + dir("end"))).status == 0);
    copy_run("calm", "whole");
    EXPECT(run(tiny("-x 9 -l 3e-3 -y 1 -o " + dir("whole"))).status == 0);
    EXPECT(same_files(weights("end", 9), weights("whole", 9)));
    start_test("a state file that is replaced after it was verified: exit 1, one sentence");
    for (const std::string& other : {state_path(dir("larger"), 1, 0), state_path(dir("right"), 5, 0)}) {
        copy_run("calm", "end");
        run("cp " + other + " " + dir("second.bin"));
        const std::string state = "SWAP_PATH=" + state_path(dir("end"), 5, 0) + " SWAP_WITH=" + dir("second.bin");
        const Outcome r = run(with_library(state) + tiny("-x 9 -y 1 -o " + dir("end")));
        EXPECT(refused(r, 1, "state_00000005_00000.bin has changed"));
    }
}

// test_checkpoints [files] [calls]: what lies in folders; file calls that fail, or at which the run
// is killed. Both if none is named.
int main(int argc, char** argv) {
    make_test_folder();
    if (wants_group(argc, argv, "files"))
        unusable(), pruning(), orphans(), odd_names(), shards(), pipes(), not_finite(), as_used(), one_run_a_folder(),
            changed_data(), last_lines();
    if (!wants_group(argc, argv, "calls")) return report_and_clean();
    if (build_library()) failing_calls(), overwritten(), swapped();
    else skip_test("file calls that fail (a C++ compiler as c++ or CXX, and LD_PRELOAD)");
    return report_and_clean();
}
