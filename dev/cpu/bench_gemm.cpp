// The three products of each linear layer of GPT-2 124M, as the trainer calls them, against the machine's peak of fused multiply-adds.
#include <cstdlib>
#include "llmc/cpu/gemm.h"
#include "llmc/cpu/peak.h"


int main(int argc, char** argv) {
    device.threads = argc > 1 ? std::max(1, atoi(argv[1])) : available_threads();
    device.scratch_elems = GEMM_SCRATCH_ELEMS;
    device.scratch = (float*)map_memory(device.threads * device.scratch_elems * sizeof(float));
    double peak = measure_peak_flops();
    struct Layer { const char* name; int64_t C, OC; };
    const Layer layers[] = {{"qkv", 768, 2304}, {"attproj", 768, 768}, {"fc", 768, 3072}, {"fcproj", 3072, 768}, {"head", 768, 50304}};
    for (int64_t rows : {256, 1024}) {
        double flops = 0, time = 0;
        for (const Layer& l : layers) {
            const int64_t n = l.OC > 50000 ? 256 : rows;  // the head goes through in chunks of 256 rows
            float *x = (float*)map_memory(n * l.C * 4), *w = (float*)map_memory(l.OC * l.C * 4), *y = (float*)map_memory(n * l.OC * 4);
            for (int64_t i = 0; i < n * l.C; i++) x[i] = (float)(i % 19) * 0.1f;
            for (int64_t i = 0; i < l.OC * l.C; i++) w[i] = (float)(i % 17) * 0.1f;
            for (int64_t i = 0; i < n * l.OC; i++) y[i] = (float)(i % 13) * 0.1f;
            for (int product = 0; product < 3; product++) {
                double best = 1e9;
                for (int run = 0; run < 10; run++) {
                    const double begin = now_seconds();
                    if (product == 0) gemm(y, l.OC, MatrixView<float>{x, l.C, 1}, MatrixView<float>{w, 1, l.C}, n, l.OC, l.C, false);
                    if (product == 1) gemm(x, l.C, MatrixView<float>{y, l.OC, 1}, MatrixView<float>{w, l.C, 1}, n, l.C, l.OC, false);
                    if (product == 2) gemm(w, l.C, MatrixView<float>{y, 1, l.OC}, MatrixView<float>{x, l.C, 1}, l.OC, l.C, n, false);
                    best = std::min(best, now_seconds() - begin);
                }
                const double work = 2.0 * n * l.C * l.OC;
                const double repeats = l.OC > 50000 ? (double)rows / n : 12;
                peak = std::max(peak, measure_peak_flops());
                printf("%4lld rows, %-8s %-8s %8.2f ms %7.1f GFLOP/s %6.1f%% of peak\n", (long long)n, l.name, product == 0 ? "forward" : product == 1 ? "dinp" : "dweight", best * 1e3, work / best * 1e-9, 100 * work / best / peak);
                flops += work * repeats, time += best * repeats;
            }
            unmap_memory(x, n * l.C * 4), unmap_memory(w, l.OC * l.C * 4), unmap_memory(y, n * l.OC * 4);
        }
        printf("%4lld rows, all of a step      %7.1f GFLOP/s %6.1f%% of peak (%.0f GFLOP/s)\n", (long long)rows, flops / time * 1e-9, 100 * flops / time / peak, peak * 1e-9);
    }
}
