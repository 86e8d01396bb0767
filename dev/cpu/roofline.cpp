// Where the time of a training step goes on the CPU, kernel by kernel, beside the roofline of this
// machine (Williams et al. 2009, doi:10.1145/1498765.1498785). The bound of a kernel is the time
// for its FLOPs at the measured peak of its arithmetic, or for its bytes at that of the memory,
// whichever is longer. The code of the trainer itself runs; each of its calls of a kernel is timed.
//
//     build/bench/roofline B T fp32|bf16 [MODEL [STEPS [THREADS]]]        MODEL as for -e; d12 unless given
//
// Bytes are the least: every operand once. A step's activations often come from the caches.
#define BENCH_WITHOUT_MAIN
#include "dev/cpu/bench_cpu.h"
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/reference.h"
#include "llmc/cpu/scratch.h"
#include "llmc/plan_time.h"
#include "llmc/train.h"

namespace timed {
struct Row {
    std::string name;
    double seconds, flops, bytes;
    int calls;
};
static std::vector<Row> rows;  // in the order of their first calls

template <class F>
void measure(const KernelWork& work, F f) {
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == work.name; });
    if (row == rows.end()) rows.push_back({work.name, 0, 0, 0, 0}), row = rows.end() - 1;
    const double begin = now_seconds();
    f();
    row->seconds += now_seconds() - begin, row->flops += work.flops, row->bytes += work.bytes, row->calls++;
}

template <class X>
void encoder_forward(X* out, const int* inp, const X* wte, const X* wpe, int64_t B, int64_t T, int64_t C,
                     int64_t first = 0) {
    measure(work::embedding(B * T, C, sizeof(X)), [&] { ::encoder_forward(out, inp, wte, wpe, B, T, C, first); });
}
template <class X, class G>
void encoder_backward(G* dwte, G* dwpe, const X* dout, const int* inp, int64_t B, int64_t T, int64_t C, int64_t maxT,
                      bool add) {
    measure(work::embedding_backward(B * T, C, maxT, sizeof(X), sizeof(G)),
            [&] { ::encoder_backward(dwte, dwpe, dout, inp, B, T, C, maxT, add); });
}
template <class X>
void layernorm_forward(X* out, float* mean, float* rstd, const X* inp, const X* weight, const X* bias, int64_t n,
                       int64_t C) {
    measure(work::layernorm(n, C, sizeof(X)), [&] { ::layernorm_forward(out, mean, rstd, inp, weight, bias, n, C); });
}
template <class X>
void residual_layernorm_forward(X* residual, X* out, float* mean, float* rstd, const X* a, const X* b, const X* weight,
                                const X* bias, int64_t n, int64_t C) {
    measure(work::residual_layernorm(n, C, sizeof(X)),
            [&] { ::residual_layernorm_forward(residual, out, mean, rstd, a, b, weight, bias, n, C); });
}
template <class X, class G>
void layernorm_backward(X* dinp, G* dweight, G* dbias, const X* dout, const X* inp, const X* weight, const float* mean,
                        const float* rstd, int64_t n, int64_t C, bool add) {
    measure(work::layernorm_backward(n, C, sizeof(X)),
            [&] { ::layernorm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, n, C, add); });
}
using ::residual_forward, ::gelu_forward, ::classifier_chunk_rows, ::attention_decode;
template <class X>
void matmul_forward(X* out, const X* inp, const X* weight, const X* bias, int64_t n, int64_t C, int64_t OC,
                    X* gelu_out = nullptr) {
    measure(work::matmul(n, C, OC, gelu_out, sizeof(X)),
            [&] { ::matmul_forward(out, inp, weight, bias, n, C, OC, gelu_out); });
}
template <class X, class G>
void matmul_backward(X* dinp, G* dweight, G* dbias, const X* dout, const X* inp, const X* weight, int64_t n, int64_t C,
                     int64_t OC, bool add, const X* pre_gelu = nullptr) {
    measure(work::matmul_backward(n, C, OC, pre_gelu, sizeof(X), sizeof(G)),
            [&] { ::matmul_backward(dinp, dweight, dbias, dout, inp, weight, n, C, OC, add, pre_gelu); });
}
template <class X>
void attention_forward(X* out, float* lse, const X* qkv, int64_t B, int64_t T, int64_t C, int64_t NH,
                       const int* starts = nullptr) {
    measure(work::attention(B * T, T, C, sizeof(X)), [&] { ::attention_forward(out, lse, qkv, B, T, C, NH, starts); });
}
template <class X>
void attention_backward(X* dqkv, const X* dout, const X* out, const float* lse, const X* qkv, int64_t B, int64_t T,
                        int64_t C, int64_t NH, const int* starts = nullptr) {
    measure(work::attention_backward(B * T, T, C, sizeof(X)),
            [&] { ::attention_backward(dqkv, dout, out, lse, qkv, B, T, C, NH, starts); });
}
template <class X, class G>
void classifier(float* losses, X* dinp, G* dwte, X* logits, const X* inp, const X* wte, const int* targets, int64_t n,
                int64_t C, int64_t V, int64_t Vp, float dloss, bool add, float* sums = nullptr) {
    measure(work::classifier(n, C, Vp, dinp, sizeof(X), sizeof(G)),
            [&] { ::classifier(losses, dinp, dwte, logits, inp, wte, targets, n, C, V, Vp, dloss, add, sums); });
}
template <class G>
double global_norm_squared(const G* grads, size_t n) {
    double result = 0;
    measure(work::gradient_norm(n, sizeof(G)), [&] { result = ::global_norm_squared(grads, n); });
    return result;
}
template <class X, class G>
void adamw_update(X* params, float* master, float* m, float* v, const G* grads, size_t n, const AdamW& k, uint64_t seed,
                  int64_t index) {
    measure(work::adamw(n, master, sizeof(X), sizeof(G)),
            [&] { ::adamw_update(params, master, m, v, grads, n, k, seed, index); });
}
}  // namespace timed

#define KERNELS_TIMED
#define TRAINER_WITHOUT_MAIN
#include "train_gpt2_cpu.cpp"

// Exit 1 unless the kernels that ran are those that --plan counts.
static void check_planned_work(const std::vector<KernelWork>& kernels) {
    for (const KernelWork& planned : kernels) {
        const auto row = std::find_if(timed::rows.begin(), timed::rows.end(),
                                      [&](const timed::Row& r) { return r.name == planned.name; });
        const double calls = (double)planned.calls;
        const auto same = [&](double ran, double each) { return std::fabs(ran - calls * each) <= 1e-9 * ran; };
        if (row == timed::rows.end() || !same(row->flops, planned.flops) || !same(row->bytes, planned.bytes))
            runtime_failure("%s: its FLOPs and bytes are not those of --plan", planned.name.c_str());
    }
    if (timed::rows.size() != kernels.size()) runtime_failure("--plan leaves out a kernel that has run");
}

template <class floatX>
static void report(int64_t B, int64_t T, const std::string& name, int steps, int threads) {
    const Machine machine = open_machine(threads);
    free_scratch();  // the trainer allocates its own
    GPT2<floatX> model;
    Options o;
    o.threads = threads;
    model.layout = parameter_layout(config_from_descriptor(name), 1);
    Sizes sizes{model.layout.config, B, T, 0, 0, 0, true};
    settle_device(model, sizes, o);
    allocate(model, sizes, o);
    initialize_weights(model, 42);
    std::vector<int> x(B * T), y(B * T);
    for (int64_t i = 0; i < B * T; i++)
        x[i] = (int)(i * 7919 % model.layout.config.V), y[i] = (int)((i + 1) * 7919 % model.layout.config.V);
    UpdateRule rule;
    rule.adamw = adamw_constants(1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1), rule.tokens = (double)(B * T),
    rule.grad_clip = 1;
    std::vector<timed::Row> best;
    double best_s = 1e30;
    for (int step = 0; step <= steps; step++) {
        timed::rows.clear();
        const double begin = now_seconds();
        micro_step(model, x.data(), y.data(), B, T, 1.0f / (float)(B * T), 0);
        update(model, rule);
        const double seconds = now_seconds() - begin;
        // step 0 also gets its memory from the system
        if (step > 0 && seconds < best_s) best_s = seconds, best = timed::rows;
    }
    const int64_t elems = model.layout.total_elems();
    check_planned_work(step_kernels(model.sizes, elems, elems, has_master<floatX>(o)));
    const double peak = machine.flops_s[sizeof(floatX) == 2 ? IN_BF16 : IN_FP32];
    double bound_s = 0, kernels_s = 0;
    printf("%s, (B,T) = (%lld,%lld), %s: peaks %.0f GFLOP/s, %.1f GB/s\n", name.c_str(), (long long)B, (long long)T,
           arithmetic(model).c_str(), 1e-9 * peak, 1e-9 * machine.memory_bytes_s);
    printf("%-34s %5s %9s %6s %9s %8s %9s %9s\n", "kernel", "calls", "ms", "share", "GFLOP/s", "GB/s", "bound ms",
           "of bound");
    auto line = [&](const std::string& kernel, int calls, double s, double flops, double bytes, double bound) {
        printf("%-34s %5d %9.2f %5.1f%% %9.1f %8.1f %9.2f %8.1f%%\n", kernel.c_str(), calls, 1e3 * s, 100 * s / best_s,
               1e-9 * flops / s, 1e-9 * bytes / s, 1e3 * bound, 100 * bound / s);
    };
    double flops = 0, bytes = 0;
    int calls = 0;
    for (const timed::Row& r : best) {
        const double bound = std::max(r.flops / peak, r.bytes / machine.memory_bytes_s);
        line(r.name, r.calls, r.seconds, r.flops, r.bytes, bound);
        bound_s += bound, kernels_s += r.seconds, flops += r.flops, bytes += r.bytes, calls += r.calls;
    }
    line("all", calls, best_s, flops, bytes, bound_s);
    printf("between kernels: %.2f ms\n", 1e3 * (best_s - kernels_s));
}

int main(int argc, char** argv) {
    if (argc < 4 || (std::string(argv[3]) != "fp32" && std::string(argv[3]) != "bf16"))
        usage_error("roofline B T fp32|bf16 [MODEL [STEPS [THREADS]]] is accepted");
    const int64_t B = atoll(argv[1]), T = atoll(argv[2]);
    const std::string model = argc > 4 ? argv[4] : "d12";
    const int steps = argc > 5 ? atoi(argv[5]) : 3, threads = argc > 6 ? atoi(argv[6]) : 0;
    if (B < 1 || T < 1 || steps < 1) usage_error("B, T and STEPS must be 1 or more");
    std::string(argv[3]) == "bf16" ? report<bf16>(B, T, model, steps, threads)
                                   : report<float>(B, T, model, steps, threads);
    return 0;
}
