// Where the time of a training step, or of reading a prompt, goes on the CPU, kernel by kernel,
// beside the roofline of this machine (Williams et al. 2009, doi:10.1145/1498765.1498785). The
// bound of a kernel is the time for its FLOPs at the measured peak of its arithmetic, or for its
// bytes at that of the memory, whichever is longer. The code of the trainer itself runs; each of
// its calls of a kernel is timed.
//
//     build/bench/roofline B T fp32|fp32x3|bf16 [MODEL [STEPS [THREADS [LEVEL]]]]   MODEL as for -e; d12 unless given
//     build/bench/roofline prompt T fp32|fp32x3|bf16 [MODEL [STEPS [THREADS]]]   T tokens, read STEPS times
//
// LEVEL: what is kept is kept as codes (--compress-activations 1), at this level of recomputation.
//
// The first step, or prompt, also gets its memory from the system; the table is that of the fastest
// of the others.
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

// What is timed: a step at (B, T), or a prompt of T tokens.
struct Pass {
    bool prompt;
    int64_t B, T;
    std::string model, precision;
    int64_t level = -1;  // of recomputation, with codes; -1: nothing is recomputed or encoded
};

// Prints the kernels of a pass that took `seconds`, and what all of them took.
static void print_kernels(const std::vector<KernelTime>& kernels, double seconds, const PlanDevice& peaks) {
    printf("%-34s %5s %9s %6s %9s %8s %9s %9s\n", "kernel", "calls", "ms", "share", "GFLOP/s", "GB/s", "bound ms",
           "of bound");
    auto line = [&](const KernelTime& k, double bound) {
        printf("%-34s %5d %9.2f %5.1f%% %9.1f %8.1f %9.2f %8.1f%%\n", k.name.c_str(), (int)k.calls, 1e3 * k.seconds,
               100 * k.seconds / seconds, 1e-9 * k.flops / k.seconds, 1e-9 * k.bytes / k.seconds, 1e3 * bound,
               100 * bound / k.seconds);
    };
    double bound_s = 0, kernels_s = 0;
    KernelTime all;
    all.name = "all", all.seconds = seconds;
    for (const KernelTime& k : kernels) {
        line(k, bound_seconds(k.flops, k.bytes, peaks));
        bound_s += bound_seconds(k.flops, k.bytes, peaks), kernels_s += k.seconds;
        all.flops += k.flops, all.bytes += k.bytes, all.calls += k.calls;
    }
    line(all, bound_s);
    printf("between kernels: %.2f ms\n", 1e3 * (seconds - kernels_s));
}

template <class floatX>
static void report(const Pass& pass, int steps, int threads) {
    const Machine machine = open_machine(threads);
    free_scratch();  // the trainer allocates its own
    const int64_t B = pass.B, T = pass.T;
    GPT2 model;
    model.backend = &cpu_backend<floatX>();
    Options o;
    o.threads = threads, o.precision = pass.precision;
    model.layout = parameter_layout(config_from_descriptor(pass.model), 1);
    const GPT2Config& c = model.layout.config;
    if (T > c.maxT) usage_error("%s has %d positions", pass.model, c.maxT);
    Sizes sizes{c, B, T, std::max<int64_t>(0, pass.level), 0, 0, !pass.prompt};
    sizes.compressed_activations = pass.level >= 0;
    if (pass.prompt) sizes.T = sizes.cache_T = c.maxT, sizes.logit_rows = 1;  // as without training steps
    model.backend->settle(model, sizes, o);
    model.backend->allocate(model, sizes, o);
    initialize_weights(model, 42);
    std::vector<int> x(B * T), y(B * T);
    for (int64_t i = 0; i < B * T; i++) x[i] = (int)(i * 7919 % c.V), y[i] = (int)((i + 1) * 7919 % c.V);
    UpdateSettings settings;
    settings.constants = update_constants(1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1), settings.tokens = (double)(B * T),
    settings.grad_clip = 1;
    trace.tracks.push_back({"program", {}});
    std::vector<KernelTime> best;
    double best_s = 1e30, first_s = 0;
    for (int step = 0; step <= steps; step++) {
        trace.tracks[0].spans.clear();
        trace.on = true;
        const double begin = now_seconds();
        const Batch batch{x.data(), y.data(), B, T, 1.0f / (float)(B * T)};
        if (pass.prompt) {
            prefill<floatX>(model, x.data(), T);
        } else {
            forward<floatX>(model, batch);
            backward<floatX>(model, batch);
            update<floatX>(model, settings, loss_and_norm<floatX>(model, settings));
        }
        const double seconds = now_seconds() - begin;
        trace.on = false;
        if (step == 0) first_s = seconds;
        else if (seconds < best_s) best_s = seconds, best = kernel_times();
    }
    const int64_t elems = model.layout.total_elems(), updated = parameter_count(c);
    if (!pass.prompt)
        check_planned_work(best, step_kernels(model.sizes, ADAMW, elems, updated, has_master(model.format, o)));
    PlanDevice peaks;
    const bool on_unit = unit_multiplies(model);
    peaks.flops_s = machine.flops_s[on_unit ? IN_BF16 : IN_FP32] / unit_products();
    peaks.bytes_s = machine.memory_bytes_s;
    const std::string unit =
        on_unit ? format("%s on %s", pass.precision, MATRIX_UNIT_NAMES[device.unit]) : pass.precision;
    const std::string what = pass.prompt ? format("a prompt of %d tokens", T) : format("(B,T) = (%d,%d)", B, T);
    printf("%s, %s, %s, %d thread%s: peaks %.0f GFLOP/s, %.1f GB/s\n", pass.model.c_str(), what.c_str(), unit.c_str(),
           device.threads, device.threads == 1 ? "" : "s", 1e-9 * peaks.flops_s, 1e-9 * peaks.bytes_s);
    print_kernels(best, best_s, peaks);
    printf("the first: %.2f ms\n", 1e3 * first_s);
}

int main(int argc, char** argv) {
    const std::string precision = argc > 3 ? argv[3] : "";
    if (precision != "fp32" && precision != "fp32x3" && precision != "bf16")
        usage_error("roofline B|prompt T fp32|fp32x3|bf16 [MODEL [STEPS [THREADS [LEVEL]]]] is accepted");
    const bool prompt = std::string(argv[1]) == "prompt";
    const Pass pass{prompt,    prompt ? 1 : atoll(argv[1]),   atoll(argv[2]), argc > 4 ? argv[4] : "d12",
                    precision, argc > 7 ? atoll(argv[7]) : -1};
    const int steps = argc > 5 ? atoi(argv[5]) : 3, threads = argc > 6 ? atoi(argv[6]) : 0;
    if (pass.B < 1 || pass.T < 1 || steps < 1 || pass.level > 3)
        usage_error("B, T and STEPS must be 1 or more, LEVEL at most 3");
    precision == "bf16" ? report<bf16>(pass, steps, threads) : report<float>(pass, steps, threads);
    return 0;
}
