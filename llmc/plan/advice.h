// Warnings at the start of a run that will be slower or dearer than it need be, though nothing is
// wrong: one sentence each, with what to do. Runs that take a moment on any machine get none.
#pragma once
#include "llmc/base/logger.h"
#include "llmc/plan/plan_memory.h"
#include "llmc/plan/plan_time.h"

struct AdviceInput {
    Sizes sizes;
    double steps, step_tokens;
    bool new_model;                   // its shape can still be chosen
    double planned_bytes = 0;         // of the machine's memory, of all processes on it
    double free_bytes = INFINITY;     // of that memory; infinity: unknown
    double allowed_bytes = INFINITY;  // by the control groups
    std::string build = "";           // how the program was built, if that makes it slow
    std::string unused = "";          // a sentence on what the device has and the program does not use
};

constexpr double LEAST_RUN_FLOPS = 1e12;       // ten seconds at 100 GFLOP/s
constexpr int64_t LEAST_PARAMETERS = 1000000;  // smaller models are bound by other work than their products
constexpr double LEAST_WASTE = 0.05;           // of the work, on padding

// The tokens of a micro-batch below which weights take longer to read than to multiply. A weight in
// bf16 has 2 bytes and takes part in 2 B*T FLOPs of a product, so that is B*T = peak FLOP/s over
// bytes/s: 150 to 300 on GPUs (mfu.h), less on CPUs.
constexpr int64_t LEAST_ROWS_GPU = 256, LEAST_ROWS_CPU = 64;

// How many channels a unit of the device takes at a time. GPUs: 128 bytes (NVIDIA, Matrix
// Multiplication Background User's Guide, section 2); CPUs: a vector of AVX-512, or a tile in bf16
// (pack.h).
inline int64_t unit_channels(const Sizes& s) { return s.gpu ? 128 / s.floatX_bytes : s.floatX_bytes == 4 ? 16 : 32; }

// The tokens of a step that trained best in experiments with so much compute, FLOPs without those
// of the embeddings: 0.2920 C^0.3271 (DeepSeek LLM 2024, arXiv:2401.02954, section 3.1).
inline double usual_step_tokens(const GPT2Config& c, int64_t T, double tokens) {
    const double L = (double)c.L, C = (double)c.C;
    const double token_flops = 72 * L * C * C + 12 * L * C * (double)T;
    return 0.2920 * std::pow(token_flops * tokens, 0.3271);
}
// How far from the usual tokens a step is advised on, and from how many steps on. Other schedules,
// data and aims want other batches: only far outside is there something to say.
constexpr double USUAL_FACTOR = 32, LEAST_STEPS = 100;

inline void advise_on_shape(std::vector<std::string>& advice, const Sizes& s) {
    const GPT2Config& c = s.config;
    const int64_t unit = unit_channels(s), padded = round_up(c.C, unit);
    if ((double)(padded - c.C) > LEAST_WASTE * (double)c.C)
        advice.push_back(format("-e has %d channels, which take as long as %d: a multiple of %d uses the %s fully", c.C,
                                padded, unit, s.gpu ? "tensor cores" : "vector units"));
}

inline void advise_on_batch(std::vector<std::string>& advice, const AdviceInput& in) {
    const Sizes& s = in.sizes;
    const int64_t least_rows = s.gpu ? LEAST_ROWS_GPU : LEAST_ROWS_CPU;
    if (s.rows() < least_rows)
        advice.push_back(
            format("-b %d -t %d: with fewer than %d tokens in a micro-batch the weights take longer "
                   "to read than to multiply; a larger -b needs less time per token",
                   s.B, s.T, least_rows));
    const double usual = usual_step_tokens(s.config, s.T, in.steps * in.step_tokens);
    if (in.steps < LEAST_STEPS) return;
    const bool small = usual > USUAL_FACTOR * in.step_tokens;
    const bool large = in.step_tokens > USUAL_FACTOR * usual;
    if (small || large)
        advice.push_back(
            format("a step of %.0f tokens is %s for this model and this many tokens, for which about "
                   "%s train best (DeepSeek LLM 2024, section 3.1); -d sets them",
                   in.step_tokens, small ? "small" : "large", grouped_text((int64_t)usual)));
}

// Advises where Newton-Schulz takes more FLOPs than the model: it takes the same in each step,
// however few its tokens are.
inline void advise_on_muon(std::vector<std::string>& advice, const AdviceInput& in) {
    const double model_flops = in.step_tokens * flops_per_token(in.sizes);
    const double times = orthogonalize_flops(in.sizes, 1) / model_flops;
    if (times > 1)
        advice.push_back(
            format("--optimizer muon: Newton-Schulz dominates a step of %.0f tokens, with %.1f times the FLOPs of the "
                   "model; a larger -d or adamw needs less time per token",
                   in.step_tokens, times));
}

// All sentences, without "warning: ".
inline std::vector<std::string> advice_on(const AdviceInput& in) {
    std::vector<std::string> advice;
    const double run_flops = in.steps * in.step_tokens * flops_per_token(in.sizes);
    if (!in.sizes.training) return advice;
    if (in.planned_bytes > in.allowed_bytes)
        advice.push_back(
            format("the run needs %s of memory, and its container or batch job may have %s (control group): it will be "
                   "killed, or slowed; ask for more, or lower it: --plan says which flags do",
                   memory_text(in.planned_bytes), memory_text(in.allowed_bytes)));
    else if (in.planned_bytes > in.free_bytes)
        advice.push_back(
            format("the run needs %s of memory, and only %s is free: it will swap, or be killed; --plan "
                   "says which flags lower it",
                   memory_text(in.planned_bytes), memory_text(in.free_bytes)));
    if (run_flops < LEAST_RUN_FLOPS || parameter_count(in.sizes.config) < LEAST_PARAMETERS) return advice;
    if (!in.build.empty())
        advice.push_back(
            format("this program was built %s and is several times slower; `make` without SANITIZE and "
                   "DEBUG builds the fast one",
                   in.build));
    if (!in.unused.empty()) advice.push_back(in.unused);
    if (in.new_model) advise_on_shape(advice, in.sizes);
    advise_on_batch(advice, in);
    advise_on_muon(advice, in);
    return advice;
}

// How this program was built, if that makes it slow.
inline std::string slow_build() {
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer)
    return "with a sanitizer";
#elif !defined(__OPTIMIZE__)
    return "without optimisation";
#else
    return "";
#endif
}
