// What the trainer prints: settings, step lines, progress on a terminal and elsewhere, samples;
// --quiet.
#include <fcntl.h>
#include <poll.h>
#include <regex>
#include "dev/test/run_program.h"
#include "llmc/plan/advice.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/cpu/features.h"
#include "llmc/base/logger.h"
#include "llmc/run/sampler.h"

static std::string tiny(const std::string& more) { return tiny_run("./train_gpt2_cpu", more); }
static size_t count_of(const std::string& text, const std::string& part) {
    size_t n = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) n++;
    return n;
}

// What a command writes to a terminal, stdout and stderr together, and how it ends.
struct Screen {
    int status;
    std::string written;
};
static Screen on_terminal(const std::string& command, int columns = 0) {
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) return {-1, ""};
    struct winsize size {};
    size.ws_col = (unsigned short)columns, size.ws_row = 24;
    ioctl(terminal, TIOCSWINSZ, &size);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const int end = open(ptsname(terminal), O_RDWR);
        dup2(end, 1), dup2(end, 2);
        execl("/bin/sh", "sh", "-c", ("exec " + command + " < /dev/null").c_str(), (char*)nullptr);
        _exit(127);
    }
    Screen screen{-1, ""};
    char buffer[4096];
    for (bool ended = false; !ended;) {
        struct pollfd p {
            terminal, POLLIN, 0
        };
        if (poll(&p, 1, 100) <= 0) {
            ended = waitpid(child, &screen.status, WNOHANG) == child;
            continue;
        }
        const ssize_t n = read(terminal, buffer, sizeof(buffer));
        if (n > 0) screen.written.append(buffer, n);
        else ended = waitpid(child, &screen.status, 0) == child;  // the child has closed its end
    }
    close(terminal);
    screen.status = WIFEXITED(screen.status) ? WEXITSTATUS(screen.status) : 128 + WTERMSIG(screen.status);
    return screen;
}
// What remains visible on a terminal: \r\033[K clears the current line.
static std::string seen(const std::string& written) {
    std::string text, line;
    for (size_t at = 0; at < written.size(); at++) {
        if (written.compare(at, 4, "\r\033[K") == 0) line.clear(), at += 3;
        else if (written[at] == '\n') text += line + '\n', line.clear();
        else if (written[at] != '\r') line += written[at];
    }
    return text + line;
}

static void settings() {
    start_test("settings: those that differ from the default, with the values in force");
    const Outcome r = run(tiny("-x 1 -b 3 --threads 2 -l 0.0003"));
    EXPECT(r.status == 0 && contains(r.out, "| batch-size           | 3\n"));
    EXPECT(contains(r.out, "| max-steps            | 1\n"));
    EXPECT(!contains(r.out, "| learning-rate") && !contains(r.out, "| num-processes") && !contains(r.out, "| -1\n"));
    EXPECT(count_of("\n" + r.out, "\n| ") == 9);  // -i -j -e -b -t -v -s --threads -x
    EXPECT(!contains(run(tiny("-x 1 --threads 2")).out, "| total-batch-size"));
    EXPECT(contains(run(tiny("-x 1 -d 64")).out, "| total-batch-size     | 64\n"));
    start_test("--quiet 1: step lines, evaluations and samples only");
    const Outcome quiet = run(tiny("-x 2 -v 1 -m 1 -s 2 -g 3 --quiet 1 -o " + dir("quiet")));
    const std::regex only(
        "val loss .*\nstep    1/2 \\| .*\nval loss .*\nstep    2/2 \\| .*\nval loss .*\n"
        "generating:\n---\n[^]*\n---\n");
    EXPECT(quiet.status == 0 && std::regex_match(quiet.out, only) && quiet.err.empty());
    start_test("-x 0 with a prompt prints one line on the model and the text; with --quiet 1 the text alone");
    const std::string generate = "./train_gpt2_cpu -e L1C32H2T24 -x 0 -g 10 --prompt 'To be' ";
    const Outcome text = run(generate), bare = run(generate + "--quiet 1");
    EXPECT(text.status == 0 && text.out.compare(0, 7, "model: ") == 0 && contains(text.out, "\n" + bare.out));
    EXPECT(bare.status == 0 && bare.out.compare(0, 5, "To be") == 0);
    EXPECT(bare.out.back() == '\n' && !contains(bare.out, "---"));
    EXPECT(count_of(text.out.substr(0, text.out.find("To be")), "\n") == 1);
    start_test("--help all names what is new and what -x 0 does");
    const std::string help = run("./train_gpt2_cpu --help all").out;
    EXPECT(contains(help, "--quiet") && contains(help, "greedy") && contains(help, "with --prompt only generate"));
}

static void first_validation() {
    start_test("untrained weights are validated on the same windows as trained ones and as those of a file");
    auto losses = [](const std::string& flags) {
        std::string all;
        const Outcome r = run(tiny(flags));
        for (size_t at = 0; (at = r.out.find("val loss ", at)) != r.out.npos; at++) all += r.out.substr(at + 9, 9);
        return all;
    };
    const std::string standard = losses("-x 1 -v 1 -o " + dir("validated")), one = losses("-x 1 -v 1 -m 1");
    const std::string from_file = " -x 0 -v 1 -e " + dir("validated/model_00000001.bin");
    EXPECT(standard.size() == 18 && standard == losses("-x 1 -v 1 -m 20") && standard == losses("-x 1 -v 1 -l 3e-4"));
    EXPECT(one.size() == 18 && one.substr(0, 9) != standard.substr(0, 9) && one.substr(9) != standard.substr(9));
    EXPECT(losses("-x 0 -v 1") == standard.substr(0, 9) && losses(from_file) == standard.substr(9));
}

static void step_lines() {
    start_test("a step line has no z-score until there is a number, then one for loss and norm");
    const Outcome r = run(tiny("-x 130"));
    const std::regex without("step +[0-9]+/130 \\| loss [0-9.]+ \\| norm [0-9.]+ \\| lr .*\n");
    const std::string z = "\\([+-][0-9.]+z\\)\\|";
    const std::regex with("step +[0-9]+/130 \\| loss [0-9.]+ " + z + " norm [0-9.]+ " + z + " lr .*\n");
    auto matches = [&](const std::regex& e) {
        return std::distance(std::sregex_iterator(r.out.begin(), r.out.end(), e), std::sregex_iterator());
    };
    EXPECT(r.status == 0 && matches(without) == OUTLIER_WINDOW && matches(with) == 130 - OUTLIER_WINDOW);
    EXPECT(!contains(r.out, "nan"));
    EXPECT(steps_of(r).losses.size() == 130 && apart(steps_of(r).norms, steps_of(r).norms, 130) == 0);
    start_test("--log-every: step lines of the first, of each so many, of the last; every step is in metrics.csv");
    const Outcome few = run(tiny("-x 8 --log-every 3 -o " + dir("few")));
    const std::string log = read_whole(dir("few/main.log")), all = read_whole(dir("few/metrics.csv"));
    for (int step = 1; step <= 8; step++) {
        const bool due = step == 1 || step % 3 == 0 || step == 8;
        EXPECT(contains(few.out, format("step %4d/8 |", step)) == due &&
               contains(log, format("s:%d trl:", step - 1)) == due && contains(all, format("\n%d,", step - 1)));
    }
    start_test("saved: step, folder, megabytes of all its files");
    const Outcome saved = run(tiny("-e L2C128H2T16V256 -x 4 -n 2 -o " + dir("saved")));
    const int64_t bytes = file_bytes(model_path(dir("saved"), 2)) + file_bytes(state_path(dir("saved"), 2, 0));
    const std::string place = format(" to %s (%d MB, ", dir("saved"), bytes / 1000000);
    EXPECT(bytes > 4000000);
    EXPECT(contains(saved.out, "\nsaved step 2" + place) && contains(saved.out, "\nsaved step 4" + place));
}

// A run of this shape in bf16, on a CPU.
static AdviceInput planned_run(const char* shape, int64_t B, int64_t T, double step_tokens, double steps) {
    Sizes s{};
    if (!parse_descriptor(shape, s.config)) runtime_failure("%s is no shape", shape);
    s.B = B, s.T = T, s.training = true, s.floatX_bytes = 2;
    return {s, steps, step_tokens, true};
}
static bool advises(const AdviceInput& in, const char* part) {
    const std::vector<std::string> advice = advice_on(in);
    return advice.size() == 1 && contains(advice[0], part);
}
static void warnings() {
    start_test("warnings: none for the runs of the manual, the recipes and quickstart");
    for (bool gpu : {false, true})
        for (AdviceInput in :
             {planned_run("L4C192H6T128V4096", 16, 128, 2048, 1400), planned_run("d12", 4, 256, 16384, 2000),
              planned_run("L4C128H4T64V257", 12, 64, 768, 2000), planned_run("d12", 32, 1024, 524288, 19073),
              planned_run("d6", 4, 1024, 4096, 4), planned_run("gpt3:c768", 32, 2048, 524288, 572204),
              planned_run("d48", 16, 1024, 1048576, 32000), planned_run("d6", 4, 256, 4096, 2000)}) {
            in.sizes.gpu = gpu;
            for (const std::string& sentence : advice_on(in)) EXPECT(!printf("    %s\n", sentence.c_str()));
        }
    start_test("warnings: the usual batch is that of DeepSeek's 7B and 67B, to a tenth, trained on 2e12 tokens");
    GPT2Config seven{4096, 0, 0, 30, 32, 4096}, large{4096, 0, 0, 95, 64, 8192};
    EXPECT(std::fabs(usual_step_tokens(seven, 4096, 2e12) / (2304 * 4096) - 1) < 0.1);
    EXPECT(std::fabs(usual_step_tokens(large, 4096, 2e12) / (4608 * 4096) - 1) < 0.1);
    start_test("warnings: one for each costly mistake");
    const AdviceInput good = planned_run("d12", 4, 256, 16384, 2000);
    AdviceInput in = planned_run("L12C744H12", 4, 256, 16384, 2000);
    EXPECT(advice_on(in).empty());  // little is wasted
    EXPECT(advises(planned_run("L12C228H12", 4, 256, 16384, 2000), "228 channels, which take as long as 256"));
    EXPECT(advises(planned_run("d12", 1, 32, 16384, 2000), "-b 1 -t 32: with fewer than 64"));
    EXPECT(advises(planned_run("d12", 4, 64, 256, 100000), "a step of 256 tokens is small"));
    EXPECT(advises(planned_run("d6", 32, 1024, 16777216, 200), "a step of 16777216 tokens is large"));
    in = planned_run("d12", 4, 256, 1792, 2000);
    EXPECT(advice_on(in).empty());
    in.sizes.orthogonalizes = true;  // 280 L C^3 FLOPs, as many as the model has for 2009 tokens
    EXPECT(advises(in, "muon: Newton-Schulz dominates a step of 1792 tokens, with 1.1 times the FLOPs of the model"));
    in.step_tokens = 2048;
    EXPECT(advice_on(in).empty());
    in = good, in.build = "with a sanitizer";
    EXPECT(advises(in, "built with a sanitizer"));
    in = good, in.planned_bytes = 3 * GIB, in.free_bytes = 2 * GIB;
    EXPECT(advises(in, "the run needs 3.0 GiB of memory, and only 2.0 GiB is free"));
    in.allowed_bytes = 1.5 * GIB;
    EXPECT(advises(in, "the run needs 3.0 GiB of memory, and its container or batch job may have 1.5 GiB"));
    in = good, in.unused = unused_vectors(32, 64);
    EXPECT(advises(in, "this CPU has vectors of 64 bytes (AVX-512), and this program was built for 32 (AVX2)"));
    EXPECT(unused_vectors(32, 32).empty() && unused_vectors(64, 32).empty());
    in = planned_run("L12C228H12", 1, 32, 32, 2000), in.new_model = false, in.sizes.training = false;
    EXPECT(advice_on(in).empty());
}

// A folder with files of /proc and /sys, by their paths in it.
static std::string system_files(const std::string& name, const std::map<std::string, std::string>& files) {
    for (const auto& [path, text] : files) {
        run("mkdir -p " + folder_of(dir(name) + path));
        write_whole(dir(name) + path, text);
    }
    return dir(name);
}
static void system_state() {
    start_test("memory: what is available, what control groups of both versions allow, what is swapped");
    const std::string root =
        system_files("v2", {{"/proc/meminfo", "MemTotal:  9 kB\nMemAvailable:     2048 kB\nSwapTotal: 1 kB\n"},
                            {"/proc/self/status", "VmRSS:\t  3 kB\nVmSwap:\t  1024 kB\n"},
                            {"/proc/self/cgroup", "1:name=x:/y\n0::/a/b\n"},
                            {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
                            {"/sys/fs/cgroup/a/memory.max", "4096\n"},
                            {"/sys/fs/cgroup/memory.max", "8192\n"}});
    EXPECT(available_bytes(root) == 2 << 20 && allowed_bytes(root) == 4096);
    system_files("v2", {{"/sys/fs/cgroup/a/b/memory.high", "1000\n"}});
    EXPECT(allowed_bytes(root) == 1000);
    const std::string v1 = system_files("v1", {{"/proc/self/cgroup", "4:cpu,memory:/a\n3:cpuset:/b\n"},
                                               {"/sys/fs/cgroup/cpuset/b/memory.limit_in_bytes", "1\n"},
                                               {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n"}});
    EXPECT(allowed_bytes(v1) == 5000 && available_bytes("/nowhere") == INFINITY);
    EXPECT(allowed_bytes("/nowhere") == INFINITY);
    start_test("a run in a container that is too small for it: a warning; in one that is not: none");
    const auto in_container = [&](const char* limit) {
        const std::string files =
            system_files("small", {{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/memory.max", limit}});
        return run("env TEST_SYSTEM_ROOT=" + files + " " + tiny("-x 1"));
    };
    const Outcome small = in_container("1048576\n"), large = in_container("1048576000\n");
    EXPECT(small.status == 0 && contains(small.err, "warning: the run needs ") && one_line(small.err) &&
           contains(small.err, "may have 1.0 MiB (control group)"));
    EXPECT(large.status == 0 && large.err.empty());
    start_test("the line of the device: the CPU, cores, memory, precision, kernels");
    const std::string cpu = "(^|\\n)device: .+ \\(.+\\), ([0-9]+ of )?[0-9]+ cores?, [0-9.]+ [MG]iB: ";
    const std::regex device(cpu + "(fp32|fp32x3|bf16) on [^,]+, 2 threads\n");
    EXPECT(std::regex_search(large.out, device) && contains(large.out, cpu_name()));
    for (const char* precision : {"bf16", "fp32x3"}) {
        const Outcome r = run(tiny(format("-x 1 --precision %s", precision)));
        EXPECT(std::regex_search(r.out, device) && contains(r.out, format(": %s on ", precision)));
    }
}

// The last lines of a run that has trained to its end.
static void summary() {
    const std::string trains =
        "-v 2 -m 1 -l 1e-2 -k constant -a 1 --shuffle 0 -j " + dir("train_0.bin") + " -o " + dir("summed");
    start_test("summary: steps, tokens, the best validation loss with its step, files, the commands to go on with");
    const Outcome first = run(tiny("-x 4 " + trains)), resumed = run(tiny("-x 6 -y 1 " + trains));
    const std::string evals = read_whole(dir("summed/evals.jsonl"));
    double best = INFINITY, loss;
    int best_step = -1, step;
    for (size_t at = 0; (at = evals.find("{\"step\": ", at)) != evals.npos; at++)
        if (sscanf(evals.c_str() + at, "{\"step\": %d, \"val_loss\": %lf", &step, &loss) == 2 && loss < best)
            best = loss, best_step = step;
    const std::string head =
        "\ntrained %s, %s tokens, in 0:[0-9]+ \\([0-9]+ tok/s in the steps\\); best validation loss ";
    const std::regex at_end(format(head.c_str(), "6 steps", "192") + format("%f, at step %d\n", best, best_step));
    EXPECT(best_step > 0 && first.status == 0 && resumed.status == 0 && std::regex_search(resumed.out, at_end));
    EXPECT(std::regex_search(first.out, std::regex(format(head.c_str(), "4 steps", "128"))));
    EXPECT(
        contains(resumed.out, "\nin " + dir("summed") + ": model_00000006.bin, main.log, metrics.csv, evals.jsonl\n"));
    EXPECT(!contains(resumed.out, "to prompt it"));  // no tokenizer for 256 tokens
    const std::string go_on = "to go on: ";
    const size_t at = resumed.out.find(go_on);
    EXPECT(at != resumed.out.npos && resumed.out.back() == '\n');
    const std::string command = at == resumed.out.npos ? "false" : resumed.out.substr(at + go_on.size());
    const Outcome longer = run(command.substr(0, command.find('\n')));
    EXPECT(longer.status == 0 && contains(longer.out, "\ntrained 12 steps, 384 tokens"));
    start_test("summary: the command to prompt the model samples as the run did");
    const Outcome vocabulary =
        run("./train_gpt2_cpu -i dev/data/shakespeare_train.bin -e L1C16H1T16 -b 1 -v 0 -x 1 "
            "-g 3 -s 0 --top-k 5 --temperature 0.8 -o " +
            dir("prompted"));
    const std::string prompt =
        "./train_gpt2_cpu -e " + dir("prompted") + " -x 0 --prompt 'To be' -g 3 --temperature 0.8 --top-k 5";
    EXPECT(contains(vocabulary.out, "\nto prompt it: " + prompt + "\n"));
    EXPECT(run(prompt + " --quiet 1").out.compare(0, 5, "To be") == 0);
    start_test("summary: without -o nothing is kept; none after -x 0, nor with --quiet 1");
    const Outcome unkept = run(tiny("-x 1"));
    EXPECT(contains(unkept.out, "\nnothing is kept: there was no -o") && !contains(unkept.out, "to go on"));
    EXPECT(!contains(run(tiny("-x 0 -v 1")).out, "trained "));
    EXPECT(!contains(run(tiny("-x 1 --quiet 1")).out, "trained "));
}

// What work() prints to a descriptor, by way of a file.
template <class Work>
static std::string captured(int fd, Work work) {
    fflush(nullptr);
    const int kept = dup(fd), file = open(dir("captured").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0666);
    dup2(file, fd);
    work();
    fflush(nullptr);
    dup2(kept, fd);
    close(kept), close(file);
    return read_whole(dir("captured"));
}
static void progress_elsewhere() {
    start_test("where stdout is no terminal: stderr, after 10 s of silence, then every 30 s");
    Logger logger;
    auto after = [&](double seconds, int64_t done) {
        logger.silent_since = now_seconds() - seconds;
        return captured(2, [&] {
            Progress progress(logger, "validation", 100, "windows");
            progress.begin = now_seconds() - 60;
            progress.reach(done);
        });
    };
    EXPECT(after(1, 10).empty());
    EXPECT(after(10.5, 40) == "validation: 0 of 100 windows\n");
    EXPECT(after(15, 40).empty());
    logger.silent_since = now_seconds();
    const std::string line = captured(2, [&] {
        Progress progress(logger, "validation", 4000, "windows");
        progress.begin = now_seconds() - 60, logger.silent_since = now_seconds() - 31;
        progress.reach(1000);
        progress.reach(2000);
    });
    EXPECT(std::regex_match(line, std::regex("validation: 1,000 of 4,000 windows, 3:0[0-9] left\n")));
    EXPECT(captured(1, [&] { logger.line("a line"); }) == "a line\n" && logger.silence_s == FIRST_SILENCE_S);
    start_test("the unit of progress becomes smaller where the total would round to little or nothing");
    auto shown = [&](int64_t total, const char* unit) {
        logger.silent_since = now_seconds() - 31;
        return captured(2, [&] { Progress(logger, "work", total, unit, 1000000); });
    };
    EXPECT(shown(12000000, "million") == "work: 0 of 12 million\n" &&
           shown(45056, "million") == "work: 0 of 45 thousand\n");
    EXPECT(shown(900, "MB") == "work: 0 of 900 bytes\n" && shown(0, "MB") == "work: 0 of 0 bytes\n");
    EXPECT(shown(9000000, "MB") == "work: 0 of 9,000 kB\n" && shown(-1, "MB") == "work: 0 MB\n");
    start_test("no progress with --quiet 1, and from other ranks than the first");
    logger.quiet = true;
    EXPECT(after(100, 10).empty() && captured(1, [&] { logger.note("a note"); }).empty());
    logger.quiet = false, logger.silent = true;
    EXPECT(after(100, 10).empty() && captured(1, [&] { logger.line("a line"); }).empty());
    start_test("redirected output holds nothing transient");
    const std::string work = "-x 3 -v 1 -m 3 -s 3 -g 4 -h 1 --hellaswag-data " + dir("hella.bin") + " -n 1 -d 64 ";
    const Outcome r = run(tiny(work + "-o " + dir("plain")));
    for (const char* word : {"\r", "\033", "validation:", "HellaSwag: 0 of", "working on", "saving", "loading", "left"})
        if (!EXPECT(!contains(r.out, word))) printf("    %s\n", word);
    EXPECT(r.status == 0);
}

static void progress_on_a_terminal() {
    const std::string work = "-x 3 -v 1 -m 3 -s 3 -g 4 -h 1 --hellaswag-data " + dir("hella.bin") + " -n 1 -d 64 ";
    Screen screen = on_terminal(tiny(work + "-o " + dir("drawn")));
    if (screen.status == -1) return skip_test("progress on a pseudo-terminal (mount -t devpts devpts /dev/pts)");
    start_test("on a terminal: steps show how far they are; what takes a moment shows nothing, which would flicker");
    const std::string time = "[0-9:]+ ",
                      part = "working on step 3/3, micro-step 2/2: " + time + "gone, " + time + "left";
    EXPECT(screen.status == 0 && std::regex_search(screen.written, std::regex(part)));
    for (const char* brief : {"validation: ", "HellaSwag: 0 of", "saving step", "drawing the initial"})
        EXPECT(!contains(screen.written, brief));
    start_test("on a terminal: longer work shows progress and the time left, and is gone when it is done");
    Logger logger;
    logger.terminal = true;
    const std::string drawn_work = captured(1, [&] {
        Progress progress(logger, "loading it", 40000, "MB", 1000000);
        progress.reach(10000);
        progress.begin -= 1;
        progress.reach(20000);
    });
    EXPECT(std::regex_match(drawn_work, std::regex("loading it: 20 of 40 kB, 0:0[12] left\r\033\\[K")));
    start_test("the lines that stay on the terminal are those of a redirected run");
    auto without_times = [](std::string text) {
        text = std::regex_replace(text, std::regex("lr ([^|]*) \\|.*"), "lr $1");
        text = std::regex_replace(text, std::regex("tokens, in [0-9:]+ \\([0-9]+ tok/s"), "tokens");
        return std::regex_replace(text, std::regex("MB, [0-9.]+ s"), "MB");
    };
    const std::string redirected = run(tiny(work + "-o " + dir("plain_"))).out;
    const std::string expected = std::regex_replace(without_times(redirected), std::regex("plain_"), "drawn");
    EXPECT(without_times(seen(screen.written)) == expected);
    start_test("a line in work is never wider than the terminal, which could not draw over it: its end is shown");
    screen = on_terminal(tiny("-x 3 -v 1 -m 3"), 30);
    size_t widest = 0;
    const std::regex drawn("\r\033\\[K|\n");
    for (std::sregex_token_iterator at(screen.written.begin(), screen.written.end(), drawn, -1), end; at != end; ++at) {
        const std::string text = *at;
        if (contains(text, " left") || contains(text, " gone")) widest = std::max(widest, text.size());
    }
    EXPECT(screen.status == 0 && widest > 0 && widest < 30 && contains(screen.written, "..."));
    start_test("an error on a terminal begins a line: the line in work is gone");
    screen = on_terminal(tiny("-x 50 -l 1e30 -k constant --grad-clip 0 -c 1"));
    EXPECT(screen.status == 1 && contains(seen(screen.written), "\nerror: ") && contains(screen.written, "working on"));
}

static void greedy() {
    start_test("temperature 0 takes the likeliest token, of several the lowest id");
    const float logits[] = {-1, 3, 2, 3, 3};
    std::vector<double> probs;
    sampling_probabilities(probs, logits, 5, 0.0, 0, 1.0);
    EXPECT((probs == std::vector<double>{0, 1, 0, 0, 0}));
    EXPECT(pick_token(probs, 0.999999) == 1 && pick_token(probs, 0) == 1);
    const std::string generate = "./train_gpt2_cpu -e L1C32H2T24 -x 0 -g 20 --prompt 'To be' --quiet 1 ";
    const std::string text = run(generate + "--temperature 0").out;
    EXPECT(text.size() > 20 && text == run(generate + "--temperature 0 --seed 42 --top-k 7 --top-p 0.3").out);
    EXPECT(text == run(generate + "--top-k 1").out && text != run(generate).out);
}

// Common mistakes: the message says what was probably meant, or where to find it.
static void hints() {
    struct Mistake {
        const char *flags, *hint;
    };
    for (const Mistake& m : {Mistake{"--batch_size 3", "perhaps --batch-size"},
                             {"--max-step=3", "perhaps --max-steps"},
                             {"--temp 3", "perhaps --temperature"},
                             {"--lr 3", "perhaps --learning-rate"},
                             {"-help", "perhaps --help"},
                             {"-h", "--help all lists all"},
                             {"-b 0", "accepted: 1 or more"},
                             {"-b ''", "-b (empty)"},
                             {"-q 2", "accepted: 0 to 1"},
                             {"--beta1 1", "accepted: 0 to below 1"},
                             {"--eps 0", "accepted: above 0"},
                             {"--top-p 0", "accepted: above 0 to 1"},
                             {"-x -2", "accepted: -1, 0, 1 or more"}}) {
        start_test(std::string("a hint for ") + m.flags);
        EXPECT(refused(run("./train_gpt2_cpu " + std::string(m.flags)), 2, m.hint));
    }
    start_test("no hint where nothing is near");
    for (const char* far : {"stray", "-@"}) EXPECT(!contains(run(format("./train_gpt2_cpu %s", far)).err, "perhaps"));
    EXPECT(edit_distance("kitten", "sitting") == 3 && edit_distance("", "ab") == 2 && edit_distance("ab", "") == 2);
    start_test("text where tokens are expected, too little of it, another vocabulary: what to do");
    write_whole(dir("text.txt"), std::string(5000, 'x'));
    EXPECT(refused(run(tiny("-x 1 -i " + dir("text.txt"))), 1, "`tokenize TEXT... -o PREFIX` makes one of text"));
    EXPECT(refused(run(tiny("-x 1 -v 1 -j " + folder)), 1, "is a folder; its files are accepted"));
    EXPECT(refused(run(tiny("-x 1 -d 64000")), 1, "a smaller -t, -b or -d"));
    EXPECT(refused(run(tiny("-x 1 -e L1C32H2T4096V256 -t 4096")), 1, "more text or a smaller -t"));
    EXPECT(refused(run(tiny("-x 100 -e L1C32H2T16V100")), 1, "V in -e"));
    EXPECT(refused(run(tiny("-x 0 --prompt hello")), 2, "--tokenizer with the model's own vocabulary"));
}

int main() {
    make_test_folder();
    write_hellaswag(dir("hella.bin"));
    settings();
    first_validation();
    step_lines();
    warnings();
    system_state();
    summary();
    progress_elsewhere();
    progress_on_a_terminal();
    greedy();
    hints();
    return report_and_clean();
}
