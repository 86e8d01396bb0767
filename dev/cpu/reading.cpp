// How long the threads need to read memory, once and in order: the bound of generation, which reads
// every weight once per token, and all keys and values before it.
//
//     build/bench/reading THREADS PASSES BYTES...
//
// Prints the milliseconds of a pass over so many bytes, the mean of PASSES, for each number of
// bytes. The threads read as they do in the product of one row with a matrix (llmc/cpu/matmul.h):
// the same ranges, in each of them DOT_STREAMS streams side by side.
#define BENCH_WITHOUT_MAIN
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/dot_products.h"

constexpr int64_t LINE_ELEMS = CACHE_LINE / sizeof(float);

// The sum of n elements, which must be a multiple of DOT_STREAMS cache lines.
static float read_range(const float* from, int64_t n) {
    const int64_t stream = n / DOT_STREAMS;
    vfloat total[DOT_STREAMS] = {};
    for (int64_t i = 0; i < stream; i += LINE_ELEMS)
        for (int64_t s = 0; s < DOT_STREAMS; s++) {
            const float* line = from + s * stream + i;
            fetch_stream(line, DOT_FAR);
            for (int64_t k = 0; k < LINE_ELEMS; k += VEC_FLOATS) total[s] += load(line + k);
        }
    float all = 0;
    for (const vfloat& t : total) all += sum(t);
    return all;
}

static double read_ms(int64_t bytes, int passes) {
    const int64_t least = DOT_LEAST_BYTES / sizeof(float);
    const int64_t n = bytes / sizeof(float) / least * least;
    float* from = (float*)map_memory(bytes);
    parallel_ranges(n, 1 << 18, [&](int64_t begin, int64_t end) { std::fill(from + begin, from + end, 1.0f); });
    double begin_s = 0;
    for (int pass = -1; pass < passes; pass++) {
        if (pass == 0) begin_s = now_seconds();  // the first pass warms up
        std::atomic<int64_t> wrong{0};
        parallel_streams(n, sizeof(float), [&](int64_t begin, int64_t end) {
            wrong += read_range(from + begin, end - begin) != (float)(end - begin);
        });
        if (wrong) runtime_failure("internal: the sum of what was read is not the sum of what was written");
    }
    const double seconds = now_seconds() - begin_s;
    unmap_memory(from, bytes);
    return 1e3 * seconds / passes;
}

int main(int argc, char** argv) {
    device.threads = argc > 1 ? atoi(argv[1]) : available_threads();
    const int passes = argc > 2 ? atoi(argv[2]) : 1;
    if (device.threads < 1 || passes < 1) usage_error("reading THREADS PASSES BYTES... is accepted");
    for (int i = 3; i < argc; i++) printf("%.3f\n", read_ms(atoll(argv[i]), passes));
}
