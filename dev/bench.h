// The harness of all benches, CPU and GPU. A bench program is one operation: a file that includes
// this header and holds one or more
//
//     BENCH("gelu_forward", dims("rows", "C"), shapes({{1024, 3072}, {33, 192}})) {
//         const int64_t n = shape[0] * shape[1];
//         const float* inp = random_floats(n);
//         float* out = buffer<float>(n);
//         bytes(8 * n);                                        // the least that must move; flops(...): be computed
//         output("out", out, n, tolerance);                    // what is compared
//         expected([=] { reference::gelu_forward(...); });     // writes the right values to the outputs
//         variant("naive", "what it does", [=] { ... });
//         variant("shipped", "what changed, and why it should be faster", [=] { gelu_forward(...); });
//     }
//
// There is no list to edit. Every variant is compared with the expected outputs before it is timed.
// Tables and charts show the first shape; the others, among them awkward ones, test correctness. A
// variant that computes in bf16 is declared with IN_BF16, and its output beside the fp32 output of
// the same name. dev/bench_run.h has how variants are run, compared and timed. shapes(...,
// counted({64, 768})) names the shape at which the simulator counts what a variant does (make -C
// dev/cuda count).
//
//     build/bench/gelu                      all benches, variants and shapes
//     build/bench/gelu --list               lists them
//     build/bench/gelu --variant shipped --shape 1024x3072 --cold --min-ms 500 --threads 1
//     build/bench/gelu --check              correctness alone, at all shapes but the first, the largest
//     build/bench/gelu --check --counted    at the shape for counting alone
//     build/bench/gelu --unchecked          times without the reference, which takes long at large shapes
//
// A variant is run once to warm up, then for at least --min-ms and 5 times, or 2 times if it is
// slow. The table has the minimum and the median, GFLOP/s and GB/s, and the share of the machine's
// peak, measured at the start, of whichever bounds the operation. --cold empties the caches before
// each run. --json FILE writes the same as JSON, of which dev/bench_table.py makes tables and
// charts.
#pragma once
#include <sys/mman.h>
#include <cstring>
#include <functional>
#include <memory>
#include "dev/test/test.h"
#include "llmc/base/bf16.h"
#include "llmc/base/integer_math.h"

namespace bench {

typedef std::vector<int64_t> Shape;
enum Type { IN_FP32, IN_BF16 };
constexpr const char* TYPE_NAMES[] = {"fp32", "bf16"};

// What a machine provides: dev/cpu/bench_cpu.h, dev/cuda/bench_cuda.cuh.
struct Machine {
    std::string name;
    double memory_bytes_s = 0, flops_s[2] = {};                   // measured peaks; FLOP/s by Type
    std::function<double(const std::function<void()>&)> seconds;  // that one run takes
    std::function<void()> empty_caches;
};
Machine open_machine(int threads);  // 0: all
// The largest of the values of all processes, where several run a bench together: they must agree
// on what passed and how long it took.
inline double (*largest_of_processes)(double mine) = [](double mine) { return mine; };

struct Output {
    std::string name;
    Type type;
    void* data;
    int64_t elems;
    double tolerance;  // largest difference over largest magnitude
    bool on_device = false;
    size_t bytes() const { return elems * (type == IN_FP32 ? sizeof(float) : sizeof(bf16)); }
    std::vector<float> values() const;
};
struct Variant {
    std::string id, why;
    std::function<void()> run;
    Type type;
    double flops, bytes, requested;  // requested: -1 if unknown
};
// Copy and fill memory that the host cannot access. A machine that has such memory sets both; then
// its variants are compared by what they leave there.
inline void (*copy_from_device)(void* to, const void* from, size_t bytes) = nullptr;
inline void (*fill_device)(void* to, int byte, size_t bytes) = nullptr;
// Called, where runs are counted, after setup(), whose work is not the variant's.
inline void (*begin_counting)() = nullptr;

inline std::vector<float> Output::values() const {
    std::vector<char> raw(bytes());
    if (on_device) copy_from_device(raw.data(), data, bytes());
    else memcpy(raw.data(), data, bytes());
    if (type == IN_FP32) return std::vector<float>((float*)raw.data(), (float*)raw.data() + elems);
    return std::vector<float>((bf16*)raw.data(), (bf16*)raw.data() + elems);
}

// One bench at one shape, as its body declares it.
struct Case {
    double flops = 0, bytes = 0, requested = -1;
    std::vector<Output> outputs;
    std::vector<Variant> variants;
    std::function<void()> expected, setup = [] {};
    std::vector<std::shared_ptr<void>> memory;
    bool only_listed = false;  // by --list: nothing runs
};
struct Bench {
    std::string name;
    std::vector<std::string> dims;
    std::vector<Shape> shapes;
    Shape counted;
    void (*body)(const Shape&);
};
inline std::vector<Bench> registry;
inline Case* current = nullptr;  // the case being declared
struct Shapes {
    std::vector<Shape> all;
    Shape counted;
};
struct Register {
    Register(const char* name, std::vector<std::string> dims, Shapes shapes, void (*body)(const Shape&)) {
        registry.push_back({name, dims, shapes.all, shapes.counted, body});
    }
};
#define BENCH(name, dims, shapes) BENCH_AT(name, dims, shapes, __LINE__)
#define BENCH_AT(name, dims, shapes, line) BENCH_LINE(name, dims, shapes, line)
#define BENCH_LINE(name, dims, shapes, line) \
    static void bench_body_##line(const bench::Shape& shape); \
    static bench::Register bench_##line(name, dims, shapes, bench_body_##line); \
    static void bench_body_##line(const bench::Shape& shape)

// -------------------------------------------------------------------------------------------------
// what a body calls

template <class... Names>
inline std::vector<std::string> dims(Names... names) {
    return {names...};
}
inline Shape counted(Shape shape) { return shape; }
inline Shapes shapes(std::vector<Shape> all, Shape counted) { return {all, counted}; }
inline Shapes shapes(std::vector<Shape> all) { return {all, all.back()}; }
// Declare FLOPs, and the bytes that must move at least, of the variants that follow.
inline void flops(double n) { current->flops = n; }
inline void bytes(double n) { current->bytes = n; }
// Declares the bytes that the next variant requests from memory and caches: all that it does not
// reuse from registers or shared memory. Without this call they are unknown.
inline void requested(double n) { current->requested = n; }
inline void output(const char* name, float* data, int64_t elems, double tolerance) {
    current->outputs.push_back({name, IN_FP32, data, elems, tolerance});
}
inline void output(const char* name, bf16* data, int64_t elems, double tolerance) {
    current->outputs.push_back({name, IN_BF16, data, elems, tolerance});
}
template <class T>
inline void device_output(const char* name, T* data, int64_t elems, double tolerance) {
    current->outputs.push_back({name, sizeof(T) == 4 ? IN_FP32 : IN_BF16, data, elems, tolerance, true});
}
// Declares f, which writes the right values to the fp32 outputs.
inline void expected(std::function<void()> f) { current->expected = f; }
// Declares f, which is called before each comparison, for operations that update in place.
inline void setup(std::function<void()> f) { current->setup = f; }
inline void variant(const std::string& id, const char* why, std::function<void()> run, Type type = IN_FP32) {
    current->variants.push_back({id, why, run, type, current->flops, current->bytes, current->requested});
    current->requested = -1;
}
// Declares one variant for each of several sizes, for example of a block.
template <class F>
inline void sweep(const std::string& id, std::vector<int> sizes, const char* why, F run, Type type = IN_FP32) {
    const double asked = current->requested;
    for (int size : sizes) {
        requested(asked);
        variant(
            id + "-" + std::to_string(size), why, [=] { run(size); }, type);
    }
}

// Memory that is freed at the end of the case.
template <class T>
inline T* buffer(int64_t elems) {
    const size_t bytes = round_up(std::max<int64_t>(1, elems) * sizeof(T), 4096);
    // calloc: pages that are never accessed take no memory
    void* p = current->only_listed ? calloc(bytes, 1) : aligned_alloc(4096, bytes);
    current->memory.push_back(std::shared_ptr<void>(p, free));
#ifdef MADV_HUGEPAGE
    if (bytes >= (4u << 20)) madvise(p, bytes, MADV_HUGEPAGE);  // as the trainer's memory (llmc/cpu/device.h)
#endif
    if (!current->only_listed) memset(p, 0, bytes);
    return (T*)p;
}
// Values that both types hold exactly, so that all variants get the same inputs.
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

}  // namespace bench

#include "dev/bench_run.h"
