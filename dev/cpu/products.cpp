// The matrix products of a training step and nothing else: of the four weights of each layer and of
// the classifier, one forward and two backward, in the order of a step. Each layer has its own
// weights and gradients, so that they come from memory as they do in training. dev/products.py does
// the same in PyTorch, oneDNN and OpenBLAS.
//
//     build/bench/products ROWS PRECISION [MODEL [PASSES [THREADS]]]   MODEL as for -e; d12 unless given
//
// PRECISION is fp32, fp32x3 or bf16, or avx512-bf16: by that unit, also where it is not the best.
//
// Prints the measured peak, then one line of JSON per pass: for each product the milliseconds of
// all its calls.
#define BENCH_WITHOUT_MAIN
#include "dev/cpu/bench_cpu.h"
#include "llmc/gpt2/config.h"
#include "llmc/cpu/matmul.h"

struct Weight {
    const char* name;
    int64_t C, OC, layers;
};
enum Direction { FORWARD, DINP, DWEIGHT };
constexpr const char* DIRECTIONS[] = {"forward", "dinp", "dweight"};

template <class floatX>
struct Operands {
    std::vector<floatX*> weight, dweight;  // by layer
    floatX *inp, *out, *dinp, *dout;
};

// n values, few of them zero and none subnormal, in pages that have been written.
template <class floatX>
static floatX* values(int64_t n) {
    floatX* p = (floatX*)map_memory(n * sizeof(floatX));
    parallel_ranges(n, 1 << 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) p[i] = (float)(i % 251 - 125) / 1024;
    });
    return p;
}

template <class floatX>
static void multiply(const Weight& w, const Operands<floatX>& o, Direction direction, int64_t layer, int64_t rows) {
    floatX* const none = nullptr;
    floatX* const weight = o.weight[layer];
    if (direction == FORWARD) matmul_forward(o.out, o.inp, weight, none, rows, w.C, w.OC);
    if (direction == DINP)
        gemm(o.dinp, w.C, MatrixView<floatX>{o.dout, w.OC, 1}, MatrixView<floatX>{weight, w.C, 1}, rows, w.C, w.OC,
             false);
    if (direction == DWEIGHT)
        matmul_backward(none, o.dweight[layer], none, o.dout, o.inp, weight, rows, w.C, w.OC, false);
}

template <class floatX>
static void measure(int64_t rows, const GPT2Config& config, int passes, const Machine& machine) {
    const int64_t C = config.C, L = config.L;
    const Weight weights[] = {
        {"qkv", C, 3 * C, L}, {"proj", C, C, L}, {"fc", C, 4 * C, L}, {"out", 4 * C, C, L}, {"head", C, config.Vp, 1}};
    constexpr int N = 5, HEAD = 4;
    if (sizeof(floatX) == 2 || device.splits_fp32) {
        unmap_memory(device.transposed, device.transposed_elems * sizeof(bf16));
        device.transposed_elems =
            std::max(matmul_transposed_elems<floatX>(rows, config.Vp), matmul_transposed_elems<floatX>(rows, 4 * C));
        device.transposed = (bf16*)map_memory(device.transposed_elems * sizeof(bf16));
    }
    Operands<floatX> operands[N];
    for (int i = 0; i < N; i++) {
        const Weight& w = weights[i];
        Operands<floatX>& o = operands[i];
        for (int64_t l = 0; l < w.layers; l++) {
            o.weight.push_back(values<floatX>(w.C * w.OC));
            o.dweight.push_back(values<floatX>(w.C * w.OC));
        }
        o.inp = values<floatX>(rows * w.C), o.dinp = values<floatX>(rows * w.C);
        o.out = values<floatX>(rows * w.OC), o.dout = values<floatX>(rows * w.OC);
    }
    printf("{\"peak_gflops\": %.1f}\n", 1e-9 * machine.flops_s[sizeof(floatX) == 2 ? IN_BF16 : IN_FP32]);
    for (int pass = 0; pass <= passes; pass++) {  // pass 0 warms up
        double seconds[N][3] = {};
        auto run = [&](int i, Direction direction, int64_t layer) {
            const double begin = now_seconds();
            multiply(weights[i], operands[i], direction, layer, rows);
            seconds[i][direction] += now_seconds() - begin;
        };
        for (int64_t l = 0; l < L; l++)
            for (int i = 0; i < HEAD; i++) run(i, FORWARD, l);
        run(HEAD, FORWARD, 0), run(HEAD, DINP, 0), run(HEAD, DWEIGHT, 0);
        for (int64_t l = L - 1; l >= 0; l--)
            for (int i = HEAD - 1; i >= 0; i--) run(i, DINP, l), run(i, DWEIGHT, l);
        std::string line;
        for (int i = 0; i < N; i++)
            for (int d = FORWARD; d <= DWEIGHT; d++)
                line += format("%s\"%s %s\": %.4f", line.empty() ? "" : ", ", weights[i].name, DIRECTIONS[d],
                               1e3 * seconds[i][d]);
        if (pass > 0) printf("{%s}\n", line.c_str());
    }
}

int main(int argc, char** argv) {
    const std::string precision = argc > 2 ? argv[2] : "";
    const bool by_avx512 = precision == "avx512-bf16", in_bf16 = by_avx512 || precision == "bf16";
    if (precision != "fp32" && precision != "fp32x3" && !in_bf16)
        usage_error("products ROWS fp32|fp32x3|bf16|avx512-bf16 [MODEL [PASSES [THREADS]]] is accepted");
    if (by_avx512 && !has_matrix_unit(UNIT_AVX512_BF16)) usage_error("this CPU has no AVX512-BF16");
    const int64_t rows = atoll(argv[1]);
    const int passes = argc > 4 ? atoi(argv[4]) : 3, threads = argc > 5 ? atoi(argv[5]) : 0;
    if (rows < 1 || passes < 1) usage_error("ROWS and PASSES must be 1 or more");
    device.splits_fp32 = precision == "fp32x3";
    const GPT2Config config = config_from_descriptor(argc > 3 ? argv[3] : "d12");
    const Machine machine = open_machine(threads);
    if (by_avx512) device.unit = UNIT_AVX512_BF16;
    in_bf16 ? measure<bf16>(rows, config, passes, machine) : measure<float>(rows, config, passes, machine);
    return 0;
}
