// How evenly the kernels of GPT-2 124M divide among threads, without running them: their loops only
// count their pieces here, as on a CPU whose second-level cache is small. Pieces of a loop take
// equally long, so N threads need ceil(pieces / N) rounds, and the share of idle time is
// 1 - pieces / (N rounds). Prints the table of dev/cpu/README.md (dev/test/many_cores.sh writes it
// there). Exit 1 if a step has more idle time than a bound.
#include <unistd.h>
#undef _SC_LEVEL2_CACHE_SIZE
#define parallel_for shipped_parallel_for
#define parallel_ranges shipped_parallel_ranges
#include "llmc/cpu/device.h"
#undef parallel_for
#undef parallel_ranges

struct Loop {
    int64_t pieces;
    bool product;
};
static std::vector<Loop> loops;

template <class F>
inline void parallel_for(int64_t n, F) {
    const char* name = __PRETTY_FUNCTION__;
    loops.push_back({n, strstr(name, "gemm_fp32(") || strstr(name, "gemm_on_unit")});
}
template <class F>
inline void parallel_ranges(int64_t n, int64_t grain, F) {
    loops.push_back({ceil_div(n, grain), false});
}

#include "llmc/cpu/adamw.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/scratch.h"

constexpr int THREADS[] = {1, 2, 3, 4, 8, 16, 32, 64};
constexpr size_t ADDRESS_BYTES = 1 << 20;
constexpr int64_t LAYERS = 12, C = 768, NH = 12, V = 50257, Vp = 50304, T = 1024;

static double idle_share(int64_t pieces, int threads) {
    return 1.0 - (double)pieces / (double)(threads * ceil_div(pieces, (int64_t)threads));
}

// The time of a step on one thread, and the time for which N threads are held, in FLOPs.
struct Total {
    double work = 0, held = 0;
};

// A row of the table. Of a kernel with products, these are what counts.
template <class Kernel>
static void row(const char* name, bool has_products, double flops, std::vector<Total>& totals, Kernel kernel) {
    printf("| %s |", name);
    for (size_t i = 0; i < std::size(THREADS); i++) {
        device.threads = THREADS[i];
        loops.clear();
        kernel();
        int64_t pieces = 0, counted = 0;
        double idle = 0;
        for (const Loop& loop : loops) {
            if (has_products != loop.product) continue;
            pieces += loop.pieces, idle += idle_share(loop.pieces, THREADS[i]), counted++;
        }
        if (counted == 0) runtime_failure("%s: the loops of its products are not found", name);
        idle /= (double)counted;
        totals[i].work += flops, totals[i].held += flops / (1 - idle);
        printf(" %lld, %.0f%% |", (long long)(pieces / counted), 100 * idle);
    }
    printf("\n");
}

template <class floatX>
static std::vector<Total> table(int64_t B) {
    const int64_t n = B * T;
    floatX* x = (floatX*)map_memory(ADDRESS_BYTES);  // an address: no loop runs
    float* f = (float*)x;
    std::vector<int> targets(n);
    std::vector<Total> totals(std::size(THREADS));
    const auto products = [&](const char* name, int64_t in, int64_t out) {
        const double flops = 2.0 * (double)(n * in * out * LAYERS);
        row(format("%s forward", name).c_str(), true, flops, totals, [&] { matmul_forward(x, x, x, x, n, in, out); });
        row(format("%s backward", name).c_str(), true, 2 * flops, totals,
            [&] { matmul_backward(x, x, x, x, x, x, n, in, out, false); });
    };
    printf("| B %lld, %s |", (long long)B, sizeof(floatX) == 2 ? "bf16" : "fp32");
    for (int threads : THREADS) printf(" %d |", threads);
    printf("\n|---|");
    for (size_t i = 0; i < std::size(THREADS); i++) printf("---|");
    printf("\n");
    products("qkv", C, 3 * C);
    products("attproj", C, C);
    products("fc", C, 4 * C);
    products("fcproj", 4 * C, C);
    const double attention = 2.0 * (double)(n * T * C * LAYERS);
    row("attention forward", false, attention, totals, [&] { attention_forward(x, f, x, B, T, C, NH); });
    row("attention backward", false, 2.5 * attention, totals, [&] { attention_backward(x, x, x, f, x, B, T, C, NH); });
    row("classifier", true, 6.0 * (double)(n * C * Vp), totals,
        [&] { classifier(f, x, x, x, x, x, targets.data(), n, C, V, Vp, 1.0f, false, f); });
    row("layer norm", false, 0, totals, [&] { layernorm_forward(x, f, f, x, x, x, n, C); });
    row("AdamW, a layer", false, 0, totals,
        [&] { adamw_update(x, f, f, f, x, 12 * C * C + 13 * C, UpdateConstants{}); });
    printf("| **idle in a step** |");
    for (size_t i = 0; i < std::size(THREADS); i++)
        printf(" **%.0f%%** |", 100 * (1 - totals[i].work / totals[i].held));
    printf("\n\n");
    unmap_memory(x, ADDRESS_BYTES);
    return totals;
}

int main() {
    device.transposed_elems = size_t(1) << 40;
    bool good = true;
    const auto expect = [&](const std::vector<Total>& totals, double most) {
        for (const Total& total : totals) good &= total.work > 0 && 1 - total.work / total.held < most;
    };
    expect(table<float>(4), 0.1);
    device.unit = UNIT_AMX;
    expect(table<bf16>(4), 0.15);
    if (!good) fprintf(stderr, "more is idle than the bounds in dev/cpu/pieces.cpp allow\n");
    return good ? 0 : 1;
}
