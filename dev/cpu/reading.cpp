// How long the threads need to read memory, once and in order: the bound of generation, which reads
// every weight once per token, and all keys and values before it.
//
//     build/bench/reading THREADS PASSES BYTES...
//
// Prints the milliseconds of a pass over so many bytes, the mean of PASSES, for each number of
// bytes. Each thread reads 4 streams side by side, as the product of one row with a matrix does
// (llmc/cpu/dot_products.h).
#define BENCH_WITHOUT_MAIN
#include "dev/cpu/bench_cpu.h"

static double read_ms(int64_t bytes, int passes) {
    constexpr int64_t STREAMS = 4, LINE = 64 / sizeof(float), AHEAD = 1024;
    const int64_t pieces = 2 * device.threads, stream = bytes / 4 / (pieces * STREAMS) / LINE * LINE;
    float* from = (float*)map_memory(bytes);
    parallel_ranges(bytes / 4, 1 << 18, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) from[i] = 1;
    });
    std::vector<float> sums(pieces);
    double begin = 0;
    for (int pass = -1; pass < passes; pass++) {
        if (pass == 0) begin = now_seconds();  // the first pass warms up
        parallel_for(pieces, [&](int64_t piece) {
            vfloat total[STREAMS] = {};
            for (int64_t i = 0; i < stream; i += LINE)
                for (int64_t s = 0; s < STREAMS; s++) {
                    const float* line = from + (piece * STREAMS + s) * stream + i;
                    __builtin_prefetch(line + AHEAD);
                    for (int64_t k = 0; k < LINE; k += VEC_FLOATS) total[s] += load(line + k);
                }
            sums[piece] = sum(total[0] + total[1] + total[2] + total[3]);
        });
    }
    const double seconds = now_seconds() - begin;
    for (float s : sums)
        if (s != sums[0]) runtime_failure("internal: the threads read different sums");
    unmap_memory(from, bytes);
    return 1e3 * seconds / passes;
}

int main(int argc, char** argv) {
    device.threads = argc > 1 ? atoi(argv[1]) : available_threads();
    const int passes = argc > 2 ? atoi(argv[2]) : 1;
    if (device.threads < 1 || passes < 1) usage_error("reading THREADS PASSES BYTES... is accepted");
    for (int i = 3; i < argc; i++) printf("%.3f\n", read_ms(atoll(argv[i]), passes));
}
