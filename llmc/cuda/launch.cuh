// How kernels are started, and how they are traced.
#pragma once
#include <algorithm>
#include "llmc/cuda/wait.cuh"
#include "llmc/trace/trace.h"
#ifdef __CUDACC__
#include <nvtx3/nvToolsExt.h>
#endif

// A slice on the track of a stream, while a step is traced: two events around what the host
// enqueues in the stream between construction and destruction. Ranges of a stream nest.
struct StreamRange {
    int64_t index = -1;  // in stream_trace.ranges

    StreamRange(const KernelWork& work, cudaStream_t stream);
    ~StreamRange();
    StreamRange(const StreamRange&) = delete;
};

// What was enqueued in the steps that are traced. Once their work is done, the events become
// slices.
struct StreamTrace {
    struct Enqueued {
        KernelWork work;
        cudaStream_t stream;
        cudaEvent_t begin, end, start;
        double start_time;
    };
    std::vector<Enqueued> ranges;
    std::vector<cudaStream_t> streams;  // stream i is track 1 + i
    std::vector<cudaEvent_t> starts;    // of the steps so far
    cudaEvent_t start = nullptr;
    double start_time = 0;

    static cudaEvent_t event(cudaStream_t stream) {
        cudaEvent_t made;
        check_cuda(cudaEventCreate(&made), "making an event");
        check_cuda(cudaEventRecord(made, stream), "timing");
        return made;
    }
    // The events have a clock of their own. Before the first step it is compared with the host's,
    // while nothing is computed. Each step has a start of its own, near which times are exact.
    void begin_step() {
        wait_for_stream(streams[0], "starting a trace");
        start = event(streams[0]);
        wait_for_stream(streams[0], "starting a trace");
        float ms = 0;
        if (starts.empty()) start_time = now_seconds();
        else check_cuda(cudaEventElapsedTime(&ms, starts.back(), start), "timing");
        start_time += ms * 1e-3;
        starts.push_back(start);
    }
    // After a step: of what is done. Weights may arrive until the next forward pass; only after the
    // last step the host waits for them.
    void end_step(bool last) {
        for (cudaStream_t stream : streams)
            if (last) wait_for_stream(stream, "ending a trace");
        std::vector<Enqueued> going_on;
        for (const Enqueued& r : ranges) {
            if (!last && !is_done(r.end, "timing")) {
                going_on.push_back(r);
                continue;
            }
            float begin_ms = 0, end_ms = 0;
            check_cuda(cudaEventElapsedTime(&begin_ms, r.start, r.begin), "timing");
            check_cuda(cudaEventElapsedTime(&end_ms, r.start, r.end), "timing");
            const int64_t track = 1 + (std::find(streams.begin(), streams.end(), r.stream) - streams.begin());
            trace.add(track, {r.work, r.start_time + begin_ms * 1e-3, r.start_time + end_ms * 1e-3});
            cudaEventDestroy(r.begin), cudaEventDestroy(r.end);
        }
        ranges = going_on;
        for (cudaEvent_t event : starts)
            if (last) cudaEventDestroy(event);
    }
};
inline StreamTrace stream_trace;

inline StreamRange::StreamRange(const KernelWork& work, cudaStream_t stream) {
    if (!trace.on) return;
    index = (int64_t)stream_trace.ranges.size();
    StreamTrace& t = stream_trace;
    t.ranges.push_back({work, stream, StreamTrace::event(stream), nullptr, t.start, t.start_time});
}
inline StreamRange::~StreamRange() {
    if (index < 0) return;
    StreamTrace::Enqueued& r = stream_trace.ranges[index];
    r.end = StreamTrace::event(r.stream);
}
// Gives each stream of this process a track, of this name. To be called before a step is traced.
inline void trace_streams(const std::vector<std::pair<const char*, cudaStream_t>>& named) {
    stream_trace.streams.clear();
    for (const auto& [name, stream] : named) trace.tracks.push_back({name, {}}), stream_trace.streams.push_back(stream);
    trace.begin_device = [] { stream_trace.begin_step(); };
    trace.end_device = [](bool last) { stream_trace.end_step(last); };
}

// From here on each Range of the trace is also one of NVTX, which profilers show.
inline void name_ranges_for_profilers() {
#ifdef __CUDACC__
    trace.push = [](const char* name) { nvtxRangePushA(name); };
    trace.pop = [] { nvtxRangePop(); };
#endif
}

// What the runtime says of this process's GPU, such as the size of its second-level cache.
inline int device_attribute(cudaDeviceAttr attribute) {
    int device = 0, value = 0;
    check_cuda(cudaGetDevice(&device), "asking for the GPU");
    check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "asking for the GPU's properties");
    return value;
}

// Starts kernel<<<grid, block, shared_bytes, stream>>>(args...), and checks that it could start.
// Every kernel is started here; `name` appears in profilers and messages.
template <class... Params, class... Args>
inline void launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Args... args) {
    const Range range(name);
    const StreamRange in_stream({{name}}, stream);
#ifdef CUSIM
    cusim::launch(name, kernel, grid, block, shared_bytes, stream, args...);
#else
    kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Params>(args)...);
#endif
    check_cuda(cudaGetLastError(), name);
}

// Blocks of a kernel that are on the GPU at once. Where each block takes an equal part of the work,
// more of them would leave a last wave that fills a part of the GPU.
template <class Kernel>
inline int64_t resident_blocks(Kernel* kernel, dim3 block, size_t shared_bytes) {
    int blocks = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, (int)(block.x * block.y * block.z),
                                                             shared_bytes),
               "asking what fits");
    return (int64_t)blocks * device_attribute(cudaDevAttrMultiProcessorCount);
}
// The most threads of a block of this kernel of which a multiprocessor can hold `blocks`. It holds
// 2048 threads, or 1536 where the compute capability is 8.6, 8.9 or 12.0.
template <class Kernel>
inline int64_t most_threads(Kernel* kernel, int blocks) {
    cudaFuncAttributes compiled;
    check_cuda(cudaFuncGetAttributes(&compiled, kernel), "asking for the bounds of a kernel");
    const int fit = device_attribute(cudaDevAttrMaxThreadsPerMultiProcessor) / blocks;
    return std::min(fit, compiled.maxThreadsPerBlock);
}

// A kernel must be allowed explicitly to use more than 48 KB of dynamic shared memory.
template <class Kernel>
inline void allow_shared(Kernel* kernel, size_t bytes, const char* name) {
    if (bytes > 48 << 10)
        check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), name);
}
