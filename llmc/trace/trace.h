// What the program does in some steps, as a time line: --trace FILE --trace-steps A:B.
//
// A Range is a span of that time line, from its construction to its destruction. The trainers and
// the kernels have one wherever a profiler should show a name; ranges nest. On a GPU a Range is
// also an NVTX range. While nothing is traced, a Range on the CPU costs one comparison.
//
// A step on two threads:
//
//     program    | step 7                                                             |
//                | data | forward                        | backward         | update  |
//                       | layer_forward 0 | layer_forw.. |
//                       | matmul | attent |
//     thread 0          |########|  ##### |                           what each thread does of a loop
//     thread 1          |####### | ###### |
//
// trace_file.h writes the time line, and sums it up.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include "llmc/base/clock.h"
#include "llmc/trace/work.h"

struct Span {
    KernelWork work;  // its name, and what is computed, if it is a kernel
    double begin, end;
};

// Track 0 is the program's; the others are threads of the CPU, or streams of a GPU.
struct TraceTrack {
    std::string name;
    std::vector<Span> spans;
};

struct Trace {
    bool on = false;  // a step that is traced is running
    std::vector<TraceTrack> tracks;
    int64_t communication = 0;  // the track of what travels while the program does something else; 0: none
    KernelName innermost{""};   // of the ranges that the program is in
    // A GPU computes what the host has enqueued before; these begin and end the tracks of its
    // streams.
    void (*begin_device)() = nullptr;
    void (*end_device)(bool last) = nullptr;  // last: no other step is traced
    // For the ranges of another profiler (NVTX, in cuda/launch.cuh).
    void (*push)(const char* name) = nullptr;
    void (*pop)() = nullptr;
    // Called with each range that ends, if it is set (not_finite.h).
    std::function<void(const KernelWork&)> at_end;

    void add(int64_t track, const Span& span) { tracks[track].spans.push_back(span); }
    // What travels does so in the order of its start: each span begins where the one before it
    // ends.
    void add_communication(Span span) {
        if (!on || communication == 0) return;
        const std::vector<Span>& before = tracks[communication].spans;
        if (!before.empty()) span.begin = std::max(span.begin, std::min(span.end, before.back().end));
        add(communication, span);
    }
};
inline Trace trace;

struct Range {
    KernelWork work;
    KernelName outer{""};
    double begin = 0;  // 0: not traced

    explicit Range(const KernelWork& of) : work(of) {
        if (trace.push) trace.push(work.name.text);
        if (!trace.on) return;
        outer = trace.innermost, trace.innermost = work.name;
        begin = now_seconds();
    }
    // A range that is no kernel. number: of the layer, micro-step, ...
    explicit Range(const char* text, int64_t number = -1) : Range(KernelWork{{text, (double)number}}) {}
    ~Range() {
        if (trace.pop) trace.pop();
        if (trace.at_end) trace.at_end(work);
        if (begin == 0) return;
        if (trace.on) trace.add(0, {work, begin, now_seconds()});
        trace.innermost = outer;
    }
    Range(const Range&) = delete;
};

// What one thread of the CPU does of a loop: a span on its track, named after the innermost range.
struct ThreadSpan {
    int64_t track;
    double begin;

    explicit ThreadSpan(int thread) : track(thread + 1), begin(trace.on ? now_seconds() : 0) {}
    ~ThreadSpan() {
        if (begin > 0 && track < (int64_t)trace.tracks.size())
            trace.add(track, {{trace.innermost}, begin, now_seconds()});
    }
    ThreadSpan(const ThreadSpan&) = delete;
};
