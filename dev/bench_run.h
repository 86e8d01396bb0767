// Runs what dev/bench.h declares: compares each variant with the reference, times it, prints its
// row.
//
// A variant may end its process: by a fault, an exception, or an error of the GPU, after which
// nothing works. The other variants must run nevertheless. So a child process runs the variants one
// after the other and tells its parent, line by line, which one it is at. If it ends early, that
// variant has failed, and a new child continues with the next one. A single variant (--variant)
// runs in the program itself, for debuggers and profilers; so do the processes of a launcher, where
// a failure ends them all.
#pragma once
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <map>
#include "dev/bench.h"
#include "llmc/base/file.h"

namespace bench {

struct Settings {
    std::string variant, shape, json, bench;
    bool list = false, check = false, unchecked = false, cold = false, counted = false;
    double min_ms = 300;
    int threads = 0;
};
struct Result {
    std::string bench, shape, id, why, type;
    double min_ms, median_ms, gflops, gbs, percent;  // percent of the peak of what bounds it
    double requested;                                // bytes, relative to the least; -1 if unknown
    bool compute_bound, main_shape;
};
typedef std::function<void(const std::string& line)> Tell;  // sends a line to VariantCounter, below

inline std::string shape_text(const Shape& shape) {
    std::string text;
    for (int64_t n : shape) text += (text.empty() ? "" : "x") + std::to_string(n);
    return text;
}

// -------------------------------------------------------------------------------------------------
// one variant

// The first element that is not finite, or whose error is more than `tolerance` times the largest
// magnitude, and how many such elements there are. Empty if there are none.
inline std::string first_wrong(const std::vector<float>& got, const std::vector<float>& want, double tolerance) {
    double largest = 1e-30;
    for (float w : want) largest = std::fmax(largest, std::fabs((double)w));
    size_t first = want.size(), wrong = 0;
    for (size_t i = 0; i < want.size(); i++)
        if (!(std::fabs((double)got[i] - (double)want[i]) <= tolerance * largest) && wrong++ == 0) first = i;
    if (wrong == 0) return "";
    return format("element %d is %.9g, wanted %.9g; %d of %d elements are wrong", first, got[first], want[first], wrong,
                  want.size());
}

// Whether a variant's outputs are the reference's. Outputs are filled with NaN before, so that what
// the variant does not write fails.
inline bool right(const Case& c, const Variant& v, const std::map<std::string, std::vector<float>>& want) {
    for (const Output& o : c.outputs)
        o.on_device ? fill_device(o.data, 0xFF, o.bytes()) : (void)memset(o.data, 0xFF, o.bytes());
    c.setup();
    if (begin_counting) begin_counting();
    v.run();
    bool good = true, compared = false;
    for (const Output& o : c.outputs) {
        if (copy_from_device ? !o.on_device : o.type != v.type) continue;
        compared = true;
        const std::vector<float> got = o.values();
        const std::string wrong = first_wrong(got, want.at(o.name), o.tolerance);
        if (wrong.empty()) continue;
        const double error = relative_error(got, want.at(o.name));
        printf("    %s, %s: %s; error %.3g of the largest, tolerance %.3g\n", v.id.c_str(), o.name.c_str(),
               wrong.c_str(), error, o.tolerance);
        good = false;
    }
    if (!compared) printf("    %s: no output of its type is declared, so nothing was compared\n", v.id.c_str());
    return largest_of_processes(good && compared ? 0 : 1) == 0;
}

inline Result timed(const Machine& machine, const Settings& s, const Variant& v) {
    std::vector<double> runs;
    double total = 0;
    machine.seconds(v.run);  // warm-up
    while ((total < s.min_ms / 1e3 && runs.size() < 1000) || runs.size() < (total < 2 ? 5u : 2u)) {
        if (s.cold) machine.empty_caches();
        runs.push_back(largest_of_processes(machine.seconds(v.run)));
        total += runs.back();
    }
    std::sort(runs.begin(), runs.end());
    Result r;
    const double least = runs.front(), compute_s = v.flops / machine.flops_s[v.type],
                 move_s = v.bytes / machine.memory_bytes_s;
    r.id = v.id, r.why = v.why, r.type = TYPE_NAMES[v.type];
    r.min_ms = 1e3 * least, r.median_ms = 1e3 * runs[runs.size() / 2];
    r.gflops = 1e-9 * v.flops / least, r.gbs = 1e-9 * v.bytes / least;
    r.requested = v.requested < 0 ? -1 : v.requested / v.bytes;
    r.compute_bound = compute_s > move_s, r.percent = 100 * std::max(compute_s, move_s) / least;
    return r;
}

inline std::string json_of(const Result& r) {
    return format("{\"bench\": \"%s\", \"shape\": \"%s\", \"main\": %s, \"id\": \"%s\", \"type\": \"%s\", ", r.bench,
                  r.shape, r.main_shape ? "true" : "false", r.id, r.type) +
           format("\"why\": \"%s\", ", r.why) +
           format("\"min_ms\": %.5g, \"median_ms\": %.5g, \"gflops\": %.5g, \"gbs\": %.5g, ", r.min_ms, r.median_ms,
                  r.gflops, r.gbs) +
           format("\"percent\": %.4g, \"requested\": %.4g, \"bound\": \"%s\"}", r.percent, r.requested,
                  r.compute_bound ? "compute" : "memory");
}

// -------------------------------------------------------------------------------------------------
// all of them

// Runs the variants of a bench at one shape, from number `first` on.
inline void run_case(const Machine& machine, const Settings& s, const Bench& b, const Shape& shape, size_t first,
                     const Tell& tell) {
    Case c;
    current = &c;
    b.body(shape);
    std::map<std::string, std::vector<float>> want;
    bool referred = false;
    for (size_t i = first; i < c.variants.size(); i++) {
        const Variant& v = c.variants[i];
        if (!s.variant.empty() && v.id != s.variant) continue;
        if (!referred) {
            c.setup(), referred = true;
            if (!s.unchecked) c.expected();
            for (const Output& o : c.outputs)
                if (o.type == IN_FP32 && !o.on_device) want[o.name] = o.values();
            printf("\n%s, %s\n", b.name.c_str(), shape_text(shape).c_str());
            if (!s.check)
                printf("  %-14s %5s %10s %10s %9s %7s  of peak\n", "variant", "type", "min ms", "median ms", "GFLOP/s",
                       "GB/s");
        }
        const std::string name = b.name + " " + v.id + ", " + shape_text(shape);
        fflush(stdout);
        tell(format("variant %d %s", i, name));
        const bool good = s.unchecked || right(c, v, want);
        if (!good) printf("FAILED %s\n", name.c_str());
        if (good && !s.check) {
            Result r = timed(machine, s, v);
            r.bench = b.name, r.shape = shape_text(shape), r.main_shape = shape == b.shapes[0];
            printf("  %-14s %5s %10.3f %10.3f %9.1f %7.1f  %5.1f%% (%s)\n", r.id.c_str(), r.type.c_str(), r.min_ms,
                   r.median_ms, r.gflops, r.gbs, r.percent, r.compute_bound ? "compute" : "memory");
            tell("result " + json_of(r));
        }
        fflush(stdout);
        tell(good ? "passed" : "failed");
    }
}

inline std::vector<Shape> selected_shapes(const Settings& s, const Bench& b) {
    if (s.counted) return {b.counted};
    std::vector<Shape> selected;
    for (const Shape& shape : b.shapes) {
        const bool is_main = shape == b.shapes[0];
        if (s.shape.empty() ? !(s.check && is_main && b.shapes.size() > 1) : s.shape == shape_text(shape))
            selected.push_back(shape);
    }
    return selected;
}

// Runs all cases that the settings select, from variant first_variant of case first_case on.
inline void run_cases(const Settings& s, int64_t first_case, size_t first_variant, const Tell& tell) {
    const Machine m = open_machine(s.threads);
    if (m.memory_bytes_s == 0 && !s.check)
        runtime_failure("%s: nothing can be measured here; --check compares all variants with the reference", m.name);
    const double peaks[] = {1e-9 * m.memory_bytes_s, 1e-9 * m.flops_s[IN_FP32], 1e-9 * m.flops_s[IN_BF16]};
    if (!s.check && first_case == 0 && first_variant == 0)
        printf("%s: memory %.1f GB/s, fp32 %.0f GFLOP/s, bf16 %.0f GFLOP/s\n", m.name.c_str(), peaks[0], peaks[1],
               peaks[2]);
    tell(format("machine \"machine\": \"%s\", \"memory_gbs\": %.1f, \"fp32_gflops\": %.1f, \"bf16_gflops\": %.1f",
                m.name, peaks[0], peaks[1], peaks[2]));
    int64_t number = 0;
    for (const Bench& b : registry)
        for (const Shape& shape : selected_shapes(s, b)) {
            if (!s.bench.empty() && s.bench != b.name) continue;
            if (number >= first_case) {
                tell(format("case %d", number));
                run_case(m, s, b, shape, number == first_case ? first_variant : 0, tell);
            }
            number++;
        }
}

// Takes the lines of Tell: which variant runs, which have passed or failed, and their results.
struct VariantCounter {
    std::string machine, results, name;  // name: of the variant that runs; empty between variants
    int64_t at_case = 0;
    size_t at_variant = 0;

    void take(const std::string& line) {
        const size_t space = std::min(line.find(' '), line.size());
        const std::string word = line.substr(0, space), rest = line.substr(std::min(space + 1, line.size()));
        if (word == "machine") machine = rest;
        else if (word == "case") at_case = atoll(rest.c_str()), at_variant = 0;
        else if (word == "variant")
            at_variant = strtoull(rest.c_str(), nullptr, 10), name = rest.substr(rest.find(' ') + 1);
        else if (word == "result") results += (results.empty() ? "\n" : ",\n") + rest;
        else if (word == "passed") tests_passed++, name.clear();
        else if (word == "failed") tests_failed++, name.clear();
    }
};

inline std::string how_it_ended(int status) {
    if (WIFSIGNALED(status))
        return format("its process was ended by signal %d, %s", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return format("it ended its process with status %d", WEXITSTATUS(status));
}

inline void run_in_children(const Settings& s, VariantCounter& progress) {
    for (size_t first_variant = 0;;) {
        int ends[2];
        if (pipe(ends) != 0) runtime_failure("making a pipe: %s", strerror(errno));
        fflush(stdout);
        const pid_t child = fork();
        if (child < 0) runtime_failure("starting a process: %s", strerror(errno));
        if (child == 0) {
            close(ends[0]);
            FILE* told = fdopen(ends[1], "w");
            try {
                run_cases(s, progress.at_case, first_variant, [&](const std::string& line) {
                    fprintf(told, "%s\n", line.c_str());
                    fflush(told);
                });
            } catch (const std::exception& e) { runtime_failure("an exception, %s", e.what()); }
            exit(0);
        }
        close(ends[1]);
        FILE* told = fdopen(ends[0], "r");
        char* line = nullptr;
        size_t room = 0;
        for (ssize_t n; (n = getline(&line, &room, told)) > 0;)
            progress.take(std::string(line, line[n - 1] == '\n' ? n - 1 : n));
        free(line);
        fclose(told);
        int status = 0;
        waitpid(child, &status, 0);
        if (progress.name.empty() && status == 0) return;
        if (progress.name.empty())
            exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);  // not a variant's fault; it has printed the reason
        printf("FAILED %s: %s; a fresh process goes on\n", progress.name.c_str(), how_it_ended(status).c_str());
        progress.take("failed");
        first_variant = progress.at_variant + 1;
    }
}

// -------------------------------------------------------------------------------------------------
// the program

inline Settings parse(int argc, char** argv) {
    Settings s;
    for (int i = 1; i < argc; i++) {
        const std::string flag = argv[i];
        if (flag == "--list") s.list = true;
        else if (flag == "--check") s.check = true;
        else if (flag == "--unchecked") s.unchecked = true;
        else if (flag == "--cold") s.cold = true;
        else if (flag == "--counted") s.counted = true;
        else {
            const char* value = i + 1 < argc ? argv[++i] : "";
            if (flag == "--bench") s.bench = value;
            else if (flag == "--variant") s.variant = value;
            else if (flag == "--shape") s.shape = value;
            else if (flag == "--json") s.json = value;
            else if (flag == "--min-ms") s.min_ms = atof(value);
            else if (flag == "--threads") s.threads = atoi(value);
            else
                usage_error(
                    "%s is unknown; --list, --check, --unchecked, --cold, --counted, --bench NAME, --variant ID, "
                    "--shape AxB, --min-ms N, --threads N, --json FILE are accepted",
                    flag);
        }
    }
    return s;
}

inline void list_all(const Settings& s) {
    for (const Bench& b : registry) {
        std::string names;
        for (const std::string& d : b.dims) names += (names.empty() ? "" : " x ") + d;
        printf("%s (%s)", b.name.c_str(), names.c_str());
        const std::vector<Shape> listed = s.counted ? selected_shapes(s, b) : b.shapes;
        for (const Shape& shape : listed) printf(" %s", shape_text(shape).c_str());
        printf("\n");
        Case c;
        c.only_listed = true;
        current = &c;
        b.body(listed[0]);
        const bool counted =
            std::any_of(c.variants.begin(), c.variants.end(), [](const Variant& v) { return v.requested >= 0; });
        for (const Variant& v : c.variants) {
            const std::string ratio = v.requested < 0 ? "?" : format("%.2f", v.requested / v.bytes);
            std::string bytes = counted ? "bytes requested " + ratio + " of the least  " : "";
            if (s.counted) bytes = format("at least %.0f bytes  ", v.bytes);
            printf("  %-14s %s  %s%s\n", v.id.c_str(), TYPE_NAMES[v.type], bytes.c_str(), v.why.c_str());
        }
    }
}

inline int run_all(int argc, char** argv) {
    const Settings s = parse(argc, argv);
    if (s.list) return list_all(s), 0;
    VariantCounter progress;
    if (s.variant.empty() && launcher_value(LAUNCHER_SIZES) <= 1) run_in_children(s, progress);
    else run_cases(s, 0, 0, [&](const std::string& line) { progress.take(line); });
    if (tests_passed + tests_failed == 0)
        usage_error("no bench, variant and shape of these names; --list shows what there is");
    if (!s.json.empty() && launcher_value(LAUNCHER_RANKS) <= 0) {
        FileWriter file(s.json);
        const std::string text = "{" + progress.machine + ", \"results\": [" + progress.results + "\n]}\n";
        file.write(text.data(), text.size());
        file.commit();
    }
    return report_tests();
}

}  // namespace bench

#ifndef BENCH_WITHOUT_MAIN
int main(int argc, char** argv) { return bench::run_all(argc, argv); }
#endif
