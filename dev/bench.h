// The harness of all benches, CPU and GPU. A bench program is one operation: a file that includes this header and holds one or more
//
//     BENCH("gelu_forward", dims("rows", "C"), shapes({{1024, 3072}, {33, 192}})) {
//         const int64_t n = shape[0] * shape[1];
//         ... buffers, filled with random_floats() ...
//         bytes(8 * n);                                         // what must move at least; flops(...) what must be computed
//         output("out", out.data(), n, tolerance);              // what is compared
//         expected([=] { reference::gelu_forward(...); });     // with what; every variant is compared before it is timed
//         variant("naive", "what it does", [=] { ... });
//         variant("shipped", "what changed, and why it should be faster", [=] { gelu_forward(...); });
//     }
//
// There is no list to edit. The first shape is what tables and charts show; awkward ones are for correctness. A variant that computes in bf16
// says so, variant(..., IN_BF16), and what it writes is declared beside the fp32 output of the same name.
//
//     build/bench/gelu                      all benches, variants and shapes
//     build/bench/gelu --list               what there is
//     build/bench/gelu --variant shipped --shape 1024x3072 --cold --min-ms 500 --threads 1
//     build/bench/gelu --check              correctness alone, at all shapes but the first, large one
//
// Each is warmed up, then run until at least --min-ms and 5 times (a slow one 2 times); the table has minimum and median, GFLOP/s or GB/s, whichever
// bounds the operation on this machine, and the share of the machine's peak, measured at the start. --cold empties the caches before each run.
// The same as JSON: --json FILE. dev/bench_table.py makes tables and charts of it.
#pragma once
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include "dev/test/test.h"
#include "llmc/bf16.h"
#include "llmc/file.h"

namespace bench {

typedef std::vector<int64_t> Shape;
enum Type { IN_FP32, IN_BF16 };
constexpr const char* TYPE_NAMES[] = {"fp32", "bf16"};

// What a machine provides: dev/cpu/bench_cpu.h, dev/cuda/bench_cuda.cuh.
struct Machine {
    std::string name;
    double memory_bytes_s = 0, flops_s[2] = {};                   // measured peaks; FLOP/s by Type
    std::function<double(const std::function<void()>&)> seconds;  // what one run takes
    std::function<void()> empty_caches;
};
Machine open_machine(int threads);                                // 0: all

struct Output {
    std::string name;
    Type type;
    void* data;
    int64_t elems;
    double tolerance;                                             // largest difference over largest magnitude
    bool on_device = false;
    size_t bytes() const { return elems * (type == IN_FP32 ? sizeof(float) : sizeof(bf16)); }
    std::vector<float> values() const;
};
struct Variant {
    std::string id, why;
    std::function<void()> run;
    Type type;
    double flops, bytes, requested;
};
// Memory that the host cannot touch; a machine that has such sets these, and its variants are compared by what they leave there.
inline void (*copy_from_device)(void* to, const void* from, size_t bytes) = nullptr;
inline void (*fill_device)(void* to, int byte, size_t bytes) = nullptr;

inline std::vector<float> Output::values() const {
    std::vector<char> raw(bytes());
    if (on_device) copy_from_device(raw.data(), data, bytes());
    else memcpy(raw.data(), data, bytes());
    return type == IN_FP32 ? std::vector<float>((float*)raw.data(), (float*)raw.data() + elems) : std::vector<float>((bf16*)raw.data(), (bf16*)raw.data() + elems);
}

// One bench at one shape, as its body declares it.
struct Case {
    double flops = 0, bytes = 0, requested = 0;
    std::vector<Output> outputs;
    std::vector<Variant> variants;
    std::function<void()> expected, setup = [] {};
    std::vector<std::shared_ptr<void>> memory;
    bool only_listed = false;                                     // nothing will run
};
struct Bench {
    std::string name;
    std::vector<std::string> dims;
    std::vector<Shape> shapes;
    void (*body)(const Shape&);
};
inline std::vector<Bench> registry;
inline Case* current = nullptr;  // the case being declared
struct Register {
    Register(const char* name, std::vector<std::string> dims, std::vector<Shape> shapes, void (*body)(const Shape&)) { registry.push_back({name, dims, shapes, body}); }
};
#define BENCH(name, dims, shapes) BENCH_AT(name, dims, shapes, __LINE__)
#define BENCH_AT(name, dims, shapes, line) BENCH_LINE(name, dims, shapes, line)
#define BENCH_LINE(name, dims, shapes, line)                                \
    static void bench_body_##line(const bench::Shape& shape);               \
    static bench::Register bench_##line(name, dims, shapes, bench_body_##line); \
    static void bench_body_##line(const bench::Shape& shape)

// ---------------------------------------------------------------------------------------------------------------------------------
// what a body calls

template <class... Names>
inline std::vector<std::string> dims(Names... names) { return {names...}; }
inline std::vector<Shape> shapes(std::vector<Shape> all) { return all; }
inline void flops(double n) { current->flops = n; }  // of the variants declared after it
inline void bytes(double n) { current->bytes = current->requested = n; }
inline void requested(double n) { current->requested = n; }  // by the next variant, -1 where nobody knows: what it asks memory and caches for, reusing nothing but what it keeps in registers and shared memory
inline void output(const char* name, float* data, int64_t elems, double tolerance) { current->outputs.push_back({name, IN_FP32, data, elems, tolerance}); }
inline void output(const char* name, bf16* data, int64_t elems, double tolerance) { current->outputs.push_back({name, IN_BF16, data, elems, tolerance}); }
template <class T>
inline void device_output(const char* name, T* data, int64_t elems, double tolerance) { current->outputs.push_back({name, sizeof(T) == 4 ? IN_FP32 : IN_BF16, data, elems, tolerance, true}); }
inline void expected(std::function<void()> f) { current->expected = f; }  // writes the fp32 outputs
inline void setup(std::function<void()> f) { current->setup = f; }          // before each comparison, where an operation updates in place
inline void variant(const std::string& id, const char* why, std::function<void()> run, Type type = IN_FP32) {
    current->variants.push_back({id, why, run, type, current->flops, current->bytes, current->requested});
    current->requested = current->bytes;
}
// One variant for each size of a block.
template <class F>
inline void sweep(const std::string& id, std::vector<int> sizes, const char* why, F run, Type type = IN_FP32) {
    const double asked = current->requested;
    for (int size : sizes) requested(asked), variant(id + "-" + std::to_string(size), why, [=] { run(size); }, type);
}

// Memory that lives as long as the case.
template <class T>
inline T* buffer(int64_t elems) {
    const size_t bytes = (std::max<int64_t>(1, elems) * sizeof(T) + 4095) / 4096 * 4096;
    void* p = current->only_listed ? calloc(bytes, 1) : aligned_alloc(4096, bytes);  // calloc: pages that nobody touches take no memory
    current->memory.push_back(std::shared_ptr<void>(p, free));
    if (!current->only_listed) memset(p, 0, bytes);
    return (T*)p;
}
// Values that both types hold exactly, so that all variants start from the same numbers.
inline float* random_floats(int64_t elems, double scale = 1) {
    float* values = buffer<float>(elems);
    if (current->only_listed) return values;
    const std::vector<float> random = random_values(elems, scale);
    for (int64_t i = 0; i < elems; i++) values[i] = (float)bf16(random[i]);
    return values;
}
inline bf16* as_bf16(const float* values, int64_t elems) {
    bf16* halves = buffer<bf16>(elems);
    if (current->only_listed) return halves;
    std::copy(values, values + elems, halves);
    return halves;
}

// ---------------------------------------------------------------------------------------------------------------------------------
// running

struct Settings {
    std::string variant, shape, json, bench;
    bool list = false, check = false, cold = false;
    double min_ms = 300;
    int threads = 0;
};
struct Result {
    std::string bench, shape, id, why, type;
    double min_ms, median_ms, gflops, gbs, percent;               // percent of the peak of what bounds it
    double requested;                                             // bytes, of the least
    bool compute_bound, main_shape;
};

inline std::string shape_text(const Shape& shape) {
    std::string text;
    for (int64_t n : shape) text += (text.empty() ? "" : "x") + std::to_string(n);
    return text;
}

// Whether a variant's outputs are the reference's. What it does not write stays NaN, and fails.
inline bool right(const Case& c, const Variant& v, const std::map<std::string, std::vector<float>>& want) {
    for (const Output& o : c.outputs) o.on_device ? fill_device(o.data, 0xFF, o.bytes()) : (void)memset(o.data, 0xFF, o.bytes());
    c.setup();
    v.run();
    bool good = true, compared = false;
    for (const Output& o : c.outputs) {
        if (copy_from_device ? !o.on_device : o.type != v.type) continue;
        compared = true;
        const double error = relative_error(o.values(), want.at(o.name));
        if (!(error <= o.tolerance)) printf("    %s, %s: error %.3g, tolerance %.3g\n", v.id.c_str(), o.name.c_str(), error, o.tolerance), good = false;
    }
    return good && compared;
}

inline Result timed(const Machine& machine, const Settings& s, const Variant& v) {
    std::vector<double> runs;
    double total = 0;
    machine.seconds(v.run);  // warm-up
    while ((total < s.min_ms / 1e3 && runs.size() < 1000) || runs.size() < (total < 2 ? 5u : 2u)) {
        if (s.cold) machine.empty_caches();
        runs.push_back(machine.seconds(v.run));
        total += runs.back();
    }
    std::sort(runs.begin(), runs.end());
    Result r;
    const double least = runs.front(), compute_s = v.flops / machine.flops_s[v.type], move_s = v.bytes / machine.memory_bytes_s;
    r.id = v.id, r.why = v.why, r.type = TYPE_NAMES[v.type];
    r.min_ms = 1e3 * least, r.median_ms = 1e3 * runs[runs.size() / 2], r.gflops = 1e-9 * v.flops / least, r.gbs = 1e-9 * v.bytes / least;
    r.requested = v.requested / v.bytes;
    r.compute_bound = compute_s > move_s, r.percent = 100 * std::max(compute_s, move_s) / least;
    return r;
}

inline std::string json_of(const Machine& m, const std::vector<Result>& results) {
    std::string text = format("{\"machine\": \"%s\", \"memory_gbs\": %.1f, \"fp32_gflops\": %.1f, \"bf16_gflops\": %.1f, \"results\": [", m.name.c_str(), 1e-9 * m.memory_bytes_s, 1e-9 * m.flops_s[IN_FP32], 1e-9 * m.flops_s[IN_BF16]);
    for (size_t i = 0; i < results.size(); i++) {
        const Result& r = results[i];
        text += format("%s\n{\"bench\": \"%s\", \"shape\": \"%s\", \"main\": %s, \"id\": \"%s\", \"type\": \"%s\", \"why\": \"%s\", \"min_ms\": %.5g, \"median_ms\": %.5g, \"gflops\": %.5g, \"gbs\": %.5g, \"percent\": %.4g, \"requested\": %.4g, \"bound\": \"%s\"}",
                       i ? "," : "", r.bench.c_str(), r.shape.c_str(), r.main_shape ? "true" : "false", r.id.c_str(), r.type.c_str(), r.why.c_str(), r.min_ms, r.median_ms, r.gflops, r.gbs, r.percent, r.requested,
                       r.compute_bound ? "compute" : "memory");
    }
    return text + "\n]}\n";
}

inline Settings parse(int argc, char** argv) {
    Settings s;
    for (int i = 1; i < argc; i++) {
        const std::string flag = argv[i];
        if (flag == "--list") s.list = true;
        else if (flag == "--check") s.check = true;
        else if (flag == "--cold") s.cold = true;
        else {
            const char* value = i + 1 < argc ? argv[++i] : "";
            if (flag == "--bench") s.bench = value;
            else if (flag == "--variant") s.variant = value;
            else if (flag == "--shape") s.shape = value;
            else if (flag == "--json") s.json = value;
            else if (flag == "--min-ms") s.min_ms = atof(value);
            else if (flag == "--threads") s.threads = atoi(value);
            else usage_error("%s is unknown; --list, --check, --cold, --bench NAME, --variant ID, --shape AxB, --min-ms N, --threads N, --json FILE are accepted", flag.c_str());
        }
    }
    return s;
}

// One bench at one shape.
inline void run_case(const Machine& machine, const Settings& s, const Bench& b, const Shape& shape, std::vector<Result>& results) {
    Case c;
    current = &c;
    b.body(shape);
    std::map<std::string, std::vector<float>> want;
    bool referred = false;
    for (const Variant& v : c.variants) {
        if (!s.variant.empty() && v.id != s.variant) continue;
        if (!referred) {
            c.setup(), c.expected(), referred = true;
            for (const Output& o : c.outputs)
                if (o.type == IN_FP32 && !o.on_device) want[o.name] = o.values();
            printf("\n%s, %s\n", b.name.c_str(), shape_text(shape).c_str());
            if (!s.check) printf("  %-14s %5s %10s %10s %9s %7s  of peak\n", "variant", "type", "min ms", "median ms", "GFLOP/s", "GB/s");
        }
        start_test(b.name + " " + v.id + ", " + shape_text(shape));
        if (!EXPECT(right(c, v, want)) || s.check) continue;
        Result r = timed(machine, s, v);
        r.bench = b.name, r.shape = shape_text(shape), r.main_shape = shape == b.shapes[0];
        printf("  %-14s %5s %10.3f %10.3f %9.1f %7.1f  %5.1f%% (%s)\n", r.id.c_str(), r.type.c_str(), r.min_ms, r.median_ms, r.gflops, r.gbs, r.percent, r.compute_bound ? "compute" : "memory");
        fflush(stdout);
        results.push_back(r);
    }
}

inline int run_all(int argc, char** argv) {
    const Settings s = parse(argc, argv);
    bool found = false;
    if (s.list) {
        for (const Bench& b : registry) {
            std::string names;
            for (const std::string& d : b.dims) names += (names.empty() ? "" : " x ") + d;
            printf("%s (%s)", b.name.c_str(), names.c_str());
            for (const Shape& shape : b.shapes) printf(" %s", shape_text(shape).c_str());
            Case c;
            c.only_listed = true;
            current = &c;
            b.body(b.shapes[0]);
            printf("\n");
            for (const Variant& v : c.variants) printf("  %-14s %s  bytes requested %s of the least  %s\n", v.id.c_str(), TYPE_NAMES[v.type], v.requested < 0 ? "?" : format("%.2f", v.requested / v.bytes).c_str(), v.why.c_str());
        }
        return 0;
    }
    const Machine machine = open_machine(s.threads);
    if (machine.memory_bytes_s == 0 && !s.check) runtime_failure("%s: nothing can be measured here; --check compares all variants with the reference", machine.name.c_str());
    if (!s.check)
        printf("%s: memory %.1f GB/s, fp32 %.0f GFLOP/s, bf16 %.0f GFLOP/s\n", machine.name.c_str(), 1e-9 * machine.memory_bytes_s, 1e-9 * machine.flops_s[IN_FP32], 1e-9 * machine.flops_s[IN_BF16]);
    std::vector<Result> results;
    for (const Bench& b : registry)
        for (const Shape& shape : b.shapes) {
            if ((!s.bench.empty() && s.bench != b.name) || (!s.shape.empty() && s.shape != shape_text(shape))) continue;
            if (s.check && s.shape.empty() && b.shapes.size() > 1 && shape == b.shapes[0]) continue;
            run_case(machine, s, b, shape, results);
            found = true;
        }
    if (!found || (results.empty() && !s.check)) runtime_failure("no bench, variant or shape of that name; --list shows what there is");
    if (!s.json.empty()) {
        FileWriter file(s.json);
        const std::string text = json_of(machine, results);
        file.write(text.data(), text.size());
        file.commit();
    }
    return report_tests();
}

}  // namespace bench

#ifndef BENCH_WITHOUT_MAIN
int main(int argc, char** argv) { return bench::run_all(argc, argv); }
#endif
