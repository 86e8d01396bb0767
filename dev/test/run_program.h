// Runs whole programs for tests, as a user runs them: starts a program, returns what it printed and
// how it ended, and makes small data for it.
#pragma once
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <sstream>
#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/run/metrics.h"

struct Outcome {
    int status;
    std::string out, err;
    double peak_mib;
};

inline std::string read_whole(const std::string& path) {
    std::string text;
    FILE* file = fopen(path.c_str(), "rb");
    char buffer[1 << 16];
    for (size_t n; file && (n = fread(buffer, 1, sizeof(buffer), file)) > 0;) text.append(buffer, n);
    if (file) fclose(file);
    return text;
}
inline void write_whole(const std::string& path, const std::string& bytes) {
    FILE* file = fopen(path.c_str(), "wb");
    if (!file || fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) runtime_failure("cannot write %s", path);
    fclose(file);
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }
inline std::string folder;  // of this test run

// Starts a shell command. Programs that run at the same time need different names, which keep apart
// what they print.
inline pid_t start(const std::string& command, const std::string& name = "") {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const std::string into = " > " + folder + "/" + name + "out 2> " + folder + "/" + name + "err < /dev/null";
        signal(SIGINT, SIG_DFL);  // ignored if a shell runs the tests in the background
        execl("/bin/sh", "sh", "-c", ("exec " + command + into).c_str(), (char*)nullptr);
        _exit(127);
    }
    return child;
}
inline Outcome finish(pid_t child, const std::string& name = "") {
    int status;
    struct rusage usage;
    wait4(child, &status, 0, &usage);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, read_whole(folder + "/" + name + "out"), read_whole(folder + "/" + name + "err"),
            usage.ru_maxrss / 1024.0};
}

// Whether no child of a process runs, of any of its threads; false where the system does not say.
inline bool is_alone(pid_t parent) {
    const std::vector<std::string> threads = glob_files(format("/proc/%d/task/*/children", (int)parent));
    for (const std::string& children : threads) {
        std::istringstream numbers(read_whole(children));
        for (int child; numbers >> child;) {
            const std::string stat = read_whole(format("/proc/%d/stat", child));  // 123 (name) Z: it has ended
            if (!stat.empty() && !contains(stat, ") Z")) return false;
        }
    }
    return !threads.empty();
}
// mpirun of Open MPI 4.1 with PMIx 4.2 can wait for ever in PMIx_server_finalize, for a lock of its
// own, when its processes have ended as soon as they began.
inline bool mpirun_hangs(pid_t mpirun, double patience_s = 30) {
    siginfo_t ended;
    for (double since = now_seconds(); now_seconds() - since < patience_s; usleep(5000)) {
        ended.si_pid = 0;
        if (waitid(P_PID, mpirun, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == mpirun) return false;
        if (!is_alone(mpirun)) since = now_seconds();
    }
    return true;
}
inline Outcome run(const std::string& command) {
    const pid_t child = start(command);
    if (!contains(command, "mpirun ") || !mpirun_hangs(child)) return finish(child);
    printf("    mpirun hangs, though its processes have ended; again: %s\n", command.c_str());
    kill(child, SIGKILL);
    finish(child);
    return finish(start(command));
}

// Prints how a run has failed, if it has.
inline bool passed(const Outcome& r) {
    if (r.status != 0) printf("    status %d, stderr: %s\n", r.status, r.err.substr(0, 300).c_str());
    return r.status == 0;
}
inline bool one_line(const std::string& text) {
    return !text.empty() && std::count(text.begin(), text.end(), '\n') == 1;
}
inline bool same_files(const std::string& a, const std::string& b) {
    const std::string x = read_whole(a), y = read_whole(b);
    return !x.empty() && x == y;
}
inline std::string dir(const std::string& name) { return folder + "/" + name; }

// metrics.csv without the columns that differ between runs with the same results. Empty if the file
// has another header, or a line with more or fewer columns.
inline std::string unmeasured_metrics(const std::string& path) {
    const std::string text = read_whole(path);
    if (text.rfind(metrics_header(), 0) != 0) return "";
    std::string kept;
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
        int column = 0;
        for (end = at; end < text.size() && text[end] != '\n'; end++) {
            if (!METRICS[std::min(column, NUM_METRICS - 1)].measured) kept += text[end];
            column += text[end] == ',';
        }
        if (column != NUM_METRICS - 1) return "";
        kept += "\n";
    }
    return kept;
}
// Whether two runs have recorded the same in their out dirs.
inline bool same_records(const std::string& a, const std::string& b) {
    const std::string metrics = unmeasured_metrics(dir(a) + "/metrics.csv");
    const bool same_metrics = !metrics.empty() && metrics == unmeasured_metrics(dir(b) + "/metrics.csv");
    const bool same_log = same_files(dir(a) + "/main.log", dir(b) + "/main.log");
    const bool same_evals = read_whole(dir(a) + "/evals.jsonl") == read_whole(dir(b) + "/evals.jsonl");
    if (!same_metrics || !same_log || !same_evals)
        printf("    %s and %s: metrics.csv %s, main.log %s, evals.jsonl %s\n", a.c_str(), b.c_str(),
               same_metrics ? "same" : "differs", same_log ? "same" : "differs", same_evals ? "same" : "differs");
    return same_metrics && same_log && same_evals;
}

// A run with a small vocabulary and little data, which takes a fraction of a second.
inline std::string tiny_run(const std::string& program, const std::string& more) {
    return program + " -i '" + folder + "/train_*.bin' -j " + folder +
           "/val.bin -e L2C32H2T16V256 -b 2 -t 16 -v 0 -s 0 --threads 2 " + more;
}
inline void write_data() {
    std::vector<uint16_t> tokens(1500);
    for (int shard = 0; shard < 3; shard++) {
        for (size_t i = 0; i < tokens.size(); i++)
            tokens[i] = (uint16_t)((i * i * 7 + i * 3 + shard * 11 + (i / 5) % 13) % 256);
        write_tokens(dir(shard < 2 ? format("train_%d.bin", shard) : "val.bin"), tokens.data(), tokens.size());
    }
}
// Ten made-up questions.
inline void write_hellaswag(const std::string& path) {
    std::vector<uint16_t> body;
    for (int i = 0; i < 10; i++) {
        const size_t begin = body.size();
        body.insert(body.end(), {65535, 0, (uint16_t)i, (uint16_t)(i % 4), 4, (uint16_t)(3 + i)});
        for (int t = 0; t < 3 + i; t++) body.push_back((uint16_t)((i * 31 + t * 7) % 256));
        for (int choice = 0; choice < 4; choice++) {
            body.push_back((uint16_t)(2 + choice));
            for (int t = 0; t < 2 + choice; t++) body.push_back((uint16_t)((choice * 50 + t * 3 + i) % 256));
        }
        body[begin + 1] = (uint16_t)((body.size() - begin) * 2);
    }
    Header h;
    h.value[0] = 20240522, h.value[1] = 1, h.value[2] = 10, h.value[3] = 200;
    std::string bytes((char*)h.value, sizeof(h.value));
    bytes.append((char*)body.data(), body.size() * 2);
    write_whole(path, bytes);
}
inline bool refused(const Outcome& r, int status, const std::string& name) {
    const bool good = r.status == status && one_line(r.err) && contains(r.err, name);
    if (!good) printf("    status %d, stderr: %s\n", r.status, r.err.substr(0, 300).c_str());
    return good;
}

struct Steps {
    std::vector<double> losses, norms;
};
inline Steps steps_of(const Outcome& r) {
    Steps steps;
    for (size_t at = r.out.find("step  "); at < r.out.size(); at = r.out.find("\nstep  ", at + 1)) {
        double loss = NAN, norm = NAN;
        // a z-score in brackets may follow the loss
        sscanf(r.out.c_str() + at + (r.out[at] == '\n'), "step %*d/%*d | loss %lf%*[^|]| norm %lf", &loss, &norm);
        steps.losses.push_back(loss), steps.norms.push_back(norm);
    }
    return steps;
}
// The largest relative difference of losses (norms). Differences up to `unit`, one in the last
// digit printed, count as none. Infinity if there are not n steps in both.
inline double apart(const std::vector<double>& a, const std::vector<double>& b, size_t n, double unit = 1e-6) {
    if (a.size() != n || b.size() != n) return INFINITY;
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double beyond = std::fabs(a[i] - b[i]) - unit, d = beyond < 0 ? 0 : beyond / b[i];
        worst = d <= worst ? worst : d;
    }
    return std::isnan(worst) ? INFINITY : worst;
}
inline bool agree(const Outcome& a, const Outcome& b, size_t n, double loss_tolerance, double norm_tolerance) {
    const Steps x = steps_of(a), y = steps_of(b);
    const double loss = apart(x.losses, y.losses, n), norm = apart(x.norms, y.norms, n, 1e-4);
    const bool good = a.status == 0 && b.status == 0 && loss <= loss_tolerance && norm <= norm_tolerance;
    if (!good) printf("    loss apart by %.3g, norm by %.3g; %s%s\n", loss, norm, a.err.c_str(), b.err.c_str());
    return good;
}
// Tolerances for the two layers that these runs have.
const double LOSS16 = bf16_loss_tolerance(), NORM16 = bf16_model_tolerance(2);

inline void make_test_folder() {
    char pattern[] = "/tmp/gpt2_runs_XXXXXX";
    folder = mkdtemp(pattern);
    write_data();
}
inline int report_and_clean() {
    const int status = report_tests();
    if (status == 0) run("rm -rf " + folder);
    return status;
}
