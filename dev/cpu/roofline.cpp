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
#include "llmc/plan/plan_time.h"
#include "llmc/model/initial_weights.h"
#include "llmc/run/trace_file.h"

#define TRAINER_WITHOUT_MAIN
#include "train_gpt2_cpu.cpp"

// Exit 1 unless the kernels that ran are those that --plan counts.
static void check_planned_work(const std::vector<KernelTime>& ran, const std::vector<KernelWork>& planned) {
    for (const KernelWork& work : planned) {
        const std::string name = work.name.str();
        const auto kernel = std::find_if(ran.begin(), ran.end(), [&](const KernelTime& k) { return k.name == name; });
        const double calls = (double)work.calls;
        const auto same = [&](double in_all, double each) { return std::fabs(in_all - calls * each) <= 1e-9 * in_all; };
        if (kernel == ran.end() || !same(kernel->flops, work.flops) || !same(kernel->bytes, work.bytes))
            runtime_failure("%s: its FLOPs and bytes are not those of --plan", name);
    }
    if (ran.size() != planned.size()) runtime_failure("--plan leaves out a kernel that has run");
}

template <class floatX>
static void report(int64_t B, int64_t T, const std::string& name, int steps, int threads) {
    const Machine machine = open_machine(threads);
    free_scratch();  // the trainer allocates its own
    GPT2 model;
    model.backend = &cpu_backend<floatX>();
    Options o;
    o.threads = threads;
    model.layout = parameter_layout(config_from_descriptor(name), 1);
    Sizes sizes{model.layout.config, B, T, 0, 0, 0, true};
    model.backend->settle(model, sizes, o);
    model.backend->allocate(model, sizes, o);
    initialize_weights(model, 42);
    std::vector<int> x(B * T), y(B * T);
    for (int64_t i = 0; i < B * T; i++)
        x[i] = (int)(i * 7919 % model.layout.config.V), y[i] = (int)((i + 1) * 7919 % model.layout.config.V);
    UpdateSettings settings;
    settings.constants = update_constants(1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1), settings.tokens = (double)(B * T),
    settings.grad_clip = 1;
    trace.tracks.push_back({"program", {}});
    std::vector<KernelTime> best;
    double best_s = 1e30;
    for (int step = 0; step <= steps; step++) {
        trace.tracks[0].spans.clear();
        trace.on = true;
        const double begin = now_seconds();
        const Batch batch{x.data(), y.data(), B, T, 1.0f / (float)(B * T)};
        forward<floatX>(model, batch);
        backward<floatX>(model, batch);
        update<floatX>(model, settings, loss_and_norm<floatX>(model, settings));
        const double seconds = now_seconds() - begin;
        trace.on = false;
        // step 0 also gets its memory from the system
        if (step > 0 && seconds < best_s) best_s = seconds, best = kernel_times();
    }
    const int64_t elems = model.layout.total_elems(), updated = parameter_count(model.layout.config);
    check_planned_work(best, step_kernels(model.sizes, ADAMW, elems, updated, has_master(model.format, o)));
    PlanDevice peaks;
    peaks.flops_s = machine.flops_s[sizeof(floatX) == 2 ? IN_BF16 : IN_FP32], peaks.bytes_s = machine.memory_bytes_s;
    double bound_s = 0, kernels_s = 0;
    const std::string unit = sizeof(floatX) == 2 ? format("bf16 on %s", MATRIX_UNIT_NAMES[device.unit]) : "fp32";
    printf("%s, (B,T) = (%lld,%lld), %s, %d thread%s: peaks %.0f GFLOP/s, %.1f GB/s\n", name.c_str(), (long long)B,
           (long long)T, unit.c_str(), device.threads, device.threads == 1 ? "" : "s", 1e-9 * peaks.flops_s,
           1e-9 * peaks.bytes_s);
    printf("%-34s %5s %9s %6s %9s %8s %9s %9s\n", "kernel", "calls", "ms", "share", "GFLOP/s", "GB/s", "bound ms",
           "of bound");
    auto line = [&](const KernelTime& k, double bound) {
        printf("%-34s %5d %9.2f %5.1f%% %9.1f %8.1f %9.2f %8.1f%%\n", k.name.c_str(), (int)k.calls, 1e3 * k.seconds,
               100 * k.seconds / best_s, 1e-9 * k.flops / k.seconds, 1e-9 * k.bytes / k.seconds, 1e3 * bound,
               100 * bound / k.seconds);
    };
    KernelTime all;
    all.name = "all", all.seconds = best_s;
    for (const KernelTime& k : best) {
        line(k, bound_seconds(k.flops, k.bytes, peaks));
        bound_s += bound_seconds(k.flops, k.bytes, peaks), kernels_s += k.seconds;
        all.flops += k.flops, all.bytes += k.bytes, all.calls += k.calls;
    }
    line(all, bound_s);
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
