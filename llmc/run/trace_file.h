// Writes the time line of trace.h, in the JSON of Chrome's trace viewer ("Trace Event Format",
// Google 2016), which ui.perfetto.dev and chrome://tracing show; and says which kernels took
// longest, beside the roofline of the machine.
//
// Each rank is a process of the viewer (pid), each track a thread (tid). Ranks agree on the time 0
// by a barrier, so ranks on machines with different clocks are shown together.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include "llmc/base/json_text.h"
#include "llmc/plan/plan_time.h"
#include "llmc/run/run.h"

// Reads --trace-steps; exit 2 if it is no A:B with 1 <= A <= B.
inline TraceSteps trace_steps(const Options& o) {
    TraceSteps steps;
    char after;
    long long first, last;
    if (o.trace.empty()) {
        if (o.given.count("--trace-steps")) usage_error("--trace-steps needs --trace FILE");
        return steps;
    }
    if (sscanf(o.trace_steps.c_str(), "%lld:%lld%c", &first, &last, &after) != 2 || first < 1 || last < first)
        usage_error("--trace-steps %s is no range of steps; accepted: A:B, the first step and the last, 1 or more",
                    o.trace_steps);
    return {first, last};
}

// A span as a complete event ("X"); times in microseconds, of whole nanoseconds, so that a span
// that begins where another ends does so in the file.
inline std::string event_json(const Span& span, double start, int64_t rank, int64_t track) {
    const double seconds = span.end - span.begin;
    const double begin_ns = std::round(1e9 * (span.begin - start)), end_ns = std::round(1e9 * (span.end - start));
    std::string args;
    const auto arg = [&](const char* name, double value) {
        if (value > 0) args += format("%s\"%s\":%.6g", args.empty() ? "" : ",", name, value);
    };
    arg("FLOPs", span.work.flops), arg("bytes", span.work.bytes), arg("sent bytes", span.work.sent_bytes);
    if (seconds > 0) arg("GFLOP/s", 1e-9 * span.work.flops / seconds), arg("GB/s", 1e-9 * span.work.bytes / seconds);
    return format("{\"name\":%s,\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d%s}",
                  json_text(span.work.name.str()), 1e-3 * begin_ns, 1e-3 * (end_ns - begin_ns), rank, track,
                  args.empty() ? "" : ",\"args\":{" + args + "}");
}
inline std::string name_json(const char* what, const std::string& name, int64_t rank, int64_t track) {
    return format("{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":%s}}", what, rank, track,
                  json_text(name));
}

// All events of this process, separated by commas.
inline std::string trace_json(double start) {
    std::string text = name_json("process_name", format("rank %d", comm.rank), comm.rank, 0);
    for (int64_t track = 0; track < (int64_t)trace.tracks.size(); track++) {
        text += ",\n" + name_json("thread_name", trace.tracks[track].name, comm.rank, track);
        for (const Span& span : trace.tracks[track].spans) text += ",\n" + event_json(span, start, comm.rank, track);
    }
    return text;
}

// The texts of all ranks, one after the other, on rank 0.
inline std::string gather_text(const std::string& mine, const char* what) {
    const std::vector<int64_t> sizes = comm_gather((int64_t)mine.size(), what);
    const int64_t most = *std::max_element(sizes.begin(), sizes.end());
    std::string padded = mine, all(most * comm.processes, ' ');
    padded.resize(most, ' ');
    comm_gather(all.data(), padded.data(), most, what);
    std::string text;
    for (int64_t r = 0; r < comm.processes; r++) text += (r ? ",\n" : "") + all.substr(r * most, sizes[r]);
    return text;
}

// ---- what took longest

struct KernelTime {
    std::string name{};
    int64_t calls = 0;
    double seconds = 0;
    double flops = 0, bytes = 0;
};

// The kernels in the order of their first calls: spans that move bytes. A
// span within another kernel's span is part of that kernel.
inline std::vector<KernelTime> kernel_times() {
    std::vector<KernelTime> kernels;
    std::map<std::string, size_t> index;  // by name, in kernels
    for (const TraceTrack& track : trace.tracks) {
        std::vector<Span> spans = track.spans;
        std::sort(spans.begin(), spans.end(),
                  [](const Span& a, const Span& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; });
        double kernel_end = -INFINITY;
        for (const Span& span : spans) {
            if (span.work.bytes == 0 || span.begin < kernel_end) continue;
            kernel_end = span.end;
            const auto [found, is_new] = index.insert({span.work.name.str(), kernels.size()});
            if (is_new) kernels.push_back({found->first});
            KernelTime& kernel = kernels[found->second];
            kernel.calls++, kernel.seconds += span.end - span.begin;
            kernel.flops += span.work.flops, kernel.bytes += span.work.bytes;
        }
    }
    return kernels;
}

// A table of the `most` kernels that took longest, of `steps` steps that took `step_seconds`
// together.
inline std::string kernel_table(int64_t steps, double step_seconds, const PlanDevice& device, size_t most) {
    std::string text =
        format("%-34s %9s %9s %6s %9s %8s %11s\n", "kernel", "calls", "ms", "share", "GFLOP/s", "GB/s", "of roofline");
    std::vector<KernelTime> kernels = kernel_times();
    std::sort(kernels.begin(), kernels.end(),
              [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
    for (size_t i = 0; i < std::min(most, kernels.size()); i++) {
        const KernelTime& k = kernels[i];
        const double bound = bound_seconds(k.flops, k.bytes, device);
        text += format("%-34s %9.1f %9.2f %5.1f%% %9.1f %8.1f %11s\n", k.name, (double)k.calls / steps,
                       1e3 * k.seconds / steps, 100 * k.seconds / step_seconds, 1e-9 * k.flops / k.seconds,
                       1e-9 * k.bytes / k.seconds, bound > 0 ? format("%.1f%%", 100 * bound / k.seconds) : "unknown");
    }
    return text;
}

// ---- the steps of a run

// At the end of a run: says so if it had none of the steps that were to be traced.
inline void check_traced(const Run& run) {
    if (run.options.trace.empty() || run.trace_start > 0) return;
    warning("nothing was traced: the run had none of the steps %s (--trace-steps)", run.options.trace_steps);
}

// Makes the tracks, if anything is to be traced, and measures the peaks of the machine: before the
// memory of the run is touched. Exit 1 if the file cannot be written.
inline void open_trace(Run& run) {
    run.traced = trace_steps(run.options);
    if (run.options.trace.empty()) return;
    if (comm.rank == 0) {
        FileWriter trial(run.options.trace);
        if (folder_exists(trial.path)) trial.refuse("it is a folder");
    }
    trace.tracks.push_back({"program", {}});
    run.model.backend->trace_tracks(run.model);
    if (comm.rank == 0) run.traced_device = run.model.backend->this_device(run.model, run.options);
}

// Before step state.step of a run: begins to trace it if it is one of --trace-steps.
inline void begin_trace(Run& run) {
    const int64_t step = run.state.step + 1;
    if (step < run.traced.first || step > run.traced.last) return;
    if (run.trace_start == 0) {
        comm_barrier("the start of the trace");
        run.trace_start = now_seconds();
    }
    if (trace.begin_device) trace.begin_device();
    trace.on = true;
}

// After that step: writes the file, which then holds the steps traced so far; after the last one
// also says which kernels took longest.
inline void end_trace(Run& run) {
    if (!trace.on) return;
    const bool last = run.state.step == run.traced.last || run.state.step == run.max_steps;
    if (trace.end_device) trace.end_device(last);
    trace.on = false;
    const std::string events = gather_text(trace_json(run.trace_start), "the trace");
    if (comm.rank > 0) return;
    const std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events + "\n]}\n";
    FileWriter file(run.options.trace);
    file.write(text.data(), text.size());
    file.commit();
    if (!last) return;
    int64_t steps = 0;
    double seconds = 0;
    for (const Span& span : trace.tracks[0].spans)
        if (std::string(span.work.name.text) == "step") steps++, seconds += span.end - span.begin;
    run.logger.note("traced %d step%s: %s, for ui.perfetto.dev; what took longest, per step:\n%s", steps,
                    steps == 1 ? "" : "s", run.options.trace, kernel_table(steps, seconds, run.traced_device, 10));
}
